"""The benchmarks run and say what they measured; time itself is never tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FIELDS = {"seconds_per_round", "accuracy", "peak_rss_bytes", "versions", "threads", "setting", "options", "engine"}


def measured(data_dir: Path, *arguments: str, script: str = "jobs.py") -> dict[str, Any]:
    """The one JSON line that a benchmark prints."""
    command = [sys.executable, str(BENCHMARKS / script), *arguments, "--quick", "--rounds", "3", "--warmup", "1"]
    environment = {**os.environ, "FEDCONCORD_DATA": str(data_dir)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=300)
    (line,) = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize("job", ["A", "B", "C", "E"])
def test_a_job_says_what_it_measured(data_dir: Path, job: str) -> None:
    found = measured(data_dir, job)
    assert set(found) >= FIELDS
    took = found["seconds_per_round"]
    assert len(took["all"]) == 3
    assert min(took["all"]) <= took["median"] <= max(took["all"])
    assert 0.1 < found["accuracy"] <= 1
    assert found["peak_rss_bytes"] > 50e6
    assert found["gradient_steps_per_round"] == found["setting"]["client_steps"]


def test_ratios_to_fedavg(data_dir: Path) -> None:
    found = measured(data_dir, "D", "--method", "losac")
    assert set(found) >= FIELDS
    assert found["refused"] == {}
    methods = found["methods"]
    assert set(methods) == {"losac", "fedavg, blocks", "fedavg, job A"}
    assert methods["losac"]["baseline"] == "fedavg, blocks"
    assert methods["losac"]["gradient_ratio"] == 1
    assert methods["fedavg, job A"]["ratio"] == 1
