"""What a process settles before torch is loaded, and its threads: as many as asked, or as its container may use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedconcord.interface import cli
from fedconcord.study.runs import plan
from fedconcord.study.settings.resolve import resolve_compare
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import process

V1 = "3:cpuset:/\n2:cpu,cpuacct:/docker/abc\n0::/\n"


def machine(root: Path, groups: str, files: dict[str, str], cores: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The cores of a process of `groups` (/proc/self/cgroup) in a container with these files below /sys/fs/cgroup."""
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    return process.cores(root)


@pytest.mark.parametrize(
    ("groups", "files", "cores", "wanted"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 8, 2),  # rounded up
        ("0::/\n", {"cpu.max": "10000 100000\n"}, 8, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8, 8),
        ("0::/\n", {"cpu.max": "600000 100000\n"}, 4, 4),  # the affinity is less
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 8, 3),  # a group above
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "100000 100000\n"}, 8, 1),
        ("0::/elsewhere\n", {"cpu.max": "200000 100000\n"}, 8, 2),  # the container's own group is the top
        ("0::/\n", {"cpu.max": "what\n"}, 8, 8),
        (V1, {"cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000"}, 8, 8),  # no period
        (
            V1,
            {
                "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000",
                "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
            },
            8,
            3,
        ),
        (V1, {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8, 2),
        (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8, 8),
        ("3:cpuset:/\n", {"cpuset/cpu.max": "100000 100000"}, 8, 8),  # a group of something else
    ],
)
def test_cores(
    groups: str, files: dict[str, str], cores: int, wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine(tmp_path, groups, files, cores, monkeypatch) == wanted


def test_cores_without_such_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5}, raising=False)
    assert process.cores(tmp_path) == 2


def test_threads_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--threads, else the container's cores at most; run.json has the number, and the process has its own again."""
    short = ["run", "--model", "logreg", "--clients", "4", "--cohort", "2", "--rounds", "1"]
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for given, cores, wanted in (((), 2, 2), ((), 8, 3), (("--threads", "4"), 2, 4)):
            monkeypatch.setattr(process, "cores", lambda cores=cores: cores)
            folder = tmp_path / f"{cores}-{len(given)}"
            assert cli.call([*short, *given, "--out", str(folder)]) == 0
            assert json.loads((folder / "run.json").read_text())["threads"] == wanted
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_runs_at_once_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "cores", lambda: 5)
    small = {"methods": ["fedavg", "fedprox"], "clients": 4, "cohort": 2, "model": "logreg", "rounds": 1}
    for given, wanted in ((None, 2), (3, 3)):
        source = from_nested({**small, "engine.threads": given, "out": str(tmp_path / str(wanted))}, "test")
        assert {entry.config.engine.threads for entry in plan.plan_comparison(2, source)[1]} == {wanted}
    assert resolve_compare(from_nested(small, "test")).engine.threads is None


def test_threads_sleep_soon_unless_the_user_says_otherwise() -> None:
    """In a process of its own: OpenMP reads the variable when torch is loaded."""
    code = (
        "import os; from fedconcord.support import process; process.settle(); "
        "print(*map(os.environ.get, ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT')))"
    )
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    for given, wanted in (
        ({}, f"passive {process.SPINS}"),
        ({"OMP_WAIT_POLICY": "active"}, "active None"),
        ({"GOMP_SPINCOUNT": "9"}, "None 9"),
    ):
        found = subprocess.run(
            [sys.executable, "-c", code], env=bare | given, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == wanted
