"""A method whose answer is a model a client: FedPer of docs/own-method.md, ranked by what its models are for."""

import csv
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedconcord
from fedconcord.insight.report import load_runs
from fedconcord.insight.report.words import words
from fedconcord.insight.report.worth import sentences, worth
from fedconcord.interface import cli
from fedconcord.study.statistics.summary import summarise
from fedconcord.support.errors import UserError
from fedconcord.testing import CheckFailedError, algorithm_checks, check_algorithm

PAGE = Path(__file__).parents[2] / "docs" / "own-method.md"
HOSPITALS = ("basel", "bern", "chur")


def source() -> str:
    [block] = [one for one in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "def fedper(" in one]
    return str(block)


def fedper() -> Any:
    """The factory of the page."""
    names: dict[str, Any] = {"__name__": "fedper"}
    exec(compile(source().replace("from __future__", "#"), "fedper.py", "exec"), names)
    return names["fedper"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's method as a module, and three hospitals that read the same two columns the other way round."""
    (tmp_path / "fedper.py").write_text(source())
    rng = np.random.default_rng(0)
    with (tmp_path / "all.csv").open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(["a", "b", "sick", "hospital"])
        for i in range(300):
            a, b = rng.normal(size=2)
            turned = HOSPITALS[i % 3] == "chur"
            write.writerow([f"{a:.4f}", f"{b:.4f}", "yes" if (a > 0) != turned else "no", HOSPITALS[i % 3]])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def trained(folder: Path, **more: Any) -> None:
    for method in ("fedavg", "fedper:fedper(head=6)"):
        fedconcord.run(
            method, data=str(folder / "all.csv"), model="logreg", rounds=10, cohort=3, lr=0.5, epochs=1,
            settings={"input.label": ["sick"], "input.client": "hospital", "label": method.split(":")[0]} | more,
            out=folder / "both" / method.split(":")[0],
        )  # fmt: skip


def test_methods_are_ranked_on_what_clients_set_apart(folder: Path) -> None:
    """One linear model fits two hospitals of three; each has its own under FedPer, which a test set of all punishes."""
    trained(folder, validation=0.2)
    s = summarise(load_runs([folder / "both"]))
    assert s.primary.column == "validation_accuracy"
    assert [row.name for row in s.rows] == ["fedper", "fedavg"]
    assert s.rows[0].final.mean > 0.9 > 0.8 > s.rows[1].final.mean
    tested = {run.name: run.metrics["test_accuracy"][-1] for run in s.runs}
    assert tested["fedper"] < tested["fedavg"]  # by which it was ranked
    ranked = "fedper answers with a model a client, so all are ranked on the samples that clients set apart"
    assert ranked in " ".join(words(s))


def test_without_samples_set_apart_that_is_said(folder: Path) -> None:
    trained(folder, validation="none")
    s = summarise(load_runs([folder / "both"]))
    assert s.primary.column == "test_accuracy"
    assert any("fedper: the answer is a model a client, and no client set samples apart" in w for w in s.warnings)


def test_predict_takes_a_client_by_its_name(folder: Path) -> None:
    trained(folder)
    run = folder / "both" / "fedper"
    (folder / "x.csv").write_text("a,b\n2.0,0.0\n-2.0,0.0\n")

    def said(client: str | None) -> list[str]:
        path = fedconcord.predict(run, folder / "x.csv", folder / "p.csv", client=client)
        return [line.split(",")[1] for line in path.read_text().splitlines()[1:]]

    assert said("bern") == said("1") == ["yes", "no"]
    assert cli.call(["predict", str(run), "x.csv", "--client", "chur", "--out", "c.csv"]) == 0
    assert [line.split(",")[1] for line in (folder / "c.csv").read_text().splitlines()[1:]] == ["no", "yes"]
    for client, sentence in (
        (None, "has a model a client; name one, as in --client basel"),
        ("bernn", "unknown client with a model of its own 'bernn' (did you mean 'bern'?); known: basel, bern, chur"),
    ):
        with pytest.raises(UserError, match=re.escape(sentence)):
            said(client)
    with pytest.raises(UserError, match="has one model for all clients, given client 'bern'"):
        fedconcord.predict(folder / "both" / "fedavg", folder / "x.csv", folder / "p.csv", client="bern")


@pytest.mark.slow
def test_the_verdict_of_baselines_names_it(folder: Path) -> None:
    done = fedconcord.compare(
        ["fedavg", "fedper:fedper(head=6)"], data=str(folder / "all.csv"), model="logreg", rounds=10, cohort=3, lr=0.5,
        epochs=1, seeds=[0], baselines=["local"], settings={"input.label": ["sick"], "input.client": "hospital"},
        out=folder / "c",
    )  # fmt: skip
    found = worth(summarise(load_runs([done.folder])))
    assert found is not None
    assert "under fedper" in " ".join(sentences(found))
    about = json.loads((next((done.folder).glob("fedper*")) / "seed-0" / "run.json").read_text())
    assert about["own"] is True
    assert not list(done.folder.glob("local/seed-0/models"))


@pytest.mark.parametrize(
    "check", [pytest.param(call, id=name) for name, call in algorithm_checks(lambda: fedper()(head=2))]
)
def test_it_passes_the_checks(check: Any) -> None:
    check()


def test_an_own_that_is_no_model_is_found() -> None:
    from dataclasses import replace

    made = partial(fedper(), head=2)
    with pytest.raises(CheckFailedError, match="a model a row from own"):
        check_algorithm(lambda: replace(made(), client_model=lambda row, x: row.x[..., :2]))
