"""Deployment without a transport: a real server and real sites in one process, that share nothing but bytes."""

import csv
import json
import math
import pickle
import shutil
import stat
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedconcord.execution.job import State, advance, evaluate, start
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame
from fedconcord.execution.rows import tensors
from fedconcord.federation.objectives.metrics import METRICS as METRICS_OF
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import tree_leaves
from fedconcord.method.contract.trees import Tree
from fedconcord.study.runs.events import Event, Finished
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from fedconcord_flower import keys
from fedconcord_sites.exchange import Exchange
from fedconcord_sites.judging import SUMS
from fedconcord_sites.ledger import Ledger
from fedconcord_sites.serve import check, serve
from fedconcord_sites.site import Site
from table import TABLE

SITES = ["basel", "bern", "chur"]
slow = pytest.mark.slow
BASE: dict[str, Any] = {
    "model": "logreg",
    "rounds": 4,
    "cohort": 2,
    "seed": 3,
    "local": {"lr": 0.05, "batch_size": 5, "steps": 3},
    "engine": {"dtype": "float64"},
    "input": {"label": ["label"]},
}


def text(job: Mapping[str, Any]) -> str:
    """Settings as TOML, which has no null."""

    def cell(value: Any) -> str:
        return json.dumps(value)

    flat = [f"{key} = {cell(v)}" for key, v in job.items() if not isinstance(v, Mapping) and v is not None]
    for key, table in job.items():
        if isinstance(table, Mapping):
            flat += [f"[{key}]", *(f"{name} = {cell(value)}" for name, value in table.items())]
    return "\n".join(flat)


def with_(job: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The settings with others: a table's keys are added to those it has."""
    merged = {
        key: {**job.get(key, {}), **value} if isinstance(value, Mapping) else value for key, value in changes.items()
    }
    return {**job, **merged}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table a site, of unlike distributions, categories and classes, with gaps; and all.csv, which has them all."""
    folder, draw, every = tmp_path_factory.mktemp("files"), np.random.default_rng(0), []
    for k, name in enumerate(SITES):
        n = (23, 17, 31)[k]
        x, kind = draw.standard_normal((n, 3)) + k, draw.choice(["a", "b", "c"][: k + 1], n)
        margin = x @ [1, -1, 0.5] + draw.standard_normal(n) - k
        label = np.where(margin > 0, "yes", "no") if k else np.where(margin > 0, "no", "perhaps")
        rows = [[*(f"{value:.4f}" for value in x[i]), kind[i], label[i], f"{margin[i]:.5f}"] for i in range(n)]
        if k == 1:
            for row in rows[3:9]:
                row[1] = ""
        every += [[name, *row] for row in rows]
        write(folder / f"{name}.csv", ["u", "v", "w", "kind", "label", "number"], rows)
    write(folder / "all.csv", ["site", "u", "v", "w", "kind", "label", "number"], every)
    return folder


def write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are in their place as ever; that they survive the loss of power, which costs most of a round, is not."""
    monkeypatch.setattr("os.fsync", lambda file: None)


class Federation:
    """Sites in a folder, and the bytes between them and a server."""

    def __init__(self, job: Mapping[str, Any], files: Path, folder: Path, names: list[str] = SITES, **own: Any) -> None:
        self.job, self.files, self.folder, self.names = text(job), files, folder, names
        self.jobs = {name: text(own[name]) if name in own else self.job for name in names}
        self.sites: dict[str, Site] = {}
        for name in names if "secure" in job else ():  # the sites of a test share one folder of keys
            if not (folder / "keys" / f"{name}.key").exists():
                keys.write_site(folder / "keys", name)
        self.events: list[Event] = []

    def site(self, name: str) -> Site:
        """One site, which is made again where it was forgotten."""
        if name not in self.sites:
            place, ring = self.folder / "sites" / name, self.folder / "keys"
            self.sites[name] = Site(self.jobs[name], self.files / f"{name}.csv", place, name, keys=ring)
        return self.sites[name]

    def exchange(self, messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        return {name: self.site(name).answer(data) for name, data in messages.items()}

    def serve(self, exchange: Exchange | None = None, resume: bool = False) -> Finished:
        see = self.events.append
        return serve(self.job, self.names, exchange or self.exchange, self.folder / "run", see, 1.0, resume)

    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "run" / "run.json").read_text())
        return found

    def metrics(self) -> list[dict[str, str]]:
        with (self.folder / "run" / "metrics.csv").open() as file:
            return list(csv.DictReader(file))

    def server(self) -> dict[str, torch.Tensor]:
        found, _ = tensors.read(self.folder / "run" / "checkpoint.safetensors")
        return {name.removeprefix("server."): leaf for name, leaf in found.items() if name.startswith("server.")}

    def rows(self) -> dict[str, dict[str, torch.Tensor]]:
        """Every site's row after its last reply that counted, for methods without a message after the step."""
        found, _ = tensors.read(self.folder / "run" / "checkpoint.safetensors")
        frame = codec.read(found["rows.sites"].numpy().tobytes())
        counted = json.loads(json.dumps(codec.read(frame.tensors["ledger"].numpy().tobytes()).fields["counted"]))
        last = {i: [round, mark] for i, round, mark in counted}
        rows = {}
        for i, name in enumerate(self.names):
            [path] = (self.folder / "sites" / name).glob("*/row.safetensors")
            held, _ = tensors.read(path)
            which = "pending." if last.get(i) == held["mark"][:2].tolist() else "row."
            rows[name] = {key.removeprefix(which): leaf for key, leaf in held.items() if key.startswith(which)}
        return rows


def same_figures(first: Federation, second: Federation) -> None:
    """The metrics of both runs agree up to the steps of secure sums."""
    for mine, theirs in zip(first.metrics(), second.metrics(), strict=True):
        for column in ("test_accuracy", "test_loss", "train_loss"):
            assert float(mine[column]) == pytest.approx(float(theirs[column]), rel=1e-6, abs=1e-6)


def simulated(job: Mapping[str, Any], data: Path, **changes: Any) -> tuple[State, list[dict[str, float]]]:
    """The same job by engine serial, on the table of all: its last state, and its metrics by round."""
    own = {"data": str(data), "validation": "none", "input": {"client": "site"}, "engine": {"name": "serial"}}
    nested = {key: value for key, value in with_(job, **own, **changes).items() if value is not None}
    config = resolve_run(from_nested(nested, "here"))
    here = build(config)
    state = start(here)
    rows = [evaluate(here, state)]
    for _ in range(config.rounds):
        state = advance(here, state)
        rows.append(evaluate(here, state))
    return state, rows


def far(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / (1 + b.abs().max())) if a.numel() else 0.0


def same(here: Federation, state: State, rows: list[dict[str, float]]) -> None:
    """The server's state, and every metric, to 1e-12."""
    want, got = leaves(state.server), here.server()
    assert want.keys() == got.keys()
    assert max(far(got[name], want[name]) for name in want) < 1e-12
    for mine, theirs in zip(here.metrics(), rows, strict=True):
        assert {name: float(mine[name]) for name in theirs} == pytest.approx(theirs, rel=1e-12, abs=1e-12)


def leaves(tree: Tree) -> dict[str, torch.Tensor]:
    return dict(tree_leaves(tree))


def job_of(name: str) -> dict[str, Any]:
    row = TABLE[name]
    options = {key: value for key, value in row.options.items() if key != "levels"} | (
        {"levels": 8} if "levels" in row.options else {}
    )
    method = METHODS[name](**row.options)
    local = {key: value for key, value in BASE["local"].items() if method.step.size is None or key != "lr"}
    return with_(BASE, method=name, algorithm=options, cohort=3 if method.needs.everyone else 2) | {"local": local}


FAST = {"scaffold", "mimesvrg", "losac", "fedpd", "afedpd"}  # one of each way that messages go


ONE = sorted(name for name in METHODS if METHODS[name]().client_model is None)  # for the others: test_deploy_own


@pytest.mark.parametrize("name", [name if name in FAST else pytest.param(name, marks=slow) for name in ONE])
def test_every_method_computes_at_sites_what_serial_computes(name: str, files: Path, tmp_path: Path) -> None:
    job = job_of(name)
    here = Federation(job, files, tmp_path)
    assert here.serve().status == "complete"
    same(here, *simulated(job, files / "all.csv"))


VARIANTS: dict[str, dict[str, Any]] = {
    "loss": {"sampling": "power_of_choice(3)", "rounds": 3},
    "saga": {"local": {"oracle": "saga(3)"}},
    "lesam": {"local": {"oracle": "lesam(0.3)"}},
    "l1": {"regulariser": "l1(0.01)"},
    "uploads": {"upload": "quantise(8)"},
    "server": {"server": "momentum(0.9)"},
    "independent": {"sampling": "bernoulli(0.6)", "cohort": None},
    "network": {"model": "2nn", "rounds": 2},
    "ranks": {"model": "2nn", "rounds": 2, "adapters": "lora(where='1|3',rank=[1,3])", "aggregate": "flora"},
    "ranks, cut": {"model": "2nn", "rounds": 2, "adapters": "lora(where='1|3',rank=[1,3])", "aggregate": "hlora"},
    "prototypes": {"model": "2nn", "rounds": 2, "local": {"term": "proto"}},
    "fedex": {"model": "2nn", "rounds": 2, "adapters": "lora(where='1|3',rank=2)", "aggregate": "fedex"},
}


@pytest.mark.parametrize(
    "what", [what if what in ("loss", "l1", "ranks") else pytest.param(what, marks=slow) for what in VARIANTS]
)
def test_whatever_a_job_is_made_of_sites_compute_the_same(what: str, files: Path, tmp_path: Path) -> None:
    job = with_(BASE, **{"method": "fedavg", **VARIANTS[what]})
    here = Federation(job, files, tmp_path)
    here.serve()
    same(here, *simulated(job, files / "all.csv"))


# -- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "metrics"),
    [("label", ["accuracy", "macro_f1", "micro_f1", "brier", "ece"]), ("number", ["rmse", "mae", "r2"])],
)
def test_transforms_and_metrics_of_sums_are_those_of_all_rows(
    column: str, metrics: list[str], files: Path, tmp_path: Path
) -> None:
    ignored = {"label": "number", "number": "label"}[column]
    job = with_(BASE, method="fedprox", rounds=2, metrics=metrics, input={"label": [column], "ignore": [ignored]})
    here = Federation(job, files, tmp_path)
    done = here.serve()
    same(here, *simulated(job, files / "all.csv"))
    card = json.loads((done.folder / "model.json").read_text())
    if column == "label":
        assert card["output_names"] == ["no", "perhaps", "yes"]  # no site has them all
        assert {c["name"]: c.get("values") for c in card["preprocessing"]["columns"]}["kind"] == ["a", "b", "c"]
    gaps = {c["name"]: c.get("indicator") for c in card["preprocessing"]["columns"]}
    assert (gaps["u"], gaps["v"]) == (False, True)  # bern has none in six rows


def test_metrics_of_large_numbers_that_vary_little_are_those_of_all_rows(files: Path, tmp_path: Path) -> None:
    """Targets near 1.7e9: the sums of their squares would say nothing of how they vary."""
    for name in (*SITES, "all"):
        with (files / f"{name}.csv").open() as file:
            head, *rows = csv.reader(file)
        moved = [[*row[:-1], f"{1.7e9 + float(row[-1]):.5f}"] for row in rows]
        (tmp_path / "files").mkdir(exist_ok=True)
        write(tmp_path / "files" / f"{name}.csv", head, moved)
    data = {"label": ["number"], "ignore": ["label"]}
    job = with_(BASE, method="fedavg", rounds=25, local={"lr": 0.1}, metrics=["rmse", "r2"], input=data)
    here = Federation(job, tmp_path / "files", tmp_path)
    here.serve()
    _, rows_of_simulation = simulated(job, tmp_path / "files" / "all.csv")
    for name in ("test_rmse", "test_r2"):
        mine, theirs = (float(rows[-1][name]) for rows in (here.metrics(), rows_of_simulation))
        assert mine == pytest.approx(theirs, rel=1e-6)
    assert theirs > 0.3


def test_every_metric_of_sums_is_the_metric_of_all_samples() -> None:
    draw = torch.Generator().manual_seed(0)
    for target in ("class", "number", "labels"):
        outputs = torch.randn(40, 3, generator=draw, dtype=torch.float64)
        kinds = {
            "class": torch.randint(3, (40,), generator=draw),
            "labels": torch.randint(2, (40, 3), generator=draw).double(),
            "number": torch.randn(40, 3, generator=draw, dtype=torch.float64) + 5,
        }
        found = [name for name in {*SUMS} - {"auroc", "average_precision"} if target in METRICS_OF[name].targets]
        assert found
        for name in found:
            parts = [SUMS[name].sums(outputs[a:b], kinds[target][a:b]) for a, b in ((0, 7), (7, 30), (30, 40))]
            got = SUMS[name].value(torch.stack(parts).sum(0).numpy(), 40, 3)
            assert got == pytest.approx(METRICS_OF[name].value(outputs, kinds[target]), rel=1e-12)


def test_arrays_and_bytes(tmp_path: Path) -> None:
    draw, every = np.random.default_rng(1), []
    for name in SITES:
        x, y = draw.integers(0, 256, (20, 4), np.uint8), draw.integers(0, 3, 20)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
        every.append((x, y, np.full(20, name)))
    x, y, client = (np.concatenate(part) for part in zip(*every, strict=True))
    np.savez(tmp_path / "all.npz", x=x, y=y, site=client)
    job = with_({**BASE, "input": {}}, method="scaffold", rounds=2)
    here = Federation(job, tmp_path, tmp_path)
    here.site = lambda name: Site(here.job, tmp_path / f"{name}.npz", tmp_path / "sites" / name, name)  # type: ignore[method-assign]
    here.serve()
    same(here, *simulated(job, tmp_path / "all.npz"))


def test_data_by_name_are_cut_by_the_jobs_partition(tmp_path: Path) -> None:
    job = {**BASE, "method": "scaffold", "rounds": 2, "data": "digits", "partition": "dirichlet(0.3)", "cohort": 3}
    del job["input"]
    here = Federation(job, tmp_path, tmp_path, ["a", "b", "c", "d"])
    here.site = lambda name: Site(here.job, Path(), tmp_path / "sites" / name, name)  # type: ignore[method-assign]
    assert check(here.job, here.names, here.exchange, 1.0) == []
    here.serve()
    config = resolve_run(from_nested(with_(job, clients=4, validation="none", engine={"name": "serial"}), "here"))
    simulation = build(config)
    state = advance(simulation, advance(simulation, start(simulation)))
    want, got = leaves(state.server), here.server()
    assert max(far(got[name], want[name]) for name in want) < 1e-12
    metrics = evaluate(simulation, state)
    assert float(here.metrics()[-1]["test_accuracy"]) == pytest.approx(metrics["test_accuracy"], rel=1e-12)


def test_a_site_may_be_another_process_for_every_message(files: Path, tmp_path: Path) -> None:
    job = job_of("mimesvrg")  # two messages a round
    here, there = (Federation(job, files, tmp_path / name) for name in ("new", "kept"))

    def anew(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        here.sites.clear()
        return here.exchange(messages, wait)

    here.serve(anew)
    there.serve()
    assert (here.metrics(), here.said()["sites"]) == (there.metrics(), there.said()["sites"])
    assert not sum(site["missed"] + sum(site["refused"].values()) for site in here.said()["sites"])


def test_what_left_a_site_is_written_down_and_no_row_is_in_it(files: Path, tmp_path: Path) -> None:
    here = Federation(job_of("scaffold"), files, tmp_path)
    here.serve()
    size = 30  # of the model: weights of 3 classes by 9 inputs, 3 biases
    for site in here.said()["sites"]:
        sent = Ledger(tmp_path / "sites" / site["name"] / "ledger.txt").lines()
        assert sum(line["bytes"] for line in sent) == site["bytes_sent"]
        place = tmp_path / "sites" / site["name"] / sent[-1]["run"]
        assert [stat.S_IMODE(path.stat().st_mode) for path in (place, place / "setup.frame")] == [0o700, 0o600]
        assert stat.S_IMODE((place / "row.safetensors").stat().st_mode) == 0o600
        assert {line["run"] for line in sent} == {json.loads((tmp_path / "run/deployment.json").read_text())["run"]}
        assert [line["answer"] for line in sent[:4]] == ["here", "summed", "summed", "ready"]
        forms = {line["answer"]: " ".join(line["tensors"]) for line in sent}
        assert forms["reply"] == f"up/x[{size}] up/c[{size}]"
        assert forms["judged"] == "figures/counts[2] figures/losses[2] figures/sums.0[1]"
        assert forms["summed"] == "columns/known[1, 4] columns/total[1, 4] target/known[1, 0] target/total[1, 0]"


def test_a_site_does_not_go_on_with_another_file_or_job(least_squares: Path, tmp_path: Path) -> None:
    job = with_(SQUARES, method="scaffold", rounds=2)
    here = Federation(job, least_squares, tmp_path)
    here.serve()
    run = json.loads((tmp_path / "run/deployment.json").read_text())["run"]
    orders = codec.write(Frame("orders", run, 1, 1, {}, {}))
    other = Site(text(with_(job, local={"momentum": 0.5})), least_squares / "bern.csv", tmp_path / "sites/bern", "bern")
    with pytest.raises(UserError, match="site bern: the local steps changed since run"):
        other.answer(orders)
    files = rewritten(least_squares, tmp_path / "files", lambda rows: rows[:-2])
    with pytest.raises(UserError, match="site bern: the number of samples changed since run"):
        Site(here.job, files / "bern.csv", tmp_path / "sites/bern", "bern").answer(orders)


# -- faults ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def least_squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many rows at each site, whose minimisers are far apart; one column of targets that are numbers."""
    folder, draw = tmp_path_factory.mktemp("squares"), np.random.default_rng(5)
    for k, name in enumerate(SITES):
        x = draw.standard_normal((20, 3)) + 0.5 * (k - 1)
        y = x @ draw.standard_normal(3) * 2 + k
        rows = [[*(f"{value:.6f}" for value in x[i]), f"{y[i]:.6f}"] for i in range(20)]
        write(folder / f"{name}.csv", ["u", "v", "w", "y"], rows)
    return folder


SQUARES: dict[str, Any] = {
    "model": "logreg",
    "cohort": 3,
    "seed": 1,
    "local": {"lr": 0.1, "batch_size": "full", "steps": 3},
    "engine": {"dtype": "float64"},
    "input": {"label": ["y"], "target": "number"},
    "eval": {"every": 10_000},
}


def optimum(here: Federation) -> torch.Tensor:
    """The minimiser of the mean of the sites' least squares, from the samples that they hold."""
    parts = []
    for name in here.names:
        opened = here.site(name)._opened
        assert opened is not None
        inputs, y = opened.train
        x = inputs[:].double()
        parts.append((torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1), y.double()))
    a = sum((x.T @ x / len(x) for x, _ in parts), torch.zeros(4, 4, dtype=torch.float64))
    b = sum((x.T @ y / len(x) for x, y in parts), torch.zeros(4, 1, dtype=torch.float64))
    return torch.linalg.solve(a, b)[:, 0]


def answer_of(here: Federation) -> torch.Tensor:
    """The model [4] of the run's folder: weights, then the bias."""
    found, _ = tensors.read(here.folder / "run" / "model.safetensors")
    return torch.cat([leaf.flatten() for name, leaf in sorted(found.items(), reverse=True)])


def lossy(here: Federation, seed: int, share: float) -> Exchange:
    """An exchange that loses a share of the rounds' messages, half of them on the way there; sites restart as well."""
    draw = np.random.default_rng(seed)

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        found = {}
        for name, data in messages.items():
            lost = codec.read(data).kind in ("orders", "train", "ask") and draw.random() < share
            if lost and draw.random() < 0.5:
                continue
            if draw.random() < 0.1:
                here.sites.pop(name, None)
            answer = here.site(name).answer(data)
            if not lost:
                found[name] = answer
        return found

    return exchange


def running_sum(here: Federation, method: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What the server keeps of all sites as a running sum, and that sum over the rows at the sites."""
    server, rows = here.server(), list(here.rows().values())

    def mean(name: str) -> torch.Tensor:
        return torch.stack([row[name] for row in rows]).mean(0)

    match method:
        case "scaffold":
            return server["c"], mean("c")
        case "feddyn":
            return server["h"], mean("h")
        case "fedvra":
            return server["dual"], server["beta"] * mean("dual")
        case _:
            return server["phi"], mean("table").mean(0)


LOSSES = [
    ("scaffold", {}, 400),
    ("feddyn", {"alpha": 0.5}, 400),
    ("fedvra", {"gamma": 0.3, "a": 1.0, "d": 4.0}, 400),
    ("losac", {"blocks": 2, "block_scale": "mean"}, 700),
]


@pytest.mark.parametrize(
    ("method", "options", "rounds"),
    [pytest.param(*row[:2], 12, marks=() if row[0] in ("scaffold", "losac") else slow) for row in LOSSES],
)
def test_lost_answers_leave_running_sums_exact(
    method: str, options: dict[str, Any], rounds: int, least_squares: Path, tmp_path: Path
) -> None:
    here = Federation(with_(SQUARES, method=method, algorithm=options, rounds=rounds), least_squares, tmp_path)
    here.serve(lossy(here, 2, 0.3))
    held, summed = running_sum(here, method)
    assert float(summed.abs().max()) > 1e-3
    assert far(held, summed) < 1e-13
    assert sum(site["missed"] for site in here.said()["sites"]) > 3
    assert {event.kind for event in here.events} == {"ready", "row", "missing", "back"}


@slow
@pytest.mark.parametrize(("method", "options", "rounds"), LOSSES)
def test_with_a_third_of_the_answers_lost_the_optimum_is_reached(
    method: str, options: dict[str, Any], rounds: int, least_squares: Path, tmp_path: Path
) -> None:
    here = Federation(with_(SQUARES, method=method, algorithm=options, rounds=rounds), least_squares, tmp_path)
    here.serve(lossy(here, 2, 0.3))
    held, summed = running_sum(here, method)
    assert far(held, summed) < 1e-12
    assert float((answer_of(here) - optimum(here)).norm()) < 1e-8


class Killed(BaseException):
    """The server is gone, with all that it had not put down."""


@pytest.mark.parametrize(
    "method", ["afedpd", *(pytest.param(m, marks=slow) for m in ("scaffold", "mimesvrg", "losac"))]
)
def test_a_server_killed_again_and_again_comes_to_the_same_bits(method: str, files: Path, tmp_path: Path) -> None:
    job = job_of(method)
    whole, here = (Federation(job, files, tmp_path / name) for name in ("whole", "killed"))
    whole.serve()
    kills = 0

    def killed_after(left: int) -> Exchange:
        def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
            nonlocal left
            left -= 1
            answers = here.exchange(messages, wait)  # the sites have done it, and the server never hears of it
            if left == 0:
                raise Killed
            return answers

        return exchange

    for left in (2, 5, 1, 2, 4, 3, 4, 2, 10**6):  # in the handshake, before a round, in it, and before its checkpoint
        try:
            here.serve(killed_after(left), resume=True)
        except Killed:
            kills += 1
            here.sites.clear()
    assert kills > 5
    for name in ("metrics.csv", "clients.csv", "model.safetensors"):
        assert (tmp_path / "killed/run" / name).read_bytes() == (tmp_path / "whole/run" / name).read_bytes()
    want, got = whole.server(), here.server()
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert here.serve(resume=True).status == "complete"  # of a run that is over
    assert (tmp_path / "killed/run/clients.csv").read_bytes() == (tmp_path / "whole/run/clients.csv").read_bytes()


def absent(here: Federation, name: str, rounds: range) -> Exchange:
    """An exchange in which one site does not hear of some rounds."""

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        there = {
            site: data
            for site, data in messages.items()
            if site != name or (frame := codec.read(data)).kind != "orders" or frame.round not in rounds  # it judges
        }
        return here.exchange(there, wait)

    return exchange


@pytest.mark.parametrize("rounds", [range(2), range(2, 9), range(1, 3)], ids=["joins late", "leaves", "comes back"])
def test_a_site_that_is_away_stops_nothing(rounds: range, least_squares: Path, tmp_path: Path) -> None:
    here = Federation(with_(SQUARES, method="scaffold", rounds=5), least_squares, tmp_path)
    assert here.serve(absent(here, "bern", rounds)).rounds == 5
    assert far(*running_sum(here, "scaffold")) < 1e-13
    assert [site["missed"] for site in here.said()["sites"]] == [0, len(range(5)[rounds.start : rounds.stop]), 0]
    assert [event.kind for event in here.events if event.site == "bern"] == ["missing", "back"]


def test_a_method_that_needs_all_sites_says_which_is_missing_and_goes_on_later(files: Path, tmp_path: Path) -> None:
    job = job_of("vrlsgd")
    here = Federation(job, files, tmp_path)
    with pytest.raises(UserError, match=r"site bern did not answer in round 2 .* needs all clients in every round"):
        here.serve(absent(here, "bern", range(2, 9)))
    here.serve(resume=True)
    same(here, *simulated(job, files / "all.csv"))


# -- answers that are refused ----------------------------------------------------------------------------------------


def forged(data: bytes, **header: Any) -> bytes:
    """A frame with other values in its header, and the checksum that belongs to them."""
    length = int.from_bytes(data[4:8], "little")
    fields = json.loads(data[12 : 12 + length]) | header
    return framed(json.dumps(fields).encode(), data[12 + length :])


def framed(header: bytes, tensors: bytes = b"") -> bytes:
    size = len(header).to_bytes(4, "little")
    return b"FCW1" + size + zlib.crc32(header + tensors, zlib.crc32(size)).to_bytes(4, "little") + header + tensors


def spoilt(value: float) -> Callable[[bytes, bytes], bytes]:
    """A number in the first tensor becomes another."""

    def spoil(data: bytes, before: bytes) -> bytes:
        frame = codec.read(data)
        sent = {name: leaf.clone() for name, leaf in frame.tensors.items()}
        next(iter(sent.values())).flatten()[0] = value
        return codec.write(frame._replace(tensors=sent))

    return spoil


def changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[bytes, bytes], bytes]:
    def spoil(data: bytes, before: bytes) -> bytes:
        frame = codec.read(data)
        return codec.write(frame._replace(tensors={name: change(leaf) for name, leaf in frame.tensors.items()}))

    return spoil


class Bomb:
    """What unpickling would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('unpickled')",)


WRONG: dict[str, tuple[Callable[[bytes, bytes], bytes], str]] = {
    "nan": (spoilt(math.nan), "not finite"),
    "infinite": (spoilt(-math.inf), "not finite"),
    "shape": (changed(lambda leaf: leaf.reshape(-1, 1)), "another shape"),
    "length": (changed(lambda leaf: leaf[:-1].clone()), "another shape"),
    "dtype": (changed(lambda leaf: leaf.float()), "another number type"),
    "field": (lambda data, before: codec.write(codec.read(data)._replace(tensors={})), "a field is missing"),
    "method": (lambda data, before: forged(data, method="0" * 16), "another client or method"),
    "version": (lambda data, before: forged(data, version=99), "another version"),
    "round": (lambda data, before: forged(data, round=77), "another round"),
    "client": (lambda data, before: forged(data, client=0), "another client or method"),
    "steps": (lambda data, before: forged(data, fields={"gradient_steps": -5}), "no whole number"),
    "many steps": (lambda data, before: forged(data, fields={"gradient_steps": int("9" * 4300)}), "no whole number"),
    "replayed": (lambda data, before: before, "another round"),
    "oversized": (lambda data, before: data + bytes(2**21), "oversized"),
    "cut": (lambda data, before: data[:-3], "damaged"),
    "header": (lambda data, before: framed(b"[" * 100_000), "not decodable"),
    "infinite round": (lambda data, before: data and forged(data, round=math.inf), "not decodable"),
    "empty": (lambda data, before: b"", "not a frame"),
    "pickle": (lambda data, before: pickle.dumps(Bomb()), "not a frame"),
}


@pytest.fixture(scope="module")
def two_rounds_lost(least_squares: Path, tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """Four rounds, two of them without bern."""
    found = Federation(with_(SQUARES, method="scaffold", rounds=4), least_squares, tmp_path_factory.mktemp("lost"))
    found.serve(absent(found, "bern", range(1, 3)))
    return found


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_answer_is_refused_counted_and_as_if_it_had_not_come(
    wrong: str, least_squares: Path, two_rounds_lost: Federation, tmp_path: Path
) -> None:
    (spoil, why), there = WRONG[wrong], two_rounds_lost
    here = Federation(with_(SQUARES, method="scaffold", rounds=4), least_squares, tmp_path)
    before = b""

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        nonlocal before
        answers = dict(here.exchange(messages, wait))
        frame = codec.read(answers["bern"])
        if frame.kind == "reply":
            answers["bern"], before = (
                answers["bern"] if frame.round in (0, 3) else spoil(answers["bern"], before),
                (answers["bern"]),
            )
        return answers

    here.serve(exchange)
    assert all(torch.equal(leaf, there.server()[name]) for name, leaf in here.server().items())
    basel, bern, chur = (site["refused"] for site in here.said()["sites"])
    [(said, times)] = bern.items()
    assert why in said
    assert (times, basel, chur) == (2, {}, {})
    told = [event for event in here.events if event.kind == "refused"]
    assert [event.site for event in told] == ["bern", "bern"]
    assert all(why in event.text for event in told)
    assert far(*running_sum(here, "scaffold")) < 1e-13


def test_a_message_far_longer_than_the_others_is_said(least_squares: Path, tmp_path: Path) -> None:
    """It counts, as it may be right; once in the events, and how often and how far in run.json."""
    job = with_(SQUARES, method="scaffold", rounds=3, eval={"every": 3})
    honest = Federation(job, least_squares, tmp_path / "honest")
    honest.serve()
    assert not [event for event in honest.events if event.kind == "far"]
    assert [site["far"] for site in honest.said()["sites"]] == [None, None, None]
    here = Federation(job, least_squares, tmp_path / "here")

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = dict(here.exchange(messages, wait))
        frame = codec.read(answers["bern"]) if "bern" in answers else None
        if frame is not None and frame.kind == "reply":
            tensors = {name: -100 * leaf if leaf.ndim else leaf for name, leaf in frame.tensors.items()}
            answers["bern"] = codec.write(frame._replace(tensors=tensors))
        return answers

    here.serve(exchange)
    [event] = [event for event in here.events if event.kind == "far"]
    assert event.site == "bern"
    assert "times as long as the median of the other sites'" in event.text
    basel, bern, chur = (site["far"] for site in here.said()["sites"])
    assert (basel, bern["messages"], chur) == (None, 3, None)
    assert 20 < bern["times"] < 2000


def test_three_refusals_in_a_row_and_a_site_is_left_out(least_squares: Path, tmp_path: Path) -> None:
    job = with_(SQUARES, method="scaffold", rounds=6, eval={"every": 1})
    here = Federation(job, least_squares, tmp_path)

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = dict(here.exchange(messages, wait))
        if "bern" in answers and codec.read(answers["bern"]).kind == "reply":  # its figures stay right
            answers["bern"] = WRONG["nan"][0](answers["bern"], b"")
        return answers

    assert here.serve(exchange).status == "complete"
    bern = here.said()["sites"][1]
    assert bern["left_out"].startswith("site bern is left out after 3 refused answers in a row")
    assert (bern["asked"], sum(bern["refused"].values())) == (10, 3)  # 4 of the handshake, 3 rounds, 3 evaluations
    assert [event.text for event in here.events if event.kind == "left out"] == [bern["left_out"]]
    with (tmp_path / "run/clients.csv").open() as file:
        assert [line["loss"] == "" for line in csv.DictReader(file)] == [False, True, False]


def test_figures_that_are_wrong_are_refused_and_the_others_are_pooled(least_squares: Path, tmp_path: Path) -> None:
    job = with_(SQUARES, method="fedavg", rounds=2, eval={"every": 1})
    here = Federation(job, least_squares, tmp_path)

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = dict(here.exchange(messages, wait))
        if codec.read(answers["bern"]).kind == "judged":
            frame = codec.read(answers["bern"])
            counts = {"figures/counts": frame.tensors["figures/counts"] * 1000}
            answers["bern"] = codec.write(frame._replace(tensors={**frame.tensors, **counts}))
        return answers

    here.serve(exchange)
    assert list(here.said()["sites"][1]["refused"]) == ["figures of another number of samples"]
    assert len(here.metrics()) == 3


@pytest.mark.parametrize(
    ("metric", "figure", "value", "why"),
    [
        ("rmse", "sums", -1e6, "figures of rmse that no 3 samples have"),
        ("mae", "sums", 1.7e308, "a number that is not finite"),
        ("auroc", "sums", 1.7e100, "figures of auroc that no 3 samples have"),
        ("ece", "sums", 1.7e308, "a number that is not finite"),
        ("macro_f1", "sums", 4, "figures of macro_f1 that no 3 samples have"),
        ("accuracy", "losses", -1.7e308, "a number that is not finite"),
    ],
)
def test_figures_that_no_samples_have_are_refused_and_end_no_run(
    metric: str, figure: str, value: float, why: str, files: Path, tmp_path: Path
) -> None:
    """Finite ones, of which the root or the sum with other sites' is no number."""
    label, other = ("number", "label") if metric in ("rmse", "mae") else ("label", "number")
    job = with_(BASE, method="fedavg", rounds=2, metrics=[metric], input={"label": [label], "ignore": [other]})
    here = Federation(job, files, tmp_path)

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = dict(here.exchange(messages, wait))
        frame = codec.read(answers["bern"]) if "bern" in answers else Frame("", "", 0, 0)
        if frame.kind == "judged":
            said = {k: leaf * 0 + value if figure in k else leaf for k, leaf in frame.tensors.items()}
            answers["bern"] = codec.write(frame._replace(tensors=said))
        return answers

    assert here.serve(exchange).status == "complete"
    assert [site["refused"] for site in here.said()["sites"]] == [{}, {why: 3}, {}]
    assert all(math.isfinite(float(row[f"test_{metric}"])) for row in here.metrics())


def test_metrics_of_impossible_sums_are_no_errors() -> None:
    """As of a model that diverges: a simulation's perplexity is infinite then."""
    perplexity, rmse = SUMS["perplexity"].value, SUMS["rmse"].value
    assert perplexity(np.array([1e6, 1.0]), 1, 1) == perplexity(np.array([1e6, 0.0]), 1, 1) == math.inf
    assert math.isnan(perplexity(np.array([0.0, 0.0]), 1, 1))
    assert math.isnan(rmse(np.array([-1.0]), 1, 1))


def test_a_model_that_diverges_ends_the_run_as_anywhere(least_squares: Path, tmp_path: Path) -> None:
    job = with_(SQUARES, method="fedavg", rounds=300, local={"lr": 1e30}, eval={"every": 1})
    here = Federation(job, least_squares, tmp_path)
    done = here.serve()
    assert (done.status, done.rounds < 300) == ("diverged", True)


# -- sites -----------------------------------------------------------------------------------------------------------


HANDLED = [
    *("hello", "sums", "squares", "setup", "judge", "orders", "ask", "train", "settle", "join", "prologue", "loss"),
    *("reply", "lost"),
]


def test_a_site_answers_whatever_a_server_sends(files: Path, tmp_path: Path) -> None:
    here = Federation(job_of("mimesvrg"), files, tmp_path)
    seen: list[bytes] = []

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        if "basel" in messages:
            seen.append(messages["basel"])
        return here.exchange(messages, wait)

    here.serve(exchange)
    site, draw, kinds = here.site("basel"), np.random.default_rng(0), set()
    values = [None, -1, 10**30, 0.5, "x", [], {}, [1, 2], {"a": 1}, True, math.inf]
    for data in seen:
        header = json.loads(data[12 : 12 + int.from_bytes(data[4:8], "little")])
        for key in ("kind", "round", "client", "fields", "tensors", "method"):
            some = [values[int(draw.integers(len(values)))], *(HANDLED if key == "kind" else ["../../x"])]
            for value in some:
                kinds.add(codec.read(site.answer(forged(data, **{key: value}))).kind)
        for key in header["fields"]:
            value = values[int(draw.integers(len(values)))]
            fields = {**header["fields"], key: value}
            kinds.add(codec.read(site.answer(forged(data, fields=fields))).kind)
    assert "refused" in kinds
    assert {path.name for path in (tmp_path / "sites").iterdir()} == set(SITES)


def test_a_site_whose_state_is_damaged_or_lost_says_so(least_squares: Path, tmp_path: Path) -> None:
    job = with_(SQUARES, method="scaffold", rounds=2)
    here = Federation(job, least_squares, tmp_path)
    here.serve()
    [path] = (tmp_path / "sites" / "bern").glob("*/row.safetensors")
    kept = path.read_bytes()
    path.write_bytes(kept[:-1] + b"?")
    orders = codec.write(Frame("orders", path.parent.name, 1, 1, {}, {}))
    with pytest.raises(UserError, match=r"cannot read the site's state .*row.safetensors \(its checksum differs\)"):
        here.site("bern").answer(orders)
    shutil.rmtree(path.parent)
    here.sites.clear()
    refused = codec.read(here.site("bern").answer(orders))
    assert (refused.kind, "does not know this run" in refused.fields["why"]) == ("refused", True)


def test_two_sites_cannot_share_a_folder(least_squares: Path, tmp_path: Path) -> None:
    here = Federation(with_(SQUARES, method="scaffold", rounds=2), least_squares, tmp_path)
    here.sites = {name: Site(here.job, least_squares / f"{name}.csv", tmp_path / "sites/one", name) for name in SITES}
    with pytest.raises(UserError, match=r"site bern: .* two sites cannot share a folder"):
        here.serve()


# -- the handshake ---------------------------------------------------------------------------------------------------


def rewritten(files: Path, folder: Path, change: Callable[[list[list[str]]], list[list[str]]]) -> Path:
    """The files, with bern's changed."""
    shutil.copytree(files, folder)
    with (files / "bern.csv").open() as file:
        rows = change(list(csv.reader(file)))
    write(folder / "bern.csv", rows[0], rows[1:])
    return folder


TABLES: dict[str, tuple[Callable[[list[list[str]]], list[list[str]]], str]] = {
    "another name": (
        lambda rows: [["U", *rows[0][1:]], *rows[1:]],
        "site bern lacks the column 'u', which site basel has, and has the column 'U' in its place; name columns alike",
    ),
    "has": (
        lambda rows: [[*row, "age" if k == 0 else "3"] for k, row in enumerate(rows)],
        "site bern has the column 'age', which site basel lacks",
    ),
    "texts": (
        lambda rows: [row if k == 0 else ["low", *row[1:]] for k, row in enumerate(rows)],
        "column 'u' holds numbers at site chur and texts at site bern",
    ),
    "labels": (
        lambda rows: [row if k == 0 else [*row[:4], str(k % 2), row[5]] for k, row in enumerate(rows)],
        "label column 'label' holds numbers at site bern and texts at site basel",
    ),
}


def test_a_site_may_lack_a_column_which_is_one_without_a_value(files: Path, tmp_path: Path) -> None:
    """A column of numbers, one of texts, and one that the job leaves out. The run is the simulation's of a table with
    empty cells in their place."""
    shutil.copytree(files, tmp_path / "files")
    absent = {"bern": ("u", "label 2"), "chur": ("kind", "w")}
    every = []
    for name in SITES:
        with (files / f"{name}.csv").open() as file:
            rows = [{**row, "label 2": "x"} for row in csv.DictReader(file)]
        gone = absent.get(name, ())
        every += [[name, *("" if key in gone else row[key] for key in rows[0])] for row in rows]
        kept = [key for key in rows[0] if key not in gone]
        write(tmp_path / "files" / f"{name}.csv", kept, [[row[key] for key in kept] for row in rows])
    write(tmp_path / "all.csv", ["site", *rows[0]], every)
    job = with_(BASE, method="scaffold", rounds=2, input={"ignore": [*BASE["input"].get("ignore", []), "label 2"]})
    here = Federation(job, tmp_path / "files", tmp_path)
    assert check(here.job, SITES, here.exchange, 1.0) == []
    here.serve()
    same(here, *simulated(job, tmp_path / "all.csv"))
    said = " ".join(json.loads((tmp_path / "run/deployment.json").read_text())["said"])
    assert "site bern lacks the column 'u', without a value in all of its rows" in said
    assert "site chur lacks the columns 'w', 'kind'" in said


def test_a_site_tells_nothing_of_columns_that_its_job_leaves_out(files: Path, tmp_path: Path) -> None:
    """Whatever a server asks for: the numbers of patients that input.ignore names, and labels as texts."""
    here = Federation(with_(BASE, method="fedavg", input={"ignore": ["number"]}), files, tmp_path)
    told = {"columns": [], "target": "class", "names": ["no", "yes"], "unit": None}
    for digits, words in ((["u", "number"], []), (["u"], ["label"])):
        fields = {"told": told, "digits": digits, "words": words}
        found = codec.read(here.site("bern").answer(codec.write(Frame("sums", "0" * 16, 0, 1, fields, {}))))
        assert found.kind == "refused"
        assert found.fields["why"] == "it asks for columns that the site's job does not learn from"


@pytest.mark.parametrize("what", TABLES)
def test_tables_that_differ_are_named_before_round_0(what: str, files: Path, tmp_path: Path) -> None:
    change, sentence = TABLES[what]
    here = Federation(with_(BASE, method="fedavg"), rewritten(files, tmp_path / "files", change), tmp_path)
    [found] = check(here.job, SITES, here.exchange, 1.0)
    assert sentence in found
    with pytest.raises(UserError, match=sentence.split("'")[0]):
        here.serve()
    assert not (tmp_path / "run").exists()
    assert not [path for path in (tmp_path / "sites").glob("*/*") if path.is_dir()]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"method": "fedprox"}, "the method"),
        ({"model": "2nn"}, "the model"),
        ({"local": {"batch_size": 7}}, "the batches"),
        ({"local": {"momentum": 0.5}}, "the local steps"),
        ({"engine": {"dtype": "float32"}}, "the number type"),
        ({"regulariser": "l1(0.1)"}, "the regulariser"),
    ],
)
def test_jobs_that_differ_are_named_before_round_0(change: Any, what: str, files: Path, tmp_path: Path) -> None:
    job = with_(BASE, method="fedavg")
    here = Federation(job, files, tmp_path, chur=with_(job, **change))
    found = check(here.job, SITES, here.exchange, 1.0)
    assert found
    assert all(sentence.startswith("site chur: ") for sentence in found)
    assert any(f"site chur: {what} is " in sentence for sentence in found)


def test_a_site_of_another_version_a_silent_one_and_one_that_talks_nonsense(files: Path, tmp_path: Path) -> None:
    here = Federation(with_(BASE, method="fedavg"), files, tmp_path)

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = dict(here.exchange(messages, wait))
        frame = codec.read(answers["bern"])
        fields = {**frame.fields, "versions": {"fedconcord": "9.9"}}
        return {**answers, "bern": codec.write(frame._replace(fields=fields))}

    [found] = check(here.job, SITES, exchange, 1.0)
    assert found.startswith("site bern: fedconcord is of version 9.9 there and ")

    def silent(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        return here.exchange({name: data for name, data in messages.items() if name != "chur"}, wait)

    [found] = check(here.job, SITES, silent, 1.0)
    assert found.startswith("site chur gave no answer in 3 tries, after 0 s of at most 3: not connected, or its app")

    def nonsense(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = here.exchange(messages, wait)
        return {name: codec.write(codec.read(data)._replace(fields={"own": 3})) for name, data in answers.items()}

    [found] = check(here.job, SITES, nonsense, 1.0)
    assert found.startswith("site basel: its answer cannot be used")

    def rows(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = dict(here.exchange(messages, wait))
        frame = codec.read(answers["bern"])
        data = {**frame.fields.get("data", {}), "rows": 10**15}
        return {**answers, "bern": codec.write(frame._replace(fields={**frame.fields, "data": data}))}

    [found] = check(here.job, SITES, rows, 1.0)
    assert found.startswith("site bern: its answer cannot be used (FrameError: a field that is no whole number from 0")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dropout": 0.1}, "dropout is for simulations"),
        ({"validation": 0.2}, "validation 0.2 sets training samples apart"),
        ({"method": "local"}, "method local"),
        ({"cohort": 4}, "cohort 4"),
        ({"rouns": 4}, "unknown key 'rouns'"),
        ({"eval": {"patience": 3}}, "eval.patience is for simulations"),
        ({"privacy": {"clip": 1.0, "noise": 1.0}}, "does not cover the sums that sites send"),
    ],
)
def test_a_job_that_cannot_be_deployed_is_one_sentence(change: Any, sentence: str, files: Path, tmp_path: Path) -> None:
    here = Federation(with_(BASE, method="fedavg"), files, tmp_path)
    with pytest.raises(UserError, match=sentence):
        serve(
            text(with_(BASE, **{"method": "fedavg", **change})), SITES, here.exchange, tmp_path / "run", None, 1, False
        )


def test_a_folder_of_another_federation_is_not_gone_on_with(files: Path, tmp_path: Path) -> None:
    here = Federation(with_(BASE, method="fedavg", rounds=1), files, tmp_path)
    here.serve()
    with pytest.raises(UserError, match="is not empty"):
        here.serve()
    here.names = ["basel", "bern", "thun"]
    with pytest.raises(UserError, match="has the sites basel, bern, chur, given basel, bern, thun"):
        here.serve(resume=True)


# -- sites that come later ---------------------------------------------------------------------------------------------


def arriving(here: Federation, name: str, after: int) -> Exchange:
    """An exchange in which a site is not there before so many exchanges."""
    count = 0

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        nonlocal count
        count += 1
        return here.exchange({k: data for k, data in messages.items() if k != name or count > after}, wait)

    return exchange


def late(here: Federation, exchange: Exchange, rows: int, resume: bool = False) -> Finished:
    see = here.events.append
    return serve(here.job, here.names, exchange, here.folder / "run", see, 1.0, resume, later={"chur": rows})


@pytest.mark.parametrize(("rounds", "near"), [(30, 1.0), pytest.param(400, 1e-8, marks=slow)])
def test_a_site_that_comes_later_is_one_that_was_absent(
    rounds: int, near: float, least_squares: Path, tmp_path: Path
) -> None:
    """It gets its handshake in place of orders, then x^0; running sums are exact, and the optimum is that of all."""
    here = Federation(with_(SQUARES, method="scaffold", rounds=rounds), least_squares, tmp_path)
    late(here, arriving(here, "chur", 20), 20)
    assert [event.text for event in here.events if event.kind == "joined"] == ["site chur joins"]
    chur = here.said()["sites"][2]
    assert (chur["samples"], chur["tested_on"]) == (16, 4)
    assert chur["missed"] == 14 + 2  # questions until it came: 16 rounds and one evaluation; two got its handshake
    held, summed = running_sum(here, "scaffold")
    assert far(held, summed) < 1e-12
    assert float((answer_of(here) - optimum(here)).norm()) < near


def test_a_site_that_comes_later_may_lack_a_column(least_squares: Path, tmp_path: Path) -> None:
    shutil.copytree(least_squares, tmp_path / "files")
    with (least_squares / "chur.csv").open() as file:
        head, *rows = csv.reader(file)
    write(tmp_path / "files" / "chur.csv", [head[0], *head[2:]], [[row[0], *row[2:]] for row in rows])
    here = Federation(with_(SQUARES, method="scaffold", rounds=30), tmp_path / "files", tmp_path)
    late(here, arriving(here, "chur", 20), 20)
    assert [event.text for event in here.events if event.kind == "joined"] == ["site chur joins"]
    assert here.said()["sites"][2]["samples"] == 16


def test_a_server_killed_while_a_site_joins_goes_on(least_squares: Path, tmp_path: Path) -> None:
    """The site is asked the same again, and takes it."""
    here = Federation(with_(SQUARES, method="scaffold", rounds=8), least_squares, tmp_path)
    arrives, count = arriving(here, "chur", 8), 0

    def killed(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        nonlocal count
        count += 1
        answers = arrives(messages, wait)
        if count in (9, 10):  # it has answered the hello, the setup
            raise Killed
        return answers

    for resume in (False, True):
        with pytest.raises(Killed):
            late(here, killed, 20, resume)
    late(here, killed, 20, resume=True)
    held, summed = running_sum(here, "scaffold")
    assert far(held, summed) < 1e-13
    assert float(here.rows()["chur"]["c"].norm()) > 1e-3


@pytest.mark.parametrize(
    ("changed", "rows", "says"),
    [
        (lambda lines: lines[:-1], 20, "site chur has 19 rows, and the run counts on the 20 that were named"),
        (lambda lines: [line.replace("w", "W") for line in lines], 20, "site chur lacks the column 'w'"),
    ],
    ids=["rows", "columns"],
)
def test_a_later_site_that_differs_is_left_out_by_name(
    changed: Callable[[list[str]], list[str]], rows: int, says: str, least_squares: Path, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    shutil.copytree(least_squares, files)
    (files / "chur.csv").write_text("\n".join(changed((files / "chur.csv").read_text().split())) + "\n")
    here = Federation(with_(SQUARES, method="scaffold", rounds=6), files, tmp_path)
    late(here, here.exchange, rows)
    left = here.said()["sites"][2]["left_out"]
    assert left.startswith(says)
    assert left.endswith("site chur is left out")
    assert len(here.metrics()) == 2
