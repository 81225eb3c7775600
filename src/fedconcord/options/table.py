"""The options of the command and the arguments of `run` and `compare`: written, do not edit.

The schema is `settings.settings` and `settings.sections`; `python -m fedconcord.settings.options` writes this from it.
"""

# ruff: noqa: E501
# fmt: off

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from fedconcord.options.option import Option

OPTIONS = (
    Option("method", "method", "job", "NAME", True, "", "fedavg", "the method of a run, fedavg or fedprox(mu=0.1), or package.module:factory for your own"),
    Option("methods", "methods", "job", "LIST", True, "list of methods such as fedavg,fedprox(mu=0.1)", "none", "the methods of a comparison; fedprox(mu=0.1, local.lr=0.05) sets a local key for one, as do privacy.epsilon=, server=, upload= and aggregate=; label= names it"),
    Option("baselines", "baselines", "run", "LIST", True, "list of baselines such as local,pooled", "none", "what the methods of a comparison are judged against: local, every client alone; pooled, all samples in one place; local(local.lr=0.05) sets a local key"),
    Option("data", "data", "data", "DATA", True, "", "digits", "data set or problem (`list data`), or your own: a file, a folder, package.module:factory"),
    Option("data_dir", "data_dir", "data", "DIR", True, "", "none", "folder of data files; else $FEDCONCORD_DATA, else a cache"),
    Option("partition", "partition", "data", "NAME", True, "partition such as shards(2)", "dirichlet(0.1)", "which client holds which samples, or package.module:function for your own"),
    Option("model", "model", "job", "NAME", True, "", "2nn", "the model, or package.module:factory for your own"),
    Option("loss", "loss", "job", "NAME", True, "loss such as huber(1.0)", "none", "the loss of a sample, or package.module:function; the usual one of the target if none"),
    Option("metrics", "metrics", "job", "LIST", True, "list of metrics such as rmse,mae", "none", "what is measured on the test set, by name or package.module:function; the first ranks; the usual ones of the target if empty"),
    Option("objective", "objective", "job", "NAME", True, "one of auto, samples, clients, paper", "auto", "what methods minimise where their papers leave it open: the mean over samples, over clients, or what each paper has; auto: samples where data of your own come in clients, else paper"),
    Option("clients", "clients", "data", "N", False, "integer >= 1", "50", "clients in all, N"),
    Option("cohort", "cohort", "job", "N", False, "integer >= 1", "10", "clients that take part in a round; 10, or all if fewer"),
    Option("rounds", "rounds", "run", "N", False, "integer >= 1", "100", "communication rounds"),
    Option("lr_schedule", "lr_schedule", "job", "NAME", True, "schedule such as cosine(100) or step(30,0.1)", "constant", "how the local step size goes on from round to round, a factor on it, or package.module:function for your own"),
    Option("sampling", "sampling", "job", "NAME", True, "sampling such as uniform or bernoulli(0.1)", "uniform", "which clients take part in a round, or package.module:factory for your own"),
    Option("server", "server", "job", "NAME", True, "server optimiser such as momentum(0.9)", "none", "what the method's step at the server goes through; the step as it is if none"),
    Option("upload", "upload", "job", "NAME", True, "compressor such as quantise(8) or topk(0.1)", "none", "how the clients' messages are compressed; not at all if none"),
    Option("aggregate", "aggregate", "job", "NAME", True, "aggregation rule such as median or krum(2)", "none", "what the server makes of the clients' contributions; their weighted mean if none"),
    Option("hostile", "hostile", "job", "NAME", True, "attack such as sign_flip(0.2) or nan(0.1)", "none", "what hostile clients do, in a simulation; nobody is hostile if none"),
    Option("seed", "seed", "data", "N", False, "integer >= 0", "0", "the seed of a run, of all its randomness"),
    Option("seeds", "seeds", "job", "LIST", True, "list of integers >= 0 such as 0,1,2", "0", "the seeds of a comparison; all methods of a seed meet the same clients and batches"),
    Option("out", "out", "run", "DIR", True, "", "none", "folder of the results; a new one below runs/ if none"),
    Option("track", "track", "run", "LIST", True, "list of trackers such as tensorboard,mlflow", "none", "who else is told of every round: tensorboard, mlflow or wandb, below the results"),
    Option("epochs", "local.epochs", "job", "WORK", False, "integer >= 1 or a draw such as uniform(1,5)", "1", "passes of a client over its samples in a round"),
    Option("steps", "local.steps", "job", "WORK", False, "integer >= 1 or a draw such as uniform(1,5)", "none", "local steps, instead of epochs"),
    Option("batch_size", "local.batch_size", "job", "N", False, "integer >= 1 or full", "10", "samples a local step, or full"),
    Option("lr", "local.lr", "job", "LR", False, "number > 0 or a rule such as auto", "0.1", "local step size, or the rule by which every client finds its own"),
    Option("momentum", "local.momentum", "job", "NUMBER", False, "number >= 0 and < 1", "0", "heavy-ball momentum of local steps, fresh each round"),
    Option("oracle", "local.oracle", "job", "NAME", True, "gradient oracle such as full or sam(0.1)", "minibatch", "which gradient a local step uses"),
    Option("engine", "engine.name", "run", "NAME", True, "one of stacked, serial, distributed, wire", "stacked", "many clients at once, one by one, shared by the processes that torchrun starts, or server and clients that share nothing but bytes"),
    Option("device", "engine.device", "run", "NAME", True, "one of auto, cpu, cuda", "cpu", "where to compute"),
    Option("dtype", "engine.dtype", "job", "NAME", True, "one of float32, float64", "float32", "precision of models and data"),
    Option("precision", "engine.precision", "job", "NAME", True, "one of full, tf32, bf16", "full", "of a model's gradients: full is dtype's; bf16 and tf32 (on a GPU) are faster and less exact"),
    Option("threads", "engine.threads", "run", "N", False, "integer >= 1", "none", "CPU threads of one run; if none all cores that the container may use, shared by --jobs"),
    Option("eval_every", "eval.every", "run", "N", False, "integer >= 1", "none", "rounds between evaluations; if none 1, and by counted work for large jobs without a target"),
    Option("target", "eval.target", "run", "NUMBER", False, "number > 0", "none", "test accuracy, or other first metric, whose first round is reported"),
    Option("dp_clip", "privacy.clip", "job", "CLIP", False, "number > 0 or a rule such as adaptive(quantile=0.5)", "none", "largest l2 norm of all that a client sends in a round; makes the job private"),
    Option("dp_noise", "privacy.noise", "job", "NUMBER", False, "number >= 0", "none", "standard deviation of the Gaussian noise over clip; found from epsilon if none"),
    Option("epsilon", "privacy.epsilon", "job", "NUMBER", False, "number > 0 and <= 1000", "none", "budget: finds the noise for the rounds, or with noise given ends the run when it is spent"),
    Option("delta", "privacy.delta", "job", "NUMBER", False, "number > 0 and < 1", "1e-05", "of (epsilon, delta), below one over the clients"),
    Option("label_column", "input.label", "data", "NAME", True, "list of texts", "none", "columns of your data to be learnt, or the array's key"),
    Option("client_column", "input.client", "data", "NAME", True, "", "none", "column of your data whose values are the clients"),
    Option("target_kind", "input.target", "data", "KIND", True, "class, number, labels", "none", "classes, numbers, or labels that may hold together; guessed, and said, if none"),
    Option("test_data", "input.test", "data", "PATH", True, "", "none", "where your test samples are; a share of each client's if none"),
    Option("checkpoint_every", "checkpoint.every", "run", "SECONDS", False, "number >= 0", "30", "seconds between checkpoints; 0 is every round"),
)


class Shared(TypedDict, total=False):
    """Arguments of both functions; one that is None is not given."""

    data: str | Path | object | None
    "Data set or problem (`list data`), or your own: a file, a folder, package.module:factory. [digits]"

    data_dir: str | Path | None
    "Folder of data files; else $FEDCONCORD_DATA, else a cache. [none]"

    partition: str | object | None
    "Which client holds which samples, or package.module:function for your own (partition such as shards(2)). [dirichlet(0.1)]"

    model: str | object | None
    "The model, or package.module:factory for your own. [2nn]"

    loss: str | object | None
    "The loss of a sample, or package.module:function; the usual one of the target if none (loss such as huber(1.0)). [none]"

    metrics: str | Sequence[str] | object | None
    "What is measured on the test set, by name or package.module:function; the first ranks; the usual ones of the target if empty (list of metrics such as rmse,mae). [none]"

    objective: Literal["auto", "samples", "clients", "paper"] | None
    "What methods minimise where their papers leave it open: the mean over samples, over clients, or what each paper has; auto: samples where data of your own come in clients, else paper (one of auto, samples, clients, paper). [auto]"

    clients: int | None
    "Clients in all, N (integer >= 1). [50]"

    cohort: int | None
    "Clients that take part in a round; 10, or all if fewer (integer >= 1). [10]"

    rounds: int | None
    "Communication rounds (integer >= 1). [100]"

    lr_schedule: str | object | None
    "How the local step size goes on from round to round, a factor on it, or package.module:function for your own (schedule such as cosine(100) or step(30,0.1)). [constant]"

    sampling: str | object | None
    "Which clients take part in a round, or package.module:factory for your own (sampling such as uniform or bernoulli(0.1)). [uniform]"

    server: str | None
    "What the method's step at the server goes through; the step as it is if none (server optimiser such as momentum(0.9)). [none]"

    upload: str | None
    "How the clients' messages are compressed; not at all if none (compressor such as quantise(8) or topk(0.1)). [none]"

    aggregate: str | None
    "What the server makes of the clients' contributions; their weighted mean if none (aggregation rule such as median or krum(2)). [none]"

    hostile: str | None
    "What hostile clients do, in a simulation; nobody is hostile if none (attack such as sign_flip(0.2) or nan(0.1)). [none]"

    out: str | Path | None
    "Folder of the results; a new one below runs/ if none. [none]"

    track: str | Sequence[str] | None
    "Who else is told of every round: tensorboard, mlflow or wandb, below the results (list of trackers such as tensorboard,mlflow). [none]"

    epochs: int | str | None
    "Passes of a client over its samples in a round (integer >= 1 or a draw such as uniform(1,5)). [1]"

    steps: int | str | None
    "Local steps, instead of epochs (integer >= 1 or a draw such as uniform(1,5)). [none]"

    batch_size: int | Literal["full"] | None
    "Samples a local step, or full (integer >= 1 or full). [10]"

    lr: float | str | None
    "Local step size, or the rule by which every client finds its own (number > 0 or a rule such as auto). [0.1]"

    momentum: float | None
    "Heavy-ball momentum of local steps, fresh each round (number >= 0 and < 1). [0]"

    oracle: str | None
    "Which gradient a local step uses (gradient oracle such as full or sam(0.1)). [minibatch]"

    engine: Literal["stacked", "serial", "distributed", "wire"] | None
    "Many clients at once, one by one, shared by the processes that torchrun starts, or server and clients that share nothing but bytes (one of stacked, serial, distributed, wire). [stacked]"

    device: Literal["auto", "cpu", "cuda"] | None
    "Where to compute (one of auto, cpu, cuda). [cpu]"

    dtype: Literal["float32", "float64"] | None
    "Precision of models and data (one of float32, float64). [float32]"

    precision: Literal["full", "tf32", "bf16"] | None
    "Of a model's gradients: full is dtype's; bf16 and tf32 (on a GPU) are faster and less exact (one of full, tf32, bf16). [full]"

    threads: int | None
    "CPU threads of one run; if none all cores that the container may use, shared by --jobs (integer >= 1). [none]"

    eval_every: int | None
    "Rounds between evaluations; if none 1, and by counted work for large jobs without a target (integer >= 1). [none]"

    target: float | None
    "Test accuracy, or other first metric, whose first round is reported (number > 0). [none]"

    dp_clip: float | str | None
    "Largest l2 norm of all that a client sends in a round; makes the job private (number > 0 or a rule such as adaptive(quantile=0.5)). [none]"

    dp_noise: float | None
    "Standard deviation of the Gaussian noise over clip; found from epsilon if none (number >= 0). [none]"

    epsilon: float | None
    "Budget: finds the noise for the rounds, or with noise given ends the run when it is spent (number > 0 and <= 1000). [none]"

    delta: float | None
    "Of (epsilon, delta), below one over the clients (number > 0 and < 1). [1e-05]"

    label_column: str | Sequence[str] | None
    "Columns of your data to be learnt, or the array's key (list of texts). [none]"

    client_column: str | None
    "Column of your data whose values are the clients. [none]"

    target_kind: Literal["class", "number", "labels"] | None
    "Classes, numbers, or labels that may hold together; guessed, and said, if none (class, number, labels). [none]"

    test_data: str | Path | None
    "Where your test samples are; a share of each client's if none. [none]"

    checkpoint_every: float | None
    "Seconds between checkpoints; 0 is every round (number >= 0). [30]"


class RunOptions(Shared, total=False):
    """Arguments of `run`."""

    seed: int | None
    "The seed of a run, of all its randomness (integer >= 0). [0]"


class CompareOptions(Shared, total=False):
    """Arguments of `compare`."""

    baselines: str | Sequence[str] | None
    "What the methods of a comparison are judged against: local, every client alone; pooled, all samples in one place; local(local.lr=0.05) sets a local key (list of baselines such as local,pooled). [none]"

    seeds: int | Sequence[int] | None
    "The seeds of a comparison; all methods of a seed meet the same clients and batches (list of integers >= 0 such as 0,1,2). [0]"
