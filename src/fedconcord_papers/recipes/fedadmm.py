"""The tables and figures of FedADMM (Gong, Li, Freris, ICDE 2022)."""

from __future__ import annotations

from fedconcord_papers.recipes.fedadmm_own import fig6, fig8, fig9, table4
from fedconcord_papers.recipes.fedadmm_rivals import fig3, fig5, table3, table5, table6
from fedconcord_papers.recipes.recipe import Recipe

RECIPES: tuple[Recipe, ...] = (table3, fig3, fig5, fig6, table4, fig8, table5, fig9, table6)
