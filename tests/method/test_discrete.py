"""Noise on whole numbers: the sampler against its exact law, what one message can move, what the noise spends, and the
attack on floating-point noise, which works on that and finds nothing here."""

import ast
import math
from dataclasses import replace
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from dp_accounting.pld import privacy_loss_distribution as losses
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm
from test_privacy import DELTA, SEED, D, S, job

from fedconcord.execution.engines import Stacked, Wire
from fedconcord.execution.engines.distributed import Ranks
from fedconcord.execution.job import accountant, plan_of, start
from fedconcord.execution.messages.terms import Scale
from fedconcord.federation.objectives import quadratics
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Population, Sender, discrete, rng, space_of, tree_leaves, tree_map
from fedconcord.method.contract.grid import Grid, whole_bits
from fedconcord.method.contract.round import cohort_of
from fedconcord.method.wrappers.forms import forms
from fedconcord.method.wrappers.privacy import with_privacy
from fedconcord.support.errors import UserError
from fedconcord.testing.bench import run
from table import make

# -- the sampler ---------------------------------------------------------------------------------------------------


def words(seed: int) -> discrete.Words:
    return np.random.Philox(seed).random_raw


def exact(sigma: float, most: int) -> np.ndarray:
    """P(k) for k = -most .. most."""
    k = np.arange(-most, most + 1)
    mass = np.exp(-(k**2) / (2 * sigma**2))
    return np.asarray(mass / mass.sum())


def misfit(observed: np.ndarray, chances: np.ndarray) -> float:
    """The chi-square statistic's chance to be larger."""
    expected = observed.sum() * chances
    return float(chi2.sf(((observed - expected) ** 2 / expected).sum(), len(chances) - 1))


@pytest.mark.parametrize("bits", [0, 1, 3])
def test_small_deviations_have_their_exact_law(bits: int) -> None:
    most = 4 << bits
    drawn = discrete.discrete(words(1), 400_000, bits)
    assert drawn.dtype == np.int64
    tails = np.clip(drawn, -most, most) + most
    chances = exact(2**bits, 40 << bits)
    middle = chances[36 << bits : -(36 << bits)].copy()
    middle[[0, -1]] += chances[: 36 << bits].sum()
    assert misfit(np.bincount(tails, minlength=2 * most + 1), middle) > 1e-3


def test_the_noise_itself_has_its_law_and_all_low_bits() -> None:
    """SIGMA is so large that cells of the continuous law are those of the discrete one to 10^-7."""
    drawn = discrete.discrete(words(2), 400_000)
    edges = norm.ppf(np.arange(1, 64) / 64) * 2**24
    assert misfit(np.bincount(np.searchsorted(edges, drawn), minlength=64), np.full(64, 1 / 64)) > 1e-3
    assert misfit(np.bincount(drawn & 255, minlength=256), np.full(256, 1 / 256)) > 1e-3
    assert misfit(np.bincount(drawn + 2**40 >> 16 & 1), np.full(2, 0.5)) > 1e-3
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / math.sqrt(len(drawn))


def decimals(k: int, bits: int, tall: int = 32) -> Decimal:
    """2^tall exp(-k^2 / (2 s^2)) to 60 digits."""
    with localcontext(prec=60):
        return (-Decimal(k * k) / Decimal(2 * 4**bits)).exp() * 2**tall


def word_of(point: int, place: int, bits: int, sign: int = 0) -> int:
    low = max(bits - 8, 0)
    return point << low + 1 | sign << low | place


@pytest.mark.parametrize("bits", [3, 10, 24])
def test_a_point_is_kept_where_it_is_below_the_curve(bits: int) -> None:
    """Of every cell the lowest and highest points and those at the curve, at its ends, against 60 digits of it."""
    low, last, made = max(bits - 8, 0), 0, []
    width = 1 << low
    for cell in range(32 << bits - low):
        high = int(decimals(cell << low, bits)) + 1
        for place in {0, width - 1}:
            k = (cell << low) + place
            curve = decimals(k, bits)
            for height in {0, high - 1, int(curve) - 2, int(curve) + 1}:
                if 0 <= height < high and not height < curve < height + 1:  # that point is a coin, below
                    made.append((last + height, place, k, height < curve))
        last += high
    cells = discrete._cells(bits)
    assert cells.ends[-1] == last
    row = np.array([word_of(point, place, bits) for point, place, _, _ in made], np.uint64)
    middle = np.array([2**63], np.uint64)
    kept, numbers = discrete._points(lambda n: row if n > 1 else middle, len(row), cells)
    assert numbers.tolist() == [k for _, _, k, _ in made]
    assert kept.tolist() == [is_below for _, _, _, is_below in made]
    assert set(kept.tolist()) == {True, False}
    signs = np.array([word_of(point, 0, bits, 1) for point in (0, last - 1, last)], np.uint64)
    assert discrete._points(lambda n: signs, 3, cells)[0].tolist()[0] is False  # zero has one sign
    above = 2 ** (63 - low) // last * last
    over = np.array([word_of(above - last, 0, bits), word_of(above, 0, bits)], np.uint64)
    assert discrete._points(lambda n: over, 2, cells)[0].tolist() == [True, False]


def test_a_point_that_the_curve_passes_through_is_a_coin_of_as_many_bits_as_it_takes() -> None:
    k, n = 20_000_000, 20_000
    part = decimals(k, 24) % 1
    height, draw = int(decimals(k, 24)), words(3)
    count = sum(discrete._is_below(draw, height, k, 24) for _ in range(n))
    chance = float(part)
    assert 0.05 < chance < 0.95
    assert abs(count - n * chance) <= 5 * math.sqrt(n * chance * (1 - chance))
    digits = int(decimals(k, 24, 32 + 128)) - (height << 128)  # the first 128 bits of the coin's chance
    for other, is_below in ((digits - 2, True), (digits + 2, False)):
        row = [other >> 64, other & 2**64 - 1, 2**63]
        assert discrete._is_below(lambda n, row=row: np.array([row.pop(0)], np.uint64), height, k, 24) is is_below
        assert len(row) < 2  # the first 64 did not tell


def test_it_takes_words_and_gives_whole_numbers_and_no_float_is_between() -> None:
    tree = ast.parse(Path(discrete.__file__).read_text())
    divided = [node.left for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    assert [ast.unparse(node) for node in divided] == ["-Decimal(k * k)"]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, float)]
    assert all(part.dtype == np.int64 for part in discrete._cells(24)[2:])
    same = [rng.noise(50, 1, 2, 3) for _ in range(2)]
    assert np.array_equal(*same)
    others = [rng.noise(50, *key) for key in ((2, 2, 3), (1, 3, 3), (1, 2, 4))]
    assert not any(np.array_equal(same[0], other) for other in others)


# -- what one message can move -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 300),
    st.floats(1e-6, 1e6),
    st.floats(1e-3, 1e4),
    st.floats(-12, 12),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_no_message_is_longer_than_its_bound(
    seed: int, length: int, clip: float, noise: float, size: float, dtype: torch.dtype
) -> None:
    """Counted in Python's integers: the square of the norm is at most (2^24 / z)^2, and rounding costs half a step."""
    draw = np.random.default_rng(seed)
    vector = draw.standard_normal(length) * draw.integers(0, 2, length) + draw.choice([0.0, 0.5, 1.0])
    u = torch.as_tensor(10.0**size * clip * vector).to(dtype)
    whole = Grid(clip, noise).integers((u,))[0]
    assert whole.dtype == torch.int64
    square, most = sum(k * k for k in whole.tolist()), 2**24 / noise
    assert square <= most**2
    kept = u.double() * min(
        1.0, (clip - math.sqrt(length) / 2 * noise * clip / 2**24) / max(float(u.double().norm()), 1e-300)
    )
    back = Grid(clip, noise).numbers((whole,), torch.float64)[0]
    rounding = 0.5 * noise * clip / 2**24
    assert float((back - kept).abs().max()) <= (1 + 1e-6) * rounding + (length + 8) * 2.0**-51 * clip


def test_a_message_beside_the_grid_is_one_sentence_or_zeros() -> None:
    with pytest.raises(UserError, match="leaves nothing of a message of 4 numbers"):
        Grid(1.0, 2.0**24).integers((torch.ones(4),))
    for bad in (math.nan, math.inf, 1e300):
        assert not Grid(1.0, 1.0).integers((torch.tensor([1.0, bad], dtype=torch.float64),))[0].any()
    with pytest.raises(UserError, match=r"privacy.noise 1e-05 protects nobody; give 0"):
        start(job(with_privacy(METHODS["fedavg"](), 1.0, 1e-5, "central", S)))


# -- what it spends ------------------------------------------------------------------------------------------------


def stick(upper: np.ndarray, lower: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum())


@pytest.mark.parametrize("q", [1.0, 0.3])
@pytest.mark.parametrize(("sigma", "shift"), [(8.0, (3, 0)), (8.0, (5, 4)), (16.0, (11, 2))])
def test_the_discrete_gaussian_spends_no_more_than_a_continuous_one(
    sigma: float, shift: tuple[int, int], q: float
) -> None:
    """By its exact law in two dimensions, subsampled, in both directions: never above a Gaussian of variance less r^2.

    r = 2 here, whose eta is 10^-34; the grid's is 4.
    """
    most = int(12 * sigma)
    here = exact(sigma, most)
    there = [np.roll(here, by) for by in shift]
    without, moved = np.outer(here, here), np.outer(*there)
    mixed = (1 - q) * without + q * moved
    length, s = math.hypot(*shift), math.sqrt(sigma**2 - 4)
    x = np.linspace(-14 * s, length + 14 * s, 400_001)
    step = x[1] - x[0]
    plain, other = norm.pdf(x, 0, s) * step, norm.pdf(x, length, s) * step
    blend = (1 - q) * plain + q * other
    for epsilon in (0.05, 0.2, 0.5, 1.0, 2.0):
        discrete_one = max(stick(mixed, without, epsilon), stick(without, mixed, epsilon))
        continuous = max(stick(blend, plain, epsilon), stick(plain, blend, epsilon))
        assert discrete_one <= continuous * (1 + 1e-6) + 1e-15
        assert discrete_one >= 0.3 * continuous or continuous < 1e-6  # and it is not a loose bound


@pytest.mark.parametrize(("noise", "q", "rounds"), [(1.0, 1.0, 3), (2.0, 0.25, 30), (0.7, 0.1, 20)])
def test_epsilon_is_that_of_the_librarys_discrete_gaussian(noise: float, q: float, rounds: int) -> None:
    """dp-accounting's own distribution of the discrete Gaussian on integers, of sensitivity 64, not 2^24 / z."""
    ours = accountant.spending(noise, "central", None if q == 1.0 else q, DELTA).epsilon(rounds)
    sampled = {} if q == 1.0 else {"sampling_prob": q}
    one = losses.from_discrete_gaussian_mechanism(noise * 64, 64, value_discretization_interval=1e-4, **sampled)
    assert ours == pytest.approx(one.self_compose(rounds).get_epsilon_for_delta(DELTA), rel=2e-3)


def test_the_noise_that_is_accounted_is_smaller_by_what_rounding_takes() -> None:
    assert accountant.spending(2.0, "central", None, DELTA).noise ** 2 == pytest.approx(
        4 * (1 - 16 / 2.0**48), abs=1e-15
    )
    assert 2 * math.exp(-2 * math.pi**2 * 16) < 1e-136


# -- sums ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.3, 1.0, 40.0])
def test_masked_sums_take_whole_numbers_as_they_are(noise: float) -> None:
    bits, draw = whole_bits(noise), np.random.default_rng(0)
    scale, most = Scale(2.0**bits, bits), int(2**24 / noise)
    assert most <= 2**bits < 2 * most + 2
    rows = draw.integers(-most, most + 1, (7, 100_000))
    rows[:, :2] = most, -most
    nearly = np.nextafter(1.0, 0.0)
    for uniform in (np.zeros(100_000), np.full(100_000, nearly), draw.random(100_000)):
        masked = [scale.integers(row.astype(np.float64), uniform, 7) for row in rows]
        total = scale.numbers(np.sum(masked, axis=0, dtype=masked[0].dtype))
        assert np.array_equal(total, rows.sum(0))


def sums_of(name: str, engine: Any, dtype: torch.dtype) -> Any:
    """The total of the first round's messages, as the method's server gets it."""
    totals: list[Any] = []
    private = with_privacy(METHODS[name](), 0.1, 1.0, "central", S)

    def update(server: Any, total: Any, now: Any) -> Any:
        totals.append(total)
        return private.update(server, total, now)

    problem = quadratics(1, 7, dtype, torch.device("cpu"), dim=D, blocks=5)
    run(replace(job(replace(private, update=update)), problem=problem, engine=engine), 1)
    return totals[0]


@pytest.mark.parametrize("engine", [Stacked(None), Stacked(2), Wire()])
def test_the_server_gets_whole_numbers_on_every_engine(engine: Any) -> None:
    total = sums_of("scaffold", engine, torch.float64)
    assert {leaf.dtype for leaf in total} == {torch.int64}
    again = sums_of("scaffold", Stacked(None), torch.float64)
    assert max(int((a - b).abs().max()) for a, b in zip(total, again, strict=True)) <= 1  # of a float's last bit


def test_processes_add_whole_numbers() -> None:
    """float32, in which a process's sums travel otherwise, ends at 2^24."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tree, counts = (torch.tensor([2**24 + 1, -(2**40) - 1]), torch.tensor([2**33 + 1])), (2**40 + 3, 5)
        total, summed = Ranks(0, 1, 60.0).total(tree, counts)
    finally:
        dist.destroy_process_group()
    assert all(torch.equal(a, b) and a.dtype == torch.int64 for a, b in zip(total, tree, strict=True))
    assert summed == counts


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedadmm", "feddyn"])
def test_the_model_is_a_function_of_the_noisy_sum_alone(name: str) -> None:
    """Messages that differ by less than half a step, in another order, from other clients, in a cohort of another size
    and other steps: in float32 the same server to the last bit."""
    plain, step = make(name), 0.1 / 2**24
    private = with_privacy(plain, 0.1, 1.0, "central", S)
    this = job(private)
    space = space_of(this.problem)._replace(dtype=torch.float32)
    now, draw = cohort_of(space, plan_of(this, start(this))), torch.Generator().manual_seed(0)
    form, servers = forms(plain, torch.ones(D)).up, list[Any]()
    whole = [tree_map(lambda _: torch.randint(-300_000, 300_000, (D,), generator=draw), form) for _ in range(S)]
    for turn, nudge in ((0, 0.0), (1, 0.4), (2, -0.4)):
        total: Any = None
        for i in [*range(turn, S), *range(turn)]:
            up = tree_map(lambda leaf, nudge=nudge: (leaf + nudge) * step, tree_map(torch.Tensor.double, whole[i]))
            one = torch.tensor(1.0 + turn)
            share = private.contribute(up, Sender(torch.tensor(i + turn), one, one, 3 * one, one, 0.1), now)
            total = share if total is None else tree_map(torch.add, total, share)
        assert all(
            torch.equal(a, sum(b)) for a, b in zip(leaves(total), zip(*map(leaves, whole), strict=True), strict=True)
        )
        server = plain.init(torch.linspace(-1, 1, D), Population(7, torch.full((7,), 1 / 7)))
        changed = now._replace(size=S - turn, mass=0.1 + turn, mean_steps=2.0 + turn)
        servers.append(private.update(server, total, changed))
    assert all(
        torch.equal(a, b) for other in servers[1:] for a, b in zip(leaves(servers[0]), leaves(other), strict=True)
    )
    assert {leaf.dtype for leaf in leaves(servers[0])} == {torch.float32}


def leaves(tree: Any) -> list[torch.Tensor]:
    return [*tree_leaves(tree).values()]


# -- the attack ----------------------------------------------------------------------------------------------------


def impossible(x: np.ndarray, seen: np.ndarray, total: np.ndarray) -> int:
    """In how many coordinates no float32 noise on this total leads from model x to the model that was seen."""
    near = (seen.astype(np.float64) - x - total).astype(np.float32)
    ulp = np.spacing(np.maximum(np.abs(near), np.abs(total)).astype(np.float32)).astype(np.float64)
    reached = np.zeros(len(x), bool)
    for k in range(-40, 41):
        noise = (near + k * np.spacing(near)).astype(np.float32)
        reached |= x + (total + noise) == seen
        noise = (near + k * ulp / 8).astype(np.float32)
        reached |= x + (total + noise) == seen
    return int((~reached).sum())


def test_the_attack_works_on_floating_point_noise_and_finds_nothing_here() -> None:
    """Models of sums with a site and without it: which of the two was it? Whoever attacks knows all else.

    Of float32 noise that is added to a float32 sum, some coordinates of the model could not have come about with the
    wrong sum. Of whole numbers each could, by noise whose chance the accountant has: the server's own update is tried.
    """
    d, sites, trials = 4000, 4, 10
    draw, right, told = np.random.default_rng(5), 0, 0
    private = with_privacy(METHODS["fedavg"](), 1.0, 1.0, "central", sites)
    problem = quadratics(1, 7, torch.float32, torch.device("cpu"), dim=2, blocks=5)
    this = job(private, cohort=sites)
    now = cohort_of(space_of(problem)._replace(dim=d), plan_of(this, start(this)))
    one = torch.tensor(1.0)
    sender = Sender(torch.tensor(0), one, one, one, one, 0.1)
    for trial in range(trials):
        ups = draw.standard_normal((sites, d)).astype(np.float32)
        ups /= np.linalg.norm(ups, axis=1, keepdims=True)
        x = draw.standard_normal(d).astype(np.float32) * np.float32(1e-3)
        took_part = trial % 2 == 0
        sums = {True: ups.sum(0), False: ups[1:].sum(0)}
        seen = x + (sums[took_part] + draw.standard_normal(d).astype(np.float32))
        assert impossible(x, seen, sums[took_part]) == 0
        right += impossible(x, seen, sums[not took_part]) > 0

        server = private.init(torch.as_tensor(x), Population(7, torch.full((7,), 1 / 7)))
        whole = torch.stack([private.contribute(torch.as_tensor(up), sender, now) for up in ups])

        def model(total: torch.Tensor, noise: torch.Tensor, server: Any = server) -> torch.Tensor:
            return private.update(server, total, now._replace(discrete=lambda n: noise)).x

        noise = torch.as_tensor(rng.noise(d, SEED, trial, 0))
        came = model(whole.sum(0) if took_part else whole[1:].sum(0), noise)
        near = ((came.double() - torch.as_tensor(x)) * sites * 2**24).round().long()
        for total in (whole.sum(0), whole[1:].sum(0)):
            tries = [model(total, near + k - total) == came for k in range(-16, 17)]
            told += int((~torch.stack(tries).any(0)).sum())
            assert int((near - total).abs().max()) < 10 * 2**24  # a noise that is drawn
    assert right == trials
    assert told == 0


def likelihood(model: np.ndarray, total: np.ndarray) -> float:
    """log P of a noisy sum, up to a constant of both hypotheses."""
    return float(-(((model - total) / 2**24) ** 2).sum() / 2)


def test_the_best_test_of_who_took_part_errs_as_often_as_epsilon_says() -> None:
    """Neyman-Pearson on the noisy sum, one message of full length: it errs as N(0, 1) against N(1/z, 1)."""
    trials, noise, d = 4000, 1.0, 8
    message = Grid(1.0, noise).integers((torch.full((d,), 10.0),))[0].numpy()
    drawn = rng.noise(trials * d, SEED, 77, 0).reshape(trials, d)
    ratios = [likelihood(n + message, message) - likelihood(n + message, 0 * message) for n in drawn]
    missed = float(np.mean(np.array(ratios) < 0))
    want = norm.cdf(-1 / (2 * noise))
    assert abs(missed - want) < 5 * math.sqrt(want * (1 - want) / trials)
