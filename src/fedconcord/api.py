"""What the command does, as functions: `run` one method, `compare` several, in folders that resume.

    import fedconcord

    result = fedconcord.run(method="fedavg", data="digits", rounds=20)
    table = fedconcord.compare(["fedavg", "scaffold"], data="digits", seeds=[0, 1], target=0.9)
    print(table.report)

Arguments that are left out take the value of the settings file, else the default that `fedconcord list settings` shows.
"""

from __future__ import annotations

import _thread
import csv
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch

from fedconcord import config as settings_module
from fedconcord import files, results, spec
from fedconcord.config import Config, Source
from fedconcord.engines import distributed
from fedconcord.errors import UserError
from fedconcord.training import Job, Row, resolved, start

NAMED = {  # arguments and options whose key has another name
    "epochs": "local.epochs",
    "steps": "local.steps",
    "batch_size": "local.batch_size",
    "lr": "local.lr",
    "target": "eval.target",
    "device": "engine.device",
    "engine": "engine.name",
    "dtype": "engine.dtype",
    "momentum": "local.momentum",
    "oracle": "local.oracle",
    "eval_every": "eval.every",
    "checkpoint_every": "checkpoint.every",
    "label_column": "input.label",
    "client_column": "input.client",
    "target_kind": "input.target",
    "test_data": "input.test",
}
ON_RESUME = frozenset(  # settings that a resumed job may change
    (
        *("rounds", "checkpoint.every", "eval.target"),
        *("engine.name", "engine.device", "engine.threads", "engine.timeout"),
    )
)
FORMAT = 1


class Finished(NamedTuple):
    """What became of one run."""

    folder: Path
    label: str
    seed: int
    status: str  # complete, diverged, interrupted or failed
    rounds: int  # rounds done
    metrics: dict[str, float]  # of the last evaluated round
    error: str | None = None  # why it failed


class Compared(NamedTuple):
    """What became of a comparison."""

    folder: Path
    runs: list[Finished]
    report: Path | None  # None if it was interrupted, every run failed, or another process writes it


class Planned(NamedTuple):
    """A run that is to be done: its resolved settings and its folder."""

    config: Config
    folder: Path
    resume: bool = False


Progress = Callable[[int, "Row | Finished | None"], None]
"""(number of the run, None when it starts, a Row after each round, Finished at its end)."""


# -- the two jobs --------------------------------------------------------------------------------------------------


def run(
    method: str | None = None,
    *,
    data: str | Path | None = None,
    data_dir: str | Path | None = None,
    label_column: str | Sequence[str] | None = None,
    client_column: str | None = None,
    target_kind: str | None = None,
    test_data: str | Path | None = None,
    partition: str | None = None,
    model: str | None = None,
    clients: int | None = None,
    cohort: int | None = None,
    rounds: int | None = None,
    epochs: int | str | None = None,
    steps: int | str | None = None,
    batch_size: int | str | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    oracle: str | None = None,
    sampling: str | None = None,
    server: str | None = None,
    upload: str | None = None,
    seed: int | None = None,
    target: float | None = None,
    eval_every: int | None = None,
    checkpoint_every: float | None = None,
    device: str | None = None,
    engine: str | None = None,
    dtype: str | None = None,
    out: str | Path | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    on_row: Callable[[Row], None] | None = None,
) -> Finished:
    """Train one method and return what came of it; everything is in `.folder`.

    Args:
        config: a TOML file of settings.
        settings: any other key, dotted: {"algorithm.rho": 0.1, "local.weight_decay": 1e-4}.
        resume: a folder to continue to the same result bit for bit; its settings are kept.
        on_row: sees every round as it ends.

    Raises:
        UserError: a setting is wrong, data are missing, or the folder is taken.
    """
    given = _arguments(locals(), ("config", "settings", "resume", "on_row"))
    sources = [*_file(config), _source(given, settings)]
    planned = plan_resumed_run(Path(resume), *sources) if resume else plan_run(*sources)
    return execute(planned, on_row)


def compare(
    methods: Sequence[str] | None = None,
    *,
    data: str | Path | None = None,
    data_dir: str | Path | None = None,
    label_column: str | Sequence[str] | None = None,
    client_column: str | None = None,
    target_kind: str | None = None,
    test_data: str | Path | None = None,
    partition: str | None = None,
    model: str | None = None,
    clients: int | None = None,
    cohort: int | None = None,
    rounds: int | None = None,
    epochs: int | str | None = None,
    steps: int | str | None = None,
    batch_size: int | str | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    oracle: str | None = None,
    sampling: str | None = None,
    server: str | None = None,
    upload: str | None = None,
    seeds: Sequence[int] | None = None,
    target: float | None = None,
    eval_every: int | None = None,
    checkpoint_every: float | None = None,
    device: str | None = None,
    engine: str | None = None,
    dtype: str | None = None,
    out: str | Path | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Compared:
    """Train several methods with several seeds, side by side on the same clients, batches and start; write the report.

    Each run has its own folder, OUT/<method>/seed-<seed>. A run that fails is reported and the others go on.

    Args:
        methods: "fedprox(mu=0.1)" sets a parameter; "fedavg(local.lr=0.05, server=momentum(0.9))" a local setting or
            a part for this method alone.
        config: a TOML file of settings.
        settings: any other key, dotted.
        resume: the folder of a comparison to complete; finished runs stay, others go on from their checkpoints.
        jobs: runs at once, each in a process of its own; 1 if not given.
        progress: sees every run begin, every round and every end.

    Raises:
        UserError: a setting is wrong, data are missing, or the folder is taken.
    """
    given = _arguments(locals(), ("config", "settings", "resume", "jobs", "progress"))
    sources = [*_file(config), _source(given, settings)]
    if resume:
        folder, planned, jobs = plan_resumed_comparison(Path(resume), jobs, *sources)
    else:
        folder, planned, jobs = plan_comparison(jobs, *sources)
    return finish_comparison(folder, execute_all(planned, jobs, progress))


def _arguments(given: Mapping[str, Any], others: Sequence[str]) -> dict[str, Any]:
    """The arguments of a call that are settings, by dotted key."""
    return {
        NAMED.get(name, name): str(value) if isinstance(value, Path) else value
        for name, value in given.items()
        if name not in others and value is not None
    }


def _file(config: str | Path | None) -> list[Source]:
    return [] if config is None else [settings_module.from_file(Path(config))]


def _source(given: Mapping[str, Any], settings: Mapping[str, Any] | None) -> Source:
    named = {key: ("argument", value) for key, value in given.items()}
    more = settings_module.from_nested(settings or {}, "settings")
    source = settings_module.from_options(named)
    return Source({**source.values, **more.values}, {**source.origin, **more.origin})


# -- folders -------------------------------------------------------------------------------------------------------


def plan_run(*sources: Source) -> Planned:
    """A new run in a new folder, which is made when the run starts."""
    config = settings_module.resolve_run(*sources)
    settings_module.advise(config)
    return Planned(config.model_copy(update={"out": None}), _new_folder(config, config.method or "run"))


def plan_resumed_run(folder: Path, *changes: Source) -> Planned:
    """The run of a folder, to be continued.

    Raises:
        UserError: the folder holds no run, or a change is more than how long and where it computes.
    """
    if not (folder / "run.json").exists() and (folder / "compare.json").exists():
        raise UserError(f"{folder} holds a comparison; continue it with fedconcord compare --resume {folder}")
    saved = results.read_description(folder)
    _allowed(changes, folder)
    config = settings_module.resolve_run(settings_module.from_nested(saved.get("config", {}), "run.json"), *changes)
    _longer(config, folder, saved)
    return Planned(config, folder, resume=True)


def plan_comparison(jobs: int | None, *sources: Source) -> tuple[Path, list[Planned], int]:
    """A new comparison: its folder, its runs and how many of them go on at once.

    Raises:
        UserError: a setting is wrong or a run cannot start, before anything is written.
    """
    config = settings_module.resolve_compare(*sources)
    jobs = _jobs(1 if jobs is None else jobs, config)
    config = _with_threads(config, jobs)
    folder = _new_folder(config, "compare")
    config = config.model_copy(update={"out": None})
    planned = _runs(config, folder)
    _try_start(planned, jobs)
    _save_comparison(folder, config, jobs)
    return folder, planned, jobs


def plan_resumed_comparison(folder: Path, jobs: int | None, *changes: Source) -> tuple[Path, list[Planned], int]:
    """What is left of a comparison: all its runs; those that are finished end at once when they are executed.

    Raises:
        UserError: the folder holds no comparison, or a change is more than how long and where it computes.
    """
    path = folder / "compare.json"
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        nested, before = saved["config"], saved["jobs"]
    except FileNotFoundError:
        if (folder / "run.json").exists():
            raise UserError(f"{folder} holds one run; continue it with fedconcord run --resume {folder}") from None
        raise UserError(
            f"{folder} holds no comparison (no compare.json); give the folder that fedconcord compare wrote"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as broken:
        raise UserError(f"cannot read {path} ({broken}); restore it or start the comparison again") from None
    _allowed(changes, folder)
    config = settings_module.resolve_compare(settings_module.from_nested(nested, "compare.json"), *changes)
    jobs = _jobs(before if jobs is None else jobs, config)
    planned = [entry._replace(resume=True) for entry in _runs(config, folder)]
    for entry in planned:
        if (entry.folder / "run.json").exists():
            _longer(entry.config, entry.folder, results.read_description(entry.folder))
    _save_comparison(folder, config, jobs)
    return folder, planned, jobs


def _runs(config: Config, folder: Path) -> list[Planned]:
    return [
        Planned(one, folder / spec.folder_name(one.label or "") / f"seed-{one.seed}")
        for one in settings_module.runs(config)
    ]


def _save_comparison(folder: Path, config: Config, jobs: int) -> None:
    if settings_module.team_of(config).rank != 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / "compare.json", {"format": FORMAT, "config": config.as_dict(), "jobs": jobs})


def _new_folder(config: Config, what: str) -> Path:
    """The folder asked for, if it is free, else a numbered one below runs/; one choice for all processes."""
    return Path(settings_module.team_of(config).tell(lambda: str(_free_folder(config, what))))


def _free_folder(config: Config, what: str) -> Path:
    if config.out is None:
        data = settings_module.folder_name(config.data)
        return spec.free_folder(Path("runs"), f"{data}-{what}")
    folder = Path(config.out).expanduser()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"out {folder} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(
            f"the folder {folder} is not empty; continue what it holds with --resume {folder}, or give another --out"
        )
    return folder


def _allowed(changes: Sequence[Source], folder: Path) -> None:
    for source in changes:
        for key in source.values:
            if key not in ON_RESUME:
                raise UserError(
                    f"{key} ({source.origin[key]}) cannot change when {folder} is resumed, which keeps its settings; "
                    "leave it out, or start anew without --resume"
                )


def _longer(config: Config, folder: Path, saved: Mapping[str, Any]) -> None:
    done = int(saved.get("rounds_done", 0))
    if config.rounds < done:
        raise UserError(f"{folder} has done {done} rounds already, given rounds {config.rounds}; give {done} or more")


def _jobs(jobs: int, config: Config) -> int:
    if jobs < 1:
        raise UserError(f"jobs must be an integer >= 1, given {jobs}")
    if jobs > 1 and config.engine.name == "distributed":
        raise UserError(f"the distributed engine does one run after another, given jobs {jobs}; leave jobs at 1")
    return min(jobs, len(config.methods or [1]) * len(config.seeds or [1]))


def _with_threads(config: Config, jobs: int) -> Config:
    """Settings in which runs that go on at once share the cores; saved, as the number of threads can move last bits."""
    if jobs == 1 or config.engine.threads is not None:
        return config
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return config.model_copy(update={"engine": config.engine.model_copy(update={"threads": max(1, cores // jobs)})})


def _try_start(planned: Sequence[Planned], jobs: int) -> None:
    """Build the runs of the first seed once, so that what no run could do is said before anything is written."""
    for entry in planned:
        if entry.config.seed == planned[0].config.seed:
            with _threads(entry.config.engine.threads):
                job, _ = _prepared(entry.config, entry.folder)
                settings_module.advise(entry.config)
                resolved(job)  # a measured chunk is measured here, once and on a quiet machine
    if jobs > 1:  # the workers have their own
        settings_module.forget_problem()


def _prepared(config: Config, folder: Path) -> tuple[Job, list[str]]:
    """The job of a run and the names of the models that its method offers; refuses what the method refuses."""
    job = settings_module.build(config)
    try:
        # a prologue asks every client, which takes its time, and changes neither names nor refusals
        state = start(replace(job, algorithm=replace(job.algorithm, prologue=None)))
        settings_module.refuse(job, config)
        results.refuse_too_much(results.placed(job, folder), config.rounds)
    except UserError as error:
        raise UserError(f"{config.label}: {error}") from None
    return job, list(job.algorithm.models(state.server))


def notes(planned: Sequence[Planned]) -> list[str]:
    """What was guessed of data of the user's own, or left out of them."""
    return settings_module.notes(planned[0].config)


# -- execution -----------------------------------------------------------------------------------------------------


def execute(planned: Planned, on_row: Callable[[Row], None] | None = None) -> Finished:
    """Do one run, in this process.

    Raises:
        UserError: it cannot start.
    """
    config, folder = planned.config, planned.folder
    with _threads(config.engine.threads):
        job, models = _prepared(config, folder)
        info = {
            "method": config.method,
            "label": config.label,
            "seed": config.seed,
            "models": models,
            "clients": config.clients,
            "cohort": config.cohort,
            "data": config.data,
            "model": config.model or "none",
            "partition": ", ".join(filter(None, [config.partition, config.skew])) or "none",
            "target": config.eval.target,
            "ranking": settings_module.ranking(job.problem),
            "config": config.as_dict(),
        }
        results.execute(
            job,
            folder,
            rounds=config.rounds,
            info=info,
            eval_every=config.eval.every,
            checkpoint_every=config.checkpoint.every,
            resume=planned.resume and (folder / "run.json").exists(),
            on_row=on_row,
            wanted=settings_module.wanted(config, job.problem),
        )
    said = json.loads(job.engine.team.tell(lambda: json.dumps([str(folder), *finished(folder)[1:]])))
    return Finished(folder, *said[1:])


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def finished(folder: Path) -> Finished:
    """What the folder of a run says of it."""
    saved = results.read_description(folder)
    try:
        with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
            last = list(csv.DictReader(file))[-1:]
    except OSError:
        last = []
    skip = ("round", *results.COUNTERS)
    metrics = {name: float(value) for row in last for name, value in row.items() if name not in skip and value}
    return Finished(folder, saved["label"], saved["seed"], saved["status"], saved["rounds_done"], metrics)


def stopped(folder: Path) -> str | None:
    """Why the run of a folder stopped before its last round, or None."""
    found: str | None = results.read_description(folder).get("stopped")
    return found


def execute_all(planned: Sequence[Planned], jobs: int = 1, progress: Progress | None = None) -> list[Finished]:
    """Do all runs, `jobs` at once; finished ones are not repeated, failed ones do not stop the others.

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
    if jobs > 1 and len(todo) > 1:
        _Pool(planned, tell, ended).work(todo, min(jobs, len(todo)))
    else:
        _one_by_one(planned, todo, tell, ended)
    return [ended.get(number) or _not_done(entry, "interrupted") for number, entry in enumerate(planned)]


def _is_finished(entry: Planned) -> bool:
    if not entry.resume or not (entry.folder / "run.json").exists():
        return False
    saved = results.read_description(entry.folder)
    return saved["status"] == "diverged" or (
        saved["status"] == "complete" and (int(saved["rounds_done"]) >= entry.config.rounds or "stopped" in saved)
    )


def _not_done(entry: Planned, status: str, error: str | None = None) -> Finished:
    rounds = 0
    if (entry.folder / "run.json").exists():
        rounds = int(results.read_description(entry.folder)["rounds_done"])
    return Finished(entry.folder, entry.config.label or "", entry.config.seed or 0, status, rounds, {}, error)


def _attempt(entry: Planned, on_row: Callable[[Row], None]) -> Finished:
    """`execute`, where every failure but Ctrl-C becomes a result; that of a defect leaves error.txt in the folder.

    Not so with the distributed engine: of its processes one alone may fail, and then they are no longer in step.
    """
    if entry.config.engine.name == "distributed":
        return execute(entry, on_row)
    try:
        return execute(entry, on_row)
    except (UserError, OSError) as error:
        return _not_done(entry, "failed", spec.sentence(error))
    except KeyboardInterrupt:
        return _not_done(entry, "interrupted")
    except Exception as error:
        entry.folder.mkdir(parents=True, exist_ok=True)
        files.write_text(entry.folder / "error.txt", traceback.format_exc())
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return _not_done(entry, "failed", f"{text} (all of it in {entry.folder / 'error.txt'})")


def _one_by_one(planned: Sequence[Planned], todo: Sequence[int], tell: Progress, ended: dict[int, Finished]) -> None:
    for number in todo:
        tell(number, None)
        ended[number] = _attempt(planned[number], lambda row, number=number: tell(number, row))  # type: ignore[misc]
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
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from fedconcord.api import worker; worker()"],
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


class _Pool:
    """Runs in worker processes; tells about them in the calling thread."""

    def __init__(self, planned: Sequence[Planned], tell: Progress, ended: dict[int, Finished]) -> None:
        self.planned, self.tell, self.ended = planned, tell, ended
        self.events: queue.Queue[tuple[_Worker, dict[str, Any] | None]] = queue.Queue()
        self.workers: list[_Worker] = []
        self.todo: list[int] = []

    def work(self, todo: Sequence[int], jobs: int) -> None:
        self.todo = list(todo)
        told = 0
        with _counted_interrupts() as interrupts:
            try:
                self.workers = [_Worker(self.events) for _ in range(jobs)]
                while self.workers:
                    if interrupts[0] > told:
                        told = interrupts[0]
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
                worker.send({"stop": True})

    def _handle(self, worker: _Worker, event: dict[str, Any], stopping: bool) -> None:
        if "row" in event:
            assert worker.number is not None
            self.tell(worker.number, Row(*event["row"]))
            return
        if "finished" in event:
            assert worker.number is not None
            self._end(worker, Finished(Path(event["finished"][0]), *event["finished"][1:]))
        worker.ready = True
        if self.todo and not stopping:
            worker.number = self.todo.pop(0)
            entry = self.planned[worker.number]
            self.tell(worker.number, None)
            worker.send({"config": entry.config.as_dict(), "folder": str(entry.folder), "resume": entry.resume})
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
            self._end(worker, _not_done(entry, "interrupted") if stopping else _not_done(entry, "failed", why))
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
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tasks: queue.Queue[dict[str, Any]] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "stop" in message:
                _thread.interrupt_main()
            else:
                tasks.put(message)
        os._exit(0)  # the parent is done or dead; the folder is usable as it is

    def send(**event: Any) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    threading.Thread(target=listen, daemon=True).start()
    try:
        send(ready=True)
        while True:
            task = tasks.get()
            source = settings_module.from_nested(task["config"], "settings")
            entry = Planned(settings_module.resolve_run(source), Path(task["folder"]), task["resume"])
            result = _attempt(entry, lambda row: send(row=list(row)))
            send(finished=[str(result.folder), *result[1:]])
    except KeyboardInterrupt:
        out.close()
        os._exit(130)


# -- reports -------------------------------------------------------------------------------------------------------


def finish_comparison(folder: Path, runs: list[Finished]) -> Compared:
    """Write the report of a comparison, unless it was interrupted or no run has anything to show.

    Of several processes only rank 0 writes it.
    """
    done = [result for result in runs if result.status in ("complete", "diverged")]
    if not done or any(result.status == "interrupted" for result in runs) or distributed.rank() != 0:
        return Compared(folder, runs, None)
    return Compared(folder, runs, write_report([folder], folder))


def write_report(paths: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the report of all runs in or below some folders and return the path of its page.

    Args:
        out: where to write it; the first folder if not given.

    Raises:
        UserError: a path holds no run, or the runs do not belong together.
    """
    from fedconcord import report  # matplotlib: a run by itself draws nothing

    found = [Path(path) for path in paths]
    if not found:
        raise UserError("no result folder was given; give one or more folders that hold runs")
    page: Path = report.write_report(found, Path(out) if out is not None else found[0])
    return page
