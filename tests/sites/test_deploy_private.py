"""Differential privacy at real sites: noise from the operating system's generator, drawn once and put down first."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_deploy_core import Federation, Killed, far, leaves, quick_disk, simulated, text, with_

from fedconcord.execution.job import checkpoint
from fedconcord.execution.job.accountant import KEYED
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame
from fedconcord.method.contract import rng
from fedconcord.method.contract.rng import SYSTEM, Chance, uniform
from fedconcord.study.settings.privacy import budget_of, privacy_note
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from fedconcord_flower.card import write_card
from fedconcord_sites.form import UNJUDGED
from fedconcord_sites.ledger import Ledger
from fedconcord_sites.private import GENERATOR, Cohorts
from fedconcord_sites.serve import serve
from fedconcord_sites.site import Site

SITES = ["a", "b", "c", "d"]
__all__ = ["quick_disk"]  # a fixture
JOB: dict[str, Any] = {
    "model": "logreg",
    "method": "fedavg",
    "rounds": 3,
    "cohort": 3,
    "seed": 3,
    "local": {"lr": 0.5, "batch_size": 5, "steps": 3},
    "engine": {"dtype": "float64"},
    "privacy": {"clip": 0.05, "noise": 1.0},
}
NONE = Chance(lambda n: np.zeros(n, np.int64), uniform)  # no noise
ADAPTIVE = "adaptive(start=0.05,rate=0.5,bits=2.0)"
Bytes = Mapping[str, bytes]


def arrays(folder: Path, persons: int = 0) -> Path:
    """Arrays of 20 rows a site, of so many persons where there are any, and all of them in one file."""
    draw, every = np.random.default_rng(1), list[dict[str, Any]]()
    for name in SITES:
        one = {"x": draw.integers(0, 256, (20, 4), np.uint8), "y": draw.integers(0, 3, 20)}
        if persons:
            one["patient"] = np.array([f"patient-{k}" for k in draw.integers(0, persons, 20)])
        np.savez(folder / f"{name}.npz", **one)
        every.append({**one, "site": np.full(20, name)})
    np.savez(folder / "all.npz", **{key: np.concatenate([one[key] for one in every]) for key in every[0]})
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return arrays(tmp_path_factory.mktemp("arrays"))


class Private(Federation):
    """Whose server and sites draw from a source that is given."""

    def __init__(self, job: Mapping[str, Any], files: Path, folder: Path, chance: Chance = SYSTEM) -> None:
        super().__init__(job, files, folder, SITES)
        self.chance = chance

    def site(self, name: str) -> Site:
        if name not in self.sites:
            file, folder = self.files / f"{name}.npz", self.folder / "sites" / name
            self.sites[name] = Site(self.job, file, folder, name, self.chance, keys=self.folder / "keys")
        return self.sites[name]

    def run(self, exchange: Callable[[Bytes, float], Bytes] | None = None, resume: bool = False) -> str:
        ask, tell = exchange or self.exchange, self.events.append
        return serve(self.job, self.names, ask, self.folder / "run", tell, 1.0, resume, self.chance).status


def counted(draws: list[np.ndarray]) -> Chance:
    """The system's generator, with what it gave written down."""

    def drawn(n: int) -> np.ndarray:
        draws.append(SYSTEM.discrete(n))
        return draws[-1]

    return Chance(drawn, uniform)


def test_the_system_generator_is_normal_and_never_the_same() -> None:
    n = 400_000
    z, u = SYSTEM.discrete(n) / 2**24, uniform(n)
    assert z.dtype == u.dtype == np.float64
    for k, moment in enumerate((0, 1, 0, 3, 0, 15), 1):  # E z^k, to 5 deviations of its estimate
        spread = math.sqrt((math.prod(range(1, 2 * k, 2)) - moment**2) / n)
        assert abs((z**k).mean() - moment) < 5 * spread
    for q in (-2.0, -0.5, 0.0, 1.0, 2.5):
        want = 0.5 * math.erfc(-q / math.sqrt(2))
        assert abs((z < q).mean() - want) < 5 * math.sqrt(want * (1 - want) / n)
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5 / math.sqrt(n)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 5 / math.sqrt(12 * n)
    assert not np.array_equal(SYSTEM.discrete(4), SYSTEM.discrete(4))


@pytest.mark.parametrize("kind", ["central", "local"])
def test_without_noise_sites_clip_as_a_simulation_does(kind: str, tables: Path, tmp_path: Path) -> None:
    here = Private(with_(JOB, privacy={"kind": kind}), tables, tmp_path, NONE)
    assert here.run() == "complete"
    state, _ = simulated(with_(JOB, privacy={"kind": kind, "noise": 0.0}), tables / "all.npz")
    free, _ = simulated(with_(JOB, privacy={"clip": 1e6, "noise": 0.0}), tables / "all.npz")
    got = here.server()
    assert far(got["x"], leaves(state.server)["x"]) < 1e-8  # sites' are in steps of 0.05 / 2^24
    assert far(got["x"], leaves(free.server)["x"]) > 0.01  # clipping did something


@pytest.mark.parametrize("kind", ["central", "local"])
def test_the_noise_has_its_deviation_and_is_not_the_seeds(kind: str, tables: Path, tmp_path: Path) -> None:
    """The model minus that without noise: with steps of size 0 it is z C / S of what was drawn, and of nothing else."""
    job = with_(JOB, rounds=1, local={"lr": 1e-300}, privacy={"kind": kind})
    draws: list[np.ndarray] = []
    here = Private(job, tables, tmp_path / "noisy", counted(draws))
    here.run()
    quiet = Private(job, tables, tmp_path / "quiet", NONE)
    quiet.run()
    state, _ = simulated(job, tables / "all.npz")
    noise = here.server()["x"] - quiet.server()["x"]
    d, z = len(noise), 0.05 / 3 / 2**24
    used = [one for one in draws if len(one) == d][-(1 if kind == "central" else 3) :]
    assert far(noise, torch.as_tensor(z * np.sum(used, axis=0))) < 1e-12
    assert far(noise, leaves(state.server)["x"] - quiet.server()["x"]) > 1e-3  # what the seed gives
    other = Private(job, tables, tmp_path / "other")
    other.run()
    assert far(other.server()["x"], here.server()["x"]) > 1e-3  # the same job again


def test_an_adaptive_clip_moves_at_sites_as_in_a_simulation(tables: Path, tmp_path: Path) -> None:
    """Without noise; and the noise of its bits, of what the system drew: at steps of size 0 all are within the clip."""
    job = with_(JOB, rounds=5, privacy={"clip": ADAPTIVE})
    here = Private(job, tables, tmp_path / "quiet", NONE)
    assert here.run() == "complete"
    state, _ = simulated(with_(job, privacy={"noise": 0.0}), tables / "all.npz")
    got, want = here.server(), leaves(state.server)
    assert got.keys() == want.keys() == {"inner.x", "clip"}
    assert max(far(got[name], want[name]) for name in want) < 1e-6
    clips = [float(row["clip"]) for row in here.metrics()]
    assert clips[0] == 0.05
    assert len({*clips}) == 6
    assert clips[-1] == float(got["clip"]) == here.said()["privacy"]["clip"]
    draws: list[np.ndarray] = []
    noisy = Private(with_(job, rounds=1, local={"lr": 1e-300}), tables, tmp_path / "noisy", counted(draws))
    noisy.run()
    got = noisy.server()
    [extra] = [one for one in draws if len(one) == len(got["inner.x"]) + 1]
    assert float(got["clip"]) == pytest.approx(
        0.05 * math.exp(-0.5 * (1.0 + 2.0 * extra[-1] / 2**24 / 3 - 0.5)), rel=1e-6
    )
    quiet = Private(with_(job, rounds=1, local={"lr": 1e-300}), tables, tmp_path / "still", NONE)
    quiet.run()
    scale = 0.05 / math.sqrt(1 - 1 / 4**2) / 3 / 2**24  # z_Delta C / S of z = 1
    assert far(got["inner.x"] - quiet.server()["inner.x"], torch.as_tensor(scale * extra[:-1])) < 1e-12


def test_epsilon_and_the_generator_are_said_as_in_a_simulation(tables: Path, tmp_path: Path) -> None:
    job = with_(JOB, sampling="poisson", privacy={"epsilon": 30.0, "noise": 2.0})
    here = Private(job, tables, tmp_path)
    here.run()
    nested = with_(job, data=str(tables / "all.npz"), input={"client": "site"}, validation="none")
    config = resolve_run(from_nested(nested, "here"))
    budget = budget_of(config)
    assert budget is not None
    assert budget.generator == KEYED
    assert KEYED in str(privacy_note(config))
    for row in here.metrics():
        assert float(row["epsilon"]) == pytest.approx(budget.spending.epsilon(int(row["round"])), abs=1e-12)
    said = here.said()["privacy"]
    assert said["generator"] == GENERATOR
    assert said["said"].endswith(budget.said)
    assert GENERATOR in next(event.text for event in here.events if event.kind == "private")


def test_a_budget_that_is_spent_ends_a_deployment(tables: Path, tmp_path: Path) -> None:
    here = Private(with_(JOB, rounds=50, privacy={"epsilon": 8.0}), tables, tmp_path)
    assert here.run() == "complete"
    said = here.said()
    assert said["rounds_done"] < 50
    assert said["privacy"]["epsilon"] <= 8
    assert "budget" in said["stopped"]


def test_who_is_drawn_is_drawn_once_by_coins_of_no_seed(tmp_path: Path) -> None:
    cohorts = [Cohorts(tmp_path / f"{k}.json", SYSTEM) for k in range(2)]
    drawn = [[one.of(t, 30, 100).tolist() for t in range(40)] for one in cohorts]
    again = Cohorts(tmp_path / "0.json", SYSTEM)
    assert [again.of(t, 30, 100).tolist() for t in reversed(range(40))] == drawn[0][::-1]
    assert drawn[0] != drawn[1]
    assert abs(sum(map(len, drawn[0])) - 1200) < 6 * math.sqrt(4000 * 0.3 * 0.7)
    assert (tmp_path / "0.json").stat().st_mode & 0o077 == 0
    (tmp_path / "0.json").write_text("{")
    with pytest.raises(UserError, match="who was drawn"):
        again.of(3, 30, 100)


@pytest.mark.parametrize(
    ("privacy", "sampling"),
    [({"kind": "central"}, "poisson"), ({"kind": "local"}, "uniform"), ({"clip": ADAPTIVE}, "poisson")],
)
def test_a_killed_server_never_releases_a_second_noise(
    privacy: Any, sampling: str, tables: Path, tmp_path: Path
) -> None:
    """Killed after every exchange: of each round there is one model, one cohort, and one noisy message a site."""
    here = Private(with_(JOB, rounds=4, sampling=sampling, privacy=privacy), tables, tmp_path)
    models: dict[int, set[bytes]] = {}  # what sites were sent to start from, an adaptive clip included
    asked: dict[int, set[tuple[str, ...]]] = {}
    said: dict[tuple[str, int], set[bytes]] = {}
    order: list[bytes] = []

    def exchange(messages: Bytes, wait: float) -> Bytes:
        nonlocal left
        left -= 1
        answers = here.exchange(messages, wait)
        frames = {name: codec.read(data) for name, data in messages.items()}
        for name, frame in frames.items():
            if frame.kind == "orders":
                models.setdefault(frame.round, set()).add(_tensors(frame))
                said.setdefault((name, frame.round), set()).add(answers[name])
            if frame.kind == "judge" and (not order or order[-1] != _tensors(frame)):
                order.append(_tensors(frame))
        drawn = {frame.round for frame in frames.values() if frame.kind == "orders"}
        for t in drawn:
            asked.setdefault(t, set()).add(tuple(sorted(messages)))
        if left == 0:
            raise Killed
        return answers

    left, status = 5, ""
    for _ in range(20):
        try:
            status = status or here.run(exchange, resume=True)
        except Killed:
            here.sites.clear()
            left = 2
    assert status == "complete"
    assert all(len(one) == 1 for group in (models, asked, said) for one in group.values())
    assert len(order) == len(set(order)) <= 5  # x^0 and a model a round: none came twice, otherwise
    assert [int(row["round"]) for row in here.metrics()] == list(range(5))


def test_a_model_is_in_its_file_after_it_is_in_the_checkpoint(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server killed between the two makes that round again, with another noise, and nobody has seen the first."""
    here, seen, save = Private(with_(JOB, rounds=3), tables, tmp_path), list[bytes](), checkpoint.save
    path = tmp_path / "run" / "model.safetensors"

    def killed(job: Any, state: Any, place: Path) -> None:
        if state.round == 2:
            raise Killed
        save(job, state, place)
        seen.append(path.read_bytes() if path.exists() else b"")

    monkeypatch.setattr(checkpoint, "save", killed)
    with pytest.raises(Killed):
        here.run()
    assert seen[0] == b""
    assert seen[-1] == path.read_bytes() != b""
    monkeypatch.undo()
    assert here.run(resume=True) == "complete"
    assert path.read_bytes() != seen[-1]


def _tensors(frame: codec.Frame) -> bytes:
    return b"".join(leaf.numpy().tobytes() for _, leaf in sorted(frame.tensors.items()))


def last_orders(here: Private) -> bytes:
    """The last orders that site a gets in a run."""
    orders: list[bytes] = []

    def exchange(messages: Bytes, wait: float) -> Bytes:
        orders.extend(data for name, data in messages.items() if name == "a" and codec.read(data).kind == "orders")
        return here.exchange(messages, wait)

    here.run(exchange)
    return orders[-1]


def test_a_site_gives_no_second_noise_whatever_it_is_asked(tables: Path, tmp_path: Path) -> None:
    here = Private(with_(JOB, cohort=4, rounds=2, privacy={"kind": "local"}), tables, tmp_path)
    orders = last_orders(here)
    last = codec.read(orders)
    first = here.site("a").answer(orders)
    assert codec.read(first).kind == "reply"
    assert here.site("a").answer(orders) == first
    other = last._replace(tensors={name: leaf + 1 for name, leaf in last.tensors.items()})
    asks = {
        "a second one would spend privacy twice": codec.write(other),
        "round 2 is none of the job's, which has 2": codec.write(
            last._replace(round=2, fields={**last.fields, "orders": {**last.fields["orders"], "round": 2}})
        ),
    }
    for why, data in asks.items():
        refused = codec.read(here.site("a").answer(data))
        assert refused.kind == "refused"
        assert why in refused.fields["why"]


@pytest.mark.parametrize("change", [{"privacy": {"kind": "local"}}, {"sampling": "cyclic"}, {"sampling": "bernoulli"}])
def test_a_site_is_in_no_round_that_it_is_not_drawn_for(change: Any, tables: Path, tmp_path: Path) -> None:
    """What it spends counts on that, where its own job says who is drawn."""
    here, orders = Private(with_(JOB, cohort=2, rounds=8, **change), tables, tmp_path), dict[int, Frame]()

    def kept(messages: Bytes, wait: float) -> Bytes:
        frame = codec.read(messages.get("a", next(iter(messages.values()))))
        if "a" in messages and frame.kind == "orders":
            orders[frame.round] = frame
        return here.exchange(messages, wait)

    here.run(kept)
    others = sorted({*range(8)} - {*orders})
    late = [t for t in others if t > max(orders)] or others[:1]
    first = orders[max(orders)]
    fields = {**first.fields, "orders": {**first.fields["orders"], "round": late[0]}, "counted": None}
    answer = codec.read(here.site("a").answer(codec.write(first._replace(round=late[0], fields=fields))))
    why = f"its own job draws others for round {late[0]}, and each round spends privacy"
    assert (answer.fields.get("why") == why) == (change.get("sampling") != "bernoulli")
    again = first._replace(
        round=late[0], fields={**first.fields, "counted": None}
    )  # orders of a round it was drawn for
    answer = codec.read(here.site("a").answer(codec.write(again)))
    assert answer.fields["why"] == f"orders of round {first.round} in a message of round {late[0]}"


SECURE = {"clip": 1.0, "bits": 24}
SAMPLES = {"local": {"batch_size": "poisson(0.5)"}, "privacy": {"unit": "sample", "clip": 0.3, "noise": 1.0}}


def test_steps_at_sites_have_the_noise_and_the_coins_of_their_system(tables: Path, tmp_path: Path) -> None:
    """Without noise, and with coins that all fall alike, a simulation's model; as it is, no seed gives it again."""
    every = {"local": {"batch_size": "poisson(1)"}}
    here = Private(with_(with_(JOB, **SAMPLES), **every), tables, tmp_path / "quiet", NONE)
    assert here.run() == "complete"
    quiet = {"unit": "sample", "clip": 0.3, "noise": 0.0}
    state, _ = simulated(with_(with_(JOB, **every), privacy=quiet), tables / "all.npz")
    assert far(here.server()["x"], leaves(state.server)["x"]) < 1e-6
    ends = []
    for name, chance in (("coins", NONE), ("again", NONE), ("noise", SYSTEM)):
        one = Private(with_(JOB, **SAMPLES), tables, tmp_path / name, chance)
        assert one.run() == "complete"
        ends.append(one.server()["x"])
    assert far(ends[0], ends[1]) > 1e-4
    draws: list[np.ndarray] = []
    Private(with_(JOB, rounds=1, **SAMPLES), tables, tmp_path / "counted", counted(draws)).run()
    assert [len(one) for one in draws] == [len(ends[0])] * 9  # three sites, each with three steps
    assert one.said()["privacy"]["unit"] == "sample"
    assert one.said()["privacy"]["generator"] == GENERATOR


def test_a_site_whose_samples_are_private_gives_no_second_noise(tables: Path, tmp_path: Path) -> None:
    here = Private(with_(JOB, cohort=4, rounds=1, **SAMPLES), tables, tmp_path)
    orders = last_orders(here)
    last = codec.read(orders)
    assert here.site("a").answer(orders) == here.site("a").answer(orders)
    other = last._replace(tensors={name: leaf + 1 for name, leaf in last.tensors.items()})
    refused = codec.read(here.site("a").answer(codec.write(other)))
    assert (refused.kind, "spend privacy twice" in refused.fields["why"]) == ("refused", True)


def test_without_coins_a_sites_message_has_the_noise_of_its_passs_root_alone(tables: Path, tmp_path: Path) -> None:
    """Kept in memory from step to step, of draws that nobody can repeat; without noise it is a simulation's."""
    job = with_(with_(JOB, **SAMPLES), rounds=1, local={"lr": 1e-6, "batch_size": "disjoint(3)"})
    draws: list[np.ndarray] = []
    noisy, quiet = Private(job, tables, tmp_path / "noisy", counted(draws)), Private(job, tables, tmp_path / "0", NONE)
    assert noisy.run() == quiet.run() == "complete"
    assert [len(one) for one in draws] == [len(noisy.server()["x"])] * 9  # three sites, each with three steps
    mean = torch.as_tensor(np.mean(draws[2::3], axis=0) * 0.3 / 2**24)
    moved = (noisy.server()["x"] - quiet.server()["x"]) * noisy.said()["sites"][0]["samples"] / 3 / -1e-6
    assert far(moved, mean) < 1e-3 * float(mean.abs().max())
    state, _ = simulated(with_(job, privacy={"noise": 0.0}), tables / "all.npz")
    assert far(quiet.server()["x"], leaves(state.server)["x"]) < 1e-12


@pytest.mark.parametrize("sampling", ["uniform", "poisson"])
def test_sites_may_be_protected_beside_their_rows(sampling: str, tables: Path, tmp_path: Path) -> None:
    """Each step has noise of its site, the sum noise of the server; and both epsilons are shown."""
    both = with_(JOB, **SAMPLES, sampling=sampling, rounds=2)
    both["privacy"] = {**both["privacy"], "client_clip": 0.05, "client_noise": 2.0}
    draws: list[np.ndarray] = []
    here = Private(both, tables, tmp_path / "run", counted(draws))
    assert here.run() == "complete"
    steps = int(here.metrics()[-1]["gradient_steps"])
    assert [len(one) for one in draws] == [len(here.server()["x"])] * (steps + 2)
    privacy = here.said()["privacy"]
    assert privacy["client_epsilon"] > 0
    assert privacy["epsilon"] > 0
    with pytest.raises(UserError, match="may have to mask it anew"):
        Private(with_(both, secure=SECURE, sampling="uniform"), tables, tmp_path / "secure").run()


OWN_NOISE: list[dict[str, Any]] = [{"privacy": {"kind": "local"}}, SAMPLES]


@pytest.mark.parametrize("change", OWN_NOISE)
def test_no_model_is_judged_where_a_sites_noise_is_its_own(change: Any, tables: Path, tmp_path: Path) -> None:
    """Which is said once; a round has its epsilon, and the run its end."""
    here, kinds = Private(with_(JOB, **change), tables, tmp_path), set[str]()

    def exchange(messages: Bytes, wait: float) -> Bytes:
        kinds.update(codec.read(data).kind for data in messages.values())
        return here.exchange(messages, wait)

    assert here.run(exchange) == "complete"
    assert "judge" not in kinds
    assert [event.text for event in here.events if "no model is judged" in event.text] == [
        f"no model is judged: {UNJUDGED}; judge the last one on public data (fedconcord predict)"
    ]
    rows = here.metrics()
    assert [int(row["round"]) for row in rows] == [0, 1, 2, 3]
    assert not any(name.startswith(("test_", "train_")) for row in rows for name in row)
    assert float(rows[-1]["epsilon"]) > float(rows[1]["epsilon"]) > 0
    assert not (tmp_path / "run" / "clients.csv").exists()
    assert (tmp_path / "run" / "model.safetensors").exists()
    text = write_card(tmp_path / "run", "0" * 64).read_text()
    assert "No model was judged." in text
    assert "Source: `metrics.csv`" not in text


@pytest.mark.parametrize("change", [{}, *OWN_NOISE])
def test_a_curious_server_gets_no_figure_of_a_model_that_it_chooses(change: Any, tables: Path, tmp_path: Path) -> None:
    """The attack on each: the summed loss at x and at x + h e_1, whose difference is a number of the exact gradient of
    a site's rows. With central noise, whose server is trusted, the same questions are answered."""
    here, site = Private(with_(JOB, rounds=3, cohort=4, **change), tables, tmp_path), "a"
    orders = last_orders(here)
    x, answers = here.server()["x"], []
    for step in (0.0, 1e-5):
        moved = x.clone()
        moved[1] += step
        frame = codec.read(orders)._replace(kind="judge", round=1000, fields={}, tensors=codec.pack("x", moved))
        answers.append(codec.read(here.site(site).answer(codec.write(frame))))
    if not change:
        low, high = (float(one.tensors["figures/losses"][1]) for one in answers)
        assert abs(high - low) / 1e-5 > 1e-3
        return
    assert [(one.kind, one.fields["why"]) for one in answers] == [("refused", UNJUDGED)] * 2
    assert not any(one.tensors for one in answers)
    lines = Ledger(here.folder / "sites" / site / "ledger.txt").lines()
    assert sum(line.get("why") == UNJUDGED for line in lines) == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"method": "fednova"}, "differential privacy does not cover this method"),
        ({"aggregate": "median"}, "takes the contributions of clients apart"),
        ({"secure": SECURE, "privacy": {"kind": "local"}}, "may have to mask it anew"),
        ({"secure": SECURE, **SAMPLES}, "may have to mask it anew"),
        ({"secure": SECURE, "sampling": "poisson"}, "tell it to those who were"),
        ({"secure": {**SECURE, "bits": 48}}, r"secure.bits is 48, .* says how many .*, \d+; leave secure.bits out"),
    ],
)
def test_what_a_private_deployment_cannot_do(change: Any, sentence: str, tables: Path, tmp_path: Path) -> None:
    here = Private(with_(JOB, **change), tables, tmp_path)
    with pytest.raises(UserError, match=sentence):
        here.run()


def test_no_sums_of_samples_leave_a_private_site(tmp_path: Path) -> None:
    for name in SITES:
        (tmp_path / f"{name}.csv").write_text("u,label\n" + "".join(f"{k * 0.1},{k % 2}\n" for k in range(20)))
    job = text(with_(JOB, input={"label": ["label"]}))
    sites = {name: Site(job, tmp_path / f"{name}.csv", tmp_path / "sites" / name, name) for name in SITES}

    def exchange(messages: Bytes, wait: float) -> Bytes:
        return {name: sites[name].answer(data) for name, data in messages.items()}

    with pytest.raises(UserError, match="does not cover the sums that sites send"):
        serve(job, SITES, exchange, tmp_path / "run", None, 1.0, False)
    ask = codec.write(codec.Frame("sums", "0" * 16, 0, 0, {}, {}))
    refused = codec.read(sites["a"].answer(ask))
    assert refused.kind == "refused"
    assert "not covered by privacy.clip" in refused.fields["why"]
    public = tmp_path / "public.toml"
    public.write_text('[[columns]]\nname = "u"\nkind = "number"\nmean = 1.0\nscale = 0.5\n')
    job = text(with_(JOB, input={"label": ["label"], "statistics": str(public)}))
    sites = {name: Site(job, tmp_path / f"{name}.csv", tmp_path / "given" / name, name) for name in SITES}
    assert serve(job, SITES, exchange, tmp_path / "run", None, 1.0, False).status == "complete"


@pytest.mark.parametrize("clip", [0.05, ADAPTIVE])
def test_noise_is_added_to_the_opened_sum(clip: float | str, tables: Path, tmp_path: Path) -> None:
    """With secure sums and central noise: without noise, the simulation's server up to the sums' steps."""
    job = with_(JOB, cohort=4, secure=SECURE, privacy={"clip": clip})
    here, noisy = (Private(job, tables, tmp_path / name, chance) for name, chance in (("0", NONE), ("1", SYSTEM)))
    assert here.run() == noisy.run() == "complete"
    nested = with_(JOB, cohort=4, privacy={"clip": clip, "noise": 0.0})
    state, _ = simulated(nested, tables / "all.npz")
    draw = Chance(lambda n: rng.noise(n, 1, 2, 3), uniform)
    bare = with_(JOB, cohort=4, privacy={"clip": clip})
    pair = [Private(one, tables, tmp_path / name, draw) for name, one in (("masked", job), ("bare", bare))]
    assert pair[0].run() == pair[1].run() == "complete"
    masked, plain = (one.server() for one in pair)
    assert all(np.array_equal(masked[name], plain[name]) for name in plain)  # under masks the sum is the sum
    quiet, loud, want = here.server(), noisy.server(), leaves(state.server)
    assert quiet.keys() == loud.keys() == want.keys()
    assert max(far(quiet[name], want[name]) for name in want) < 1e-5
    # noise of the system's own chance: no single tensor need move far, all of them staying still is out of the question
    assert max(far(loud[name], quiet[name]) for name in want) > 1e-4
    assert min(far(masked[name], quiet[name]) for name in want) > 1e-4  # drawn by a seed: the same at each run
