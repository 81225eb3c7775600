"""SVRG's and MimeSVRG's gradients are whole before anything looks at them: g(x) - g(z) + c, not the difference."""

import numpy as np
import pytest
import torch

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Oracle
from fedconcord.method.step.solver import Solver
from fedconcord.method.wrappers.optimisers import LocalOptimiser, adamw, lion, with_optimiser

N, D, K, LR, ROUNDS = 6, 5, 3, 0.02, 4
PROBLEM = quadratics(3, N, torch.float64, torch.device("cpu"), dim=D, blocks=2, condition=4.0)
EVERY = Schedule(0, N, LR, lambda *key: K, "steps", batch_size=None)
ENGINES = (Serial(), Stacked(None))


def ends(algorithm: Algorithm, solver: Solver, engine: Serial | Stacked) -> np.ndarray:
    job = Job(PROBLEM, algorithm, EVERY, solver, engine)
    state = start(job)
    for _ in range(ROUNDS):
        state = advance(job, state)
    return np.asarray(next(iter(algorithm.models(state.server).values())))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize(
    "optimiser", [None, adamw(second="oracle"), adamw(), lion()], ids=["sgd", "oracle", "larger", "lion"]
)
def test_on_all_samples_svrg_is_the_gradient(
    engine: Serial | Stacked, method: str, clip: float | None, optimiser: LocalOptimiser | None
) -> None:
    algorithm = METHODS[method]() if optimiser is None else with_optimiser(METHODS[method](), optimiser)
    solver = Solver(clip=clip)
    plain = ends(algorithm, solver, engine)
    svrg = ends(algorithm, solver._replace(oracle=Oracle("svrg")), engine)
    np.testing.assert_allclose(svrg, plain, rtol=1e-7, atol=1e-9)
    if clip is not None and optimiser is None:
        assert np.abs(plain - ends(algorithm, Solver(), engine)).max() > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("clip", "turns"), [(0.3, False), (np.inf, True), (0.3, True)])
def test_mimes_gradient_is_whole_before_a_clip_and_a_second_moment(
    engine: Serial | Stacked, clip: float, turns: bool
) -> None:
    x = np.asarray(PROBLEM.init(0))

    def gradient(i: int, at: np.ndarray) -> np.ndarray:
        mine = torch.arange(PROBLEM.offsets[i], PROBLEM.offsets[i + 1])
        return np.asarray(PROBLEM.gradient(torch.as_tensor(at), mine))

    for _ in range(ROUNDS):
        c, moved = np.mean([gradient(i, x) for i in range(N)], 0), []
        for i in range(N):
            y, m, v = x.copy(), np.zeros(D), np.zeros(D)
            for k in range(1, K + 1):
                g = gradient(i, y) - gradient(i, x) + c
                g *= min(1.0, clip / np.linalg.norm(g))
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
                step = m / (1 - 0.9**k) / (np.sqrt(v / (1 - 0.999**k)) + 1e-8) if turns else g
                y -= LR * step
            moved.append(y)
        x = np.mean(moved, 0)
    method = METHODS["mimesvrg"]()
    method = with_optimiser(method, adamw(second="oracle")) if turns else method
    got = ends(method, Solver(clip=None if np.isinf(clip) else clip), engine)
    np.testing.assert_allclose(got, x, rtol=1e-9, atol=1e-10)
