"""Short forms of the campaigns in tests/hostile, and lack of room, of rights and of a network, and foreign pickles."""

import ctypes
import functools
import io
import itertools
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
import torch

import fedconcord
from fedconcord.execution.run import readme
from fedconcord.federation.data.own import read_own
from fedconcord.study.statistics.load import load_runs
from fedconcord.support import files, sums
from fedconcord.support.errors import UserError
from hostile import damage, fuzz

HERE = Path(__file__).parents[1]
JOB = ["--method", "scaffold", "--data", "quadratics(dim=4)", "--clients", "8", "--cohort", "4", "--rounds", "20"]
EVERY = ["--checkpoint-every", "0"]
GIVEN = {"data": "quadratics(dim=4)", "clients": 8, "cohort": 4}

# -- kill -9 -------------------------------------------------------------------------------------------------------


def campaign(script: str, *words: str) -> None:
    """A campaign's command; what it prints is the reason where it fails."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "hostile" / script), *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_killed_run_goes_on_to_the_same_bytes() -> None:
    campaign("kill.py", "--n", "3", "--seed", "11", "--case", "run, rows on disk")


@pytest.mark.slow
def test_whatever_is_killed_goes_on_to_the_same_bytes() -> None:
    campaign("kill.py", "--n", "36", "--seed", "12")


# -- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "number"), [("run", 12), *(pytest.param(kind, 60, marks=pytest.mark.slow) for kind in damage.KINDS)]
)
def test_a_flipped_bit_is_refused_or_harmless(kind: str, number: int, tmp_path: Path) -> None:
    counts, failures = damage.campaign(kind, number, 1, tmp_path)
    assert failures == []
    assert sum(one.refused for one in counts.values()) > number / 2


def test_a_table_that_somebody_changed_is_refused_until_the_checksums_go(tmp_path: Path) -> None:
    fedconcord.run("fedavg", **GIVEN, rounds=2, out=tmp_path / "run")  # type: ignore[arg-type]
    table = tmp_path / "run" / "metrics.csv"
    text = table.read_text()
    table.write_text(text.replace("\n2,", "\n3,"))
    with pytest.raises(UserError, match=r"metrics\.csv.*its checksum differs; if it was changed on purpose, remove"):
        load_runs([tmp_path / "run"])
    (tmp_path / "run" / "checksums.json").unlink()
    (run,) = load_runs([tmp_path / "run"])
    assert len(run.round) == 3


def test_while_a_file_is_replaced_both_contents_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be killed between the checksums and the file."""
    path, original = tmp_path / "a.csv", files.write_bytes
    sums.write(path.parent, {path.name: b"old"})

    def killed(place: Path, *pieces: bytes) -> None:
        if place == path:
            raise KeyboardInterrupt
        original(place, *pieces)

    for content in (b"new", b"newer"):  # more than once
        with monkeypatch.context() as patched:
            patched.setattr(files, "write_bytes", killed)
            with pytest.raises(KeyboardInterrupt):
                sums.write(path.parent, {path.name: content})
        assert sums.read(path) == b"old"
    path.write_bytes(b"odd")
    with pytest.raises(sums.DamagedError):
        sums.read(path)
    sums.write(path.parent, {path.name: b"new"})
    assert sums.read(path) == b"new"


def test_files_that_stay_as_they_are_are_not_written_again(tmp_path: Path) -> None:
    def places() -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in tmp_path.iterdir()}

    sums.write(tmp_path, {"a": b"1", "b": b"2"})
    first = places()
    sums.write(tmp_path, {"a": b"1", "b": b"2"})
    assert places() == first
    sums.write(tmp_path, {"b": b"3", "a": b"1"})
    assert {name for name, place in places().items() if place != first[name]} == {"b", sums.NAME}
    (tmp_path / "a").write_bytes(b"4")
    with pytest.raises(sums.DamagedError):
        sums.read(tmp_path / "a")
    sums.write(tmp_path, {"a": b"1"})
    assert sums.read(tmp_path / "a") == b"1"


# -- nonsense ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_nonsense_gets_a_sentence(kind: str, tmp_path: Path) -> None:
    hypothesis.seed(0)(fuzz.quickly(40)(fuzz.KINDS[kind]))(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_more_nonsense_gets_a_sentence(kind: str, tmp_path: Path) -> None:
    hypothesis.seed(1)(fuzz.quickly(2000)(fuzz.KINDS[kind]))(tmp_path)


def table(path: Path, column: pa.Array) -> Path:
    """An Arrow file of a feature and a label."""
    pyarrow.feather.write_feather(
        pa.table({"f": column, "y": [k % 2 for k in range(len(column))]}), path, compression="uncompressed"
    )
    return path


def test_what_fuzzing_found_in_tables(tmp_path: Path) -> None:
    """Places of texts that lie outside of the file, whole numbers that no float64 is, and squares that are none."""
    places = pa.py_buffer(np.array([0, 1, 2**30, 3, 4, 4, 4, 4, 4], np.int32))
    beyond = pa.StringArray.from_buffers(8, places, pa.py_buffer(b"abcd"))
    with pytest.raises(UserError, match=r"cannot read beyond\.arrow"):
        read_own(table(tmp_path / "beyond.arrow", beyond), fuzz.GIVEN)
    found = read_own(table(tmp_path / "ids.arrow", pa.array([2**60 + k for k in range(8)])), fuzz.GIVEN)
    assert np.isfinite(found.train_x).all()
    with pytest.raises(UserError, match="the values of column 'f' are too large"):
        read_own(table(tmp_path / "large.arrow", pa.array([1e300, -1e300] * 4)), fuzz.GIVEN)


def test_what_fuzzing_found_in_settings(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('method = "fedprox"\nalgorithm = {"" = 0.1}\n')
    with pytest.raises(UserError, match=r"unknown key 'algorithm\.' \(job\.toml\)"):
        fedconcord.run(config=path, out=tmp_path / "run")


@pytest.mark.parametrize("name", fuzz.bombs())
def test_a_file_that_says_or_unpacks_to_gigabytes_is_refused(name: str, tmp_path: Path) -> None:
    bomb = fuzz.bombs()[name]
    assert len(bomb) < 2**20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError):
        fuzz.read_data(tmp_path, name, bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**19  # KiB


# -- room, rights, clocks and places -------------------------------------------------------------------------------

BOUNDING, OVERRIDE, SEARCH = 24, 1, 2  # of prctl(2): drop from what an exec may gain, and what lets root write anywhere


def bound() -> None:
    """Before exec: permissions hold for root as well."""
    for capability in (OVERRIDE, SEARCH):
        ctypes.CDLL(None).prctl(BOUNDING, capability, 0, 0, 0)  # nobody else has them


def begun(*words: object, before: Callable[[], None] = bound) -> "subprocess.Popen[str]":
    """The command."""
    command = [sys.executable, "-m", "fedconcord", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before)


def refused(process: "subprocess.Popen[str]") -> str:
    """Its one sentence."""
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2, said
    assert len(said.splitlines()) == 1, said
    return said


def goes_on(folder: Path, whole: Path, rounds: int) -> None:
    """The folder is as usable as any, and its run ends with the bytes of another."""
    fedconcord.run(resume=folder)
    fedconcord.run("scaffold", **GIVEN, rounds=rounds, settings={"engine.store": "disk"}, out=whole)  # type: ignore[arg-type]
    assert not list(folder.glob(".*"))
    for name in ("metrics.csv", "model.safetensors"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    parent = tmp_path / "locked"
    parent.mkdir(mode=0o555)
    said = refused(begun("run", *JOB, "--out", parent / "run"))
    assert said == f"error: cannot write in the folder {parent / 'run'} (Permission denied); give another one\n"


@pytest.mark.slow
def test_a_right_that_is_lost_in_the_middle_of_a_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = begun("run", *JOB, *EVERY, "--rounds", "400", "--set", "engine.store=disk", "--out", out)
    while not (out / "checkpoint.safetensors").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    out.chmod(0o555)
    assert "Permission denied" in refused(process)
    out.chmod(0o755)
    done = int(json.loads((out / "run.json").read_text())["rounds_done"])
    assert 0 < done < 400
    fedconcord.run(resume=out, rounds=400, settings={"checkpoint.every": 30.0})
    goes_on(out, tmp_path / "whole", 400)


@pytest.mark.slow
def test_a_file_that_may_grow_no_further(tmp_path: Path) -> None:
    """As with a quota: the limit is reached by a table, in the middle of the run."""
    limit = 4000  # bytes of a file
    out = tmp_path / "run"
    size = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
    words = ("run", *JOB, *EVERY, "--rounds", "70", "--set", "engine.store=disk", "--out", out)
    assert "File too large" in refused(begun(*words, before=size))
    goes_on(out, tmp_path / "whole", 70)


@pytest.mark.slow
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no right to mount a small file system")
    try:
        words = ("run", *JOB, *EVERY, "--rounds", "400", "--set", "engine.store=disk", "--out", disk / "run")
        assert "No space left on device" in refused(begun(*words))
        shutil.copytree(disk / "run", tmp_path / "run")  # whoever frees space, or moves it to where there is some
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    goes_on(tmp_path / "run", tmp_path / "whole", 400)


def test_a_folder_that_is_moved_and_a_clock_that_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(2e9, -1000.0)
    monkeypatch.setattr(time, "time", lambda: next(ticks))
    disk = {"engine.store": "disk", "checkpoint.every": 0.0}
    fedconcord.run("scaffold", **GIVEN, rounds=5, settings=disk, out=tmp_path / "here")  # type: ignore[arg-type]
    (tmp_path / "here").rename(tmp_path / "there")
    fedconcord.run(resume=tmp_path / "there", rounds=10)
    goes_on(tmp_path / "there", tmp_path / "whole", 10)


# -- no network, no foreign pickle ---------------------------------------------------------------------------------

OFFLINE = """
import sys

def see(event, given):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.bind", "socket.sendto"):
        sys.stderr.write(f"NETWORK {event} {given}\\n")
        raise RuntimeError("no network here")

sys.addaudithook(see)
from fedconcord.interface import cli
for line in sys.stdin:
    code = cli.call(line.rstrip("\\n").split("\\t"))
    if code:
        sys.exit(code)
"""


@pytest.mark.slow
def test_nothing_but_fetch_tracking_and_deployment_uses_a_network(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.zeros((1, 60), np.float32))
    small = ["--data", "synthetic(clients=4)", "--model", "logreg", "--cohort", "2", "--rounds", "2"]
    run, compared = str(tmp_path / "run"), str(tmp_path / "compared")
    lines = [
        ["list", "methods"],
        ["advise", *small[:2]],
        ["run", "--method", "fedavg", *small, "--out", run],
        ["run", "--resume", run, "--rounds", "3"],
        ["compare", "--methods", "fedavg,scaffold", *small, "--jobs", "2", "--out", compared],
        ["predict", run, str(tmp_path / "in.npy"), "--out", str(tmp_path / "out.csv")],
        ["export", run, "--out", str(tmp_path / "model.pt2")],
        ["report", run, "--out", str(tmp_path / "report")],
    ]
    text = "\n".join("\t".join(line) for line in lines)
    done = subprocess.run([sys.executable, "-c", OFFLINE], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "NETWORK" not in done.stderr
    assert (tmp_path / "report" / "report.html").exists()


class Evil:
    """A pickle that makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def pickles(trace: Path) -> dict[str, bytes]:
    """Ways to wrap it up."""
    zipped, saved, array = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(zipped, x=np.array([Evil(trace)], object), y=np.zeros(1))
    np.save(array, np.array([Evil(trace)], object), allow_pickle=True)
    torch.save({"state": Evil(trace)}, saved)
    return {
        "pickle": pickle.dumps(Evil(trace)),
        "npz": zipped.getvalue(),
        "npy": array.getvalue(),
        "pt": saved.getvalue(),
    }


@pytest.mark.parametrize(
    "way", ["pickle", "npz", *(pytest.param(way, marks=pytest.mark.slow) for way in ("npy", "pt"))]
)
def test_no_file_that_is_read_is_unpickled(way: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    evil = pickles(trace)[way]
    pickle.loads(pickles(trace)["pickle"]).close()  # it works
    trace.unlink()
    damage.make_run(tmp_path / "run")
    places = sorted(path for path in (tmp_path / "run").iterdir() if path.is_file() and path.name != readme.NAME)
    assert len(places) == 12
    for place in places:
        whole = place.read_bytes()
        place.write_bytes(evil)
        found = damage.show_run(tmp_path / "run")
        assert any(isinstance(shown, damage.Refusal) for shown in found.values()), place
        place.write_bytes(whole)
    for name in ("in.npy", "in.npz", "in.csv"):
        (tmp_path / name).write_bytes(evil)
        with pytest.raises(UserError):
            fedconcord.predict(tmp_path / "run", tmp_path / name, tmp_path / "out.csv")
    for name in fuzz.GOOD:
        with pytest.raises(UserError):
            fuzz.read_data(tmp_path, name, evil)
    with pytest.raises(fuzz.codec.FrameError):
        fuzz.codec.read(evil)
    (tmp_path / "job.toml").write_bytes(evil)
    with pytest.raises(UserError):
        fedconcord.run(config=tmp_path / "job.toml", out=tmp_path / "other")
    assert not trace.exists()
    assert not (tmp_path / "other").exists()


# -- many rounds, many threads -------------------------------------------------------------------------------------


def test_one_and_two_workers_give_the_same_bytes(tmp_path: Path) -> None:
    """Threads over chunks of clients; torch's own, within a sum, may move its last bit (docs/reliability.md)."""
    job = {"data": "digits", "model": "2nn", "clients": 6, "cohort": 3, "rounds": 3, "batch_size": 50}
    for workers in (1, 2):
        given = {"engine.threads": 1, "engine.chunk": 1, "engine.kernel": "torch", "engine.workers": workers}
        fedconcord.run("scaffold", **job, settings=given, out=tmp_path / str(workers))  # type: ignore[arg-type]
    for name in ("metrics.csv", "model.safetensors", "checkpoint.safetensors"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


@pytest.mark.slow
def test_memory_and_handles_stay_as_they_are() -> None:
    campaign("rounds.py", "--rounds", "3000")
