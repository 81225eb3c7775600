"""Every key of a job with its meaning and range."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedconcord import spec
from fedconcord.errors import UserError

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Value = spec.Value
WORK_TEXT = {"wanted": "an integer >= 1 or a draw such as uniform(1,5)"}


class LocalSettings(BaseModel):
    """What a client does in a round."""

    model_config = STRICT
    epochs: Annotated[
        Count | str | None,
        Field(description="passes over its samples", json_schema_extra=WORK_TEXT),
    ] = 1
    steps: Annotated[
        Count | str | None, Field(description="local steps, instead of epochs", json_schema_extra=WORK_TEXT)
    ] = None
    seconds: Annotated[
        Annotated[float, Field(gt=0)] | str | None,
        Field(
            description="simulated seconds of computing, instead of epochs; needs devices",
            json_schema_extra={"wanted": "a number > 0 or a draw such as uniform(1,5)"},
        ),
    ] = None
    batch_size: Annotated[Count | Literal["full"], Field(description="samples a step, or full")] = 10
    lr: Annotated[float, Field(gt=0, description="local step size")] = 0.1
    lr_decay: Annotated[float, Field(gt=0, le=1, description="factor on the local step size after each round")] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1, description="heavy-ball momentum, fresh each round")] = 0.0
    weight_decay: Annotated[float, Field(ge=0, description="l2 pull to zero, added to the gradient")] = 0.0
    clip: Annotated[
        Annotated[float, Field(gt=0)] | None, Field(description="largest l2 norm of a stochastic gradient")
    ] = None
    oracle: Annotated[
        str,
        Field(
            description="which gradient a local step uses",
            json_schema_extra={"wanted": "a gradient oracle such as full or sam(0.1)"},
        ),
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
    """How the rounds are computed; results depend on the precisions `dtype` and `rows` alone."""

    model_config = STRICT
    name: Annotated[
        Literal["stacked", "serial", "distributed"],
        Field(description="many clients at once, one by one, or shared by the processes that torchrun starts"),
    ] = "stacked"
    chunk: Annotated[Count | Literal["auto"], Field(description="clients in one batch of the stacked engine")] = "auto"
    workers: Annotated[
        Count | Literal["auto"],
        Field(description="batches of clients computed at once where a model has a kernel; auto: measured"),
    ] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], Field(description="where to compute")] = "cpu"
    dtype: Annotated[Literal["float32", "float64"], Field(description="precision of models and data")] = "float32"
    threads: Annotated[Count | None, Field(description="CPU threads of one run; all cores if none")] = None
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


class EvalSettings(BaseModel):
    """What is measured between rounds."""

    model_config = STRICT
    every: Annotated[int, Field(ge=1, description="rounds between evaluations")] = 1
    target: Annotated[
        Annotated[float, Field(gt=0)] | None,
        Field(description="test accuracy, or other first metric, whose first round is reported"),
    ] = None
    train_samples: Annotated[int, Field(ge=1, description="size of the fixed sample for the train loss")] = 10_000
    clients: Annotated[bool, Field(description="look at every client after the last round")] = True
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


class InputSettings(BaseModel):
    """How data of your own are read: a table, arrays, images."""

    model_config = STRICT
    label: Annotated[list[str], Field(description="columns to be learnt, or the array's key")] = []
    client: Annotated[str | None, Field(description="column whose values are the clients")] = None
    target: Annotated[
        Literal["class", "number", "labels"] | None,
        Field(description="classes, numbers, or labels that may hold together; guessed, and said, if none"),
    ] = None
    test: Annotated[str | None, Field(description="where test samples are; a share of each client's if none")] = None
    test_share: Annotated[float, Field(gt=0, lt=1, description="part of each client's samples for the test")] = 0.2
    ignore: Annotated[list[str], Field(description="columns that are left out")] = []
    categories: Annotated[list[str], Field(description="columns of numbers that are names")] = []
    missing: Annotated[
        list[str], Field(description="texts that stand for no value, beside the empty one, ?, NA, NaN and null")
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
    every: Annotated[float, Field(ge=0, description="seconds between checkpoints; 0 is every round")] = 30.0


class Config(BaseModel):
    """A whole job: one run (`method`, `seed`) or a comparison (`methods` x `seeds`)."""

    model_config = STRICT
    method: Annotated[str | None, Field(description="the method of a run, fedavg or fedprox(mu=0.1)")] = None
    methods: Annotated[
        Annotated[list[str], Field(min_length=1)] | None,
        Field(
            description="the methods of a comparison; fedprox(mu=0.1, local.lr=0.05) sets a local key for one, "
            "as do server= and upload=",
            json_schema_extra={"wanted": "a list of methods such as fedavg,fedprox(mu=0.1)"},
        ),
    ] = None
    algorithm: Annotated[dict[str, Any], Field(description="parameters of the one method: algorithm.mu = 0.1")] = {}
    label: Annotated[str | None, Field(description="name of the run in reports; the method's text if none")] = None
    data: Annotated[
        str,
        Field(description="data set or problem (`list data`), or your own: a file, a folder, package.module:factory"),
    ] = "digits"
    data_dir: Annotated[str | None, Field(description="folder of data files; else $FEDCONCORD_DATA, else a cache")] = (
        None
    )
    partition: Annotated[str | None, Field(description="which client holds which samples")] = None
    skew: Annotated[
        str | None,
        Field(
            description="how the features differ by client, training samples only; not at all if none",
            json_schema_extra={"wanted": "a feature skew such as rotate(90) or noise(0.5)"},
        ),
    ] = None
    model: Annotated[str | None, Field(description="the model, or package.module:factory for your own")] = None
    loss: Annotated[
        str | None,
        Field(
            description="the loss of a sample, or package.module:function; the usual one of the target if none",
            json_schema_extra={"wanted": "a loss such as huber(1.0)"},
        ),
    ] = None
    metrics: Annotated[
        list[str],
        Field(
            description="what is measured on the test set, by name or package.module:function; the first ranks; the "
            "usual ones of the target if empty",
            json_schema_extra={"wanted": "a list of metrics such as rmse,mae"},
        ),
    ] = []
    labels: Annotated[
        str | None,
        Field(
            description="which samples keep their label; all if none",
            json_schema_extra={"wanted": "a removal of labels such as labelled(0.1)"},
        ),
    ] = None
    task: Annotated[
        str | None,
        Field(
            description="semi or clustering, with a private block a client; classification if none, semi with labels",
            json_schema_extra={"wanted": "a task such as semi(alpha_r=0.1) or clustering(k=10)"},
        ),
    ] = None
    regulariser: Annotated[
        str | None,
        Field(
            description="a non-smooth term of the objective, met by proximal steps; none if none",
            json_schema_extra={"wanted": "a regulariser such as l1(0.001)"},
        ),
    ] = None
    clients: Annotated[int, Field(ge=1, description="clients N")] = 50
    cohort: Annotated[int, Field(ge=1, description="clients that take part in a round; 10, or all if fewer")] = 10
    validation: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | None,
        Field(description="part of each client's samples that is set apart and never trained on; none if none"),
    ] = None
    rounds: Annotated[int, Field(ge=1, description="communication rounds")] = 100
    sampling: Annotated[
        str,
        Field(
            description="which clients take part in a round",
            json_schema_extra={"wanted": "a sampling such as uniform or bernoulli(0.1)"},
        ),
    ] = "uniform"
    availability: Annotated[
        str | None,
        Field(
            description="which clients could take part in a round; all if none",
            json_schema_extra={"wanted": "an availability such as coins(0.1,1) or markov(0.1,0.3)"},
        ),
    ] = None
    dropout: Annotated[
        float | str | None,
        Field(
            description="probability that a client is lost in the middle of a round",
            json_schema_extra={"wanted": "a number such as 0.1 or a rule such as by_client(0,0.2)"},
        ),
    ] = None
    devices: Annotated[
        str | None,
        Field(
            description="how fast devices and links are; simulates the time of rounds",
            json_schema_extra={"wanted": "a model of devices such as lognormal(0.5)"},
        ),
    ] = None
    deadline: Annotated[
        Annotated[float, Field(gt=0)] | None, Field(description="simulated seconds that a round lasts at most")
    ] = None
    late: Annotated[
        Literal["discard", "keep"], Field(description="replies after the deadline: lost, or kept for their round")
    ] = "discard"
    server: Annotated[
        str | None,
        Field(
            description="what the method's step at the server goes through; the step as it is if none",
            json_schema_extra={"wanted": "a server optimiser such as momentum(0.9)"},
        ),
    ] = None
    upload: Annotated[
        str | None,
        Field(
            description="how the clients' messages are compressed; not at all if none",
            json_schema_extra={"wanted": "a compressor such as quantise(8) or topk(0.1)"},
        ),
    ] = None
    seed: Annotated[
        Seed | None, Field(description="the seed of a run", json_schema_extra={"wanted": "an integer >= 0"})
    ] = None
    seeds: Annotated[
        Annotated[list[Seed], Field(min_length=1)] | None,
        Field(
            description="the seeds of a comparison; all methods of a seed meet the same clients and batches",
            json_schema_extra={"wanted": "a list of integers >= 0 such as 0,1,2"},
        ),
    ] = None
    out: Annotated[str | None, Field(description="folder of the results; a new one below runs/ if none")] = None
    local: LocalSettings = LocalSettings()
    engine: EngineSettings = EngineSettings()
    eval: EvalSettings = EvalSettings()
    input: InputSettings = InputSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()

    def as_dict(self) -> dict[str, Any]:
        """Nested plain values without the keys that are not set: JSON, and TOML but for a parameter that is none."""
        full = self.model_dump(mode="json")
        if self.input == InputSettings():  # others' data
            del full["input"]
        nested = {k: {i: v for i, v in x.items() if v not in (None, [])} for k, x in full.items() if k in SECTIONS}
        flat = {k: v for k, v in full.items() if k not in SECTIONS and v not in (None, {}, [])}
        return {k: full["algorithm"] if k == "algorithm" else v for k, v in (flat | nested).items()}


SECTIONS: dict[str, type[BaseModel]] = {
    "local": LocalSettings,
    "engine": EngineSettings,
    "eval": EvalSettings,
    "input": InputSettings,
    "checkpoint": CheckpointSettings,
}
RIVALS = (
    *(("method", "methods"), ("seed", "seeds"), ("local.epochs", "local.steps")),
    *(("local.epochs", "local.seconds"), ("local.steps", "local.seconds")),
)
DEFAULT_PARTITION, DEFAULT_MODEL = "dirichlet(0.1)", "2nn"
NATURAL = "natural"  # the partition of data that come in clients


@functools.cache
def keys() -> dict[str, dict[str, Any]]:
    """Every key in dotted form with its JSON schema; `algorithm` stands for the method's own parameters."""
    found: dict[str, dict[str, Any]] = dict(Config.model_json_schema()["properties"])
    for section, model in SECTIONS.items():
        del found[section]
        found |= {f"{section}.{k}": v for k, v in model.model_json_schema()["properties"].items()}
    return found


def validated(model: type[BaseModel], values: Mapping[str, Any], prefix: str, origin: Mapping[str, str]) -> Any:
    """The values as a model; the first wrong one becomes a sentence."""
    try:
        # JSON mode is strict about numbers, texts and booleans alike
        return model.model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        loc = [str(part) for part in error.errors(include_url=False)[0]["loc"]]
        full = prefix + loc[0] + (f".{loc[1]}" if loc[0] in SECTIONS and len(loc) > 1 else "")
        value: Any = values
        for part in full.removeprefix(prefix).split("."):
            value = value[part]
        place = f" ({origin[full]})" if full in origin else ""
        schema = keys()[full.split(": ")[-1]]
        given = f"{spec.shown(value)}{spec.near_choice(schema, value)}{place}"
        raise UserError(f"{full} must be {spec.must_be(schema)}, given {given}") from None
