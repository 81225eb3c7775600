"""Steps that are recorded and replayed: the same bits as the ordinary loop's, from memory that stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from test_engines import SCHEDULE, assert_same, run, small
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedconcord.execution.engines import Stacked
from fedconcord.execution.job import Job
from fedconcord.federation.objectives.regularisers import l1
from fedconcord.federation.participation.work import fixed
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Oracle, Tree, tree_map
from fedconcord.method.step.graphs import Graphs
from fedconcord.method.step.sizes import ByStep
from fedconcord.method.step.solver import Solver
from fedconcord.study.settings.job import graphs_of
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from table import make

READS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero")


class NoRead(TorchDispatchMode):
    """What a recording on a GPU would break off at: a value that goes to the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in READS, f"{func} reads a value"
        return func(*args, **(kwargs or {}))


def imitated(work: Callable[[], Tree]) -> tuple[Tree, Callable[[], None]]:
    """Recording without a GPU: the result lies in one place, and a replay computes it there again."""
    with NoRead():
        result = work()

    def put(there: Tensor | None, fresh: Tensor | None) -> None:
        if isinstance(there, Tensor):
            there.copy_(fresh)

    return result, lambda: tree_map(put, result, work())


PLAIN = Solver()


def job(name: str, network: str, solver: Solver = PLAIN, **changes) -> Job:
    """Two steps of all clients, whose forms are the same every round."""
    schedule = replace(SCHEDULE, cohort=8, work=fixed(2), unit="steps", **changes)
    return Job(small(network), make(name), schedule, solver)


def replays(one: Job, rounds: int = 3) -> int:
    """How many rounds were replayed; all end with the same bits as without."""
    graphs = Graphs(imitated)
    recorded = run(replace(one, engine=Stacked(None, 1, graphs=graphs)), rounds)
    assert_same(recorded, run(replace(one, engine=Stacked(None, 1)), rounds), tolerance=0.0)
    return graphs.replays


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"fedhybrid"}))
def test_every_method(name: str) -> None:
    """The second of three rounds is recorded; tables of blocks are indexed from the host and stay with the loop."""
    assert replays(job(name, "generic")) == (0 if make(name).step.blocks is not None else 2)


@pytest.mark.parametrize(
    ("solver", "times"),
    [
        (Solver(momentum=0.5, nesterov=True, weight_decay=0.01), 2),
        (Solver(clip=0.1, step_schedule=ByStep("up", lambda k: 0.9**k * (k + 1) / 9)), 2),
        (Solver(clip_direction=0.1), 2),
        (Solver(oracle=Oracle("sam", radius=0.1)), 2),
        (Solver(oracle=Oracle("full")), 2),
        (Solver(tolerance=1e-3), 0),
    ],
)
def test_solvers(solver: Solver, times: int) -> None:
    """What looks at values, as a tolerance does, is not recorded."""
    for network in ("dense", "convolution"):
        assert replays(job("feddyn", network, solver)) == times


def test_another_number_is_another_graph() -> None:
    assert replays(job("scaffold", "dense", lr_decay=0.9)) == 0
    one = job("fedprox", "dense", lr_drops=((2, 0.5),))
    assert replays(one, 5) == 3  # rounds 0 and 1 share a step size, 2 to 4 another
    composite = replace(one, problem=small("dense", regulariser=l1(0.01)))
    assert replays(composite, 5) == 3


def test_refused_without_a_gpu() -> None:
    config = resolve_run(from_nested({"method": "fedavg", "engine.graphs": True}, "test"))
    with pytest.raises(UserError, match=r"engine\.graphs records CUDA graphs, and this run is on the CPU"):
        graphs_of(config)
    assert graphs_of(resolve_run(from_nested({"method": "fedavg"}, "test"))) is None
