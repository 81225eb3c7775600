"""What tests of the recipes share: every job of a size, and planted results."""

from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path

from fedconcord.study.settings.methods import runs
from fedconcord.study.settings.resolve import resolve_compare
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import from_nested
from fedconcord_papers.recipes.grid import points_of, text_of
from fedconcord_papers.recipes.recipe import Comparison, Recipe, SizeName
from fedconcord_papers.recipes.run import RecipeSpec, cells_of, entries_of, planned_texts, settings_of
from fedconcord_papers.recipes.values import Values, values

SIZES: tuple[SizeName, ...] = ("quick", "desk", "paper")


def configs(recipe: Recipe, size: SizeName) -> list[Config]:
    """Every run of one seed at a size, with every point of every grid, resolved without its data."""
    asked, found = RecipeSpec(recipe, size, Path("unused")), []
    assert isinstance(recipe.experiment, Comparison)
    for cell in cells_of(asked, recipe.experiment):
        methods = [
            text_of(entry, point, f"{entry.name} {k}")
            for entry in entries_of(asked.size, recipe.experiment, cell)
            for k, point in enumerate(points_of(entry))
        ]
        nested = {**settings_of(recipe.experiment, asked.size, cell), "methods": methods}
        found += runs(resolve_compare(from_nested(nested, recipe.name)))
    return found


def resolved(recipe: Recipe, size: SizeName) -> dict[str, Config]:
    """The settings of every comparison of a size, by cell."""
    found = {}
    for cell, given, methods in planned_texts(RecipeSpec(recipe, size, Path("unused"))):
        nested = {**given, "methods": methods, "seeds": list(recipe.sizes[size].seeds)}
        found[cell] = resolve_compare(from_nested(nested, recipe.name))
    return found


def planted(measure: str, cells: Iterable[str], by_entry: Mapping[str, float]) -> Values:
    """Three seeds of each entry in each cell."""
    return values(
        (measure, cell, entry, seed, value + 0.01 * seed)
        for cell, (entry, value), seed in product(cells, by_entry.items(), range(3))
    )
