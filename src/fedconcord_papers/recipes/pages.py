"""The pages about the papers: one a recipe, and the index of all, made of recipes and values alone."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedconcord.study.statistics.stats import FEW
from fedconcord.support import files
from fedconcord.support.errors import UserError
from fedconcord_papers.recipes.claims import chance
from fedconcord_papers.recipes.evidence import (
    COUNTED,
    JUDGED,
    VALUES,
    Difference,
    Judged,
    differences,
    gather,
    published,
)
from fedconcord_papers.recipes.found import PAPERS, Sentence
from fedconcord_papers.recipes.items import commands, estimate
from fedconcord_papers.recipes.recipe import NOTHING, Comparison, Recipe, SizeName, names_of
from fedconcord_papers.recipes.tables import cell_of, chosen, grids, markdown, measure_of, tables, titles_of, told_by
from fedconcord_papers.recipes.threats import threats
from fedconcord_papers.recipes.values import Done, Values, read

INDEX = "README.md"
INTRODUCTION = """\
# What of five papers holds when it is measured again

The experiments of five papers are recipes, but for FedVRA's Fig. 3, and of A-FedPD those that its slides show:
settings, methods, what the paper says as predicates, what it prints. This page says which of these predicates were
tested, how, and what came of each.

**What counts.** A predicate *held*, held *in part*, *failed* or stayed *undecided* only where the model, the data and
the length are the paper's. Everything smaller is a *stand-in*: it may show what the paper says, or not show it, and
proves neither. What was not run is *untested*. A predicate about several comparisons is held if all are so, failed if
none is so and at least one is the other way, undecided if none is so and none the other way, and else in part;
comparisons that were not run make held and failed *in part*. Where a method has several forms pages say which was run.
Predicates of our own are judged on the pages and not counted.

**How it is judged.** Methods are compared in pairs by seed: same clients, batches and start. With five seeds or more
the 95 % t interval of the differences decides. With fewer, all must agree, which for methods that are alike happens
by chance in one of four comparisons with three seeds, one of two with two; one seed decides nothing. Bounds are judged
alike, on the distances to them. Brackets hold the interval, or the range where values are fewer than five or the
interval would leave what is possible; none stand where all seeds have one value. Methods that are "tuned" have the best
of a grid by one more seed, on the data that are reported on. Numbers in parentheses are the paper's, and stand beside
none of another network. Closed forms, which are exact, need no seeds."""
EARLIER = "earlier.md"
BEFORE = (
    f"What was measured before values by seed were kept is among [earlier measurements]({EARLIER}), and does not count."
)
COLUMNS = ("", "table or figure", "the paper says", *COUNTED, "measured (printed)", "took", "would take")
COMMANDS = """\
    fedconcord reproduce all --paper --queue --jobs 1 --until 23:00 --values docs/papers/values --out OUT
                                                          # most valuable first; goes on from the values alone
    fedconcord reproduce all --desk --jobs 2 --out OUT    # a size that two cores manage
    fedconcord reproduce --verdicts --out OUT
    fedconcord reproduce --pages docs/papers --out OUT
    fedconcord reproduce --pages docs/papers --out OUT --report papers.pdf   # or papers.zip, with all values"""


# -- files -----------------------------------------------------------------------------------------------------------


def write_one(one: Judged, folder: Path) -> Path:
    """The page of a recipe that was done beside its figures, in its own folder; returns the page."""
    path = folder / INDEX
    files.write_text(path, page(one, [figure.name for figure in sorted(folder.glob("*.png"))], "done.json"))
    return path


def write_pages(out: Path, recipes: Mapping[str, Recipe], folder: Path) -> Path:
    """A page a recipe with its figures and values, and the index; returns the index.

    What was published there and is not below `out` is judged anew and stays.

    Raises:
        UserError: neither holds a recipe that was done.
    """
    judged = gather(out, recipes, folder)
    if not any(one.sizes for one in judged.values()):
        raise UserError(f"no recipe was done below {out}, and {folder} has no values; run one first, or give its --out")
    (folder / VALUES).mkdir(parents=True, exist_ok=True)
    for name, one in judged.items():
        for size, result in one.sizes.items():
            if size in JUDGED:
                if not (path := published(folder, name, size)).exists() or read(path) != result:
                    result.write(path)
                _copy_figures(out / name / size, folder, name, size)
        figures = [path.name for size in JUDGED for path in _figures(folder, f"{name}-{size}")]
        files.write_text(folder / f"{name}.md", page(one, figures, VALUES))
    files.write_text(folder / INDEX, index(judged, (folder / EARLIER).exists()))
    return folder / INDEX


def _copy_figures(source: Path, folder: Path, name: str, size: SizeName) -> None:
    """The figures of a size in place of those that were published: NAME.png and NAME-2.png become NAME-SIZE.png and
    NAME-SIZE-2.png."""
    new = _figures(source, name)
    for path in _figures(folder, f"{name}-{size}") if new else ():
        path.unlink()
    for path in new:
        shutil.copyfile(path, folder / f"{name}-{size}{path.stem.removeprefix(name)}.png")


def _figures(folder: Path, stem: str) -> list[Path]:
    return sorted([*folder.glob(f"{stem}.png"), *folder.glob(f"{stem}-[0-9].png")])


# -- a page ----------------------------------------------------------------------------------------------------------


def page(one: Judged, figures: Sequence[str], values: str) -> str:
    """The page of a recipe as Markdown; `values` is the file of its values beside it, or the folder of such files."""
    recipe = one.recipe
    parts = [f"# {recipe.source}", f"Experiment {recipe.id}, `{recipe.name}`. The paper: {recipe.claim}."]
    parts += [f"**{counted(one)}.** {_chance(one)}".rstrip()]
    parts += [told(sentence) for sentence in recipe.findings]
    parts += ["## Claims", verdicts(one)]
    parts += ["## What differs from the paper", difference_table(one)] if one.sizes else []
    if one.at_paper.rows:
        parts += ["## Numbers at the paper's size", *tables(recipe, one.at_paper, recipe.published)]
    if one.on_stand_ins.rows:
        parts += ["## Numbers on stand-ins", *tables(recipe, one.on_stand_ins, NOTHING)]
    for size, result in one.sizes.items():
        if result.chosen and result.searched:
            parts += [f"Taken of the grid at size {size}, {told_by(recipe)}. {grids(result)}", chosen(recipe, result)]
    parts += [f"![{recipe.source}]({name})" for name in figures]
    parts += ["## What the paper does not say", recipe.silent] if recipe.silent else []
    parts += ["## How", *(_how(result, values) for result in one.sizes.values())]
    if one.is_unfinished:
        head = "What is left at the paper's size" if one.at_paper.rows else "Not run at the paper's size"
        parts += [f"{head}:\n\n" + "\n".join(f"    {line}" for line in commands(recipe.name))]
    return "\n\n".join(parts) + "\n"


def counted(one: Judged) -> str:
    """The counts of a recipe's predicates, in a line."""
    if one.recipe.ours:
        return "An experiment of our own, not counted among the paper's"
    words = [f"{name} {number}" for name in COUNTED if (number := one.counts[name])]
    return f"Of {one.counts.total()} predicates: {', '.join(words)}"


def _chance(one: Judged) -> str:
    """What chance does where seeds are few."""
    words = [
        f"{n} seeds put methods that are alike in one order by chance in one of {1 / chance(n):.0f} comparisons"
        if n > 1
        else "one seed decides no comparison"
        for n in sorted(one.seed_counts)
        if n < FEW
    ]
    return f"Seeds are few: {'; '.join(words)}." if words else ""


def told(sentence: Sentence) -> str:
    """A sentence with the predicates that carry it."""
    return f"{sentence.text.rstrip('.')} ({', '.join(number for number, _ in sentence.carriers)})."


def verdicts(one: Judged) -> str:
    """The claims with their numbers, verdicts and evidence."""
    rows = [
        (
            f"{one.recipe.id}.{k}",
            f"{claim.says}{' (ours)' * claim.ours}",
            f"**{finding.verdict}**",
            _titled(one.recipe, finding.why),
        )
        for k, (claim, finding) in enumerate(zip(one.recipe.claims, one.findings, strict=True), start=1)
    ]
    return markdown(("", "claim", "verdict", "evidence"), rows)


def difference_table(one: Judged) -> str:
    """What the paper has beside what was run here, by size; what is alike in several cells stands once."""
    rows: list[tuple[str, ...]] = []
    titles = titles_of(one.recipe)
    for size, result in one.sizes.items():
        cells, by_what = result.values.cells(), dict[Difference, list[str]]()
        for cell in cells:
            for each in differences(one.recipe, size, cell, result):
                by_what.setdefault(each, []).append(titles.get(cell, cell))
        for each, who in by_what.items():
            whose = "; ".join(who) if len(who) < len(cells) else "all" if len(cells) > 1 else ""
            rows.append((size, whose, each.what, each.paper, each.here))
        for what, missing in _left_out(one.recipe, result.values):
            rows.append((size, "", what, missing, ""))
    return markdown(("size", "federation", "what", "paper", "here"), rows) if rows else "Nothing that the paper states."


def _left_out(recipe: Recipe, values: Values) -> list[tuple[str, str]]:
    """Federations and methods of the paper that were not run."""
    if not isinstance(recipe.experiment, Comparison):
        return []
    paper, titles = recipe.sizes["paper"], titles_of(recipe)
    cells = [cell for cell in titles if (paper.cells is None or cell in paper.cells) and cell not in values.cells()]
    entries = [name for name in names_of(recipe.experiment) if paper.entries is None or name in paper.entries]
    missing = [name for name in entries if name not in values.entries()]
    missing_names = {"federations not run": [titles[cell] for cell in cells], "methods not run": missing}
    return [(what, "; ".join(names)) for what, names in missing_names.items() if names]


def _how(result: Done, values: str) -> str:
    """The command of a size, what it took, on what machine, and where its values are."""
    numbers = sorted({row.seed for row in result.values.rows})
    seeds = f"seed{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
    runs = len({(row.cell, row.entry, row.seed) for row in result.values.rows})
    search = f" and {result.searched} of the search" if result.searched else ""
    where = list(dict.fromkeys(f"{each['machine']}, fedconcord {each['version']}" for each in result.log))
    file = f"{values}/{result.recipe}-{result.size}.json" if values == VALUES else values
    return (
        f"    {result.command}\n\n{runs} runs{search}, {seeds}; {span(result.seconds)}, added over "
        f"processes, on {'; '.join(where)}. Every value by seed: [{file}]({file})."
    )


def span(seconds: float) -> str:
    """A time as a reader takes it in."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


# -- the index -------------------------------------------------------------------------------------------------------


def index(judged: Mapping[str, Judged], has_earlier: bool = False) -> str:
    """What of the papers holds when measured again: a table a paper, a row a recipe; and a link to earlier
    measurements, if there is such a page."""
    counts = sum((one.counts for one in judged.values()), Counter[str]())
    run = sum(bool(one.sizes) for one in judged.values())
    words = ", ".join(f"{name} {counts[name]}" for name in COUNTED)
    parts = [
        INTRODUCTION,
        *([BEFORE] if has_earlier else []),
        f"**{run} of {len(judged)} recipes were run. Of {counts.total()} predicates: {words}.**",
    ]
    for name, paper in PAPERS.items():
        own = [one for one in judged.values() if paper_of(one.recipe) == name and not one.recipe.ours]
        text = " ".join(told(sentence) for sentence in paper.sentences)
        parts += [f"## {name}", paper.cited, *filter(None, [text]), markdown(COLUMNS, map(_row, own))]
    ours = [one for one in judged.values() if one.recipe.ours]
    parts += ["## Experiments of our own", "Of papers' methods, not of their experiments; not counted above."]
    parts += [markdown(COLUMNS, map(_row, ours)), "## Threats to validity", *threats(judged.values())]
    return "\n\n".join([*parts, "## How", COMMANDS]) + "\n"


def paper_of(recipe: Recipe) -> str:
    """The paper of a recipe, by the name of its method."""
    return recipe.source.partition(", ")[0]


def _row(one: Judged) -> tuple[str, ...]:
    """A recipe in the index."""
    recipe = one.recipe
    link = f"[{recipe.source.partition(', ')[2]}]({recipe.name}.md)"
    numbers = [str(one.counts[name]) if not recipe.ours else "" for name in COUNTED]
    took = span(one.seconds) if one.sizes else ""
    takes = estimate(recipe.name) if one.is_unfinished else ""
    return (recipe.id, link, recipe.claim, *numbers, headline(one), took, takes)


def headline(one: Judged) -> str:
    """The recipe's first numbers as the index shows them, with interval, and the printed value where they are at the
    paper's size; empty if not measured."""
    if one.recipe.headline is None:
        return ""
    measure, cell, entries = one.recipe.headline
    stated = measure_of(one.recipe, measure)
    for values, printed, head in (
        (one.at_paper, one.recipe.published.get(measure, {}), ""),
        (one.on_stand_ins, {}, "stand-in: "),
    ):
        there = [entry for entry in entries if values.seeds(measure, cell, entry)]
        each = [
            f"{entry} {cell_of(values, stated, measure, cell, entry, printed.get((cell, entry)))}" for entry in there
        ]
        if each:
            return f"{head}{measure}, {titles_of(one.recipe).get(cell, cell)}: {'; '.join(each)}"
    return ""


def _titled(recipe: Recipe, why: str) -> str:
    """The evidence of a claim with its cells, which it has in brackets, as tables show them."""
    for name, title in titles_of(recipe).items():
        why = why.replace(f"({name})", f"({title})")
    return why
