"""What an implementation under judgement is told: a small federated problem and everything that is decided by chance.

A spec is plain data (JSON), so that any language can read it. In it every client has its f_i in full and each round its
cohort, each client's number of local steps and the step size; gradients are of the whole f_i, in float64. So no
randomness is left, and two implementations of one method must agree to rounding:

    quadratic   f_i(x) = 1/2 x'A_i x - b_i'x,                       gradient A_i x - b_i
    logistic    f_i(x) = mean_j log(1 + exp(a_j'x)) - y_j a_j'x + l2/2 ||x||^2,
                gradient mean_j (s(a_j'x) - y_j) a_j + l2 x with s(z) = 1 / (1 + exp(-z))
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from fedconcord.federation.objectives import Quadratic
from fedconcord.federation.objectives.linear import Convex
from fedconcord.federation.objectives.optimum import optimum
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Evaluator, Objective, Problem, Roster
from fedconcord.method.contract import rng as keyed
from fedconcord.method.contract import weights as weighing
from fedconcord.method.wrappers.optimisers import OPTIMISERS, LocalOptimiser, with_optimiser
from fedconcord.method.wrappers.robust import AGGREGATES, Rule, with_aggregate
from fedconcord.support import factories, files, grammar
from fedconcord.support.errors import UserError, reason

FORMAT = "fedconcord referee 1"
Kind = Literal["quadratic", "logistic"]
KINDS: tuple[Kind, ...] = ("quadratic", "logistic")
CLIENTS, COHORT, ROUNDS, DIM = 8, 3, 12, 5
LR, DECAY, MOST_STEPS, L2, SEED = 0.1, 0.998, 5, 0.05, 37
VISIBLE: dict[
    str, dict[str, Any]
] = {  # parameters in place of defaults: the paper's own form, and where it can be seen
    "fedprox": {"mu": 0.5},
    "feddyn": {"alpha": 0.5},
    "fedspeed": {"alpha": 0.5},
    "fedsmoo": {"alpha": 0.5},
    "fedadmm": {"form": "paper", "server_lr": "participation", "rho": 0.3},
    "fedadmm_inexact": {"rho": 0.3},
    "afedpd": {"rho": 0.5},
    "afedpdsam": {"rho": 0.5},
    "fedvra": {"gamma": 0.3, "a": 1.0, "d": 2.0},
    "fedpd": {"eta": 1.5},
    "losac": {"blocks": 1},
    "fedsaga": {"blocks": 1},
    "mimesvrg": {},
    "fedexp": {"eps": 1e-3},
}


def as_method(factory: Callable[..., Rule]) -> Callable[..., Algorithm]:
    """A factory of a robust rule as one of a method: FedAvg with the rule in place of its mean."""

    @functools.wraps(factory)
    def build(*values: Any, **parameters: Any) -> Algorithm:
        return with_aggregate(METHODS["fedavg"](), factory(*values, **parameters))

    return build


RULES = {name: as_method(factory) for name, factory in AGGREGATES.items() if name != "mean"}


def as_steps(factory: Callable[..., LocalOptimiser]) -> Callable[..., Algorithm]:
    """A factory of a local optimiser as one of a method: FedAvg whose clients step by it."""

    @functools.wraps(factory)
    def build(*values: Any, **parameters: Any) -> Algorithm:
        return with_optimiser(METHODS["fedavg"](), factory(*values, **parameters))

    return build


STEPS = {name: as_steps(factory) for name, factory in OPTIMISERS.items() if name != "muon"}  # which needs matrices
JUDGED = METHODS | RULES | STEPS
"""What may be judged: name -> factory."""


class ClientData(NamedTuple):
    """f_i of one client, and what weights by size go by."""

    size: float
    A: np.ndarray  # quadratic: [d, d] symmetric; logistic: [n, d] rows, the last entry of each the constant 1
    b: np.ndarray  # quadratic: [d]; logistic: [n] labels, 0 or 1


class Round(NamedTuple):
    """What is decided for one round."""

    clients: tuple[int, ...]  # [S] who takes part, rising
    steps: tuple[int, ...]  # [S] local steps of each, in the order of `clients`
    lr: float  # local step size
    coin: float  # uniform on [0, 1), for methods that toss one


class Spec(NamedTuple):
    """A problem, a schedule and a method's parameters."""

    method: str
    parameters: dict[str, Any]  # all that the method has, defaults included
    kind: Kind
    data: tuple[ClientData, ...]  # of each client
    x0: np.ndarray  # [d]
    rounds: tuple[Round, ...]
    l2: float = 0.0  # logistic: weight of l2/2 ||x||^2 in each f_i
    momentum: float = 0.0  # heavy ball of the local steps, anew in each round

    @property
    def sizes(self) -> np.ndarray:
        """[N] what weights by size go by."""
        return np.array([one.size for one in self.data])

    @property
    def algorithm(self) -> Algorithm:
        """Our reference of the method."""
        algorithm: Algorithm = JUDGED[self.method](**self.parameters)
        return algorithm

    @property
    def p(self) -> np.ndarray:
        """[N] weight of each client in the objective, sum 1."""
        return weighing.objective(self.algorithm.weights, self.sizes)


class From(NamedTuple):
    """A problem that starts where the spec says."""

    objective: Objective
    roster: Roster
    evaluator: Evaluator
    x0: torch.Tensor  # [d]

    def init(self, seed: int) -> torch.Tensor:
        """x^0, for every seed."""
        return self.x0.clone()


def problem_of(spec: Spec) -> Problem:
    """The spec's clients as the library's problem, in float64."""
    x0 = torch.as_tensor(spec.x0)
    if spec.kind == "quadratic":
        H, b = (torch.as_tensor(np.stack([getattr(one, name) for one in spec.data]))[:, None] for name in ("A", "b"))
        return Quadratic(H, b, spec.sizes, x0)
    rows, labels = [one.A[:, :-1] for one in spec.data], [one.b for one in spec.data]
    inner = Convex("logistic", rows, labels, l2=spec.l2, sizes=spec.sizes)
    return From(inner.objective, inner.roster, inner, x0)


def minimiser(spec: Spec) -> np.ndarray:
    """[d] of sum_i p_i f_i."""
    return optimum(problem_of(spec), spec.p).x.numpy()


def make(method: str, kind: Kind = "quadratic", rounds: int = ROUNDS, momentum: float = 0.0) -> Spec:
    """The referee's problem of a kind, with the schedule that a method can be judged on.

    Clients are unequal in f_i, size and work; the step size decays by 0.998 a round, so that a method that takes
    another round's is seen. Methods that need all clients get all of them in each round, robust rules 7 and 6 by turns.

    Args:
        method: a name or a call such as `scaffold(option=1)`.

    Raises:
        UserError: no such method or parameter, or one whose rounds are random.
    """
    call = factories.check(JUDGED, "method", method)
    parameters = {**call.resolved(), **VISIBLE.get(call.name, {}), **call.given}
    algorithm = JUDGED[call.name](**parameters)
    if call.name == "fedpaq":
        raise UserError("fedpaq rounds at random, so that no two programs agree; judge fedavg, which it quantises")
    if call.name in ("fedsaga", "losac") and parameters["blocks"] != 1:
        raise UserError(f"{call.name} draws blocks at random; the referee gives full gradients, so set blocks=1")
    if algorithm.client_model is not None:
        raise UserError(f"{call.name} answers with a model a client, which the referee does not compare; judge another")
    draw = keyed.generator(SEED, keyed.Purpose.DATA)
    data = tuple(_quadratic(draw) if kind == "quadratic" else _logistic(draw) for _ in range(CLIENTS))
    x0 = draw.standard_normal(DIM)
    cohort = CLIENTS if algorithm.needs.everyone else COHORT
    schedule = []
    for t in range(rounds):
        if call.name in RULES:  # which even and odd numbers tell apart
            cohort = CLIENTS - 1 - t % 2
        ids = np.sort(draw.choice(CLIENTS, cohort, replace=False))
        steps = draw.integers(1, MOST_STEPS + 1, cohort)
        if algorithm.step.steps is not None:
            steps[:] = algorithm.step.steps
        lr = LR * (DECAY**t if rounds <= 10 * ROUNDS else 1.0)
        schedule.append(Round(tuple(map(int, ids)), tuple(map(int, steps)), lr, float(draw.random())))
    l2 = L2 if kind == "logistic" else 0.0
    return Spec(call.name, parameters, kind, data, x0, tuple(schedule), l2, momentum)


def _quadratic(draw: np.random.Generator) -> ClientData:
    basis, _ = np.linalg.qr(draw.standard_normal((DIM, DIM)))
    A = (basis * 10.0 ** -draw.random(DIM)) @ basis.T
    A = (A + A.T) / 2
    return ClientData(float(draw.integers(50, 500)), A, A @ draw.standard_normal(DIM))


def _logistic(draw: np.random.Generator) -> ClientData:
    count = int(draw.integers(6, 20))
    rows = np.column_stack([draw.standard_normal((count, DIM - 1)) + draw.standard_normal(DIM - 1), np.ones(count)])
    return ClientData(float(count), rows, (draw.random(count) < draw.random()).astype(float))


def plain(spec: Spec) -> dict[str, Any]:
    """The spec as JSON has it: what every adapter hands on."""
    names = ("A", "b") if spec.kind == "quadratic" else ("rows", "labels")
    clients = [
        {"size": one.size, "p": float(p), names[0]: one.A.tolist(), names[1]: one.b.tolist()}
        for one, p in zip(spec.data, spec.p, strict=True)
    ]
    return {
        "format": FORMAT,
        "method": spec.method,
        "parameters": spec.parameters,
        "kind": spec.kind,
        "l2": spec.l2,
        "local_momentum": spec.momentum,
        "x0": spec.x0.tolist(),
        "clients": clients,
        "rounds": [{**one._asdict(), "clients": [*one.clients], "steps": [*one.steps]} for one in spec.rounds],
    }


def write(spec: Spec, path: Path) -> None:
    """The spec as a file.

    Raises:
        UserError: it cannot be written there.
    """
    try:
        files.write_text(path, json.dumps(plain(spec), indent=1) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}; give a file in a folder that is there") from error


def read(path: Path) -> Spec:
    """A spec that `write` wrote, perhaps with other numbers.

    Raises:
        UserError: it is no spec.
    """
    try:
        raw = json.loads(path.read_text())
        if raw["format"] != FORMAT:
            raise UserError(f"{path} has the format {raw['format']!r} and this version reads {FORMAT!r}; write it anew")
        names = ("A", "b") if raw["kind"] == "quadratic" else ("rows", "labels")
        data = tuple(
            ClientData(float(one["size"]), *(np.asarray(one[name], np.float64) for name in names))
            for one in raw["clients"]
        )
        rounds = tuple(
            Round(tuple(map(int, one["clients"])), tuple(map(int, one["steps"])), float(one["lr"]), float(one["coin"]))
            for one in raw["rounds"]
        )
        call = factories.check(JUDGED, "method", grammar.Spec(raw["method"], (), raw["parameters"]))
        x0 = np.asarray(raw["x0"], np.float64)
        return Spec(call.name, dict(call.given), raw["kind"], data, x0, rounds, raw["l2"], raw["local_momentum"])
    except UserError:
        raise
    except KeyError as error:
        raise UserError(f"{path} is no spec of the referee: it lacks {error}; write one with --write-spec") from error
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no spec of the referee: {reason(error)}; write one with --write-spec") from error


def as_asked(spec: Spec, method: str, path: str) -> Spec:
    """A spec that was read, where it is of the method that is asked for.

    Raises:
        UserError: it is of another one, or of another parameter.
    """
    call = factories.check(JUDGED, "method", method)
    other = (
        {key: value for key, value in call.given.items() if spec.parameters[key] != value}
        if call.name == spec.method
        else {}
    )
    if call.name != spec.method or other:
        raise UserError(f"{path} is a spec of {spec.method} with other parameters than {method}; write one for it")
    return spec
