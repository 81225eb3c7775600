"""Comparisons that grow: methods and seeds added to a finished one, and methods with names of their own."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from test_report import flat, write_run

import fedconcord.insight.report
from fedconcord.insight.report import load_runs
from fedconcord.insight.report.again import to_toml, whole_job
from fedconcord.interface import api, cli
from fedconcord.study.settings.methods import read_method, runs
from fedconcord.study.settings.resolve import resolve_compare, resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError

QUICK: dict[str, Any] = {"data": "quadratics", "clients": 6, "cohort": 3, "rounds": 3, "lr": 0.01}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A comparison of two methods with seed 0; its report is not drawn, for that takes seconds."""
    monkeypatch.setattr(fedconcord.insight.report, "write_report", lambda paths, out: out / "report.html")
    monkeypatch.setattr("fedconcord.interface.cli.train.say_summary", lambda *folders: None)
    api.compare(["fedavg", "fedprox(mu=0.1)"], **QUICK, out=tmp_path / "c")
    return tmp_path / "c"


def runs_of(folder: Path) -> dict[str, bytes]:
    return {f"{p.parent.parent.name}/{p.parent.name}": p.read_bytes() for p in sorted(folder.glob("*/*/metrics.csv"))}


def test_methods_and_seeds_are_added_and_finished_runs_stay(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in small.glob("*/*/*")}
    assert cli.call(["compare", "--resume", str(small), "--methods", "fedavg,fednova", "--seeds", "1,0"]) == 0
    assert f"added to {small}: methods fednova and seeds 1" in capsys.readouterr().out.splitlines()
    assert {path: path.stat().st_mtime_ns for path in before} == before
    saved = json.loads((small / "compare.json").read_text())["config"]
    assert (saved["methods"], saved["seeds"]) == (["fedavg", "fedprox(mu=0.1)", "fednova"], [0, 1])
    api.compare(["fedavg", "fedprox(mu=0.1)", "fednova"], **QUICK, seeds=[0, 1], out=tmp_path / "whole")
    assert len(runs_of(small)) == 6
    assert runs_of(small) == runs_of(tmp_path / "whole")
    again = api.compare(resume=small)
    assert [(r.status, r.rounds) for r in again.runs] == [("complete", 3)] * 6


def test_baselines_are_added_where_samples_are_set_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedconcord.insight.report, "write_report", lambda paths, out: out / "report.html")
    job = {"clients": 6, "cohort": 3, "rounds": 2, "model": "logreg"}
    api.compare(["fedavg"], **job, settings={"validation": 0.2}, out=tmp_path / "held")
    done = api.compare(resume=tmp_path / "held", baselines=["pooled"])
    assert [(run.label, run.status) for run in done.runs] == [("fedavg", "complete"), ("pooled", "complete")]
    api.compare(["fedavg"], **job, settings={"validation": "none"}, out=tmp_path / "all")
    with pytest.raises(UserError, match="set none apart; start anew, as in fedconcord compare --baselines pooled"):
        api.compare(resume=tmp_path / "all", baselines=["pooled"])


def test_what_a_comparison_has_stays(small: Path) -> None:
    before = (small / "compare.json").read_bytes()
    for given, said in (
        ({"methods": ["fedavg"]}, r"methods fedavg would leave out some of .*, which has fedavg,fedprox\(mu=0.1\)"),
        ({"methods": ["fedavg", "fednova"], "lr": 0.1}, r"local.lr \(argument\) cannot change when"),
        ({"methods": ["nonsense"]}, "unknown method 'nonsense'"),
        ({"methods": ["fednova(label='fedprox mu=0.1')"]}, "the method fedprox mu=0.1 is given twice"),
        ({"methods": ["fedvra"], "rounds": 2}, "has done 3 rounds already, given rounds 2"),
        ({"methods": ["fednova_vr(server=momentum(0.9))"], "seeds": [0, 1, 1]}, "the seed 1 is given twice"),
    ):
        with pytest.raises(UserError, match=said):
            api.compare(resume=small, **given)
    assert (small / "compare.json").read_bytes() == before
    assert len(runs_of(small)) == 2


def test_what_is_added_and_cannot_run_is_refused_before_anything_is_written(small: Path) -> None:
    before = (small / "compare.json").read_bytes()
    with pytest.raises(UserError, match="fedadam"):  # it has a server optimiser of its own
        api.compare(["fedadam(server=momentum(0.9))"], resume=small)
    assert (small / "compare.json").read_bytes() == before


@pytest.mark.parametrize("written", ["label='FedVRA (tuned), d=6'", 'label="FedVRA (tuned), d=6"'])
def test_a_label_is_the_name_of_the_run_and_of_its_folder(written: str) -> None:
    given = {"methods": f"fedavg,fedvra(gamma=0.1,{written},local.lr=0.05)"}
    config = resolve_compare(from_nested(given, "test"))
    text = 'fedvra(gamma=0.1,local.lr=0.05,label="FedVRA (tuned), d=6")'
    assert config.methods == ["fedavg", text]
    again = resolve_compare(from_nested(config.as_dict(), "compare.json"))
    assert again == config
    one = runs(config)[1]
    assert (one.label, one.method, one.local.lr) == ("FedVRA (tuned), d=6", "fedvra", 0.05)
    assert resolve_run(from_nested(one.as_dict(), "run.json")) == one


def test_the_label_of_one_method_is_as_good() -> None:
    config = resolve_compare(from_nested({"methods": "fedavg", "label": "base"}, "test"))
    assert (config.methods, config.label) == (["fedavg(label=base)"], None)
    assert runs(config)[0].label == "base"
    twice = {"methods": "fedavg(label=a)", "label": "b"}
    for resolve in (resolve_run, resolve_compare):
        with pytest.raises(UserError, match="label is given twice, as 'b' and as 'a' behind the method fedavg"):
            resolve(from_nested(twice, "test"))


def test_settings_on_the_page_give_labelled_methods_again(tmp_path: Path) -> None:
    given = {
        "methods": ["fedavg", "fedvra(gamma=0.1,a=1,d=6,local.lr=0.05,label='FedVRA (tuned)')"], "seeds": [0, 1],
        "clients": 20, "local": {"lr": 0.2},
    }  # fmt: skip
    wanted = [c.as_dict() for c in runs(resolve_compare(from_nested(given, "test")))]
    for i, c in enumerate(wanted):
        write_run(tmp_path / str(i), c["label"], c["seed"], flat(0.9), head={"config": c, "method": c["method"]})
    job = whole_job(load_runs([tmp_path]))
    assert job is not None
    source = from_nested(tomllib.loads(to_toml(job)), "job.toml")
    assert [c.as_dict() for c in runs(resolve_compare(source))] == wanted


@pytest.mark.parametrize("label", ["''", "'  '", '"two\nlines"'])
def test_a_label_is_a_line_of_text(label: str) -> None:
    with pytest.raises(UserError, match="method fedavg: label must be a line of text"):
        read_method(f"fedavg(label={label})")
