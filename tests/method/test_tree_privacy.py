"""Noise of a tree, for batches without coins: against the tree by hand, what a sample moves, what it costs, engines."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_person_privacy import OWNERS, PERSONS, rows_of
from test_privacy import DELTA, analytic
from test_sample_privacy import CLIP, COVERED, NOISE, SEED, SIZES, config_of, problem, settings

import fedconcord
from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import Job, advance, plan_of, start
from fedconcord.execution.job.refusals import reasons
from fedconcord.federation.objectives.persons import Persons
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import Keyed, disjoint, fixed, poisson, uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Orders, rng
from fedconcord.method.contract.discrete import SIGMA
from fedconcord.method.step.assignment import with_conditions
from fedconcord.method.step.noise import nodes
from fedconcord.method.wrappers.samples import with_sample_privacy
from fedconcord.study.settings.privacy import budget_of, privacy_note
from fedconcord.support.errors import UserError
from fedconcord.testing.bench import run
from table import TABLE, make

M, ONE = 5, NOISE * CLIP / SIGMA  # steps of a pass; a whole number's step
SHAPES = [*((m, m) for m in range(1, 18)), (3, 8), (7, 5), (12, 5), (26, 12), (4, 1)]  # steps, and of a pass


def job(algorithm: Algorithm, engine: Any = None, noise: float = NOISE, of: Any = None, m: int = M) -> Job:
    schedule = Schedule(SEED, len(SIZES), 0.1, uniform(1, 12), "steps", disjoint(m))
    return Job(
        of or problem(), with_sample_privacy(algorithm, CLIP, noise, 1 / m, m), schedule, engine=engine or Serial()
    )


def cover(t: int, n: int) -> list[int]:
    """The last steps of the nodes that cover steps 1..t of n: blocks of the powers of two in t, or the root."""
    if t == n:
        return [n]
    powers = [1 << j for j in reversed(range(t.bit_length())) if t >> j & 1]
    return np.cumsum(powers, dtype=int).tolist()


def by_hand(draws: Any, k: int, steps: int, m: int) -> Any:
    """The noise of step k of a round: that of the steps of its pass up to it, less that up to the step before."""
    first = k // m * m
    n, t = min(first + m, steps) - first, k - first + 1
    return sum(draws[first + e - 1] for e in cover(t, n)) - sum(draws[first + e - 1] for e in cover(t - 1, n))


@pytest.mark.parametrize("persons", [False, True])
@pytest.mark.parametrize("noise", [NOISE, 0.0])
@pytest.mark.parametrize("engine", [Serial(), Stacked(), Stacked(chunk=2), Wire()])
def test_local_steps_are_disjoint_batches_with_the_trees_noise(engine: Any, noise: float, persons: bool) -> None:
    """Every client's steps of a round by hand, with passes that the round cuts short, and batches of nobody."""
    rows, ends = rows_of(), []
    one = job(METHODS["fedavg"](weights="uniform"), engine, noise, Persons(rows, PERSONS) if persons else rows)
    x0 = one.problem.init(SEED)
    plan = plan_of(one, start(one))
    for client, steps in zip(plan.ids.tolist(), plan.steps.tolist(), strict=True):
        first = sum(SIZES[:client])
        whose = [*dict.fromkeys(OWNERS[client])] if persons else [*range(SIZES[client])]
        groups = [[j for j, owner in enumerate(OWNERS[client]) if owner == p] if persons else [p] for p in whose]
        n, x = len(groups), x0.clone()
        order = rng.generator(SEED, rng.Purpose.BATCH, 0, client)
        batches = [part[k::M] for part in (order.permutation(n) for _ in range(3)) for k in range(M)]
        draws = [torch.as_tensor(rng.noise(len(x), SEED, 0, client, k)) for k in range(steps)]
        for k in range(steps):
            total = by_hand(draws, k, steps, M) * ONE if noise else torch.zeros_like(x)
            for p in batches[k]:
                each = [rows.objective.gradient(x, torch.tensor([first + j])) for j in groups[p]]
                g = torch.stack(each).mean(0)
                total = total + g * min(1.0, CLIP / float(g.norm()))
            x = x - 0.1 * total / (n / M)
        ends.append(x)
    tolerance = 1e-6 if noise else 1e-12  # of whole numbers, in steps of z C / 2^24
    torch.testing.assert_close(advance(one, start(one)).server.x, torch.stack(ends).mean(0), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", sorted(COVERED))
def test_engines_agree_on_every_method_that_coins_cover(name: str) -> None:
    ends = []
    for engine in (Serial(), Stacked(), Stacked(chunk=2), Wire()):
        one = job(make(name), engine)
        assert not list(reasons(one))
        ends.append(run(one, 2).server.x)
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=0, atol=1e-5)


def test_no_other_method_is_covered() -> None:
    assert {name for name in TABLE if not list(reasons(job(make(name))))} == COVERED


def test_one_step_a_pass_is_every_sample_in_every_step_to_the_bits() -> None:
    tree = job(METHODS["scaffold"](), m=1)
    coins = replace(tree, schedule=replace(tree.schedule, batch_size=poisson(1.0)))
    assert torch.equal(run(tree, 2).server.x, run(coins, 2).server.x)


# -- what is seen, and what a sample moves ---------------------------------------------------------------------------


def steps_of(steps: int, m: int, draw: Any = rng.noise, seed: int = SEED) -> Any:
    """The gradients of the local steps of client 2, by the step's number, in whole numbers of z C / SIGMA."""
    one = job(METHODS["fedavg"](), m=m)
    assert one.algorithm.step.noise is not None
    step = one.algorithm.step._replace(noise=one.algorithm.step.noise._replace(draw=draw))
    algorithm, orders = replace(one.algorithm, step=step), [Orders(0, 2, steps, 0.1, seed)]
    x = one.problem.init(SEED)
    few = with_conditions(one.problem.objective, algorithm, x, (), np.array([2]), orders)

    def gradient(k: int, x: torch.Tensor, samples: list[int]) -> torch.Tensor:
        g = few.taking(slice(None), k).gradient(x, torch.tensor(samples, dtype=torch.int64))
        return g * (SIZES[2] / m / ONE)

    return gradient


def mixing(steps: int, m: int) -> np.ndarray:
    """[K, K] the noise of each step from the draw of each, by draws that are unit vectors."""
    gradient = steps_of(steps, m, lambda n, seed, round, client, step: np.eye(n, dtype=np.int64)[step])
    x = problem().init(SEED)
    out = torch.stack([gradient(k, x, [])[:steps] for k in range(steps)]).numpy()
    np.testing.assert_allclose(out, out.round(), rtol=0, atol=1e-6)
    whole: np.ndarray = out.round()
    return whole


@pytest.mark.parametrize(("steps", "m"), SHAPES)
def test_the_noise_is_a_trees_and_a_sample_is_in_as_many_nodes_as_are_counted(steps: int, m: int) -> None:
    """The inverse of the mixing says which steps are below each node: a sample's nodes are a column's ones."""
    mixed = mixing(steps, m)
    identity = np.eye(steps)
    np.testing.assert_array_equal(mixed, np.stack([by_hand(identity, k, steps, m) for k in range(steps)]))
    below = np.linalg.inv(mixed)
    np.testing.assert_allclose(below, below.round(), rtol=0, atol=1e-12)
    assert set(np.unique(below.round())) <= {0.0, 1.0}
    counts = below.round().sum(0)
    most = [counts[first : first + m].max() for first in range(0, steps, m)]
    assert nodes(steps, m) == sum(most)
    lengths = [min(m, steps - first) for first in range(0, steps, m)]
    assert sum(most) == sum(math.ceil(math.log2(n)) + 1 for n in lengths)
    prefix = mixed.cumsum(0)  # N_t over the draws: a node a digit of t, and one for each pass before
    assert set(np.unique(prefix)) <= {0.0, 1.0}
    digits = [1 if k % m == lengths[k // m] - 1 else (k % m + 1).bit_count() for k in range(steps)]
    assert prefix.sum(1).tolist() == [k // m + one for k, one in enumerate(digits)]


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_removing_a_sample_moves_the_nodes_above_its_step_by_the_bound_and_no_others(scale: float) -> None:
    """By brute force: each sample of a client in turn, in a pass of five steps of which the last has two samples."""
    first, parts, below = sum(SIZES[:2]), [list(range(k, 13, M)) for k in range(M)], np.linalg.inv(mixing(M, M))
    x = problem().init(SEED) * scale + 0.1
    whole, bound, longest = steps_of(M, M), SIGMA / NOISE, 0.0
    y = torch.stack([whole(k, x, [first + j for j in part]) for k, part in enumerate(parts)])
    for sample in range(13):
        rest = [[first + j for j in part if j != sample] for part in parts]
        without = steps_of(M, M)
        others = torch.stack([without(k, x, part) for k, part in enumerate(rest)])
        moved = (torch.as_tensor(below) @ (y - others)).norm(dim=1)
        assert float(moved.max()) <= bound * (1 + 1e-12) + 1e-3
        assert ((moved > 1e-3).numpy() <= (below[:, sample % M] > 0.5)).all()
        longest = max(longest, float(moved.max()))
    assert longest > 0.99 * bound or scale == 0.1  # the bound is met, or the test could not fail


def test_the_best_attack_on_a_pass_is_as_strong_as_epsilon_says() -> None:
    """The likelihood ratio of a sample of the first step, from what steps release: its square is that of as many nodes
    as are accounted, where noise by step would make it one."""
    m, x = 8, problem().init(SEED)
    drawn = []
    for seed in range(400):
        gradient = steps_of(m, m, seed=seed)
        drawn.append(torch.stack([gradient(k, x, []) for k in range(m)]))
    noise = torch.cat(drawn, dim=1).numpy() / SIGMA  # [m, trials]
    covariance = noise @ noise.T / noise.shape[1]
    power = np.linalg.inv(covariance).diagonal()  # z^2 times the square of the best test's separation, by step
    assert power[0] == pytest.approx(nodes(m, m), rel=0.05)
    assert power.max() < nodes(m, m) * 1.05
    spread = noise.cumsum(0).var(1)
    np.testing.assert_allclose(spread, [1, 1, 2, 1, 2, 2, 3, 1], rtol=0.06)  # digits of t, and the root


def test_steps_are_taken_once_and_in_order() -> None:
    gradient, x = steps_of(4, 4), problem().init(SEED)
    gradient(0, x, [])
    for k in (0, 2):
        with pytest.raises(AssertionError):
            gradient(k, x, [])


# -- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(13, 5), (20, 5), (3, 5), (1, 4), (7, 1)])
def test_batches_are_parts_of_a_pass(n: int, m: int) -> None:
    draws = Keyed(SEED, disjoint(m))
    batches = draws.draw(METHODS["fedavg"](), Orders(0, 0, 3 * m + 1, 0.1, SEED), n).batches
    assert batches is not None
    assert len(batches) == 3 * m + 1
    orders = [batches[p * m : (p + 1) * m] for p in range(3)]
    for one in orders:
        assert sorted(one[one >= 0].tolist()) == list(range(n))
        counts = (one >= 0).sum(1)
        assert counts.max() - counts.min() <= 1
    assert n < 5 or m == 1 or len({one.tobytes() for one in orders}) == 3
    assert draws.width(METHODS["fedavg"](), n) == batches.shape[1] == math.ceil(n / m)


# -- what is spent -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("local", "times"),
    [
        ({}, 6),  # a pass of 20 steps: five levels and the root
        ({"local.batch_size": "disjoint(16)"}, 5),
        ({"local.batch_size": "disjoint(1)"}, 1),
        ({"local.epochs": "uniform(1,3)"}, 18),
        ({"local.steps": 7}, 4),
        ({"local.steps": 45}, 16),
        ({"local.steps": "uniform(2,21)"}, 7),
    ],
)
@pytest.mark.parametrize("unit", ["sample", "person"])
def test_a_round_spends_what_its_nodes_do(local: dict[str, Any], times: int, unit: str) -> None:
    """The closed form of one Gaussian mechanism whose mean a sample moves by C sqrt(nodes): Balle and Wang, 2018."""
    more = {"local.batch_size": "disjoint(20)", "privacy.noise": 3.0, "privacy.unit": unit}
    budget = budget_of(config_of(**{**more, **local}))
    assert budget is not None
    assert budget.spending.steps == times
    exact = analytic(3.0 / math.sqrt(3 * times), budget.spending.epsilon(3))
    assert 0.98 * DELTA < exact <= DELTA * (1 + 1e-6)


def test_noise_is_found_for_the_nodes_and_said() -> None:
    config = config_of(**{"local.batch_size": "disjoint(20)", "privacy.noise": None, "privacy.epsilon": 4.0})
    said = str(privacy_note(config))
    assert config.privacy.noise is not None
    assert 0.99 * DELTA < analytic(config.privacy.noise / math.sqrt(18), 4.0) <= DELTA
    assert "noise of a binary tree over the 20 local steps of a pass, each sample in one of them and in 6 nodes" in said


def test_clients_beside_samples_spend_by_the_noise_of_their_sum_as_ever() -> None:
    tree, pair = {"local.batch_size": "disjoint(20)"}, {"privacy.client_clip": 0.05, "privacy.client_noise": 2.0}
    both, alone, coins = (budget_of(config_of(**more)) for more in ({**tree, **pair}, tree, pair))
    assert both is not None
    assert alone is not None
    assert coins is not None
    assert both.spending == alone.spending != coins.spending
    assert both.of_client == coins.of_client


def test_rounds_count_for_who_is_in_them() -> None:
    """The nodes of the rounds of the client that is drawn for most."""
    more = {"clients": 12, "cohort": 3, "rounds": 20, "sampling": "uniform", "privacy.noise": 9.0}
    budget = budget_of(config_of(**more, **{"local.batch_size": "disjoint(20)"}))
    assert budget is not None
    assert budget.spending.most is not None
    most = budget.spending.most[-1]
    assert most < 20
    assert 0.98 * DELTA < analytic(9.0 / math.sqrt(6 * most), budget.spending.epsilon(20)) <= DELTA * (1 + 1e-6)


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    many = {"local.batch_size": "disjoint(6)", "local.epochs": "uniform(1,2)"}
    fedconcord.run(settings=settings(**many), out=tmp_path / "whole")
    fedconcord.run(settings=settings(**many, rounds=1), out=tmp_path / "parts")
    fedconcord.run(resume=tmp_path / "parts", rounds=3)
    once, again = (load_file(tmp_path / one / "model.safetensors") for one in ("whole", "parts"))
    assert all(torch.equal(once[name], again[name]) for name in once)
    privacy = json.loads((tmp_path / "whole" / "run.json").read_text())["privacy"]
    assert privacy["unit"] == "sample"
    assert "in 8 nodes a round at most" in privacy["said"]


def test_batches_of_another_kind_or_number_are_refused() -> None:
    """In Python the schedule and the method are made apart; nodes are counted for the batches that the method names."""
    one = job(METHODS["fedavg"]())
    for size in (4, None, disjoint(M - 1), poisson(1 / M)):
        (why,) = reasons(replace(one, schedule=replace(one.schedule, batch_size=size)))
        assert why.endswith(f"by disjoint(5), given batch_size {size}; give the schedule work.disjoint(5)")


def test_batches_of_a_number_are_refused_with_both_ways_out() -> None:
    with pytest.raises(UserError, match=r"'poisson\(0.05\)' --dp-clip 1, or, without coins, 'disjoint\(20\)'"):
        config_of(**{"local.batch_size": 10})


def test_without_privacy_they_are_means_of_who_is_there() -> None:
    one = job(make("scaffold"))
    plain = replace(one, algorithm=make("scaffold"), schedule=replace(one.schedule, work=fixed(7)))
    ends = [
        run(replace(plain, engine=engine), 3).server.x for engine in (Serial(), Stacked(), Stacked(chunk=2), Wire())
    ]
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=0, atol=1e-12)
    assert bool(ends[0].isfinite().all())
