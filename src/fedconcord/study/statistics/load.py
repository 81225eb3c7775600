"""Result folders read back: run.json, metrics.csv, timing.csv and partition.csv of every run below some paths."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from fedconcord.support.errors import UserError
from fedconcord.support.grammar import flatten
from fedconcord.support.readers import read_csv, read_json

Array = NDArray[np.float64]
FORMAT = 1
COSTS = ("bytes_up", "bytes_down", "gradient_steps")
JOB_FIELDS = ("partition", "model", "clients", "cohort")  # what a comparison holds fixed; `data` may never differ
UNPAIRED_KEYS = frozenset({"seed", "seeds", "out", "resume", "label"})  # differ between runs of one method by nature
# how long and where a run computes: the curves of such runs are of one method still. Not these of `engine`:
NUMBERS = frozenset({"engine.dtype", "engine.precision", "engine.rows"})
ANYWHERE = frozenset({"rounds", "data_dir", "eval.target", "eval.stop_at_target"})


@dataclass(frozen=True)
class Head:
    """What run.json says of a run."""

    format: int
    method: str
    label: str
    seed: int
    status: Literal["complete", "interrupted", "running", "diverged", "failed"]
    rounds: int
    rounds_done: int
    models: tuple[str, ...]  # the first has the plain columns: that which the run answers with
    dim: int
    clients: int
    cohort: int
    data: str
    model: str
    partition: str
    target: float | None = None
    ranking: tuple[dict[str, Any], ...] = ()  # {"column", "higher"} of the test metrics, the one that ranks first
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    stopped: str | None = None  # why it ended before its last round
    clients_judged: dict[str, Any] | None = None  # how the final model serves the clients
    baseline: Literal["local", "pooled"] | None = None  # what methods are judged against, and not ranked among them
    privacy: dict[str, Any] | None = None  # what a private run spent
    tree: tuple[dict[str, int], ...] = ()  # "bytes_down" and "bytes_up" between each tier of servers and what is above
    objective: Literal["samples", "clients"] | None = None  # what counts alike in what is minimised
    majority: tuple[str, float] | None = None  # a class with half of the training samples or more, and its share
    own: bool = False  # the method answers with a model a client


def is_chosen(head: Head) -> bool:
    """Whether the label is a name that somebody gave, and not the method's text."""
    return head.label != head.method and not head.label.startswith(f"{head.method}(")


@dataclass(frozen=True, eq=False)
class Run:
    """One run: its head and its series. T evaluated rounds (round 0 is the start), N clients, C classes."""

    folder: Path
    name: str  # the method as the report calls it: its label and, where runs differ in more, that too
    head: Head
    round: Array  # [T] strictly increasing
    metrics: dict[str, Array]  # evaluation column -> [T]; may hold NaN and inf
    bytes: Array  # [T] up and down together, cumulative
    gradient_steps: Array  # [T] cumulative over all clients
    simulated_seconds: Array | None  # [T] cumulative; None without a model of devices
    seconds: Array  # [rounds trained] training time of each round, in seconds
    counts: Array | None  # [N, C] samples of each class that a client holds
    classes: tuple[str, ...]  # C names

    @property
    def diverged(self) -> bool:
        """The run says so, or its last evaluation of the first of its models is not finite.

        A column without any number is a metric that its samples do not define, as AUROC of one class: not a number
        that was lost.
        """
        last = [v[-1] for k, v in self.metrics.items() if v.size and ":" not in k and not np.isnan(v).all()]
        return self.head.status == "diverged" or not bool(np.all(np.isfinite(last)))

    def axis(self, name: str) -> Array:
        """[T] the cost so far: 'round', 'bytes', 'gradient_steps' or 'simulated_seconds' (zeros if none are known)."""
        if name == "simulated_seconds":
            return np.zeros_like(self.round) if self.simulated_seconds is None else self.simulated_seconds
        return {"round": self.round, "bytes": self.bytes, "gradient_steps": self.gradient_steps}[name]


_HEAD = TypeAdapter(Head)


def _head(path: Path) -> Head:
    raw = read_json(path, "run that method again or remove its folder")
    if raw.get("format") != FORMAT:
        raise UserError(
            f"{path}: its format is {raw.get('format')!r}, this version of fedconcord reads format {FORMAT}"
        )
    keys = {f.name for f in fields(Head)}  # keys that a later version adds are left alone
    try:
        return _HEAD.validate_python({k: v for k, v in raw.items() if k in keys})
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        more = "" if first["type"] == "missing" else f", given {first['input']!r}"
        raise UserError(f"{path}: {where}: {first['msg'].lower()}{more}") from None


def _table(path: Path, *needed: str) -> dict[str, Array]:
    """Column -> [rows] float64 of a CSV of numbers, the needed ones among them; an empty cell is NaN."""
    header, body = read_csv(path)
    missing = [column for column in needed if column not in header]
    if missing:
        raise UserError(f"{path}: has no column {missing[0]!r}; columns: {', '.join(header)}")
    table = np.full((len(body), len(header)), np.nan)
    for i, row in enumerate(body):
        for j, cell in enumerate(row):
            if cell:
                try:
                    table[i, j] = float(cell)
                except ValueError:
                    where = f"row {i + 2}, column {header[j]!r}"
                    raise UserError(f"{path}: {where}: {cell!r} is not a number") from None
    return {name: table[:, j] for j, name in enumerate(header)}


def _metrics(path: Path, is_complete: bool) -> dict[str, Array]:
    table = _table(path, "round", *COSTS)
    if not np.all(np.isfinite(table["round"])) or np.any(np.diff(table["round"]) <= 0):
        raise UserError(f"{path}: the column 'round' must hold increasing numbers")
    if len(table) == 1 + len(COSTS) and (is_complete or len(table["round"])):  # else nothing was evaluated yet
        raise UserError(f"{path}: holds no evaluation column, only {', '.join(table)}")
    return table


def _counts(path: Path) -> tuple[Array, tuple[str, ...]]:
    table = _table(path)
    if "client" not in table or len(table) < 2:
        raise UserError(f"{path}: the header must be 'client' and one column a class, it is {', '.join(table)!r}")
    classes = tuple(c for c in table if c != "client")
    counts = np.stack([table[c] for c in classes], axis=1)
    if not np.all(np.isfinite(counts)) or np.any(counts < 0):
        raise UserError(f"{path}: every count must be a number >= 0")
    return counts, classes


def _run(folder: Path) -> Run:
    head = _head(folder / "run.json")
    path = folder / "metrics.csv"
    if path.exists():
        table = _metrics(path, head.status == "complete")
    elif head.status == "complete":
        raise UserError(f"{path}: is missing although the run is complete; restore it or remove the folder")
    else:  # started, nothing evaluated yet
        table = {c: np.empty(0) for c in ("round", *COSTS)}
    timing, part = folder / "timing.csv", folder / "partition.csv"
    counts, classes = _counts(part) if part.exists() else (None, ())
    return Run(
        folder=folder,
        name=head.label,
        head=head,
        round=table["round"],
        metrics={k: v for k, v in table.items() if k not in ("round", *COSTS, "simulated_seconds", "epsilon", "clip")},
        bytes=table["bytes_up"] + table["bytes_down"],
        gradient_steps=table["gradient_steps"],
        simulated_seconds=table.get("simulated_seconds"),
        seconds=_table(timing, "seconds")["seconds"] if timing.exists() else np.empty(0),
        counts=counts,
        classes=classes,
    )


def show(value: Any) -> str:
    """A configuration value as a person reads it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def varying(runs: Iterable[Run]) -> list[str]:
    """The configuration keys in which the runs differ by more than their seed, in the order of the files."""
    flats = [flatten(r.head.config) for r in runs]
    keys = dict.fromkeys(k for f in flats for k in f if not UNPAIRED_KEYS & set(k.split(".")))
    return [k for k in keys if len({show(f.get(k)) for f in flats}) > 1]


def _apart(runs: Iterable[Run]) -> list[str]:
    """The keys among `varying` that make runs of one label different methods: they are no seeds of one."""
    return [
        k for k in varying(runs) if k in NUMBERS or not (k in ANYWHERE or k.split(".")[0] in ("engine", "checkpoint"))
    ]


def _named(runs: list[Run], homes: Mapping[Path, str]) -> list[Run]:
    """The runs with names that tell apart what differs: the job if it varies, and settings under one label.

    A precision of gradients other than full is in the name in any case; so is, where runs of one name and seed are in
    several of the folders that were given, the one that a run comes from (`homes`).
    """
    with_job = []
    mixed = [f for f in JOB_FIELDS if len({getattr(r.head, f) for r in runs}) > 1]
    words = {"clients": "{} clients", "cohort": "{} a round"}
    for r in runs:
        extra = [words.get(f, "{}").format(getattr(r.head, f)) for f in mixed]
        precision = flatten(r.head.config).get("engine.precision", "full")
        extra += [] if precision == "full" else [precision]  # said always: its figures are not those of full
        with_job.append(replace(r, name=" · ".join([r.head.label, *extra])))
    groups: dict[str, list[Run]] = defaultdict(list)
    for r in with_job:
        groups[r.name].append(r)
    result = []
    for r in with_job:
        group = groups[r.name]
        seeds_of_one = len({g.head.seed for g in group}) == len(group)
        apart = _apart(group) if seeds_of_one else varying(group)
        flat = flatten(r.head.config)
        extra = [f"{k.rsplit('.', 1)[-1]}={show(flat[k]) if k in flat else 'none'}" for k in apart]
        result.append(replace(r, name=" · ".join([r.name, *extra])))
    there = Counter((r.name, r.head.seed, homes[r.folder]) for r in result)
    of = Counter((name, seed) for name, seed, _ in there)
    apart_in = {name for (name, _), count in of.items() if count > 1}
    result = [replace(r, name=f"{r.name} · {homes[r.folder]}") if r.name in apart_in else r for r in result]
    by_name: dict[tuple[str, int], Run] = {}
    for r in result:
        twin = by_name.setdefault((r.name, r.head.seed), r)
        if twin is not r:
            raise UserError(
                f"{r.name!r} with seed {r.head.seed} is there twice, in {twin.folder} and {r.folder}; "
                "give the report one of them"
            )
    return result


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of `load_data_sets`, which must be of one data set; raises UserError if they are not."""
    sets = load_data_sets(paths)
    if len(sets) > 1:
        raise UserError(f"the runs are of different data ({', '.join(sorted(sets))}); give those of one data set")
    return next(iter(sets.values()))


def load_data_sets(paths: Sequence[Path]) -> dict[str, list[Run]]:
    """Data set -> every run of it in or below the paths, in the order of the paths and of the folders' names.

    Runs that are still going, were interrupted or diverged are loaded like others; see `Run.head.status`. Their folders
    are below the paths as these were given.
    Raises UserError if a path is missing or holds no run.json, a file is broken (the sentence names it), or the same
    method and seed is there twice in one of the paths.
    """
    if not paths:
        raise UserError("no result folder was given; give one or more folders that hold runs")
    titles = short_names([str(path) for path in paths])
    homes: dict[Path, tuple[Path, str]] = {}  # of a run by its real folder: as it was given, and below which path
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"there is no folder {path}")
        if path.is_file() and path.name != "run.json":
            raise UserError(f"{path} is a file; give the folder of a run or of a comparison")
        if (path / "tune.json").exists():
            raise UserError(f"{path} holds a search, whose trials are no comparison; give {path / 'final'}")
        files = [path] if path.is_file() else sorted(path.rglob("run.json"))
        if not files:
            raise UserError(f"there is no run.json in or below {path}; give the folder of a run or of a comparison")
        for file in files:
            homes.setdefault(file.parent.resolve(), (file.parent, titles[str(path)]))
    sets: dict[str, list[Run]] = defaultdict(list)
    for folder, _ in homes.values():
        run = _run(folder)
        sets[run.head.data].append(run)
    return {data: _named(runs, dict(homes.values())) for data, runs in sets.items()}


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Path -> what of it tells it from the others: without the folders that all of them lie in."""
    whole = [os.path.abspath(path) for path in paths]
    common = os.path.commonpath([os.path.dirname(path) for path in whole])
    return {path: os.path.relpath(full, common) for path, full in zip(paths, whole, strict=True)}


def data_name(data: str) -> str:
    """A data set by itself as titles name it: a file of the user's own without its folder."""
    return data_names([data])[data]


def data_names(data: Sequence[str]) -> dict[str, str]:
    """Data set -> its name in titles: files of the user's own by `short_names`, others as they are."""
    paths = [name for name in data if os.path.isabs(name)]
    return {name: name for name in data} | (short_names(paths) if paths else {})
