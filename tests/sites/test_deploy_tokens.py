"""Sites whose samples are rows of tokens with a class for each: what serial computes on all of them, what is said."""

import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from test_deploy_core import Federation, far, leaves, same, simulated, text, with_

from fedconcord.execution.job import advance, start
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame
from fedconcord.federation.data.dataset import IGNORED
from fedconcord.federation.data.inputs import held_out
from fedconcord.interface.cli.main import call
from fedconcord.study.runs.records import finished
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import imports
from fedconcord.support.errors import UserError
from fedconcord_flower import grid, trial
from fedconcord_flower.app import PACKAGE, Order, write_app
from fedconcord_flower.preview import preview
from fedconcord_sites.exchange import Exchange
from fedconcord_sites.serve import check, serve
from fedconcord_sites.site import Site
from pages import command

SITES = ["ana", "bo", "cy"]
MODULE = """
import numpy as np
import torch
from torch import nn
import fedconcord

class Reads(nn.Module):
    pad = 0
    def __init__(self, shape, classes, width=4):
        super().__init__()
        self.letters, self.last = nn.Embedding(20, width), nn.Linear(width, classes)
    def forward(self, x):
        return self.last(self.letters(x).cumsum(1).tanh())

class Looks(Reads):
    def forward(self, x):
        return super().forward(x) + (x == 0).sum(1)[:, None, None]

def named(folder, seed):
    draw = np.random.default_rng(7)
    x = draw.integers(1, 20, (40, 12))
    x[::3, 5:] = 0
    y = np.where(x > 0, x % 3, -100)
    return fedconcord.Dataset("named", x, y, x[:9], y[:9], 3, target="tokens")
"""
JOB: dict[str, Any] = {
    "method": "scaffold",
    "model": "tokenmodule:Reads",
    "rounds": 3,
    "cohort": 2,
    "seed": 3,
    "objective": "samples",
    "local": {"lr": 0.05, "batch_size": 4, "steps": 3},
    "engine": {"dtype": "float64"},
    "input": {"target": "tokens"},
}


def site_of(here: Federation, name: str) -> Site:
    if name not in here.sites:
        here.sites[name] = Site(here.jobs[name], here.files / f"{name}.npz", here.folder / "sites" / name, name)
    return here.sites[name]


class Texts(Federation):
    """Sites with an .npz each."""

    def site(self, name: str) -> Site:
        return site_of(self, name)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows of unequal lengths, of longer texts at later sites, some tokens without a class; and all.npz of them all."""
    (tmp_path / "tokenmodule.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tokenmodule", raising=False)
    imports.trust("tokenmodule:Reads, tokenmodule:Looks, tokenmodule:named")
    draw, every = np.random.default_rng(1), []
    for k, name in enumerate(SITES):
        n = (13, 9, 17)[k]
        x = np.zeros((n, 12), np.int64)
        for row, length in zip(x, draw.integers(2 + k, 6 + 3 * k, n), strict=True):
            row[:length] = draw.integers(1, 20 - k, length)
        y = np.where((x > 0) & (draw.random(x.shape) < 0.7), (x + x.cumsum(1)) % (2 + k), IGNORED)
        y[:, 0] = x[:, 0] % 2
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
        every.append((x, y, np.full(n, name)))
    x, y, site = (np.concatenate(part) for part in zip(*every, strict=True))
    np.savez(tmp_path / "all.npz", x=x, y=y, site=site)
    return tmp_path


def without_targets(texts: Path) -> None:
    for name in (*SITES, "all"):
        arrays = dict(np.load(texts / f"{name}.npz"))
        del arrays["y"]
        np.savez(texts / f"{name}.npz", **arrays)


def said_of(texts: Path, changes: Mapping[str, Any]) -> Texts:
    here = Texts(with_(JOB, **changes), texts, texts, SITES)
    here.serve()
    return here


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"objective": "clients", "method": "afedpd"},
        {"loss": "token_cross_entropy(per=sequence)", "cohort": 3},
        {"method": "fedsgd", "algorithm": {"weights": "size"}, "local": {"batch_size": "full"}, "cohort": 3},
    ],
    ids=["tokens", "clients", "sequences", "full gradients"],
)
def test_sites_compute_what_serial_computes_on_all_tokens(changes: Mapping[str, Any], texts: Path) -> None:
    here = said_of(texts, changes)
    state, rows = simulated(with_(JOB, **changes), texts / "all.npz")
    same(here, state, rows)
    assert {"test_token_accuracy", "test_perplexity", "test_loss", "train_loss"} <= {*rows[-1]}


def test_next_tokens_need_no_targets_at_sites(texts: Path) -> None:
    without_targets(texts)
    here = said_of(texts, {})
    same(here, *simulated(JOB, texts / "all.npz"))
    assert here.said()["sites_sent_first"][1] == "its largest class of a token and the largest token that has one"


def test_a_site_s_figures_are_of_its_own_tokens(texts: Path) -> None:
    here = said_of(texts, {"cohort": 3})
    [loss] = [float(row["test_loss"]) for row in here.metrics()[-1:]]
    rows = (texts / "run" / "clients.csv").read_text().splitlines()
    names = rows[0].split(",")
    table = [dict(zip(names, row.split(","), strict=True)) for row in rows[1:]]
    assert [row["name"] for row in table] == SITES
    tested = []
    for k, name in enumerate(SITES):
        y = np.load(texts / f"{name}.npz")["y"]
        tested.append(int((y[held_out(k, len(y), 0.2)] != IGNORED).sum()))
    assert loss == pytest.approx(np.average([float(row["loss"]) for row in table], weights=tested), rel=1e-12)
    assert len({*tested}) == 3


def secured(texts: Path, folder: Path) -> Texts:
    job = with_(JOB, secure={"clip": 16.0, "bits": 48}, cohort=3, rounds=2)
    here = Texts(job, texts, folder, SITES)
    sites, ring = {}, folder / "keys"

    def site(name: str) -> Site:
        if name not in sites:
            sites[name] = Site(here.job, texts / f"{name}.npz", folder / "sites" / name, name, keys=ring)
        return sites[name]

    here.site = site  # type: ignore[method-assign]
    return here


def test_secure_sums_weigh_with_tokens(texts: Path) -> None:
    """What the plain run comes to, to the rounding of sums; each site looks up its own tokens in the list of all."""
    here = secured(texts, texts / "secure")
    assert here.serve().status == "complete"
    state, rows = simulated(with_(JOB, cohort=3, rounds=2), texts / "all.npz")
    want, got = leaves(state.server), here.server()
    assert max(far(got[name], want[name]) for name in want) < 1e-9
    for mine, theirs in zip(here.metrics(), rows, strict=True):
        assert {name: float(mine[name]) for name in theirs} == pytest.approx(theirs, rel=1e-6)
    trained = []
    for k, name in enumerate(SITES):
        y = np.load(texts / f"{name}.npz")["y"]
        trained.append(int((np.delete(y, held_out(k, len(y), 0.2), 0) != IGNORED).sum()))
        [path] = (texts / "secure" / "sites" / name).glob("*/setup.frame")
        setup = codec.read(path.read_bytes())
    assert setup.fields["counts"] == trained
    assert len({*trained}) == 3


Meddle = Callable[[str, Frame], Frame]


def telling(here: Texts, meddle: Meddle) -> Exchange:
    """A server that says other things when a run begins."""

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        frames = {name: codec.read(data) for name, data in messages.items()}
        changed = {
            name: meddle(name, frame) if frame.kind == "setup" and frame.fields["begins"] else frame
            for name, frame in frames.items()
        }
        return here.exchange({name: codec.write(frame) for name, frame in changed.items()}, wait)

    return exchange


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"counts": [1, 2, 3]}, "training tokens, and 2 by the server's list"),
        ({"counts": [1, 2]}, "numbers of training tokens that are none of 1 to"),
        ({"counts": ["many"] * 3}, "a field that is no whole number"),
        ({}, "numbers of training tokens that are none of 1 to"),
    ],
)
def test_a_site_looks_up_its_own_tokens(change: dict[str, Any], why: str, texts: Path) -> None:
    here = secured(texts, texts / "lied")

    def meddle(name: str, frame: Frame) -> Frame:
        fields = {key: value for key, value in frame.fields.items() if key != "counts"} | change
        return frame._replace(fields=fields) if name == "bo" else frame

    with pytest.raises(UserError) as error:
        here.serve(telling(here, meddle))
    assert str(error.value).startswith("site bo: the site refused what it was sent: ")
    assert why in str(error.value)


def test_sites_that_are_told_two_lists_of_tokens_have_no_sum(texts: Path) -> None:
    here = secured(texts, texts / "two")

    def meddle(name: str, frame: Frame) -> Frame:
        first, *others = frame.fields["counts"]
        counts = {"counts": [first + 1, *others]}
        return frame._replace(fields={**frame.fields, **counts}) if name == "cy" else frame

    here.serve(telling(here, meddle))
    assert here.said()["rounds_void"] == 2


def test_data_by_name_may_be_tokens(texts: Path) -> None:
    job = with_(JOB, data="tokenmodule:named", partition="iid", objective="paper", cohort=3)
    del job["input"]
    here = Texts(job, texts, texts, SITES)
    here.site = lambda name: Site(here.job, Path(), texts / "sites" / name, name)  # type: ignore[method-assign]
    assert check(here.job, SITES, here.exchange, 1.0) == []
    here.serve()
    here_too = with_(job, clients=3, validation="none", engine={"name": "serial"})
    simulation = build(resolve_run(from_nested(here_too, "here")))
    state = start(simulation)
    for _ in range(3):
        state = advance(simulation, state)
    want, got = leaves(state.server), here.server()
    assert max(far(got[name], want[name]) for name in want) < 1e-12


def changed(texts: Path, name: str, **arrays: Any) -> None:
    np.savez(texts / f"{name}.npz", **{**dict(np.load(texts / f"{name}.npz")), **arrays})


def test_files_that_do_not_fit_are_one_sentence(texts: Path) -> None:
    x, y = (np.load(texts / "bo.npz")[key] for key in "xy")
    cases = [
        ({"x": x[:, :9], "y": y[:, :9]}, "the samples differ from site ana's: [9] there, [12] at ana; give both"),
        ({"y": np.full(y.shape, IGNORED)}, "has no token with a class among those of its train samples"),
        ({"y": np.where(x == 0, 1, y)}, "has the label 1, where its sample is filled up (token 0); write -100 there"),
    ]
    for k, (arrays, sentence) in enumerate(cases):
        changed(texts, "bo", **{"x": x, "y": y, **arrays})
        here = Texts(JOB, texts, texts / str(k), SITES)
        with pytest.raises(UserError) as error:
            here.serve()
        assert sentence in str(error.value)
    changed(texts, "bo", x=x, y=y)
    arrays = dict(np.load(texts / "cy.npz"))
    np.savez(texts / "cy.npz", x=arrays["x"])
    with pytest.raises(UserError, match=r"the targets differ from site ana's: .*the next tokens, 0 of them padding"):
        Texts(JOB, texts, texts / "next", SITES).serve()


def test_what_tokens_cannot_have_at_sites_is_one_sentence(texts: Path) -> None:
    here = Texts(JOB, texts, texts, SITES)
    for name in SITES:  # much padding, of which a step's batches have less
        x, y = (np.load(texts / f"{name}.npz")[key] for key in "xy")
        longer = ((0, 0), (0, 40))
        changed(texts, name, x=np.pad(x, longer), y=np.pad(y, longer, constant_values=IGNORED))
    looks = Texts(with_(JOB, model="tokenmodule:Looks"), texts, texts / "looks", SITES)
    with pytest.raises(UserError, match=r"outputs change by .* with the padding of its samples \(token 0\): it looks"):
        looks.serve()
    with pytest.raises(UserError, match=r"a site that comes later weighs with its tokens, which nobody knows before"):
        serve(text(JOB), SITES, here.exchange, texts / "later", None, 1.0, False, later={"cy": 17})


def lying(here: Texts, kind: str, change: Callable[[dict[str, Any]], None]) -> Exchange:
    """Site bo says other things in its answers of a kind."""

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = dict(here.exchange(messages, wait))
        frame = codec.read(answers["bo"])
        if frame.kind == kind:
            change(fields := json.loads(json.dumps(frame.fields)))
            answers["bo"] = codec.write(frame._replace(fields=fields))
        return answers

    return exchange


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        ("here", {"classes": 10**12}, "site bo: its answer cannot be used (ValueError: more than 1048576 classes of"),
        ("here", {"largest": 2**70}, "site bo: its answer cannot be used (ValueError: more than 1048576 classes of"),
        ("here", {"classes": "many"}, "site bo: its answer cannot be used (FrameError"),
        (
            "ready",
            {"counts": [10**6, 3]},
            "site bo says that [1000000, 3] of its [84, 24] tokens have a class; leave it",
        ),
        ("ready", {"counts": None}, "site bo says that None of its [84, 24] tokens have a class; leave it"),
        ("ready", {"counts": [0, 3]}, "site bo: its answer cannot be used (ValueError: tokens [0, 3] to train"),
    ],
)
def test_what_a_site_claims_of_tokens_is_bounded(kind: str, change: Any, sentence: str, texts: Path) -> None:
    here = Texts(JOB, texts, texts, SITES)
    place = (lambda fields: fields["data"]["tokens"]) if kind == "here" else (lambda fields: fields)
    with pytest.raises(UserError) as error:
        here.serve(lying(here, kind, lambda fields: place(fields).update(change)))
    assert sentence in str(error.value)


def test_a_preview_has_what_is_said_of_tokens(texts: Path) -> None:
    answers, why = preview(text(JOB), texts / "ana.npz", "ana")
    assert why is None
    leaves = [leaf for one in answers for leaf in one.leaves]
    x, y = (np.load(texts / "ana.npz")[key] for key in "xy")
    largest = x[y != IGNORED].max()
    assert f"{y.max() + 1} classes of tokens, and {largest}, the largest token that has one" in leaves
    tested = np.isin(np.arange(len(y)), held_out(0, len(y), 0.2))
    tokens = [int((y[part] != IGNORED).sum()) for part in (~tested, tested)]
    assert f"their tokens with a class: {tokens[0]}, {tokens[1]}" in leaves


def test_the_command_compares_files_of_tokens(texts: Path) -> None:
    files = ",".join(f"{name}.npz" for name in SITES)
    options = ["--target-kind", "tokens", "--model", "tokenmodule:Reads", "--lr", "0.1"]
    done = command(texts, "flower", "check", "--sites", files, *options)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "3 sites can begin this job"), done.stderr


class Desk:
    """A Grid whose nodes answer at once, each by the app's other half."""

    def __init__(self, settings: str, one: trial.Trial) -> None:
        self.app, self.members, self.place = grid.client(settings), one.members, one.place
        self.replies: dict[str, Message] = {}

    def get_nodes(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(name=member.name, node_id=k, last_activated_at="once")
            for k, member in enumerate(self.members)
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        for message in messages:
            member = self.members[message.metadata.dst_node_id]
            here = {"name": member.name, "data": str(member.data), "folder": str(self.place / "sites" / member.name)}
            here["keys"] = str(self.place / "keys")
            vars(message.metadata)["_message_id"] = str(len(self.replies))  # as a SuperLink does
            self.replies[message.metadata.message_id] = self.app(message, Context(1, 1, here, RecordDict(), {}))
        return [*self.replies][-len(messages) :]  # type: ignore[arg-type]

    def pull_messages(self, identities: Iterable[str]) -> list[Message]:
        return [self.replies[identity] for identity in identities]


def test_a_trial_of_tokens(texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`flower try` from its command to its folder of results, by the app that it writes and Flower's messages, with no
    process but this one in place of SuperLink and SuperNodes."""

    def once(one: trial.Trial, tell: Any) -> Any:
        names, app = [member.name for member in one.members], one.place / "app"
        write_app(app, one.settings, Order(names, str(one.folder), one.wait, one.resume, str(one.place / "events")))
        settings = (app / PACKAGE / "job.toml").read_text()
        config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
        grid.server(settings)(Desk(settings, one), Context(1, 0, {}, RecordDict(), config))  # type: ignore[arg-type]
        return finished(one.folder)

    monkeypatch.chdir(texts)
    monkeypatch.setattr(trial, "_once", once)
    monkeypatch.setattr("flwr.app.message.message.TaskIdentity", SimpleNamespace(run_id=1, node_id=1, task_id=1))
    (texts / "job.toml").write_text(text(JOB))
    files = ",".join(f"{name}.npz" for name in SITES)
    assert call(["flower", "try", "--config", "job.toml", "--sites", files, "--out", "run"]) == 0, capsys.readouterr()
    assert capsys.readouterr().out.splitlines()[-1] == "report: run/report.html"
    here = Texts(JOB, texts, texts, SITES)
    state, rows = simulated(JOB, texts / "all.npz")
    same(here, state, rows)
    assert "token accuracy" in (texts / "run" / "report.html").read_text()
