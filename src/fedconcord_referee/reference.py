"""What our own methods compute on a spec, round by round: the reference, and each changed form of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedconcord.execution.engines import Engine, Serial, Stacked
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.participation.participation import View
from fedconcord.method.contract import Algorithm, Client, Done, Plan, Roster, Tree
from fedconcord.method.contract import weights as weighing
from fedconcord.method.step.solver import Solver
from fedconcord.testing.replay import RecordedDraws
from fedconcord_referee.spec import Spec, problem_of


class Setting(NamedTuple):
    """One computation: a method on a problem and schedule."""

    spec: Spec
    algorithm: Algorithm
    answer: str | None = None  # which of the method's models is its answer; the first one if none


class After(NamedTuple):
    """What is known after a round."""

    x: np.ndarray  # [d] the method's answer
    local: dict[int, np.ndarray]  # client -> its model [d] after its local steps


class Stated(NamedTuple):
    """The plan of each round as a spec states it."""

    spec: Spec
    seed: int = 0

    @property
    def cohort(self) -> int:
        return max(len(one.clients) for one in self.spec.rounds)

    @property
    def draws(self) -> RecordedDraws:
        """All samples at once; for methods that cut them in blocks, one block."""
        most = max(max(one.steps) for one in self.spec.rounds)
        is_cut = self.spec.algorithm.step.blocks is not None or self.spec.algorithm.phases.prelude is not None
        shape = len(self.spec.rounds), len(self.spec.data), most
        return RecordedDraws(np.zeros(shape, np.int64), 1) if is_cut else RecordedDraws(None, None)

    def refuse(self, algorithm: Algorithm, n: int) -> str | None:
        return None

    def plan(self, round: int, algorithm: Algorithm, roster: Roster, view: View | None = None) -> Plan:
        one = self.spec.rounds[round]
        ids, steps = np.array(one.clients, np.int64), np.array(one.steps, np.int64)
        if algorithm.step.steps is not None:
            steps = np.full(len(ids), algorithm.step.steps)
        p = weighing.objective(algorithm.weights, roster.sizes)[ids]
        once, share = np.ones(len(ids)), np.full(len(ids), len(ids) / roster.n)
        w = weighing.cohort(algorithm.weights, p, once, share)
        return Plan(round, ids, steps, w, p, share, one.lr, self.seed, one.coin)


def setting_of(spec: Spec) -> Setting:
    """The reference."""
    return Setting(spec, spec.algorithm)


def walk(setting: Setting, engine: Engine | None = None) -> Iterator[After]:
    """The rounds of a setting, each computed when it is asked for.

    The engine trains a cohort as one stack if none is given, so that a changed form may look across its clients.

    Raises:
        UserError: the method cannot run on this problem.
    """
    local: dict[int, np.ndarray] = {}
    algorithm = setting.algorithm

    def finish(down: Tree, row: Tree, result: Done, client: Client) -> tuple[Tree, Tree]:
        ids = client.id.reshape(-1).tolist()
        for place, x in zip(ids, result.x.reshape(len(ids), -1), strict=True):
            local[place] = x.numpy().copy()
        return algorithm.finish(down, row, result, client)

    spec = setting.spec
    schedule = Stated(spec)
    job = Job(
        problem_of(spec),
        replace(algorithm, finish=finish),
        schedule,
        Solver(momentum=spec.momentum),
        engine or Stacked(None, 1, kernel="torch"),
    )
    state = start(job)
    for _ in spec.rounds:
        local.clear()
        state = advance(job, state)
        models = algorithm.models(state.server)
        x: Tensor = next(iter(models.values())) if setting.answer is None else models[setting.answer]
        yield After(x.numpy().copy(), dict(local))


def reference(spec: Spec) -> list[After]:
    """All rounds of the reference, one client at a time: the engine that defines what others must compute."""
    return list(walk(setting_of(spec), Serial()))
