"""Known variants and mistakes of local optimisers, which are judged as FedAvg whose clients step by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract.pieces import At, Place, Traits
from fedconcord.method.wrappers.optimisers import LocalOptimiser, with_optimiser
from fedconcord_referee.known import Known
from fedconcord_referee.reference import Setting


class Stepped(NamedTuple):
    """Two moments, and what a rule makes of them."""

    m: Tensor  # [S, d]
    v: Tensor  # [S, d]
    t: Tensor  # [S, 1] steps so far
    parameters: Any
    rule: Callable[[Stepped, Tensor, Tensor], Tensor]  # (moments, direction [S, d], x [S, d]) -> [S, d]

    @property
    def traits(self) -> Traits:
        return Traits(Place.TRANSFORM, ("m", "v", "t"))

    def apply(self, d: Tensor, at: At) -> Tensor:
        self.t.add_(1)
        return d.copy_(self.rule(self, d.clone(), at.x))

    def wide(self, e: int) -> Stepped:
        raise NotImplementedError("no model here has a private part")


def _known(
    name: str,
    says: str,
    rule: Callable[[Stepped, Tensor, Tensor], Tensor],
    kind: Literal["variant", "mistake"] = "mistake",
) -> Known:
    def change(setting: Setting) -> Setting:
        def pieces(x: Tensor, matrices: Any) -> tuple[Stepped, ...]:
            zeros = x.new_zeros(x.shape[-1])
            return (Stepped(zeros, zeros.clone(), x.new_zeros(1), setting.spec.parameters, rule),)

        return setting._replace(algorithm=with_optimiser(METHODS["fedavg"](), LocalOptimiser(pieces, 1.0)))

    return Known(name, kind, says, change)


def _adam(
    direction: Callable[[Tensor, Tensor, float], Tensor] = lambda d, x, decay: d,
    decay: float = 1.0,
    unbiased: tuple[bool, bool] = (True, True),
    root: Callable[[Tensor, float], Tensor] = lambda v, eps: v.sqrt() + eps,
) -> Callable[[Stepped, Tensor, Tensor], Tensor]:
    """AdamW with some of it changed: what moments are of, times of the decay, which moments are corrected, the root."""

    def rule(one: Stepped, d: Tensor, x: Tensor) -> Tensor:
        p = one.parameters
        d = direction(d, x, p["decay"])
        one.m.lerp_(d, 1 - p["beta1"])
        one.v.mul_(p["beta2"]).addcmul_(d, d, value=1 - p["beta2"])
        m = one.m / (1 - p["beta1"] ** one.t) if unbiased[0] else one.m
        v = one.v / (1 - p["beta2"] ** one.t) if unbiased[1] else one.v
        step: Tensor = m / root(v, p["eps"]) + decay * p["decay"] * x
        return step

    return rule


def _lion(one: Stepped, d: Tensor, x: Tensor) -> Tensor:
    """Lion that steps by the momentum after its update."""
    p = one.parameters
    one.m.lerp_(d, 1 - p["beta2"])
    step: Tensor = one.m.sign() + p["decay"] * x
    return step


def _exchanged(one: Stepped, d: Tensor, x: Tensor) -> Tensor:
    """Lion with beta1 and beta2 exchanged."""
    p = one.parameters
    step: Tensor = torch.lerp(one.m, d, 1 - p["beta2"]).sign() + p["decay"] * x
    one.m.lerp_(d, 1 - p["beta1"])
    return step


def _short(one: Stepped) -> Callable[[Stepped, Tensor, Tensor], Tensor]:
    """AdamW with eps beside the root of v, where it stands beside the root of the corrected v."""
    second = 1 - one.parameters["beta2"] ** one.t
    return _adam(root=lambda v, eps: v.sqrt() + eps / second.sqrt())


OPTIMISED: dict[str, tuple[Known, ...]] = {
    "adamw": (
        _known(
            "decay in the gradient",
            "adds the weight decay to the gradient, as Adam does, where AdamW decays beside it",
            _adam(lambda d, x, decay: d + decay * x, 0.0),
            "variant",
        ),
        _known("no decay", "leaves the weight decay out", _adam(decay=0.0)),
        _known("no bias correction", "does not correct the moments' bias", _adam(unbiased=(False, False))),
        _known(
            "first moment's bias left", "corrects the bias of the second moment alone", _adam(unbiased=(False, True))
        ),
        _known(
            "second moment's bias left", "corrects the bias of the first moment alone", _adam(unbiased=(True, False))
        ),
        _known("eps in the root", "adds eps inside the root", _adam(root=lambda v, eps: (v + eps).sqrt()), "variant"),
        _known(
            "eps before the correction",
            "adds eps to the root of the moment that is not corrected yet, as Kingma and Ba's shorter form",
            lambda one, d, x: _short(one)(one, d, x),
            "variant",
        ),
    ),
    "lion": (
        _known("momentum before the sign", "steps by the sign of the momentum after its update", _lion),
        _known("betas exchanged", "takes beta1 for beta2 and beta2 for beta1", _exchanged),
    ),
}
