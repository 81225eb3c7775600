"""byzfl: its aggregators on the moves of plain clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import point  # noqa: F401  before the package: it makes torch ready
import torch
import vision  # noqa: F401  before the package, which imports torchvision
from byzfl.aggregators import aggregators, preaggregators
from point import Point, local_steps, main

Rule = Callable[[np.ndarray], np.ndarray]


def judged(make: Callable[[], Callable[[np.ndarray], Any]]) -> Callable[[Any, Any], None]:
    """A cell: the server moves by what the rule makes of the moves [S, d]."""

    def cell(spec: Any, answer: Any) -> None:
        rule, server = make(), Point(spec)
        for one in spec["rounds"]:
            moves = []
            for i in one["clients"]:
                client = Point(spec)
                client.load_state_dict(server.state_dict())
                local_steps(client, i, one)
                moves.append((client.x - server.x).detach().numpy())
            with torch.no_grad():
                server.x += torch.as_tensor(np.asarray(rule(np.stack(moves))))
            answer(server.x)

    return cell


def trimmed(moves: np.ndarray) -> np.ndarray:
    """A fifth at each end."""
    value: np.ndarray = aggregators.TrMean(f=int(0.2 * len(moves) + 1e-9))(moves)
    return value


def clipped(moves: np.ndarray) -> np.ndarray:
    """Its clipping before its mean."""
    value: np.ndarray = aggregators.Average()(preaggregators.Clipping(c=0.3)(moves.copy()))
    return value


class Neighbours(aggregators.Krum):
    """Krum with the paper's number of neighbours, n - f - 2, where byzfl has n - f - 1."""

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        apart = ((vectors[:, None] - vectors) ** 2).sum(-1)
        nearest = np.sort(apart, 1)[:, 1 : len(vectors) - self.f - 1]
        value: np.ndarray = vectors[nearest.mean(1).argmin()]
        return value


main(
    {
        "Average": judged(aggregators.Average),
        "Median": judged(aggregators.Median),
        "TrMean": judged(lambda: trimmed),
        "GeometricMedian": judged(lambda: aggregators.GeometricMedian(nu=1e-6, T=400)),
        "Krum": judged(lambda: aggregators.Krum(f=1)),
        "Krum, repaired": judged(lambda: Neighbours(f=1)),
        "MultiKrum": judged(lambda: aggregators.MultiKrum(f=1)),
        "CenteredClipping": judged(lambda: aggregators.CenteredClipping(tau=0.3)),
        "Clipping": judged(lambda: clipped),
    }
)
