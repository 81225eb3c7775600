"""The papers' experiments by name: `fedconcord reproduce NAME`. A recipe is data: settings, printed numbers, claims.

To add one: an entry of `RECIPES` in its paper's file. A paper's file is one import and one word here.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedconcord.recipes import afedpd, fedadmm, fednova, fedvra, losac, others
from fedconcord.recipes.recipe import Recipe

PAPERS: tuple[tuple[Recipe, ...], ...] = (
    fednova.RECIPES,
    fedadmm.RECIPES,
    fedvra.RECIPES,
    afedpd.RECIPES,
    losac.RECIPES,
    others.RECIPES,
)
RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for paper in PAPERS for recipe in paper}
