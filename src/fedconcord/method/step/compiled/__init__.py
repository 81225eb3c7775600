"""Whole local rounds in one compiled call: `step.walk` for fully connected networks on a CPU, by numba."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import Network, Objective
from fedconcord.method.contract.nested import Beside, Look, Moreau
from fedconcord.method.contract.optimisers import AdamW, DirectionMoment, Lion, MeanGradient, SecondMoment, Sign
from fedconcord.method.contract.pieces import (
    Ascent,
    Clip,
    Constant,
    Decay,
    Dual,
    Momentum,
    Perturbed,
    Pull,
    Scale,
    Snapshot,
    Table,
)
from fedconcord.method.step.assignment import Assignment, local_regulariser
from fedconcord.method.step.compiled import arrays
from fedconcord.method.step.compiled.formulas import there
from fedconcord.method.step.compiled.loading import installed, load
from fedconcord.method.step.samples import Batches, Samples
from fedconcord.method.step.sizes import Delta, Dog, Fixed, Normed, Ruled, StepSize
from fedconcord.method.step.walk import Chain, Source, Walked, with_own_state
from fedconcord.support.errors import UserError

__all__ = ["check", "in_one_call", "installed", "load", "suits"]

WIDEST = 512  # samples in a step


def suits(objective: Objective, assignment: Assignment) -> bool:
    """Whether the compiled call knows the local steps of such a job.

    It does not where a step asks for more than a gradient and its norm: a line search, a tolerance, a clipped
    direction, Newton steps, a regulariser's proximal steps; nor with more samples in a step than `WIDEST`, for which
    torch's products are as fast.
    """
    solver, algorithm, most = assignment.solver, assignment.algorithm, objective.largest
    width = most if assignment.oracle.kind == "full" else assignment.draws.width(algorithm, most)
    return (
        objective.network is not None
        and width <= WIDEST
        and solver.kind == "sgd"
        and solver.tolerance is None
        and solver.clip_direction is None
        and algorithm.step.hessian_at is None
        and local_regulariser(objective, algorithm) is None
    )


def check(objective: Objective, assignment: Assignment) -> None:
    """Refuse what compiled steps cannot do.

    Raises:
        UserError: numba is not installed, or the job's local steps are not among those that `suits` names.
    """
    if not installed():
        raise UserError("engine.kernel is compiled, which needs numba; install it with pip install numba, or use torch")
    if not suits(objective, assignment):
        raise UserError(
            f"engine.kernel is compiled, which is for steps of SGD on at most {WIDEST} samples, without tolerance, "
            "clip_direction or proximal steps of a regulariser, on fully connected networks with ReLU on a CPU; use "
            "auto or torch"
        )


KNOWN = {Ascent, Perturbed, Look, Moreau, Snapshot, Clip, Table, Beside, Scale, Decay, Constant, Dual, Momentum, Pull}
TURNED = {Perturbed, MeanGradient, SecondMoment, DirectionMoment, AdamW, Lion, Sign, Scale, Decay, Constant, Pull}
COLUMNS: dict[type, tuple[str, ...]] = {  # a rule's state in the order of `moves`
    Delta: ("now", "ratio", "moved", "limit", "curvature"),
    Dog: ("now", "reach", "first", "squares"),
    Normed: ("now", "opening", "squares"),
}


def in_one_call(chain: Chain, source: Source, steps: np.ndarray) -> Walked | None:
    """`walk` in one compiled call; None for a chain that the compiled steps do not know."""
    if not isinstance(source, Batches) or source.samples is None or source.objective.network is None:
        return None
    if not _knows(chain):
        return None
    x = chain.x.expand(len(steps), -1).clone()
    size = with_own_state(chain.size, len(x))
    moving = tuple(with_own_state(piece, len(x), chain.tables) for piece in chain.pieces if piece.traits.moves)
    the: dict[type, Any] = {type(piece): piece for piece in (*chain.pieces, *moving)}
    columns = [getattr(size, name) for name in COLUMNS.get(type(size), ())]
    state = torch.cat([x[:, :0], *columns], 1).numpy()
    of = source.objective.network, source.samples, source.blocks
    load(x.dtype)(*arguments(the, size, state, *of, steps, x.numpy()))
    for column, values in zip(columns, state.T, strict=True):
        column.copy_(torch.as_tensor(values)[:, None])
    return Walked(x, moving, size, steps)


def arguments(
    the: Mapping[type, Any],
    size: StepSize,
    state: np.ndarray,
    network: Network,
    samples: Samples,
    blocks: Tensor | None,
    steps: np.ndarray,
    x: np.ndarray,
) -> tuple[Any, ...]:
    """What the compiled function is given.

    Args:
        the: pieces by their kinds; what moves is written where it lies.
        state: [S, columns] the state of a rule of step sizes, in place.
        x: [S, d] in place.
    """
    kind, numbers = x.dtype.type, network.loss != "cross_entropy"
    net = arrays.Net(
        widths=np.array(network.widths, np.int64),
        **_samples(network, kind),
        classes=_array(None if numbers else network.targets, 1, np.int64),
        targets=_array(network.targets if numbers else None, 2, kind),
        loss=getattr(arrays, network.loss.upper()),
    )
    draw = arrays.Draw(
        steps.astype(np.int64),
        _array(samples.samples, 3, np.int64),
        _array(samples.weight, 3, kind),
        _array(blocks, 2, np.int64),
    )
    terms = arrays.Terms(**_terms(the, len(x), kind), **_sizes(size, state, steps, kind))
    further = arrays.Further(**_further(the, x.shape[-1], kind))
    optimiser = arrays.Optimiser(**_optimiser(the, kind))
    return net, draw, terms, further, optimiser, x, arrays.scratch(net, draw, terms, further, x)


def _knows(chain: Chain) -> bool:
    """Whether the compiled steps are those of such a chain."""
    constant, table, dual, momentum, pull = (chain.the(kind) for kind in (Constant, Table, Dual, Momentum, Pull))
    beside = chain.the(Beside)
    turns = any(isinstance(piece, AdamW | Lion | Sign) for piece in chain.pieces)
    adamw, seconds = chain.the(AdamW), (chain.the(SecondMoment), chain.the(DirectionMoment))
    points = [piece for piece in chain.pieces if isinstance(piece, Ascent | Perturbed | Look | Moreau)]
    return (
        (chain.is_of(KNOWN) or (turns and chain.is_of(TURNED) and isinstance(chain.size, Fixed)))
        and all(one is None or (adamw is not None and one.beta == adamw.beta2) for one in seconds)
        and (adamw is None or adamw.before is None)
        and len(points) < 2
        and (beside is None or beside.share is None or not any(isinstance(point, Look | Moreau) for point in points))
        and chain.tolerance is None
        and chain.prox is None
        and (dual is None or (table is None and constant is None))
        and (dual is None or pull is None or dual.anchor is pull.anchor)
        and (momentum is None or isinstance(chain.size, Fixed))
    )


def _terms(the: Mapping[type, Any], S: int, kind: type[np.generic]) -> dict[str, Any]:
    """The pieces of S clients, by their kinds, as fields of `Terms`; what moves is written where it lies."""

    def of(piece: type, field: str, absent: Any = None) -> Any:
        return getattr(the[piece], field) if piece in the else absent

    linear, anchor = of(Constant, "c", of(Dual, "dual")), of(Pull, "anchor")
    if Dual in the:
        anchor = the[Dual].anchor
    elif Pull in the and not the.keys() & {Table, Momentum, AdamW, Lion, Sign}:
        pulled = the[Pull].rho * anchor
        linear, anchor = -pulled if linear is None else linear - pulled, None
    return {
        "scale": _each(of(Scale, "kappa", 1.0), S, kind),
        "prox": _each(of(Pull, "rho", 0.0), S, kind),
        "linear": _array(linear, 2, kind),
        "anchor": _array(anchor, 2, kind),
        "snapshot": _array(of(Snapshot, "z"), 2, kind),
        "reference": _array(of(Snapshot, "c"), 2, kind),
        "buffer": _array(of(Momentum, "buffer"), 2, kind),
        "table": _array(of(Table, "table"), 3, kind),
        "mean": _array(of(Table, "mean"), 2, kind),
        "table_rate": _each(of(Table, "rate", 0.0), S, kind),
        "tilt": _array(of(Ascent, "dual"), 2, kind),
        "common": _array(of(Ascent, "common"), 2, kind),
        "dual_rate": kind(of(Dual, "rate", 0.0)),
        "momentum": kind(of(Momentum, "beta", 0.0)),
        "nesterov": of(Momentum, "nesterov", False),
        "weight_decay": kind(of(Decay, "rate", 0.0)),
        "clip": kind(of(Clip, "limit", 0.0)),
        "radius": kind(of(Ascent, "radius", 0.0)),
    }


def _further(the: Mapping[type, Any], d: int, kind: type[np.generic]) -> dict[str, Any]:
    """The pieces that take further gradients as fields of `Further`; what moves is written where it lies."""
    beside, look, moreau = (the.get(of) for of in (Beside, Look, Moreau))
    return {
        "point": _array(moreau.theta, 2, kind) if moreau else np.empty((1, d), kind),
        "beside": _array(beside.v if beside else None, 2, kind),
        "beside_anchor": _array(beside.anchor if beside else None, 2, kind),
        "beside_eta": kind(beside.lr if beside else 0.0),
        "beside_pull": kind(beside.lam if beside else 0.0),
        "share": _array(beside.share if beside else None, 2, kind),
        "share_rate": kind(beside.rate if beside else 0.0),
        "inner": moreau.steps if moreau else 1 if look else 0,
        "inner_eta": kind(moreau.a if moreau else look.a if look else 0.0),
        "lam": kind(moreau.lam if moreau else 0.0),
        "shift": _array(the[Perturbed].shift if Perturbed in the else None, 2, kind),
        "nested": bool(moreau),
    }


def _optimiser(the: Mapping[type, Any], kind: type[np.generic]) -> dict[str, Any]:
    """The local optimiser as fields of `Optimiser`; what moves is written where it lies."""
    kinds = {AdamW: arrays.ADAMW, Lion: arrays.LION, Sign: arrays.SIGN}
    optimiser = next((of for of in kinds if of in the), Sign)

    def of(piece: type, field: str, absent: Any = None) -> Any:
        return getattr(the.get(piece), field, absent)

    return {
        "kind": kinds[optimiser] if optimiser in the else arrays.PLAIN,
        "m": _array(of(optimiser, "m"), 2, kind),
        "raw": _array(of(SecondMoment, "v"), 2, kind),
        "second": _array(of(DirectionMoment, "v"), 2, kind),
        "total": _array(of(MeanGradient, "total"), 2, kind),
        "t": _array(of(AdamW, "t"), 2, kind),
        "beta": kind(of(AdamW, "beta", of(Lion, "beta1", 0.0))),
        "beta2": kind(of(optimiser, "beta2", 0.0)),
        "eps": kind(of(AdamW, "eps", 0.0)),
        "decay": kind(of(optimiser, "decay", 0.0)),
    }


def _sizes(size: StepSize, state: np.ndarray, steps: np.ndarray, kind: type[np.generic]) -> dict[str, Any]:
    """The step sizes as fields of `Terms`; for a rule, eta is the factor on what it finds."""
    most = int(steps.max(initial=0))
    fixed = Fixed(size.lr) if isinstance(size, Ruled) else size
    assert isinstance(fixed, Fixed)
    rules = {Fixed: arrays.NONE, Delta: arrays.DELTA, Dog: arrays.DOG, Normed: arrays.NORMED}
    reach, growth = 0.0, 0.0
    if isinstance(size, Delta):
        reach, growth = 0.5 * size.gamma, size.growth
    elif isinstance(size, Normed):
        reach, growth = size.length, size.bound
    return {
        "eta": np.array([fixed.at(k) for k in range(most)], kind),
        "rule": rules[type(size)],
        "reach": kind(reach),
        "growth": kind(growth),
        "pace": state,
        "start": _array(size.start if isinstance(size, Dog) else None, 2, kind),
        "etas": _array(size.etas if isinstance(size, Ruled) else None, 2, kind),
    }


def _samples(network: Network, kind: type[np.generic]) -> dict[str, np.ndarray]:
    """The fields of a `Net` that samples are read from."""
    samples: np.ndarray = network.inputs.numpy()
    kinds = {"bytes": np.uint8, "narrow": np.float32, "inputs": kind}  # the second is read where the third is it too
    read = {name: samples if samples.dtype == of else np.empty((0, 0), of) for name, of in kinds.items()}
    return {**read, "order": _array(network.order, 1, np.int64), "table": _array(network.table, 2, kind)}


def _array(value: Tensor | None, ndim: int, kind: type[np.generic]) -> np.ndarray:
    """The numbers of a tensor, with a row for what clients share; for None, too, which has no numbers."""
    if value is None:
        return np.empty((1,) * (ndim - 1) + (0,), kind)
    array: np.ndarray = there(value).numpy()
    return np.ascontiguousarray(array.reshape((1,) * (ndim - array.ndim) + array.shape))


def _each(value: float | Tensor, size: int, kind: type[np.generic]) -> np.ndarray:
    """A number of every client [S]."""
    numbers = value.reshape(-1).numpy() if isinstance(value, Tensor) else np.array([value])
    return np.array(np.broadcast_to(numbers, size), kind)  # a copy: numba would compile anew for what is read-only
