"""What a deployment draws for differential privacy from its operating system's generator, and what it remembers of it.

The noise of a round's sum is drawn at the server and is in the checkpoint before the model goes anywhere; a round that
is done again has released nothing. The noise of a site's message is drawn at the site, which sends one message a round
and the same bytes again. Who is drawn is written down before anybody is asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.job import Job
from fedconcord.execution.job.accountant import Budget
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.federation.objectives import Regularised, Supervised
from fedconcord.federation.participation.sampling import poisson_of
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import Coins
from fedconcord.method.contract import Algorithm, Client, Cohort, Done, Problem, Tree
from fedconcord.method.contract.rng import Chance
from fedconcord.study.settings.privacy import budget_of, of_persons
from fedconcord.study.settings.settings import Config
from fedconcord.support import files
from fedconcord.support.errors import UserError, reason

DRAWN = "drawn.json"
GENERATOR = "noise and Poisson coins of the operating system's generator, where they are drawn"


def budget(config: Config) -> Budget | None:
    """What a deployment spends by its settings; None without privacy."""
    planned = budget_of(config)
    return None if planned is None else planned._replace(generator=GENERATOR)


def at_site(job: Job, chance: Chance) -> Job:
    """The job whose noise, of messages or of steps, and whose coins of samples are drawn at the site."""
    step, schedule = job.algorithm.step, job.schedule
    if step.noise is None:
        return replace(job, algorithm=_unkeyed(job.algorithm, chance))
    assert isinstance(schedule, Schedule)
    size = schedule.batch_size
    noise = step.noise._replace(draw=lambda n, seed, round, client, step: chance.discrete(n))
    return replace(
        job,
        algorithm=replace(job.algorithm, step=step._replace(noise=noise)),
        schedule=replace(schedule, batch_size=size._replace(toss=chance.uniform) if isinstance(size, Coins) else size),
    )


def whole(config: Config, job: Job, rows: Supervised, persons: np.ndarray | None) -> Problem:
    """A site's problem as its job has it: of its rows, or of persons, and with the regulariser.

    Args:
        persons: [n] whose each row is, where the site's file says it.

    Raises:
        UserError: it does not, and the job is of persons.
    """
    of: Problem = rows
    if config.privacy.unit == "person":
        rows.data = rows.data._replace(persons=persons)
        of = of_persons(rows)
    return Regularised(of, job.problem.regulariser) if isinstance(job.problem, Regularised) else of


def at_server(job: Job, chance: Chance, folder: Path) -> Job:
    """The job whose sums' noise and Poisson coins are drawn at the server, the coins written down in its folder."""
    schedule = job.schedule
    if job.algorithm.facts.protection is None:
        return job
    assert isinstance(schedule, Schedule)
    if schedule.sampler.poisson:
        cohorts = Cohorts(folder / DRAWN, chance)
        schedule = replace(schedule, sampler=poisson_of(lambda seed, round, cohort, n: cohorts.of(round, cohort, n)))
    return replace(job, algorithm=_unkeyed(job.algorithm, chance), schedule=schedule)


def _unkeyed(algorithm: Algorithm, chance: Chance) -> Algorithm:
    """The same method with its privacy's noise from there; one without privacy as it is."""
    if algorithm.facts.protection is None:
        return algorithm
    unheard = algorithm.phases.unheard

    def on(x: Tensor) -> Callable[[int], Tensor]:
        return lambda n: torch.as_tensor(chance.discrete(n)).to(x.device)

    def finish(down: Tree, row: Tree, done: Done, client: Client) -> tuple[Tree, Tree]:
        return algorithm.finish(down, row, done, client._replace(discrete=on(done.x)))

    def update(server: Tree, total: Tree, now: Cohort) -> Tree:
        return algorithm.update(server, total, now._replace(discrete=on(server.x)))

    def nobody(server: Tree, now: Cohort) -> Tree:
        assert unheard is not None
        return unheard(server, now._replace(discrete=on(server.x)))

    phases = algorithm.phases._replace(unheard=None if unheard is None else nobody)
    return replace(algorithm, finish=finish, update=update, phases=phases)


class Cohorts:
    """Who was drawn, by round: drawn once, and known again after a kill. Only its owner reads the file."""

    def __init__(self, path: Path, chance: Chance) -> None:
        self.path, self.chance = path, chance

    def of(self, round: int, cohort: int, n: int) -> np.ndarray:
        """The ids [S] of a round, each of n clients on its own coin of probability cohort / n.

        Raises:
            UserError: the file is damaged.
        """
        drawn_ids = self._read()
        if str(round) not in drawn_ids:
            drawn_ids[str(round)] = np.flatnonzero(self.chance.uniform(n) < cohort / n).tolist()
            files.write_bytes(self.path, json.dumps(drawn_ids).encode(), mode=0o600)
        return np.array(drawn_ids[str(round)], np.int64)

    def _read(self) -> dict[str, Any]:
        try:
            drawn_ids: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as broken:
            raise UserError(
                f"cannot read {self.path} ({reason(broken)}), which says who was drawn in each round; restore it, or "
                "begin a new run"
            ) from broken
        return drawn_ids


class Once(NamedTuple):
    """A site's noisy messages: one a round, and as many rounds as its own job has.

    Two messages of one round with two noises would spend twice, and a server that was killed asks a round again.
    """

    path: Path  # of the last message and what it answered
    rounds: int  # that the site's budget is for

    def answer(self, frame: Frame, orders: bytes, make: Callable[[], bytes]) -> bytes:
        """The answer to these orders: the one that was given before, if it was; kept before it leaves.

        Raises:
            FrameError: the round is none of the job, is over, or was asked otherwise.
            UserError: the file is damaged.
        """
        if not 0 <= frame.round < self.rounds:
            raise FrameError(f"its noise is for {self.rounds} rounds, and this is round {frame.round}")
        before = self._read()
        if before is not None and frame.round <= before.round:
            if frame.round == before.round and before.tensors["asked/"].numpy().tobytes() == orders:
                return before.tensors["said/"].numpy().tobytes()
            raise FrameError("it has sent its noisy message of this round, and a second one would spend privacy twice")
        answer = make()
        if codec.read(answer).kind == "reply":
            tensors = {"asked/": _bytes(orders), "said/": _bytes(answer)}
            files.write_bytes(
                self.path, codec.write(frame._replace(kind="once", fields={}, tensors=tensors)), mode=0o600
            )
        return answer

    def _read(self) -> Frame | None:
        try:
            return codec.read(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, FrameError) as broken:
            raise UserError(
                f"cannot read {self.path} ({reason(broken)}), the site's last noisy message; restore it, or begin a "
                "new run"
            ) from broken


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
