"""FedNova, Fig. 4: how alpha = eta mu moves FedProx's weight bias, slowdown and relative variance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconcord.execution.engines import Serial
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.insight.methods.surrogate import Units, chi_square
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import rng
from fedconcord.study.statistics.load import Array
from fedconcord_papers.recipes.claims import holds_where
from fedconcord_papers.recipes.recipe import SizeName
from fedconcord_papers.recipes.tools import line, panels, table
from fedconcord_papers.recipes.values import Values
from fedconcord_papers.recipes.values import values as values_of

CLIENTS = 30
LABELS = ("weight bias χ²(p‖w)", "slowdown τ̄/τ_eff", "relative variance")
MEASURES = ("weight bias", "slowdown", "relative variance")  # the fields of an `Effect`
DIFFERENCE = "largest difference from simulated steps"
SPREAD = {"std 20": 20.0, "variance 20": 20.0**0.5}  # the paper writes N(20, 20)


class Effect(NamedTuple):
    """What one alpha does, weights p_i = 1/m."""

    bias: float  # chi^2(p || w) = sum (p_i - w_i)^2 / w_i
    slowdown: float  # tau_bar / tau_eff
    variance: float  # A = m tau_eff sum w_i^2 ||a_i||_2^2 / ||a_i||_1^2 of (10); 1 for FedAvg


def steps(std: float, seed: int = 0) -> np.ndarray:
    """tau_i [m] ~ N(20, std^2), rounded, at least 1."""
    drawn = rng.generator(seed, rng.Purpose.WORK).normal(20.0, std, CLIENTS)
    return np.maximum(np.rint(drawn), 1).astype(np.int64)


def effect(tau: np.ndarray, one: Array, two: Array) -> Effect:
    """From ||a_i||_1 [m] and ||a_i||_2^2 [m]."""
    p = np.full(len(tau), 1 / len(tau))
    effective = p @ one
    w = p * one / effective
    return Effect(
        chi_square(p, w),
        float(p @ tau / effective),
        float(len(tau) * effective * (w**2 * two / one**2).sum()),
    )


def closed(tau: np.ndarray, alpha: float) -> Effect:
    """From eq. (8): a_i = [(1 - alpha)^(tau_i - 1), ..., 1]."""
    if alpha == 0:
        return effect(tau, tau.astype(np.float64), tau.astype(np.float64))
    shrink = 1 - alpha
    return effect(tau, (1 - shrink**tau) / alpha, (1 - shrink ** (2 * tau)) / (1 - shrink**2))


def accumulation(tau: int, alpha: float, lr: float = 0.05) -> Array:
    """The entries of a_i [tau]: a round of FedProx with mu = alpha / eta and batch size 1, a unit gradient a sample."""
    problem = Units(np.array([0, tau]), np.arange(tau), tau)
    job = Job(problem, METHODS["fedprox"](mu=alpha / lr), Schedule(0, 1, lr, batch_size=1), engine=Serial())
    return np.asarray(-advance(job, start(job)).server.x.numpy() / lr)


def simulated(tau: np.ndarray, alpha: float) -> Effect:
    """The same numbers from measured a_i."""
    a = {int(t): accumulation(int(t), alpha) for t in np.unique(tau)}
    return effect(tau, np.array([a[int(t)].sum() for t in tau]), np.array([(a[int(t)] ** 2).sum() for t in tau]))


def run(out: Path, size: SizeName, options: Mapping[str, Any], say: Callable[[str], None]) -> Values:
    """Both readings of tau's spread: `points` values of alpha by the closed forms, `tried` of them simulated."""
    alphas = np.linspace(0.0, 1.0, options["points"])
    tried = alphas[:: (len(alphas) - 1) // (options["tried"] - 1)]
    rows, found = list[dict[str, Any]](), list[tuple[str, str, str, int, float]]()
    with panels(out, "fednova_fig4", [f"τ ~ N(20, 20) read as {name}" for name in SPREAD]) as axes:
        for (name, std), ax in zip(SPREAD.items(), axes, strict=True):
            tau = steps(std)
            formula = {float(a): closed(tau, float(a)) for a in alphas}
            measured = {float(a): simulated(tau, float(a)) for a in tried}
            for k, (field, label) in enumerate(zip(Effect._fields, LABELS, strict=True)):
                values = np.array([getattr(e, field) for e in formula.values()])
                line(ax, k, alphas, np.where(values > 0, values, np.nan), label, marker="")
                ax.plot(tried, [getattr(e, field) for e in measured.values()], "x", color="black", markersize=4,
                        label="from simulated a_i" if k == 0 else None)  # fmt: skip
            ax.set(xlabel="α = ημ", xlim=(0, 1), ylim=(1e-4, 100), yscale="log")
            rows += [{"tau": name, "alpha": a, **e._asdict()} for a, e in formula.items()]
            found += [
                (measure, name, f"alpha {a:g}", 0, getattr(e, field))
                for a, e in formula.items()
                if a in measured
                for field, measure in zip(Effect._fields, MEASURES, strict=True)
            ]
            gap = max(float(np.abs(np.subtract(e, formula[a])).max()) for a, e in measured.items())
            say(f"tau with {name}: closed forms against simulated a_i: largest difference {gap:.1e}")
            found.append((DIFFERENCE, name, "closed forms", 0, gap))
    table(out, "fednova_fig4", rows)
    return values_of(found)


def resolve(size: SizeName, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is computed."""
    return [
        {"cell": name, "clients": CLIENTS, "alphas": options["points"], "simulated": options["tried"]}
        for name in SPREAD
    ]


def monotone(measure: str, rising: bool) -> Callable[[Values], list[tuple[str, bool | None]]]:
    """Whether a measure rises, or falls, with alpha throughout."""

    def test(values: Values) -> list[tuple[str, bool | None]]:
        outcomes: list[tuple[str, bool | None]] = []
        for cell in SPREAD:
            numbers = np.array([r.value for r in values.rows if (r.measure, r.cell) == (measure, cell)])
            steps = np.diff(numbers) if rising else -np.diff(numbers)
            so = bool((steps > -1e-12).all() and numbers[0] != numbers[-1]) if len(numbers) > 1 else None
            outcomes.append((f"{numbers[0]:.3g} to {numbers[-1]:.3g} ({cell})" if len(numbers) > 1 else cell, so))
        return outcomes

    return test


def at_one(values: Values) -> list[tuple[str, bool | None]]:
    """Whether the bias is 0 and the slowdown tau_bar at alpha = 1."""
    outcomes: list[tuple[str, bool | None]] = []
    for cell, std in SPREAD.items():
        bias, slow = (values.interval(measure, cell, "alpha 1").mean for measure in MEASURES[:2])
        so = abs(bias) < 1e-12 and math.isclose(slow, steps(std).mean()) if math.isfinite(slow) else None
        outcomes.append((f"bias {bias:.1g}, slowdown {slow:.4g} ({cell})", so))
    return outcomes


def agree(values: Values) -> list[tuple[str, bool | None]]:
    """Whether closed forms and simulated steps agree to rounding."""
    gaps = {cell: list(values.seeds(DIFFERENCE, cell, "closed forms").values()) for cell in SPREAD}
    return [(f"{gap[0]:.1g} ({cell})" if gap else cell, gap[0] < 1e-9 if gap else None) for cell, gap in gaps.items()]


CLAIMS = (
    holds_where("as alpha grows the weight bias falls", monotone(MEASURES[0], False)),
    holds_where("as alpha grows the slowdown grows", monotone(MEASURES[1], True)),
    holds_where("at alpha = 1 there is no bias, and convergence is tau_bar times slower", at_one),
    holds_where("the closed forms of a_i are those of simulated local steps", agree)._replace(ours=True),
)
