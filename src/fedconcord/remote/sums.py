"""How the contributions of a round's clients become one total: here at a server that sees each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from fedconcord.core import Plan, Tree, cohort_of, sender_of
from fedconcord.remote.codec import Frame
from fedconcord.transforms.sums import Contribute

if TYPE_CHECKING:
    from fedconcord.remote.server import Heard, RemoteServer, Want

PRELUDE, REPLY = 0, 1  # the parts of a round that have a sum


class Asking(NamedTuple):
    """A cohort that is to be asked for what is summed."""

    plan: Plan
    wants: Mapping[int, Want]
    again: Mapping[int, Frame] = {}  # what a client is sent first that has forgotten it
    answer: Tree = ()  # of a prelude
    gradient_steps: int = 0  # so far


class Part(NamedTuple):
    """A part of a round that has a total."""

    number: int  # `PRELUDE` or `REPLY`
    contribute: Contribute
    total: Callable[[Sequence[Tree], np.ndarray, Plan], Tree]  # (contributions, positions of the plan, plan) -> theirs


class Gathered(NamedTuple):
    """What came of it."""

    plan: Plan  # of those whose contribution is in the total
    heard: Mapping[int, Heard]
    total: Tree | None  # None: of nobody


class Sums(Protocol):
    """Where contributions are summed."""

    def gather(self, half: RemoteServer, asking: Asking, part: Part, lost: Mapping[int, Frame]) -> Gathered:
        """Ask a cohort, and sum what it contributes.

        Args:
            lost: frames to clients whose answers do not arrive.
        """
        ...


class Plain:
    """At the server, which sees every client's message."""

    def gather(self, half: RemoteServer, asking: Asking, part: Part, lost: Mapping[int, Frame]) -> Gathered:
        """As `Sums` says."""
        heard = half.hear(asking.plan, asking.wants, asking.again, lost)
        plan = half.only(asking.plan, heard)
        replies = np.flatnonzero(plan.heard)
        cohort = cohort_of(half.space, plan)
        clients = plan.ids[replies].tolist()
        shares = [
            part.contribute(heard[i].tree, sender_of(half.space, plan, int(k)), cohort)
            for k, i in zip(replies, clients, strict=True)
        ]
        return Gathered(plan, heard, part.total(shares, replies, plan) if shares else None)
