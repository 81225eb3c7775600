"""A recipe from what is asked of it to its page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedconcord.study.runs.events import Watch
from fedconcord.support.errors import UserError, unknown
from fedconcord_papers.recipes import RECIPES, figures, pages
from fedconcord_papers.recipes.evidence import Judged, judge
from fedconcord_papers.recipes.recipe import SIZES, Comparison, SizeName
from fedconcord_papers.recipes.run import RecipeSpec, reproduce


def request(
    name: str,
    size: SizeName,
    folder: Path,
    jobs: int = 1,
    seeds: Sequence[int] | None = None,
    cells: Sequence[str] | None = None,
    device: str | None = None,
    values: Path | None = None,
) -> RecipeSpec:
    """What is asked of a recipe, below the folder of all.

    Args:
        device: where a comparison's runs compute; studies compute where they do.
        values: folder of values that are gone on with, and brought up to date.

    Raises:
        UserError: there is no such recipe or size.
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    if size not in SIZES:
        raise UserError(f"the size of a recipe must be one of {', '.join(SIZES)}, given {size!r}")
    recipe = RECIPES[name]
    if device is not None:
        there = recipe.sizes[size]._replace(settings={**recipe.sizes[size].settings, "engine.device": device})
        recipe = recipe._replace(sizes={**recipe.sizes, size: there})
    return RecipeSpec(recipe, size, folder / name / size, jobs, seeds, cells, values)


def reproduced(recipe_request: RecipeSpec, watch: Watch) -> Judged:
    """Do a recipe, or what is left of it: runs, figures, verdicts and its page.

    Raises:
        UserError: data are missing, it would not fit, the folder holds something else, or a run failed.
        KeyboardInterrupt: by Ctrl-C; the same call goes on.
    """
    watch.begin(recipe_request.out)
    result = reproduce(recipe_request, watch)
    if isinstance(recipe_request.recipe.experiment, Comparison):
        figures.draw(recipe_request.recipe, recipe_request.out, result.values)
    judged = judge(recipe_request.recipe, {recipe_request.size_name: result})
    return judged._replace(page=pages.write_one(judged, recipe_request.out))
