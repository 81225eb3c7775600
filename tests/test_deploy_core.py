"""Deployment without a transport: a real server and real sites in one process, that share nothing but bytes."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedconcord import settings
from fedconcord.algorithms import METHODS
from fedconcord.core import tensors, tree_leaves
from fedconcord.core.trees import Tree
from fedconcord.deploy.events import Event
from fedconcord.deploy.exchange import Exchange
from fedconcord.deploy.judging import SUMS
from fedconcord.deploy.serve import check, serve
from fedconcord.deploy.site import Site
from fedconcord.jobs import State, advance, evaluate, start
from fedconcord.problems.losses import METRICS as METRICS_OF
from fedconcord.remote import codec
from fedconcord.runs.outcome import Finished
from table import TABLE

SITES = ["basel", "bern", "chur"]
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
    """Settings as TOML."""

    def cell(value: Any) -> str:
        return json.dumps(value)

    flat = [f"{key} = {cell(value)}" for key, value in job.items() if not isinstance(value, Mapping)]
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
    """A table a site, of unlike distributions, categories and classes, with gaps; and all.csv, which has all of them."""
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
        self.events: list[Event] = []

    def site(self, name: str) -> Site:
        """One site, which is made again where it was forgotten."""
        if name not in self.sites:
            self.sites[name] = Site(self.jobs[name], self.files / f"{name}.csv", self.folder / "sites" / name, name)
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


def simulated(job: Mapping[str, Any], data: Path, **changes: Any) -> tuple[State, list[dict[str, float]]]:
    """The same job by engine serial, on the table of all: its last state, and its metrics by round."""
    own = {"data": str(data), "validation": "none", "input": {"client": "site"}, "engine": {"name": "serial"}}
    config = settings.resolve_run(settings.from_nested(with_(job, **own, **changes), "here"))
    here = settings.build(config)
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
    return with_(BASE, method=name, algorithm=options, cohort=3 if METHODS[name](**row.options).needs_everyone else 2)


FAST = {  # one of each way that messages go; the others are slow tests
    *("fedavg", "scaffold", "mimesvrg", "losac", "feddyn", "fedpd", "vrlsgd", "fedvra", "fednova", "fedadmm"),
    *("afedpd", "fedhybrid"),
}


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in sorted(METHODS)]
)
def test_every_method_computes_at_sites_what_serial_computes(name: str, files: Path, tmp_path: Path) -> None:
    job = job_of(name)
    here = Federation(job, files, tmp_path)
    assert here.serve().status == "complete"
    same(here, *simulated(job, files / "all.csv"))


# -- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "metrics"),
    [("label", ["accuracy", "macro_f1", "micro_f1", "brier"]), ("number", ["rmse", "mae", "r2"])],
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


def test_every_metric_of_sums_is_the_metric_of_all_samples() -> None:
    draw = torch.Generator().manual_seed(0)
    for target in ("class", "number", "labels"):
        outputs = torch.randn(40, 3, generator=draw, dtype=torch.float64)
        kinds = {
            "class": torch.randint(3, (40,), generator=draw),
            "labels": torch.randint(2, (40, 3), generator=draw).double(),
            "number": torch.randn(40, 3, generator=draw, dtype=torch.float64) + 5,
        }
        found = [name for name in SUMS if target in METRICS_OF[name].targets]
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
    config = settings.resolve_run(
        settings.from_nested(with_(job, clients=4, validation="none", engine={"name": "serial"}), "here")
    )
    simulation = settings.build(config)
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
    for site in here.said()["sites"]:
        [path] = (tmp_path / "sites" / site["name"]).glob("*/sent.csv")
        with path.open() as file:
            sent = list(csv.DictReader(file))
        # before the setup made its folder three answers went: here, summed, summed
        assert 0 < sum(int(line["bytes"]) for line in sent) < site["bytes_sent"]
        assert {line["kind"] for line in sent} == {"ready", "reply", "judged"}
        form = {line["tensors"] for line in sent if line["kind"] == "reply"}
        assert form == {"up/delta[30] up/dc[30]"} or all("row" not in tensors for tensors in form)
        assert all("26" not in tensors for tensors in form)


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
    ("losac", {"blocks": 2, "block_scale": "mean"}, 1500),
]


@pytest.mark.parametrize(("method", "options", "rounds"), [(name, options, 12) for name, options, _ in LOSSES])
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


@pytest.mark.slow
@pytest.mark.parametrize(("method", "options", "rounds"), LOSSES)
def test_with_a_third_of_the_answers_lost_the_optimum_is_reached(
    method: str, options: dict[str, Any], rounds: int, least_squares: Path, tmp_path: Path
) -> None:
    here = Federation(with_(SQUARES, method=method, algorithm=options, rounds=rounds), least_squares, tmp_path)
    here.serve(lossy(here, 2, 0.3))
    held, summed = running_sum(here, method)
    assert far(held, summed) < 1e-12
    assert float((answer_of(here) - optimum(here)).norm()) < 1e-8
