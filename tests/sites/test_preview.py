"""What a site is shown before it sends anything, against what left it in a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_deploy_core import BASE, SITES, Federation, files, quick_disk, text, with_
from test_edges import Nested

from fedconcord.interface.cli.main import call
from fedconcord_flower.preview import NOISE, NOISY, NOTHING, TELLS, preview
from fedconcord_sites.ledger import Ledger
from fedconcord_sites.policy import USUAL

__all__ = ["files", "quick_disk"]  # fixtures
JOBS: dict[str, dict[str, Any]] = {
    "plain": with_(BASE, method="scaffold", cohort=3, rounds=2),
    "secure": with_(BASE, method="mimesvrg", cohort=3, rounds=2, secure={"clip": 64.0, "bits": 48}),
    "sums below edges": with_(BASE, method="scaffold", cohort=3, rounds=2, secure={"clip": 64.0, "group": "edge"}),
    "losses": with_(BASE, method="fedavg", cohort=2, rounds=2, sampling="power_of_choice(3)"),
    "asynchronous": with_(BASE, method="scaffold", cohort=1, rounds=2, clock="asynchronous(3)"),
}


@pytest.mark.parametrize("name", sorted(JOBS))
def test_what_is_shown_is_what_leaves(name: str, files: Path, tmp_path: Path) -> None:
    here = Federation(JOBS[name], files, tmp_path)
    if name == "sums below edges":
        here = Nested(JOBS[name], files, tmp_path, homes={"only": SITES})
    here.serve()
    lines = Ledger(tmp_path / "sites" / "bern" / "ledger.txt").lines()
    shown, why = preview(text(JOBS[name]), files / "bern.csv", "bern")
    assert why is None
    left = [*dict.fromkeys((line["kind"], line["answer"]) for line in lines)]  # in the order in which they left
    assert [(one.question, one.kind) for one in shown] == left
    for one in shown:
        mine = [line for line in lines if (line["kind"], line["answer"]) == (one.question, one.kind)]
        assert len(mine) <= one.most
        if one.question not in ("hello", "sums", "squares", "setup"):
            tensors = [
                line.split(": ")[0].split(" ")[0] for line in one.leaves if line.endswith(("32)", "64)", "uint8)"))
            ]
            assert tensors == [tensor.partition("[")[0].rstrip("/") for tensor in mine[0]["tensors"]]
    rows = np.loadtxt(files / "bern.csv", delimiter=",", skiprows=1, usecols=2)
    by_kind = {one.question: one for one in shown}
    [told] = [line for line in by_kind["sums"].leaves if line.startswith("w: ")]
    assert told.startswith(("w: 13 values, sum ", "w: 14 values, sum "))
    assert abs(float(told.rsplit(" ", 1)[1])) < float(np.abs(rows).sum())
    assert "texts of kind: 'a', 'b'" in by_kind["sums"].leaves
    assert "label 'label': its values 'no', 'yes'" in by_kind["hello"].leaves
    assert by_kind["judge"].most == 3
    if name == "secure":
        assert {one.tells for one in shown if one.kind in ("reply", "gradient")} == {NOISE}
        assert (by_kind["agree"].most, by_kind["train"].most) == (4, 2)  # two sums a round
        assert {one.tells for one in shown if one.kind in ("keys", "dealt", "agreed", "shares")} == {NOTHING}
    elif name == "sums below edges":
        assert by_kind["orders"].tells == NOISE
    elif name == "losses":
        assert by_kind["loss"].tells == TELLS["loss"]
    else:
        assert by_kind["orders"].tells == TELLS["reply"]


def test_what_a_policy_keeps_back_is_shown_as_such(files: Path) -> None:
    rules = USUAL.model_copy(update={"never": ["u"]})
    shown, why = preview(text(JOBS["plain"]), files / "bern.csv", "bern", rules)
    [refused] = shown
    assert (refused.question, refused.kind) == ("hello", "refused")
    assert refused.leaves[0].startswith("the reason: the site's policy never lets column 'u' be read")
    assert why is not None
    assert "never lets column 'u' be read" in why


def test_noise_of_the_sites_own_is_said(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=draw.integers(0, 256, (40, 4), np.uint8), y=draw.integers(0, 3, 40))
    job = {key: value for key, value in BASE.items() if key != "input"}
    job = with_(job, method="fedavg", cohort=3, privacy={"clip": 0.05, "noise": 20.0, "kind": "local"})
    shown, why = preview(text(job), tmp_path / "a.npz", "a")
    assert why is None
    assert [one.tells for one in shown if one.kind == "reply"] == [NOISY]


def test_the_command_shows_it_and_leaves_nothing(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(text(JOBS["plain"]))
    start = ["flower", "site", "bern", "--data", str(files / "bern.csv")]
    assert call([*start, "--preview", "job.toml"]) == 0
    shown = capsys.readouterr().out
    assert "hello -> here, at most 1 in a run, " in shown
    assert "    17 rows\n    column 'u': its name" in shown
    assert f"  tells: {TELLS['reply']}" in shown
    assert shown.splitlines()[-1].startswith("nothing was sent: ")
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]
    assert call([*start, "--preview", "none.toml"]) == 2
    assert "cannot read the settings none.toml" in capsys.readouterr().err
    assert call(start) == 2
    assert "--server is missing: it names the server's address" in capsys.readouterr().err
