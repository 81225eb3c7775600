"""What a recipe's values say of its claims, at the paper's own size and on stand-ins.

Whether the values of a cell are at the paper's size is computed: its settings are those that it has at size `paper`,
and the recipe names nothing that the paper has otherwise. All else is a stand-in, which may show what a paper says,
or not show it, and neither holds it up nor refutes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedconcord.support.grammar import text
from fedconcord_papers.recipes.ledger import UNSEEN
from fedconcord_papers.recipes.recipe import Cell, Comparison, Recipe, SizeName
from fedconcord_papers.recipes.run import DONE, RecipeSpec, ledger_of, settings_of
from fedconcord_papers.recipes.values import Done, Finding, Value, Values, read

VALUES = "values"  # the folder of published values, NAME-SIZE.json
JUDGED: tuple[SizeName, ...] = ("paper", "desk")  # sizes that tell of a claim; `quick` tests the code alone
HARMLESS = (*UNSEEN, "eval.every", "search")  # they make no stand-in, though a reader wants to know them
COUNTED = ("held", "in part", "failed", "undecided", "stand-in", "untested")


class Difference(NamedTuple):
    """Something that a cell does not have as the paper has it."""

    what: str  # a setting, or another word
    paper: str
    here: str

    @property
    def is_stand_in(self) -> bool:
        """Whether it makes the cell a stand-in."""
        return not self.what.startswith(HARMLESS)


def differences(recipe: Recipe, size: SizeName, cell: str) -> list[Difference]:
    """What differs from the paper in a cell at a size, the settings first; of a study its cells are all alike."""
    experiment, here, paper = recipe.experiment, recipe.sizes[size], recipe.sizes["paper"]
    ours, theirs = dict[str, Any](here.options), dict[str, Any](paper.options)
    if isinstance(experiment, Comparison):
        stated = next((one for one in experiment.cells if one.name == cell), None)
        if stated is None or (paper.cells is not None and cell not in paper.cells):
            return [Difference("cell", "no such one", cell if stated is None else stated.title)]
        ours, theirs = settings_of(experiment, here, stated), settings_of(experiment, paper, stated)
        if size != "paper" and paper.search is not None and any(entry.grid for entry in _entries(experiment, stated)):
            ours["search"], theirs["search"] = _search(here.search), _search(paper.search)
    differing = [
        Difference(key, _show(theirs.get(key)), _show(ours.get(key)))
        for key in (*theirs, *(key for key in ours if key not in theirs))
        if ours.get(key) != theirs.get(key) and not key.startswith(UNSEEN)
    ]
    return differing + [Difference(key, has, _show(ours.get(key))) for key, has in recipe.paper_has.items()]


def in_short(recipe: Recipe, size: SizeName) -> str:
    """What differs from the paper at a size, in a line."""
    experiment, some = recipe.experiment, recipe.sizes[size].cells
    cells = [cell.name for cell in experiment.cells] if isinstance(experiment, Comparison) else [""]
    by_what: dict[str, dict[str, None]] = {}
    for cell in cells if some is None else some:
        for each in differences(recipe, size, cell):
            by_what.setdefault(each.what, {})[f"{each.here} for {each.paper}"] = None
    return "; ".join(f"{what} {' or '.join(pairs)}" for what, pairs in by_what.items())


def _entries(experiment: Comparison, cell: Cell) -> Sequence[Any]:
    return experiment.entries if cell.entries is None else cell.entries


def _search(settings: Mapping[str, Any] | None) -> str:
    """How long a grid is searched."""
    if settings is None:
        return "none"
    return ", ".join(f"{key} {_show(value)}" for key, value in settings.items()) or "as long as the runs"


def _show(value: object) -> str:
    return "the default" if value is None else text(value)


class Judged(NamedTuple):
    """A recipe, what was done of it, and what is found of its claims."""

    recipe: Recipe
    sizes: Mapping[SizeName, Done]
    at_paper: Values
    on_stand_ins: Values
    findings: Sequence[Finding]  # one a claim
    page: Path | None = None  # in the folder of what was just done

    @property
    def counts(self) -> Counter[str]:
        """How many of the paper's claims came out how, by the words of `COUNTED`; ours are not among them."""
        claims = zip(self.recipe.claims, self.findings, strict=True)
        counted = [finding for claim, finding in claims if not (claim.ours or self.recipe.ours)]
        return Counter("stand-in" if one.stand_in else one.outcome for one in counted)

    @property
    def seed_counts(self) -> set[int]:
        """Numbers of seeds with which entries of cells were run; some may have more than others."""
        seeds: dict[tuple[str, str], set[int]] = {}
        for row in (*self.at_paper.rows, *self.on_stand_ins.rows):
            seeds.setdefault((row.cell, row.entry), set()).add(row.seed)
        return {len(each) for each in seeds.values()}

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.sizes.values())


def judge(recipe: Recipe, sizes: Mapping[SizeName, Done]) -> Judged:
    """Judge every claim of a recipe: on what was run at the paper's size, else on stand-ins, whatever the size is
    called."""
    at_paper, elsewhere = dict[str, tuple[Value, ...]](), dict[str, tuple[Value, ...]]()
    judging = [size for size in JUDGED if size in sizes]
    for size in judging or sizes:
        for cell in sizes[size].values.cells():
            is_stand_in = any(one.is_stand_in for one in differences(recipe, size, cell))
            rows = tuple(row for row in sizes[size].values.rows if row.cell == cell)
            (elsewhere if is_stand_in else at_paper).setdefault(cell, rows)
    exact, others = (Values(tuple(row for rows in one.values() for row in rows)) for one in (at_paper, elsewhere))
    findings = []
    for claim in recipe.claims:
        finding = claim.judge(exact) if judging else Finding("untested")
        if judging and finding.outcome == "untested" and not claim.printed:
            finding = claim.judge(others)
            finding = finding._replace(stand_in=finding.outcome != "untested")
        findings.append(finding)
    return Judged(recipe, sizes, exact, others, findings)


def published(folder: Path, name: str, size: str) -> Path:
    """The file of a recipe's values below a folder of pages."""
    return folder / VALUES / f"{name}-{size}.json"


def gather(out: Path, recipes: Mapping[str, Recipe], folder: Path | None = None) -> dict[str, Judged]:
    """Every recipe with all that was done of it below `out`, OUT/NAME/SIZE/done.json or OUT/done.json, and what a
    folder of pages has besides; of values that are in both those below `out` count."""
    by_name: dict[str, dict[SizeName, Done]] = {name: {} for name in recipes}
    for path in (*standing(folder, recipes), *sorted(out.rglob(DONE))):
        result = read(path)
        if result.recipe not in by_name:
            continue
        size: SizeName = result.size  # type: ignore[assignment]
        if folder is not None and size in by_name[result.recipe]:
            spec = RecipeSpec(recipes[result.recipe], size, path.parent, values=folder / VALUES)
            result = ledger_of(spec, lambda line: None).done()
        by_name[result.recipe][size] = result
    return {name: judge(recipe, by_name[name]) for name, recipe in recipes.items()}


def standing(folder: Path | None, recipes: Iterable[str]) -> list[Path]:
    """The files of values that a folder of pages has."""
    if folder is None:
        return []
    return [path for name in recipes for size in JUDGED if (path := published(folder, name, size)).exists()]
