"""The ways to an implementation under judgement, each a spec in and a trajectory out, from a process of its own.

`command`: any program; it gets the spec as one JSON object on stdin and answers {"x": [[...], ...]} on stdout, a point
a round, or a line {"x": [...]} after each round. `functions`: a pair of Python functions (`child` says what they are
given). `flower`: a Flower strategy (`flower_child`). `own`: a method of this library's contract, which alone runs in
this process. A recorded trajectory is read by `trajectory.read`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedconcord.method.algorithms import plugins
from fedconcord.support import factories, imports
from fedconcord.support.errors import UserError, foreign
from fedconcord_referee import child, flower_child
from fedconcord_referee.reference import Setting, walk
from fedconcord_referee.spec import Spec, plain
from fedconcord_referee.trajectory import Trajectory, checked, vector

LIMIT = 60.0  # seconds
MOST_BYTES = 50_000_000  # of an answer

Adapter = Callable[[Spec], Trajectory]


def command(line: str, limit: float = LIMIT) -> Adapter:
    """A program with its arguments, as a shell has them, without a shell.

    Raises:
        UserError: the text is no program; or, when called, it cannot be started, fails, takes longer than `limit`
            seconds, or answers no trajectory.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UserError(f"--command {line!r} cannot be read: {error}") from None
    if not words:
        raise UserError("--command is empty; give a program, as in --command 'python mine.py'")
    return lambda spec: _run(words, spec, limit, shlex.join(words))


def functions(place: str, limit: float = LIMIT, python: str = sys.executable) -> Adapter:
    """A pair of functions, FILE:CLIENT,SERVER, run by an interpreter that has NumPy.

    Raises:
        UserError: the text is none, the file is not there; or, when called, as of `command`.
    """
    words = _named("--functions", place, "FILE:CLIENT,SERVER", "mine.py:client,server")
    return lambda spec: _run([python, child.__file__, *words], spec, limit, place)


def own(text: str) -> Adapter:
    """A method of this library's contract, `module:factory(...)`, which runs in this process as `fedconcord run` would.

    Raises:
        UserError: there is none; or, when called, it cannot run on the problem.
    """
    imports.trust(text)
    algorithm = factories.build(plugins.available(), "method", text)

    def judged(spec: Spec) -> Trajectory:
        with foreign(f"{text} failed"):
            path = list(walk(Setting(spec, algorithm)))
        local = [[*map(after.local.get, one.clients)] for after, one in zip(path, spec.rounds, strict=True)]
        return checked({"x": [after.x for after in path], "local": local}, spec, text)

    return judged


def aggregator(place: str, limit: float = LIMIT, python: str = sys.executable) -> Adapter:
    """A rule alone, FILE:FUNCTION, moves [S, d] -> [d]; the clients are the referee's own.

    Raises:
        UserError: as of `functions`.
    """
    words = _named("--aggregator", place, "FILE:FUNCTION", "mine.py:krum")
    return lambda spec: _run([python, child.__file__, *words], spec, limit, place)


def optimiser(place: str, limit: float = LIMIT, python: str = sys.executable) -> Adapter:
    """A local optimiser of torch.optim's shape, FILE:CLASS, made anew in each round as CLASS([x], lr=lr).

    The clients' rounds and the mean of their models are the referee's own.

    Raises:
        UserError: as of `functions`.
    """
    words = _named("--optimiser", place, "FILE:CLASS", "mine.py:Adam")
    return lambda spec: _run([python, child.__file__, "--optimiser", *words], spec, limit, place)


def flower(place: str, limit: float = LIMIT, python: str = sys.executable) -> Adapter:
    """A Flower strategy, FILE:STRATEGY or FILE:STRATEGY,APP, run by an interpreter that has flwr.

    Clients are those of the ClientApp APP, or the referee's where none is named.

    Raises:
        UserError: as of `functions`.
    """
    form, example = "FILE:STRATEGY", "mine.py:strategy"
    if "," in place:
        form, example = f"{form},APP", f"{example},app"
    words = _named("--flower", place, form, example)
    return lambda spec: _run([python, flower_child.__file__, *words], spec, limit, place)


def _named(option: str, place: str, form: str, example: str) -> list[str]:
    """A file, and names in it."""
    file, _, text = place.rpartition(":")
    names = text.split(",")
    if not file or len(names) != form.count(",") + 1 or not all(name.isidentifier() for name in names):
        raise UserError(f"{option} must be {form}, as in {example}, given {place!r}")
    if not Path(file).is_file():
        raise UserError(f"{option}: there is no file {file}; give {form}")
    return [file, *names]


def _run(words: Sequence[str], spec: Spec, limit: float, who: str) -> Trajectory:
    """The answer of a process, which ends with all its children when it or its time is over."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=os.name == "posix"
            )
        except OSError as error:
            raise UserError(f"{words[0]} cannot be started: {error.strerror}; give the program of --command") from None
        is_late = False
        try:
            process.communicate(json.dumps(plain(spec)).encode(), timeout=limit)
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            _end(process)
        if out.tell() > MOST_BYTES or (out.seek(0, os.SEEK_END) > MOST_BYTES):
            raise UserError(f"{who} wrote more than {MOST_BYTES // 1_000_000} MB; answer the models alone")
        out.seek(0)
        text = out.read().decode(errors="replace")
        answer = parsed(text)
        rows = answer["x"] if isinstance(answer, dict) and isinstance(answer.get("x"), list) else []
        rounds_seen = len(rows)
        if is_late or process.returncode != 0:  # perhaps for what it had answered before
            for t, row in enumerate(rows, 1):
                vector(row, spec, f"{who}: x after round {t}")
        where = f"in round {rounds_seen + 1} of {len(spec.rounds)}" if rounds_seen else "before it answered a round"
        if is_late:
            raise UserError(f"{who} was stopped after {limit:g} s {where}; give it longer with --limit, or look there")
        if process.returncode != 0:
            err.seek(max(0, err.seek(0, os.SEEK_END) - 4000))
            last = [line for line in err.read().decode(errors="replace").splitlines() if line.strip()]
            ending = f": {last[-1].strip()}" if last else ""
            raise UserError(f"{who} failed with exit code {process.returncode} {where}{ending}")
    if answer is None:
        ending = f"; it wrote {' '.join(text.split())[:80]!r}" if text.strip() else "; it wrote nothing"
        raise UserError(f'{who} answered no JSON; write {{"x": [[...], ...]}}, the model after each round{ending}')
    return checked(answer, spec, who)


def _end(process: subprocess.Popen[bytes]) -> None:
    """No process is left behind, whatever the program started."""
    with suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def parsed(text: str) -> Any:
    """One JSON object, or the lines {"x": ..., "local": ...} of a program that writes one a round; None if neither."""
    first, *lines = (_loaded(part) for part in (text, *text.splitlines()))
    whole = next((value for value in (first, *lines) if isinstance(value, dict) and not _is_round(value)), None)
    rows = [value for value in lines if isinstance(value, dict) and _is_round(value)]
    if whole is not None or not rows:
        return whole
    has_local = all("local" in row for row in rows)
    return {"x": [row["x"] for row in rows], **({"local": [row["local"] for row in rows]} if has_local else {})}


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _is_round(value: Any) -> bool:
    """Whether it is of one round: its x is a vector, not a list of them."""
    x = value.get("x")
    return isinstance(x, list) and not any(isinstance(entry, list) for entry in x)
