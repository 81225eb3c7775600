"""Replay reference trajectories: `python -m fedconcord.testing.oracles DIR [--engine serial|stacked]`.

DIR holds `cases.json` and `quadratic.npz`; arrays, schedules and hyper-parameters are all read from there. A line a
case: the largest error of any recorded array, relative to the largest entry of its row. Exit status 1 if a case that
is implemented is above 1e-9, 2 if the folder cannot be used.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedconcord.algorithms import METHODS
from fedconcord.core import Algorithm, Plan
from fedconcord.engines import Engine, Serial, Stacked
from fedconcord.errors import UserError
from fedconcord.heterogeneity import weights
from fedconcord.problems import Quadratic
from fedconcord.run import Job, State, advance, start
from fedconcord.server import momentum, with_server
from fedconcord.solvers import Solver

TOLERANCE = 1e-9
ENGINES: dict[str, Engine] = {"serial": Serial(), "stacked": Stacked()}

# hyper-parameters that belong to the local solver or the schedule; every other one is an option of the method
SHARED = {"schedule", "eta", "eta_local", "mom", "wd", "K", "vr", "kind"}
RENAMED = {"slr": "server_lr", "w": "weights", "sam": "radius", "lam": "alpha", "smom": "server_momentum"}


class NotImplementedCaseError(Exception):
    """The case needs a method or an option that the registry does not have."""


@dataclass(frozen=True)
class Recorded:
    """The plan of every round as recorded in arrays [R, ...]."""

    ids: np.ndarray  # [R, S]
    steps: np.ndarray  # [R, N]
    blocks: np.ndarray | None  # [R, N, K] or None for full gradients
    coins: np.ndarray  # [R]
    lr: float
    seed: int = 0

    @property
    def cohort(self) -> int:
        return int(self.ids.shape[1])

    def plan(self, round: int, algorithm: Algorithm, offsets: np.ndarray, sizes: np.ndarray) -> Plan:
        ids = self.ids[round]
        steps = self.steps[round, ids] if algorithm.steps is None else np.full(len(ids), algorithm.steps)
        p = weights.objective(algorithm.weights, sizes)[ids]
        once, share = np.ones(len(ids)), np.full(len(ids), len(ids) / len(sizes))
        blocks = batches = None
        if self.blocks is not None:
            blocks = [self.blocks[round, i, :k] for i, k in zip(ids, steps, strict=True)]
            batches = [block[:, None] for block in blocks]
        return Plan(
            round=round,
            ids=ids,
            steps=steps,
            w=weights.cohort(algorithm.weights, p, once, share),
            p=p,
            inclusion=share,
            batches=batches,
            lr=self.lr,
            seed=self.seed,
            coin=float(self.coins[round]),
            blocks=blocks,
        )

    def members(self, client: int, algorithm: Algorithm, offsets: np.ndarray) -> list[np.ndarray]:
        return [np.array([j]) for j in range(offsets[client + 1] - offsets[client])]


def method(case: str, given: Mapping[str, Any], blocks: int) -> Algorithm:
    """The algorithm of a case: the longest registered name that the case's name starts with, with its options.

    Args:
        blocks: M of the file.

    Raises:
        NotImplementedCaseError: no such method, or an option it does not have.
    """
    names = [name for name in METHODS if case == name or case.startswith(name + "_")]
    if not names:
        raise NotImplementedCaseError
    factory = METHODS[max(names, key=len)]
    options = {RENAMED.get(key, key): value for key, value in given.items() if key not in SHARED}
    known = set(inspect.signature(factory).parameters)
    if "eta_local" in given:  # FedPD's eta is its penalty; everywhere else it is the local step size
        options["eta"] = given["eta"]
    if "blocks" in known:
        options["blocks"] = blocks
    wrap = options.pop("server_momentum", None) if "server_momentum" not in known else None
    if options.pop("unbiased", False):
        options["weights"] = "unbiased"
    if options.get("d") == "see README":
        options["d"] = "fednova"
    if not set(options) <= known:
        raise NotImplementedCaseError
    algorithm = factory(**options)
    return algorithm if wrap is None else with_server(algorithm, momentum(wrap))


def job(case: str, given: Mapping[str, Any], arrays: Mapping[str, np.ndarray], engine: Engine) -> Job:
    """The job that replays a quadratic case."""
    algorithm = method(case, given, arrays["H"].shape[1])
    H, b, x0 = (torch.as_tensor(arrays[name]) for name in ("H", "b", "x0"))
    problem = Quadratic(H, b, arrays["sizes"], x0)
    full = given["schedule"] == "full"
    steps = arrays["full_steps" if full else "part_steps"]
    rounds, n = steps.shape
    if "K" in given:
        steps = np.full_like(steps, given["K"])
    schedule = Recorded(
        ids=np.tile(np.arange(n), (rounds, 1)) if full else arrays["part_ids"],
        steps=steps,
        # full gradients, but for the methods that are about blocks or mini-batches
        blocks=arrays["full_blocks" if full else "part_blocks"] if algorithm.blocks or algorithm.prelude else None,
        coins=arrays["full_coins"],
        lr=given.get("eta_local", given["eta"]),
    )
    return Job(problem, algorithm, schedule, Solver(given.get("mom", 0.0), given.get("wd", 0.0)), engine)


def recorded_state(name: str, state: State, given: Mapping[str, Any], n: int) -> np.ndarray | None:
    """A final variate under its name in the file, or None if this state has no such thing."""
    rows = state.store.gather(np.arange(n))
    if name == "c":
        return np.asarray(state.server.c)
    if name == "ci":
        return np.asarray(rows.c)
    if name == "duals":
        return np.asarray(given["rho"] * (state.server.x - state.server.mean + rows.s))
    return None


def replay(case: str, given: Mapping[str, Any], arrays: Mapping[str, np.ndarray], engine: Engine) -> float:
    """The largest relative error of a case over every array recorded for it."""
    this = job(case, given, arrays, engine)
    wanted = {key.rsplit("/", 1)[1]: value for key, value in arrays.items() if key.startswith(f"traj/{case}/")}
    state = start(this)
    path = [state]
    for _ in range(len(wanted["x"]) - 1):
        state = advance(this, state)
        path.append(state)
    worst = 0.0
    for name, value in wanted.items():
        if name == "x":
            got = np.stack([np.asarray(s.server.x) for s in path])
        elif name == "bar":
            got = np.stack([np.asarray(s.server.mean) for s in path])
        else:
            final = recorded_state(name, state, given, len(arrays["sizes"]))
            if final is None:
                raise NotImplementedCaseError
            got = final
        scale = np.abs(value).max(-1, keepdims=True)
        worst = max(worst, float((np.abs(got - value) / np.where(scale > 0, scale, 1.0)).max()))
    return worst if np.isfinite(worst) else float("inf")


def load(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """`cases.json` and `quadratic.npz` of a folder.

    Raises:
        UserError: a file is missing or broken.
    """
    for name in ("cases.json", "quadratic.npz"):
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}; give a folder with cases.json and quadratic.npz")
    try:
        cases = json.loads((folder / "cases.json").read_text())
        with np.load(folder / "quadratic.npz", allow_pickle=False) as file:
            return cases, dict(file)
    except (ValueError, OSError, zipfile.BadZipFile) as broken:
        raise UserError(f"cannot read the cases of {folder}: {broken}; restore the file") from broken


def main(argv: list[str] | None = None) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fedconcord.testing.oracles", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="stacked")
    args = parser.parse_args(argv)
    try:
        cases, arrays = load(args.folder)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    passed = failed = missing = 0
    for case, given in cases["quadratic"].items():
        try:
            worst = replay(case, given, arrays, ENGINES[args.engine])
        except NotImplementedCaseError:
            missing += 1
            print(f"{case:28s} not implemented")
            continue
        good = worst <= TOLERANCE
        passed, failed = passed + good, failed + (not good)
        print(f"{case:28s} {worst:9.2e}  {'ok' if good else 'FAILED'}")
    for other in sorted(set(cases) - {"quadratic"}):
        missing += 1
        print(f"{other:28s} not implemented")
    print(f"{passed} passed, {failed} failed, {missing} not implemented ({args.engine} engine, {TOLERANCE:g} relative)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
