"""Fixtures that several test files use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# tiny tensors: two threads that wait for each other cost ten times what they save, above all on a busy machine;
# set before torch starts, and inherited by every command that a test runs
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

UNPACK = Path(__file__).resolve().parents[2] / "shared" / "data" / "unpack.py"


COMPILE = """
import torch
from fedconcord.method.step import compiled
if compiled.installed():
    compiled.load(torch.float32), compiled.load(torch.float64)
"""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before several processes test, one compiles: else a command whose every line is compared may say that it does."""
    if getattr(session.config.option, "numprocesses", None) and not hasattr(session.config, "workerinput"):
        subprocess.run([sys.executable, "-c", COMPILE], check=True, timeout=300)


@pytest.fixture(scope="session")
def data_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with MNIST, and CIFAR-10 where it is at hand, in the publishers' formats.

    $FEDCONCORD_DATA if it has MNIST; else the copies kept beside the repository, unpacked once and kept in pytest's
    cache.
    """
    given = os.environ.get("FEDCONCORD_DATA")
    if given and (Path(given) / "mnist").is_dir():
        return Path(given)
    if not UNPACK.is_file():
        pytest.skip(f"no MNIST: FEDCONCORD_DATA names no folder that holds mnist/ and there is no {UNPACK}")
    cache = getattr(request.config, "cache", None)  # absent under -p no:cacheprovider
    parent = cache.mkdir("fedconcord") if cache else tmp_path_factory.mktemp("fedconcord")
    folder = Path(parent) / "data"
    if not folder.is_dir():
        part = tempfile.mkdtemp(dir=parent)  # a killed or a parallel session must leave no half-filled folder
        subprocess.run([sys.executable, str(UNPACK), part], check=True, timeout=300)
        try:
            os.replace(part, folder)
        except OSError:  # a parallel session was first
            shutil.rmtree(part)
    return folder


@pytest.fixture
def quick_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figures: they take seconds, and other tests draw them."""
    monkeypatch.setattr("fedconcord.insight.report.write_report", lambda paths, out: out / "report.html")
