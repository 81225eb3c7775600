"""kill -9, at instants drawn at random and before file operations drawn at random, again and again in one folder.

Every command is killed, resumed and killed once more; then it may end, and must have left the files of one that nobody
killed, byte for byte where no time is in them, and no process, lock or half-written file besides.

    PYTHONPATH=src python tests/hostile/kill.py --n 200 --seed 0
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fedconcord.execution.rows import tensors

EVERY = ("--checkpoint-every", "0", "--set", "engine.chunk=2")
SQUARES = ("--data", "quadratics(dim=4)", "--clients", "8", "--cohort", "4", "--steps", "2", "--lr", "0.05")
SMALL = (*SQUARES, "--rounds", "15", *EVERY)
LINEAR = ("--data", "synthetic(0.5,0.5)", "--model", "logreg", "--clients", "6", "--cohort", "3", "--batch-size", "200")
LATE = ("--set", "devices=lognormal(0.5)", "--set", "deadline=1", "--set", "late=keep")
MARK = "FEDCONCORD_HOSTILE"  # in the environment of all that a case starts
PATIENCE = 120.0  # seconds that a command may take to end by itself
KILLS = 3  # of one folder, before the command may end


class Case(NamedTuple):
    """A command that is killed."""

    words: tuple[str, ...]  # without --out
    done: str  # the file that says that --resume goes on with the folder; empty: the same command goes on
    ranks: int = 1
    workers: bool = False  # whose processes are killed as well
    parts: tuple[str, ...] = ()  # of a trial of a deployment that are killed; see `part_of`

    @property
    def patience(self) -> float:
        """Seconds that it may take to end by itself."""
        return 5 * PATIENCE if self.parts else PATIENCE


DISK, MEMORY = ("--set", "engine.store=disk"), ("--set", "engine.store=memory")
SPREAD = ("--engine", "distributed", "--set", "engine.timeout=40")  # so long the others wait for who is killed
CASES = {
    "run": Case(("run", "--method", "scaffold", *SMALL, *MEMORY), "run.json"),
    "run, rows on disk": Case(("run", "--method", "scaffold", *SMALL, *DISK), "run.json"),
    "run, few checkpoints": Case(
        ("run", "--method", "fedadmm", *SQUARES, "--rounds", "200", "--checkpoint-every", "0.05", "--eval-every", "5"),
        "run.json",
    ),
    "run, compressed uploads": Case(
        ("run", "--method", "scaffold(upload=topk(0.2))", *SMALL, *DISK), "run.json"
    ),
    "run, late replies": Case(("run", "--method", "fedavg", *SMALL, *LATE, *DISK), "run.json"),
    "run, judged and stopped early": Case(
        ("run", "--method", "fedavg", *LINEAR, "--rounds", "10", *EVERY, "--set", "validation=0.2",
         "--set", "eval.patience=3", "--set", "eval.personalise=finetune(steps=2)"),
        "run.json",
    ),
    "compare": Case(("compare", "--methods", "fedavg,scaffold", *SMALL), "compare.json"),
    "compare, two processes": Case(
        ("compare", "--methods", "fedavg,scaffold", *SMALL, "--jobs", "2"), "compare.json", 1, True
    ),
    "tune": Case(
        ("tune", "--methods", "feddyn", *SQUARES, "--rounds", "40", "--seeds", "0", "--budget", "6",
         "--final-seeds", "2"),
        "tune.json",
    ),
    "reproduce": Case(("reproduce", "fedvra_table4", "--quick", "--cells", "noniid", "--seeds", "0"), ""),
    "distributed": Case(("run", "--method", "scaffold", *SMALL, *SPREAD, *DISK), "run.json", 2),
    "distributed, rows in memory": Case(("run", "--method", "scaffold", *SMALL, *SPREAD, *MEMORY), "run.json", 2),
    "flower try": Case(
        ("flower", "try", *LINEAR[:4], "--clients", "2", "--method", "scaffold", "--rounds", "6", "--batch-size", "200",
         "--lr", "0.05", "--checkpoint-every", "0", "--set", "engine.dtype=float64"),
        "run.json", parts=("command", "superlink", "server"),
    ),
}  # fmt: skip


class Failure(AssertionError):  # noqa: N818 (it is what a test fails with)
    """What was not as it must be."""


class Started(NamedTuple):
    """Processes of one command, and what they say."""

    numbers: list[int]
    log: Path


def words_of(case: Case, folder: Path) -> list[str]:
    """What a user types, who sees whether the folder holds something to go on with."""
    if case.done and (folder / case.done).exists():
        return [*case.words[: 2 if case.parts else 1], "--resume", str(folder)]
    return [*case.words, "--out", str(folder)]


def started(case: Case, folder: Path, die_before: int | None = None) -> Started:
    """The command, in processes of its own.

    Args:
        die_before: the number of the file operation below `folder` before which the process kills itself.
    """
    log, words = folder.parent / "log.txt", words_of(case, folder)
    if case.ranks == 1:
        return Started([_forked(words, folder, log, die_before)], log)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "GLOO_SOCKET_IFNAME": "lo"}
    numbers = []
    for rank in range(case.ranks):
        ranks = {"RANK": str(rank), "WORLD_SIZE": str(case.ranks), "LOCAL_WORLD_SIZE": str(case.ranks)}
        with log.open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "fedconcord", *words],
                env=os.environ | place | ranks | {MARK: str(folder)},
                stdout=said,
                stderr=said,
            )
        process.returncode = 0  # waited for here, by its number
        numbers.append(process.pid)
    return Started(numbers, log)


def _forked(words: Sequence[str], folder: Path, log: Path, die_before: int | None) -> int:
    """The command in a fork of this process, which has torch in memory already: an import less for every kill."""
    import fedconcord.execution.job
    import fedconcord.insight.report
    import fedconcord.interface.cli

    number = os.fork()
    if number:
        return number
    try:
        os.setsid()
        os.environ[MARK] = str(folder)
        to = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(to, 1)
        os.dup2(to, 2)
        count = _watched(folder, die_before)
        code = fedconcord.interface.cli.call(words)
        sys.stdout.flush()
        (folder.parent / "operations").write_text(str(count[0]))
        os._exit(code)
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(99)


def _watched(folder: Path, die_before: int | None) -> list[int]:
    """Count what changes files below a folder in this process, and kill it before one of them."""
    below, count = str(folder), [0]

    def see(event: str, given: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"):
            return
        if not str(given[0]).startswith(below) or (event == "open" and not given[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        count[0] += 1
        if count[0] == die_before:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(see)
    return count


def marked(folder: Path) -> list[int]:
    """Processes that a command in this folder started, in a shell's sense of starting: by exec."""
    wanted, found = f"{MARK}={folder}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue  # it ended, or is nobody's business
    return found


def ended(command: Started, patience: float = PATIENCE) -> list[int]:
    """Exit statuses, a signal as a negative one.

    Raises:
        Failure: it does not end.
    """
    codes, until = [], time.monotonic() + patience
    for number in command.numbers:
        while True:
            got, status = os.waitpid(number, os.WNOHANG)
            if got:
                codes.append(os.waitstatus_to_exitcode(status))
                break
            if time.monotonic() > until:
                for other in command.numbers[len(codes) :]:
                    os.kill(other, signal.SIGKILL)
                    os.waitpid(other, 0)
                raise Failure(f"it does not end: {command.log.read_text()[-2000:]}")
            time.sleep(0.005)
    return codes


def files_of(folder: Path) -> dict[str, bytes]:
    """What a command left, but for the times in it and the folder's own name."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = b"" if path.is_dir() else path.read_bytes().replace(str(folder).encode(), b"FOLDER")
        found[str(path.relative_to(folder))] = _timeless(path, content)
    place = folder.with_name(f"{folder.name}.flower") / "sites"  # where a trial's sites keep their rows
    if (folder / "deployment.json").exists() and place.exists():
        run = json.loads((folder / "deployment.json").read_text())["run"]
        for path in sorted(place.glob(f"*/{run}/*")):
            site = f"sites/{path.parts[-3]}/{path.name}"
            found[site] = path.read_bytes() if path.name == "row.safetensors" else b""
    return found


def _timeless(path: Path, content: bytes) -> bytes:
    """A file's bytes without what no two commands share."""
    if path.name == "timing.csv":
        return b"\n".join(line.partition(b",")[0] for line in content.splitlines())
    if path.name == "done.json":
        return json.dumps(json.loads(content)["values"]).encode()
    if path.name == "compare.json":
        return json.dumps({**json.loads(content), "jobs": None}).encode()
    if path.name == "checkpoint.safetensors" and b'"rows.slots"' in content:  # a row lies anywhere; its sum is its own
        found, about = tensors.read(path)
        kept = {name: leaf.tolist() for name, leaf in found.items() if name not in ("rows.slots", "rows.files")}
        return json.dumps([kept, about], sort_keys=True).encode()
    if path.name == "checkpoint.safetensors" and b'"rows.sites"' in content:  # which has a number of this trial's
        server = {name: leaf.tolist() for name, leaf in tensors.read(path)[0].items() if name != "rows.sites"}
        return json.dumps(server, sort_keys=True).encode()
    timed = ("seconds.json", "checksums.json", "study.journal", "final.json", "deployment.json")
    if (
        path.name in timed
        or path.suffix in (".bin", ".html", ".png", ".svg", ".pdf", ".md", ".tex")
        or "tables" in path.parts
    ):
        return b""  # rows lie in another order after a kill; pages, figures and tables of a report have the seconds
    return content


def whole(case: Case, folder: Path) -> tuple[dict[str, bytes], float, int]:
    """(what it leaves if nobody kills it, seconds, file operations)."""
    began = time.monotonic()
    command = started(case, folder)
    if any(ended(command, case.patience)):
        raise Failure(f"it fails by itself: {command.log.read_text()}")
    counted = folder.parent / "operations"
    return files_of(folder), time.monotonic() - began, int(counted.read_text()) if counted.exists() else 0


def part_of(command: Started, folder: Path, part: str) -> int:
    """The process that is a part of a trial: its SuperLink, the server's half, or else the command itself."""
    for number in marked(folder):
        with suppress(OSError):
            if part == "server" and any(
                os.readlink(open_).startswith(f"{folder}/") for open_ in Path(f"/proc/{number}/fd").iterdir()
            ):
                return number
            if f"\0{part}\0".encode() in Path(f"/proc/{number}/cmdline").read_bytes():
                return number
    return command.numbers[0]


def killed_part(case: Case, folder: Path, seconds: float, draw: random.Random) -> str | None:
    """Start a trial, kill a part of it, and say how; a trial may go on by itself, or end with a sentence."""
    after, part = draw.uniform(0, seconds), draw.choice(case.parts)
    command = started(case, folder)
    time.sleep(after)
    number = part_of(command, folder, part)
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
    (code,) = ended(command, case.patience)
    if code not in (0, 1, -signal.SIGKILL) or "Traceback" in command.log.read_text():
        raise Failure(f"it ended with {code}: {command.log.read_text()[-2000:]}")
    if number == command.numbers[0]:
        return f"command after {after:.0f} s" if code else None
    return f"{part} after {after:.0f} s, exit {code}"


def killed(case: Case, folder: Path, seconds: float, operations: int, draw: random.Random) -> str | None:
    """Start the command, kill it, and say how; None: it ended first."""
    if case.parts:
        return killed_part(case, folder, seconds, draw)
    if operations and not case.workers and draw.random() < 0.5:
        at = draw.randrange(1, operations + 1)
        codes, how = ended(started(case, folder, die_before=at)), f"before file operation {at}"
    else:
        after = draw.uniform(0, seconds)
        command = started(case, folder)
        time.sleep(after)
        who = [number for number in command.numbers if case.ranks == 1 or draw.random() < 0.7]
        others = [number for number in marked(folder) if number not in command.numbers] if case.workers else []
        if others and draw.random() < 0.5:
            who = [draw.choice(others)]
        for number in who:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        codes, how = ended(command), f"{len(who)} process(es) after {after:.3f} s"
        if who and who[0] not in command.numbers:
            return f"a worker after {after:.3f} s" if codes == [1] else None
    if not any(code == -signal.SIGKILL for code in codes):
        if any(codes):
            raise Failure(f"it ended with {codes}")
        return None
    return how


def orphans(folder: Path) -> list[int]:
    """Processes that outlive their command for long: one that was importing when it died ends when it has done so."""
    until = time.monotonic() + PATIENCE
    while (left := marked(folder)) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def chain(case: Case, wanted: tuple[dict[str, bytes], float, int], scratch: Path, seed: str) -> list[str]:
    """Kill one folder's command several times, let it end, and compare.

    Returns:
        How it was killed each time.

    Raises:
        Failure: it could not go on, or left something else.
    """
    draw, folder, how = random.Random(seed), scratch / "parts" / "out", list[str]()
    folder.parent.mkdir(parents=True)
    whole_files, seconds, operations = wanted
    try:
        for _ in range(KILLS):
            said = killed(case, folder, seconds, operations, draw)
            if left := orphans(folder):
                raise Failure(f"processes {left} outlive the command")
            if said is None:
                break
            how.append(said)
        command = started(case, folder)
        codes = ended(command, case.patience)
        if any(codes) or "Traceback" in command.log.read_text():
            raise Failure(f"it does not go on, exit {codes}: {command.log.read_text()[-2000:]}")
        found = files_of(folder)
        if found.keys() != whole_files.keys():
            raise Failure(f"left besides, or missing: {sorted(found.keys() ^ whole_files.keys())}")
        if left := list(folder.parent.rglob(".*.tmp")):
            raise Failure(f"half written: {left}")
        if other := [name for name, content in whole_files.items() if found[name] != content]:
            raise Failure(f"other bytes in {other}")
    except Failure as failure:
        raise Failure(f"{seed}, killed {how}: {failure}; kept in {folder}") from None
    shutil.rmtree(folder.parent)
    return how


def campaign(names: Sequence[str], kills: int, seed: int, scratch: Path) -> Iterator[tuple[str, int, list[str]]]:
    """(case, kills, failures) of each case, after so many kills of it."""
    for name in names:
        case, done, failures = CASES[name], 0, list[str]()
        home = scratch / name.replace(" ", "-").replace(",", "")
        (home / "whole").mkdir(parents=True)
        with alone() if case.parts else nullcontext():
            wanted, number = whole(case, home / "whole" / "out"), 0
            while done < kills:
                try:
                    how = chain(case, wanted, home / str(number), f"{name}/{seed}/{number}")
                    print("\n".join(f"  {one}" for one in how if case.parts), flush=True)
                    done += len(how)
                except Failure as failure:
                    failures.append(str(failure))
                    done += KILLS
                number += 1
        yield name, done, failures


@contextmanager
def alone() -> Iterator[None]:
    """One trial at a time on a machine, tests of trials among them."""
    with open(Path(tempfile.gettempdir()) / f"fedconcord-flower-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Print a row a case, and what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=200, help="kills of all cases together, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", action="append", choices=CASES)
    given = parser.parse_args()
    names = given.case or [name for name, case in CASES.items() if not case.parts]  # trials take minutes: by name
    scratch, bad = Path(tempfile.mkdtemp(prefix="fedconcord-kill-")), 0
    for name, done, failures in campaign(names, -(-given.n // len(names)), given.seed, scratch):
        print(f"| {name} | {done} | {len(failures)} |", flush=True)
        for failure in failures:
            print(f"  {failure}", flush=True)
        bad += len(failures)
    if not bad:
        shutil.rmtree(scratch)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
