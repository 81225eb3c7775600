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
from fedconcord_papers.recipes.ledger import plain, relevant
from fedconcord_papers.recipes.recipe import Comparison, Recipe, Size, SizeName
from fedconcord_papers.recipes.run import DONE, RecipeSpec, entries_of, ledger_of, settings_of
from fedconcord_papers.recipes.values import Done, Finding, Request, Value, Values, file_of, read

VALUES = "values"  # the folder of published values, NAME-SIZE.json
JUDGED: tuple[SizeName, ...] = ("paper", "desk")  # sizes that tell of a claim; `quick` tests the code alone
HARMLESS = ("form", "grid")  # a reader wants to know of them, though they make no stand-in
UNKNOWN = Request(settings={}, methods={})
Place = tuple[str, str, str, int]  # measure, cell, entry and seed
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


def differences(recipe: Recipe, size: SizeName, cell: str, result: Done | None = None) -> list[Difference]:
    """What differs from the paper in a cell, the settings first; of a study its cells are all alike.

    Args:
        size: as the recipe has it now, where there is no result.
        result: values, and what was asked for them; its settings count, whatever the recipe has now.
    """
    experiment, here, paper = recipe.experiment, recipe.sizes[size], recipe.sizes["paper"]
    ours, theirs = dict[str, Any](here.options), dict[str, Any](paper.options)
    search, grids, home = (here.search, paper.search), list[Difference](), cell
    if isinstance(experiment, Comparison):
        stated = next((one for one in experiment.cells if one.name == cell), None)
        if stated is None or (paper.cells is not None and cell not in paper.cells):
            return [Difference("federation", "no such one", cell if stated is None else stated.title)]
        ours, theirs = settings_of(experiment, here, stated), settings_of(experiment, paper, stated)
        home = stated.tuned_in or cell
        has_grid = any(entry.grid for entry in entries_of(paper, experiment, stated))
        search = search if has_grid else (None, None)
    if result is not None:
        request = result.asked.get(cell)
        if request is None or (not request["settings"] and theirs):
            return [Difference("settings", "known", "not known")]
        ours, theirs = dict(request["settings"]), plain(theirs)
        asked_search = result.asked.get(home, request).get("search")
        search = (asked_search, None if search[1] is None else plain(search[1])) if result.searched else (None, None)
        grids = _grids(experiment, paper, result, home) if isinstance(experiment, Comparison) else []
    if search[0] != search[1]:
        ours["search"], theirs["search"] = map(_search, search)
    ours, theirs = relevant(ours), relevant(theirs)
    differing = [
        Difference(key, _show(theirs.get(key)), _show(ours.get(key)))
        for key in (*theirs, *(key for key in ours if key not in theirs))
        if ours.get(key) != theirs.get(key)
    ]
    return differing + grids + [Difference(what, *pair) for what, pair in recipe.paper_has.items()]


def _grids(experiment: Comparison, paper: Size, result: Done, cell: str) -> list[Difference]:
    """Grids that the recipe has lengthened or changed since."""
    stated = next(one for one in experiment.cells if one.name == cell)
    now = {entry.name: plain(entry.grid) for entry in entries_of(paper, experiment, stated)}
    return [
        Difference(f"grid of {entry}", _search(now[entry]), _search(grid))
        for entry, grid in result.tried.get(cell, {}).items()
        if entry in now and grid != now[entry]
    ]


def in_short(recipe: Recipe, size: SizeName) -> str:
    """What differs from the paper at a size, in a line."""
    experiment, some = recipe.experiment, recipe.sizes[size].cells
    cells = [cell.name for cell in experiment.cells] if isinstance(experiment, Comparison) else [""]
    by_what: dict[str, dict[str, None]] = {}
    for cell in cells if some is None else some:
        for each in differences(recipe, size, cell):
            by_what.setdefault(each.what, {})[f"{each.here} for {each.paper}"] = None
    return "; ".join(f"{what} {' or '.join(pairs)}" for what, pairs in by_what.items())


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
    def is_unfinished(self) -> bool:
        """Whether a claim waits for runs at the paper's size."""
        return any(finding.outcome == "untested" or finding.stand_in for finding in self.findings)

    @property
    def seed_counts(self) -> set[int]:
        """Numbers of seeds with which the entries of cells were run that verdicts rest on; closed forms need none."""
        seeds: dict[tuple[str, str], set[int]] = {}
        stand_ins = self.on_stand_ins.rows if any(finding.stand_in for finding in self.findings) else ()
        for row in (*self.at_paper.rows, *stand_ins) if isinstance(self.recipe.experiment, Comparison) else ():
            seeds.setdefault((row.cell, row.entry), set()).add(row.seed)
        return {len(each) for each in seeds.values()}

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.sizes.values())


def judge(recipe: Recipe, sizes: Mapping[SizeName, Done]) -> Judged:
    """Judge every claim of a recipe: on what was run at the paper's size, else on stand-ins, whatever the size is
    called. A run that is at two sizes counts as that of the larger one."""
    at_paper, elsewhere = dict[Place, Value](), dict[Place, Value]()
    methods: dict[tuple[bool, str, str], str] = {}  # whose values of an entry count
    judging = [size for size in JUDGED if size in sizes]
    for size in judging or sizes:
        result = sizes[size]
        apart = {
            cell: any(one.is_stand_in for one in differences(recipe, size, cell, result))
            for cell in result.values.cells()
        }
        for row in result.values.rows:
            text = result.asked.get(row.cell, UNKNOWN)["methods"].get(row.entry, "")
            if methods.setdefault((apart[row.cell], row.cell, row.entry), text) == text:
                (elsewhere if apart[row.cell] else at_paper).setdefault(row[:4], row)
    exact, others = (Values(tuple(one.values())) for one in (at_paper, elsewhere))
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
    return file_of(folder / VALUES, name, size)


def gather(out: Path, recipes: Mapping[str, Recipe], folder: Path | None = None) -> dict[str, Judged]:
    """Every recipe with all that was done of it below `out`, OUT/NAME/SIZE/done.json or OUT/done.json, and what a
    folder of pages has besides; of values that are in both those below `out` count."""
    by_name: dict[str, dict[SizeName, Done]] = {name: {} for name in recipes}
    for path in (*standing(folder, recipes), *sorted(out.rglob(DONE))):
        result = read(path)
        if result.recipe not in by_name or not result.values.rows:  # a grid alone tells nothing yet
            continue
        size: SizeName = result.size  # type: ignore[assignment]
        if folder is not None and size not in JUDGED:
            continue
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
