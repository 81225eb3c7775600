"""The local solver that a user sets, the gradient oracles by name, and what does not go with a method; `assignment`
makes the steps of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from fedconcord.method.contract import Algorithm, Oracle, Rule
from fedconcord.method.step.sizes import ByStep, Fixed
from fedconcord.support.factories import by_name


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
    tolerance: float | None = None  # stop when ||grad L_i||^2 <= this (FedADMM eq. (6)); the planned steps are the cap
    kind: Literal["sgd", "lbfgs"] = "sgd"  # SGD, or L-BFGS on all samples
    nesterov: bool = False  # the momentum's form
    clip_direction: float | None = None  # largest l2 norm of the direction
    clip_form: Literal["whole", "released"] = "whole"  # of what clip_direction cuts
    pace: Rule | None = None  # what finds the step sizes; None: they are the round's
    step_schedule: ByStep | None = None  # a factor more on eta_k, of any form

    def sizes(self, eta: float = 1.0) -> Fixed:
        """The step sizes of a round, where no rule finds them."""
        return Fixed(eta, self.step_schedule)


# -- the gradient oracles by name: which gradient of f_i a local step uses ---------------------------------------------


def minibatch() -> Oracle:
    """The gradient on the step's mini-batch."""
    return Oracle()


def full() -> Oracle:
    """The gradient on all samples of the client, at every step."""
    return Oracle("full")


def sam(radius: Annotated[float, Field(gt=0, description="length of the ascent step")] = 0.1) -> Oracle:
    """The gradient at x + radius * g / ||g||, on the same mini-batch: two gradients a step.

    Foret et al., ICLR 2021; FedSAM, Qu et al., ICML 2022.
    """
    return Oracle("sam", radius)


def lesam(radius: Annotated[float, Field(gt=0, description="length of the ascent step")] = 0.03) -> Oracle:
    """The gradient at x + radius * (x^s - x^t) / ||x^s - x^t||, s the client's last round before t: one a step.

    FedLESAM, Fan et al., ICML 2024. The client keeps x^s.
    """
    return Oracle("lesam", radius)


def svrg() -> Oracle:
    """g(x) - g(x^t) + grad f_i(x^t), on the step's mini-batch: two gradients a step and a full one a round.

    Johnson and Zhang, NeurIPS 2013.
    """
    return Oracle("svrg")


def saga(
    blocks: Annotated[int, Field(ge=1, description="number of blocks M that a client's samples are divided into")] = 5,
) -> Oracle:
    """g_j(x) - y_j + mean_j y_j with a table of the last gradients of a client's M blocks, kept across rounds.

    Defazio et al., NeurIPS 2014; with FedAvg it is FedSaga (LoSAC, ACM TKDD 2023, Algorithm 1).
    """
    return Oracle("saga", blocks=blocks)


ORACLES: dict[str, Callable[..., Oracle]] = by_name(minibatch, full, sam, lesam, svrg, saga)
"""Gradients of a local step by name."""


# -- what does not go together -----------------------------------------------------------------------------------------


def refuse(solver: Solver, algorithm: Algorithm, regularised: bool = False) -> str | None:
    """Why this method cannot use this local solver, or None; `regularised`: the objective has a non-smooth term."""
    return next(_reasons(solver, algorithm, regularised), None)


def _optimiser_reasons(solver: Solver, algorithm: Algorithm, is_proximal: bool) -> Iterator[str]:
    """What does not go with a local optimiser."""
    name, step = algorithm.step.optimiser, algorithm.step
    key = "local.optimiser" if step.code is None else "local.code"
    if step.code is not None:
        if (step.oracle or solver.oracle).kind != "minibatch" or step.blocks or algorithm.phases.prelude is not None:
            yield f"the method or local.oracle takes gradients of its own, which {name} does not; leave local.code out"
        if solver.tolerance is not None or solver.step_schedule:
            yield f"{name} ends and sizes its steps itself; leave local.tolerance and step_schedule out"
    if solver.kind == "lbfgs" or step.hessian_at is not None or step.fixed:
        yield f"the method or local.solver prescribes the local steps, and so does {name}; leave {key} out"
    if solver.momentum:
        yield f"{name} has moments of its own; set local.momentum 0, or leave {key} out"
    if step.size is not None or solver.pace is not None:
        yield f"a rule of step sizes looks at directions, which {name} replaces; give local.lr a number"
    if is_proximal:
        yield (
            f"the regulariser's proximal step has no meaning after {name}'s scaling; leave {key} out, or use "
            "a method whose server takes the proximal steps"
        )
    if solver.clip_direction is not None and solver.clip_form == "released":
        yield f"local.clip_form released is of plain steps; use whole with {name}"
    if algorithm.needs.mean_gradient and (step.oracle or solver.oracle).kind in ("svrg", "saga"):
        yield f"the method takes the mean of mini-batch gradients under {name}; set local.oracle minibatch"


def _reasons(solver: Solver, algorithm: Algorithm, regularised: bool) -> Iterator[str]:
    step, needs, is_lbfgs = algorithm.step, algorithm.needs, solver.kind == "lbfgs"
    oracle, is_newton = (step.oracle or solver.oracle).kind, step.hessian_at is not None
    corrects = step.blocks is not None or algorithm.phases.prelude is not None
    is_proximal = regularised and step.regularise == "local"
    if step.oracle is not None and solver.oracle.kind != "minibatch" and solver.oracle != step.oracle:
        yield f"the method brings its own gradient, {oracle}; leave local.oracle at minibatch"
    for key, why in algorithm.facts.unfit:
        if getattr(solver, key, None):  # those of other settings are refused where these are
            yield f"the method cannot have local.{key}, as {why}; leave it out"
    if corrects and oracle != "minibatch":
        yield f"the method corrects its own mini-batch gradients, so local.oracle cannot be {oracle}"
    if corrects and (is_lbfgs or solver.tolerance is not None):
        yield "the method corrects mini-batch gradients, which neither L-BFGS nor a tolerance can use"
    if is_newton and (is_lbfgs or solver.momentum):
        yield "the method takes one Newton or gradient step a round; use plain local SGD"
    if solver.nesterov and not solver.momentum:
        yield "local.nesterov is a form of momentum; set local.momentum > 0, or leave it out"
    if solver.clip_direction is None and solver.clip_form != Solver().clip_form:
        yield f"local.clip_form {solver.clip_form} has no effect without local.clip_direction; give both or neither"
    if solver.clip_direction is not None:  # why a direction cannot be clipped
        if is_lbfgs:
            yield "L-BFGS chooses its own steps; leave local.clip_direction out"
        if is_newton:
            yield "the method takes one Newton or gradient step a round; leave local.clip_direction out"
        if solver.clip_form == "released" and solver.momentum:
            yield "local.clip_form released is that of codes without local momentum; set local.momentum 0, or use whole"
        if solver.clip_form == "whole" and needs.normaliser:
            yield (
                "the method divides by ||a_i||_1, which a clipped direction does not have; use local.clip, or "
                "local.clip_form released, which counts what it clips as the gradient"
            )
    if step.fixed and (is_lbfgs or solver.momentum or solver.step_schedule):
        yield "the method prescribes its own local step; leave local.solver, local.momentum and step_schedule out"
    if is_lbfgs and needs.normaliser:
        yield "the method divides by ||a_i||_1, which L-BFGS does not have; use local SGD"
    if is_lbfgs and (solver.momentum or solver.clip is not None or solver.step_schedule):
        yield "L-BFGS chooses its own steps; leave local momentum, clip and step_schedule at their defaults"
    if is_lbfgs and is_proximal:
        yield "L-BFGS minimises smooth objectives, and this one has a regulariser; use local SGD"
    if solver.tolerance is not None and is_proximal:
        yield "a tolerance on ||grad L_i|| has no meaning under a non-smooth regulariser; leave it out"
    if is_lbfgs and oracle not in ("minibatch", "full"):
        yield f"L-BFGS minimises the full local objective, so local.oracle cannot be {oracle}"
    if step.optimiser is not None:
        yield from _optimiser_reasons(solver, algorithm, is_proximal)
    if step.size is None and solver.pace is None:
        return
    if step.size is not None and solver.pace is not None:  # why step sizes cannot come from a rule
        yield f"the method brings its own rule of step sizes, {step.size.kind}; leave local.lr out"
    advice = "use another method" if step.size is not None else "give local.lr a number"
    if is_newton or step.fixed:
        yield f"the method prescribes its own local step, which no rule of step sizes knows; {advice}"
    if needs.lr:
        yield f"the method counts in units of one local step size, which a rule of step sizes does not have; {advice}"
    if is_lbfgs:
        yield f"L-BFGS chooses its own steps, and so does a rule of step sizes; {advice}, or local.solver sgd"
    if solver.momentum:
        yield f"a rule of step sizes looks at directions, which momentum mixes; set local.momentum 0, or {advice}"
    if solver.step_schedule:
        yield f"a rule of step sizes chooses every step's; leave local.step_schedule out, or {advice}"
    if solver.clip_direction is not None and solver.clip_form == "released":
        yield f"local.clip_form released clips a part of what a rule of step sizes looks at; use whole, or {advice}"
    if is_proximal:
        yield (
            "clients take proximal steps of the regulariser, all of one size, and a rule gives each its own; "
            f"{advice}, or a method whose server takes them"
        )
