"""Robust rules against their formulas, attacks, breakdown, and replies that are not finite, on every engine."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import fedconcord
from fedconcord.execution.engines import Engine, Serial, Stacked, Wire, traffic_of
from fedconcord.execution.job import Job, State, advance, checkpoint, start
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.objectives.quadratic import Quadratic
from fedconcord.federation.participation.clock import lognormal
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Client, Done, Population, tree_leaves
from fedconcord.method.wrappers import hostile, robust
from fedconcord.method.wrappers.hostile import Attack, chosen, with_hostile
from fedconcord.method.wrappers.late import with_late_replies
from fedconcord.method.wrappers.robust import Rule, with_aggregate
from fedconcord.method.wrappers.server import adam, with_server
from fedconcord.method.wrappers.uploads import quantise, with_uploads
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from fedconcord.testing.bench import run
from table import TABLE, make

CPU = torch.device("cpu")
N = 10
SCHEDULE = Schedule(seed=3, cohort=7, lr=0.05, work=uniform(1, 4), unit="steps", batch_size=2)
ENGINES: tuple[Engine, ...] = (Stacked(None), Stacked(2), Wire())
ALLOWED = {name for name, row in TABLE.items() if row.mean}


def job(algorithm: Algorithm, engine: Engine | None = None, **changes: Any) -> Job:
    schedule = replace(SCHEDULE, **({"cohort": N} if algorithm.needs.everyone else {}) | changes)
    problem = quadratics(1, N, torch.float64, CPU, dim=6, blocks=5)
    problem.x0 = torch.linspace(-1, 1, 6, dtype=torch.float64)
    return Job(problem, algorithm, schedule, engine=engine or Serial())


def rows_of(state: State) -> dict[str, Tensor]:
    return tree_leaves(state.store.gather(np.arange(N)))


def assert_same(got: State, want: State, tolerance: float = 0.0) -> None:
    pairs = [(tree_leaves(got.server), tree_leaves(want.server)), (rows_of(got), rows_of(want))]
    for ours, theirs in pairs:
        assert ours.keys() == theirs.keys()
        for name, leaf in theirs.items():
            assert torch.equal(ours[name].isnan(), leaf.isnan()), name  # of clients that broke
            limit = tolerance * (1 + float(leaf.nan_to_num().abs().max()))
            assert float((ours[name] - leaf).nan_to_num().abs().max()) <= limit, name


# -- the rules, written out ----------------------------------------------------------------------------------------


def np_trimmed(rows: np.ndarray, share: float) -> np.ndarray:
    cut = int(np.floor(share * len(rows) + 1e-9))
    return np.stack([np.sort(column)[cut : len(rows) - cut].mean() for column in rows.T])


def np_krum_order(rows: np.ndarray, f: int) -> list[int]:
    scores = []
    for i, one in enumerate(rows):
        distances = sorted(float(((one - other) ** 2).sum()) for j, other in enumerate(rows) if j != i)
        scores.append(sum(distances[: len(rows) - f - 2]))
    return sorted(range(len(rows)), key=lambda i: scores[i])


def np_clipped(rows: np.ndarray, radius: float) -> np.ndarray:
    return np.stack([row * min(1.0, radius / np.linalg.norm(row)) for row in rows])


def np_centred(rows: np.ndarray, centre: np.ndarray, radius: float, iterations: int) -> np.ndarray:
    for _ in range(iterations):
        centre = centre + np_clipped(rows - centre, radius).mean(0)
    return centre


def drawn(count: int, bad: int = 0, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng([seed, count])
    rows = draw.standard_normal((count, 5))
    rows[:bad] = 1e3 + draw.standard_normal((bad, 5))
    return rows


class Written(NamedTuple):
    rule: Rule
    formula: Callable[[np.ndarray], np.ndarray]


FORMULAS = {
    "trimmed_mean": Written(robust.trimmed_mean(0.2), lambda r: np_trimmed(r, 0.2)),
    "median": Written(robust.median(), lambda r: np.median(r, axis=0)),
    "krum": Written(robust.krum(2), lambda r: r[np_krum_order(r, 2)[0]]),
    "multi_krum": Written(robust.multi_krum(2), lambda r: r[np_krum_order(r, 2)[: len(r) - 4]].mean(0)),
    "multi_krum(keep=2)": Written(robust.multi_krum(2, 2), lambda r: r[np_krum_order(r, 2)[:2]].mean(0)),
    "norm_clip": Written(robust.norm_clip(1.5), lambda r: np_clipped(r, 1.5).mean(0)),
    "centred_clip": Written(robust.centred_clip(1.5, 3), lambda r: np_centred(r, np.full(5, 0.1), 1.5, 3)),
}


def reduced(rule: Rule, rows: np.ndarray) -> np.ndarray:
    assert rule.reduce is not None
    found: np.ndarray = rule.reduce(
        torch.as_tensor(rows), torch.full((rows.shape[1],), 0.1, dtype=torch.float64)
    ).numpy()
    return found


@pytest.mark.parametrize("name", FORMULAS)
def test_a_rule_is_its_formula(name: str) -> None:
    for count, bad in ((7, 0), (10, 2), (15, 2)):
        rows = drawn(count, bad)
        np.testing.assert_allclose(reduced(FORMULAS[name].rule, rows), FORMULAS[name].formula(rows), rtol=1e-12)


def test_the_geometric_median_is_the_point_of_least_distances() -> None:
    """The unit vectors to the contributions sum to 0 there; and it stays put when a contribution moves outward."""
    rule = robust.geometric_median(iterations=2000)
    rows = drawn(9, 2)
    point = reduced(rule, rows)
    away = rows - point
    assert np.linalg.norm((away / np.linalg.norm(away, axis=1, keepdims=True)).sum(0)) < 1e-6
    farther = rows.copy()
    farther[0] = point + 1e4 * away[0]
    np.testing.assert_allclose(reduced(rule, farther), point, atol=1e-6)
    np.testing.assert_allclose(reduced(robust.geometric_median(), rows), point, atol=1e-2)  # the iterations by default


def test_rules_do_not_see_the_order_of_clients() -> None:
    rows = drawn(11, 2)
    other = rows[np.random.default_rng(0).permutation(11)]
    for rule in (robust.geometric_median(), *(written.rule for written in FORMULAS.values())):
        np.testing.assert_allclose(reduced(rule, other), reduced(rule, rows), rtol=1e-12, atol=1e-12)


BREAKS = {  # the most of 11 clients that a rule withstands
    "median": (robust.median(), 5),
    "geometric_median": (robust.geometric_median(200), 5),
    "trimmed_mean": (robust.trimmed_mean(0.2), 2),
    "krum": (robust.krum(4), 4),
    "multi_krum": (robust.multi_krum(4, 1), 4),
}


@pytest.mark.parametrize("name", BREAKS)
def test_the_breakdown_point(name: str) -> None:
    rule, most = BREAKS[name]
    for bad in (most, most + 1 if name != "krum" and name != "multi_krum" else 7):
        rows = drawn(11)
        rows[:bad] = 1e9  # all alike, which is what breaks Krum once they are many
        withstood = bool(np.abs(reduced(rule, rows)).max() < 20)
        assert withstood == (bad == most)


def test_clipping_bounds_what_one_client_can_do() -> None:
    rows = drawn(10)
    for rule in (robust.norm_clip(2.0), robust.centred_clip(2.0)):
        far, farther = (rows.copy() for _ in range(2))
        far[0], farther[0] = 1e3, 1e9
        assert np.linalg.norm(reduced(rule, far) - reduced(rule, rows)) <= 2 * 2.0 / 10 + 1e-12
        np.testing.assert_allclose(reduced(rule, farther), reduced(rule, far), atol=1e-6)


# -- in a round ----------------------------------------------------------------------------------------------------


def test_without_trimming_it_is_the_mean() -> None:
    for name in ("fedavg", "mfl", "fedcm"):
        plain = make(name)
        assert with_aggregate(plain, robust.mean()) is plain
        got, want = (run(job(a), 6) for a in (with_aggregate(plain, robust.trimmed_mean(0.0)), plain))
        for leaf, other in zip(tree_leaves(got.server.inner).values(), tree_leaves(want.server).values(), strict=True):
            torch.testing.assert_close(leaf, other, rtol=1e-12, atol=1e-13)


def test_every_client_counts_once_whatever_its_weight() -> None:
    """By size the total is the plain mean of the moves; with unbiased weights times their sum."""
    state = {}
    for weights in ("uniform", "size", "unbiased"):
        algorithm = with_aggregate(METHODS["fedavg"](weights=weights), robust.trimmed_mean(0.0))
        state[weights] = run(job(algorithm), 1)
    torch.testing.assert_close(state["size"].server.x, state["uniform"].server.x)
    begun = job(METHODS["fedavg"](weights="unbiased"))
    plan = begun.schedule.plan(0, begun.algorithm, begun.problem.roster)
    x0 = begun.problem.init(0)
    assert abs(plan.w.sum() - 1) > 0.01
    want = x0 + plan.w.sum() * (state["uniform"].server.x - x0)
    torch.testing.assert_close(state["unbiased"].server.x, want)


def test_the_centre_is_the_last_aggregate_or_moves_to_it() -> None:
    """Two rounds of centred_clip against the loop, from the moves that the clients' own steps make."""
    for momentum in (0.0, 0.6):
        this = job(with_aggregate(make("fedavg"), robust.centred_clip(0.05, 2, momentum)))
        plain = job(make("fedavg"))
        state, centre = start(this), np.zeros(6)
        for _ in range(3):
            plan = this.schedule.plan(state.round, this.algorithm, this.problem.roster)
            moves = []
            for i in plan.ids:  # each alone moves the model by its own move
                alone = replace(plain, schedule=_Only(plain.schedule, int(i)))
                after = advance(alone, start(alone)._replace(round=state.round, server=state.server.inner))
                moves.append((after.server.x - state.server.x).numpy())
            total = np_centred(np.stack(moves), centre, 0.05, 2)
            before, state = state, advance(this, state)
            np.testing.assert_allclose(state.server.x - before.server.x, total, rtol=1e-10)
            centre = momentum * centre + (1 - momentum) * total
            np.testing.assert_allclose(state.server.centre, centre, rtol=1e-10)


class _Only(NamedTuple):
    """A schedule of one client of each cohort."""

    whole: Any
    client: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def plan(self, round: int, algorithm: Algorithm, roster: Any, view: Any = None) -> Any:
        plan = self.whole.plan(round, algorithm, roster)
        here = plan.ids == self.client
        cut = type(plan)._make(v[here] if isinstance(v, np.ndarray) else v for v in plan)
        return cut._replace(w=np.ones(1))


COMPOSED: dict[str, Algorithm] = {
    "median": with_aggregate(make("fedavg"), robust.median()),
    "median, FedNova": with_aggregate(make("fednova"), robust.median()),
    "trimmed mean, MFL": with_aggregate(make("mfl"), robust.trimmed_mean(0.2)),
    "geometric median, FedCM": with_aggregate(make("fedcm"), robust.geometric_median()),
    "krum, FedSaga": with_aggregate(make("fedsaga"), robust.krum(2)),
    "multi-krum, FedAdam": with_aggregate(make("fedadam"), robust.multi_krum(2)),
    "clip, server optimiser, uploads": with_server(
        with_uploads(with_aggregate(make("fedavg"), robust.centred_clip(0.5, 2, 0.5)), quantise(127, feedback=True)),
        adam(),
    ),
    "median, FedPAQ": with_aggregate(make("fedpaq"), robust.median()),
}
ATTACKS: dict[str, Attack] = {
    "sign_flip": hostile.sign_flip(0.2, 3.0),
    "gaussian": hostile.gaussian(0.3, 0.5),
    "same_value": hostile.same_value(0.2, -2.0),
    "nan": hostile.nan(0.3),
    "ipm": hostile.ipm(0.2, 2.0),
    "alie": hostile.alie(0.2, 1.5),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_engines_agree_under_attack(name: str) -> None:
    attacks = ATTACKS if name == "median" else {k: ATTACKS[k] for k in ("nan", "alie", "gaussian")}
    for attack in attacks.values():
        this = job(with_hostile(COMPOSED[name], attack, 3, N))
        want = run(this, 3)
        for engine in ENGINES:
            got = run(replace(this, engine=engine), 3)
            assert_same(got, want, 1e-12)
            counts = [(s.bytes_up, s.bytes_down, s.gradient_steps, s.refused) for s in (got, want)]
            assert counts[0] == counts[1]
        assert bool(want.refused) == (attack is ATTACKS["nan"])


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"vrlsgd", "fedpd", "fedhybrid", "afl"}))
def test_a_reply_that_is_not_finite_changes_nothing_for_the_others(name: str) -> None:
    """Bit for bit the schedule that loses the same clients; and the engines agree, rows and bytes included."""
    broken = set(chosen(hostile.nan(0.3), 3, N))
    plain = METHODS["fedavg"](weights="size") if name == "fedavg" else make(name)
    this = job(with_hostile(plain, hostile.nan(0.3), 3, N))
    without = job(plain, dropout=lambda seed, client: float(client in broken))
    for engine in (Serial(), Stacked(2)):
        got, want = (run(replace(one, engine=engine), 4) for one in (this, without))
        assert sum(got.refused.values()) > 2
        assert set(got.refused) <= broken
        assert got.store.ids().tolist() == want.store.ids().tolist()
        if name != "mimesvrg":  # whose gradients came before anything was wrong
            assert_same(got, want)
    wired = run(replace(this, engine=Wire()), 4)
    assert_same(wired, got, 1e-12)
    counts = [(s.bytes_up, s.bytes_down, s.gradient_steps, s.refused) for s in (wired, got)]
    assert counts[0] == counts[1]
    assert traffic_of(wired.store)["refused"] == sum(got.refused.values())


@pytest.mark.parametrize("attack", [hostile.alie(0.4), hostile.ipm(0.4)])
@pytest.mark.parametrize("name", ["fedavg", "fedcm"])
def test_who_colludes_may_be_late(name: str, attack: hostile.Attack) -> None:
    """What they claim counts in the round that their reply comes in, beside the honest ones of that round."""
    late = {"devices": lognormal(0.9), "deadline": 0.12, "late": "keep"}
    this = job(with_hostile(with_late_replies(make(name)), attack, 3, N), **late)
    attacked, honest = run(this, 6), run(job(with_late_replies(make(name)), **late), 6)
    assert_same(run(replace(this, engine=Stacked(2)), 6), attacked, 1e-12)
    assert bool(attacked.server.x.isfinite().all())
    assert float((attacked.server.x - honest.server.x).norm()) > 1e-3


def test_late_replies_that_are_not_finite_are_left_out_too() -> None:
    late = {"devices": lognormal(0.9), "deadline": 0.12, "late": "keep"}
    this = job(with_hostile(with_late_replies(make("scaffold")), hostile.nan(0.2), 3, N), **late)
    want = run(this, 12)
    assert want.refused
    assert bool(torch.isfinite(want.server.x).all())
    assert_same(run(replace(this, engine=Stacked(2)), 12), want, 1e-12)
    assert_same(run(replace(this, engine=Wire()), 12), want, 1e-12)


@pytest.mark.parametrize("name", ["fedavg", "vrlsgd"])
def test_the_model_is_lost_where_nobody_is_left_or_everyone_is_needed(name: str) -> None:
    share = 1.0 if name == "fedavg" else 0.2
    for engine in (Serial(), *ENGINES):
        state = run(job(with_hostile(make(name), hostile.nan(share), 3, N), engine), 1)
        assert not bool(torch.isfinite(state.server.x).any())
        assert not state.refused


def test_infinities_that_would_cancel_are_seen() -> None:
    def finish(down: Tensor, row: Any, done: Done, client: Client) -> tuple[Tensor, Any]:
        spoilt = torch.zeros_like(done.x)
        spoilt[..., 0], spoilt[..., 1] = torch.inf, -torch.inf
        return torch.where(client.id == 4, spoilt, done.x - down), row

    this = replace(make("fedavg"), finish=finish)
    for engine in (Serial(), *ENGINES):
        state = run(job(this, engine, cohort=N), 2)
        assert state.refused == {4: 2}
        assert bool(torch.isfinite(state.server.x).all())


@pytest.mark.parametrize("engine", [Serial(), Stacked(3), Wire()])
def test_resumed_runs_are_the_same_bits(engine: Engine, tmp_path: Path) -> None:
    algorithm = with_aggregate(make("fedavg"), robust.centred_clip(0.2, 1, 0.5))
    this = job(with_hostile(algorithm, hostile.nan(0.3), 3, N), engine)
    whole, half = run(this, 6), run(this, 3)
    checkpoint.save(this, half, tmp_path / "c.safetensors")
    resumed = run(this, 3, checkpoint.load(this, tmp_path / "c.safetensors"))
    assert_same(resumed, whole)
    assert resumed.refused == whole.refused != half.refused
    other = replace(this, algorithm=with_hostile(algorithm, hostile.nan(0.2), 3, N))
    with pytest.raises(UserError, match=r"whose method\.attack\.share is 0\.3 where this one's is 0\.2"):
        checkpoint.load(other, tmp_path / "c.safetensors")


# -- how far attackers get -----------------------------------------------------------------------------------------


def alike(clients: int = 15) -> Quadratic:
    """Clients whose minimisers lie close together beside the distance to the start."""
    problem = quadratics(4, clients, torch.float64, CPU, dim=6, blocks=2, spread=0.05)
    problem.x0 = torch.full((6,), 3.0, dtype=torch.float64)
    return problem


def honest_optimum(problem: Quadratic, who: set[int]) -> Tensor:
    honest = [i for i in range(len(problem.sizes)) if i not in who]
    optimum: Tensor = torch.linalg.solve(problem.H_mean[honest].mean(0), problem.b_mean[honest].mean(0))
    return optimum


@pytest.mark.parametrize("attack", [hostile.sign_flip(0.2, 10.0), hostile.same_value(0.2, 5.0)])
def test_a_fifth_hostile_clients_ruin_the_mean_and_not_the_rules(attack: Attack) -> None:
    problem = alike()
    schedule = Schedule(seed=0, cohort=15, lr=0.3, unit="steps", batch_size=None)
    who = set(chosen(attack, 0, 15))
    assert len(who) == 3
    target = honest_optimum(problem, who)
    rules = {
        "median": robust.median(),
        "geometric_median": robust.geometric_median(),
        "trimmed_mean": robust.trimmed_mean(0.2),
        "krum": robust.krum(3),
        "multi_krum": robust.multi_krum(3),
        "mean": robust.mean(),
    }
    for name, rule in rules.items():
        algorithm = with_hostile(with_aggregate(make("fedavg"), rule), attack, 0, 15)
        state = run(Job(problem, algorithm, schedule), 60)
        far = float(torch.linalg.vector_norm(state.server.x - target))
        if name == "mean":
            assert not far < 3
        else:
            assert far < 0.25, name


# -- the attacks ---------------------------------------------------------------------------------------------------


def test_a_hostile_client_claims_another_move_and_an_honest_one_its_own() -> None:
    attack = hostile.sign_flip(0.3, 2.0)
    who = chosen(attack, 7, N)
    algorithm = with_hostile(make("scaffold"), attack, 7, N)
    x, c = torch.tensor([1.0, 2.0]), torch.tensor([0.5, -0.5])
    down = make("scaffold").broadcast(make("scaffold").init(x, Population(N, torch.full((N,), 1 / N))))._replace(c=c)
    one = torch.ones(())
    for i in range(N):
        client = Client(torch.tensor(i), one, one, 0.1, torch.rand)
        row = algorithm.init_client(x)
        done = Done(x + 0.1, 4 * one, 4 * one)
        up, kept = algorithm.finish(down, row, done, client)
        if i in who:
            torch.testing.assert_close(up.x, torch.full((2,), -0.2))
            torch.testing.assert_close(kept.c, -c + torch.full((2,), 0.5))  # of the model that it claims
        else:
            honest, _ = make("scaffold").finish(down, row, done, client)
            assert torch.equal(up.x, honest.x)
            assert torch.equal(up.c, honest.c)


def test_who_is_hostile_goes_by_the_seed_alone() -> None:
    for share, count in ((0.0, 0), (0.25, 10), (1.0, 40)):
        assert len(chosen(hostile.nan(share), 1, 40)) == count
    first = chosen(hostile.sign_flip(0.25), 1, 40)
    assert first == chosen(hostile.nan(0.25), 1, 40) == tuple(sorted(set(first)))
    assert first != chosen(hostile.nan(0.25), 2, 40)


def test_noise_is_normal_and_keyed() -> None:
    attack = hostile.gaussian(1.0, 2.0)
    assert attack.move is not None
    draw = np.random.default_rng(0)
    noise = attack.move(torch.zeros(20_000, dtype=torch.float64), lambda n: torch.as_tensor(draw.random(n)))
    assert abs(float(noise.mean())) < 0.05
    assert abs(float(noise.std()) - 2) < 0.05
    assert abs(float((noise.abs() < 2).double().mean()) - 0.6827) < 0.02
    edges = attack.move(torch.zeros(2), lambda n: torch.tensor([0.0, 0.0, 0.0, 1.0]))
    assert bool(torch.isfinite(edges).all())


def test_attackers_that_know_the_others_are_their_formulas() -> None:
    honest = torch.as_tensor(drawn(8))
    alie, ipm = hostile.alie(0.2, 1.5).collude, hostile.ipm(0.2, 0.7).collude
    assert alie is not None
    assert ipm is not None
    rows = honest.numpy()
    np.testing.assert_allclose(alie(honest, 2), rows.mean(0) - 1.5 * rows.std(0), rtol=1e-12)
    np.testing.assert_allclose(ipm(honest, 2), -0.7 * rows.mean(0), rtol=1e-12)
    # Baruch et al.: 50 clients, 12 of them hostile: s = 26 - 12 = 14, z = phi^-1((50 - 12 - 14) / (50 - 12))
    by_share = hostile.alie(0.24).collude
    assert by_share is not None
    rows = drawn(38)
    z = NormalDist().inv_cdf(24 / 38)
    np.testing.assert_allclose(by_share(torch.as_tensor(rows), 12), rows.mean(0) - z * rows.std(0), rtol=1e-12)


def test_labels_are_flipped_at_hostile_clients_alone() -> None:
    given = {"data": "digits", "model": "logreg", "clients": 10, "partition": "iid", "validation": "none"}
    plain, lied = (
        build(resolve_run(from_nested(given | more, "test"))) for more in ({}, {"hostile": "label_flip(0.3)"})
    )
    ours, theirs = plain.problem.y.numpy(), lied.problem.y.numpy()  # type: ignore[attr-defined]
    offsets = plain.problem.objective.offsets
    assert len(lied.hostile) == 3
    for i in range(10):
        part = slice(offsets[i], offsets[i + 1])
        np.testing.assert_array_equal(theirs[part], 9 - ours[part] if i in lied.hostile else ours[part])


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"afl"}))
def test_methods_whose_server_keeps_a_sum_are_refused_with_the_reason(name: str) -> None:
    this = job(with_aggregate(make(name), robust.median()))
    if name in ALLOWED:
        start(this)
        return
    invariant = make(name).facts.invariant
    reason = "send gradients before their local steps too" if invariant is None else f"the method keeps {invariant}"
    with pytest.raises(UserError, match="which") as refused:
        start(this)
    assert reason in str(refused.value)
    with pytest.raises(UserError, match="use aggregate mean"):  # who looks at the others needs them apart as well
        start(job(with_hostile(make(name), hostile.alie(0.2), 3, N)))
    start(job(with_hostile(make(name), hostile.sign_flip(0.2), 3, N)))


def test_a_method_whose_server_weighs_by_a_rule_of_its_own_is_refused() -> None:
    with pytest.raises(UserError, match="by a rule of its own, which median would replace; use aggregate mean"):
        start(job(with_aggregate(make("afl"), robust.median())))
    start(job(with_hostile(make("afl"), hostile.alie(0.2), 3, N)))  # its contributions lie apart, as these want them


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fedvra", "losac", "fednova_vr", "fedadmm_inexact", "fedsmoo"])
def test_a_sum_that_nobody_declared_is_found_by_its_weights(name: str) -> None:
    silent = replace(make(name), facts=make(name).facts._replace(invariant=None))
    with pytest.raises(UserError, match="not a client's weight times what it sends"):
        start(job(with_aggregate(silent, robust.median())))


class Crowd(NamedTuple):
    """A team that is only counted."""

    size: int = 2
    rank: int = 0


def test_other_refusals_are_one_sentence() -> None:
    krum = with_aggregate(make("fedavg"), robust.krum(3))
    with pytest.raises(UserError, match=r"given f 3 and cohort 7; use a cohort of 9, or a smaller f"):
        start(job(krum))
    for rule in (robust.norm_clip(1.0), robust.centred_clip(1.0)):
        with pytest.raises(UserError, match="cuts what clients send to one length, and this method's send several"):
            start(job(with_aggregate(make("fednova"), rule)))
    several = Stacked(None, team=Crowd())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="have to lie in one process, and the distributed engine has several"):
        start(job(with_aggregate(make("fedavg"), robust.median()), several))
    lies = from_nested({"data": "quadratics", "hostile": "label_flip"}, "test")
    with pytest.raises(UserError, match=r"lies about the labels of samples, which data quadratics.* lacks"):
        build(resolve_run(lies))


# -- as people meet it ---------------------------------------------------------------------------------------------


def test_a_run_says_who_is_hostile_and_who_was_refused(tmp_path: Path) -> None:
    arguments = (
        *("--model", "logreg", "--clients", "10", "--cohort", "5", "--rounds", "4", "--partition", "iid"),
        *("--hostile", "nan(0.2)", "--aggregate", "median", "--out", str(tmp_path / "a")),
    )
    done = subprocess.run(
        [sys.executable, "-m", "fedconcord", "run", *arguments], capture_output=True, text=True, timeout=240, check=True
    )
    about = json.loads((tmp_path / "a" / "run.json").read_text())
    who = [str(i) for i in about["hostile"]]
    replies = about["refused"]["replies"]
    assert (about["status"], len(who)) == ("complete", 2)
    assert 0 < replies == sum(about["refused"]["clients"].values())
    assert set(about["refused"]["clients"]) <= set(who)
    assert f"refused: {replies} replies with NaN or infinity were left out of their rounds, from" in done.stdout
    with open(tmp_path / "a" / "clients.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows if row["hostile"] == "1"] == who
    assert {row["client"]: int(row["refused"]) for row in rows if row["refused"] != "0"} == about["refused"]["clients"]


def test_a_comparison_may_give_each_method_its_own_rule(tmp_path: Path, quick_report: None) -> None:
    found = fedconcord.compare(
        ["fedavg", "fedavg(aggregate=median)", "fedavg(aggregate=trimmed_mean(0.0),label=plain)"],
        model="logreg",
        clients=10,
        cohort=5,
        rounds=3,
        partition="iid",
        dtype="float64",
        hostile="sign_flip(0.2, scale=5)",
        out=tmp_path / "c",
    )
    loss = {one.label: one.metrics["test_loss"] for one in found.runs}
    assert loss["fedavg(aggregate=median)"] < loss["fedavg"]
    assert abs(loss["plain"] - loss["fedavg"]) < 1e-9
    hostile_ids = {tuple(json.loads((one.folder / "run.json").read_text())["hostile"]) for one in found.runs}
    assert len(hostile_ids) == 1


def test_a_run_whose_every_reply_is_lost_has_diverged(tmp_path: Path) -> None:
    done = fedconcord.run("fedavg", model="logreg", rounds=3, hostile="nan(1.0)", out=tmp_path / "a")
    about = json.loads((done.folder / "run.json").read_text())
    assert about["status"] == "diverged"
    assert "refused" not in about
