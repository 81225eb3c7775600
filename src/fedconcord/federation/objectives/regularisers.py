"""Non-smooth terms psi of the objective sum_i p_i f_i(x) + psi(x), by name, each with its proximal operator.

To add one: a factory that returns a `contract.Regulariser` for vectors [..., d] and its line in `REGULARISERS`.
`combine` adds two where the prox of the sum has a closed form; `Regularised` adds one to any one-block problem, as the
setting `regulariser = "l1(0.01)"` does. Closed forms: Parikh and Boyd, Proximal Algorithms, 2014, ch. 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.contract import Evaluator, Objective, Problem, Regulariser
from fedconcord.method.contract.weights import to_simplex
from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name
from fedconcord.support.parameters import Count, NotNegative, about

Weight = Annotated[NotNegative, about("weight lambda of the term")]
Group = Annotated[Count, about("number of consecutive entries in a group")]
Rows = Annotated[Count | None, about("number of rows of the matrix x; if none, it is square")]
Low = Annotated[float, about("smallest entry")]
High = Annotated[float, about("largest entry")]
Block = Annotated[Count | None, about("number of entries of a block; if none, all of x is one block")]
GroupWeight = Annotated[NotNegative, about("weight of the groups' norms")]


def soft(x: Tensor, threshold: float) -> Tensor:
    """Entries of x moved towards 0 by the threshold, 0 where they are smaller."""
    return x - x.clamp(-threshold, threshold)


def _rounding(x: Tensor) -> float:
    """How far outside a constraint an average of points inside it may lie."""
    return math.sqrt(torch.finfo(x.dtype).eps)


def _indicator(inside: Tensor, like: Tensor) -> Tensor:
    """0 where inside, else infinity."""
    return torch.where(inside, 0.0, torch.inf).to(like.dtype)


def _blocks(x: Tensor, size: int, name: str) -> Tensor:
    """[..., d] -> [..., d / size, size]."""
    if x.shape[-1] % size:
        raise UserError(f"{name}: {x.shape[-1]} parameters cannot be cut in blocks of {size}; give a size that divides")
    return x.reshape(*x.shape[:-1], -1, size)


# Each term is one object with its parameters, so that `combine` can tell what it is given.


class _L1(NamedTuple):
    lam: float

    def value(self, x: Tensor) -> Tensor:
        return self.lam * x.abs().sum(-1)

    def prox(self, x: Tensor, eta: float) -> Tensor:
        return soft(x, eta * self.lam)


class _GroupL1(NamedTuple):
    lam: float
    size: int

    def value(self, x: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(_blocks(x, self.size, "group_l1"), dim=-1)
        return self.lam * norm.sum(-1)

    def prox(self, x: Tensor, eta: float) -> Tensor:
        groups = _blocks(x, self.size, "group_l1")
        norm: Tensor = torch.linalg.vector_norm(groups, dim=-1, keepdim=True)
        keep = 1.0 - (eta * self.lam / norm.clamp(min=torch.finfo(x.dtype).tiny)).clamp(max=1.0)
        return (keep * groups).flatten(-2)


def svd(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The thin singular value decompositions of matrices [..., rows, columns].

    LAPACK's divide and conquer, which torch has, gives up on some ordinary matrices in float32; QR iteration in float64
    does these, matrix by matrix, so that a client has the same bits alone and among others.
    """
    try:
        u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        if matrices.ndim > 2:
            parts = [svd(one) for one in matrices.unbind(0)]
            return tuple(torch.stack(each) for each in zip(*parts, strict=True))  # type: ignore[return-value]
        from scipy.linalg import svd as slow_svd  # type: ignore[import-untyped]

        factors = slow_svd(matrices.double().cpu().numpy(), full_matrices=False, lapack_driver="gesvd")
        u, s, vh = (torch.from_numpy(factor).to(matrices) for factor in factors)
    return u, s, vh


def singular_values(matrices: Tensor) -> Tensor:
    """[..., rows, columns] -> [..., min(rows, columns)], largest first."""
    try:
        values: Tensor = torch.linalg.svdvals(matrices)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        values = svd(matrices)[1]
    return values


class _Nuclear(NamedTuple):
    lam: float
    rows: int | None

    def matrix(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., rows, columns]."""
        d = x.shape[-1]
        rows = round(d**0.5) if self.rows is None else self.rows
        if d % rows or (self.rows is None and rows * rows != d):
            what = f"are no matrix of {self.rows} rows" if self.rows else "are no square matrix"
            raise UserError(f"nuclear: {d} parameters {what}; give a number of rows that divides {d}")
        return x.reshape(*x.shape[:-1], rows, -1)

    # a diverged x stays NaN, where LAPACK would raise

    def value(self, x: Tensor) -> Tensor:
        finite = torch.isfinite(x).all(-1)
        singular = singular_values(self.matrix(torch.where(finite[..., None], x, 0.0)))
        return torch.where(finite, self.lam * singular.sum(-1), torch.nan)

    def prox(self, x: Tensor, eta: float) -> Tensor:
        finite = torch.isfinite(x).all(-1, keepdim=True)
        u, s, vh = svd(self.matrix(torch.where(finite, x, 0.0)))
        shrunk = torch.einsum("...ir,...rj->...ij", u * soft(s, eta * self.lam)[..., None, :], vh)  # one as among many
        return torch.where(finite, shrunk.flatten(-2), torch.nan)


class _Box(NamedTuple):
    low: float
    high: float

    def value(self, x: Tensor) -> Tensor:
        slack = _rounding(x)
        return _indicator(((x >= self.low - slack) & (x <= self.high + slack)).all(-1), x)

    def prox(self, x: Tensor, eta: float) -> Tensor:
        return x.clamp(self.low, self.high)


class _Simplex(NamedTuple):
    size: int | None

    def value(self, x: Tensor) -> Tensor:
        rows, slack = _blocks(x, self.size or x.shape[-1], "simplex"), _rounding(x)
        return _indicator(((rows >= -slack).all(-1) & ((rows.sum(-1) - 1.0).abs() <= slack)).all(-1), x)

    def prox(self, x: Tensor, eta: float) -> Tensor:
        return to_simplex(_blocks(x, self.size or x.shape[-1], "simplex")).flatten(-2)


def _named(name: str, term: _L1 | _GroupL1 | _Nuclear | _Box | _Simplex) -> Regulariser:
    return Regulariser(name, term.value, term.prox)


def l1(lam: Weight = 0.01) -> Regulariser:
    """lam ||x||_1: sparse models (LASSO)."""
    return _named(f"l1({lam:g})", _L1(lam))


def group_l1(lam: Weight = 0.01, size: Group = 2) -> Regulariser:
    """lam sum_g ||x_g||_2 over groups of consecutive entries: whole groups vanish."""
    return _named(f"group_l1({lam:g},{size})", _GroupL1(lam, size))


def nuclear(lam: Weight = 0.01, rows: Rows = None) -> Regulariser:
    """lam times the sum of the singular values of the matrix x: low rank (LoSAC, eq. (20))."""
    return _named(f"nuclear({lam:g})" if rows is None else f"nuclear({lam:g},{rows})", _Nuclear(lam, rows))


def box(low: Low = 0.0, high: High = 1.0) -> Regulariser:
    """The constraint low <= x <= high, entry by entry.

    Raises:
        UserError: no number lies between low and high.
    """
    if not low <= high:
        raise UserError(f"box: no number is >= low = {low:g} and <= high = {high:g}; give low <= high")
    return _named(f"box({low:g},{high:g})", _Box(low, high))


def simplex(size: Block = None) -> Regulariser:
    """The constraint that x, or every block of consecutive entries, is >= 0 with sum 1."""
    return _named("simplex" if size is None else f"simplex({size})", _Simplex(size))


def l1_box(lam: Weight = 0.01, low: Low = 0.0, high: High = 1.0) -> Regulariser:
    """lam ||x||_1 with low <= x <= high."""
    return combine(l1(lam), box(low, high))


def sparse_group(lam: Weight = 0.01, group: GroupWeight = 0.01, size: Group = 2) -> Regulariser:
    """lam ||x||_1 + group sum_g ||x_g||_2 (sparse group LASSO)."""
    return combine(l1(lam), group_l1(group, size))


def combine(first: Regulariser, second: Regulariser) -> Regulariser:
    """The sum of two terms, where its prox has a closed form.

    Two of one kind; l1 with a box (separable: the minimiser on an interval is the clamped free one), with group_l1
    (Friedman et al. 2010: soft threshold, then the groups'; Yu, NeurIPS 2013) or with a simplex (constant there).

    Raises:
        UserError: the sum has no prox in closed form, or the two constraints exclude each other.
    """
    terms = [getattr(r.prox, "__self__", None) for r in (first, second)]
    for (a, b), (x, y) in ((terms, (first, second)), (terms[::-1], (second, first))):
        match a, b:
            case _L1(), _L1():
                return l1(a.lam + b.lam)
            case _GroupL1(), _GroupL1() if a.size == b.size:
                return group_l1(a.lam + b.lam, a.size)
            case _Nuclear(), _Nuclear() if a.rows == b.rows:
                return nuclear(a.lam + b.lam, a.rows)
            case _Box(), _Box():
                return box(max(a.low, b.low), min(a.high, b.high))
            case _L1(), _Box() | _GroupL1():
                return _sum(x, y)
            case _L1(), _Simplex():
                return _sum(x, y, constant=True)
    raise UserError(
        f"the sum of {first.name} and {second.name} has no proximal operator in closed form; combine l1 with box, "
        "group_l1 or simplex, or give one of the two"
    )


def _sum(first: Regulariser, second: Regulariser, constant: bool = False) -> Regulariser:
    """The prox is that of `first`, unless it is constant where `second` is finite, and then that of `second`."""

    def prox(x: Tensor, eta: float) -> Tensor:
        return second.prox(x if constant else first.prox(x, eta), eta)

    return Regulariser(f"{first.name} + {second.name}", lambda x: first.value(x) + second.value(x), prox)


REGULARISERS: dict[str, Callable[..., Regulariser]] = by_name(l1, group_l1, nuclear, box, simplex, l1_box, sparse_group)


OF_THE_SMOOTH = {"gap", "distance"}  # metrics that compare with the minimiser of the smooth part alone


class Regularised:
    """min sum_i p_i f_i(x) + psi(x) with the f_i of another problem.

    Raises:
        UserError: the problem has a regulariser or two blocks, or psi does not fit its dimension.
    """

    def __init__(self, problem: Problem, regulariser: Regulariser) -> None:
        objective = problem.objective
        if objective.regulariser is not None:
            raise UserError(
                f"the problem already has {objective.regulariser.name}, so {regulariser.name} cannot be added; build "
                "it with regularisers.combine of the two"
            )
        if objective.private is not None:
            raise UserError(
                f"{regulariser.name} cannot be added to a two-block problem, nor to private parts of a model; state it "
                "in the problem"
            )
        regulariser.value(torch.zeros(objective.dim, dtype=objective.dtype))
        self.smooth, self.regulariser = problem, regulariser
        self.objective, self.roster = _with(objective, regulariser), problem.roster
        self.evaluator: Evaluator = self

    def init(self, seed: int) -> Tensor:
        return self.smooth.init(seed)

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> dict[str, float]:
        """The smooth problem's metrics, `objective` (its train loss or loss plus psi) and `nonzero`, the share of x.

        Without those that compare with the minimiser of the smooth part.
        """
        measured = self.smooth.evaluator.evaluate(x)
        metrics = {name: value for name, value in measured.items() if name not in OF_THE_SMOOTH}
        loss = metrics.get("train_loss", metrics.get("loss"))
        if loss is not None:
            metrics["objective"] = loss + float(self.regulariser.value(x))
        return metrics | {"nonzero": float((x != 0).double().mean())}

    def export(self, x: Tensor) -> Mapping[str, Tensor]:
        return self.smooth.evaluator.export(x)


def _with(objective: Objective, regulariser: Regulariser) -> Objective:
    under = objective.under
    return replace(
        objective,
        regulariser=regulariser,
        alone=lambda place: _with(objective.alone(place), regulariser),
        under=under and (lambda conditions: _with(under(conditions), regulariser)),
    )
