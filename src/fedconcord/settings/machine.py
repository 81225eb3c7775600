"""What computes a run, from its settings: the engine, its processes and its device."""

from __future__ import annotations

import os

import torch

from fedconcord.basis.errors import UserError
from fedconcord.engines import Engine, Serial, Stacked, Wire, distributed
from fedconcord.engines.team import ALONE, Team
from fedconcord.local.graphs import Graphs
from fedconcord.remote.link import Faults
from fedconcord.settings.settings import Config


def engine_of(config: Config) -> Engine:
    """The engine of a run."""
    if config.engine.name == "wire":
        wire = config.wire
        faults = Faults(wire.loss, wire.duplicate, wire.delay, wire.corrupt, wire.restart, wire.server_restart)
        return Wire(faults, wire.tries, config.seed or 0)
    if config.engine.name == "serial":
        return Serial()
    choices = config.engine.chunk, config.engine.workers, team_of(config), config.engine.kernel
    return Stacked(*choices, graphs_of(config))


def device_of(config: Config) -> torch.device:
    """The device of a run.

    Raises:
        UserError: cuda is asked for and not there.
    """
    device, has_cuda = config.engine.device, torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise UserError("engine.device is cuda, and torch finds no CUDA device here; use cpu or auto")
    if not has_cuda or device == "cpu":
        return torch.device("cpu")
    if config.engine.name != "distributed":
        return torch.device("cuda")
    local, devices = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= devices:
        raise UserError(
            f"the distributed engine needs a CUDA device a process, found {devices}; start {devices}, or use cpu"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def team_of(config: Config) -> Team:
    """The processes that share the run."""
    if config.engine.name != "distributed":
        return ALONE
    return distributed.join(config.engine.timeout, device_of(config).type == "cuda")


def graphs_of(config: Config) -> Graphs | None:
    """Where the run's local steps are recorded.

    Raises:
        UserError: the run is not on a GPU.
    """
    if not config.engine.graphs:
        return None
    if device_of(config).type != "cuda":
        raise UserError("engine.graphs records CUDA graphs, and this run is on the CPU; leave it out, or use cuda")
    return Graphs()
