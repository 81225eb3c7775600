"""What looks on while a run goes its way: one aspect of it each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedconcord.execution.job import Job, State, Step, accountant, model_of
from fedconcord.execution.job.accountant import Budget
from fedconcord.execution.run import tables
from fedconcord.federation.objectives import fairness
from fedconcord.method.wrappers.privacy import clip_of


class Observer:
    """One aspect of a run; a class that names this one as its base leaves out what it does not need.

    Each finds what is left of a run that is resumed when it is made, on all processes. The rest is asked on rank 0
    alone. An observer may read another that stands before it in the list.
    """

    def see(self, now: Step) -> None:
        """The start, and every round whose metrics are finite."""

    def save(self, state: State) -> None:
        """Write what is of one past with the checkpoint that follows; the state is after one round at least."""

    def release(self, state: State) -> None:
        """Write what is to be seen once the checkpoint has it: a round with noise of no seed cannot be made again."""

    def end(self, state: State) -> None:
        """The run is complete."""

    def about(self) -> dict[str, Any]:
        """What run.json says of it."""
        return {}


class FairnessLog(Observer):
    """How evenly the model serves the clients, every so many rounds: fairness.csv. Never without such a number."""

    def __init__(self, job: Job, folder: Path, every: int | None, round: int) -> None:
        """Go on after a round; 0 where the run begins."""
        self.job, self.path, self.every = job, folder / "fairness.csv", every
        self.rows = tables.rows_of(self.path, round) if round > 0 and self.path.exists() else []

    def see(self, now: Step) -> None:
        """A row, where it is time for one."""
        if now.row.round > 0 and self.every is not None and now.row.round % self.every == 0:
            scores = fairness.look(self.job.problem, model_of(self.job, now.state))
            if scores is not None:
                self.rows.append(fairness.row(now.row.round, scores))

    def save(self, state: State) -> None:
        """fairness.csv."""
        if self.rows:
            fairness.write_rounds(self.path, self.rows)


class PrivacySpent(Observer):
    """What a private run has spent by its round, and that it ended because its budget was spent; nothing without one.
    All of it follows from the round."""

    def __init__(self, budget: Budget | None, state: State) -> None:
        """Go on from a state."""
        self.budget, self.round, self.clip = budget, state.round, clip_of(state.server)

    def see(self, now: Step) -> None:
        """How far the run is."""
        self.round, self.clip = now.row.round, clip_of(now.state.server)

    def about(self) -> dict[str, Any]:
        """(epsilon, delta) until now and what it rests on; why the run stopped, where that is its budget."""
        if self.budget is None:
            return {}
        spending, limit = self.budget.spending, self.budget.limit
        epsilon = spending.epsilon(self.round)
        sentence = f"epsilon {epsilon:.4g} at delta {spending.delta:g} after {self.round} rounds; {self.budget.said}"
        sentence += "" if self.clip is None else f"; C is {self.clip:.4g} after them"
        also = self.budget.of_client
        client = {} if also is None else {"client_epsilon": also.epsilon(self.round)}
        sentence += "".join(f"; epsilon {of:.4g} for a client" for of in client.values())
        about: dict[str, Any] = {
            "privacy": {
                "unit": self.budget.unit,
                "epsilon": epsilon,
                "delta": spending.delta,
                "limit": limit,
                "accountant": f"dp-accounting {accountant.version()}, privacy loss distributions",
                "generator": self.budget.generator,
                "said": sentence,
                **({} if self.clip is None else {"clip": self.clip}),
                **client,
            }
        }
        if self.round >= self.budget.rounds and self.round < self.budget.asked:
            about["stopped"] = (
                f"stopped at round {self.round}: its budget of epsilon {limit:g} is spent, {epsilon:.4g} so far and "
                f"{spending.epsilon(self.round + 1):.4g} with one more round"
            )
        return about
