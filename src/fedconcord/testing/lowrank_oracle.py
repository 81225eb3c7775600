"""Replays `lowrank.npz`: proximal methods and inexact ADMM on low-rank matrix estimation, with block gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from fedconcord.execution.engines import Engine
from fedconcord.execution.job import Job
from fedconcord.federation.objectives import Matrix
from fedconcord.federation.objectives.regularisers import nuclear
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm
from fedconcord.testing.replay import MISSING, Recorded, error, states

CASES: dict[str, Callable[[Mapping[str, Any]], Algorithm]] = {
    "losac_prox": lambda given: METHODS["losac"](blocks=given["blocks"]),
    "scaffold_prox": lambda given: METHODS["scaffold"](),
    "fedavg_prox": lambda given: METHODS["fedavg"](),
    "inexact_admm": lambda given: _admm(given["admm"], given["admm"]["server_steps"]),
    "inexact_admm_exact_server": lambda given: _admm(given["admm"], None),
}


def _admm(settings: Mapping[str, Any], server_steps: int | None) -> Algorithm:
    return METHODS["fedadmm_inexact"](
        rho=settings["rho"], objective="mean", server_steps=server_steps, server_lr=settings["eta_g"]
    )


def replay(
    arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any], engine: Engine
) -> Iterator[tuple[str, float]]:
    """(case, largest relative error) of every trajectory in the file; see `replay`."""
    ids, blocks = arrays["ids"], arrays["blocks"]
    D, y, truth = (torch.as_tensor(arrays[name]) for name in ("D", "y", "XG"))
    for case in sorted(name.removeprefix("traj/") for name in arrays if name.startswith("traj/")):
        if case not in CASES:
            yield case, MISSING
            continue
        want = arrays[f"traj/{case}"]
        want = want.reshape(len(want), -1)
        schedule = Recorded(
            ids=ids,
            steps=np.full(blocks.shape[:2], settings["K"]),
            blocks=blocks,
            coins=np.zeros(len(ids)),
            lr=settings["admm"]["eta_l"] if case.startswith("inexact_admm") else settings["eta"],
            cuts=settings["blocks"],
        )
        problem = Matrix(D, y, truth, nuclear(settings["lam"], len(truth)), torch.as_tensor(want[0]))
        job = Job(problem, CASES[case](settings), schedule, engine=engine)
        got = np.stack([np.asarray(state.server.x) for state in states(job, len(want) - 1)])
        yield case, error(got, want)
