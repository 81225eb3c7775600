"""The tables of a job's settings: what a client does, how rounds are computed and measured, how data are read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedconcord.basis import grammar
from fedconcord.basis.factories import Search
from fedconcord.options.option import Short

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
Count = Annotated[int, Field(ge=1)]
Fault = Annotated[float, Field(ge=0, lt=1)]
MOST_TRAIN_SAMPLES = 10_000
LR = 0.1  # of methods without a rule of their own
WORK_TEXT = {"wanted": "an integer >= 1 or a draw such as uniform(1,5)"}


class LocalSettings(BaseModel):
    """What a client does in a round."""

    model_config = STRICT
    epochs: Annotated[
        Count | str | None,
        Field(description="passes of a client over its samples in a round", json_schema_extra=WORK_TEXT),
        Short("epochs", "job", "WORK"),
    ] = 1
    steps: Annotated[
        Count | str | None,
        Field(description="local steps, instead of epochs", json_schema_extra=WORK_TEXT),
        Short("steps", "job", "WORK"),
    ] = None
    seconds: Annotated[
        Annotated[float, Field(gt=0)] | str | None,
        Field(
            description="simulated seconds of computing, instead of epochs; needs devices",
            json_schema_extra={"wanted": "a number > 0 or a draw such as uniform(1,5)"},
        ),
    ] = None
    batch_size: Annotated[
        Count | Literal["full"], Field(description="samples a local step, or full"), Short("batch_size", "job")
    ] = 10
    lr: Annotated[
        Annotated[float, Field(gt=0)] | str | None,
        Field(
            description="local step size, or the rule by which every client finds its own",
            json_schema_extra={"usual": LR, "wanted": "a number > 0 or a rule such as auto"},
        ),
        Short("lr", "job", "LR"),
        Search(0.01, 1.0),
    ] = None
    lr_decay: Annotated[float, Field(gt=0, le=1, description="factor on the local step size after each round")] = 1.0
    lr_drops: Annotated[
        list[tuple[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0)]]],
        Field(description="[[round, factor], ...]: the local step size is times the factor from that round on"),
    ] = []
    momentum: Annotated[
        float,
        Field(ge=0, lt=1, description="heavy-ball momentum of local steps, fresh each round"),
        Short("momentum", "job"),
    ] = 0.0
    nesterov: Annotated[bool, Field(description="Nesterov's form of the momentum")] = False
    weight_decay: Annotated[float, Field(ge=0, description="l2 pull to zero, added to the gradient")] = 0.0
    clip: Annotated[
        Annotated[float, Field(gt=0)] | None, Field(description="largest l2 norm of a stochastic gradient")
    ] = None
    clip_direction: Annotated[
        Annotated[float, Field(gt=0)] | None,
        Field(description="largest l2 norm of a whole direction, dual and proximal parts included"),
    ] = None
    clip_form: Annotated[
        Literal["whole", "released"],
        Field(description="of clip_direction; released, as FL-Simulator and FedDyn: decay and rho x are added after"),
    ] = "whole"
    oracle: Annotated[
        str,
        Field(
            description="which gradient a local step uses",
            json_schema_extra={"wanted": "a gradient oracle such as full or sam(0.1)"},
        ),
        Short("oracle", "job"),
    ] = "minibatch"
    solver: Annotated[
        Literal["sgd", "lbfgs"], Field(description="gradient steps, or L-BFGS on the client's full objective")
    ] = "sgd"
    step_decay: Annotated[
        float, Field(gt=0, le=1, description="factor on the local step size after each step of a round")
    ] = 1.0
    tolerance: Annotated[
        Annotated[float, Field(gt=0)] | None,
        Field(description="a client stops early at ||gradient of its local problem||^2 <= this; epochs are the cap"),
    ] = None


class EngineSettings(BaseModel):
    """How the rounds are computed; results depend on `dtype`, `precision` and `rows` alone."""

    model_config = STRICT
    name: Annotated[
        Literal["stacked", "serial", "distributed", "wire"],
        Field(
            description="many clients at once, one by one, shared by the processes that torchrun starts, or server and "
            "clients that share nothing but bytes"
        ),
        Short("engine", "run"),
    ] = "stacked"
    chunk: Annotated[Count | Literal["auto"], Field(description="clients in one batch of the stacked engine")] = "auto"
    workers: Annotated[
        Count | Literal["auto"],
        Field(description="batches of clients computed at once where a model has a kernel; auto: by counted work"),
    ] = "auto"
    kernel: Annotated[
        Literal["auto", "torch", "compiled"],
        Field(
            description="what computes local steps; compiled: all of a client's in one call by numba, for fully "
            "connected networks; auto: by counted work"
        ),
    ] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], Field(description="where to compute"), Short("device", "run")] = (
        "cpu"
    )
    dtype: Annotated[
        Literal["float32", "float64"], Field(description="precision of models and data"), Short("dtype", "job")
    ] = "float32"
    precision: Annotated[
        Literal["full", "tf32", "bf16"],
        Field(
            description="of a model's gradients: full is dtype's; bf16 and tf32 (on a GPU) are faster and less exact"
        ),
        Short("precision", "job"),
    ] = "full"
    threads: Annotated[
        Count | None,
        Field(description="CPU threads of one run; if none all cores that the container may use, shared by --jobs"),
        Short("threads", "run"),
    ] = None
    graphs: Annotated[
        bool, Field(description="on a GPU, local steps that every round repeats are recorded once as a CUDA graph")
    ] = False
    timeout: Annotated[
        float, Field(gt=0, description="seconds that a process of the distributed engine waits for the others")
    ] = 600.0
    store: Annotated[
        Literal["memory", "disk"],
        Field(description="where clients' state lies between rounds; disk: in the run's folder"),
    ] = "memory"
    rows: Annotated[
        Literal["full", "bfloat16", "float16"],
        Field(description="precision of clients' state between rounds; 2-byte numbers make exact methods inexact"),
    ] = "full"


class WireSettings(BaseModel):
    """What goes wrong on the wire of engine wire, as probabilities keyed by the run's seed."""

    model_config = STRICT
    loss: Annotated[Fault, Field(description="a message does not arrive, either way")] = 0.0
    duplicate: Annotated[Fault, Field(description="a message arrives twice")] = 0.0
    delay: Annotated[Fault, Field(description="a message arrives up to three exchanges late")] = 0.0
    corrupt: Annotated[Fault, Field(description="a message arrives with another bit")] = 0.0
    restart: Annotated[Fault, Field(description="a client restarts before it gets a message")] = 0.0
    server_restart: Annotated[Fault, Field(description="the server restarts at an exchange")] = 0.0
    tries: Annotated[Count, Field(description="times that a client is asked before a round goes on without it")] = 5


class SecureSettings(BaseModel):
    """Secure sums in a deployment: the server learns the sum of what sites contribute; not without `clip`."""

    model_config = STRICT
    clip: Annotated[
        Annotated[float, Field(gt=0)] | None,
        Field(description="largest absolute value of a number that a site contributes; makes sums secure"),
    ] = None
    bits: Annotated[
        int, Field(ge=8, le=48, description="of a number under masks: the sum of S sites is off by S clip / 2^bits")
    ] = 24
    threshold: Annotated[
        float,
        Field(gt=0.5, le=1, description="share of the sites that began a sum that must be there to the end to open it"),
    ] = 0.6


class EvalSettings(BaseModel):
    """What is measured between rounds."""

    model_config = STRICT
    every: Annotated[
        Count | None,
        Field(description="rounds between evaluations; if none 1, and by counted work for large jobs without a target"),
        Short("eval_every", "run"),
    ] = None
    target: Annotated[
        Annotated[float, Field(gt=0)] | None,
        Field(description="test accuracy, or other first metric, whose first round is reported"),
        Short("target", "run"),
    ] = None
    train_samples: Annotated[
        Count | None,
        Field(description="size of the fixed sample for the train loss; 10000, or fewer by counted work, if none"),
    ] = None
    clients: Annotated[
        bool | None,
        Field(description="look at every client after the last round; by counted work if none, true for most jobs"),
    ] = None
    clients_every: Annotated[
        Count | None, Field(description="rounds between looks at every client; after the last round alone if none")
    ] = None
    patience: Annotated[
        Count | None,
        Field(description="stop after this many evaluations in a row without a better model; never if none"),
    ] = None
    min_delta: Annotated[float, Field(ge=0, description="by how much a model must be better for patience")] = 0.0
    watch: Annotated[
        str | None,
        Field(description="metric that patience watches; validation_loss if none, without validation test_loss"),
    ] = None
    personalise: Annotated[
        str | None,
        Field(
            description="fine-tune the final model at every client and report both; needs validation",
            json_schema_extra={"wanted": "a personalisation such as finetune(steps=20,lr=0.05)"},
        ),
    ] = None


class PrivacySettings(BaseModel):
    """Differential privacy of clients; none without `clip`."""

    model_config = STRICT
    clip: Annotated[
        Annotated[float, Field(gt=0)] | str | None,
        Field(
            description="largest l2 norm of all that a client sends in a round; makes the job private",
            json_schema_extra={"wanted": "a number > 0 or a rule such as adaptive(quantile=0.5)"},
        ),
        Short("dp_clip", "job", "CLIP"),
    ] = None
    noise: Annotated[
        Annotated[float, Field(ge=0)] | None,
        Field(description="standard deviation of the Gaussian noise over clip; found from epsilon if none"),
        Short("dp_noise", "job"),
    ] = None
    epsilon: Annotated[
        Annotated[float, Field(gt=0, le=1000)] | None,
        Field(description="budget: finds the noise for the rounds, or with noise given ends the run when it is spent"),
        Short("epsilon", "job"),
    ] = None
    delta: Annotated[
        float, Field(gt=0, lt=1, description="of (epsilon, delta), below one over the clients"), Short("delta", "job")
    ] = 1e-5
    kind: Annotated[
        Literal["central", "local"],
        Field(description="who adds the noise: the server to the sum, or each client to its own message"),
    ] = "central"


def _as_text(value: object) -> object:
    """A number, which `--set input.missing=-9` is read as, as its text; anything else as it is."""
    return grammar.text(value) if type(value) in (int, float) else value


class InputSettings(BaseModel):
    """How data of your own are read: a table, arrays, images."""

    model_config = STRICT
    label: Annotated[
        list[str],
        Field(description="columns of your data to be learnt, or the array's key"),
        Short("label_column", "data", "NAME"),
    ] = []
    client: Annotated[
        str | None,
        Field(description="column of your data whose values are the clients"),
        Short("client_column", "data"),
    ] = None
    target: Annotated[
        Literal["class", "number", "labels"] | None,
        Field(description="classes, numbers, or labels that may hold together; guessed, and said, if none"),
        Short("target_kind", "data", "KIND"),
    ] = None
    test: Annotated[
        str | None,
        Field(description="where your test samples are; a share of each client's if none"),
        Short("test_data", "data", "PATH"),
    ] = None
    test_share: Annotated[float, Field(gt=0, lt=1, description="part of each client's samples for the test")] = 0.2
    ignore: Annotated[list[str], Field(description="columns that are left out")] = []
    categories: Annotated[list[str], Field(description="columns of numbers that are names")] = []
    missing: Annotated[
        list[str],
        BeforeValidator(lambda given: [*map(_as_text, given)] if isinstance(given, list) else given),
        Field(
            description="texts that stand for no value, beside the empty one, ?, NA, NaN and null; numbers, by value"
        ),
    ] = []
    statistics: Annotated[
        str | None,
        Field(description="JSON or TOML file of means, scales and categories; sums of the clients if none"),
    ] = None
    image_size: Annotated[
        Annotated[int, Field(ge=1, le=4096)] | None,
        Field(description="side in pixels that images are brought to; they must have one size if none"),
    ] = None
    memory: Annotated[
        Annotated[float, Field(gt=0)] | None,
        Field(description="GiB that the data may take; half of the machine's if none"),
    ] = None


class CheckpointSettings(BaseModel):
    """How much work an interruption may cost."""

    model_config = STRICT
    every: Annotated[
        float,
        Field(ge=0, description="seconds between checkpoints; 0 is every round"),
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
