"""What the package offers beside `run` and `compare`: states in files, the contract's help, commands as functions."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import pydoc
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_reproduce import SMALL as RECIPE

import fedconcord
from fedconcord import METHODS, PROBLEMS, Algorithm, Job, Schedule, UserError, advance, load, save, start
from fedconcord.interface import cli
from fedconcord.method.contract import tree_leaves
from fedconcord.method.contract.identity import UNNAMED
from fedconcord_papers.recipes import RECIPES


def job(method: str = "scaffold", **options: int) -> Job:
    problem = PROBLEMS["quadratics"](0, 8, torch.float64, torch.device("cpu"))
    return Job(problem, METHODS[method](**options), Schedule(seed=0, cohort=3, lr=0.1))


# -- states --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "options"), [("scaffold", {}), ("losac", {"blocks": 3})])  # rows; a table
def test_a_state_comes_back_from_its_file_to_the_bit(tmp_path: Path, method: str, options: dict[str, int]) -> None:
    this = job(method, **options)
    state = advance(this, start(this))
    save(this, state, tmp_path / "deep" / "state.safetensors")
    ends = []
    for begin in (state, load(job(method, **options), str(tmp_path / "deep" / "state.safetensors"))):
        for _ in range(3):
            begin = advance(this, begin)
        ends.append(begin)
    one, other = ends
    assert (one.round, one.bytes_up, one.gradient_steps) == (other.round, other.bytes_up, other.gradient_steps)
    every = np.arange(8)
    for a, b in ((one.server, other.server), (one.store.gather(every), other.store.gather(every))):
        assert tree_leaves(a).keys() == tree_leaves(b).keys()
        assert all(torch.equal(leaf, tree_leaves(b)[name]) for name, leaf in tree_leaves(a).items())


def test_a_round_changes_rows_in_place_as_it_says() -> None:
    this = job()
    before = start(this)
    after = advance(this, before)
    assert after.store is before.store
    assert before.round == 0
    assert "changed in place" in " ".join((advance.__doc__ or "").split())


def test_a_state_of_another_job_and_no_state_are_refused(tmp_path: Path) -> None:
    save(job(), start(job()), tmp_path / "s")
    with pytest.raises(UserError, match=r"belongs to another job, whose method is \"scaffold .version 1.\""):
        load(job("fedavg"), tmp_path / "s")
    with pytest.raises(UserError, match=r"there is no checkpoint .*none; write one with fedconcord\.save"):
        load(job(), tmp_path / "none")


def test_help_says_what_every_field_of_a_method_means() -> None:
    text = pydoc.render_doc(Algorithm, renderer=pydoc.plaintext)
    for field in fields(Algorithm):
        assert re.search(rf"^ \|\s+{field.name}: .*\w", text, re.MULTILINE), field.name
    assert fedconcord.Algorithm is Algorithm


# -- methods and samplings of one's own ----------------------------------------------------------------------------

OWN = """
import numpy as np
from fedconcord import Drawn, Sampler

def alternate(of: int = 2) -> Sampler:
    def draw(seed, round, cohort, sizes, losses):
        ids = np.arange(round % of, len(sizes), of)
        return Drawn(ids, np.ones(len(ids)), np.full(len(ids), 1 / of), np.full(len(ids), 1 / of))
    return Sampler(draw)

def twice():
    def draw(seed, round, cohort, sizes, losses):
        return Drawn(np.array([1, 1]), np.ones(2), np.ones(2), np.ones(2))
    return Sampler(draw)

def nothing():
    return 3
"""
SMALL: dict[str, Any] = {"data": "quadratics", "clients": 6, "cohort": 3, "rounds": 2}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "ownsampling.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("ownsampling", None)


@pytest.mark.usefixtures("own", "quick_report")
def test_a_sampling_of_ones_own_by_path_as_a_function_and_as_itself(tmp_path: Path) -> None:
    sys.path.append(str(tmp_path))
    module = importlib.import_module("ownsampling")
    made = module.alternate(of=3)
    for out, sampling in (("path", "ownsampling:alternate(of=3)"), ("function", lambda: made), ("itself", made)):
        assert fedconcord.run("fedavg", **SMALL, sampling=sampling, out=out).status == "complete"
    first = Path("path/metrics.csv").read_bytes()
    assert first == Path("function/metrics.csv").read_bytes() == Path("itself/metrics.csv").read_bytes()
    dim = json.loads(Path("path/run.json").read_text())["dim"]
    assert csv_of("path")[-1]["bytes_up"] == str(2 * 2 * 4 * dim)  # two of six clients, two rounds
    found = fedconcord.compare(["fedavg", "fedprox"], **SMALL, sampling=made, out="both")
    assert [one.status for one in found.runs] == ["complete"] * 2
    assert Path("both/fedavg/seed-0/metrics.csv").read_bytes() == first
    command = ["run", "--data", "quadratics", "--clients", "6", "--cohort", "3", "--rounds", "2", "--out", "command"]
    assert cli.call([*command, "--sampling", "ownsampling:alternate(of=3)"]) == 0
    assert Path("command/metrics.csv").read_bytes() == first
    assert fedconcord.run(resume="itself", rounds=3, sampling=made).rounds == 3
    with pytest.raises(UserError, match=r"sampling is object:.*resume it with the same object"):
        fedconcord.run(resume="itself", rounds=4, sampling=module.alternate(of=2))


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        (
            "ownsampling:twice",
            r"the sampling drew \[1, 1\] \(int64\) of 6 clients in round 0; give distinct ids from 0 to 5",
        ),
        ("ownsampling:nothing", "sampling ownsampling:nothing returned int; return a fedconcord.Sampler"),
        ("ownsampling:alternat", r"ownsampling has no 'alternat' \(did you mean 'alternate'\?\)"),
        (3, "sampling"),
    ],
)
def test_a_sampling_that_is_none_is_one_sentence(sampling: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        fedconcord.run("fedavg", **SMALL, sampling=sampling, out="none")


def csv_of(folder: str) -> list[dict[str, str]]:
    with (Path(folder) / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("quick_report")
def test_methods_as_objects_are_labelled_with_their_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = METHODS["fedprox"](mu=0.1), METHODS["fedprox"](mu=0.5)
    nameless = replace(first, identity=UNNAMED)
    found = fedconcord.compare([first, second, nameless], **SMALL, out="c")
    labels = [one.label for one in found.runs]
    assert labels[:2] == [f"fedprox(mu={mu},server_lr=1,weights=uniform)" for mu in (0.1, 0.5)]
    assert re.fullmatch(r"algorithm_[0-9a-f]{8}", labels[2])
    assert Path("c/fedprox-mu=0.1-server_lr=1-weights=uniform/seed-0/metrics.csv").exists()
    more = fedconcord.compare([first, second, nameless, "fedavg"], resume="c")
    assert [one.label for one in more.runs] == [*labels, "fedavg"]
    assert fedconcord.run(first, **SMALL, settings={"label": "mine"}, out="r").label == "mine"
    assert fedconcord.run(first, resume="r", rounds=3).rounds == 3
    wrapped = fedconcord.with_server(first, fedconcord.OPTIMIZERS["momentum"](beta=0.9))
    assert fedconcord.run(wrapped, **SMALL, out="w").label.startswith("with_server(algorithm=fedprox(mu=0.1,ser")
    with pytest.raises(UserError, match="is given twice; every method of a comparison must differ"):
        fedconcord.compare([first, METHODS["fedprox"](mu=0.1)], **SMALL, out="twice")


@pytest.mark.usefixtures("quick_report")
def test_a_folder_from_before_labels_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    algorithm = METHODS["fedprox"](mu=0.1)
    with monkeypatch.context() as once:
        once.setattr("fedconcord.study.settings.objects._labelled", lambda text, value: text)  # as it was
        before = fedconcord.compare(["fedavg", algorithm], **SMALL, out="c")
    after = fedconcord.compare(["fedavg", algorithm], resume="c", rounds=3)
    assert [one.label for one in after.runs] == [one.label for one in before.runs]
    assert [one.rounds for one in after.runs] == [3, 3]


# -- commands as functions -----------------------------------------------------------------------------------------


def test_advice_is_what_the_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    found = fedconcord.advise(data="digits", clients=20, stateless=True, settings={"local.batch_size": 20})
    assert cli.call(["advise", "--data", "digits", "--clients", "20", "--batch-size", "20", "--stateless"]) == 0
    told = capsys.readouterr().out
    assert str(found) in told
    assert all(one.kept == 0 for one in found.named)
    assert found.named[0].tune["local.lr"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fedconcord.advise(data="digits", out="x"), "advise has no argument 'out'"),
        (
            lambda: fedconcord.advise(data="digits", uplink="fast"),
            "uplink must be slow or a number of bytes >= 1, given 'fas",
        ),
        (lambda: fedconcord.advise(data="digits", lrr=1), r"advise has no argument 'lrr' \(did you mean 'lr'\?\)"),
        (
            lambda: fedconcord.audit(["fedavg"], data="digits", iterations=0),
            "iterations must be an integer >= 1, given 0",
        ),
        (lambda: fedconcord.audit(["fedavg"], data="digits", rounds=3), "audit has no argument 'rounds'"),
        (lambda: fedconcord.audit(data="digits"), "a comparison needs methods"),
        (
            lambda: fedconcord.run("fedavg", data="digits", callbacks=fedconcord.TensorBoard()),
            r"callbacks must be a list such as \[fedconcord.TensorBoard\(\)\], given <",
        ),
        (lambda: fedconcord.arena(["fedavg"], seeds=[1000]), "seed 1000 is one that trials are tuned on"),
        (lambda: fedconcord.arena(["fedavg"], budget=0), "budget must be an integer >= 1, given 0"),
        (lambda: fedconcord.arena(federations=["holt"]), r"there is no federation 'holt' \(did you mean 'hold'\?\)"),
        (lambda: fedconcord.reproduce("fednova_fig3"), "unknown recipe 'fednova_fig3'"),
        (
            lambda: fedconcord.reproduce("fednova_fig2", size="tiny"),
            "the size of a recipe must be one of quick, desk, paper",
        ),
        (
            lambda: fedconcord.reproduce("fednova_fig2", seeds=[0, 0]),
            "seeds must be a list of integers >= 0, each once",
        ),
    ],
)
def test_wrong_arguments_are_one_sentence(call: Callable[[], object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        call()


def test_an_audit_is_the_commands(tmp_path: Path) -> None:
    lines: list[str] = []
    done = fedconcord.audit(
        ["fedavg"], data="digits", model="logreg", clients=50, round=1, iterations=2, optimiser="gd",
        out=tmp_path / "a", progress=lines.append,
    )  # fmt: skip
    command = ["audit", "--methods", "fedavg", "--data", "digits", "--model", "logreg", "--clients", "50"]
    more = ["--round", "1", "--iterations", "2", "--optimiser", "gd", "--out", str(tmp_path / "b")]
    assert cli.call([*command, *more]) == 0
    assert done.page == tmp_path / "a" / "audit.md"
    assert [one.name for one in done.audits] == ["fedavg"]
    assert (tmp_path / "a" / "audit.csv").read_bytes() == (tmp_path / "b" / "audit.csv").read_bytes()
    assert any("gradient error" in line for line in lines)


FEDERATION = """
[[federation]]
name = "ours"
data = "ridge_diabetes(skew=0.4)"
clients = 4
cohort = 2
rounds = 3
local.steps = 2
"""


def test_no_package_takes_the_name_of_a_function() -> None:
    for name in ("advise", "arena", "audit", "diagnose", "reproduce", "run", "tune"):
        assert importlib.util.find_spec(f"fedconcord.{name}") is None
        assert callable(getattr(fedconcord, name))


@pytest.mark.slow
def test_an_arena_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text(FEDERATION)
    given = {"federations": [str(tmp_path / "ours.toml")], "budget": 1, "seeds": 0, "out": tmp_path / "out"}
    pages = fedconcord.arena(["fedavg"], **given)
    [table] = pages.tables
    assert [result.federation.name for result in table.results] == ["ours"]
    first = json.loads((tmp_path / "out" / "arena.json").read_text())
    assert (
        first["command"] == f"fedconcord arena --methods fedavg --federations {tmp_path}/ours.toml --budget 1 --seeds 0"
    )
    lines: list[str] = []
    again = fedconcord.arena(["fedavg"], **given, progress=lines.append)
    assert again.html == tmp_path / "out" / "report.html"
    assert json.loads((tmp_path / "out" / "arena.json").read_text()) == first
    assert lines[0] == "[1/1] ours"


def test_a_recipe_is_done_judged_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECIPES, RECIPE.name, RECIPE)
    judged = fedconcord.reproduce(RECIPE.name, size="quick", cells="iid", seeds=0, out=tmp_path)
    assert judged.page == tmp_path / RECIPE.name / "quick" / "README.md"
    done = judged.sizes["quick"]
    assert done.command == f"fedconcord reproduce {RECIPE.name} --quick --seeds 0 --cells iid"
    assert done.command in judged.page.read_text()
    assert done.values.seeds("accuracy, %", "iid", "SCAFFOLD").keys() == {0}
    assert len(judged.findings) == len(RECIPE.claims)
