"""What the reader should do about what came of a method: sentences of the command and of the page."""

from __future__ import annotations

from fedconcord.report.format import value
from fedconcord.tuning.edges import edges, extend_words
from fedconcord.tuning.plan import Tuning
from fedconcord.tuning.scores import below
from fedconcord.tuning.search import Found


def remarks(tuning: Tuning, found: Found) -> list[str]:
    """Ranges to extend, a winner that was better in an earlier rung, or that nothing ended well."""
    if found.trials and found.best is None:
        return ["no trial ended well, so it is not in the comparison; search smaller values."]
    return [*map(extend_words, edges(tuning.config, found)), *_fall(tuning, found)]


def _fall(tuning: Tuning, found: Found) -> list[str]:
    if found.best is None:
        return []
    metric, scores, end = tuning.objective.metric, found.best.scores, found.best.last
    sign = 1.0 if metric.higher else -1.0
    peak = max(scores, key=lambda rounds: sign * scores[rounds].value)
    if not below(end, scores[peak], metric):
        return []
    last, before = value(metric, end.value), value(metric, scores[peak].value)
    return [
        f"The best ends at {metric.title} {last}, worse than its own {before} at round {peak}: stop earlier, or search "
        "smaller values."
    ]
