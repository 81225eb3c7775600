"""Rounds of several programs in turn on one machine: round k of each before round k + 1 of any.

A contestant makes `Turns(rounds)`, calls `begin` before its first round and `lap` at the end of every round, and then
`finish`. Run by itself it is timed; run by `interleave` it also waits for its turn, outside the timed part. Frameworks
that own their loop call `lap` from their hook at the end of a round.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

VARIABLE = "BENCHMARK_TURNS"  # "read,write": the file descriptors of a contestant


class Turns:
    """The clock of one contestant; `rounds` counts the warm-up."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.seconds = rounds, list[float]()
        given = os.environ.pop(VARIABLE, None)  # popped: a contestant's own workers are not contestants
        ends = [int(end) for end in given.split(",")] if given else None
        self._turn = None if ends is None else os.fdopen(ends[0])
        self._out = None if ends is None else os.fdopen(ends[1], "w")
        self._begun = 0.0

    def begin(self) -> None:
        """Wait for the turn and start the clock."""
        self._say({"ready": len(self.seconds)})
        if self._turn is not None and not self._turn.readline():
            sys.exit("the driver is gone")
        self._begun = time.perf_counter()

    def lap(self) -> None:
        """A round has ended; start the next one, if there is one, when its turn comes."""
        self.seconds.append(time.perf_counter() - self._begun)
        self._say({"seconds": self.seconds[-1]})
        if len(self.seconds) < self.rounds:
            self.begin()

    def finish(self, warmup: int, **found: Any) -> dict[str, Any]:
        """The contestant's record, which is printed or goes to the driver."""
        record = {"seconds_per_round": spread(self.seconds[warmup:]), "peak_rss_bytes": peak_rss()} | found
        self._say(record)
        if self._out is None:
            print(json.dumps(record))
        return record

    def _say(self, what: dict[str, Any]) -> None:
        if self._out is not None:
            print(json.dumps(what), file=self._out, flush=True)


def in_turn(
    rounds: Mapping[str, Callable[[], object]], turns: int, warmup: int
) -> dict[str, list[tuple[float, float]]]:
    """Rounds of several contestants in this process, in turn: seconds of the processor and of the clock for each round
    after the warm-up. Nobody is always first, or after the same one."""
    names, taken = list(rounds), dict[str, list[tuple[float, float]]]()
    for turn in range(warmup + turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begun = time.process_time(), time.perf_counter()
            rounds[name]()
            ended = time.process_time(), time.perf_counter()
            if turn >= warmup:
                taken.setdefault(name, []).append((ended[0] - begun[0], ended[1] - begun[1]))
    return taken


def spread(seconds: Sequence[float]) -> dict[str, Any]:
    """The median of the measured rounds, and all of them."""
    every = [round(s, 6) for s in seconds]
    return {"median": statistics.median(every), "all": every}


def peak_rss() -> int:
    """Largest resident memory of this process so far [bytes].

    Linux's getrusage begins with what the parent had when it forked; the process's own peak is in /proc.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Contestant(NamedTuple):
    """A program that takes turns."""

    name: str
    command: list[str]
    environment: dict[str, str]
    log: Path  # its output


class _Running(NamedTuple):
    contestant: Contestant
    process: subprocess.Popen[bytes]
    turn: Any  # file: a line is a turn
    said: Any  # file: its answers
    rounds: list[float]


def interleave(
    contestants: Sequence[Contestant], rounds: int, timeout: float, progress: Any = None
) -> dict[str, dict[str, Any]]:
    """Run them round by round in turn: {name: its record, or {'error': why it has none}}.

    Args:
        rounds: with warm-up, as the contestants were told.
        timeout: seconds that a start, a round or an end may take.
        progress: a file for a line a round.
    """
    running, records = dict[str, _Running](), dict[str, dict[str, Any]]()

    def answer(one: _Running, key: str | None) -> dict[str, Any] | None:
        """What it says next; None, and it is out, if it says nothing in time or ends."""
        ready, _, _ = select.select([one.said], [], [], timeout)
        line = one.said.readline() if ready else ""
        found: dict[str, Any] | None = json.loads(line) if line else None
        if found is not None and (key is None or key in found):
            return found
        records[one.contestant.name] = {"error": _why(one, bool(ready))}
        _stop(one)
        del running[one.contestant.name]
        return None

    try:
        for contestant in contestants:  # one after the other: they need not compete for the machine
            running[contestant.name] = one = _start(contestant)
            answer(one, "ready")
        for k in range(rounds):
            for one in list(running.values()):
                one.turn.write("\n")
                one.turn.flush()
                found = answer(one, "seconds")
                if found is not None:
                    one.rounds.append(found["seconds"])
                    if k + 1 < rounds:
                        answer(one, "ready")
            if progress is not None:
                took = ", ".join(f"{name} {one.rounds[-1]:.3f}" for name, one in running.items())
                print(f"round {k + 1}/{rounds}: {took}", file=progress, flush=True)
        for name, one in list(running.items()):
            found = answer(one, "seconds_per_round")
            if found is not None:
                records[name] = found
    finally:
        for one in running.values():
            _stop(one)
    return {c.name: records[c.name] for c in contestants if c.name in records}


def _start(contestant: Contestant) -> _Running:
    turn_in, turn_out = os.pipe()
    said_in, said_out = os.pipe()
    contestant.log.parent.mkdir(parents=True, exist_ok=True)
    with contestant.log.open("wb") as log:
        process = subprocess.Popen(
            contestant.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **contestant.environment, VARIABLE: f"{turn_in},{said_out}"},
            pass_fds=(turn_in, said_out),
            start_new_session=True,  # with whoever it starts in its group
        )
    os.close(turn_in)
    os.close(said_out)
    # unbuffered bytes: `select` must see every line that was not read yet
    return _Running(contestant, process, os.fdopen(turn_out, "w"), os.fdopen(said_in, "rb", 0), [])


def _why(one: _Running, spoke: bool) -> str:
    lines = [line for line in one.contestant.log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1].strip()[:300] if lines else "no output"
    return f"{'ended' if spoke else 'too slow'} after {len(one.rounds)} rounds: {last}"


def _stop(one: _Running) -> None:
    """End the process, after it has cleaned up by itself or at once, and whom it left behind."""
    one.turn.close()
    with suppress(subprocess.TimeoutExpired):
        one.process.wait(30)
    with suppress(ProcessLookupError):
        os.killpg(one.process.pid, signal.SIGKILL)
    one.process.wait()
    one.said.close()
