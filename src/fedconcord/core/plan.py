"""One round: what the server decides, and the orders that each client gets of it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from fedconcord.core.contract import Algorithm


class Aside(NamedTuple):
    """What a round costs besides its cohort: clients that were asked for their loss, and those that were lost."""

    asked: int = 0  # got the model, and sent one number
    lost: tuple[int, ...] = ()  # ids of those that got what the cohort got, and sent nothing
    gradient_steps: int = 0  # of those that were lost


class Plan(NamedTuple):
    """What the server decides for one round, the same on every engine. Arrays follow `ids`, which is sorted."""

    round: int  # t, from 0
    ids: np.ndarray  # [S] int64, sorted, distinct
    steps: np.ndarray  # [S] int64 local steps
    w: np.ndarray  # [S] float64 aggregation weights
    p: np.ndarray  # [S] float64 objective weights
    inclusion: np.ndarray  # [S] float64 probability that the client takes part; NaN where nobody knows it
    lr: float  # local step size
    seed: int  # of the clients' draws
    coin: float = 0.0  # the round's coin
    times: np.ndarray | None = None  # [S] float64 how often each was drawn; None: once
    expected: np.ndarray | None = None  # [S] float64 E[times]; None: nobody knows it
    late: np.ndarray | None = None  # [S] bool, its reply comes in a later round; None: none does
    waited: np.ndarray | None = None  # [S] int64 steps behind a late reply that comes now (`steps` is 0); None: all 0
    aside: Aside = Aside()  # who else was asked or lost
    seconds: float = 0.0  # simulated length of the round

    @property
    def answers(self) -> np.ndarray:
        """[S] bool: does nothing but send the reply of an earlier round."""
        return np.zeros(len(self.ids), bool) if self.waited is None else self.waited > 0

    @property
    def heard(self) -> np.ndarray:
        """[S] bool: its reply comes in this round."""
        return np.ones(len(self.ids), bool) if self.late is None else ~self.late


class Orders(NamedTuple):
    """What a client is told of a round besides the broadcast; from it and its own n_i it draws the rest itself."""

    round: int
    id: int
    steps: int
    lr: float
    seed: int
    p: float = float("nan")  # its weight in the objective, for methods that need it
    late: bool = False  # its reply comes in a later round
    waited: int = 0  # steps behind the late reply that it sends now, taking none; 0: it sends none

    @property
    def answers(self) -> bool:
        """Whether it does nothing but send the reply of an earlier round."""
        return self.waited > 0


def orders_of(plan: Plan, position: int, algorithm: Algorithm) -> Orders:
    """The orders of the client at this position of the plan."""
    return Orders(
        round=plan.round,
        id=int(plan.ids[position]),
        steps=int(plan.steps[position]),
        lr=plan.lr,
        seed=plan.seed,
        p=float(plan.p[position]) if algorithm.needs.weight else float("nan"),
        late=plan.late is not None and bool(plan.late[position]),
        waited=0 if plan.waited is None else int(plan.waited[position]),
    )


class Drawn(NamedTuple):
    """What a client draws for a round: positions inside the client."""

    batches: np.ndarray | None  # [K, B] sample positions of each step, -1 pads; None: all samples at every step
    blocks: np.ndarray | None = None  # [K] the block of each step, for methods with a table


class Draws(Protocol):
    """The draws that a client makes by itself. `federation.draws.Keyed` is the one that users configure."""

    def draw(self, algorithm: Algorithm, orders: Orders, n: int) -> Drawn:
        """The samples of every local step of a client that holds n."""
        ...

    def members(self, algorithm: Algorithm, client: int, n: int) -> list[np.ndarray]:
        """The sample positions of each of a client's M blocks, the same in every round.

        Raises:
            UserError: the client has fewer samples than blocks.
        """
        ...

    def width(self, algorithm: Algorithm, n: int) -> int:
        """The most samples in one step of a client that holds n."""
        ...

    def full_cost(self, algorithm: Algorithm, n: np.ndarray) -> np.ndarray:
        """Mini-batches [S] in a full gradient of clients that hold n [S] samples."""
        ...
