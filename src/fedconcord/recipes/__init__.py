"""The papers' experiments by name: `fedconcord reproduce NAME`. A recipe is data: settings, printed numbers, claims.

To add one: an entry of `RECIPES` in its paper's file. A paper's file is one import and one word here.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedconcord.recipes import afedpd, fedadmm, fednova, fedvra, losac, others
from fedconcord.recipes.found import FOUND, QUICK, Found
from fedconcord.recipes.recipe import Recipe

PAPERS: tuple[tuple[Recipe, ...], ...] = (
    fednova.RECIPES,
    fedadmm.RECIPES,
    fedvra.RECIPES,
    afedpd.RECIPES,
    losac.RECIPES,
    others.RECIPES,
)


def _with_found(recipe: Recipe) -> Recipe:
    """The recipe with what its runs took and the desk ones showed."""
    found = FOUND.get(recipe.name, Found(None))
    quick, desk = recipe.sizes["quick"]._replace(minutes=QUICK), recipe.sizes["desk"]._replace(minutes=found.minutes)
    return recipe._replace(findings=found.sentences, sizes={**recipe.sizes, "quick": quick, "desk": desk})


RECIPES: Mapping[str, Recipe] = {recipe.name: _with_found(recipe) for paper in PAPERS for recipe in paper}
