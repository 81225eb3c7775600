"""The one way in which many runs are done: a study yields stages of runs, and a pool does them, here or in workers.

A study is a generator. What it yields depends on its settings and on what it was sent alone, so that a study that was
cut off anywhere comes to the same stages when it is resumed, and no run of them is repeated.
"""

from __future__ import annotations

import _thread
import base64
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from fedconcord.execution.job import Row
from fedconcord.execution.run import interrupts
from fedconcord.execution.run.final_model import MODEL
from fedconcord.execution.run.folder import shrink
from fedconcord.study.runs.events import Entry, Event, Finished, Stage, Tell, Watch
from fedconcord.study.runs.execution import attempt
from fedconcord.study.runs.records import finished, not_done, reached, rounds_behind
from fedconcord.study.settings.objects import objects_of
from fedconcord.study.settings.problem import forget_problem
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import imports, objects
from fedconcord.support.errors import UserError, in_words
from fedconcord.support.objects import NamedObject

T = TypeVar("T")
Stages = Generator[Stage, list[Finished], T]
"""Yields a stage, is sent the outcomes of its runs in their order, and returns the result of the study."""


class InterruptedStudyError(KeyboardInterrupt):
    """Ctrl-C. Every folder is usable as it is, and the same call or `resume` goes on."""

    def __init__(self, runs: Sequence[Finished]) -> None:
        super().__init__()
        self.runs = list(runs)  # the outcomes of the stage that was cut off


def carry_out(stages: Stages[T], jobs: int, watch: Watch) -> T:
    """Do a study, or what is left of it; the same result wherever it was interrupted and whatever `jobs` is.

    Raises:
        InterruptedStudyError: by Ctrl-C.
        UserError: whatever the study refuses.
    """
    with closing(stages), Pool(jobs) as pool:
        runs: list[Finished] | None = None
        while True:
            try:
                stage = next(stages) if runs is None else stages.send(runs)
            except StopIteration as end:
                result: T = end.value
                return result
            watch.stage(stage)
            runs = pool.run(stage.entries, watch.event)
            if interrupts.ctrl_c.is_set() or any(run.status == "interrupted" for run in runs):
                raise InterruptedStudyError(runs)


WORKER = (
    "from fedconcord.support import process; process.settle(); from fedconcord.study.runs.pool import worker; worker()"
)

# A worker is a new interpreter that reads tasks as lines of JSON and writes events as such. It is told to stop through
# the same pipe, not by a signal, and has its own process group, so that Ctrl-C in a terminal reaches the parent alone
# and every run is stopped once, between two rounds. It ends with its parent: a closed pipe is the parent's death.


class _Worker:
    """A worker process, and the run that it does."""

    def __init__(self, events: _Events) -> None:
        self.number: int | None = None  # of its run
        self.is_ready = False  # whether it has ever been
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

    def _listen(self, events: _Events) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines, suppress(ValueError):  # killed in the middle of a line
            for line in lines:
                events.put((self, json.loads(line)))
        events.put((self, None))

    def send(self, message: Mapping[str, Any]) -> None:
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


_Events = queue.Queue[tuple[_Worker, dict[str, Any] | None]]


class Pool:
    """Does the runs of one stage after another, `jobs` at once; its workers stay, as to start one costs two seconds.

    Runs that reached their rounds are not repeated, and a run that fails does not stop the others. Ctrl-C lets the
    rounds that are running end and leaves every folder usable; the second one stops at once, the third kills workers.
    """

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs
        self.waiting: list[_Worker] = []  # those that are kept for the next stage
        self.workers: list[_Worker] = []  # those of this one
        self.events: _Events = queue.Queue()
        self.entries: Sequence[Entry] = ()
        self.todo: list[int] = []
        self.outcomes: dict[int, Finished] = {}
        self.objects: list[Mapping[str, str]] = []
        self.tell: Tell = lambda event: None

    def __enter__(self) -> Pool:
        interrupts.ctrl_c.clear()
        return self

    def __exit__(self, *error: object) -> None:
        while self.waiting:
            self.waiting.pop().close()

    def run(self, entries: Sequence[Entry], tell: Tell) -> list[Finished]:
        """The outcomes of runs, in their order; those that did not begin before Ctrl-C are `interrupted`.

        Everything is told in the calling thread.
        """
        self.entries, self.tell, self.outcomes = entries, tell, {}
        for number, entry in enumerate(entries):
            if reached(self._entry(number)):
                self._end(number, finished(entry.folder))
        self.todo = [number for number in range(len(entries)) if number not in self.outcomes]
        if self.jobs > 1 and (len(self.todo) > 1 or (self.todo and self.waiting)):
            self._run_in_workers()
        else:
            self._run_here()
        return [self.outcomes.get(number) or not_done(entry, "interrupted") for number, entry in enumerate(entries)]

    def _entry(self, number: int) -> Entry:
        """A run that is about to begin, with no more rounds than it is worth by now, or has behind it."""
        entry = self.entries[number]
        if entry.worth is None:
            return entry
        rounds = int(min(entry.config.rounds, max(entry.worth(), rounds_behind(entry))))
        return entry._replace(config=entry.config.model_copy(update={"rounds": rounds}))

    def _end(self, number: int, outcome: Finished) -> None:
        """A run has ended: what nobody asked to keep goes."""
        keep = self.entries[number].keep
        if keep != "all" and outcome.status in ("complete", "diverged"):
            shrink(outcome.folder, *((MODEL,) if keep == "tables" else ()))
        self.outcomes[number] = outcome
        self.tell(Event("ended", number=number, result=outcome))

    def _run_here(self) -> None:
        for number in self.todo:
            self.tell(Event("started", number=number))
            on_row = lambda row, number=number: self.tell(Event("row", row=row, number=number))  # noqa: E731
            self._end(number, attempt(self._entry(number), on_row))
            if interrupts.ctrl_c.is_set() or self.outcomes[number].status == "interrupted":
                return

    # -- in worker processes ---------------------------------------------------------------------------------------

    def _run_in_workers(self) -> None:
        self.objects = packed(entry.config for entry in self.entries)
        forget_problem()  # the workers have their own
        stops = 0  # the Ctrl-Cs that workers know of
        with _counted_interrupts() as count:
            try:
                for _ in range(min(self.jobs, len(self.todo))):
                    self._join()
                while self.workers:
                    if count[0] > stops:
                        stops = count[0]
                        self._stop(stops)
                    try:
                        worker, event = self.events.get(timeout=0.2)
                    except queue.Empty:
                        continue
                    if event is None:
                        self._lost(worker, is_stopping=stops > 0)
                    else:
                        self._handle(worker, event, is_stopping=stops > 0)
            finally:
                for worker in self.workers:
                    worker.process.kill()
                    worker.close()
                self.workers = []

    def _join(self) -> None:
        """One more worker: one that waits, else a new one, whose first event will say that it is ready."""
        while self.waiting:
            worker = self.waiting.pop()
            if worker.process.poll() is None:
                self.workers.append(worker)
                self._next(worker, is_stopping=False)
                return
            worker.close()
        self.workers.append(_Worker(self.events))

    def _stop(self, times: int) -> None:
        """First and second time: as Ctrl-C in the worker; after that it is killed."""
        for worker in self.workers:
            if times > 2:
                worker.process.kill()
            elif worker.number is not None:
                worker.send({"stop": times})

    def _handle(self, worker: _Worker, event: Mapping[str, Any], is_stopping: bool) -> None:
        number = worker.number
        if "row" in event and number is not None:
            self.tell(Event("row", row=Row(*event["row"]), number=number))
            return
        if "finished" in event and number is not None:
            worker.number = None
            self._end(number, Finished(Path(event["finished"][0]), *event["finished"][1:]))
        worker.is_ready = True
        self._next(worker, is_stopping)

    def _next(self, worker: _Worker, is_stopping: bool) -> None:
        """Give a worker the next run, if there is one."""
        if is_stopping or not self.todo:
            self.workers.remove(worker)
            if is_stopping:
                worker.close()
            else:
                self.waiting.append(worker)
            return
        worker.number = self.todo.pop(0)
        entry = self._entry(worker.number)
        self.tell(Event("started", number=worker.number))
        new = [one for one in self.objects if one["text"] not in worker.known]
        if new:  # not before it is ready: it reads them only then, and a pipe holds little
            worker.send({"objects": new})
            worker.known |= {one["text"] for one in new}
        task = {"config": entry.config.as_dict(), "folder": str(entry.folder), "resume": entry.resume}
        worker.send({**task, "validation_reason": entry.validation_reason, "trusted": imports.trusted()})

    def _lost(self, worker: _Worker, is_stopping: bool) -> None:
        """A worker that ended by itself: its run has failed, and another worker takes its place."""
        if worker not in self.workers:
            return
        self.workers.remove(worker)
        status, words = worker.close(), worker.last_words
        why = f"its process was killed (signal {-status})" if status < 0 else f"its process ended ({status}): {words}"
        if worker.number is not None:
            entry = self.entries[worker.number]
            lost = not_done(entry, "interrupted") if is_stopping else not_done(entry, "failed", why)
            self._end(worker.number, lost)
        if is_stopping:
            return
        if self.todo and worker.is_ready:
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
        interrupts.ctrl_c.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield count
    finally:
        signal.signal(signal.SIGINT, before)


# -- the process of a worker ---------------------------------------------------------------------------------------


def worker() -> None:
    """The main function of a worker process: tasks from stdin, events to stdout, one JSON object a line."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not mix with the events
    tasks: queue.Queue[dict[str, Any]] = queue.Queue()
    stops = 0  # how often the run was told to stop

    def stop(times: int) -> None:
        nonlocal stops
        if times > stops:
            stops = times
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

    received: list[NamedObject] = []  # kept until the process ends

    def send(**event: Any) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    threading.Thread(target=listen, daemon=True).start()
    try:
        send(ready=True)
        while True:
            task = tasks.get()
            if "objects" in task:
                data = (base64.b64decode(one["thing"]) for one in task["objects"])
                received += [objects.keep(pickle.loads(one)) for one in data]
                continue
            stops = 0
            interrupts.ctrl_c.clear()
            imports.trust(task["trusted"])
            config = resolve_run(from_nested(task["config"], "settings"))
            entry = Entry(config, Path(task["folder"]), task["resume"], task["validation_reason"])
            outcome = attempt(entry, lambda row: send(row=list(row)))
            send(finished=[str(outcome.folder), *outcome[1:]])
    except KeyboardInterrupt:
        out.close()
        os._exit(130)


# -- objects given from Python, on their way to workers: pickled, in their pipe ----------------------------------------


def packed(configs: Iterable[Config]) -> list[Mapping[str, str]]:
    """The objects that settings name, each once, as JSON.

    Raises:
        UserError: one cannot be sent.
    """
    texts = {text: key for config in configs for key, text in objects_of(config.as_dict())}
    return [_packed(objects.held(text, key)) for text, key in texts.items()]


def _packed(thing: NamedObject) -> Mapping[str, str]:
    try:
        data = pickle.dumps(thing)
        why = "it is defined in the main program" if b"__main__" in data else None
    except Exception as error:  # whatever somebody else's object raises
        data, why = b"", in_words(error)
    if why is not None:
        raise UserError(
            f"jobs > 1 works in other processes, and {thing.text} cannot be sent to them ({why}); use jobs=1, or "
            "define it by name in a module that they can import"
        )
    return {"text": thing.text, "thing": base64.b64encode(data).decode()}
