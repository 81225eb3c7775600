"""How the contributions of a round's clients become one total: here at a server that sees each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from fedconcord.execution.messages.codec import Frame
from fedconcord.execution.messages.lengths import far
from fedconcord.method.contract import PRELUDE, Cohort, Phase, Plan, Sender, Tree, total_of

if TYPE_CHECKING:
    from fedconcord.execution.messages.server import RemoteServer, Reply, Request
    from fedconcord.method.wrappers.forms import Forms


class Requests(NamedTuple):
    """What a cohort is asked for that is to be summed."""

    plan: Plan
    of_client: Mapping[int, Request]
    again: Mapping[int, Frame] = {}  # what a client is sent first that has forgotten it
    lost: Sequence[Frame] = ()  # to clients that reply nothing


class Summed(NamedTuple):
    """What came of it."""

    plan: Plan  # of those whose contribution is in the total, or comes in a later round
    replies: Mapping[int, Reply]
    total: Tree | None  # None: of nobody


class Heard(NamedTuple):
    """What came of it under masks."""

    replies: Mapping[int, Reply]
    rows: Mapping[int, Tensor]  # [L] masked numbers by client; the total of several clients' stands at one of them


class Sums(Protocol):
    """Where contributions are summed."""

    def sum(self, half: RemoteServer, requests: Requests, phase: Phase) -> Summed:
        """Ask a cohort, and sum what it contributes."""
        ...


class Plain:
    """At the server, which sees every client's message."""

    def sum(self, half: RemoteServer, requests: Requests, phase: Phase) -> Summed:
        """As `Sums` says."""
        return summed(half, requests.plan, half.hear(requests), phase)


def summed(half: RemoteServer, plan: Plan, replies: Mapping[int, Reply], phase: Phase) -> Summed:
    """The total of those of a plan that replied with finite numbers."""
    plan = half.only(plan, replies)
    say_far(half, plan, replies)
    return Summed(plan, replies, total_of(phase, {i: one.tree for i, one in replies.items()}, half.space, plan))


def say_far(half: RemoteServer, plan: Plan, replies: Mapping[int, Reply]) -> None:
    """Tell whose message is far longer than the others', of replies by their vectors or by the lengths of these."""
    if half.hooks.far is not None:
        for i, times in far({i: replies[i].tree for i in plan.ids[plan.heard].tolist()}).items():
            half.hooks.far(i, times)


def form_of_total(phase: Phase, forms: Forms, cohort: Cohort) -> Tree:
    """The form of a contribution, and so of a total: the method's own function on tensors without values."""
    one = torch.empty((), dtype=forms.x.dtype, device="meta")
    sender = Sender(one.to(torch.int64), one, one, one, one, cohort.lr)
    return phase.contribute(forms.x if phase.number == PRELUDE else forms.up, sender, cohort)


PLAIN = Plain()
