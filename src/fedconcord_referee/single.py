"""Known variants and mistakes of single methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Constant, Local, Pull, tree_map
from fedconcord.method.wrappers.server import Optimizer, adam, extrapolation, momentum, nesterov, with_server
from fedconcord_referee.known import Change, Known, mistake, shaped
from fedconcord_referee.memories import finished, served
from fedconcord_referee.reference import Setting
from fedconcord_referee.variants import with_parameters

# -- FedNova -----------------------------------------------------------------------------------------------------------


def totalled(change: Callable[[Any], Any]) -> Change:
    """A change of the sum that the server takes."""

    def changed(algorithm: Algorithm, setting: Setting) -> Algorithm:
        return replace(algorithm, update=lambda server, total, cohort: algorithm.update(server, change(total), cohort))

    return shaped(changed)


def _harmonic(algorithm: Algorithm, setting: Setting) -> Algorithm:
    def contribute(up: Any, sender: Any, cohort: Any) -> Any:
        sums, w = algorithm.contribute(up, sender, cohort)
        return sums._replace(a=sender.w / up.a), w

    def update(server: Any, total: Any, cohort: Any) -> Any:
        return algorithm.update(server, (total[0]._replace(a=1 / total[0].a), total[1]), cohort)

    return replace(algorithm, contribute=contribute, update=update)


def _models(algorithm: Algorithm, setting: Setting) -> Algorithm:
    def finish(down: Any, row: Any, result: Any, client: Any) -> Any:
        up, after = algorithm.finish(down, row, result, client)
        return up._replace(move=result.x), after

    def update(server: Any, total: Any, cohort: Any) -> Any:
        return algorithm.update(server._replace(x=torch.zeros_like(server.x)), total, cohort)

    return replace(algorithm, finish=finish, update=update)


def _one(total: Any) -> Any:
    sums, w = total
    return sums._replace(a=torch.ones_like(sums.a), tau=torch.ones_like(sums.tau)), w


NOVA = (
    mistake(
        "harmonic tau_eff",
        "takes 1 / (sum_i w_i / ||a_i||_1) for the effective number of steps, where the paper has sum_i w_i ||a_i||_1",
        shaped(_harmonic),
    ),
    mistake(
        "tau_eff left out", "averages normalised moves and leaves the effective number of steps out", totalled(_one)
    ),
    mistake("normalised models", "normalises clients' models, where the paper normalises moves", shaped(_models)),
)

# -- server optimisers -------------------------------------------------------------------------------------------------


def optimised(optimiser: Callable[[Any], Optimizer]) -> Change:
    """FedAvg with a server optimiser that is made of the spec's parameters."""

    def changed(setting: Setting) -> Setting:
        algorithm = METHODS["fedavg"](weights=setting.spec.parameters["weights"])
        return setting._replace(algorithm=with_server(algorithm, optimiser(setting.spec.parameters)))

    return changed


def stretched(stretch: Callable[[Tensor, Tensor, float], Tensor]) -> Change:
    """FedExP with another factor of (||mean move||^2, mean of squared lengths, eps)."""

    def optimiser(parameters: Any) -> Optimizer:
        eps = parameters["eps"]
        return extrapolation(eps)._replace(stretch=lambda move, square: stretch(move.square().sum(), square, eps))

    return optimised(optimiser)


def _lengths(algorithm: Algorithm, setting: Setting) -> Algorithm:
    def finish(down: Any, row: Any, result: Any, client: Any) -> Any:
        up, after = algorithm.finish(down, row, result, client)
        return up._replace(square=result.x.square().sum(-1, keepdim=True).reshape(up.square.shape)), after

    return replace(algorithm, finish=finish)


def _over_all(algorithm: Algorithm, setting: Setting) -> Algorithm:
    def update(server: Any, total: Any, cohort: Any) -> Any:
        return algorithm.update(server, total._replace(square=total.square * cohort.size / cohort.n), cohort)

    return replace(algorithm, update=update)


EXP = (
    mistake(
        "shorter steps too",
        "shortens the server's step where clients agree, where the paper's factor is at least 1",
        stretched(lambda move, square, eps: square / (2 * (move + eps))),
    ),
    mistake(
        "the factor 2 forgotten",
        "leaves the factor 2 out of the denominator of the server's step",
        stretched(lambda move, square, eps: (square / (move + eps)).clamp(min=1.0)),
    ),
    mistake(
        "eps left out",
        "leaves eps out of the denominator of the server's step",
        stretched(lambda move, square, eps: (square / (2 * move)).clamp(min=1.0)),
    ),
    mistake("lengths over all clients", "divides squared lengths by all clients, not the cohort's", shaped(_over_all)),
    mistake("lengths of models", "measures the length of models, where the paper measures moves", shaped(_lengths)),
)
MOMENTUM = (
    Known(
        "server momentum in gradients",
        "variant",
        "keeps the server's momentum in units of gradients, where it was asked for in moves",
        optimised(lambda p: momentum(p["server_momentum"], p["server_lr"], "gradients")),
    ),
    Known(
        "Nesterov's momentum",
        "variant",
        "has Nesterov's form of the server's momentum",
        optimised(lambda p: nesterov(p["server_momentum"], p["server_lr"])),
    ),
    Known(
        "averaged momentum",
        "variant",
        "averages moves into the server's momentum by (1 - beta), where the paper adds them",
        optimised(lambda p: momentum(p["server_momentum"], p["server_lr"] * (1 - p["server_momentum"]))),
    ),
)


def _sized(late: int) -> Change:
    """FedAdam from v = 0 with the step size lr sqrt(1 - beta2^k) / (1 - beta1^k) of Kingma and Ba, k = t + late."""

    def optimiser(parameters: Any) -> Optimizer:
        lr, beta1, beta2, tau = (parameters[name] for name in ("server_lr", "beta1", "beta2", "tau"))
        base = adam(lr, beta1, beta2, tau, 0.0)

        def step(state: Any, delta: Tensor) -> tuple[Tensor, Any]:
            move, moments = base.step(state[0], delta)
            k = state[1] + 1 + late
            return move * (1 - beta2**k).sqrt() / (1 - beta1**k), (moments, state[1] + 1)

        return Optimizer(lambda x: (base.init(x), x.new_zeros(())), step)

    return optimised(optimiser)


def _moments(name: str, says: str, **parameters: Any) -> Known:
    return Known(name, "variant", says, lambda setting: with_parameters(setting, **parameters))


def _twice(setting: Setting) -> Setting | None:
    lr = setting.spec.parameters["server_lr"]
    return totalled(lambda total: tree_map(lambda leaf: lr * leaf, total))(setting)


TWICE = mistake(
    "the server's step size twice",
    "multiplies the mean move by the server's step size before the moments see it, and again after",
    _twice,
)
MOMENTS = (
    _moments("second moment from zero", "starts the second moment at 0, where the paper starts at tau^2", v0=0.0),
    _moments("no first moment", "has no first moment (beta1 = 0)", beta1=0.0),
    _moments(
        "no first moment, second from zero", "has no first moment and starts the second one at 0", beta1=0.0, v0=0.0
    ),
)
ADAM = (
    *MOMENTS,
    _moments(
        "bias corrected from zero",
        "starts the second moment at 0 and corrects the moments' bias, where the paper starts at tau^2 and does not",
        v0=0.0,
        bias_correction=True,
    ),
    Known(
        "Adam's step size from zero",
        "variant",
        "starts the second moment at 0 and corrects the bias in the step size, as Kingma and Ba do",
        _sized(0),
    ),
    mistake(
        "Adam's step size, a round late",
        "starts the second moment at 0 and corrects the bias by the next round's powers, so that its first step is "
        "corrected as if it were the second",
        _sized(1),
    ),
)

# -- A-FedPD and what is made of it ------------------------------------------------------------------------------------


class Table(NamedTuple):
    """A-FedPD as its paper writes it: the server holds all duals."""

    x: Tensor  # [d] theta
    mean: Tensor  # [d]
    duals: Tensor  # [N, d]


def _assigned(setting: Setting) -> Setting:
    """A-FedPD whose absent clients' duals become rho (mean - theta), where the paper adds that."""
    rho, n = setting.spec.parameters["rho"], len(setting.spec.data)

    def contribute(move: Tensor, sender: Any, cohort: Any) -> Table:
        here = one_hot(sender.id.reshape(-1), n).to(move)  # [S, N]
        return Table(sender.w * move, here, here[..., None] * move[:, None])

    def update(server: Any, total: Table, cohort: Any) -> Table:
        mean, is_active = server.x + total.x, total.mean[:, None] > 0
        duals = torch.where(is_active, server.duals + rho * total.duals, rho * total.x)
        return Table(mean + duals.mean(0) / rho, mean, duals)

    algorithm = replace(
        setting.algorithm,
        init=lambda x, population: Table(x, x, x.new_zeros(n, len(x))),
        init_client=lambda x: (),
        start=lambda down, row, one: Local(down.x, Constant(down.duals[one.id.reshape(-1)]), Pull(rho, down.x)),
        finish=lambda down, row, result, client: (result.x - down.x, row),
        contribute=contribute,
        update=update,
        phases=setting.algorithm.phases._replace(settle=None),
    )
    return setting._replace(algorithm=algorithm)


DUALS = (mistake("absent duals assigned", "assigns absent clients' duals, where the paper adds", _assigned),)
AUTO = (
    mistake(
        "absent duals stay",
        "leaves absent clients' duals as they were",
        served(lambda server, after: after._replace(dual=server.dual, x=after.mean)),
    ),
    mistake(
        "duals in units of models",
        "adds to duals without the factor of the penalty",
        finished(lambda up, after, row, down: (up, after._replace(dual=row.dual + up.move))),
    ),
)

# -- FedDyn ------------------------------------------------------------------------------------------------------------


def _once(setting: Setting) -> Setting | None:
    share = (len(setting.spec.rounds[0].clients) - 1) / len(setting.spec.data)
    dual = served(lambda server, after: after._replace(h=after.h + share * server.x, x=after.x + share * server.x))
    return dual(setting)


DYN = (
    mistake(
        "the server's model subtracted once",
        "subtracts the server's model once from the sum of the cohort's models, where the paper subtracts it from each",
        _once,
    ),
)

SINGLE: dict[str, tuple[Known, ...]] = {
    "fednova": NOVA,
    "fednova_vr": NOVA,
    "fedexp": EXP,
    "fedavgm": MOMENTUM,
    "fedadam": (*ADAM, TWICE),  # after what builds the method anew, for pairs
    "fedyogi": (*MOMENTS, TWICE),
    "fedadagrad": (*MOMENTS, TWICE),
    "afedpd": DUALS,
    "feddyn": DYN,
    "auto": AUTO,
}
