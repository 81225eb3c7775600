"""What may be wrong with the verdicts, said of the values that there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from fedconcord.study.statistics.stats import FEW
from fedconcord_papers.recipes.evidence import Judged


def threats(judged: Collection[Judged]) -> list[str]:
    """Paragraphs: sizes, seeds, what papers leave open, own choices, machines."""
    run = [one for one in judged if one.sizes]
    counts = sum((one.counts for one in judged), Counter[str]())
    few = sum(min(one.seed_counts, default=FEW) < FEW for one in run)
    searches = sum(result.searched > 0 for one in run for result in one.sizes.values())
    machines = dict.fromkeys(spell["machine"] for one in run for result in one.sizes.values() for spell in result.log)
    silent = sum(bool(one.recipe.silent) for one in judged)
    return [
        f"**Sizes.** Of {counts.total()} predicates {counts['untested']} were not tested, and {counts['stand-in']} on "
        "stand-ins alone, which prove nothing. What was run was chosen by its cost too, so that it is no fair sample.",
        f"**Seeds.** {few} of the {len(run)} recipes that were run have fewer than {FEW} seeds somewhere; their pages "
        "say what chance does there. Nothing corrects for the number of predicates: some come out by chance.",
        f"**What papers leave open.** Of {len(judged)} recipes {silent} name what their paper does not state, and what "
        "was taken in its place; another choice may have another outcome.",
        "**Own choices.** Predicates are our reading of what papers say and draw. Grids of parameters are ours where a "
        f"paper has none; {searches} sets of values rest on a search, and pages mark where the best value was the "
        "lowest or highest tried, so that a longer grid might have a better one.",
        f"**Machines.** What was measured was measured on: {'; '.join(machines) or 'none'}. Other processors and "
        "versions round differently, and times are of these alone.",
    ]
