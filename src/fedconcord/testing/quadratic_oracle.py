"""Replays `quadratic.npz`: every method on deterministic quadratics (the README beside the file says what is in it)."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from fedconcord.execution.engines import Engine
from fedconcord.execution.job import Job, State
from fedconcord.federation.objectives import Quadratic
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm
from fedconcord.method.step.solver import Solver
from fedconcord.method.wrappers.server import momentum, with_server
from fedconcord.support.errors import UserError
from fedconcord.testing.replay import MISSING, NotImplementedCaseError, Recorded, built, error, named, states

# hyper-parameters that belong to the local solver or the schedule; every other one is an option of the method
SHARED = {"schedule", "eta", "eta_local", "mom", "wd", "K", "vr", "kind"}
FORMS = {("own", "paper"): "paper", ("server", "paper"): "paper_from_theta", ("server", "repo"): "released"}
RENAMED = {"slr": "server_lr", "w": "weights", "sam": "radius", "lam": "alpha", "smom": "server_momentum"}


def method(case: str, settings: Mapping[str, Any], blocks: int) -> Algorithm:
    """The algorithm of a case: the longest registered name that the case's name starts with, with its options.

    Args:
        blocks: M of the file.

    Raises:
        NotImplementedCaseError: no such method, or an option it does not have.
    """
    factory = named(case)
    options = {RENAMED.get(key, key): value for key, value in settings.items() if key not in SHARED}
    names = set(inspect.signature(factory).parameters)
    if "eta_local" in settings:  # FedPD's eta is its penalty; everywhere else it is the local step size
        options["eta"] = settings["eta"]
    if "blocks" in names:
        options["blocks"] = blocks
    wrap = options.pop("server_momentum", None) if "server_momentum" not in names else None
    if options.pop("unbiased", False):
        options["weights"] = "unbiased"
    if options.get("d") == "see README":
        options["d"] = "fednova"
    if factory is METHODS["fedadmm"]:
        form = FORMS.get((options.pop("start", "own"), options.pop("message", "paper")))
        if form is None:
            raise NotImplementedCaseError
        options["form"] = form
        if isinstance(step := options.get("server_lr"), float):  # as a schedule, which is not refused where 1 is
            options["server_lr"] = [[0, step]]
    algorithm = built(factory, options)
    return algorithm if wrap is None else with_server(algorithm, momentum(wrap))


def job(case: str, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray], engine: Engine) -> Job:
    """The job that replays a case."""
    algorithm = method(case, settings, arrays["H"].shape[1])
    H, b, x0 = (torch.as_tensor(arrays[name]) for name in ("H", "b", "x0"))
    problem = Quadratic(H, b, arrays["sizes"], x0)
    full = settings["schedule"] == "full"
    steps = arrays["full_steps" if full else "part_steps"]
    rounds, n = steps.shape
    if "K" in settings:
        steps = np.full_like(steps, settings["K"])
    schedule = Recorded(
        ids=np.tile(np.arange(n), (rounds, 1)) if full else arrays["part_ids"],
        steps=steps,
        # full gradients, but for the methods that are about blocks or mini-batches
        blocks=arrays["full_blocks" if full else "part_blocks"]
        if algorithm.step.blocks or algorithm.phases.prelude
        else None,
        coins=arrays["full_coins"],
        lr=settings.get("eta_local", settings["eta"]),
    )
    return Job(problem, algorithm, schedule, Solver(settings.get("mom", 0.0), settings.get("wd", 0.0)), engine)


def recorded_state(name: str, state: State, settings: Mapping[str, Any], n: int) -> np.ndarray:
    """A final variate under its name in the file.

    Raises:
        NotImplementedCaseError: the state has no such thing.
    """
    rows = state.store.gather(np.arange(n))
    if name == "c":
        return np.asarray(state.server.c)
    if name == "ci":
        return np.asarray(rows.c)
    if name == "duals":
        return np.asarray(settings["rho"] * (state.server.x - state.server.mean + rows.s))
    raise NotImplementedCaseError


def largest_error(case: str, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray], engine: Engine) -> float:
    """The largest relative error of a case over every array recorded for it."""
    this = job(case, settings, arrays, engine)
    recorded = {key.rsplit("/", 1)[1]: value for key, value in arrays.items() if key.startswith(f"traj/{case}/")}
    path = states(this, len(recorded["x"]) - 1)
    worst = 0.0
    for name, want in recorded.items():
        if name == "x":
            got = np.stack([np.asarray(s.server.x) for s in path])
        elif name == "bar":
            got = np.stack([np.asarray(s.server.mean) for s in path])
        else:
            got = recorded_state(name, path[-1], settings, len(arrays["sizes"]))
        worst = max(worst, error(got, want))
    return worst


def replay(
    arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any], engine: Engine
) -> Iterator[tuple[str, float]]:
    """(case, largest relative error) of every case in the section; see `replay`."""
    for case, options in settings.items():
        try:
            yield case, largest_error(case, options, arrays, engine)
        except NotImplementedCaseError:
            yield case, MISSING
        except UserError as refusal:
            print(f"{case}: {refusal}", file=sys.stderr)
            yield case, math.inf
