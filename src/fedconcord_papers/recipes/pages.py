"""A recipe's page and the index of all: claim, verdict, our number with its interval, theirs, figure, command, time."""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedconcord.study.statistics.load import show
from fedconcord.support import files
from fedconcord.support.errors import UserError
from fedconcord_papers.recipes.claims import overall
from fedconcord_papers.recipes.found import SUMMARIES
from fedconcord_papers.recipes.recipe import NOTHING, Comparison, Measure, Recipe, names_of
from fedconcord_papers.recipes.run import DONE
from fedconcord_papers.recipes.values import Done, Finding, Values, read

INDEX, VALUES = (
    "README.md",
    "values",
)  # of a folder of pages: its first one, and the folder of done.json's, NAME-SIZE.json
SIZES = ("quick", "desk", "paper")
WIDEST = 8  # entries side by side; more stand below each other
INTRODUCTION = """\
# What of five papers holds when it is measured again

Every table and figure of the five papers, with each method tuned as carefully as the others: same grid, same clients,
batches and start for one seed. A verdict rests on paired seeds: by the 95 % t interval of five or more, else only where
every seed agrees. *desk* is a size that two cores manage; what differs from the paper's stands on the page. Minutes are
the runs' own, added over processes."""
COLUMNS = ("", "table or figure", "the paper says", "verdict", "measured (printed)", "seeds", "size", "minutes")
COMMANDS = """\
    fedconcord reproduce all --desk --jobs 2 --out OUT      # goes on where it was interrupted
    fedconcord reproduce --verdicts --out OUT
    fedconcord reproduce --pages docs/papers --out OUT"""


class Judged(NamedTuple):
    """A recipe that was done, and what is found of its claims."""

    recipe: Recipe
    done: Done
    path: Path  # of its values
    findings: Sequence[Finding]  # one a claim

    @property
    def verdict(self) -> Finding:
        return overall(self.findings)

    @property
    def page(self) -> Path:
        """Its page in its own folder."""
        return self.path.with_name(INDEX)


def judge(recipe: Recipe, results: Done, path: Path) -> Judged:
    """Judge every claim of a recipe on its values, if this size tests it; stand-in data test none."""
    stand_in = recipe.sizes[results.size].stand_in  # type: ignore[index]
    untested = Finding("not tested at this size", "stand-in data" if stand_in else "")
    findings = [
        untested if stand_in or results.size not in claim.sizes else claim.judge(results.values)
        for claim in recipe.claims
    ]
    return Judged(recipe, results, path, findings)


def done_below(out: Path, recipes: Mapping[str, Recipe]) -> list[Judged]:
    """Every recipe that was done below a folder, OUT/NAME/SIZE/done.json or OUT/done.json; of several sizes of one
    the largest."""
    return _largest(sorted(out.rglob(DONE)), recipes)


def _largest(paths: Iterable[Path], recipes: Mapping[str, Recipe]) -> list[Judged]:
    """What these files hold, in the order of the recipes; of one recipe the largest size, of one size the last."""
    found: dict[str, Judged] = {}
    for path in paths:
        done = read(path)
        if done.recipe not in recipes:
            continue
        before = found.get(done.recipe)
        if before is None or SIZES.index(before.done.size) <= SIZES.index(done.size):
            found[done.recipe] = judge(recipes[done.recipe], done, path)
    return [found[name] for name in recipes if name in found]


# -- pages -----------------------------------------------------------------------------------------------------------


def write_one(one: Judged) -> None:
    """The page of a recipe beside its figures, in its own folder."""
    files.write_text(one.page, page(one, [figure.name for figure in sorted(one.path.parent.glob("*.png"))], DONE))


def write_pages(out: Path, recipes: Mapping[str, Recipe], folder: Path) -> Path:
    """A page a recipe with its figures and values, and the index; returns the index.

    What was published there and is not below `out`, or only at a smaller size, is judged anew and stays; a page whose
    values are not there keeps its row of the index.

    Raises:
        UserError: neither holds a recipe that was done.
    """
    published = [folder / VALUES / f"{name}-{size}.json" for name in recipes for size in SIZES]
    judged = _largest([*filter(Path.exists, published), *sorted(out.rglob(DONE))], recipes)
    if not judged:
        raise UserError(f"neither {out} nor {folder} holds a recipe that was done; run one first, or give its --out")
    rows = _standing(folder / INDEX)
    (folder / VALUES).mkdir(parents=True, exist_ok=True)
    for one in judged:
        name = one.recipe.name
        if one.path not in published:
            for path in _figures(folder, name):
                path.unlink()
            for path in _figures(one.path.parent, name):
                shutil.copyfile(path, folder / path.name)
            one.done.write(folder / VALUES / f"{name}-{one.done.size}.json")
        figures = [path.name for path in _figures(folder, name)]
        files.write_text(folder / f"{name}.md", page(one, figures, f"{VALUES}/{name}-{one.done.size}.json"))
    files.write_text(folder / INDEX, index(judged, recipes, rows))
    return folder / INDEX


def _figures(folder: Path, name: str) -> list[Path]:
    """A recipe's figures: NAME.png and NAME-2.png."""
    return sorted([*folder.glob(f"{name}.png"), *folder.glob(f"{name}-*.png")])


def _standing(path: Path) -> dict[str, str]:
    """The rows of an index by their recipes."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = {line: re.search(r"\]\((\w+)\.md\) \| ", line) for line in lines if line.startswith("| ")}
    return {found[1]: line for line, found in rows.items() if found}


def page(one: Judged, figures: Sequence[str], found: str) -> str:
    """The page of a recipe as Markdown; `found` is the file of its values beside it."""
    recipe, done = one.recipe, one.done
    size = recipe.sizes[done.size]  # type: ignore[index]
    title = f"{recipe.source}{', with stand-in data' if size.stand_in else ''}"
    parts = [f"# {title}", f"Experiment {recipe.id}, `{recipe.name}`. The paper: {recipe.claim}."]
    parts.append(f"**{one.verdict.verdict.capitalize()}**, at {done.size} size.{_sentence(size.note)}")
    if size.stand_in:
        parts.append(f"Stand-in: {size.stand_in}. It tests the code, not the claim.")
    parts += [f"{text}" for text in recipe.findings]
    parts += ["## Claims", verdicts(one)]
    parts += ["## Numbers", *tables(recipe, done.values)]
    if done.chosen and done.searched:
        parts += ["Taken of the grid:", chosen(recipe, done)]
    parts += [f"![{recipe.source}]({name})" for name in figures]
    if recipe.silent:
        parts += ["## Not in the paper", recipe.silent]
    parts += ["## How", f"    {done.command}", f"{how(done)} Every value by seed: [{found}]({found})."]
    return "\n\n".join(parts) + "\n"


def _sentence(text: str) -> str:
    return f" {text[0].upper()}{text[1:]}." if text else ""


def how(results: Done) -> str:
    """What it took, on what machine."""
    seeds = sorted({row.seed for row in results.values.rows})
    search = f" and {results.searched} of the search" if results.searched else ""
    runs = len({(row.cell, row.entry, row.seed) for row in results.values.rows})
    machines = dict.fromkeys(spell["machine"] for spell in results.log)
    versions = dict.fromkeys(spell["version"] for spell in results.log)
    return (
        f"{runs} runs{search}, seeds {', '.join(map(str, seeds))}; {minutes(results.seconds)} minutes, added over "
        f"processes, on {' and '.join(machines)}; fedconcord {' and '.join(versions)}."
    )


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f}" if seconds >= 600 else f"{seconds / 60:.1f}"


def verdicts(one: Judged) -> str:
    """The claims with their verdicts and evidence."""
    rows = [
        (claim.says, finding.verdict, _titled(one.recipe, finding.why))
        for claim, finding in zip(one.recipe.claims, one.findings, strict=True)
    ]
    return markdown(("claim", "verdict", "evidence"), rows)


def tables(recipe: Recipe, values: Values) -> list[str]:
    """A table a measure: cells in rows, entries in columns, many entries in rows; ours with the interval, the printed
    value in brackets."""
    found = []
    for measure in values.measures():
        cells, entries, titles = values.cells(measure), values.entries(), _titles(recipe)
        if isinstance(recipe.experiment, Comparison):
            entries = [name for name in names_of(recipe.experiment) if name in entries]
        printed = recipe.published.get(measure, {})
        entries = [one for one in entries if any(values.seeds(measure, c, one) or (c, one) in printed for c in cells)]
        stated = measure_of(recipe, measure)
        rows = [
            [
                titles.get(cell, cell),
                *(_cell(values, stated, measure, cell, entry, printed.get((cell, entry))) for entry in entries),
            ]
            for cell in cells
        ]
        lines = [["", *entries], *rows]
        if len(entries) > WIDEST:
            lines = [list(column) for column in zip(*lines, strict=True)]
        head = f"{measure}{'; in brackets what the paper prints' if printed else ''}:"
        found.append(f"{head}\n\n{markdown(lines[0], lines[1:])}")
    return found


def measure_of(recipe: Recipe, name: str) -> Measure | None:
    """The stated measure of this name; none of a study's."""
    if not isinstance(recipe.experiment, Comparison):
        return None
    return next((measure for measure in recipe.experiment.measures if measure.name == name), None)


def _cell(
    values: Values, stated: Measure | None, measure: str, cell: str, entry: str, printed: float | str | None
) -> str:
    seeds = values.seeds(measure, cell, entry)
    theirs = "" if printed is None else f" ({printed if isinstance(printed, str) else f'{printed:.10g}'})"
    if not seeds:
        return theirs.strip()
    finite = [v for v in seeds.values() if math.isfinite(v)]
    if not finite:
        return ("never" if any(math.isinf(v) for v in seeds.values()) else "diverged") + theirs
    form = ".3g"
    if stated is not None and max(map(abs, finite)) < 1e9 and not all(0 < abs(v) < 10**-stated.digits for v in finite):
        form = f".{stated.digits}f"
    over = values.interval(measure, cell, entry)
    mean = format(over.mean, form)
    if over.n > 1:
        low, high = over.ends
        mean += f" [{low:{form}}, {high:{form}}]"
    some = "" if len(finite) == len(seeds) else f", {len(finite)} of {len(seeds)} seeds"
    return f"{mean}{some}{theirs}"


def chosen(recipe: Recipe, results: Done) -> str:
    """The best of the grid by cell and entry."""
    keys = {(cell, entry): values for cell, entries in results.chosen.items() for entry, values in entries.items()}
    entries = list(dict.fromkeys(entry for _, entry in keys))

    def words(cell: str, entry: str) -> str:
        taken = keys.get((cell, entry), {}).items()
        return ", ".join(
            f"{k.removeprefix('local.')} {show(v)}{_end(results.tried.get(cell, {}).get(entry, {}).get(k, ()), v)}"
            for k, v in taken
        )

    titles = _titles(recipe)
    sought = [entry for entry in entries if any(words(cell, entry) for cell in results.chosen)]
    rows = [[titles.get(cell, cell), *(words(cell, entry) for entry in sought)] for cell in results.chosen]
    return markdown(("", *sought), [row for row in rows if any(row[1:])])


def _end(tried: Sequence[float], taken: float) -> str:
    """Where the best is an end of what was tried, so that a longer grid might have a better one."""
    if len(tried) < 2 or taken not in (min(tried), max(tried)):
        return ""
    return " (highest tried)" if taken == max(tried) else " (lowest tried)"


def index(judged: Sequence[Judged], recipes: Mapping[str, Recipe], standing: Mapping[str, str] = NOTHING) -> str:
    """What of the papers holds when measured again: a table a paper, a row a recipe.

    Args:
        standing: rows of an earlier index, by recipe, for those that are not judged here.
    """
    rows = {name: standing.get(name) or _line(_row(recipe, None)) for name, recipe in recipes.items()}
    rows |= {one.recipe.name: _line(_row(one.recipe, one)) for one in judged}
    counts = Counter(row.split(" | ")[3].strip("*") for row in rows.values())
    counts.pop("not run", None)
    papers: dict[str, list[str]] = {}
    for recipe in recipes.values():
        papers.setdefault(recipe.source.partition(", ")[0], []).append(rows[recipe.name])
    summed = ", ".join(f"{verdict}: {number}" for verdict, number in counts.items())
    parts = [INTRODUCTION, f"{counts.total()} of {len(recipes)} were run; {summed}." if counts else "None was run yet."]
    for paper, lines in papers.items():
        cited, summary = SUMMARIES.get(paper, ("", ""))
        parts += [f"## {paper}", *filter(None, (cited, summary)), "\n".join([markdown(COLUMNS, ()), *lines])]
    return "\n\n".join([*parts, "## How", COMMANDS]) + "\n"


def _row(recipe: Recipe, one: Judged | None) -> tuple[str, ...]:
    """A recipe in the index."""
    place = recipe.source.partition(", ")[2]
    if one is None:
        return (recipe.id, place, recipe.claim, "not run", "", "", "", "")
    done, verdict = one.done, f"**{one.verdict.verdict}**"
    seeds = str(len({row.seed for row in done.values.rows}))
    linked, found = f"[{place}]({recipe.name}.md)", headline(recipe, done.values)
    return (recipe.id, linked, recipe.claim, verdict, found, seeds, done.size, minutes(done.seconds))


def headline(recipe: Recipe, values: Values) -> str:
    """The recipe's first numbers as the index shows them, with interval and printed value; empty if not measured."""
    if recipe.headline is None:
        return ""
    measure, cell, entries = recipe.headline
    printed, stated = recipe.published.get(measure, {}), measure_of(recipe, measure)
    there = [one for one in entries if values.seeds(measure, cell, one)]
    each = [f"{one}: {_cell(values, stated, measure, cell, one, printed.get((cell, one)))}" for one in there]
    return f"{measure}, {_titles(recipe).get(cell, cell)}. {'; '.join(each)}" if each else ""


def _titles(recipe: Recipe) -> dict[str, str]:
    """Names of cells -> their titles, as tables show them; a study's cells have none."""
    return {one.name: one.title for one in recipe.experiment.cells} if isinstance(recipe.experiment, Comparison) else {}


def _titled(recipe: Recipe, why: str) -> str:
    """The evidence of a claim with its cells, which it has in brackets, as tables show them."""
    for name, title in _titles(recipe).items():
        why = why.replace(f"({name})", f"({title})")
    return why


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(map(_line, [head, ["---"] * len(head), *rows]))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
