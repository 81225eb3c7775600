"""Every implemented method against the recorded reference trajectories, on both engines, through the public command."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedconcord.testing import oracles

FOLDER = Path(__file__).parents[2] / "shared" / "oracles"
needs_oracles = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no reference trajectories in {FOLDER}")

MISSING = {"lowrank", "semi"}


def command(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedconcord.testing.oracles", str(folder), *options],
        capture_output=True,
        text=True,
        check=False,
    )


@needs_oracles
@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_all_cases_match(engine: str) -> None:
    done = command(FOLDER, "--engine", engine)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()[:-1]
    assert {line.split()[0] for line in lines if "not implemented" in line} == MISSING
    for line in lines:
        if "not implemented" not in line:
            assert float(line.split()[1]) <= 1e-9, line


@needs_oracles
def test_a_wrong_trajectory_is_noticed(tmp_path: Path) -> None:
    cases, arrays = oracles.load(FOLDER)
    arrays["traj/scaffold/ci"] = arrays["traj/scaffold/ci"] * (1 + 1e-7)
    np.savez(tmp_path / "quadratic.npz", **arrays)
    (tmp_path / "cases.json").write_text(json.dumps({"quadratic": {"scaffold": cases["quadratic"]["scaffold"]}}))
    done = command(tmp_path)
    assert done.returncode == 1
    assert "scaffold" in done.stdout
    assert "FAILED" in done.stdout


@needs_oracles
def test_hyperparameters_come_from_the_file(tmp_path: Path) -> None:
    """The same arrays under another step size must not match: nothing is remembered from the folder we ship with."""
    cases, _ = oracles.load(FOLDER)
    (tmp_path / "quadratic.npz").write_bytes((FOLDER / "quadratic.npz").read_bytes())
    (tmp_path / "cases.json").write_text(
        json.dumps({"quadratic": {"fedavg": cases["quadratic"]["fedavg"] | {"eta": 0.051}}})
    )
    assert command(tmp_path).returncode == 1


def test_an_unusable_folder_is_one_sentence(tmp_path: Path) -> None:
    done = command(tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cases.json" in done.stderr
    (tmp_path / "cases.json").write_text("{}")
    (tmp_path / "quadratic.npz").write_bytes(b"PK broken")
    broken = command(tmp_path)
    assert (broken.returncode, broken.stderr.count("\n")) == (2, 1)
