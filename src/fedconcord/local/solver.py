"""The local solver: what a local step does with a gradient. One definition, used by every engine."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedconcord.core import Algorithm, Local, Oracle, Rule


class Solver(NamedTuple):
    """How a client minimises its local problem. A step of `sgd` is

        x <- x - eta_k * (filter(scale * clip(g) + weight_decay * x + linear) + prox * (x - anchor))

    The momentum buffer is the direction itself on the first step of a round and `momentum * buffer + direction` after;
    it never outlives a round. Nesterov's form steps by direction + momentum * buffer (torch.optim.SGD's). The proximal
    pull stays outside the buffer, so that FedNova's a_i is a linear recursion. `clip` acts on the oracle's gradient
    alone, before weight decay and dual terms; `clip_direction` on all of what eta multiplies (`clip_form` whole), or as
    FL-Simulator and FedDyn do (released): on scale * g + linear - prox * anchor, to which weight decay and prox * x are
    added unclipped. With a rule (`pace`) eta_k is the rule's size times the round's lr.
    """

    momentum: float = 0.0  # of the filter
    weight_decay: float = 0.0  # times x in the direction
    clip: float | None = None  # largest l2 norm of a client's stochastic gradient
    oracle: Oracle = Oracle()  # which gradient of f_i
    step_decay: float = 1.0  # eta_k = eta * step_decay ** k within a round
    tolerance: float | None = None  # stop when ||grad L_i||^2 <= this (FedADMM eq. (6)); the planned steps are the cap
    kind: Literal["sgd", "lbfgs"] = "sgd"  # SGD, or L-BFGS on all samples
    nesterov: bool = False  # the momentum's form
    clip_direction: float | None = None  # largest l2 norm of the direction
    clip_form: Literal["whole", "released"] = "whole"  # of what clip_direction cuts
    pace: Rule | None = None  # what finds the step sizes; None: they are the round's


def refuse(solver: Solver, algorithm: Algorithm, regularised: bool = False) -> str | None:
    """Why this method cannot use this local solver, or None; `regularised`: the objective has a non-smooth term."""
    oracle = algorithm.oracle or solver.oracle
    if algorithm.oracle is not None and solver.oracle.kind not in ("minibatch", algorithm.oracle.kind):
        return f"the method brings its own gradient, {algorithm.oracle.kind}; leave local.oracle at minibatch"
    if algorithm.blocks is not None or algorithm.prelude is not None:
        if oracle.kind != "minibatch":
            return f"the method corrects its own mini-batch gradients, so local.oracle cannot be {oracle.kind}"
        if solver.kind == "lbfgs" or solver.tolerance is not None:
            return "the method corrects mini-batch gradients, which neither L-BFGS nor a tolerance can use"
    if algorithm.hessian_at is not None and (solver.kind == "lbfgs" or solver.momentum):
        return "the method takes one Newton or gradient step a round; use plain local SGD"
    if solver.nesterov and not solver.momentum:
        return "local.nesterov is a form of momentum; set local.momentum > 0, or leave it out"
    if solver.clip_direction is not None and (reason := _refuse_clip(solver, algorithm)) is not None:
        return reason
    if algorithm.stepwise and (solver.kind == "lbfgs" or solver.momentum):
        return "the method prescribes its own local step; leave local.solver at sgd and local.momentum at 0"
    if solver.kind == "lbfgs" and algorithm.needs_normaliser:
        return "the method divides by ||a_i||_1, which L-BFGS does not have; use local SGD"
    if solver.kind == "lbfgs" and (solver.momentum or solver.clip is not None or solver.step_decay != 1.0):
        return "L-BFGS chooses its own steps; leave local momentum, clip and step_decay at their defaults"
    if solver.kind == "lbfgs" and regularised and algorithm.regularise == "local":
        return "L-BFGS minimises smooth objectives, and this one has a regulariser; use local SGD"
    if solver.tolerance is not None and regularised and algorithm.regularise == "local":
        return "a tolerance on ||grad L_i|| has no meaning under a non-smooth regulariser; leave it out"
    if solver.kind == "lbfgs" and oracle.kind not in ("minibatch", "full"):
        return f"L-BFGS minimises the full local objective, so local.oracle cannot be {oracle.kind}"
    if algorithm.pace is not None or solver.pace is not None:
        return _refuse_rule(solver, algorithm, regularised)
    return None


def _refuse_rule(solver: Solver, algorithm: Algorithm, regularised: bool) -> str | None:
    """Why step sizes cannot come from a rule here, or None."""
    if algorithm.pace is not None and solver.pace is not None:
        return f"the method brings its own rule of step sizes, {algorithm.pace.kind}; leave local.lr out"
    advice = "use another method" if algorithm.pace is not None else "give local.lr a number"
    if algorithm.hessian_at is not None or algorithm.stepwise:
        return f"the method prescribes its own local step, which no rule of step sizes knows; {advice}"
    if algorithm.needs_lr:
        return f"the method counts in units of one local step size, which a rule of step sizes does not have; {advice}"
    if solver.kind == "lbfgs":
        return f"L-BFGS chooses its own steps, and so does a rule of step sizes; {advice}, or local.solver sgd"
    if solver.momentum:
        return f"a rule of step sizes looks at directions, which momentum mixes; set local.momentum 0, or {advice}"
    if solver.step_decay != 1.0:
        return f"a rule of step sizes chooses every step's; leave local.step_decay at 1, or {advice}"
    if solver.clip_direction is not None and solver.clip_form == "released":
        return f"local.clip_form released clips a part of what a rule of step sizes looks at; use whole, or {advice}"
    if regularised and algorithm.regularise == "local":
        return (
            "clients take proximal steps of the regulariser, all of one size, and a rule gives each its own; "
            f"{advice}, or a method whose server takes them"
        )
    return None


def _refuse_clip(solver: Solver, algorithm: Algorithm) -> str | None:
    """Why a direction cannot be clipped here, or None."""
    if solver.kind == "lbfgs":
        return "L-BFGS chooses its own steps; leave local.clip_direction out"
    if algorithm.hessian_at is not None:
        return "the method takes one Newton or gradient step a round; leave local.clip_direction out"
    if solver.clip_form == "released" and solver.momentum:
        return "local.clip_form released is that of codes without local momentum; set local.momentum 0, or use whole"
    if solver.clip_form == "whole" and algorithm.needs_normaliser:
        return (
            "the method divides by ||a_i||_1, which a clipped direction does not have; use local.clip, or "
            "local.clip_form released, which counts what it clips as the gradient"
        )
    return None


def normaliser(
    steps: Tensor,
    longest: int,
    prox: float | Tensor,
    lr: float,
    momentum: float,
    step_decay: float = 1.0,
    scale: float | Tensor = 1.0,
    nesterov: bool = False,
) -> Tensor:
    """||a_i||_1 of FedNova (IEEE TSP 2021, section IV): the local step run on the scalar gradient 1.

    It is (x_start - x_end) / eta when every gradient is 1 and the anchor is the start; weight decay counts as gradient.

    Args:
        steps: local steps of each client, any shape.
        longest: a bound on them, known to the host so that nothing waits for the device.
        prox: the proximal weight, a number or one a client.
        lr: local step size eta.
        momentum, step_decay, nesterov: of the local solver.
        scale: weight of the gradient in the direction.

    Returns: the shape of `steps`; equal to `steps` for plain SGD.
    """
    if momentum == 0.0 and step_decay == 1.0 and not isinstance(prox, Tensor) and prox == 0.0:
        return steps * scale
    moved, buffer, eta = torch.zeros_like(steps), 0.0 * scale, 1.0
    for k in range(longest):
        buffer = momentum * buffer + scale
        direction = scale + momentum * buffer if nesterov else buffer
        moved = torch.where(steps > k, moved + eta * (direction - lr * prox * moved), moved)
        eta *= step_decay
    return moved


def momentum_of(solver: Solver, local: Local) -> float:
    """The momentum in force: the method's own if it names one."""
    return solver.momentum if local.momentum is None else local.momentum


def clipped(g: Tensor, limit: float | None) -> Tensor:
    """g [..., d] with each row's l2 norm at most `limit`."""
    if limit is None:
        return g
    norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    scaled: Tensor = g * (limit / norm.clamp(min=limit))
    return scaled


def ascent(x: Tensor, g: Tensor, radius: float, out: Tensor | None = None) -> Tensor:
    """The SAM point x + radius * g / (||g|| + 1e-7), per row (Foret et al. 2021; FedSAM); `out` may be g."""
    share = radius / (torch.linalg.vector_norm(g, dim=-1, keepdim=True) + 1e-7)
    return torch.addcmul(x, g, share, out=out)
