"""Every key of a job with its meaning and range; those of its tables stand in `settings.sections`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from fedconcord.basis.parameters import Count, Positive
from fedconcord.settings.sections import (
    SECTIONS,
    STRICT,
    CheckpointSettings,
    EngineSettings,
    EvalSettings,
    InputSettings,
    LocalSettings,
    Part,
    PrivacySettings,
    SecureSettings,
    WireSettings,
    key,
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
    method: str | None = key(None, usual="fedavg", stage="job")
    """the method that a run trains with, such as fedavg or fedprox(mu=0.1), or package.module:factory for a method of
    your own"""
    methods: Annotated[list[str], Field(min_length=1)] | None = key(
        None, "a list of methods such as fedavg,fedprox(mu=0.1)", stage="job"
    )
    """the methods to compare; a method may have settings of its own, as in fedprox(mu=0.1, local.lr=0.05): local.*,
    privacy.*, server=, upload=, aggregate=, and label= for its name in reports"""
    baselines: list[str] = key([], "a list of baselines such as local,pooled", stage="run")
    """what the methods are compared with: local trains every client alone, pooled trains one model on all samples in
    one place; a baseline may have local settings of its own, as in local(local.lr=0.05)"""
    algorithm: dict[str, Any] = {}
    """parameters of the method of a run, as in algorithm.mu = 0.1"""
    label: str | None = None
    """name of the run in reports; if none, the text of its method"""
    data: str = key("digits", stage="data", metavar="DATA")
    """the data set or problem (`list data` shows all), or your own data: a file, a folder, or package.module:factory"""
    data_dir: str | None = key(None, stage="data", metavar="DIR")
    """folder with the files of data sets; if none, $FEDCONCORD_DATA, or else a folder in your cache"""
    partition: str | None = key(None, "a partition such as shards(2)", usual=DEFAULT_PARTITION, stage="data")
    """how the samples are divided over the clients, or package.module:function for a partition of your own"""
    skew: str | None = key(None, "a feature skew such as rotate(90) or noise(0.5)")
    """how the features of training samples differ from client to client; if none, they do not"""
    model: str | None = key(None, usual=DEFAULT_MODEL, stage="job")
    """the model to train, or package.module:factory for a model of your own"""
    loss: str | None = key(None, "a loss such as huber(1.0)", stage="job")
    """the loss of one sample, or package.module:function for a loss of your own; if none, the usual loss for the kind
    of target"""
    metrics: list[str] = key([], "a list of metrics such as rmse,mae", stage="job")
    """the metrics to measure on the test set, by name or package.module:function; methods are ranked by the first; if
    empty, the usual metrics for the kind of target"""
    labels: str | None = key(None, "a removal of labels such as labelled(0.1)")
    """which training samples keep their label; if none is given, all do"""
    task: str | None = key(None, "a task such as semi(alpha_r=0.1) or clustering(k=10)")
    """the learning task: semi (semi-supervised classification) or clustering, which keep a private block at every
    client; if none, supervised learning, or semi where `labels` is given"""
    objective: Literal["auto", "samples", "clients", "paper"] = key("auto", stage="job")
    """which average of the clients' losses is minimised where the paper of a method leaves it open: over samples, over
    clients, or as in the paper; auto is samples where data of your own come in clients, and paper elsewhere"""
    regulariser: str | None = key(None, "a regulariser such as l1(0.001)")
    """a non-smooth term of the objective, which proximal steps handle; if none is given, there is no such term"""
    clients: Count = key(50, stage="data")
    """number of clients, N"""
    cohort: Count = key(10, stage="job")
    """number of clients that take part in a round; if it is not given, 10, or all where there are fewer"""
    validation: Part | Literal["auto"] | None = "auto"
    """fraction of each client's samples that is set apart for validation and never trained on; auto is 0.1 where that
    is 10 or more samples of the median client, 0.2 with baselines and eval.personalise; none sets nothing apart"""
    rounds: Count = key(100, stage="run")
    """number of communication rounds"""
    lr_schedule: str = key("constant", "a schedule such as cosine(100) or step(30,0.1)", stage="job")
    """how the local step size changes from round to round, as a factor on it, or package.module:function for a schedule
    of your own"""
    sampling: str = key("uniform", "a sampling such as uniform or bernoulli(0.1)", stage="job")
    """how the clients of a round are chosen, or package.module:factory for a sampling of your own"""
    availability: str | None = key(None, "an availability such as coins(0.1,1) or markov(0.1,0.3)")
    """which clients are available in a round; if none is given, all are"""
    dropout: float | str | None = key(None, "a number such as 0.1 or a rule such as by_client(0,0.2)")
    """probability that a client drops out in the middle of a round; if none, no client does"""
    devices: str | None = key(None, "a model of devices such as lognormal(0.5)")
    """how fast the clients' devices and links are, which simulates the time of rounds; if none, time is not
    simulated"""
    deadline: Positive | None = None
    """longest duration of a round in simulated seconds; if none, a round waits for every reply"""
    late: Literal["discard", "keep"] = "discard"
    """what happens to replies after the deadline: discard drops them, keep counts them in the round in which they
    arrive"""
    server: str | None = key(None, "a server optimiser such as momentum(0.9)", stage="job")
    """the optimiser that the server applies to the step of the method; if none, the step is taken as it is"""
    upload: str | None = key(None, "a compressor such as quantise(8) or topk(0.1)", stage="job")
    """how the clients' messages to the server are compressed; if none, they are not"""
    aggregate: str | None = key(None, "an aggregation rule such as median or krum(2)", stage="job")
    """how the server combines the clients' contributions; if none, by their weighted mean"""
    hostile: str | None = key(None, "an attack such as sign_flip(0.2) or nan(0.1)", stage="job")
    """how hostile clients attack, in a simulation; if none, no client is hostile"""
    seed: Seed | None = key(None, "an integer >= 0", usual=0, stage="data")
    """the seed of all randomness of a run"""
    seeds: Annotated[list[Seed], Field(min_length=1)] | None = key(
        None, "a list of integers >= 0 such as 0,1,2", usual=[0], stage="job"
    )
    """the seeds of a comparison: every method runs once with each, and all methods of one seed meet the same clients
    and batches"""
    out: str | None = key(None, stage="run", metavar="DIR")
    """folder for the results; if none, a new folder below runs/"""
    track: list[str] = key([], "a list of trackers such as tensorboard,mlflow", stage="run")
    """experiment trackers that record every round, beside the results: tensorboard, mlflow or wandb"""
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
        unset = {table for table in ("input", "secure", "privacy") if getattr(self, table) == SECTIONS[table]()}
        full = self.model_dump(mode="json", exclude=unset | ({"wire"} if self.engine.name != "wire" else set()))
        nested = {k: {i: v for i, v in x.items() if v not in (None, [])} for k, x in full.items() if k in SECTIONS}
        flat = {k: v for k, v in full.items() if k not in SECTIONS and v not in (None, {}, [])}
        flat.setdefault("validation", "none")  # which is not what a file without the key says
        return {k: full["algorithm"] if k == "algorithm" else v for k, v in (flat | nested).items()}
