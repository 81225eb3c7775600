"""The tests notice planted errors; `python tests/mutations.py` shows which test notices which."""

import subprocess
import sys
from pathlib import Path

import pytest

import mutations
from mutations import CHECK, MUTATIONS, QUICK, CannotTellError, Edit, Mutation, caught, run_tests, snapshot


def script(*names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, mutations.__file__, *names], capture_output=True, text=True, check=False)


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    snapshot(tmp_path / "clean")
    return tmp_path / "clean"


def test_every_text_is_there_once() -> None:
    for name, mutation in MUTATIONS.items():
        for file, old, new in mutation.edits:
            assert old != new, name
            assert (mutations.ROOT / "src" / "fedconcord" / file).read_text().count(old) == 1, name


@pytest.mark.slow
def test_two_errors_are_noticed() -> None:
    done = script(*QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("caught by tests/") == 2


def test_a_harmless_change_survives(clean: Path) -> None:
    """What `caught` says depends on the error, and not on running in a copy."""
    harmless = Mutation((Edit("method/algorithms/fedavg.py", "FedAvg: average the clients' moves.", "FedAvg."),), ())
    assert caught(harmless, clean, [run_tests(CHECK, "-k", "fedavg-purity")]) is None


def test_a_stale_text_is_named(clean: Path) -> None:
    with pytest.raises(CannotTellError, match=r"method/algorithms/fedavg\.py holds 0 times 'was here'"):
        caught(Mutation((Edit("method/algorithms/fedavg.py", "was here", ""),), ()), clean, [])


def test_a_test_that_fails_anyway_says_nothing(clean: Path) -> None:
    (clean / "tests" / "method" / "test_check.py").write_text("def test_it():\n    assert False\n")
    with pytest.raises(CannotTellError, match="test_it fails without the error too"):
        caught(MUTATIONS["scaffold: sign flipped"], clean, [run_tests(CHECK)])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_errors_are_noticed() -> None:
    done = script()
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
