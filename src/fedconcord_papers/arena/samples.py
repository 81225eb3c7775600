"""Regression data that come in clients and need no download, which the arena's federations name by import path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field


def friedman(
    folder: Path,
    seed: int,
    /,
    clients: Annotated[int, Field(ge=2, description="clients, of 30 to 90 samples")] = 30,
    spread: Annotated[float, Field(ge=0, le=1, description="how far the clients' features lie apart")] = 0.5,
) -> Mapping[str, np.ndarray]:
    """Friedman's first function (Annals of Statistics 1991) with noise.

    y = 10 sin(pi x1 x2) + 20 (x3 - 1/2)^2 + 10 x4 + 5 x5 + N(0, 1); x [n, 10] is uniform in a cube of
    side 1 - spread, whose place in [0, 1]^10 is the client's own. Drawn by `seed`.
    """
    rng = np.random.default_rng([seed, 1991])
    owner = np.repeat(np.arange(clients), rng.integers(30, 91, clients))
    corner = spread * rng.random((clients, 10))
    x = corner[owner] + (1 - spread) * rng.random((len(owner), 10))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return {"x": x.astype(np.float32), "y": y + rng.standard_normal(len(x)), "client": owner}
