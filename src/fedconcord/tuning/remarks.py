"""What the reader should do about what came of a method: sentences of the command and of the page."""

from __future__ import annotations

from fedconcord.report.format import value
from fedconcord.tuning.edges import edges, extend_words
from fedconcord.tuning.plan import Tuning
from fedconcord.tuning.results import MethodSearch
from fedconcord.tuning.scores import below


def remarks(tuning: Tuning, search: MethodSearch) -> list[str]:
    """Ranges to extend, a winner that was better in an earlier rung, or that nothing ended well."""
    if search.trials and search.best is None:
        return ["no trial ended well, so it is not in the comparison; search smaller values."]
    return [*map(extend_words, edges(tuning.config, search)), *_fall(tuning, search)]


def _fall(tuning: Tuning, search: MethodSearch) -> list[str]:
    if search.best is None:
        return []
    metric, scores, end = tuning.objective.metric, search.best.scores, search.best.last
    sign = 1.0 if metric.higher else -1.0
    peak = max(scores, key=lambda rounds: sign * scores[rounds].value)
    if not below(end, scores[peak], metric):
        return []
    last, before = value(metric, end.value), value(metric, scores[peak].value)
    return [
        f"The best ends at {metric.title} {last}, worse than its own {before} at round {peak}: stop earlier, or search "
        "smaller values."
    ]
