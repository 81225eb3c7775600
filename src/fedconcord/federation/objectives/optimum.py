"""The minimiser of a smooth convex problem, with a certificate: what gap-versus-round figures are measured against."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import Objective, Problem
from fedconcord.support.errors import UserError

DENSE = 1500  # to this dimension Newton's equations are solved by eigenvalues, above it by conjugate gradients
ITERATIONS = 100
FLAT = 1e-12  # curvature below this share of the largest is rounding


class Optimum(NamedTuple):
    """A minimiser x* of F = sum_i p_i f_i and what shows that it is one."""

    x: Tensor  # [d] float64
    value: float  # F(x*)
    gradient: float  # ||grad F(x*)||
    step: float  # length of the last Newton step, an estimate of ||x - x*|| before it; large where F has no minimum


class _Pooled(NamedTuple):
    """F = sum_i p_i f_i by its derivatives at x [d]."""

    objective: Objective
    parts: list[tuple[float, Tensor]]  # (p, samples): one of all samples where p is in proportion to the clients'

    def _sum(self, f: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
        total = self.parts[0][0] * f(x, self.parts[0][1])
        for p, samples in self.parts[1:]:
            total = total + p * f(x, samples)
        return total

    @torch.no_grad()
    def value(self, x: Tensor) -> float:
        return float(self._sum(self.objective.loss, x))

    def gradient(self, x: Tensor) -> Tensor:
        return self._sum(self.objective.gradient, x).detach()

    def hessian(self, x: Tensor) -> Tensor:
        assert self.objective.hessian is not None
        return self._sum(self.objective.hessian, x).detach()

    def product(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """v -> Hessian(x) v."""
        at = x.detach().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(self._sum(self.objective.loss, at), at, create_graph=True)
        return lambda v: torch.autograd.grad(slope, at, v, retain_graph=True)[0]


def optimum(problem: Problem, p: np.ndarray | None = None, tolerance: float = 1e-10) -> Optimum:
    """The minimiser of sum_i p_i f_i by Newton's method with backtracking, in float64.

    Along directions in which F is flat (softmax regression: the same vector added for every class) x stays where
    `problem.init(0)` is.

    Args:
        p: [N] client weights, sum 1; by the roster's sizes if not given.
        tolerance: on ||grad F|| and, relative to 1 + ||x||, on the last Newton step.

    Raises:
        UserError: the problem is not float64, smooth, convex and bounded below with a minimum, or Newton's method stops
            short of the tolerance.
    """
    objective, sizes = problem.objective, problem.roster.sizes
    if objective.dtype != torch.float64:
        raise UserError(f"a reference optimum needs float64, given a problem in {objective.dtype}; build it in float64")
    if objective.regulariser is not None:
        raise UserError(
            f"the objective has the non-smooth term {objective.regulariser.name}, which Newton's method cannot take; "
            "leave the regulariser out or use l2"
        )
    if objective.private is not None:
        raise UserError(
            "a two-block problem is not jointly convex; ask for the optimum of two_block.PrivateBlocks(problem, y, ids)"
        )
    weights = sizes / sizes.sum() if p is None else np.asarray(p, np.float64)
    if weights.shape != (len(sizes),) or not np.isclose(weights.sum(), 1.0) or (weights < 0).any():
        shape, total = weights.shape, weights.sum()
        raise UserError(f"p needs {len(sizes)} weights >= 0 with sum 1, given {shape} summing to {total:.6g}")
    F = _pooled(objective, weights)
    x = problem.init(0).detach()
    value, g = F.value(x), F.gradient(x)
    length = float("inf")
    for _ in range(ITERATIONS):
        norm = float(g.norm())
        if not np.isfinite(norm):
            break
        step, flat = _newton(F, x, g, tolerance)
        if flat > max(tolerance, 1e-8 * norm):
            raise UserError(
                "the objective falls without bound along a direction in which it has no curvature; add an l2 term"
            )
        length = float(step.norm())
        if norm <= tolerance and length <= 1e-6 * (1.0 + float(x.norm())):
            last = F.gradient(x + step)  # one step more costs nothing and ends at rounding
            if float(last.norm()) < norm:
                x, value, norm = x + step, F.value(x + step), float(last.norm())
            return Optimum(x, value, norm, length)
        x, value, g, moved = _search(F, x, value, g, step)
        if not moved:
            break
    raise UserError(
        f"Newton's method stopped at ||grad F|| = {float(g.norm()):.2g} with a last step of {length:.2g} and ||x|| = "
        f"{float(x.norm()):.3g}: the problem has no minimum (separable classes), or is too ill conditioned for "
        f"tolerance {tolerance:.2g}; add an l2 term or raise the tolerance"
    )


def _search(F: _Pooled, x: Tensor, value: float, g: Tensor, step: Tensor) -> tuple[Tensor, float, Tensor, bool]:
    """Halve the step until F falls enough or, where rounding hides that, until the gradient is shorter."""
    slope, noise = float(g @ step), 1e-14 * max(1.0, abs(value))
    t = 1.0
    for _ in range(40):
        there = x + t * step
        new = F.value(there)
        if new <= value + 1e-4 * t * slope + noise:
            fresh = F.gradient(there)
            if new <= value + 1e-4 * t * slope - noise or float(fresh.norm()) < float(g.norm()):
                return there, new, fresh, True
        t /= 2
    return x, value, g, False


def _newton(F: _Pooled, x: Tensor, g: Tensor, tolerance: float) -> tuple[Tensor, float]:
    """-H^+ g, and the length of the part of g that lies where F is flat."""
    if len(x) > DENSE:
        return _conjugate(F.product(x), g, tolerance), 0.0
    curvature, basis = torch.linalg.eigh(F.hessian(x))
    top = float(curvature[-1])
    if float(curvature[0]) < -1e-8 * max(top, 1e-12):
        raise UserError(f"the objective is not convex: its Hessian has the eigenvalue {float(curvature[0]):.2g}")
    along = basis.T @ g
    curved = curvature > FLAT * top
    inverse = torch.where(curved, 1.0 / torch.where(curved, curvature, 1.0), 0.0)
    return -(basis @ (inverse * along)), float(along[~curved].norm())


def _conjugate(product: Callable[[Tensor], Tensor], g: Tensor, tolerance: float) -> Tensor:
    """-H^-1 g by conjugate gradients, to a residual of min(0.1, sqrt ||g||) ||g||."""
    step, residual = torch.zeros_like(g), -g
    direction, square = residual, float(residual @ residual)
    goal = min(0.1, square**0.25) ** 2 * square
    for _ in range(10 * len(g)):
        if square <= goal:
            break
        image = product(direction)
        curvature = float(direction @ image)
        if curvature <= FLAT * float(direction @ direction):
            if curvature < -1e-8 * float(direction @ direction):
                raise UserError(f"the objective is not convex: it has curvature {curvature:.2g} along a direction")
            break
        step = step + square / curvature * direction
        residual = residual - square / curvature * image
        square, before = float(residual @ residual), square
        direction = residual + square / before * direction
    return step if bool(step.any()) else -g


def _pooled(objective: Objective, weights: np.ndarray) -> _Pooled:
    if objective.hessian is None:
        raise UserError("a reference optimum needs the problem's Hessian, and it has none")
    counts = np.diff(objective.offsets)
    if np.allclose(weights, counts / counts.sum(), rtol=1e-13, atol=0):
        return _Pooled(objective, [(1.0, torch.arange(int(counts.sum()), device=objective.device))])
    return _Pooled(objective, [(float(w), objective.samples(i)) for i, w in enumerate(weights) if w > 0])
