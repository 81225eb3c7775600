"""Late replies that are kept: a client that misses the deadline goes on, and its reply counts in the round it comes in.

A wrapper on any method, so that no engine and no method knows of it. In the round that the client works in, its state
moves as the method says and the message goes into its row; the server hears nothing. In the round that it comes in, the
client takes no step and the message is contributed with the weights of that round: the server adds a change that was
made from an earlier model. What depends on the aggregate (`settle`, A-FedPD) is done in that round too.

Running sums stay right: each message is counted once, so SCAFFOLD's c and its kin are off by what is on its way only,
and the fixed point, where no message moves anything, is the method's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.contract import Algorithm, Client, Cohort, Done, Population, Sender, Tree, tree_map
from fedconcord.method.contract.identity import definition
from fedconcord.method.wrappers.forms import forms
from fedconcord.method.wrappers.lift import lift


class Pending(NamedTuple):
    """A client's state beside a message on its way."""

    inner: Any  # the method's own row
    up: Any  # the message
    away: Tensor  # [] 1 while it is on its way


@definition()
def with_late_replies(algorithm: Algorithm) -> Algorithm:
    """The same method with late replies kept; for a schedule with late = "keep".

    It refuses methods with a message before the local steps and those that leave messages out.
    """

    def around(inner: Tree, x: Tensor) -> Pending:
        message = forms(algorithm, x).up
        blank = tree_map(lambda leaf: torch.zeros(leaf.shape, dtype=leaf.dtype, device=x.device), message)
        return Pending(inner, blank, x.new_zeros(()))

    def finish(down: Tree, row: Pending, done: Done, client: Client) -> tuple[Tree, Pending]:
        assert client.late is not None
        up, inner = algorithm.finish(down, row.inner, done, client)
        comes = row.away > 0  # its message of an earlier round; what it made now is void
        up = tree_map(lambda new, old: _either(comes, old, new), up, row.up)
        inner = tree_map(lambda new, old: _either(comes, old, new.expand_as(old)), inner, row.inner)
        message = tree_map(lambda new, old: new.reshape(old.shape), up, row.up)
        return up, Pending(inner, message, client.late.reshape(row.away.shape))

    def contribute(up: Tree, sender: Sender, cohort: Cohort) -> Tree:
        assert sender.late is not None
        late = sender.late > 0
        return tree_map(
            lambda leaf: _either(late, torch.zeros_like(leaf), leaf), algorithm.contribute(up, sender, cohort)
        )

    def update(server: Tree, total: Tree, cohort: Cohort) -> Tree:
        return server if cohort.size == 0 else algorithm.update(server, total, cohort)

    def settled(sent: Tree, row: Pending) -> Pending:
        assert algorithm.phases.settle is not None
        inner = algorithm.phases.settle.row(sent, row.inner)
        return row._replace(inner=tree_map(lambda new, old: _either(row.away > 0, old, new), inner, row.inner))

    def refuse(population: Population, cohort: int) -> str | None:
        if algorithm.facts.protection is not None:
            return (
                "a late reply is counted in a round whose noise it was not accounted in; use late discard with privacy"
            )
        if algorithm.phases.prelude is not None:
            return "the method's clients answer before their local steps too, and a late one cannot; use late discard"
        if algorithm.phases.communicates is not None:
            return "the method leaves messages out, and a late one could meet such a round; use late discard"
        return algorithm.refuse(population, cohort)

    lifted = lift(algorithm, row=around)
    return replace(
        lifted,
        finish=finish,
        contribute=contribute,
        update=update,
        phases=lifted.phases._replace(
            settle=lifted.phases.settle and lifted.phases.settle._replace(row=settled), late=True
        ),
        refuse=refuse,
    )


def _either(flag: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """yes where the flag ([] or [S, 1]) is set, else no: exact, whatever the other one holds; of the form of `no`."""
    shaped = flag.reshape(flag.shape[:1] + (1,) * (no.ndim - 1)) if no.ndim else flag.reshape(())
    return torch.where(shaped, yes.reshape(no.shape), no)
