"""Tables of numbers on the pages about the papers: values with their intervals, and what grids chose."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from fedconcord.study.statistics.load import show
from fedconcord_papers.recipes.recipe import Comparison, Measure, Recipe, names_of
from fedconcord_papers.recipes.run import SEARCH_SEED
from fedconcord_papers.recipes.values import Done, Values

WIDEST = 8  # entries side by side; more stand below each other
Printed = Mapping[str, Mapping[tuple[str, str], float | str]]  # measure -> (cell, entry) -> value


def tables(recipe: Recipe, values: Values, printed_numbers: Printed) -> list[str]:
    """A table a measure: cells in rows, entries in columns, many entries in rows; ours with the interval, the printed
    value in parentheses."""
    parts = []
    for measure in values.measures():
        cells, entries, titles = values.cells(measure), values.entries(), titles_of(recipe)
        if isinstance(recipe.experiment, Comparison):
            entries = [name for name in names_of(recipe.experiment) if name in entries]
        printed = printed_numbers.get(measure, {})
        entries = [one for one in entries if any(values.seeds(measure, c, one) or (c, one) in printed for c in cells)]
        stated = measure_of(recipe, measure)
        rows = [
            [
                titles.get(cell, cell),
                *(cell_of(values, stated, measure, cell, entry, printed.get((cell, entry))) for entry in entries),
            ]
            for cell in cells
        ]
        lines = [["", *entries], *rows]
        if len(entries) > WIDEST:
            lines = [list(column) for column in zip(*lines, strict=True)]
        head = f"{measure}{'; in parentheses what the paper prints' if printed else ''}:"
        parts.append(f"{head}\n\n{markdown(lines[0], lines[1:])}")
    return parts


def measure_of(recipe: Recipe, name: str) -> Measure | None:
    """The stated measure of this name; none of a study's."""
    if not isinstance(recipe.experiment, Comparison):
        return None
    return next((measure for measure in recipe.experiment.measures if measure.name == name), None)


def cell_of(
    values: Values, stated: Measure | None, measure: str, cell: str, entry: str, printed: float | str | None
) -> str:
    """The mean of an entry's finite values, where its seeds lie, what became of the others, and the printed value."""
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
    mean, (low, high) = format(over.mean, form), over.ends
    if stated is not None and not stated.possible[0] <= low <= high <= stated.possible[1]:
        low, high = min(finite), max(finite)
    if min(finite) != max(finite):
        mean += f" [{low:{form}}, {high:{form}}]"
    if len(seeds) < len({row.seed for row in values.rows if row.measure == measure}):
        mean += f", {len(seeds)} seed{'s' * (len(seeds) > 1)} run"
    if missed := sum(map(math.isinf, seeds.values())):
        mean += f", reached in {len(seeds) - missed} of {len(seeds)}"
    if diverged := sum(map(math.isnan, seeds.values())):
        mean += f", {diverged} of {len(seeds)} diverged"
    return f"{mean}{theirs}"


def chosen(recipe: Recipe, results: Done) -> str:
    """The best of the grid by cell and entry."""
    keys = {(cell, entry): values for cell, entries in results.chosen.items() for entry, values in entries.items()}
    entries = list(dict.fromkeys(entry for _, entry in keys))

    def words(cell: str, entry: str) -> str:
        grid = results.tried.get(cell, {}).get(entry, {})
        best = keys.get((cell, entry), {}).items()
        return ", ".join(f"{key.removeprefix('local.')} {show(v)}{_end(grid.get(key, ()), v)}" for key, v in best)

    titles = titles_of(recipe)
    sought = [entry for entry in entries if any(words(cell, entry) for cell in results.chosen)]
    rows = [[titles.get(cell, cell), *(words(cell, entry) for entry in sought)] for cell in results.chosen]
    return markdown(("", *sought), [row for row in rows if any(row[1:])])


def grids(result: Done) -> str:
    """How many points were tried of each method, by federation where they are not equally many."""
    unequal, numbers = list[str](), set[int]()
    for entries in result.tried.values():
        points = {entry: math.prod(map(len, grid.values())) for entry, grid in entries.items()}
        sought = {entry: number for entry, number in points.items() if number > 1}
        numbers |= {*sought.values()}
        if len({*sought.values()}) > 1:
            unequal += [f"{entry}: {number}" for entry, number in sought.items()]
    if unequal:
        return f"The grids are not equally long, in points: {'; '.join(dict.fromkeys(unequal))}."
    return f"Points tried of each: {' or '.join(map(str, sorted(numbers)))}, as many of all in one federation."


def told_by(recipe: Recipe) -> str:
    """By what the best of a grid was told."""
    experiment = recipe.experiment
    assert isinstance(experiment, Comparison)  # a study searches nothing
    return f"by {experiment.measures[experiment.seek].name} of one seed ({SEARCH_SEED}), which no other run has"


def _end(grid: Sequence[float], best: float | str) -> str:
    """Where the best is an end of the numbers tried, so that a longer grid might have a better one."""
    if len(grid) < 2 or isinstance(best, str) or best not in (min(grid), max(grid)):
        return ""
    return " (highest tried)" if best == max(grid) else " (lowest tried)"


def titles_of(recipe: Recipe) -> dict[str, str]:
    """Names of cells -> their titles, as tables show them; a study's cells have none."""
    return {one.name: one.title for one in recipe.experiment.cells} if isinstance(recipe.experiment, Comparison) else {}


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(map(_line, [head, ["---"] * len(head), *rows]))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
