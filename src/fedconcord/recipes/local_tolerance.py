"""How exactly a client should solve its local problem: fixed steps against ||grad L_i||^2 <= eps (FedADMM eq. (6))."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedconcord.algorithms import METHODS
from fedconcord.core import Algorithm
from fedconcord.engines import Stacked
from fedconcord.federation.schedule import Schedule
from fedconcord.federation.work import fixed
from fedconcord.jobs import Job
from fedconcord.local.solver import Solver
from fedconcord.problems.convex import Convex, logistic_cancer
from fedconcord.recipes.tools import Track, line, panels, table, track

CLIENTS, EPS = 10, 1e-8
SOLVERS: dict[str, tuple[Solver, int]] = {  # and the planned steps, which cap the tolerance's
    "GD, 10 steps": (Solver(), 10),
    "GD, 100 steps": (Solver(), 100),
    "GD to ε": (Solver(tolerance=EPS), 500),
    "L-BFGS to ε": (Solver(tolerance=EPS, kind="lbfgs"), 100),
}


def methods(rho: float) -> dict[str, Algorithm]:
    """FedADMM and the proximal family with one penalty."""
    return {
        "FedADMM": METHODS["fedadmm"](rho=rho, form="paper"),
        "FedProx": METHODS["fedprox"](mu=rho),
        "FedDyn": METHODS["feddyn"](alpha=rho),
        "FedVRA": METHODS["fedvra"](gamma=rho, a=0.5, d=1.0),
    }


def smoothness(problem: Convex) -> float:
    """The largest curvature of any client at 0, where logistic loss has its largest."""
    x = problem.init(0)
    pairs = zip(problem.offsets[:-1], problem.offsets[1:], strict=True)
    return max(float(torch.linalg.eigvalsh(problem.hessian(x, torch.arange(a, b)))[-1]) for a, b in pairs)


def run(out: Path, quick: bool, say: Callable[[str], None]) -> None:
    l2, rho, rounds, goal = (0.05, 0.2, 12, 1e-4) if quick else (0.01, 0.05, 60, 1e-6)
    problem = logistic_cancer(0, CLIENTS, torch.float64, torch.device("cpu"), l2=l2)
    lr = 1.0 / (smoothness(problem) + rho)
    say(
        f"logistic regression, breast cancer data, {CLIENTS} clients by label, l2 {l2:g}, rho {rho:g}, "
        f"eta 1/L = {lr:.3f}, eps {EPS:g}; goal: gap <= {goal:g} within {rounds} rounds, "
        f"F* = {problem.optimum.value:.6f}"
    )
    rows = []
    with panels(out, "local_tolerance", list(methods(rho)), 2.7) as axes:
        for ax, (name, algorithm) in zip(axes, methods(rho).items(), strict=True):
            for k, (how, (solver, steps)) in enumerate(SOLVERS.items()):
                schedule = Schedule(0, CLIENTS, lr, fixed(steps), "steps")
                t = track(Job(problem, algorithm, schedule, solver, Stacked(None)), rounds, "gap", goal=goal)
                line(ax, k, t.gradients[1:], t.value[1:], how)
                rows.append(_row(name, how, t, goal))
                say("{method:8s} {local:14s} {summary}".format(**rows[-1]))
            ax.axhline(goal, color="black", linewidth=0.7, linestyle=(0, (1, 2)), label="goal")
            ax.set(xscale="log", yscale="log", xlabel="gradients of all clients")
        axes[0].set_ylabel("gap F − F*")
    table(out, "local_tolerance", [{k: v for k, v in row.items() if k != "summary"} for row in rows])
    say("FedADMM: local solvers are free as long as ||grad L_i||^2 <= eps_i; more local work means fewer rounds")
    for name in methods(rho):
        by = {row["local"]: row for row in rows if row["method"] == name}
        exact, gd = by["L-BFGS to ε"], by["GD to ε"]
        if exact["reached"] and gd["reached"]:
            fewer = gd["gradients"] / exact["gradients"]
            say(f"ours: {name}: to eps {exact['rounds']} rounds, L-BFGS with {fewer:.1f} times fewer gradients than GD")
        elif not exact["reached"]:
            say(f"ours: {name} does not reach the goal even with local problems solved to eps: gap {exact['gap']:.1e}")


def _row(name: str, how: str, t: Track, goal: float) -> dict[str, Any]:
    reached = bool(t.value[-1] <= goal)
    rounds, gradients, gap = int(t.round[-1]), int(t.gradients[-1]), float(t.value[-1])
    words = f"{'reached in' if reached else 'not in'} {rounds} rounds, {gradients} gradients, gap {gap:.1e}"
    return {"method": name, "local": how, "reached": reached, "rounds": rounds, "gradients": gradients, "gap": gap,
            "summary": words}  # fmt: skip
