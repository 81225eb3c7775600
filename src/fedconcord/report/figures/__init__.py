"""The figures, each a matplotlib Figure made by the object API: no global state, the same bytes for the same runs."""

from __future__ import annotations

import numpy as np

from fedconcord.report.figures.heatmap import partition, partitions
from fedconcord.report.figures.progress import by_axis, by_model
from fedconcord.report.figures.ranking import critical, ranked
from fedconcord.report.figures.style import Drawing, drawing, to_files, to_inline
from fedconcord.report.metric import metric_of
from fedconcord.report.summary import AXES, Summary

__all__ = ["Drawing", "by_axis", "critical", "drawing", "drawings", "partition", "ranked", "to_files", "to_inline"]


def drawings(s: Summary) -> dict[str, list[Drawing]]:
    """Section -> its figures: 'ranking', 'round', 'bytes', 'gradient_steps', 'simulated_seconds', 'models' ..."""
    out: dict[str, list[Drawing]] = {"ranking": ranked(s)}
    metrics = [s.primary, *([s.loss] if s.loss else [])]
    usable = [r for m in s.methods for r in m.runs]
    for axis in (*AXES, "simulated_seconds"):
        moves = axis == "round" or any(r.axis(axis).size and np.nanmax(r.axis(axis)) > 0 for r in usable)
        out[axis] = [by_axis(s, m, axis) for m in metrics] if moves else []
    out["models"] = by_model(s)
    out["partition"] = partitions(usable)
    first = {m.column for m in metrics}
    columns = dict.fromkeys(c for r in usable for c in r.metrics if ":" not in c and c not in first)
    out["more"] = [by_axis(s, metric_of(c), "round") for c in columns]
    return out
