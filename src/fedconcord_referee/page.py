"""The verdict as one self-contained HTML page: words, the distance to the reference by round, and the badge."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from fedconcord_referee import verdict
from fedconcord_referee.reference import reference
from fedconcord_referee.spec import Spec
from fedconcord_referee.trajectory import Trajectory
from fedconcord_referee.verdict import Verdict, relative

WIDTH, HEIGHT, LEFT, BOTTOM, LOWEST = 640, 240, 60, 30, -17  # of the figure in pixels; the lowest power of ten
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "svg{width:100%;height:auto}td,th{padding:.1rem .8rem;text-align:right}"
)


def distances(spec: Spec, got: Trajectory) -> list[float]:
    """After each round, the largest difference to the reference relative to its largest entry."""
    return [relative(x, after.x) for x, after in zip(got.x, reference(spec), strict=True)]


def _figure(values: Sequence[float], tolerance: float) -> str:
    """The distances on a logarithmic axis, and the tolerance as a dashed line."""
    top = max(0, *(math.ceil(math.log10(v)) for v in (*values, tolerance) if v > 0))

    def at(t: float, value: float) -> tuple[float, float]:
        power = max(LOWEST, math.log10(value)) if value > 0 else LOWEST
        across = LEFT + (WIDTH - LEFT - 10) * (t - 1) / max(1, len(values) - 1)
        return round(across, 1), round((HEIGHT - BOTTOM - 10) * (top - power) / (top - LOWEST) + 10, 1)

    points = [at(t, value) for t, value in enumerate(values, 1)]
    marks = "".join(f'<circle cx="{x}" cy="{y}" r="3" fill="#0b5fa5"/>' for x, y in points)
    line = " ".join(f"{x},{y}" for x, y in points)
    level = at(1, tolerance)[1]
    ticks = "".join(
        f'<text x="{LEFT - 8}" y="{at(1, 10.0**p)[1] + 4}" text-anchor="end">1e{p}</text>'
        for p in range(top, LOWEST - 1, -4)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12" role="img" aria-label="distance by round">'
        f'{ticks}<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{level}" y2="{level}" stroke="#999" stroke-dasharray="4"/>'
        f'<polyline points="{line}" fill="none" stroke="#0b5fa5"/>{marks}'
        f'<text x="{LEFT}" y="{HEIGHT - 8}">round 1</text>'
        f'<text x="{WIDTH - 10}" y="{HEIGHT - 8}" text-anchor="end">round {len(values)}</text></svg>'
    )


def written(results: Sequence[tuple[Spec, Verdict, Trajectory]], tolerance: float) -> str:
    """The page of the verdicts, each with its trajectory."""
    parts = []
    for spec, result, got in results:
        badge = verdict.plain(spec, result, tolerance)["badge"]
        values = distances(spec, got)
        rows = "".join(f"<tr><td>{t}</td><td>{value:.1e}</td></tr>" for t, value in enumerate(values, 1))
        words = "".join(f"<p>{html.escape(text)}.</p>" for text in verdict.sentences(spec, result, tolerance))
        parts.append(
            f"<h2>{html.escape(spec.kind)} problem</h2>{words}<p>Badge: <code>{html.escape(badge['label'])} | "
            f"{html.escape(badge['message'])}</code></p>{_figure(values, tolerance)}"
            f"<details><summary>Distance by round</summary><table><tr><th>round</th><th>distance</th></tr>{rows}"
            "</table></details>"
        )
    name = html.escape(results[0][0].method)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Referee: {name}</title><style>{STYLE}</style>'
        f"<h1>Referee: {name}</h1>{''.join(parts)}<p>The figure: the largest difference of any entry after a round, "
        "relative to the largest entry of the reference's model; dashed, the tolerance.</p></html>\n"
    )
