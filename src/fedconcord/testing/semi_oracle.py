"""Replay the reference trajectory of FedVRA-U (`semi.npz`): a softmax model with pseudo-labels, full gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from fedconcord.execution.engines import Engine
from fedconcord.execution.job import Job
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import semi
from fedconcord.method.algorithms.fedvra import fedvra
from fedconcord.testing.replay import Recorded, error, states


def problem(arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> semi.SemiSupervised:
    """The clients of the file: U [N, n, k] with labels [N, n], V [N, m, k] with hidden labels [N, m]."""
    U, V = arrays["U"], arrays["V"]
    n, has = U.shape[:2]
    lacks, features = V.shape[1:]
    origin = arrays["traj/fedvra_u"][0]  # [C, k]

    def build() -> nn.Module:
        layer = nn.Linear(features, len(origin), bias=False, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.as_tensor(origin))
        return layer

    x = np.concatenate([U, V], 1).reshape(-1, features)
    hidden = arrays.get("hidden", np.zeros((n, lacks), np.int64))
    y = np.concatenate([arrays["labels"], hidden], 1).reshape(-1)
    data = Dataset("semi", x, y, x[:1], y[:1], len(origin))
    mask = np.arange(has + lacks) < has
    return semi.SemiSupervised(
        build,
        data,
        list(np.arange(len(x)).reshape(n, -1)),
        [mask] * n,
        alpha_p=settings["alpha_p"],
        alpha_r=settings["alpha_r"],
        y_steps=settings["y_steps"],
        y_lr=settings["eta_y"],
        y_scale="sample" if "per sample" in settings.get("y_gradient", "per sample") else "mean",
        clamp=settings.get("clamp", semi.CLAMP),
        dtype=torch.float64,
    )


def replay(
    arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any], engine: Engine
) -> Iterator[tuple[str, float]]:
    """(name, largest relative error) of the trajectory and of the final pseudo-labels."""
    path = arrays["traj/fedvra_u"]  # [R + 1, C, k]
    method = fedvra(gamma=settings["gamma"], a=settings["a"], d=settings["d"], weights="size")
    rounds, n = len(path) - 1, len(arrays["U"])
    schedule = Recorded(
        ids=np.sort(arrays["ids"], axis=1),
        steps=np.full((rounds, n), settings["x_steps"]),
        blocks=None,
        coins=np.zeros(rounds),
        lr=settings["eta"],
    )
    states_after = states(Job(problem(arrays, settings), method, schedule, engine=engine), rounds)
    got = np.stack([state.server.x.numpy() for state in states_after])
    yield "fedvra_u", error(got, path.reshape(len(path), -1))
    if "nu_final" in arrays:
        nu = arrays["nu_final"]
        yield "nu_final", error(states_after[-1].store.gather(np.arange(n)).private.numpy(), nu)
