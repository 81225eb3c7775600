"""Flipped bits and cut ends in every file that a command leaves: refused in a sentence, or harmless.

Harmless is what changes nothing that is shown afterwards: the runs as `report` reads them (every number, setting and
client's figure), the predictions, and the tables and the model of the run, comparison or search that is resumed. What
is computed from these files and read by no command (pages, figures, tables of a report, TOML files of a search, which
are for editing) is left out, as is what a tracker keeps.

    PYTHONPATH=src python tests/hostile/damage.py --n 1000 --seed 0
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedconcord
from fedconcord.study import search as tuning
from fedconcord.study.runs import plan, records
from fedconcord.study.runs.events import Watch
from fedconcord.study.runs.pool import carry_out
from fedconcord.study.settings.sources import from_nested
from fedconcord.study.statistics import load
from fedconcord.support import readers
from fedconcord.support.errors import UserError
from training import execute_all

CUT = 0.2  # share of cases in which the file loses its end
RUN: Mapping[str, Any] = {"data": "synthetic(clients=4)", "model": "logreg", "cohort": 2, "batch_size": 200}
MORE = {"engine.store": "disk", "validation": 0.2, "eval.clients_every": 2, "checkpoint.every": 0.0}
SEARCH: Mapping[str, Any] = {"data": "quadratics(dim=4)", "clients": 6, "cohort": 3, "rounds": 40}
READ = ("*.json", "*.csv", "*.safetensors", "*.bin", "*.journal")
UNREAD = ("tables", "figures")

Shown = Mapping[str, object]  # command -> what it shows; a `Refusal` where it refuses


class Refusal(NamedTuple):
    """A sentence."""

    said: str


def make_run(folder: Path) -> None:
    """A run with every file that a run can have."""
    fedconcord.run("scaffold", **RUN, rounds=6, settings=MORE, out=folder)
    np.save(folder.parent / "in.npy", np.random.default_rng(0).normal(size=(5, 60)).astype(np.float32))


def show_run(folder: Path) -> Shown:
    """Everything that is shown of the run; it is resumed last, as that changes the folder."""
    out = folder.parent / "out.csv"
    return {
        "report": told(lambda: _loaded(folder)),
        "summary": told(lambda: (records.finished(folder)._replace(folder=Path()), list(records.sentences(folder)))),
        "predict": told(lambda: (fedconcord.predict(folder, folder.parent / "in.npy", out), out.read_bytes())[1]),
        "resume": told(lambda: (fedconcord.run(resume=folder, rounds=9), _left(folder))[1]),
    }


def make_comparison(folder: Path) -> None:
    """A comparison without its report, whose drawing takes seconds."""
    given = {**SEARCH, "rounds": 6, "methods": ["fedavg", "scaffold"], "seeds": [0], "out": str(folder)}
    _, planned, jobs = plan.plan_comparison(None, from_nested(given, "hostile"))
    execute_all(planned, jobs)


def show_comparison(folder: Path) -> Shown:
    """What `report` reads, and what comes of its runs."""
    return {"report": told(lambda: _loaded(folder)), "resume": told(lambda: _resumed(folder))}


def _resumed(folder: Path) -> object:
    _, planned, jobs = plan.plan_resumed_comparison(folder, None, from_nested({"rounds": 9}, "hostile"))
    found = execute_all(planned, jobs)
    if failed := [one.error for one in found if one.error is not None]:
        raise UserError(failed[0])
    return _left(folder)


def make_search(folder: Path) -> None:
    """A search in its middle: the trials are there, the final comparison is not."""
    asked = tuning.SearchSpec(budget=4, search=[], grid=None, final_seeds=[7])
    given = {**SEARCH, "methods": ["feddyn"], "seeds": [0], "out": str(folder)}
    _search(tuning.plan_tuning(asked, from_nested(given, "hostile")))


def show_search(folder: Path) -> Shown:
    """What the search finds when it is resumed."""
    return {"resume": told(lambda: _search(tuning.plan_resumed_tuning(folder, tuning.SearchSpec())))}


def _search(planned: tuning.Tuning) -> object:
    from fedconcord.study.search.search import search

    return repr(carry_out(search(planned, lambda line: None), 1, Watch()))


def told(command: Callable[[], object]) -> object:
    """What a command shows, or its sentence; any other exception is a defect and is not caught."""
    try:
        return command()
    except UserError as refused:
        return Refusal(str(refused))


def _loaded(folder: Path) -> object:
    """The runs in full, with the figures of their clients."""
    found = []
    for run in load.load_runs([folder]):
        series = {name: values.tobytes() for name, values in run.metrics.items()}
        arrays = [None if a is None else a.tobytes() for a in (run.round, run.bytes, run.gradient_steps, run.counts)]
        files = {name: run.folder / name for name in ("clients.csv", "fairness.csv")}
        clients = {name: readers.columns(path) for name, path in files.items() if path.exists()}
        found.append((run.name, repr(run.head), series, arrays, run.seconds.tobytes(), run.classes, clients))
    return found


def _left(folder: Path) -> dict[str, bytes]:
    names = ("metrics.csv", "model.safetensors", "clients.csv", "fairness.csv")
    return {str(path.relative_to(folder)): path.read_bytes() for name in names for path in folder.rglob(name)}


KINDS: Mapping[str, tuple[Callable[[Path], None], Callable[[Path], Shown]]] = {
    "run": (make_run, show_run),
    "compare": (make_comparison, show_comparison),
    "tune": (make_search, show_search),
}


class Counts(NamedTuple):
    """What came of the damage of one kind of file."""

    refused: int
    harmless: int


def campaign(kind: str, number: int, seed: int, scratch: Path) -> tuple[dict[str, Counts], list[str]]:
    """(file name -> counts, failures) of so many damaged folders of a kind."""
    make, show = KINDS[kind]
    home = scratch / kind
    make(home / "folder")
    files = sorted(path for name in READ for path in (home / "folder").rglob(name))
    files = [path.relative_to(home / "folder") for path in files if not set(path.parts) & set(UNREAD)]
    shutil.copytree(home, scratch / "whole")
    wanted = show(scratch / "whole" / "folder")
    refused, harmless, failures = Counter[str](), Counter[str](), list[str]()
    for k in range(number):
        draw = random.Random(f"{kind}/{seed}/{k}")
        copy = scratch / "copy"
        shutil.copytree(home, copy)
        of = sorted({path.name for path in files})
        name = draw.choice([path for path in files if path.name == of[k % len(of)]])
        how = damaged(copy / "folder" / name, draw)
        try:
            found = show(copy / "folder")
        except Exception as error:
            failures.append(f"{kind}/{seed}/{k}: {name}, {how}: {type(error).__name__}: {error}")
        else:
            wrong = [c for c, value in found.items() if not isinstance(value, Refusal) and value != wanted[c]]
            if wrong:
                failures.append(f"{kind}/{seed}/{k}: {name}, {how}: {', '.join(wrong)} shows something else")
            elif any(isinstance(value, Refusal) for value in found.values()):
                refused[name.name] += 1
            else:
                harmless[name.name] += 1
        shutil.rmtree(copy)
    names = dict.fromkeys(path.name for path in files)
    return {name: Counts(refused[name], harmless[name]) for name in names}, failures


def damaged(path: Path, draw: random.Random) -> str:
    """Flip a bit of the file, or cut its end off, and say which."""
    content = bytearray(path.read_bytes())
    if draw.random() < CUT:
        length = draw.randrange(len(content))
        path.write_bytes(content[:length])
        return f"cut to {length} of {len(content)} bytes"
    place, bit = draw.randrange(len(content)), draw.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place} flipped"


def main() -> int:
    """Print a row a file name, and what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1000, help="damaged folders, half of them of runs")
    parser.add_argument("--seed", type=int, default=0)
    given, bad = parser.parse_args(), 0
    for kind, share in (("run", 2), ("compare", 4), ("tune", 4)):
        with tempfile.TemporaryDirectory() as scratch:
            counts, failures = campaign(kind, given.n // share, given.seed, Path(scratch))
        for name, count in counts.items():
            print(f"| {kind} | {name} | {count.refused} | {count.harmless} |", flush=True)
        for failure in failures:
            print(failure, flush=True)
        bad += len(failures)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
