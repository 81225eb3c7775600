"""The papers' experiments by name: `fedconcord reproduce NAME`. A recipe is data: settings, printed numbers, claims.

To add one: an entry of `RECIPES` in its paper's file. A paper's file is one import and one word here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedconcord_papers.recipes import afedpd, fedadmm, fednova, fedvra, losac, modern, others
from fedconcord_papers.recipes.found import FOUND, QUICK, Found
from fedconcord_papers.recipes.recipe import Recipe, sizes_text

PAPERS: tuple[tuple[Recipe, ...], ...] = (
    fednova.RECIPES,
    fedadmm.RECIPES,
    fedvra.RECIPES,
    afedpd.RECIPES,
    losac.RECIPES,
    others.RECIPES,
    modern.RECIPES,
)


def _with_found(recipe: Recipe) -> Recipe:
    """The recipe with what its runs took and the desk ones showed."""
    found = FOUND.get(recipe.name, Found(None))
    quick, desk = recipe.sizes["quick"]._replace(minutes=QUICK), recipe.sizes["desk"]._replace(minutes=found.minutes)
    return recipe._replace(findings=found.sentences, sizes={**recipe.sizes, "quick": quick, "desk": desk})


RECIPES: Mapping[str, Recipe] = {recipe.name: _with_found(recipe) for paper in PAPERS for recipe in paper}


def topic() -> list[tuple[str, str, str, list[Any]]]:
    """What `fedconcord list recipes` shows: name, meaning, details and no parameters of each."""
    return [
        (name, recipe.claim, f"{recipe.id}, {recipe.source}. On two cores: {sizes_text(recipe)}.", [])
        for name, recipe in RECIPES.items()
    ]
