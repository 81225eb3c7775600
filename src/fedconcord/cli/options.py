"""Options that commands share, and the settings that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedconcord.errors import UserError, closest

if TYPE_CHECKING:  # torch takes seconds to import, and --help needs none of it
    from fedconcord.config import Source

TEXTS = frozenset(  # options that are text as they stand; others may be numbers
    ("method", "methods", "seeds", "data", "data_dir", "partition", "model", "out", "device", "engine", "dtype")
) | {"sampling", "oracle", "server", "upload", "label_column", "client_column", "target_kind", "test_data"}


def option(help: str, metavar: str, *names: str, hidden: bool = False) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, hidden=hidden, show_default=False)


Data = Annotated[
    str | None, option("Data set (`list data`), or a file, a folder, package.module:factory. [digits]", "DATA")
]
LabelColumn = Annotated[str | None, option("Column of your data to be learnt, or several.", "NAME")]
ClientColumn = Annotated[str | None, option("Column of your data that says the client.", "NAME")]
TargetKind = Annotated[str | None, option("class, number or labels. [guessed]", "KIND")]
TestData = Annotated[str | None, option("Your test samples. [a fifth of each client's]", "PATH")]
DataDir = Annotated[str | None, option("Folder of data files. [$FEDCONCORD_DATA, else the user's cache]", "DIR")]
Partition = Annotated[str | None, option("Who holds which samples, as in shards(2). [dirichlet(0.1)]", "NAME")]
Model = Annotated[str | None, option("Model. [2nn]", "NAME")]
Clients = Annotated[str | None, option("Clients in all. [50]", "N")]
CohortOption = Annotated[str | None, option("Clients in a round. [10]", "N")]
Rounds = Annotated[str | None, option("Communication rounds. [100]", "N")]
Epochs = Annotated[str | None, option("Local epochs: 3, or uniform(1,5). [1]", "WORK")]
Steps = Annotated[str | None, option("Local steps, instead of epochs.", "WORK")]
BatchSize = Annotated[str | None, option("Samples a local step, or full. [10]", "N")]
LR = Annotated[str | None, option("Local step size. [0.1]", "NUMBER", "--lr")]
Momentum = Annotated[str | None, option("Momentum of local steps. [0]", "NUMBER")]
Oracle = Annotated[str | None, option("Gradient of local steps: full, sam(0.1) or svrg. [minibatch]", "NAME")]
Sampling = Annotated[str | None, option("Who takes part, as in bernoulli(0.1). [uniform]", "NAME")]
Server = Annotated[str | None, option("Server optimiser, as in momentum(0.9). [none]", "NAME")]
Upload = Annotated[str | None, option("Compression of messages, as in quantise(8). [none]", "NAME")]
EvalEvery = Annotated[str | None, option("Rounds between evaluations. [1]", "N")]
CheckpointEvery = Annotated[str | None, option("Seconds between checkpoints. [30]", "SECONDS")]
Target = Annotated[str | None, option("Test accuracy whose first round is reported, as in 0.9.", "NUMBER")]
Out = Annotated[str | None, option("Folder of the results. [runs/<data>-<method>-<n>]", "DIR")]
Resume = Annotated[str | None, option("Continue this folder, with its settings.", "DIR")]
Device = Annotated[str | None, option("cpu, cuda or auto. [cpu]", "NAME")]
EngineOption = Annotated[str | None, option("stacked, serial or, under torchrun, distributed. [stacked]", "NAME")]
Dtype = Annotated[str | None, option("float32 or float64. [float32]", "NAME")]
ConfigFile = Annotated[str | None, option("Settings from a TOML file; `list settings` shows every key.", "FILE")]
Set = Annotated[list[str] | None, option("Any setting, as in --set local.clip=5; repeatable.", "KEY=VALUE")]
Method = Annotated[str | None, option("The method, with parameters: fedprox(mu=0.1). [fedavg]", "NAME")]
Methods = Annotated[str | None, option("Methods, as in fedavg,fedprox(mu=0.1),scaffold(local.lr=0.05).", "LIST")]
Seed = Annotated[str | None, option("Seed of all randomness. [0]", "N")]
Seeds = Annotated[str | None, option("Seeds, as in 0,1,2. [0]", "LIST")]
OneMethod = Annotated[str | None, option("", "NAME", "--method", hidden=True)]
ManyMethods = Annotated[str | None, option("", "LIST", "--methods", hidden=True)]
OneSeed = Annotated[str | None, option("", "N", "--seed", hidden=True)]
ManySeeds = Annotated[str | None, option("", "LIST", "--seeds", hidden=True)]
Jobs = Annotated[str | None, option("Runs at once, each in its own process. [1]", "N")]


def sources_of(given: Mapping[str, Any]) -> list[Source]:
    """The settings file and the options of a command, by its local variables."""
    from fedconcord import config, spec
    from fedconcord.api import NAMED

    options = {
        NAMED.get(name, name): (
            f"--{name.replace('_', '-')}",
            spec.scalar(value) if isinstance(value, str) and name not in TEXTS else value,
        )
        for name, value in given.items()
        if name not in ("config", "set", "resume", "jobs")
    }
    file = [] if given["config"] is None else [config.from_file(Path(given["config"]))]
    return [*file, config.from_options(options, given["set"] or ())]


def check_choice(option: str, given: str, choices: Sequence[str]) -> None:
    if given not in choices:
        raise UserError(f"{option} must be one of {', '.join(choices)}, given {given!r}{closest(given, choices)}")


def count(option: str, given: str) -> int:
    if not given.strip().isdecimal() or int(given) < 1:
        raise UserError(f"{option} must be an integer >= 1, given {given!r}")
    return int(given)
