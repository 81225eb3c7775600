"""What happens where code of the user's raises, and what a run that failed leaves to those beside it."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fedconcord
from fedconcord.interface import cli
from fedconcord.interface.cli.listing import make_listing
from fedconcord.interface.cli.progress import latest_metric
from fedconcord.support import files, imports
from fedconcord.support.errors import UserError

OWN = '''
from dataclasses import replace

from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract.identity import definition


def loss(outputs, targets):
    raise ValueError("bang of a loss")


def schedule(round):
    return 1.0 if round < 2 else 1 / 0


@definition()
def breaks():
    """FedAvg whose clients break in round 1."""
    def finish(down, row, done, client, kept=[]):
        kept.append(client)
        if len(kept) > 1:
            raise ValueError("bang of a method")
        return done.x - down, row
    return replace(METHODS["fedavg"](), finish=finish)


def nothing(outputs, targets):
    return None


@definition()
def no_pair():
    """FedAvg whose clients keep nothing, not even their row."""
    return replace(METHODS["fedavg"](), finish=lambda down, row, done, client: done.x - down)


@definition()
def no_sum():
    """FedAvg to whose sums clients add nothing."""
    return replace(METHODS["fedavg"](), contribute=lambda up, sender, cohort: None)
'''
JOB = ["--data=digits", "--model=logreg", "--rounds=4", "--clients=4", "--cohort=4", "--partition=iid"]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(imports, "_NAMED", set())
    (tmp_path / "breaking.py").write_text(OWN)
    yield tmp_path
    sys.modules.pop("breaking", None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--loss breaking:loss", "ValueError: bang of a loss"),
        ("--lr-schedule breaking:schedule", "ZeroDivisionError: division by zero"),
        ("--method breaking:breaks", "ValueError: bang of a method"),
    ],
)
def test_what_own_code_raises_is_a_sentence(own: Path, words: str, said: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.call(["run", *JOB, *words.split()]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"error: {said} \(breaking\.py, line \d+\)", last)


def test_a_loss_that_returns_nothing_is_a_sentence(own: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.call(["run", *JOB, "--loss", "breaking:nothing"]) == 2
    said = "loss nothing gives a NoneType for 2 samples, and one number a sample is needed, (2,); take the mean over"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--method breaking:no_pair", "--method breaking:no_sum"])
def test_what_comes_of_what_own_code_returned_is_a_sentence(
    own: Path, words: str, capsys: pytest.CaptureFixture
) -> None:
    assert cli.call(["run", *JOB, *words.split()]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"error: \w+Error: .* \(\w+\.py, line \d+\), which may come of what code in breaking\.py", last)


def test_an_error_of_ours_is_no_mistake_of_the_user_s(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("fedconcord.study.runs.execution.build", broken, raising=False)
    monkeypatch.setattr("fedconcord.study.runs.training.build", broken, raising=False)
    with pytest.raises(RuntimeError, match="planted"):
        cli.call(["run", *JOB, "--lr-schedule", "breaking:schedule"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--method pfedme --set local.oracle=sam(0.1)", "the method takes its gradients at points of its own"),
        ("--local-optimiser muon", "muon is for hidden weight matrices"),
    ],
)
def test_pieces_that_make_no_step_are_refused_before_a_folder_is_taken(
    own: Path, words: str, said: str, capsys: pytest.CaptureFixture
) -> None:
    assert cli.call(["run", *JOB, *words.split(), "--out", "none"]) == 2
    assert said in capsys.readouterr().err
    assert not (own / "none").exists()


def test_a_comparison_has_its_report_though_a_run_failed(own: Path, capsys: pytest.CaptureFixture) -> None:
    """Before a checkpoint too: the one that failed has no evaluation that lasts, or those until then."""
    assert cli.call(["compare", *JOB, "--methods", "breaking:breaks,fedavg", "--out", "both"]) == 1
    said = capsys.readouterr().err
    assert "breaking:breaks, seed 0 failed: ValueError: bang of a method" in said
    assert (own / "both" / "report.html").is_file()
    states = {path.parts[-3]: json.loads(path.read_text())["status"] for path in Path("both").glob("*/*/run.json")}
    assert states == {"breaking-breaks": "failed", "fedavg": "complete"}
    (own / "both" / "breaking-breaks" / "seed-0" / "metrics.csv").write_text(
        "round,bytes_up,bytes_down,gradient_steps\n"
    )
    (own / "both" / "breaking-breaks" / "seed-0" / "checksums.json").unlink()
    assert cli.call(["report", "both"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("privacy.delta=1e-6", "privacy.delta 1e-06 needs a bound on what a client sends"),
        ("privacy.kind=local", "privacy.kind local needs a bound on what a client sends"),
        ("eval.min_delta=0.1", "eval.min_delta 0.1 has no effect without eval.patience"),
        ("local.clip_form=released", "local.clip_form released has no effect without local.clip_direction"),
    ],
)
def test_a_setting_without_effect_is_refused(own: Path, words: str, said: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.call(["run", *JOB, "--set", words]) == 2
    assert said in capsys.readouterr().err


def test_a_client_without_samples_is_refused() -> None:
    x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    with pytest.raises(UserError, match="client 'c' has no samples"):
        fedconcord.run("fedavg", data={"a": (x, y), "c": (x[:0], y[:0])}, model="logreg", rounds=1)


def test_every_topic_lists_something() -> None:
    listing = make_listing()["entries"]
    assert {entry[0] for entry in listing["optimisers"]} >= {"adamw", "lion", "muon", "sign"}
    assert [topic for topic, entries in listing.items() if not entries] == []


def test_a_run_of_models_of_their_own_is_followed_by_what_judges_those() -> None:
    metrics = {"test_accuracy": 0.1, "validation_accuracy": 0.9, "validation_loss": 0.2}
    assert latest_metric(metrics) == "accuracy 10.0 %"
    assert latest_metric(metrics, is_own=True) == "own models' accuracy 90.0 %"
    assert latest_metric({"test_accuracy": 0.1}, is_own=True) == ""


def test_personalised_runs_say_so(own: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.call(["run", *JOB, "--method", "pfedme", "--out", "mine"]) == 0
    said = capsys.readouterr()
    assert "own models' accuracy" in said.err + said.out


@pytest.mark.parametrize(("key", "value"), [("rounds_done", "x"), ("config", [])])
def test_a_damaged_description_is_a_sentence(own: Path, key: str, value: object, capsys: pytest.CaptureFixture) -> None:
    assert cli.call(["run", *JOB, "--out", "one"]) == 0
    path = own / "one" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    (own / "one" / "checksums.json").unlink()
    assert cli.call(["run", "--resume", "one"]) == 2
    assert f"run.json is damaged: {key} is {value!r}" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no place where nobody may write")
def test_a_place_that_cannot_be_written_is_named_as_it_was_given(own: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(OSError, match=r"/proc/x\.csv"):
        files.write_text(Path("/proc/x.csv"), "")
    assert cli.call(["run", *JOB, "--out", "one"]) == 0
    assert cli.call(["export", "one", "--out", "/proc/m.pt2"]) == 2
    assert "/proc/" in capsys.readouterr().err
