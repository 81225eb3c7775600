"""Proximal operators against closed forms, their own definition and a quadratic program."""

import pytest
import torch
from torch import Tensor

from fedconcord.federation.objectives.regularisers import (
    REGULARISERS,
    box,
    combine,
    group_l1,
    l1,
    nuclear,
    simplex,
    sparse_group,
)
from fedconcord.method.contract import Regulariser
from fedconcord.support import factories
from fedconcord.support.errors import UserError

DIM = 12
ALL = [
    "l1(0.7)",
    "group_l1(0.9,3)",
    "nuclear(0.8,3)",
    "nuclear(0.8,4)",
    "box(-0.5,1)",
    "simplex",
    "simplex(4)",
    "l1_box(0.6,-0.3,0.8)",
    "sparse_group(0.3,0.5,4)",
]


def made(text: str) -> Regulariser:
    found: Regulariser = factories.build(REGULARISERS, "regulariser", text)
    return found


def points(rows: int, seed: int = 0, dim: int = DIM) -> Tensor:
    return 1.5 * torch.randn(rows, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_every_registered_one_is_tested() -> None:
    assert {text.partition("(")[0] for text in ALL} == set(REGULARISERS)


@pytest.mark.parametrize("eta", [0.3, 2.0])
@pytest.mark.parametrize("text", ALL)
def test_prox_minimises_its_objective(text: str, eta: float) -> None:
    """No feasible point nearby or far is better, and z is better than any by ||p - z||^2 / (2 eta) at least."""
    psi, x = made(text), points(20)
    z = psi.prox(x, eta)
    assert torch.isfinite(psi.value(z)).all()

    def objective(at: Tensor) -> Tensor:
        return psi.value(at) + (at - x).square().sum(-1) / (2 * eta)

    best = objective(z)
    for k, size in enumerate((1e-3, 1e-2, 0.1, 1.0)):
        for trial in range(25):
            p = psi.prox(z + size * points(20, seed=1000 * k + trial + 1), 1e-12)  # feasible
            strong = (p - z).square().sum(-1) / (2 * eta)
            assert (objective(p) >= best + strong - 1e-9 * (1 + best.abs())).all()


@pytest.mark.parametrize("text", ALL)
def test_prox_is_firmly_non_expansive(text: str) -> None:
    psi = made(text)
    x, y = points(200, 1), points(200, 2)
    moved = psi.prox(x, 0.8) - psi.prox(y, 0.8)
    assert (moved.square().sum(-1) <= ((x - y) * moved).sum(-1) + 1e-12).all()


@pytest.mark.parametrize("text", ALL)
def test_stacked_is_one_by_one(text: str) -> None:
    psi, x = made(text), points(6).reshape(2, 3, DIM)
    before = x.clone()
    stacked, values = psi.prox(x, 0.4), psi.value(x)
    assert stacked.shape == x.shape
    assert values.shape == (2, 3)
    assert torch.equal(x, before)
    for a in range(2):
        for b in range(3):
            assert torch.allclose(stacked[a, b], psi.prox(x[a, b], 0.4), rtol=1e-13, atol=1e-14)
            assert torch.allclose(values[a, b], psi.value(x[a, b]), rtol=1e-13)


@pytest.mark.parametrize("text", ALL)
def test_float32_stays_and_is_near(text: str) -> None:
    psi, x = made(text), points(5)
    got = psi.prox(x.float(), 0.4)
    assert got.dtype == torch.float32
    assert torch.allclose(got.double(), psi.prox(x, 0.4), atol=1e-5)
    assert torch.isfinite(psi.value(got.double().mean(0).float()))  # an average is still feasible


def test_closed_forms() -> None:
    x = torch.tensor([3.0, -0.2, 0.5, -4.0], dtype=torch.float64)
    assert l1(0.5).prox(x, 2.0).tolist() == [2.0, 0.0, 0.0, -3.0]
    assert float(l1(0.5).value(x)) == pytest.approx(3.85)
    pairs = torch.tensor([3.0, -4.0, 0.3, 0.4], dtype=torch.float64)
    assert torch.allclose(group_l1(1.0, 2).prox(pairs, 1.0), torch.tensor([2.4, -3.2, 0.0, 0.0], dtype=torch.float64))
    assert float(group_l1(2.0, 2).value(pairs)) == pytest.approx(11.0)
    assert group_l1(1.0, 2).prox(torch.zeros(4), 1.0).tolist() == [0.0] * 4
    u, _ = torch.linalg.qr(points(3, 5, 3))
    v, _ = torch.linalg.qr(points(4, 6, 4))
    s = torch.tensor([5.0, 2.0, 0.5], dtype=torch.float64)
    flat = ((u * s) @ v[:, :3].T).reshape(-1)
    assert float(nuclear(2.0, 3).value(flat)) == pytest.approx(15.0)
    shrunk = (u * torch.tensor([4.0, 1.0, 0.0], dtype=torch.float64)) @ v[:, :3].T
    assert torch.allclose(nuclear(2.0, 3).prox(flat, 0.5), shrunk.reshape(-1))
    assert box(-1, 2).prox(x, 1.0).tolist() == [2.0, -0.2, 0.5, -1.0]
    assert simplex().prox(torch.tensor([0.9, 0.9, -5.0]), 1.0).tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert simplex().prox(torch.tensor([10.0, 0.0]), 1.0).tolist() == [1.0, 0.0]
    for psi, outside in ((box(0, 1), [0.5, 1.1]), (simplex(), [0.5, 0.6]), (simplex(), [1.5, -0.5])):
        assert float(psi.value(torch.tensor(outside))) == float("inf")


@pytest.mark.parametrize("text", ["l1(0.7)", "sparse_group(0.3,0.5,4)"])
def test_subgradient_conditions(text: str) -> None:
    """(x - z) / eta is a subgradient at z, entry by entry."""
    x, eta = points(50), 0.6
    z = made(text).prox(x, eta)
    s = (x - z) / eta
    if text.startswith("l1"):
        assert torch.allclose(s[z != 0], 0.7 * z[z != 0].sign())
        assert (s[z == 0].abs() <= 0.7 + 1e-12).all()
        return
    groups, sub = z.reshape(50, 3, 4), s.reshape(50, 3, 4)
    norm = groups.norm(dim=-1, keepdim=True)
    smooth = torch.where(norm > 0, 0.5 * groups / norm.clamp(min=1e-300), 0.0)
    on = (groups != 0).expand_as(sub)
    assert torch.allclose((sub - smooth)[on], 0.3 * groups[on].sign())
    live = (norm > 0).expand_as(sub)
    assert (sub[live & ~on].abs() <= 0.3 + 1e-12).all()
    dead = sub[(norm[..., 0] == 0)]  # s = 0.3 sign + 0.5 unit ball: what is left beyond 0.3 has norm <= 0.5
    assert (l1(0.3).prox(dead, 1.0).norm(dim=-1) <= 0.5 + 1e-12).all()


def test_simplex_projection_by_its_inequality() -> None:
    """p is the projection of y on a polytope if and only if it is in it and <y - p, v - p> <= 0 for all corners v."""
    for row in points(10, 3, 6):
        nearest = simplex().prox(row, 1.0)
        assert nearest.min() >= 0
        assert nearest.sum() == pytest.approx(1, abs=1e-12)
        rest = row - nearest
        assert (rest - rest @ nearest).max() <= 1e-12


@pytest.mark.parametrize("k", [1, 2, 100])
def test_simplex_of_extreme_rows(k: int) -> None:
    for x in (torch.zeros(k), 1e6 * torch.randn(k, generator=torch.Generator().manual_seed(1)), torch.full((k,), -3e4)):
        z = simplex().prox(x.double(), 1.0)
        assert float(z.sum()) == pytest.approx(1.0, abs=1e-9)
        assert (z >= 0).all()


def test_a_diverged_row_stays_nan_and_leaves_the_others() -> None:
    x = points(3)
    x[1, 4] = torch.nan
    z = nuclear(0.3, 3).prox(x, 1.0)
    assert torch.isnan(z[1]).all()
    assert torch.equal(z[[0, 2]], nuclear(0.3, 3).prox(x[[0, 2]], 1.0))
    assert torch.isnan(nuclear(0.3, 3).value(x)).tolist() == [False, True, False]


def test_a_matrix_that_divide_and_conquer_gives_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK does so now and then in float32, in the middle of a run that converges."""
    x = points(3).float()
    whole, values = nuclear(0.3, 3).prox(x, 1.0), nuclear(0.3, 3).value(x)
    quick, quick_values = torch.linalg.svd, torch.linalg.svdvals

    def gives_up(matrices: Tensor, **options: bool) -> object:
        """On the second matrix."""
        if any(torch.equal(one, x[1].reshape(3, 4)) for one in matrices.reshape(-1, 3, 4)):
            raise torch.linalg.LinAlgError("the algorithm failed to converge")
        return quick(matrices, **options) if options else quick_values(matrices)

    monkeypatch.setattr(torch.linalg, "svd", gives_up)
    monkeypatch.setattr(torch.linalg, "svdvals", gives_up)
    again = nuclear(0.3, 3).prox(x, 1.0)
    assert torch.equal(again[[0, 2]], whole[[0, 2]])
    assert torch.allclose(again, whole, rtol=1e-5, atol=1e-6)
    assert torch.equal(again[1], nuclear(0.3, 3).prox(x[1], 1.0))  # alone and among others
    assert torch.allclose(nuclear(0.3, 3).value(x), values, rtol=1e-5)


def test_sums() -> None:
    x = points(30)
    assert torch.equal(combine(l1(0.2), l1(0.3)).prox(x, 1.0), l1(0.5).prox(x, 1.0))
    assert torch.equal(combine(box(0, 2), box(-1, 1)).prox(x, 1.0), box(0, 1).prox(x, 1.0))
    assert torch.equal(combine(nuclear(0.2, 3), nuclear(0.3, 3)).prox(x, 1.0), nuclear(0.5, 3).prox(x, 1.0))
    assert torch.equal(combine(group_l1(0.2, 3), l1(0.3)).prox(x, 1.0), sparse_group(0.3, 0.2, 3).prox(x, 1.0))
    both = combine(simplex(4), l1(0.3))
    assert torch.equal(both.prox(x, 1.0), simplex(4).prox(x, 1.0))
    assert both.value(both.prox(x, 1.0)).tolist() == pytest.approx([0.9] * 30)


@pytest.mark.parametrize(
    ("first", "second"),
    [(l1(), nuclear()), (group_l1(0.1, 2), group_l1(0.1, 3)), (box(), simplex()), (group_l1(), box())],
)
def test_sums_without_a_closed_form_are_refused(first: Regulariser, second: Regulariser) -> None:
    for pair in ((first, second), (second, first)):
        with pytest.raises(UserError, match="no proximal operator in closed form"):
            combine(*pair)


def test_infeasible_and_misshapen_terms_are_one_sentence() -> None:
    with pytest.raises(UserError, match="low = 1 and <= high = 0"):
        box(1, 0)
    with pytest.raises(UserError, match="low = 2 and <= high = 1"):
        combine(box(0, 1), box(2, 3))
    with pytest.raises(UserError, match="12 parameters are no square matrix"):
        nuclear().value(torch.zeros(12))
    with pytest.raises(UserError, match="12 parameters are no matrix of 5 rows"):
        nuclear(0.1, 5).prox(torch.zeros(12), 1.0)
    with pytest.raises(UserError, match="cannot be cut in blocks of 5"):
        group_l1(0.1, 5).prox(torch.zeros(12), 1.0)
    with pytest.raises(UserError, match="lam must be a number >= 0"):
        made("l1(-1)")
