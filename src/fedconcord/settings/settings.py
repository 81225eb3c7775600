"""Every key of a job with its meaning and range; those of its tables stand in `settings.sections`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from fedconcord.options.option import Short
from fedconcord.settings.sections import (
    SECTIONS,
    STRICT,
    CheckpointSettings,
    EngineSettings,
    EvalSettings,
    InputSettings,
    LocalSettings,
    PrivacySettings,
    SecureSettings,
    WireSettings,
)

Seed = Annotated[int, Field(ge=0, lt=2**63)]
DEFAULT_PARTITION, DEFAULT_MODEL = "dirichlet(0.1)", "2nn"
NATURAL = "natural"  # the partition of data that come in clients
RIVALS = (  # keys that exclude each other
    *(("method", "methods"), ("seed", "seeds"), ("local.epochs", "local.steps")),
    *(("local.epochs", "local.seconds"), ("local.steps", "local.seconds")),
)


class Config(BaseModel):
    """A whole job: one run (`method`, `seed`) or a comparison (`methods` x `seeds`)."""

    model_config = STRICT
    method: Annotated[
        str | None,
        Field(
            description="the method of a run, fedavg or fedprox(mu=0.1), or package.module:factory for your own",
            json_schema_extra={"usual": "fedavg"},
        ),
        Short("method", "job"),
    ] = None
    methods: Annotated[
        Annotated[list[str], Field(min_length=1)] | None,
        Field(
            description="the methods of a comparison; fedprox(mu=0.1, local.lr=0.05) sets a local key for one, "
            "as do privacy.epsilon=, server=, upload= and aggregate=; label= names it",
            json_schema_extra={"wanted": "a list of methods such as fedavg,fedprox(mu=0.1)"},
        ),
        Short("methods", "job"),
    ] = None
    baselines: Annotated[
        list[str],
        Field(
            description="what the methods of a comparison are judged against: local, every client alone; pooled, all "
            "samples in one place; local(local.lr=0.05) sets a local key",
            json_schema_extra={"wanted": "a list of baselines such as local,pooled"},
        ),
        Short("baselines", "run"),
    ] = []
    algorithm: Annotated[dict[str, Any], Field(description="parameters of the one method: algorithm.mu = 0.1")] = {}
    label: Annotated[str | None, Field(description="name of the run in reports; the method's text if none")] = None
    data: Annotated[
        str,
        Field(description="data set or problem (`list data`), or your own: a file, a folder, package.module:factory"),
        Short("data", "data", "DATA"),
    ] = "digits"
    data_dir: Annotated[
        str | None,
        Field(description="folder of data files; else $FEDCONCORD_DATA, else a cache"),
        Short("data_dir", "data", "DIR"),
    ] = None
    partition: Annotated[
        str | None,
        Field(
            description="which client holds which samples, or package.module:function for your own",
            json_schema_extra={"usual": DEFAULT_PARTITION, "wanted": "a partition such as shards(2)"},
        ),
        Short("partition", "data"),
    ] = None
    skew: Annotated[
        str | None,
        Field(
            description="how the features differ by client, training samples only; not at all if none",
            json_schema_extra={"wanted": "a feature skew such as rotate(90) or noise(0.5)"},
        ),
    ] = None
    model: Annotated[
        str | None,
        Field(
            description="the model, or package.module:factory for your own", json_schema_extra={"usual": DEFAULT_MODEL}
        ),
        Short("model", "job"),
    ] = None
    loss: Annotated[
        str | None,
        Field(
            description="the loss of a sample, or package.module:function; the usual one of the target if none",
            json_schema_extra={"wanted": "a loss such as huber(1.0)"},
        ),
        Short("loss", "job"),
    ] = None
    metrics: Annotated[
        list[str],
        Field(
            description="what is measured on the test set, by name or package.module:function; the first ranks; the "
            "usual ones of the target if empty",
            json_schema_extra={"wanted": "a list of metrics such as rmse,mae"},
        ),
        Short("metrics", "job"),
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
    objective: Annotated[
        Literal["auto", "samples", "clients", "paper"],
        Field(
            description="what methods minimise where their papers leave it open: the mean over samples, over clients, "
            "or what each paper has; auto: samples where data of your own come in clients, else paper",
        ),
        Short("objective", "job"),
    ] = "auto"
    regulariser: Annotated[
        str | None,
        Field(
            description="a non-smooth term of the objective, met by proximal steps; none if none",
            json_schema_extra={"wanted": "a regulariser such as l1(0.001)"},
        ),
    ] = None
    clients: Annotated[int, Field(ge=1, description="clients in all, N"), Short("clients", "data")] = 50
    cohort: Annotated[
        int, Field(ge=1, description="clients that take part in a round; 10, or all if fewer"), Short("cohort", "job")
    ] = 10
    validation: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | Literal["auto"] | None,
        Field(
            description="part of each client's samples that is set apart and never trained on, to judge clients on; "
            "auto: 0.1 where most clients then have 10 or more, 0.2 for baselines and eval.personalise; or none"
        ),
    ] = "auto"
    rounds: Annotated[int, Field(ge=1, description="communication rounds"), Short("rounds", "run")] = 100
    lr_schedule: Annotated[
        str,
        Field(
            description="how the local step size goes on from round to round, a factor on it, or "
            "package.module:function for your own",
            json_schema_extra={"wanted": "a schedule such as cosine(100) or step(30,0.1)"},
        ),
        Short("lr_schedule", "job"),
    ] = "constant"
    sampling: Annotated[
        str,
        Field(
            description="which clients take part in a round, or package.module:factory for your own",
            json_schema_extra={"wanted": "a sampling such as uniform or bernoulli(0.1)"},
        ),
        Short("sampling", "job"),
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
        Short("server", "job"),
    ] = None
    upload: Annotated[
        str | None,
        Field(
            description="how the clients' messages are compressed; not at all if none",
            json_schema_extra={"wanted": "a compressor such as quantise(8) or topk(0.1)"},
        ),
        Short("upload", "job"),
    ] = None
    aggregate: Annotated[
        str | None,
        Field(
            description="what the server makes of the clients' contributions; their weighted mean if none",
            json_schema_extra={"wanted": "an aggregation rule such as median or krum(2)"},
        ),
        Short("aggregate", "job"),
    ] = None
    hostile: Annotated[
        str | None,
        Field(
            description="what hostile clients do, in a simulation; nobody is hostile if none",
            json_schema_extra={"wanted": "an attack such as sign_flip(0.2) or nan(0.1)"},
        ),
        Short("hostile", "job"),
    ] = None
    seed: Annotated[
        Seed | None,
        Field(
            description="the seed of a run, of all its randomness",
            json_schema_extra={"usual": 0, "wanted": "an integer >= 0"},
        ),
        Short("seed", "data"),
    ] = None
    seeds: Annotated[
        Annotated[list[Seed], Field(min_length=1)] | None,
        Field(
            description="the seeds of a comparison; all methods of a seed meet the same clients and batches",
            json_schema_extra={"usual": [0], "wanted": "a list of integers >= 0 such as 0,1,2"},
        ),
        Short("seeds", "job"),
    ] = None
    out: Annotated[
        str | None,
        Field(description="folder of the results; a new one below runs/ if none"),
        Short("out", "run", "DIR"),
    ] = None
    track: Annotated[
        list[str],
        Field(
            description="who else is told of every round: tensorboard, mlflow or wandb, below the results",
            json_schema_extra={"wanted": "a list of trackers such as tensorboard,mlflow"},
        ),
        Short("track", "run"),
    ] = []
    local: LocalSettings = LocalSettings()
    engine: EngineSettings = EngineSettings()
    wire: WireSettings = WireSettings()
    secure: SecureSettings = SecureSettings()
    eval: EvalSettings = EvalSettings()
    privacy: PrivacySettings = PrivacySettings()
    input: InputSettings = InputSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()

    def as_dict(self) -> dict[str, Any]:
        """Nested plain values without the keys that are not set: JSON, and TOML but for a parameter that is none."""
        full = self.model_dump(mode="json")
        if self.input == InputSettings():  # others' data
            del full["input"]
        if self.engine.name != "wire":
            del full["wire"]
        if self.secure == SecureSettings():
            del full["secure"]
        if self.privacy == PrivacySettings():
            del full["privacy"]
        nested = {k: {i: v for i, v in x.items() if v not in (None, [])} for k, x in full.items() if k in SECTIONS}
        flat = {k: v for k, v in full.items() if k not in SECTIONS and v not in (None, {}, [])}
        flat.setdefault("validation", "none")  # which is not what a file without the key says
        return {k: full["algorithm"] if k == "algorithm" else v for k, v in (flat | nested).items()}
