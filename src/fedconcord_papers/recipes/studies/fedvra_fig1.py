"""FedVRA, Fig. 1: members of its family beside the methods that they are, as curves and as the greatest distance.

Wang et al., AAAI 2023, section 3, eqs. (20)-(24). Everything in float64 on quadratics of unequal curvature and weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedconcord.execution.engines import Stacked
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.objectives import Quadratic, quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import Work, fixed, uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.algorithms.family import as_fedvra
from fedconcord.method.contract import Algorithm
from fedconcord.study.statistics.load import Array
from fedconcord_papers.recipes.claims import holds_where
from fedconcord_papers.recipes.recipe import SizeName
from fedconcord_papers.recipes.tools import line, panels, table
from fedconcord_papers.recipes.values import Value, Values

APART, VARIATE = "greatest distance", "distance of the control variates"
LEFT = "distance to the optimum at the end, of that at the start"
DIRECTION = "distance of the local directions"
EXACT = ("FedAvg", "FedProx", "FedNova", "FedDyn")
CONTROLS = ("FedProx, half the penalty", "FedDyn, half the penalty")
RIVALS = ("SCAFFOLD", "VRL-SGD")
LIMITS = tuple(f"Algorithm 1 as {name}" for name in RIVALS)
GAMMAS = (1e-1, 1e-2, 1e-3)  # of eq. (24)
CELL = "quadratics"
N, COHORT, LR, STEPS, DIM, SEED = 20, 5, 0.1, 5, 6, 3
FAR = 1e12  # a model beyond it has diverged


class Pair(NamedTuple):
    """A method and the member of FedVRA's family that is said to be it."""

    name: str
    method: Algorithm
    member: Algorithm
    work: Work
    cohort: int = COHORT


class Found(NamedTuple):
    """A pair run side by side."""

    pair: Pair
    method: Array  # [R + 1] distance to the optimum
    member: Array  # [R' + 1] up to where it diverged
    apart: float  # max_t ||x^t - y^t|| / max_t ||x^t||; NaN if the member diverged


def towards_scaffold(gamma: float) -> Algorithm:
    """Section 3's parameters for SCAFFOLD and VRL-SGD: a = 1 / (gamma eta Q), d = 1, gamma small."""
    return METHODS["fedvra"](gamma=gamma, a=1 / (gamma * LR * STEPS), d=1.0)


def pairs() -> list[Pair]:
    """All that are run."""

    def member(name: Any, penalty: float = 0.1, weights: Any = "size") -> Algorithm:
        return METHODS["fedvra"](**as_fedvra(name, N, COHORT, penalty, weights)._asdict())

    prox = METHODS["fedprox"](mu=0.7, weights="unbiased")
    dyn, draw, equal = METHODS["feddyn"](alpha=0.5), uniform(2, 8), fixed(STEPS)
    return [
        Pair("FedAvg", METHODS["fedavg"](weights="unbiased"), member("fedavg"), draw),
        Pair("FedProx", prox, member("fedprox", 0.7), draw),
        Pair("FedNova", METHODS["fednova"](weights="size"), member("fednova"), draw),
        Pair("FedDyn", dyn, member("feddyn", 0.5, "uniform"), draw),
        Pair(CONTROLS[0], prox, member("fedprox", 0.35), draw),
        Pair(CONTROLS[1], dyn, member("feddyn", 0.25, "uniform"), draw),
        Pair(LIMITS[0], METHODS["scaffold"](), towards_scaffold(GAMMAS[1]), equal),
        Pair(LIMITS[1], METHODS["vrlsgd"](), towards_scaffold(GAMMAS[1]), equal, N),
    ]


def problem() -> Quadratic:
    """20 clients of very unequal sizes, three samples a client at least."""
    return quadratics(SEED, N, torch.float64, torch.device("cpu"), dim=DIM, blocks=3, condition=4.0)


def path(algorithm: Algorithm, pair: Pair, rounds: int) -> torch.Tensor:
    """[R + 1, d] the server's model after every round, until it is beyond `FAR`."""
    schedule = Schedule(seed=SEED, cohort=pair.cohort, lr=LR, work=pair.work, unit="steps", batch_size=1)
    job = Job(problem(), algorithm, schedule, engine=Stacked(None))
    state = start(job)
    models = [state.server.x]
    for _ in range(rounds):
        state = advance(job, state)
        if not float(state.server.x.norm()) < FAR:
            break
        models.append(state.server.x)
    return torch.stack(models)


def compared(pair: Pair, rounds: int) -> Found:
    """Both of a pair, with the same clients, steps and samples."""
    best = problem()
    one, other = path(pair.method, pair, rounds), path(pair.member, pair, rounds)
    apart = math.nan
    if len(one) == len(other):
        apart = float((one - other).norm(dim=-1).max() / one.norm(dim=-1).max())
    method, member = (np.array([best.evaluate(x)["distance"] for x in models], np.float64) for models in (one, other))
    return Found(pair, method, member, apart)


class Apart(NamedTuple):
    """How far FedVRA with a small gamma is from SCAFFOLD after one round."""

    variate: float  # ||lambda - c|| / ||c||, eq. (24): means over the clients' duals and control variates
    direction: float  # max_i of ||d_i - s_i||, over the largest ||c_i||, eq. (23)


def apart_after_a_round(gamma: float) -> Apart:
    """Both methods after the same round: their means of control variates, and the directions of their next local steps.

    FedVRA's direction at x is d_i = g_i(x) - lambda_i + gamma (x - x_0), SCAFFOLD's s_i = g_i(x) - c_i + c. Both are
    taken at x_0 + beta lambda, the average that FedVRA's server re-centres: g_i(x) is no part of the difference.
    """
    schedule = Schedule(seed=SEED, cohort=COHORT, lr=LR, work=fixed(STEPS), unit="steps", batch_size=1)
    states = []
    for algorithm in (towards_scaffold(gamma), METHODS["scaffold"]()):
        job = Job(problem(), algorithm, schedule, engine=Stacked(None))
        states.append(advance(job, start(job)))
    ours, theirs = states
    dual, c = gamma * ours.server.dual, theirs.server.c  # the server of FedVRA keeps beta lambda, beta = 1 / gamma
    dual_i, c_i = ours.store.export()["dual"], theirs.store.export()["c"]  # [S, d] of the round's clients
    directions = (dual - dual_i) - (c - c_i)
    furthest = directions.norm(dim=-1).max() / c_i.norm(dim=-1).max()
    return Apart(float((dual - c).norm() / c.norm()), float(furthest))


def run(out: Path, size: SizeName, options: Mapping[str, Any], say: Callable[[str], None]) -> Values:
    """Both curves of every pair, their greatest distance and, for SCAFFOLD, the control variates."""
    found = [compared(pair, int(options["rounds"])) for pair in pairs()]
    with panels(
        out, "fedvra_fig1", ["Exact: lines are the methods, crosses FedVRA", f"Said to be near: gamma {GAMMAS[1]:g}"]
    ) as axes:
        for k, one in enumerate(found):
            if one.pair.name in CONTROLS:
                continue
            ax = axes[one.pair.name in LIMITS]
            line(ax, k, np.arange(len(one.method), dtype=np.float64), one.method, one.pair.name)
            rounds = np.arange(0, len(one.member), max(1, len(one.member) // 12))
            ax.plot(rounds, one.member[rounds], "x", color="black", markersize=5, zorder=4)
        for ax in axes:
            ax.set(yscale="log", xlabel="round", ylabel="distance to the optimum")
        axes[1].set_ylim(top=1e3)
    rows = [Value(APART, CELL, one.pair.name, SEED, one.apart) for one in found]
    ends = {one.pair.name: float(one.method[-1] / one.method[0]) for one in found}
    rows += [Value(LEFT, CELL, name, SEED, ends[member]) for name, member in zip(RIVALS, LIMITS, strict=True)]
    for gamma in GAMMAS:
        pair = apart_after_a_round(gamma)
        rows += [
            Value(measure, CELL, f"SCAFFOLD, gamma {gamma:g}", SEED, value)
            for measure, value in ((VARIATE, pair.variate), (DIRECTION, pair.direction))
        ]
    for row in rows:
        say(f"{row.entry}: {row.measure} " + ("none, it diverges" if math.isnan(row.value) else f"{row.value:.1e}"))
    table(out, "fedvra_fig1", [row._asdict() for row in rows])
    return Values(tuple(rows))


def resolve(size: SizeName, options: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """A row a pair, for a dry run."""
    samples = int(problem().offsets[-1])
    return [
        {
            "job": pair.name,
            "clients": N,
            "a round": pair.cohort,
            "parameters": DIM,
            "samples": samples,
            "local work": f"{STEPS} steps" if pair.name in LIMITS else "2 to 8 steps",
            "rounds": options["rounds"],
        }
        for pair in pairs()
    ]


# -- of its claims ---------------------------------------------------------------------------------------------------


def below(table: Values, measure: str, entries: Sequence[str], bound: float) -> list[tuple[str, bool | None]]:
    """Whether each value is at most the bound; what diverged is not."""
    return [_said(table, measure, entry, lambda v: v <= bound) for entry in entries]


def above(table: Values, measure: str, entries: Sequence[str], bound: float) -> list[tuple[str, bool | None]]:
    """Whether each value is greater than the bound."""
    return [_said(table, measure, entry, lambda v: v > bound) for entry in entries]


def falling(table: Values, measure: str) -> list[tuple[str, bool | None]]:
    """Whether a distance from SCAFFOLD falls at least fivefold with each tenth of gamma."""
    values = [next(iter(table.seeds(measure, CELL, f"SCAFFOLD, gamma {g:g}").values()), None) for g in GAMMAS]
    return [
        (f"{b:.1e} at gamma {g:g} after {a:.1e}", b <= a / 5) if a is not None and b is not None else ("", None)
        for a, b, g in zip(values, values[1:], GAMMAS[1:], strict=False)
    ]


def _said(table: Values, measure: str, entry: str, test: Callable[[float], bool]) -> tuple[str, bool | None]:
    values = list(table.seeds(measure, CELL, entry).values())
    if not values:
        return entry, None
    text = ", ".join("diverges" if math.isnan(v) else f"{v:.1e}" for v in values)
    return f"{entry} {text}", all(map(test, values))


CLAIMS = (
    holds_where(
        "FedAvg, FedProx and FedNova are members exactly: the curves lie on each other to rounding",
        lambda table: below(table, APART, EXACT[:3], 1e-12),
    ),
    holds_where(
        "FedDyn is approximated: a member exactly where it takes local steps in place of exact minimisers",
        lambda table: below(table, APART, EXACT[3:], 1e-12),
    ),
    holds_where(
        "the test can fail: a member with half the penalty is another method",
        lambda table: above(table, APART, CONTROLS, 1e-3),
    )._replace(ours=True),
    holds_where(
        "SCAFFOLD's local update is approximated as gamma falls: its direction from one point, eq. (23)",
        lambda table: falling(table, DIRECTION),
    ),
    holds_where("and its control variates, eq. (24)", lambda table: falling(table, VARIATE)),
    holds_where(
        "Algorithm 1 with those parameters runs like SCAFFOLD and VRL-SGD, within a tenth",
        lambda table: below(table, APART, LIMITS, 0.1),
    )._replace(ours=True),
    holds_where(
        "SCAFFOLD and VRL-SGD themselves come nearer to the optimum",
        lambda table: below(table, LEFT, RIVALS, 1.0),
    )._replace(ours=True),
)
