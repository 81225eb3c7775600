"""The tables of a job's settings: what a client does, how rounds are computed and measured, how data are read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedconcord.basis import grammar
from fedconcord.basis.factories import Search
from fedconcord.basis.parameters import BelowOne, Count, Fraction, NotNegative, Positive, about
from fedconcord.options.option import Short

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
Part = Annotated[float, Field(gt=0, lt=1)]
MOST_TRAIN_SAMPLES = 10_000
LR = 0.1  # of methods without a rule of their own
WORK_TEXT = "an integer >= 1 or a draw such as uniform(1,5)"


class LocalSettings(BaseModel):
    """What a client does in a round."""

    model_config = STRICT
    epochs: Annotated[
        Count | str | None,
        about("passes of a client over its samples in a round", WORK_TEXT),
        Short("epochs", "job", "WORK"),
    ] = 1
    steps: Annotated[
        Count | str | None,
        about("local steps of a client in a round, in place of epochs", WORK_TEXT),
        Short("steps", "job", "WORK"),
    ] = None
    seconds: Annotated[
        Positive | str | None,
        about(
            "simulated seconds that a client computes in a round, in place of epochs; needs devices",
            "a number > 0 or a draw such as uniform(1,5)",
        ),
    ] = None
    batch_size: Annotated[
        Count | Literal["full"],
        about("number of samples in the mini-batch of a local step, or full for all samples of the client"),
        Short("batch_size", "job"),
    ] = 10
    lr: Annotated[
        Positive | str | None,
        about(
            "local step size, or the rule by which every client finds its own",
            "a number > 0 or a rule such as auto",
            LR,
        ),
        Short("lr", "job", "LR"),
        Search(0.01, 1.0),
    ] = None
    lr_decay: Annotated[Fraction, about("factor by which the local step size is multiplied after every round")] = 1.0
    lr_drops: Annotated[
        list[tuple[Count, Positive]],
        about("rounds from which on the local step size is multiplied by a factor, as [[round, factor], ...]"),
    ] = []
    momentum: Annotated[
        BelowOne,
        about("heavy-ball momentum of the local steps, which starts anew in every round"),
        Short("momentum", "job"),
    ] = 0.0
    nesterov: Annotated[bool, about("whether the momentum has Nesterov's form")] = False
    weight_decay: Annotated[NotNegative, about("factor of the weight decay (l2 penalty) in every gradient")] = 0.0
    clip: Annotated[
        Positive | None, about("largest l2 norm of a stochastic gradient; if none, gradients are not clipped")
    ] = None
    clip_direction: Annotated[
        Positive | None,
        about(
            "largest l2 norm of the direction of a local step, its dual and proximal terms included; if none, "
            "directions are not clipped"
        ),
    ] = None
    clip_form: Annotated[
        Literal["whole", "released"],
        about(
            "what clip_direction clips: whole, the complete direction; released, as FL-Simulator and FedDyn do, the "
            "direction before weight decay and rho x are added"
        ),
    ] = "whole"
    oracle: Annotated[
        str,
        about("which gradient a local step uses", "a gradient oracle such as full or sam(0.1)"),
        Short("oracle", "job"),
    ] = "minibatch"
    solver: Annotated[
        Literal["sgd", "lbfgs"],
        about("how a client minimises: sgd takes gradient steps, lbfgs runs L-BFGS on its full objective"),
    ] = "sgd"
    step_decay: Annotated[
        Fraction, about("factor by which the local step size is multiplied after every step of a round")
    ] = 1.0
    tolerance: Annotated[
        Positive | None,
        about(
            "squared norm of the gradient of its local problem at which a client stops early; epochs are then the most "
            "that it does; if none, no client stops early"
        ),
    ] = None


class EngineSettings(BaseModel):
    """How the rounds are computed; results depend on `dtype`, `precision` and `rows` alone."""

    model_config = STRICT
    name: Annotated[
        Literal["stacked", "serial", "distributed", "wire"],
        about(
            "how rounds are computed: stacked computes many clients at once, serial one after the other, distributed "
            "divides them over the processes that torchrun starts, and wire has a server and clients that share "
            "nothing but bytes"
        ),
        Short("engine", "run"),
    ] = "stacked"
    chunk: Annotated[Count | Literal["auto"], about("number of clients in one batch of the stacked engine")] = "auto"
    workers: Annotated[
        Count | Literal["auto"],
        about(
            "number of batches of clients that are computed at the same time where the model has a kernel; auto "
            "decides by counted work"
        ),
    ] = "auto"
    kernel: Annotated[
        Literal["auto", "torch", "compiled"],
        about(
            "what computes local steps: torch, or compiled, where numba computes all steps of a client in one call "
            "(for fully connected networks); auto decides by counted work"
        ),
    ] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], about("device that computes"), Short("device", "run")] = "cpu"
    dtype: Annotated[
        Literal["float32", "float64"], about("floating-point type of models and data"), Short("dtype", "job")
    ] = "float32"
    precision: Annotated[
        Literal["full", "tf32", "bf16"],
        about(
            "precision of a model's gradients: full is that of dtype; bf16, and tf32 on a GPU, are faster and less "
            "exact"
        ),
        Short("precision", "job"),
    ] = "full"
    threads: Annotated[
        Count | None,
        about(
            "number of CPU threads of one run; if none, all cores that the container may use, divided over the runs "
            "of --jobs"
        ),
        Short("threads", "run"),
    ] = None
    graphs: Annotated[
        bool, about("whether local steps that every round repeats are recorded once as a CUDA graph; needs a GPU")
    ] = False
    timeout: Annotated[Positive, about("seconds that a process of the distributed engine waits for the others")] = 600.0
    store: Annotated[
        Literal["memory", "disk"],
        about("where the state of clients is kept between rounds: in memory, or on disk, in the folder of the run"),
    ] = "memory"
    rows: Annotated[
        Literal["full", "bfloat16", "float16"],
        about(
            "floating-point type of the clients' state between rounds: full is that of dtype; 2-byte numbers make "
            "exact methods inexact"
        ),
    ] = "full"


class WireSettings(BaseModel):
    """What goes wrong on the wire of engine wire, as probabilities keyed by the run's seed."""

    model_config = STRICT
    loss: Annotated[BelowOne, about("probability that a message is lost, in either direction")] = 0.0
    duplicate: Annotated[BelowOne, about("probability that a message arrives twice")] = 0.0
    delay: Annotated[BelowOne, about("probability that a message arrives up to three exchanges late")] = 0.0
    corrupt: Annotated[BelowOne, about("probability that a message arrives with one bit changed")] = 0.0
    restart: Annotated[BelowOne, about("probability that a client restarts before it receives a message")] = 0.0
    server_restart: Annotated[BelowOne, about("probability that the server restarts at an exchange")] = 0.0
    tries: Annotated[Count, about("number of times that a client is asked before a round goes on without it")] = 5


class SecureSettings(BaseModel):
    """Secure sums in a deployment: the server learns the sum of what sites contribute; not without `clip`."""

    model_config = STRICT
    clip: Annotated[
        Positive | None, about("largest absolute value of a number that a site contributes; turns secure sums on")
    ] = None
    bits: Annotated[
        Annotated[int, Field(ge=8, le=48)],
        about("number of bits of a masked number; the sum over S sites has an error of up to S clip / 2^bits"),
    ] = 24
    threshold: Annotated[
        Annotated[float, Field(gt=0.5, le=1)],
        about("fraction of the sites that began a secure sum that must be there at its end to open it"),
    ] = 0.6


class EvalSettings(BaseModel):
    """What is measured between rounds."""

    model_config = STRICT
    every: Annotated[
        Count | None,
        about("number of rounds between evaluations; if none, 1, or by counted work for large jobs without a target"),
        Short("eval_every", "run"),
    ] = None
    target: Annotated[
        Positive | None,
        about("report the first round that reaches this test accuracy (or first metric)"),
        Short("target", "run"),
    ] = None
    train_samples: Annotated[
        Count | None,
        about(
            "number of training samples, always the same, on which the train loss is measured; if none, 10000, or "
            "fewer by counted work"
        ),
    ] = None
    clients: Annotated[
        bool | None,
        about(
            "whether the model is evaluated at every client after the last round; if none, by counted work, which is "
            "true for most jobs"
        ),
    ] = None
    clients_every: Annotated[
        Count | None, about("number of rounds between evaluations at every client; if none, only after the last round")
    ] = None
    patience: Annotated[
        Count | None,
        about(
            "number of evaluations in a row without a better model after which a run stops; if none, it does not stop "
            "early"
        ),
    ] = None
    min_delta: Annotated[NotNegative, about("smallest improvement that makes a model better for patience")] = 0.0
    watch: Annotated[
        str | None,
        about("the metric that patience watches; if none, validation_loss, or test_loss without validation"),
    ] = None
    personalise: Annotated[
        str | None,
        about(
            "how every client fine-tunes the final model; both models are reported; needs validation; if none, "
            "clients do not fine-tune",
            "a personalisation such as finetune(steps=20,lr=0.05)",
        ),
    ] = None


class PrivacySettings(BaseModel):
    """Differential privacy of clients; none without `clip`."""

    model_config = STRICT
    clip: Annotated[
        Positive | str | None,
        about(
            "largest l2 norm of all that a client sends in a round; turns differential privacy on",
            "a number > 0 or a rule such as adaptive(quantile=0.5)",
        ),
        Short("dp_clip", "job", "CLIP"),
    ] = None
    noise: Annotated[
        NotNegative | None,
        about(
            "noise multiplier: the standard deviation of the Gaussian noise, divided by clip; if none, it follows "
            "from epsilon"
        ),
        Short("dp_noise", "job"),
    ] = None
    epsilon: Annotated[
        Annotated[float, Field(gt=0, le=1000)] | None,
        about(
            "privacy budget epsilon: the noise follows from it and the number of rounds, or, where the noise is "
            "given, the run ends when the budget is spent"
        ),
        Short("epsilon", "job"),
    ] = None
    delta: Annotated[
        Part, about("the delta of (epsilon, delta)-privacy, which must be below 1 / clients"), Short("delta", "job")
    ] = 1e-5
    kind: Annotated[
        Literal["central", "local"],
        about("who adds the noise: central, the server to the sum; local, every client to its own message"),
    ] = "central"


def _as_text(value: object) -> object:
    """A number, which `--set input.missing=-9` is read as, as its text; anything else as it is."""
    return grammar.text(value) if type(value) in (int, float) else value


class InputSettings(BaseModel):
    """How data of your own are read: a table, arrays, images."""

    model_config = STRICT
    label: Annotated[
        list[str],
        about("columns of your data that hold the labels, or the key of the array with the labels"),
        Short("label_column", "data", "NAME"),
    ] = []
    client: Annotated[
        str | None,
        about("column of your data that says to which client a row belongs"),
        Short("client_column", "data"),
    ] = None
    target: Annotated[
        Literal["class", "number", "labels"] | None,
        about(
            "kind of the labels: classes, numbers, or labels of which several may hold together; if none, it is "
            "guessed and reported"
        ),
        Short("target_kind", "data", "KIND"),
    ] = None
    test: Annotated[
        str | None,
        about("file or folder of your test samples; if none, a fraction of each client's samples is set apart"),
        Short("test_data", "data", "PATH"),
    ] = None
    test_share: Annotated[Part, about("fraction of each client's samples that is set apart for the test")] = 0.2
    ignore: Annotated[list[str], about("columns of your data that are left out")] = []
    categories: Annotated[list[str], about("columns of your data whose numbers stand for categories")] = []
    missing: Annotated[
        list[str],
        BeforeValidator(lambda given: [*map(_as_text, given)] if isinstance(given, list) else given),
        about(
            "texts that stand for a missing value, beside the empty text, ?, NA, NaN and null; numbers are compared by "
            "value"
        ),
    ] = []
    statistics: Annotated[
        str | None,
        about(
            "JSON or TOML file with the means, scales and categories of the columns; if none, they are computed from "
            "sums over the clients"
        ),
    ] = None
    image_size: Annotated[
        Annotated[int, Field(ge=1, le=4096)] | None,
        about("side in pixels to which images are resized; if none, all images must have the same size"),
    ] = None
    memory: Annotated[
        Positive | None, about("memory in GiB that the data may take; if none, half of the machine's memory")
    ] = None


class CheckpointSettings(BaseModel):
    """How much work an interruption may cost."""

    model_config = STRICT
    every: Annotated[
        NotNegative,
        about("seconds between checkpoints; 0 writes one after every round"),
        Short("checkpoint_every", "run", "SECONDS"),
    ] = 30.0


SECTIONS: dict[str, type[BaseModel]] = {
    "local": LocalSettings,
    "engine": EngineSettings,
    "wire": WireSettings,
    "secure": SecureSettings,
    "eval": EvalSettings,
    "privacy": PrivacySettings,
    "input": InputSettings,
    "checkpoint": CheckpointSettings,
}
