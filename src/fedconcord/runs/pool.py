"""Many runs: one by one, or several at once, each in a process of its own."""

from __future__ import annotations

import _thread
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fedconcord import settings as settings_module
from fedconcord.basis import imports
from fedconcord.basis.errors import UserError
from fedconcord.basis.objects import Held
from fedconcord.jobs import Row
from fedconcord.runs import interrupts
from fedconcord.runs.execution import attempt
from fedconcord.runs.folder import read_description
from fedconcord.runs.outcome import Finished, Progress, finished, not_done
from fedconcord.runs.plan import Planned
from fedconcord.runs.sending import packed, unpacked

WORKER = "from fedconcord.basis import process; process.settle(); from fedconcord.runs.pool import worker; worker()"


def execute_all(
    planned: Sequence[Planned], jobs: int = 1, progress: Progress | None = None, crew: Crew | None = None
) -> list[Finished]:
    """Do all runs, `jobs` at once; finished ones are not repeated, failed ones do not stop the others.

    The processes of a `crew` are used, and stay for the next call; without one they end with this call.

    Ctrl-C lets the rounds that are running end, leaves every folder usable and returns; runs that did not begin are
    `interrupted` after 0 rounds.
    """
    tell = progress or (lambda number, event: None)
    ended: dict[int, Finished] = {}
    for number, entry in enumerate(planned):
        if _is_finished(entry):
            ended[number] = finished(entry.folder)
            tell(number, ended[number])
    todo = [number for number in range(len(planned)) if number not in ended]
    if jobs > 1 and todo and (len(todo) > 1 or crew is not None):
        _Pool(planned, tell, ended, crew).work(todo, min(jobs, len(todo)))
    else:
        _one_by_one(planned, todo, tell, ended)
    return [ended.get(number) or not_done(entry, "interrupted") for number, entry in enumerate(planned)]


def _is_finished(entry: Planned) -> bool:
    if not entry.resume or not (entry.folder / "run.json").exists():
        return False
    saved = read_description(entry.folder)
    done = int(saved["rounds_done"])
    early = saved["status"] == "diverged" or "stopped" in saved
    if early and done % (entry.config.eval.every or 1) and done < entry.config.rounds:
        return False  # it was judged after that round only because it was its last
    return early or (saved["status"] == "complete" and done >= entry.config.rounds)


def _one_by_one(planned: Sequence[Planned], todo: Sequence[int], tell: Progress, ended: dict[int, Finished]) -> None:
    for number in todo:
        tell(number, None)
        ended[number] = attempt(planned[number], lambda row, number=number: tell(number, row))  # type: ignore[misc]
        tell(number, ended[number])
        if ended[number].status == "interrupted":
            return


# -- several processes ---------------------------------------------------------------------------------------------
#
# A worker is a new interpreter that reads tasks as lines of JSON and writes events as such. It is told to stop through
# the same pipe, not by a signal, and has its own process group, so that Ctrl-C in a terminal reaches the parent alone
# and every run is stopped once, between two rounds. It ends with its parent: a closed pipe is the parent's death.


class _Worker:
    def __init__(self, events: queue.Queue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        self.number: int | None = None  # the run it does
        self.ready = False  # whether it has ever been
        self.known: set[str] = set()  # texts of the objects that it was sent
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        self.last_words = ""
        self.listener = threading.Thread(target=self._listen, args=(events,), daemon=True)
        self.listener.start()

    def _listen(self, events: queue.Queue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines, suppress(ValueError):  # killed in the middle of a line
            for line in lines:
                events.put((self, json.loads(line)))
        events.put((self, None))

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # if it died, its end is on the way as an event
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def close(self) -> int:
        """End the process and return its exit status."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            status = self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.listener.join()
        if not self.log.closed:
            self.log.seek(0)
            self.last_words = (self.log.read().decode(errors="replace").strip().splitlines() or [""])[-1]
            self.log.close()
        return status


class Crew:
    """Worker processes that wait for the next call of `execute_all`: to start one costs two seconds of a core."""

    def __init__(self) -> None:
        self.waiting: list[_Worker] = []
        self.events: queue.Queue[tuple[_Worker, dict[str, Any] | None]] = queue.Queue()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        while self.waiting:
            self.waiting.pop().close()


class _Pool:
    """Runs in worker processes; tells about them in the calling thread."""

    def __init__(
        self, planned: Sequence[Planned], tell: Progress, ended: dict[int, Finished], crew: Crew | None
    ) -> None:
        self.planned, self.tell, self.ended, self.crew = planned, tell, ended, crew
        self.events = queue.Queue() if crew is None else crew.events
        self.workers: list[_Worker] = []
        self.todo: list[int] = []
        self.objects = packed(entry.config for entry in planned)

    def work(self, todo: Sequence[int], jobs: int) -> None:
        self.todo = list(todo)
        told = 0
        with _counted_interrupts() as count:
            try:
                for _ in range(jobs):
                    self._join()
                while self.workers:
                    if count[0] > told:
                        told = count[0]
                        self._stop(told)
                    try:
                        worker, event = self.events.get(timeout=0.2)
                    except queue.Empty:
                        continue
                    if event is None:
                        self._lost(worker, stopping=told > 0)
                    else:
                        self._handle(worker, event, stopping=told > 0)
            finally:
                for worker in self.workers:
                    worker.process.kill()
                    worker.close()

    def _stop(self, times: int) -> None:
        """First and second time: as Ctrl-C in the worker; after that it is killed."""
        for worker in self.workers:
            if times > 2:
                worker.process.kill()
            elif worker.number is not None:
                worker.send({"stop": times})

    def _handle(self, worker: _Worker, event: dict[str, Any], stopping: bool) -> None:
        if "row" in event:
            assert worker.number is not None
            self.tell(worker.number, Row(*event["row"]))
            return
        if "finished" in event:
            assert worker.number is not None
            self._end(worker, Finished(Path(event["finished"][0]), *event["finished"][1:]))
        worker.ready = True
        self._next(worker, stopping)

    def _join(self) -> None:
        """One more worker: one that waits, else a new one, whose first event will say that it is ready."""
        while self.crew is not None and self.crew.waiting:
            worker = self.crew.waiting.pop()
            if worker.process.poll() is None:
                self.workers.append(worker)
                self._next(worker, stopping=False)
                return
            worker.close()
        self.workers.append(_Worker(self.events))

    def _next(self, worker: _Worker, stopping: bool) -> None:
        """Give a worker the next run, if there is one."""
        if self.todo and not stopping:
            worker.number = self.todo.pop(0)
            entry = self.planned[worker.number]
            self.tell(worker.number, None)
            new = [one for one in self.objects if one["text"] not in worker.known]
            if new:  # not before it is ready: it reads them only then, and a pipe holds little
                worker.send({"objects": new})
                worker.known |= {one["text"] for one in new}
            worker.send(
                {
                    "config": entry.config.as_dict(),
                    "folder": str(entry.folder),
                    "resume": entry.resume,
                    "held": entry.held,
                    "trusted": imports.trusted(),
                }
            )
        elif self.crew is not None and not stopping:
            self.workers.remove(worker)
            self.crew.waiting.append(worker)
        else:
            self._drop(worker)

    def _end(self, worker: _Worker, result: Finished) -> None:
        assert worker.number is not None
        self.ended[worker.number] = result
        self.tell(worker.number, result)
        worker.number = None

    def _drop(self, worker: _Worker) -> int:
        self.workers.remove(worker)
        return worker.close()

    def _lost(self, worker: _Worker, stopping: bool) -> None:
        """A worker that ended by itself: its run has failed, and another worker takes its place."""
        if worker not in self.workers:
            return
        status = self._drop(worker)
        words = worker.last_words
        why = f"its process was killed (signal {-status})" if status < 0 else f"its process ended ({status}): {words}"
        if worker.number is not None:
            entry = self.planned[worker.number]
            self._end(worker, not_done(entry, "interrupted") if stopping else not_done(entry, "failed", why))
        if stopping:
            return
        if self.todo and worker.ready:
            self.workers.append(_Worker(self.events))
        elif self.todo and not self.workers:  # none can even start
            raise UserError(f"no worker process could start, the last because {words or why}; use --jobs 1")


@contextmanager
def _counted_interrupts() -> Iterator[list[int]]:
    """Ctrl-C counted in a list of one number, in place of an exception."""
    count = [0]
    if threading.current_thread() is not threading.main_thread():
        yield count
        return

    def note(number: int, frame: object) -> None:
        count[0] += 1

    before = signal.signal(signal.SIGINT, note)
    try:
        yield count
    finally:
        signal.signal(signal.SIGINT, before)


def worker() -> None:
    """The main function of a worker process: tasks from stdin, events to stdout, one JSON object a line."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not mix with the events
    tasks: queue.Queue[dict[str, Any]] = queue.Queue()
    told = 0  # how often to stop the run

    def stop(times: int) -> None:
        nonlocal told
        if times > told:
            told = times
            _thread.interrupt_main()

    signal.signal(signal.SIGINT, interrupts.raising)
    signal.signal(signal.SIGTERM, lambda number, frame: stop(1))  # a scheduler's, to all processes: the parent's word

    def listen() -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "stop" in message:
                stop(message["stop"])
            else:
                tasks.put(message)
        os._exit(0)  # the parent is done or dead; the folder is usable as it is

    known: list[Held] = []  # kept until the process ends

    def send(**event: Any) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    threading.Thread(target=listen, daemon=True).start()
    try:
        send(ready=True)
        while True:
            task = tasks.get()
            if "objects" in task:
                known += unpacked(task["objects"])
                continue
            told = 0
            interrupts.forget()
            imports.trust(task["trusted"])
            source = settings_module.from_nested(task["config"], "settings")
            entry = Planned(settings_module.resolve_run(source), Path(task["folder"]), task["resume"], task["held"])
            result = attempt(entry, lambda row: send(row=list(row)))
            send(finished=[str(result.folder), *result[1:]])
    except KeyboardInterrupt:
        out.close()
        os._exit(130)
