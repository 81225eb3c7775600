"""A term of the local loss inside any method: `local.term = "ntd"`, and the model that a client remembers for it.

What is known as a method of its own is `fedavg` with a term: FedNTD is `ntd`, MOON `moon`, FedLC `logit_calibration`,
FedDecorr `decorr`. Each goes with every other method as well, as a term is part of the client's loss (`contract.terms`)
and no part of a method.

A client's last model is its x_i at the end of its last round that counted, kept in its row where a term asks for it. In
its first round there is none, and the server's stands in: the contrast of `moon` then is the constant log 2. MOON's
code (QinbinLi/MOON main.py) has no negative pair in round 0, a constant too, and for a client that begins later a
network of random weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedconcord.method.contract import (
    Algorithm,
    Client,
    Cohort,
    Conditions,
    Done,
    Objective,
    Parts,
    Sender,
    Tree,
    model_of,
)
from fedconcord.method.contract.identity import definition
from fedconcord.method.contract.terms import Need, Term, View
from fedconcord.method.wrappers.lift import lift
from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name
from fedconcord.support.imports import Open, maker
from fedconcord.support.parameters import Positive, about

Weight = Annotated[Positive, about("factor on the term in the loss")]
Layer = Annotated[
    str, about("layer of the model whose outputs are the features; if empty, what goes into the last linear layer")
]
Temperature = Annotated[Positive, about("temperature: outputs are divided by it")]


@definition()
def ntd(weight: Weight = 1.0, temperature: Temperature = 3.0) -> Term:
    """Not-true distillation (FedNTD): the model keeps to the server's answers on the classes that are not the true one.

    T^2 KL(softmax(server's outputs / T), softmax(outputs / T)), each without the true class. Lee et al., NeurIPS 2022;
    T^2 as in its code (Lee-Gihun/FedNTD criterion.py).
    """

    def value(view: View) -> Tensor:
        classes = view.outputs.shape[-1]
        if classes < 3:
            raise UserError(
                f"term ntd compares the classes beside the true one, and of {classes} classes that is one; use distil"
            )
        # the C - 1 other classes of a sample, from the one behind its own on
        others = (view.targets[:, None] + torch.arange(1, classes, device=view.targets.device)) % classes
        assert view.server_outputs is not None
        return _distance(view.server_outputs.gather(-1, others), view.outputs.gather(-1, others), temperature)

    return Term("ntd", value, weight, ("server_outputs",), centred=True, targets=("class",))


@definition()
def distil(weight: Weight = 1.0, temperature: Temperature = 3.0) -> Term:
    """Distillation: the model keeps to the server's answers on all classes.

    T^2 KL(softmax(server's outputs / T), softmax(outputs / T)). Hinton, Vinyals, Dean, 2015.
    """

    def value(view: View) -> Tensor:
        assert view.server_outputs is not None
        return _distance(view.server_outputs, view.outputs, temperature)

    return Term("distil", value, weight, ("server_outputs",), centred=True, targets=("class",))


def _distance(server: Tensor, outputs: Tensor, temperature: float) -> Tensor:
    """T^2 KL of softmaxes [B] at a temperature."""
    theirs, mine = (logits.div(temperature).log_softmax(-1) for logits in (server, outputs))
    return temperature**2 * (theirs.exp() * (theirs - mine)).sum(-1)


@definition()
def moon(
    weight: Weight = 1.0,
    temperature: Annotated[Positive, about("temperature: cosines are divided by it")] = 0.5,
    features: Layer = "",
) -> Term:
    """Model contrast (MOON): features keep to the server's and away from those of the client's last model.

    -log e^(cos(f, f_server) / T) / (e^(cos(f, f_server) / T) + e^(cos(f, f_last) / T)).
    Li, He, Song, CVPR 2021.
    """

    def value(view: View) -> Tensor:
        assert view.features is not None
        near, far = (
            F.cosine_similarity(view.features, other, dim=-1) / temperature
            for other in (view.server_features, view.previous_features)
            if other is not None
        )
        return F.softplus(far - near)

    needs: tuple[Need, ...] = ("features", "server_features", "previous_features")
    return Term("moon", value, weight, needs, features, centred=True)


@definition()
def logit_calibration(
    tau: Annotated[
        Positive, about("strength: outputs are lowered by tau / n_c^(1/4) for n_c samples of a class")
    ] = 0.1,
) -> Term:
    """Calibrated cross-entropy in place of the loss (FedLC): the classes that a client has little of get a margin.

    Cross-entropy of outputs_c - tau n_c^(-1/4), without the classes that the client has none of. Zhang et al., ICML
    2022, as in bytedance/FedDecorr fedlogitcal.py: the sum in the denominator is over all classes there.
    """

    def value(view: View) -> Tensor:
        assert view.class_counts is not None
        margin = tau * view.class_counts.clamp(min=1) ** -0.25
        calibrated = torch.where(view.class_counts > 0, view.outputs - margin, -torch.inf)
        entropy = -calibrated.log_softmax(-1).gather(-1, view.targets[:, None])[:, 0]
        return entropy - view.losses  # in place of them: their gradient cancels exactly

    return Term("logit_calibration", value, 1.0, ("class_counts",), targets=("class",), loss="cross_entropy")


@definition()
def decorr(weight: Weight = 0.1, features: Layer = "") -> Term:
    """Decorrelated features (FedDecorr): the correlations of a batch's features are small, against their collapse.

    Mean of the squares of Z^T Z off its diagonal, over B, for Z [B, F] the features with mean 0 and variance 1 in the
    batch. Shi et al., ICLR 2023, as in bytedance/FedDecorr loss.py.
    """

    def value(view: View) -> Tensor:
        assert view.features is not None
        here = (view.weights > 0).to(view.features.dtype)[:, None]
        count, width = here.sum(), view.features.shape[-1]
        centred = (view.features - (here * view.features).sum(0) / count) * here
        variance = centred.square().sum(0) / (count - 1).clamp(min=1)
        z = centred / (variance + 1e-8).sqrt()
        products = (z.mT @ z).square()
        off = products.sum() - products.diagonal().sum()
        return off / (max(width * (width - 1), 1) * count)

    return Term("decorr", value, weight, ("features",), features, per="batch")


@definition()
def proto(weight: Weight = 1.0, features: Layer = "") -> Term:
    """Prototypes (FedProto): features keep to the mean of their class over all clients.

    Mean over the features of (f - prototype of the true class)^2; 0 for a class that no client has sent yet. Tan et
    al., AAAI 2022, eq. (7), and the mean as in its code (yuetan031/FedProto lib/update.py).
    """

    def value(view: View) -> Tensor:
        assert view.features is not None
        assert view.prototypes is not None
        assert view.has_prototype is not None
        distance = (view.features - view.prototypes[view.targets]).square().mean(-1)
        return distance * view.has_prototype[view.targets]

    return Term("proto", value, weight, ("features", "prototypes"), features, targets=("class",))


TERMS: dict[str, Callable[..., Term]] = by_name(ntd, distil, moon, logit_calibration, decorr, proto)
"""Terms of the local loss by name."""

KNOWN_AS = {
    "FedNTD": "ntd",
    "MOON": "moon",
    "FedLC": "logit_calibration",
    "FedDecorr": "decorr",
    "FedProto": "proto --local-private '*'",
}
"""What papers call FedAvg with a term, and what the option --term is given, with what goes with it."""


def terms() -> Mapping[str, Callable[..., Term]]:
    """`TERMS`, and factories of your own by import path, `package.module:factory`."""
    return Open(TERMS, "term", partial(maker, what="term", kind=Term))


class Remembered(NamedTuple):
    """A client's state beside its last model."""

    inner: Any  # the method's own
    model: Tensor  # [d] x_i at the end of its last round
    rounds: Tensor  # [1] that it took part in


class Prototyped(NamedTuple):
    """A server's state, what it broadcasts, a message or a sum of contributions, beside what is of the classes."""

    inner: Any  # the method's own
    classes: Tensor  # [C, F + 1] mean features and 1, or 0 for none; of messages and sums: sums of features and counts

    @property
    def x(self) -> Tensor:
        """The model that rounds start from [d]."""
        return model_of(self.inner)


def feature_form(objective: Objective, term: Term) -> tuple[int, ...]:
    """(C, F + 1) of what a term's prototypes are, classes and features; (0, 0) of one that asks for none.

    Raises:
        UserError: there is no model, or the term does not fit it.
    """
    whole = objective.private.both if isinstance(objective.private, Parts) else objective
    if "prototypes" not in term.needs:
        return 0, 0
    if whole.under is None:
        raise UserError(f"term {term.name} is of a model's features, and this problem has no model; leave it out")
    sums = whole.under(Conditions(term=term)).feature_sums
    assert sums is not None
    x = torch.empty(0, whole.dim, dtype=whole.dtype, device=whole.device)
    return tuple(sums(x, np.empty(0, np.int64)).shape[1:])


@definition()
def with_term(algorithm: Algorithm, term: Term, form: tuple[int, ...] = (0, 0)) -> Algorithm:
    """The same method whose clients have this term in their loss.

    Where it asks for prototypes, each client sends the sum and the number of its features by class at the end of its
    local steps, and the server the means of these sums over the cohort; a class that nobody there has keeps its own.

    Args:
        form: of `feature_form`.

    Raises:
        UserError: it has one; or the term asks for prototypes, and there is no form or the server sums no messages.
    """
    if algorithm.step.term is not None:
        raise UserError(f"the method has the term {algorithm.step.term.name} in its loss; leave local.term out")
    if "prototypes" in term.needs:
        algorithm = _with_prototypes(algorithm, term, form)
    if not term.looks_at("previous"):
        return replace(algorithm, step=algorithm.step._replace(term=term))

    def finish(down: Tree, row: Tree, end: Done, client: Client) -> tuple[Tree, Tree]:
        up, new = lifted.finish(down, row, end, client)
        return up, new._replace(model=end.x.clone(), rounds=row.rounds + 1)

    def previous(row: Remembered, x: Tensor) -> Tensor:
        return torch.where(row.rounds > 0, row.model, x)

    lifted = lift(algorithm, row=lambda row, x: Remembered(row, x.new_zeros(len(x)), x.new_zeros(1)))
    return replace(lifted, finish=finish, step=lifted.step._replace(term=term, previous=previous))


def _with_prototypes(algorithm: Algorithm, term: Term, form: tuple[int, ...]) -> Algorithm:
    """The same method, with prototypes beside its messages."""
    if 0 in form:
        raise UserError(
            f"term {term.name} is of prototypes, and with_term was told no form; give it feature_form(objective, term)"
        )
    if algorithm.phases.combine is not None:
        raise UserError(
            f"term {term.name} is of sums over clients, and the method's server looks at messages one by one; use "
            "another method, or leave local.term out"
        )

    def finish(down: Tree, row: Tree, end: Done, client: Client) -> tuple[Prototyped, Tree]:
        up, new = lifted.finish(down, row, end, client)
        sums = end.x.new_zeros(*end.x.shape[:-1], *form) if end.features is None else end.features
        return Prototyped(up, sums), new

    def contribute(up: Prototyped, sender: Sender, cohort: Cohort) -> Prototyped:
        return Prototyped(algorithm.contribute(up.inner, sender, cohort), up.classes)

    def update(server: Prototyped, total: Prototyped, cohort: Cohort) -> Prototyped:
        new: Prototyped = lifted.update(server, total.inner, cohort)
        count = total.classes[:, -1:]
        return new._replace(classes=torch.where(count > 0, total.classes / count.clamp(min=1), server.classes))

    lifted = lift(
        algorithm,
        server=lambda state, x: Prototyped(state, x.new_zeros(form)),
        down=lambda inner, server: Prototyped(inner, server.classes),
    )
    return replace(
        lifted,
        finish=finish,
        contribute=contribute,
        update=update,
        step=lifted.step._replace(prototypes=lambda down: down.classes),
        facts=lifted.facts._replace(invariant=lifted.facts.invariant or "prototypes that are sums over counts"),
    )
