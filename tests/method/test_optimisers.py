"""Local optimisers: torch's step for step, and what stays exact inside methods (heterogeneous quadratics, float64)."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from test_engines import SCHEDULE, assert_same, assert_same_server, run, small
from torch import Tensor, nn

from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import Job, advance
from fedconcord.execution.job.checkpoint import load, save
from fedconcord.federation.objectives import Quadratic, quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Local, Population
from fedconcord.method.contract.flat import Layout
from fedconcord.method.contract.optimisers import nearest_orthogonal, newton_schulz
from fedconcord.method.contract.pieces import Piece, Pull
from fedconcord.method.step.sizes import Fixed, delta
from fedconcord.method.step.solver import Solver, refuse
from fedconcord.method.step.walk import Chain, walk
from fedconcord.method.wrappers.optimisers import LocalOptimiser, adamw, lion, muon, sign, with_optimiser
from fedconcord.method.wrappers.server import nesterov, sgd, with_server
from fedconcord.method.wrappers.uploads import quantise, with_uploads
from fedconcord.support.errors import UserError
from table import TABLE, make
from tiers import tiers

ROWS, COLUMNS, N = 4, 3, 5
D = ROWS * COLUMNS
MATRICES = ((0, ROWS, COLUMNS),)


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


# -- the steps -----------------------------------------------------------------------------------------------------


class Bowl:
    """Gradients H (x - b) of clients side by side, whose curvatures are far apart."""

    def __init__(self, clients: int) -> None:
        self.curvature, self.centre = 10 ** vectors(clients, D), vectors(clients, D, seed=1)

    def step(self, k: int, active: np.ndarray, here: slice) -> tuple[object, None]:
        return lambda x: self.curvature[here] * (x - self.centre[here]), None

    def full(self, x: Tensor, active: np.ndarray) -> Tensor:
        raise NotImplementedError


def steps(pieces: tuple[Piece, ...], count: int, lr: float, clients: int = 1) -> tuple[Tensor, Bowl]:
    bowl = Bowl(clients)
    return walk(Chain(vectors(D, seed=2), pieces, Fixed(lr)), bowl, np.full(clients, count)).x, bowl  # type: ignore[arg-type]


def by_torch(optimiser: type, count: int, shape: tuple[int, ...] = (D,), **options: object) -> Tensor:
    bowl, x = Bowl(1), nn.Parameter(vectors(D, seed=2).view(shape))
    takes = optimiser([x], **options)
    for _ in range(count):
        x.grad = (bowl.curvature[0] * (x.detach().flatten() - bowl.centre[0])).view(shape)
        takes.step()
    return x.detach().flatten()


def test_adamw_is_torchs() -> None:
    for decay in (0.0, 0.3):
        x, _ = steps(adamw(0.8, 0.95, 1e-6, decay).pieces(vectors(D), ()), 25, 0.03)
        expected = by_torch(torch.optim.AdamW, 25, lr=0.03, betas=(0.8, 0.95), eps=1e-6, weight_decay=decay)
        torch.testing.assert_close(x[0], expected, rtol=1e-12, atol=1e-12)


def test_lion_is_its_three_lines() -> None:
    x, bowl = steps(lion(0.9, 0.99, 0.1).pieces(vectors(D), ()), 20, 0.02)
    at, m = vectors(D, seed=2), torch.zeros(D, dtype=torch.float64)
    for _ in range(20):
        g = bowl.curvature[0] * (at - bowl.centre[0])
        at = at - 0.02 * (torch.sign(0.9 * m + 0.1 * g) + 0.1 * at)
        m = 0.99 * m + 0.01 * g
    torch.testing.assert_close(x[0], at, rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("shape", [(4, 3), (3, 4)])
def test_muon_is_torchs(shape: tuple[int, int]) -> None:
    """torch computes the five steps in bfloat16, which limits the agreement."""
    x, _ = steps(muon(0.9, 0.1).pieces(vectors(D), ((0, *shape),)), 10, 0.02)
    expected = by_torch(torch.optim.Muon, 10, shape, lr=0.02, momentum=0.9, weight_decay=0.1)
    assert float((x[0] - expected).norm() / (expected - vectors(D, seed=2)).norm()) < 0.02


def test_muons_steps_are_orthogonal_and_the_rest_is_adamws() -> None:
    x, bowl = steps(muon(0.95, 0.0, 0.5, "svd").pieces(vectors(D), ((0, 4, 2),)), 1, 0.1, clients=2)
    move = (vectors(D, seed=2) - x) / 0.1
    square = move[:, :8].view(2, 4, 2) / 2**0.5
    torch.testing.assert_close(square.mT @ square, torch.eye(2).double().expand(2, 2, 2), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(move[:, 8:].abs(), torch.full((2, 4), 0.5).double(), rtol=1e-6, atol=1e-6)
    rough = newton_schulz(bowl.centre.view(2, 4, 3))
    values = torch.linalg.svdvals(rough)
    assert 0.6 < float(values.min()) < float(values.max()) < 1.3
    assert float(nearest_orthogonal(torch.zeros(2, 4, 3).double()).abs().max()) == 0


def literal(x: Tensor) -> Tensor:
    """Newton-Schulz as Jordan et al. print it."""
    x = x.mT if (is_tall := x.shape[-2] > x.shape[-1]) else x
    x = x / (x.flatten(-2).norm(dim=-1)[..., None, None] + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x.mT if is_tall else x


@pytest.mark.parametrize(
    "shape", [(4, 4), (3, 4), (4, 3), (3, 9), (9, 3), (2, 3, 9), (2, 5, 9, 3), (200, 784), (64, 64)]
)
def test_newton_schulz_is_its_loop_whatever_the_shape(shape: tuple[int, ...]) -> None:
    """In float32 long matrices take their steps on X X^T, and large products are another library's."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(newton_schulz(x), literal(x), rtol=1e-10, atol=1e-12)
    assert float((newton_schulz(x.float()) - literal(x)).abs().max()) < 1e-5
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    for decades, close in ((2, 1e-4), (6, 2e-3)):
        x = u @ (torch.logspace(0, -decades, u.shape[-1], dtype=torch.float64)[:, None] * v)
        torch.testing.assert_close(newton_schulz(x), literal(x), rtol=1e-8, atol=1e-10)
        assert float((newton_schulz(x.float()) - literal(x)).abs().max()) < close
    assert not newton_schulz(torch.zeros_like(x)).any()


def test_a_pull_is_scaled_with_the_gradient() -> None:
    """D goes in whole: a client whose gradient is 0 goes to the anchor by sign's steps, not by the pull's."""
    bowl = Bowl(1)
    bowl.curvature = torch.zeros_like(bowl.curvature)
    anchor = vectors(D, seed=2) + 1.0
    chain = Chain(vectors(D, seed=2), (Pull(0.01, anchor), *sign().pieces(anchor, ())), Fixed(0.1))
    x = walk(chain, bowl, np.array([1])).x  # type: ignore[arg-type]
    torch.testing.assert_close(x[0], vectors(D, seed=2) + 0.1, rtol=1e-12, atol=1e-12)


# -- inside methods: where they stop --------------------------------------------------------------------------------


def curved(identity: bool = False) -> Quadratic:
    H = np.stack([np.eye(D)] * N)
    if not identity:
        for i in range(N):
            basis, _ = np.linalg.qr(vectors(D, D, seed=i + 10).numpy())
            H[i] = (basis * 10.0 ** -np.random.default_rng(i).random(D)) @ basis.T
    centres = 2 * vectors(N, D, seed=5).numpy()
    b = np.einsum("nij,nj->ni", H, centres)
    return Quadratic(torch.as_tensor(H)[:, None], torch.as_tensor(b)[:, None])


def gap(
    method: Algorithm, optimiser: LocalOptimiser | None, rounds: int = 700, *, shrink: float = 0.98, lr: float = 0.1
) -> float:
    """Relative distance to the optimum, with full gradients, 5 local steps and step sizes that shrink."""
    algorithm = method if optimiser is None else with_optimiser(method, optimiser, MATRICES)
    schedule = Schedule(seed=0, cohort=N, lr=lr, work=fixed(5), unit="steps", batch_size=None, lr_decay=shrink)
    state = run(Job(problem := curved(), algorithm, schedule, engine=Stacked(None)), rounds)
    x = next(iter(algorithm.models(state.server).values()))
    return float((x - problem._optimum).norm() / problem._optimum.norm())


OPTIMISERS = {"adamw": adamw(), "muon": muon(orthogonal="svd"), "sign": sign(), "lion": lion()}


@pytest.mark.parametrize(
    ("method", "name"),
    tiers(product(("scaffold", "feddyn"), OPTIMISERS), quick=[("scaffold", "lion"), ("feddyn", "muon")]),
)
def test_corrections_before_the_optimiser_stay_exact(method: str, name: str) -> None:
    if name == "adamw":
        assert gap(make(method), OPTIMISERS[name], 1500, shrink=1.0, lr=0.02) < 1e-6
    else:
        assert gap(make(method), OPTIMISERS[name], lr=0.05) < 1e-6


@pytest.mark.parametrize("name", tiers(OPTIMISERS, quick=["muon"]))
def test_without_corrections_every_optimiser_is_biased(name: str) -> None:
    assert gap(METHODS["fedavg"](), OPTIMISERS[name], lr=0.05) > 0.05


def test_a_control_variate_of_moves_is_not_exact_under_an_optimiser() -> None:
    """The planted error: option II as it is for plain steps, (x - y_i) / (K eta) for a gradient."""
    right = with_optimiser(METHODS["scaffold"](), adamw(), MATRICES)

    def finish(down, row, done, client):
        moved = row.c - down.c + (down.x - done.x) / (done.steps * client.lr)
        return right.finish(down, row, done._replace(gradient=moved), client)

    assert gap(replace(right, finish=finish), None) > 50 * gap(right, None)


@pytest.mark.slow
def test_adamw_of_raw_gradients_is_exact_at_a_constant_step_size() -> None:
    scaffold = METHODS["scaffold"]()
    assert gap(scaffold, adamw(), 1500, shrink=1.0, lr=0.02) < 1e-12
    assert gap(scaffold, adamw(second="direction"), 1500, shrink=1.0, lr=0.02) > 1e-3


def test_a_pull_on_an_entry_with_hardly_a_gradient_stays_bounded() -> None:
    """With v of the gradient alone the first step would overshoot the anchor a thousand times."""
    ends = {}
    for second in ("larger", "oracle"):
        bowl = Bowl(1)
        bowl.curvature = torch.full_like(bowl.curvature, 1e-7)
        anchor = vectors(D, seed=2) + 1.0
        pieces = (Pull(0.1, anchor), *adamw(second=second).pieces(anchor, ()))
        pieces = tuple(sorted(pieces, key=lambda piece: piece.traits.place))
        x = walk(Chain(vectors(D, seed=2), pieces, Fixed(0.01)), bowl, np.array([1])).x  # type: ignore[arg-type]
        ends[second] = float((x - anchor).abs().max())
    assert ends["larger"] < 1.1
    assert ends["oracle"] > 100


def ends(optimiser: LocalOptimiser) -> tuple[Tensor, Tensor]:
    """Where FedAvg ends with one step a round and steps to 0, and clients' own optima [N, d]; all Hessians are 1."""
    problem = curved(identity=True)
    schedule = Schedule(seed=0, cohort=N, lr=0.3, work=fixed(1), unit="steps", batch_size=None, lr_decay=0.995)
    job = Job(problem, with_optimiser(METHODS["fedavg"](), optimiser, MATRICES), schedule, engine=Stacked(None))
    return run(job, 2000).server.x, problem.b_mean


def test_local_sign_steps_end_in_the_coordinatewise_median() -> None:
    x, centres = ends(sign())
    torch.testing.assert_close(x, centres.median(0).values, rtol=0, atol=1e-3)
    assert float((x - centres.mean(0)).norm()) > 0.3


@pytest.mark.slow
def test_local_muon_ends_in_the_minimiser_of_the_sum_of_nuclear_norms() -> None:
    x, centres = ends(muon(beta=0.0, orthogonal="svd"))

    def total(at: Tensor) -> float:
        return float(torch.linalg.svdvals((at - centres).view(N, ROWS, COLUMNS)).sum())

    least = total(x)
    assert all(least < total(x + 0.05 * vectors(D, seed=k) / vectors(D, seed=k).norm()) for k in range(40))
    assert total(centres.mean(0)) > least + 0.01


# -- moments that travel, and a direction that all follow -----------------------------------------------------------

LR = 0.03
STEPS = [2 + i for i in range(N)]


def by_rounds(optimiser: LocalOptimiser, method: str = "fedavg") -> Tensor:
    """FedAvg's model after three rounds with full gradients, in which client i takes 2 + i steps."""
    schedule = Schedule(0, N, LR, lambda seed, round, client: STEPS[client], "steps", batch_size=None)
    job = Job(curved(), with_optimiser(METHODS[method](), optimiser, MATRICES), schedule, engine=Serial())
    return next(iter(job.algorithm.models(run(job, 3).server).values()))


def gradient_of(problem: Quadratic, i: int, y: Tensor) -> Tensor:
    return problem.gradient(y, torch.tensor([i]))


@pytest.mark.parametrize("align", [0.0, 0.5])
def test_fedadamw_is_its_equations(align: float) -> None:
    """Algorithm 1: the first moment anew and by the round's steps, the mean of the second ones by all steps."""
    problem, (b1, b2, eps, decay) = curved(), (0.8, 0.9, 1e-6, 0.1)
    x = problem.init(0)
    v, direction, t = torch.zeros_like(x), torch.zeros_like(x), 0.0
    for _ in range(3):
        ends, moments = [], []
        for i, K in enumerate(STEPS):
            y, m, mine = x.clone(), torch.zeros_like(x), v.clone()
            for k in range(1, K + 1):
                g = gradient_of(problem, i, y)
                m, mine = b1 * m + (1 - b1) * g, b2 * mine + (1 - b2) * g**2
                step = m / (1 - b1**k) / ((mine / (1 - b2 ** (t + k))).sqrt() + eps)
                y = y - LR * (step + align * direction + decay * y)
            ends.append(y)
            moments.append(mine)
        direction = sum((x - y) / (K * LR) for y, K in zip(ends, STEPS, strict=True)) / N
        x, v, t = sum(ends) / N, sum(moments) / N, t + sum(STEPS) / N
    got = by_rounds(adamw(b1, b2, eps, decay, state="shared_second", align=align))
    torch.testing.assert_close(got, x, rtol=1e-12, atol=1e-12)


def test_fedmuon_is_its_equations() -> None:
    """Orthogonal steps of a momentum that begins at the clients' mean, less what follows the last round."""
    problem, beta, align = curved(), 0.9, 0.3
    x = problem.init(0)
    shared, direction = torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(3):
        ends, moments = [], []
        for i, K in enumerate(STEPS):
            y, m = x.clone(), shared.clone()
            for _ in range(K):
                g = gradient_of(problem, i, y)
                m = beta * m + (1 - beta) * g
                ahead = (1 - beta) * g + beta * m
                step = nearest_orthogonal(ahead.view(ROWS, COLUMNS)).flatten() * (ROWS / COLUMNS) ** 0.5
                y = y - LR * ((1 - align) * step + align * direction)
            ends.append(y)
            moments.append(m)
        direction = sum((x - y) / (K * LR) for y, K in zip(ends, STEPS, strict=True)) / N
        x, shared = sum(ends) / N, sum(moments) / N
    got = by_rounds(muon(beta, orthogonal="svd", state="shared", align=align))
    torch.testing.assert_close(got, x, rtol=1e-10, atol=1e-10)


def test_fedmuon_with_corrected_momentum_is_its_equations() -> None:
    """Takezawa et al., Algorithm 1: c_i is the momentum of the client's last round, c the mean over all; 2 of 5 a
    round."""
    problem, beta = curved(), 0.1
    schedule = Schedule(0, 2, LR, lambda seed, round, client: STEPS[client], "steps", batch_size=None)
    algorithm = with_optimiser(METHODS["fedavg"](), muon(beta, orthogonal="svd", state="corrected"), MATRICES)
    job = Job(problem, algorithm, schedule, engine=Serial())
    x, c, own = problem.init(0), torch.zeros(D, dtype=torch.float64), torch.zeros(N, D, dtype=torch.float64)
    for t in range(6):
        ends, before = [], own.clone()
        chosen = schedule.plan(t, algorithm, problem.roster).ids
        for i in chosen:
            y, m = x.clone(), before[i].clone()
            for _ in range(STEPS[i]):
                m = beta * m + (1 - beta) * gradient_of(problem, int(i), y)
                way = nearest_orthogonal((m - before[i] + c).view(ROWS, COLUMNS)).flatten()
                y = y - LR * way * (ROWS / COLUMNS) ** 0.5
            ends.append(y)
            own[i] = m
        x, c = sum(ends) / len(ends), c + (own - before).sum(0) / N
    assert len({tuple(schedule.plan(t, algorithm, problem.roster).ids) for t in range(6)}) > 1
    torch.testing.assert_close(next(iter(algorithm.models(run(job, 6).server).values())), x, rtol=1e-10, atol=1e-10)


def test_corrected_momentum_is_exact_and_kept_momentum_is_not() -> None:
    kept, moved = (
        gap(METHODS["fedavg"](), muon(orthogonal="svd", state=state), lr=0.05) for state in ("kept", "corrected")
    )
    assert moved < 1e-4
    assert kept > 0.05


def test_a_correction_of_momentum_moves_no_entry_further_than_a_step() -> None:
    """What is no matrix, with hardly a gradient beside the correction: AdamW's root alone would let it go far."""
    bowl = Bowl(1)
    bowl.curvature = torch.full_like(bowl.curvature, 1e-7)
    *moments, last = muon(rest=1.0, state="corrected").pieces(vectors(D), ((0, 2, 2),))
    pieces = (*moments, last._replace(shift=vectors(D, seed=4)))
    x = walk(Chain(vectors(D, seed=2), pieces, Fixed(0.1)), bowl, np.array([3])).x  # type: ignore[arg-type]
    moved = (x[0] - vectors(D, seed=2))[4:]
    torch.testing.assert_close(moved, -0.3 * vectors(D, seed=4)[4:].sign(), rtol=1e-6, atol=1e-6)


def test_a_direction_behind_the_optimiser_corrects_nothing() -> None:
    """Where steps shrink, FedAdamW's direction ends where AdamW without it does, far from the optimum; SCAFFOLD before
    it at the optimum."""
    plain, aligned = (gap(METHODS["fedavg"](), adamw(align=align), lr=0.05) for align in (0.0, 0.5))
    assert plain > 0.05
    assert abs(aligned - plain) < 0.1 * plain
    assert gap(METHODS["scaffold"](), adamw(state="shared_second", align=0.5), 1500, shrink=1.0, lr=0.02) < 1e-6


def test_moments_that_travel_need_messages_that_are_summed() -> None:
    everyone = Population(8, torch.full((8,), 1 / 8, dtype=torch.float64))
    special = [name for name in TABLE if make(name).phases.combine or make(name).phases.communicates]
    assert "fedpd" in special
    for name in special:
        for optimiser in (adamw(state="shared_second"), adamw(align=0.5)):
            why = with_optimiser(make(name), optimiser).refuse(everyone, 8)
            assert why is not None, name
            assert "use state=kept and no align" in why, name


def test_moments_that_travel_are_not_compressed() -> None:
    everyone = Population(8, torch.full((8,), 1 / 8, dtype=torch.float64))

    def why(optimiser: LocalOptimiser) -> str | None:
        sends = with_optimiser(METHODS["fedavg"](), optimiser, ((0, 1, 2),))
        return with_uploads(sends, quantise()).refuse(everyone, 5)

    for optimiser in (adamw(state="shared"), adamw(align=0.5)):
        assert "are no changes" in str(why(optimiser))
    for optimiser in (adamw(state="kept"), muon(state="corrected")):
        assert why(optimiser) is None


def test_vectors_that_are_sent_as_they_are_are_not_compressed() -> None:
    """Errors of what replaces the server's vector do not cancel, as those of changes do."""
    everyone = Population(8, torch.full((8,), 1 / 8, dtype=torch.float64))
    for method, what in ("mfl", "momentum as it is"), ("fedsmoo", "duals as they are"):
        why = with_uploads(METHODS[method](), quantise()).refuse(everyone, 5)
        assert why is not None
        assert "compressed uploads need changes" in why
        assert what in why


def test_clients_own_models_say_their_step_size_under_an_optimiser() -> None:
    """They take plain steps: of AdamW's size, a hundredth of SGD's, they hardly move."""
    everyone = Population(8, torch.full((8,), 1 / 8, dtype=torch.float64))
    for method in METHODS["ditto"], METHODS["apfl"]:
        why = with_optimiser(method(), adamw()).refuse(everyone, 8)
        assert why == (
            "the method cannot have local.optimiser, as clients' own models take plain steps, which need a size of "
            "their own: set lr"
        )
        assert with_optimiser(method(lr=0.1), adamw()).refuse(everyone, 8) is None


# -- the same on every engine, and after a resume -------------------------------------------------------------------

EVERYWHERE = {"adamw": adamw(state="kept"), "muon": muon(state="kept"), "lion": lion(state="kept"), "sign": sign()}
EVERYWHERE |= {"fedadamw": adamw(state="shared_second", align=0.5), "fedmuon": muon(state="shared", align=0.5)}
EVERYWHERE |= {"fedmuon, corrected": muon(state="corrected")}


PAIRS = [*product(("fedavg", "scaffold", "afedpd", "losac"), EVERYWHERE)]


@pytest.mark.parametrize(("method", "name"), tiers(PAIRS, quick=PAIRS[::5]))
def test_engines_agree(method: str, name: str) -> None:
    """Signs on quadratics: where a gradient is nearly 0, as behind a ReLU, rounding decides its sign."""
    problem = quadratics(3, 8, torch.float64, torch.device("cpu")) if name in ("lion", "sign") else small()
    algorithm = with_optimiser(make(method), EVERYWHERE[name], problem.objective.matrices)
    job = Job(problem, algorithm, replace(SCHEDULE, lr=0.01), engine=Serial())
    expected = run(job, 3)
    assert_same(run(replace(job, engine=Stacked(3, 2)), 3), expected)
    assert_same_server(run(replace(job, engine=Wire()), 3), expected)


@pytest.mark.parametrize(
    "optimiser", [adamw(state="kept"), adamw(state="shared_second", align=0.5), muon(state="shared")]
)
def test_moments_survive_a_resume(optimiser: LocalOptimiser, tmp_path) -> None:
    problem = small()
    algorithm = with_optimiser(METHODS["scaffold"](), optimiser, problem.objective.matrices)
    job = Job(problem, algorithm, replace(SCHEDULE, lr=0.01))
    whole, half = run(job, 4), run(job, 2)
    save(job, half, tmp_path / "state")
    state = load(job, tmp_path / "state")
    for _ in range(2):
        state = advance(job, state)
    assert_same(state, whole, 0.0)
    anew = optimiser._replace(state="reset", align=(1.0, 0.0))
    fresh = replace(job, algorithm=with_optimiser(METHODS["scaffold"](), anew, problem.objective.matrices))
    models = [next(iter(one.algorithm.models(run(one, 4).server).values())) for one in (fresh, job)]
    assert not torch.equal(*models)


def test_nesterov_at_the_server_is_torchs() -> None:
    """On the moves of one client; without momentum it is a step size."""
    problem = quadratics(3, 1, torch.float64, torch.device("cpu"))
    job = Job(problem, METHODS["fedavg"](), Schedule(seed=0, cohort=1, lr=0.1, work=fixed(3), unit="steps"))
    x, state = nn.Parameter(problem.init(0)), run(job, 0)
    takes = torch.optim.SGD([x], lr=1.3, momentum=0.8, nesterov=True)
    for _ in range(6):
        state = advance(job, state._replace(server=state.server._replace(x=x.detach().clone())))
        x.grad = x.detach() - state.server.x
        takes.step()
    mine = run(replace(job, algorithm=with_server(job.algorithm, nesterov(0.8, 1.3))), 6).server.x
    torch.testing.assert_close(mine, x.detach(), rtol=1e-12, atol=1e-12)
    plain, scaled = (replace(job, algorithm=with_server(job.algorithm, o)) for o in (nesterov(0.0, 0.5), sgd(0.5)))
    assert torch.equal(run(plain, 3).server.x, run(scaled, 3).server.x)


# -- shapes, and what is refused ------------------------------------------------------------------------------------


def test_hidden_matrices_are_those_of_linear_layers_and_convolutions_but_the_last() -> None:
    model = nn.Sequential(
        nn.Embedding(5, 4), nn.Conv2d(2, 3, 5), nn.GroupNorm(1, 3), nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 2)
    )
    layout = Layout(model)
    x = layout.flatten(model)
    first, second = layout.matrices(model)
    assert (first[1:], second[1:]) == ((3, 50), (7, 6))
    for (begin, rows, columns), weight in ((first, model[1].weight), (second, model[3].weight)):
        assert torch.equal(x[begin : begin + rows * columns].view(rows, columns), weight.flatten(1))
    assert Layout(nn.Linear(3, 2)).matrices(nn.Linear(3, 2)) == ()


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if make(name).needs.normaliser])
def test_what_divides_by_the_response_of_linear_steps_is_refused(name: str) -> None:
    algorithm = with_optimiser(make(name), adamw())
    reason = algorithm.refuse(None, 5)  # type: ignore[arg-type]
    if make(name).needs.mean_gradient:
        assert reason is None or "||a_i||_1" not in reason
    else:
        assert reason is not None
        assert "which steps of adamw do not have" in reason


@pytest.mark.parametrize(
    ("solver", "words"),
    [
        (Solver(momentum=0.5), "adamw has moments of its own; set local.momentum 0"),
        (Solver(kind="lbfgs"), "prescribes the local steps, and so does adamw"),
        (Solver(pace=delta()), "a rule of step sizes looks at directions, which adamw replaces"),
        (Solver(clip_direction=1.0, clip_form="released"), "is of plain steps; use whole with adamw"),
    ],
)
def test_settings_that_do_not_go_with_an_optimiser(solver: Solver, words: str) -> None:
    assert words in str(refuse(solver, with_optimiser(METHODS["fedavg"](), adamw())))


def test_muon_without_a_hidden_matrix_is_one_sentence() -> None:
    with pytest.raises(UserError, match="muon is for hidden weight matrices, and this model has none"):
        with_optimiser(METHODS["fedavg"](), muon()).start(vectors(D), (), None)  # type: ignore[arg-type]


def test_a_methods_local_problem_keeps_its_pieces() -> None:
    local: Local = with_optimiser(METHODS["fedprox"](0.5), lion()).start(vectors(D), (), None)  # type: ignore[arg-type]
    assert [type(piece).__name__ for piece in local.pieces] == ["Pull", "Lion"]
