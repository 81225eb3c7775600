"""The options of the command and the arguments of `run` and `compare`: written, do not edit.

The schema is `settings.settings`; `python docs/generate/option_table.py` writes this from it.
"""

# ruff: noqa: E501
# fmt: off

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from fedconcord.study.options import Option, stated


class Shared(TypedDict, total=False):
    """Arguments of both functions; one that is None is not given."""

    data: Annotated[str | Path | object | None, Option("data", "data", "data", "DATA", True, "", "digits", "the data set or problem (`list data` shows all), or your own data: a file, a folder, or package.module:factory")]
    data_dir: Annotated[str | Path | None, Option("data_dir", "data_dir", "data", "DIR", True, "", "none", "folder with the files of data sets; if none, $FEDCONCORD_DATA, or else a folder in your cache")]
    partition: Annotated[str | object | None, Option("partition", "partition", "data", "NAME", True, "partition such as shards(2)", "dirichlet(0.1)", "how the samples are divided over the clients, or package.module:function for a partition of your own")]
    model: Annotated[str | object | None, Option("model", "model", "job", "NAME", True, "", "2nn", "the model to train, or package.module:factory for a model of your own")]
    adapters: Annotated[str | None, Option("adapters", "adapters", "job", "NAME", True, "adapters such as lora(where='query|value')", "none", "low-rank adapters, trained in place of the model's weights, which stay as they start; if none, weights train")]
    norm: Annotated[Literal["pooled", "frozen", "silo"] | None, Option("norm", "norm", "job", "NAME", True, "one of pooled, frozen, silo", "pooled", "batch normalisation: by the batch, and in judging by all samples (pooled) or the client's (silo); or frozen")]
    loss: Annotated[str | object | None, Option("loss", "loss", "job", "NAME", True, "loss such as huber(1.0)", "none", "the loss of one sample, or package.module:function for a loss of your own; if none, the usual loss for the kind of target")]
    metrics: Annotated[str | Sequence[str] | object | None, Option("metrics", "metrics", "job", "LIST", True, "list of metrics such as rmse,mae", "none", "the metrics to measure on the test set, by name or package.module:function; methods are ranked by the first; if empty, the usual metrics for the kind of target")]
    objective: Annotated[Literal["auto", "samples", "clients", "paper"] | None, Option("objective", "objective", "job", "NAME", True, "one of auto, samples, clients, paper", "auto", "which average of the clients' losses is minimised where the paper of a method leaves it open: over samples, over clients, or as in the paper; auto is samples where data of your own come in clients, and paper elsewhere")]
    clients: Annotated[int | None, Option("clients", "clients", "data", "N", False, "integer >= 1", "50", "number of clients, N")]
    cohort: Annotated[int | None, Option("cohort", "cohort", "job", "N", False, "integer >= 1", "10", "number of clients that take part in a round; if it is not given, 10, or all where there are fewer")]
    rounds: Annotated[int | None, Option("rounds", "rounds", "run", "N", False, "integer >= 1", "100", "number of communication rounds")]
    lr_schedule: Annotated[str | object | None, Option("lr_schedule", "lr_schedule", "job", "NAME", True, "schedule such as cosine(100) or step(30,0.1)", "constant", "the factor on the local step size in each round, or package.module:function for a schedule of your own")]
    sampling: Annotated[str | object | None, Option("sampling", "sampling", "job", "NAME", True, "sampling such as uniform or bernoulli(0.1)", "uniform", "how the clients of a round are chosen, or package.module:factory for a sampling of your own")]
    server: Annotated[str | None, Option("server", "server", "job", "NAME", True, "server optimiser such as momentum(0.9)", "none", "the optimiser that the server applies to the step of the method; if none, the step is taken as it is")]
    upload: Annotated[str | None, Option("upload", "upload", "job", "NAME", True, "compressor such as quantise(8) or topk(0.1)", "none", "how the clients' messages to the server are compressed; if none, they are not")]
    aggregate: Annotated[str | None, Option("aggregate", "aggregate", "job", "NAME", True, "aggregation rule such as median or krum(2)", "none", "how the server combines the clients' contributions; if none, by their weighted mean")]
    hostile: Annotated[str | None, Option("hostile", "hostile", "job", "NAME", True, "attack such as sign_flip(0.2) or nan(0.1)", "none", "how hostile clients attack, in a simulation; if none, no client is hostile")]
    out: Annotated[str | Path | None, Option("out", "out", "run", "DIR", True, "", "none", "folder for the results; if none, a new folder below runs/")]
    track: Annotated[str | Sequence[str] | None, Option("track", "track", "run", "LIST", True, "list of trackers such as tensorboard,mlflow", "none", "experiment trackers that record every round, beside the results: tensorboard, mlflow or wandb")]
    epochs: Annotated[int | str | None, Option("epochs", "local.epochs", "job", "WORK", False, "integer >= 1 or a draw such as uniform(1,5)", "1", "passes of a client over its samples in a round")]
    steps: Annotated[int | str | None, Option("steps", "local.steps", "job", "WORK", False, "integer >= 1 or a draw such as uniform(1,5)", "none", "local steps of a client in a round, in place of epochs")]
    batch_size: Annotated[int | str | None, Option("batch_size", "local.batch_size", "job", "N", False, "integer >= 1, full, poisson(0.05) or disjoint(20)", "10", "samples in the mini-batch of a local step; full: all; poisson(q): each with chance q; disjoint(n): an n-th")]
    lr: Annotated[float | str | None, Option("lr", "local.lr", "job", "LR", False, "number > 0 or a rule such as auto", "0.1", "local step size, or the rule by which every client finds its own")]
    momentum: Annotated[float | None, Option("momentum", "local.momentum", "job", "NUMBER", False, "number >= 0 and < 1", "0", "heavy-ball momentum of the local steps, which starts anew in every round")]
    local_optimiser: Annotated[str | None, Option("local_optimiser", "local.optimiser", "job", "NAME", True, "local optimiser such as adamw or muon(state=kept)", "none", "what turns the direction of a local step into a move; if none, the move is the direction times the step size")]
    code: Annotated[str | None, Option("code", "local.code", "job", "NAME", True, "function package.module:name (model, batches, visit)", "none", "your own local training in torch, or one step of it, in place of local steps; if none, there are local steps")]
    local_private: Annotated[str | None, Option("local_private", "local.private", "job", "PATTERN", True, "pattern of names such as head.*", "none", "parameters of the model that a client keeps for itself, a pattern of names, several with |; if none, none")]
    local_private_steps: Annotated[int | Literal["frozen"] | None, Option("local_private_steps", "local.private_steps", "job", "N", False, "integer >= 1 or frozen", "none", "local steps on private parameters alone, before those on shared ones; frozen: none; if none, steps move both")]
    term: Annotated[str | None, Option("term", "local.term", "job", "NAME", True, "term such as ntd or moon(weight=5)", "none", "what is added to the clients' loss, or package.module:factory for a term of your own; if none, nothing is")]
    oracle: Annotated[str | None, Option("oracle", "local.oracle", "job", "NAME", True, "gradient oracle such as full or sam(0.1)", "minibatch", "which gradient a local step uses")]
    engine: Annotated[Literal["stacked", "serial", "distributed", "wire"] | None, Option("engine", "engine.name", "run", "NAME", True, "one of stacked, serial, distributed, wire", "stacked", "how rounds are computed: stacked computes many clients at once, serial one after the other, distributed divides them over the processes that torchrun starts, and wire has a server and clients that share nothing but bytes")]
    device: Annotated[Literal["auto", "cpu", "cuda"] | None, Option("device", "engine.device", "run", "NAME", True, "one of auto, cpu, cuda", "cpu", "device that computes")]
    dtype: Annotated[Literal["float32", "float64"] | None, Option("dtype", "engine.dtype", "job", "NAME", True, "one of float32, float64", "float32", "floating-point type of models and data")]
    precision: Annotated[Literal["full", "tf32", "bf16"] | None, Option("precision", "engine.precision", "job", "NAME", True, "one of full, tf32, bf16", "full", "precision of a model's gradients: full is that of dtype; bf16, and tf32 on a GPU, are faster and less exact")]
    threads: Annotated[int | None, Option("threads", "engine.threads", "run", "N", False, "integer between 1 and 1024", "none", "number of CPU threads of one run; if none, all cores that the container may use, divided over the runs of --jobs")]
    eval_every: Annotated[int | None, Option("eval_every", "eval.every", "run", "N", False, "integer >= 1", "none", "number of rounds between evaluations; if none, 1, or by counted work for large jobs without a target")]
    target: Annotated[float | None, Option("target", "eval.target", "run", "NUMBER", False, "number > 0", "none", "report the first round that reaches this test accuracy (or first metric)")]
    dp_clip: Annotated[float | str | None, Option("dp_clip", "privacy.clip", "job", "CLIP", False, "number > 0 or a rule such as adaptive(quantile=0.5)", "none", "largest l2 norm of a client's message, or of a sample's or person's gradient; turns differential privacy on")]
    dp_unit: Annotated[Literal["client", "sample", "person"] | None, Option("dp_unit", "privacy.unit", "job", "NAME", True, "one of client, sample, person", "client", "what is protected: a client with all its samples, each sample, that is each row, or each person with all rows")]
    dp_noise: Annotated[float | None, Option("dp_noise", "privacy.noise", "job", "NUMBER", False, "number >= 0", "none", "noise multiplier: the noise's standard deviation divided by clip; if none, it follows from epsilon")]
    epsilon: Annotated[float | None, Option("epsilon", "privacy.epsilon", "job", "NUMBER", False, "number > 0 and <= 1000", "none", "privacy budget: the noise follows from it and the rounds, or the run ends when it is spent, if noise is given")]
    delta: Annotated[float | None, Option("delta", "privacy.delta", "job", "NUMBER", False, "number > 0 and < 1", "1e-05", "the delta of (epsilon, delta)-privacy, below 1 / clients or 1 / samples")]
    label_column: Annotated[str | Sequence[str] | None, Option("label_column", "input.label", "data", "NAME", True, "list of texts", "none", "columns of your data that hold the labels, or the key of the array with the labels")]
    client_column: Annotated[str | None, Option("client_column", "input.client", "data", "NAME", True, "", "none", "column of your data that says to which client a row belongs")]
    person_column: Annotated[str | None, Option("person_column", "input.person", "data", "NAME", True, "", "none", "column of your data that says whose row it is, as a patient's number: privacy.unit person protects all of them")]
    target_kind: Annotated[Literal["class", "number", "labels", "tokens"] | None, Option("target_kind", "input.target", "data", "KIND", True, "class, number, labels, tokens", "none", "kind of the labels: classes, numbers, labels that may hold together, tokens; if none, it is guessed and said")]
    test_data: Annotated[str | Path | None, Option("test_data", "input.test", "data", "PATH", True, "", "none", "file or folder of your test samples; if none, a fraction of each client's samples is set apart")]
    checkpoint_every: Annotated[float | None, Option("checkpoint_every", "checkpoint.every", "run", "SECONDS", False, "number >= 0", "30", "seconds between checkpoints, or nine times as long as one takes; 0 writes one after every round")]


class RunOptions(Shared, total=False):
    """Arguments of `run`."""

    seed: Annotated[int | None, Option("seed", "seed", "data", "N", False, "integer >= 0 and < 2**63", "0", "the seed of all randomness of a run")]


class CompareOptions(Shared, total=False):
    """Arguments of `compare`."""

    baselines: Annotated[str | Sequence[str] | None, Option("baselines", "baselines", "run", "LIST", True, "list of baselines such as local,pooled", "none", "what the methods are compared with: local trains every client alone, pooled trains one model on all samples in one place; a baseline may have local settings of its own, as in local(local.lr=0.05)")]
    seeds: Annotated[int | Sequence[int] | None, Option("seeds", "seeds", "job", "LIST", True, "list of integers >= 0 such as 0,1,2", "0", "the seeds of a comparison: every method runs once with each, on the same clients and batches as the others")]

OPTIONS = (
    Option("method", "method", "job", "NAME", True, "", "fedavg", "the method that a run trains with, such as fedavg or fedprox(mu=0.1), or package.module:factory for a method of your own"),
    Option("methods", "methods", "job", "LIST", True, "list of methods such as fedavg,fedprox(mu=0.1)", "none", "the methods to compare; a method may have settings of its own, as in fedprox(mu=0.1, local.lr=0.05): local.*, privacy.*, server=, upload=, aggregate=, and label= for its name in reports"),
    *dict.fromkeys((*stated(RunOptions), *stated(CompareOptions))),
)
