"""Known mistakes in the local problem, in what a client makes of its steps, in weights and in schedules.

Those of what a method remembers stand in `memories`, those of single methods in `single`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import UnionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import (
    Algorithm,
    Cohort,
    Constant,
    Local,
    Pull,
    Sender,
    Tree,
    model_of,
    tree_map,
)
from fedconcord_referee.known import Change, Known, mistake, shaped
from fedconcord_referee.reference import Setting

# -- the local problem -------------------------------------------------------------------------------------------------


def local(change: Callable[[Local, Tree, Any], Local]) -> Change:
    """A change of where local steps start and what they add: (local, down, client) -> local."""

    def changed(algorithm: Algorithm, setting: Setting) -> Algorithm:
        def start(down: Tree, row: Tree, client: Any) -> Local:
            return change(algorithm.start(down, row, client), down, client)

        return replace(algorithm, start=start)

    return shaped(changed)


def pieces(one: Local, kind: type | UnionType, change: Callable[[Any], Any]) -> Local:
    """The pieces of a kind changed; where the change gives None they are left out."""
    new = (change(piece) if isinstance(piece, kind) else piece for piece in one.pieces)
    kept_pieces = [piece for piece in new if piece is not None]
    return Local(one.x, *kept_pieces, lr_scale=one.lr_scale, first=one.first)


def _plain_steps(one: Local, down: Tree, client: Any) -> Local:
    """Of methods that have both pieces: of others it is one of two plainer mistakes."""
    if not {Constant, Pull} <= {type(piece) for piece in one.pieces}:
        raise ValueError("this method has one of them at most")
    return pieces(one, Constant | Pull, lambda piece: None)


LOCAL = (
    mistake(
        "sign of the correction",
        "adds the correction (control variates, duals) of the local direction with its sign reversed",
        local(lambda one, down, client: pieces(one, Constant, lambda piece: Constant(-piece.c))),
    ),
    mistake(
        "no correction",
        "leaves the correction (control variates, duals) out of the local direction",
        local(lambda one, down, client: pieces(one, Constant, lambda piece: None)),
    ),
    mistake(
        "half of the correction",
        "corrects the local direction by half of what the paper has",
        local(lambda one, down, client: pieces(one, Constant, lambda piece: Constant(piece.c / 2))),
    ),
    mistake(
        "no pull",
        "has no pull to the server's model: the proximal term is left out, carries no gradient, or is taken about the "
        "local iterate, where it is zero",
        local(lambda one, down, client: pieces(one, Pull, lambda piece: None)),
    ),
    mistake(
        "neither correction nor pull",
        "takes plain gradient steps: correction and proximal term are left out, or made of parameters that carry no "
        "gradient",
        local(_plain_steps),
    ),
    mistake(
        "pushed away",
        "has the proximal term with its sign reversed, so that clients are pushed away from the server's model",
        local(lambda one, down, client: pieces(one, Pull, lambda piece: piece._replace(rho=-piece.rho))),
    ),
    mistake(
        "pull to zero",
        "pulls clients to zero (weight decay) where the paper pulls them to the server's model",
        local(lambda one, down, client: pieces(one, Pull, lambda piece: piece._replace(anchor=0 * piece.anchor))),
    ),
    mistake(
        "starts from the server's model",
        "starts local steps from the server's model where the paper starts from the client's own",
        local(lambda one, down, client: one.starting(model_of(down))),
    ),
)


# -- what a client makes of its steps ----------------------------------------------------------------------------------


def finishing(change: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Change:
    """A change of what `finish` reads: (result, client, setting) -> (result, client)."""

    def changed(algorithm: Algorithm, setting: Setting) -> Algorithm:
        def finish(down: Tree, row: Tree, result: Any, client: Any) -> tuple[Tree, Tree]:
            return algorithm.finish(down, row, *change(result, client, setting))

        return replace(algorithm, finish=finish)

    return shaped(changed)


def counted(count: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """Another number of steps in `finish`: (||a_i||_1 [S, 1], ids [S, 1]) -> [S, 1] or []."""

    def change(result: Any, client: Any, setting: Setting) -> tuple[Any, Any]:
        return result._replace(normaliser=count(result.normaliser, client.id).expand(result.normaliser.shape)), client

    return finishing(change)


def _next_lr(result: Any, client: Any, setting: Setting) -> tuple[Any, Any]:
    first, second = (one.lr for one in setting.spec.rounds[:2])
    return result, client._replace(lr=client.lr * second / first)


FINISH = (
    mistake(
        "the next step size",
        "divides by the step size of the next round, as code that decays it before the division",
        finishing(_next_lr),
    ),
    mistake(
        "the step size left out",
        "divides a client's move by its number of steps alone, where the paper divides by steps times step size",
        finishing(lambda result, client, setting: (result, client._replace(lr=1.0))),
    ),
    mistake(
        "the number of steps left out",
        "divides by the step size alone, where the paper divides by steps times step size",
        counted(lambda count, ids: torch.ones_like(count)),
    ),
    mistake(
        "steps of the cohort's first client",
        "divides the moves of all clients by the number of steps of the cohort's first one",
        counted(lambda count, ids: count.reshape(-1)[ids.reshape(-1).argmin()]),
    ),
    mistake(
        "most steps of the cohort",
        "divides the moves of all clients by the largest number of steps in the cohort",
        counted(lambda count, ids: count.max()),
    ),
    mistake(
        "mean steps of the cohort",
        "divides the moves of all clients by the mean number of steps of the cohort",
        counted(lambda count, ids: count.mean()),
    ),
    mistake(
        "momentum not in the normaliser",
        "divides by the number of steps, where local momentum makes ||a_i||_1 larger",
        finishing(
            lambda result, client, setting: (result._replace(normaliser=result.steps.to(result.normaliser)), client)
        ),
    ),
)


# -- weights and schedules ---------------------------------------------------------------------------------------------


def weighed(change: Callable[[Sender, Cohort, np.ndarray], Sender]) -> Change:
    """A change of the weights that a message is summed with: (sender, cohort, sizes [N]) -> sender."""

    def changed(algorithm: Algorithm, setting: Setting) -> Algorithm:
        sizes = setting.spec.sizes

        def contribute(up: Tree, sender: Sender, cohort: Cohort) -> Tree:
            return algorithm.contribute(up, change(sender, cohort, sizes), cohort)

        return replace(algorithm, contribute=contribute)

    return shaped(changed)


def _by(values: Callable[[Sender, np.ndarray], Tensor]) -> Callable[[Sender, Cohort, np.ndarray], Sender]:
    """Weights in proportion to values [S, 1] of the cohort's stack."""

    def change(sender: Sender, cohort: Cohort, sizes: np.ndarray) -> Sender:
        value = values(sender, sizes)
        return sender._replace(w=value / value.sum())

    return change


def _alone(pick: Callable[[Tensor], Tensor]) -> Change:
    """One client's contribution in place of the sum."""

    def changed(algorithm: Algorithm, setting: Setting) -> Algorithm:
        def combine(server: Tree, each: Tree, senders: Sender, cohort: Cohort) -> Tree:
            here = pick(senders.id.reshape(-1))
            return tree_map(lambda leaf: leaf[here], each)

        return replace(algorithm, phases=algorithm.phases._replace(combine=combine))

    return shaped(changed)


def _size(sender: Sender, sizes: np.ndarray) -> Tensor:
    return torch.as_tensor(sizes)[sender.id]


WEIGHTS = (
    Known(
        "weights by size",
        "variant",
        "weighs clients' moves by their size, where equal weights were asked for",
        weighed(_by(_size)),
    ),
    Known(
        "equal weights",
        "variant",
        "weighs clients' moves equally, where weights by size were asked for",
        weighed(_by(lambda sender, sizes: torch.ones_like(sender.w))),
    ),
    mistake(
        "weights by steps",
        "weighs clients' moves by their number of local steps",
        weighed(_by(lambda sender, sizes: sender.steps.to(sender.w))),
    ),
    mistake(
        "weights by size and steps",
        "weighs clients' moves by the number of samples that they processed, size times steps",
        weighed(_by(lambda sender, sizes: _size(sender, sizes) * sender.steps)),
    ),
    mistake(
        "divides by all clients",
        "divides the sum of the cohort's moves by the number of all clients, where the paper divides by the cohort's",
        weighed(lambda sender, cohort, sizes: sender._replace(w=sender.w * cohort.size / cohort.n)),
    ),
    mistake(
        "a sum for the mean",
        "adds the cohort's moves up, where the paper has their mean",
        weighed(lambda sender, cohort, sizes: sender._replace(w=torch.ones_like(sender.w))),
    ),
    mistake(
        "1/N left out",
        "adds up the changes of the cohort's memory (control variates, duals) without the 1/N of the paper",
        weighed(lambda sender, cohort, sizes: sender._replace(p=torch.ones_like(sender.p))),
    ),
    mistake(
        "memory averaged over the cohort",
        "averages changes of memory (control variates, duals) over the cohort, where the paper has the mean of all "
        "clients",
        weighed(lambda sender, cohort, sizes: sender._replace(p=sender.w)),
    ),
    mistake(
        "the last client alone",
        "counts the cohort's last client alone, as code that assigns in its loop where it should add",
        _alone(lambda ids: ids.argmax()),
    ),
    mistake(
        "the first client alone",
        "counts the cohort's first client alone",
        _alone(lambda ids: ids.argmin()),
    ),
)


def rescheduled(change: Callable[[Any, int, Setting], Any]) -> Change:
    """Another schedule: (round, number of the round, setting) -> round."""

    def changed(setting: Setting) -> Setting:
        rounds = tuple(change(one, t, setting) for t, one in enumerate(setting.spec.rounds))
        return setting._replace(spec=setting.spec._replace(rounds=rounds))

    return changed


def stepped(count: Callable[[tuple[int, ...]], int]) -> Change:
    return rescheduled(lambda one, t, setting: one._replace(steps=(count(one.steps),) * len(one.steps)))


STEPS = (
    mistake(
        "the first client's steps for all",
        "lets all clients do the number of local steps of the cohort's first one",
        stepped(lambda steps: steps[0]),
    ),
    mistake("most steps for all", "lets all clients do the cohort's largest number of local steps", stepped(max)),
    mistake("fewest steps for all", "lets all clients do the cohort's smallest number of local steps", stepped(min)),
    mistake("one step for all", "takes one local step a client and round", stepped(lambda steps: 1)),
    mistake(
        "a step more",
        "takes one local step more than it is told",
        rescheduled(lambda one, t, setting: one._replace(steps=tuple(k + 1 for k in one.steps))),
    ),
    mistake(
        "the first round thrown away",
        "leaves the model as it is in the first round, whose local steps count for nothing",
        rescheduled(lambda one, t, setting: one._replace(lr=one.lr if t else 0.0)),
    ),
    mistake(
        "a constant step size",
        "takes the first round's local step size in all rounds",
        rescheduled(lambda one, t, setting: one._replace(lr=setting.spec.rounds[0].lr)),
    ),
    mistake(
        "the next round's step size",
        "takes each round's local step size a round early",
        rescheduled(
            lambda one, t, setting: one._replace(lr=one.lr * setting.spec.rounds[1].lr / setting.spec.rounds[0].lr)
        ),
    ),
)
