"""One round: what the server decides, the orders that each client gets of it, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import rng
from fedconcord.method.contract.contract import Algorithm, Cohort, Portion, Sender
from fedconcord.method.contract.objective import Problem, Regulariser
from fedconcord.method.contract.trees import Tree, tree_bytes, tree_leaves, tree_map, tree_sum


class Aside(NamedTuple):
    """What a round costs besides its cohort: clients that were asked for their loss, and those that do not count."""

    asked: int = 0  # got the model, and sent one number
    lost: tuple[int, ...] = ()  # ids of those that got what the cohort got, and sent nothing
    gradient_steps: int = 0  # of those that were lost or stale
    stale: tuple[int, ...] = ()  # ids of those that got and sent what the cohort did, too late for an update
    newcomers: int = 0  # of an update: clients, lost and stale ones too, that were sent x^0 beside a later model


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
    wave: np.ndarray | None = None  # [S] int64, of an update: the round of each client's draws; None: all `round`
    version: np.ndarray | None = None  # [S] int64, of an update: the model that each began from; None: all the newest
    lrs: np.ndarray | None = None  # [S] float64 local step size of each; None: all `lr`
    damping: np.ndarray | None = None  # [S] float64 factor in w; None: all 1
    in_flight: tuple[int, ...] = ()  # versions that the replies of later updates began from
    servers: np.ndarray | None = None  # [S, T] int64, the edge server above each in each tier, lowest first; None: none
    reached: tuple[int, ...] = ()  # [T] servers of each tier that messages to the cohort pass, the lost among it too

    @property
    def answers(self) -> np.ndarray:
        """[S] bool: does nothing but send the reply of an earlier round."""
        return np.zeros(len(self.ids), bool) if self.waited is None else self.waited > 0

    @property
    def heard(self) -> np.ndarray:
        """[S] bool: its reply comes in this round."""
        return np.ones(len(self.ids), bool) if self.late is None else ~self.late

    def round_of(self, position: int) -> int:
        """The round of a client's orders and draws."""
        return self.round if self.wave is None else int(self.wave[position])


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
        round=plan.round_of(position),
        id=int(plan.ids[position]),
        steps=int(plan.steps[position]),
        lr=plan.lr if plan.lrs is None else float(plan.lrs[position]),
        seed=plan.seed,
        p=float(plan.p[position]) if algorithm.needs.weight else float("nan"),
        late=plan.late is not None and bool(plan.late[position]),
        waited=0 if plan.waited is None else int(plan.waited[position]),
    )


class Drawn(NamedTuple):
    """What a client draws for a round: positions inside the client."""

    batches: np.ndarray | None  # [K, B] sample positions of each step, -1 pads; None: all samples at every step
    blocks: np.ndarray | None = None  # [K] the block of each step, for methods with a table


def in_blocks(order: np.ndarray, blocks: int) -> np.ndarray:
    """Positions [n] cut into M blocks of sizes that differ by one at most, the larger first: [M, B], -1 pads."""
    size, larger = divmod(len(order), blocks)
    out = np.full((blocks, size + (larger > 0)), -1, np.int64)
    out[np.arange(out.shape[1]) < size + (np.arange(blocks) < larger)[:, None]] = order
    return out


class Draws(Protocol):
    """The draws that a client makes by itself. `participation.work.Keyed` is the one that users configure."""

    def draw(self, algorithm: Algorithm, orders: Orders, n: int) -> Drawn:
        """The samples of every local step of a client that holds n."""

    def members(self, algorithm: Algorithm, client: int, n: int) -> np.ndarray:
        """The sample positions [M, B] of each of a client's blocks, of `in_blocks`; the same in every round.

        Raises:
            UserError: the client has fewer samples than blocks.
        """

    def width(self, algorithm: Algorithm, n: int) -> int:
        """The most samples in one step of a client that holds n."""

    def full_cost(self, algorithm: Algorithm, n: np.ndarray) -> np.ndarray:
        """Mini-batches [S] in a full gradient of clients that hold n [S] samples."""


# -- what the server knows of a round besides its plan, and what a round comes to ------------------------------------

PRELUDE, TRAIN = 0, 1  # the phases of a round, before the local steps and with them


class Outcome(NamedTuple):
    """A finished round and what it cost."""

    server: Tree
    bytes_down: int  # all messages to the cohort
    bytes_up: int  # all messages of the cohort
    gradient_steps: int  # mini-batch gradients evaluated by the cohort; a full gradient counts its mini-batches
    refused: tuple[int, ...] = ()  # ids of those whose reply was not finite and left out, which the costs count
    between: tuple[int, ...] = ()  # [2 T] bytes down and up between each tier of edge servers and what is above it
    missing: tuple[int, ...] = ()  # ids of the plan whose reply is not in the total, the refused among them


class Phase(NamedTuple):
    """A part of a round: each client of the cohort is sent a message and replies, and the server needs their total."""

    number: int  # `PRELUDE` or `TRAIN`
    message: Tree  # what each client is sent: the broadcast, or the total of the prelude
    down: Tree  # what a client then has of the server: the broadcast, with the total of a prelude in it
    contribute: Callable[[Tree, Sender, Cohort], Tree]  # (reply, sender, cohort) -> what is summed
    combine: Callable[[Tree, Sender, Cohort], Tree] | None = None  # in place of the sum; see `Algorithm.combine`
    downs: Mapping[int, Tree] = MappingProxyType({})  # `down` of each version that the plan names
    portion: Portion | None = None  # the part of it that each client holds; None: all of it

    def down_of(self, plan: Plan, position: int) -> Tree:
        """What the client at this position of the plan has of the server."""
        down = self.down if plan.version is None else self.downs[int(plan.version[position])]
        client = int(plan.ids[position])
        return fill_for(self.portion, cut_for(self.portion, down, client), client)


class Gathered(NamedTuple):
    """What came of a phase."""

    plan: Plan  # of the clients whose reply is in the total, or comes in a later round
    total: Tree | None  # None: nobody's reply came
    refused: tuple[int, ...] = ()  # ids of those whose reply was not finite


class Costs(NamedTuple):
    """What a round cost so far; refused replies cost what they cost."""

    bytes_down: int = 0
    bytes_up: int = 0
    gradient_steps: int = 0

    def plus(self, *more: int) -> Costs:
        """The sum with these, in this order."""
        return Costs(*(a + b for a, b in zip(self, (*more, 0, 0), strict=False)))


class Space(NamedTuple):
    """What a server knows of the objectives."""

    n: int  # clients N
    dim: int  # d
    dtype: torch.dtype
    device: torch.device
    regulariser: Regulariser | None


def space_of(problem: Problem) -> Space:
    """What the server of a problem knows."""
    objective = problem.objective
    return Space(problem.roster.n, objective.dim, objective.dtype, objective.device, objective.regulariser)


def cohort_of(space: Space, plan: Plan) -> Cohort:
    """The scalars of a round that the server knows beforehand."""
    p, steps = plan.p[plan.heard], behind(plan)[plan.heard]
    mass = float(p.sum())

    def normal(n: int) -> Tensor:
        draws = rng.generator(plan.seed, rng.Purpose.PRIVACY, plan.round).standard_normal(n)
        return torch.as_tensor(draws).to(dtype=space.dtype, device=space.device)

    return Cohort(
        round=plan.round,
        n=space.n,
        size=len(p),
        mass=mass,
        mean_steps=float(p @ steps) / mass if mass else 0.0,
        dim=space.dim,
        coin=plan.coin,
        regulariser=space.regulariser,
        lr=plan.lr,
        normal=normal,
        discrete=lambda n: torch.as_tensor(rng.noise(n, plan.seed, plan.round, 0)).to(space.device),
    )


def senders_of(space: Space, plan: Plan, select: np.ndarray) -> Sender:
    """What the server knows of the clients at these positions of the plan, scalars stacked as [S, 1]."""

    def column(values: np.ndarray, dtype: torch.dtype = space.dtype) -> Tensor:
        return torch.as_tensor(values[select]).to(dtype=dtype, device=space.device)[:, None]

    return Sender(
        id=column(plan.ids, torch.int64),
        w=column(plan.w),
        p=column(plan.p),
        steps=column(behind(plan)),
        inclusion=column(plan.inclusion),
        lr=plan.lr if plan.lrs is None else column(plan.lrs),
        late=None if plan.late is None else column(plan.late),
    )


def sender_of(space: Space, plan: Plan, position: int) -> Sender:
    """What the server knows of one client, scalars as []."""
    senders = senders_of(space, plan, np.array([position]))
    return Sender._make(column[0, 0] if isinstance(column, Tensor) else column for column in senders)


def behind(plan: Plan) -> np.ndarray:
    """Local steps [S] behind each client's reply."""
    return plan.steps if plan.waited is None else plan.steps + plan.waited


def cut_for(portion: Portion | None, message: Tree, client: int) -> Tree:
    """What travels of a message to a client, or of one from it."""
    return message if portion is None else portion.cut(message, client)


def fill_for(portion: Portion | None, message: Tree, client: int) -> Tree:
    """The message again of which `cut_for` gave a part, with zeros for the rest."""
    return message if portion is None else portion.fill(message, client)


def bytes_of_all(portion: Portion | None, message: Tree, ids: np.ndarray) -> int:
    """Bytes of a message to each of these clients [S], or of one like it from each."""
    if portion is None:
        return len(ids) * tree_bytes(message)
    first, counts = (each.tolist() for each in np.unique(portion.first(ids), return_counts=True))
    return sum(n * tree_bytes(portion.cut(message, client)) for client, n in zip(first, counts, strict=True))


def finite(sent: Tree, clients: int) -> Tensor:
    """[S] bool: whether the sum of every tensor that a client sent is finite; leaves are [S, ...].

    One pass without a copy. Numbers so large that their sum overflows are not finite either.
    """
    leaves = [leaf for leaf in tree_leaves(sent).values() if isinstance(leaf, Tensor)]  # `check_algorithm` finds others
    sums = [leaf.reshape(clients, -1 if leaf.numel() else 0).sum(1) for leaf in leaves if leaf.is_floating_point()]
    return torch.stack(sums).isfinite().all(0) if sums else torch.ones(clients, dtype=torch.bool)


def total_of(phase: Phase, replies: Mapping[int, Tree], space: Space, plan: Plan) -> Tree | None:
    """The total of the replies, by client, of those of a plan whose reply comes; None where nobody's does.

    What is combined lies in memory at once: as many contributions as replies come.
    """
    heard, cohort = np.flatnonzero(plan.heard), cohort_of(space, plan)
    shares = (phase.contribute(replies[int(plan.ids[k])], sender_of(space, plan, int(k)), cohort) for k in heard)
    if phase.combine is None or not len(heard):
        return tree_sum(shares) if plan.servers is None else _nested(shares, plan.servers[heard])
    first, *others = shares
    total = phase.combine(tree_map(_rows, first, *others), senders_of(space, plan, heard), cohort)
    return tree_map(lambda leaf, like: leaf if like.ndim else leaf.reshape(()), total, first)


def _nested(shares: Iterable[Tree], servers: np.ndarray) -> Tree | None:
    """The sum of shares, each added at its server of the lowest tier, and these sums at the next; servers: [S, T]."""
    for tier in range(servers.shape[1]):
        sums: dict[int, Tree] = {}
        _, firsts = np.unique(servers[:, tier], return_index=True)
        for server, share in zip(servers[:, tier].tolist(), shares, strict=True):
            sums[server] = tree_map(torch.add, sums[server], share) if server in sums else share
        servers, shares = servers[firsts], [sums[server] for server in sorted(sums)]
    return tree_sum(shares)


def _rows(*leaves: Tensor) -> Tensor:
    rows = torch.stack(leaves)
    return rows if rows.ndim > 1 else rows[:, None]
