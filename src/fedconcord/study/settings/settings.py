"""Every key of a job with its type, default and meaning: its tables, and the whole."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedconcord.study.options import Stage
from fedconcord.support import grammar
from fedconcord.support.factories import Search
from fedconcord.support.parameters import BelowOne, Count, Fraction, NotNegative, Positive

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
Part = Annotated[float, Field(gt=0, lt=1)]
MOST_TRAIN_SAMPLES = 10_000
LR = 0.1  # of methods without a rule of their own
WORK_TEXT = "an integer >= 1 or a draw such as uniform(1,5)"


def key(
    default: object,
    wanted: str | None = None,
    *,
    usual: object = None,
    stage: Stage | None = None,
    name: str | None = None,
    metavar: str | None = None,
    search: Search | None = None,
) -> Any:
    """What is said of a key beside its type, default and meaning, which stands below it, as the value of its field.

    Args:
        wanted: what its value must be, where the type does not say it.
        usual: what none comes to.
        stage: where it first matters, if it is an option of commands and an argument of functions.
        name: what these call it, if not by its key: `batch_size` is --batch-size.
        metavar: what stands for its value in --help; by its type if none.
        search: where tuning looks for it, if it does.
    """
    facts = {"wanted": wanted, "usual": usual, "stage": stage, "name": name, "metavar": metavar, "search": search}
    extra = {fact: value for fact, value in facts.items() if value is not None}
    return Field(default, json_schema_extra=extra)  # type: ignore[arg-type]


class LocalSettings(BaseModel):
    """What a client does in a round."""

    model_config = STRICT
    epochs: Count | str | None = key(1, WORK_TEXT, stage="job", metavar="WORK")
    """passes of a client over its samples in a round"""
    steps: Count | str | None = key(None, WORK_TEXT, stage="job", metavar="WORK")
    """local steps of a client in a round, in place of epochs"""
    seconds: Positive | str | None = key(None, "a number > 0 or a draw such as uniform(1,5)")
    """simulated seconds that a client computes in a round, in place of epochs; needs devices"""
    batch_size: Count | str = key(10, "an integer >= 1, full, poisson(0.05) or disjoint(20)", stage="job", metavar="N")
    """samples in the mini-batch of a local step; full: all; poisson(q): each with chance q; disjoint(n): an n-th"""
    lr: Positive | str | None = key(
        None, "a number > 0 or a rule such as auto", usual=LR, stage="job", metavar="LR", search=Search(0.01, 1.0)
    )
    """local step size, or the rule by which every client finds its own"""
    lr_decay: Fraction = 1.0
    """factor by which the local step size is multiplied after every round"""
    lr_drops: list[tuple[Count, Positive]] = []
    """rounds from which on the local step size is multiplied by a factor, as [[round, factor], ...]"""
    momentum: BelowOne = key(0.0, stage="job")
    """heavy-ball momentum of the local steps, which starts anew in every round"""
    nesterov: bool = False
    """whether the momentum has Nesterov's form"""
    optimiser: str | None = key(
        None, "a local optimiser such as adamw or muon(state=kept)", stage="job", name="local_optimiser"
    )
    """what turns the direction of a local step into a move; if none, the move is the direction times the step size"""
    code: str | None = key(None, "a function package.module:name (model, batches, visit)", stage="job")
    """your own local training in torch, or one step of it, in place of local steps; if none, there are local steps"""
    private: str | None = key(
        None, "a pattern of names such as head.*", stage="job", name="local_private", metavar="PATTERN"
    )
    """parameters of the model that a client keeps for itself, a pattern of names, several with |; if none, none"""
    private_steps: Count | Literal["frozen"] | None = key(
        None, "an integer >= 1 or frozen", stage="job", name="local_private_steps"
    )
    """local steps on private parameters alone, before those on shared ones; frozen: none; if none, steps move both"""
    term: str | None = key(None, "a term such as ntd or moon(weight=5)", stage="job", name="term")
    """what is added to the clients' loss, or package.module:factory for a term of your own; if none, nothing is"""
    weight_decay: NotNegative = 0.0
    """factor of the weight decay (l2 penalty) in every gradient"""
    clip: Positive | None = None
    """largest l2 norm of a stochastic gradient; if none, gradients are not clipped"""
    clip_direction: Positive | None = None
    """largest l2 norm of the direction of a local step, dual and proximal terms included; if none, it is not clipped"""
    clip_form: Literal["whole", "released"] = "whole"
    """what clip_direction clips: whole, all; released, as in FL-Simulator and FedDyn, all but weight decay and rho x"""
    oracle: str = key("minibatch", "a gradient oracle such as full or sam(0.1)", stage="job")
    """which gradient a local step uses"""
    solver: Literal["sgd", "lbfgs"] = "sgd"
    """how a client minimises: sgd takes gradient steps, lbfgs runs L-BFGS on its full objective"""
    step_schedule: str | None = key(None, "a schedule such as cosine(50) or constant(warmup=5)")
    """the factor on the local step size in each step of a round, an lr_schedule that counts steps; if none, 1"""
    tolerance: Positive | None = None
    """squared norm of its local problem's gradient at which a client stops early; if none, no client does"""


class EngineSettings(BaseModel):
    """How the rounds are computed; results depend on `dtype`, `precision` and `rows` alone."""

    model_config = STRICT
    name: Literal["stacked", "serial", "distributed", "wire"] = key("stacked", stage="run", name="engine")
    """how rounds are computed: stacked computes many clients at once, serial one after the other, distributed divides
    them over the processes that torchrun starts, and wire has a server and clients that share nothing but bytes"""
    chunk: Count | Literal["auto"] = "auto"
    """number of clients in one batch of the stacked engine"""
    workers: Count | Literal["auto"] = "auto"
    """number of batches of clients at the same time, where the model has a kernel; auto decides by counted work"""
    kernel: Literal["auto", "torch", "compiled"] = "auto"
    """local steps by torch, or compiled by numba (fully connected networks alone); auto decides by counted work"""
    device: Literal["auto", "cpu", "cuda"] = key("cpu", stage="run")
    """device that computes"""
    dtype: Literal["float32", "float64"] = key("float32", stage="job")
    """floating-point type of models and data"""
    precision: Literal["full", "tf32", "bf16"] = key("full", stage="job")
    """precision of a model's gradients: full is that of dtype; bf16, and tf32 on a GPU, are faster and less exact"""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = key(None, stage="run")
    """number of CPU threads of one run; if none, all cores that the container may use, divided over the runs of
    --jobs"""
    graphs: bool = False
    """whether local steps that every round repeats are recorded once as a CUDA graph; needs a GPU"""
    timeout: Positive = 600.0
    """seconds that a process of the distributed engine waits for the others"""
    store: Literal["memory", "disk"] = "memory"
    """where the state of clients is kept between rounds: in memory, or on disk, in the folder of the run"""
    rows: Literal["full", "bfloat16", "float16"] = "full"
    """floating-point type of the clients' state between rounds: full is that of dtype; 2 bytes make methods inexact"""


class WireSettings(BaseModel):
    """What goes wrong on the wire of engine wire, as probabilities keyed by the run's seed."""

    model_config = STRICT
    loss: BelowOne = 0.0
    """probability that a message is lost, in either direction"""
    duplicate: BelowOne = 0.0
    """probability that a message arrives twice"""
    delay: BelowOne = 0.0
    """probability that a message arrives up to three exchanges late"""
    corrupt: BelowOne = 0.0
    """probability that a message arrives with one bit changed"""
    restart: BelowOne = 0.0
    """probability that a client restarts before it receives a message"""
    server_restart: BelowOne = 0.0
    """probability that the server restarts at an exchange"""
    tries: Count = 5
    """number of times that a client is asked before a round goes on without it"""


class SecureSettings(BaseModel):
    """Secure sums in a deployment: the server learns the sum of what sites contribute; not without `clip`."""

    model_config = STRICT
    clip: Positive | None = None
    """largest absolute value of a number that a site contributes; turns secure sums on"""
    bits: Annotated[int, Field(ge=8, le=48)] = 24
    """number of bits of a masked number; the sum over S sites has an error of up to S clip / 2^bits"""
    threshold: Annotated[float, Field(gt=0.5, le=1)] = 0.67
    """fraction of a round's sites that must be there to the end of a secure sum, so that it is opened"""
    group: Literal["cohort", "edge"] = "cohort"
    """whose masks cancel: those of a round's sites, or of those below one edge server, whose sum is known then"""


class EvalSettings(BaseModel):
    """What is measured between rounds."""

    model_config = STRICT
    every: Count | None = key(None, stage="run", name="eval_every")
    """number of rounds between evaluations; if none, 1, or by counted work for large jobs without a target"""
    target: Positive | None = key(None, stage="run")
    """report the first round that reaches this test accuracy (or first metric)"""
    stop_at_target: bool = False
    """whether a run ends at the first evaluated round that reaches the target"""
    train_samples: Count | None = None
    """number of training samples, always the same, of the train loss; if none, 10000, or fewer by counted work"""
    clients: bool | None = None
    """whether the model is evaluated at every client after the last round; if none, by counted work, mostly true"""
    clients_every: Count | None = None
    """number of rounds between evaluations at every client; if none, only after the last round"""
    patience: Count | None = None
    """number of evaluations in a row without a better model after which a run stops; if none, it does not stop early"""
    min_delta: NotNegative = 0.0
    """smallest improvement that makes a model better for patience"""
    watch: str | None = None
    """the metric that patience watches; if none, validation_loss, or test_loss without validation"""
    personalise: str | None = key(None, "a personalisation such as finetune(steps=20,lr=0.05)")
    """how every client fine-tunes the final model; both are reported; needs validation; if none, clients do not"""


class PrivacySettings(BaseModel):
    """Differential privacy of clients, samples or persons; none without `clip`."""

    model_config = STRICT
    clip: Positive | str | None = key(
        None, "a number > 0 or a rule such as adaptive(quantile=0.5)", stage="job", name="dp_clip", metavar="CLIP"
    )
    """largest l2 norm of a client's message, or of a sample's or person's gradient; turns differential privacy on"""
    unit: Literal["client", "sample", "person"] = key("client", stage="job", name="dp_unit")
    """what is protected: a client with all its samples, each sample, that is each row, or each person with all rows"""
    noise: NotNegative | None = key(None, stage="job", name="dp_noise")
    """noise multiplier: the noise's standard deviation divided by clip; if none, it follows from epsilon"""
    epsilon: Annotated[float, Field(gt=0, le=1000)] | None = key(None, stage="job")
    """privacy budget: the noise follows from it and the rounds, or the run ends when it is spent, if noise is given"""
    delta: Part = key(1e-5, stage="job")
    """the delta of (epsilon, delta)-privacy, below 1 / clients or 1 / samples"""
    kind: Literal["central", "local"] = "central"
    """who adds the noise: central, the server to the sum; local, every client to its own message"""
    client_clip: Positive | None = None
    """with unit sample or person: largest l2 norm of a message, so that noise of the server protects clients too"""
    client_noise: NotNegative | None = None
    """standard deviation of that noise divided by client_clip"""


def _as_text(value: object) -> object:
    """A number, which `--set input.missing=-9` is read as, as its text; anything else as it is."""
    return grammar.text(value) if type(value) in (int, float) else value


class InputSettings(BaseModel):
    """How data of your own are read: a table, arrays, images."""

    model_config = STRICT
    label: list[str] = key([], stage="data", name="label_column", metavar="NAME")
    """columns of your data that hold the labels, or the key of the array with the labels"""
    client: str | None = key(None, stage="data", name="client_column")
    """column of your data that says to which client a row belongs"""
    person: str | None = key(None, stage="data", name="person_column")
    """column of your data that says whose row it is, as a patient's number: privacy.unit person protects all of them"""
    target: Literal["class", "number", "labels", "tokens"] | None = key(
        None, stage="data", name="target_kind", metavar="KIND"
    )
    """kind of the labels: classes, numbers, labels that may hold together, tokens; if none, it is guessed and said"""
    test: str | None = key(None, stage="data", name="test_data", metavar="PATH")
    """file or folder of your test samples; if none, a fraction of each client's samples is set apart"""
    test_share: Part = 0.2
    """fraction of each client's samples that is set apart for the test"""
    ignore: list[str] = []
    """columns of your data that are left out"""
    categories: list[str] = []
    """columns of your data whose numbers stand for categories"""
    missing: Annotated[
        list[str], BeforeValidator(lambda given: [*map(_as_text, given)] if isinstance(given, list) else given)
    ] = []
    """texts that stand for a missing value, beside the empty text, ?, NA, NaN and null; numbers compare by value"""
    statistics: str | None = None
    """JSON or TOML file with the means, scales and categories of columns; if none, they come of clients' sums"""
    image_size: Annotated[int, Field(ge=1, le=4096)] | None = None
    """side in pixels to which images are resized; if none, all images must have the same size"""
    memory: Positive | None = None
    """memory in GiB that the data may take; if none, half of the machine's memory"""


class CheckpointSettings(BaseModel):
    """How much work an interruption may cost."""

    model_config = STRICT
    every: NotNegative = key(30.0, stage="run", name="checkpoint_every", metavar="SECONDS")
    """seconds between checkpoints, or nine times as long as one takes; 0 writes one after every round"""


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
    adapters: str | None = key(None, "adapters such as lora(where='query|value')", stage="job")
    """low-rank adapters, trained in place of the model's weights, which stay as they start; if none, weights train"""
    norm: Literal["pooled", "frozen", "silo"] = key("pooled", stage="job")
    """batch normalisation: by the batch, and in judging by all samples (pooled) or the client's (silo); or frozen"""
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
    """the factor on the local step size in each round, or package.module:function for a schedule of your own"""
    sampling: str = key("uniform", "a sampling such as uniform or bernoulli(0.1)", stage="job")
    """how the clients of a round are chosen, or package.module:factory for a sampling of your own"""
    availability: str | None = key(None, "an availability such as coins(0.1,1) or markov(0.1,0.3)")
    """which clients are available in a round; if none is given, all are"""
    dropout: float | str | None = key(None, "a number such as 0.1 or a rule such as by_client(0,0.2)")
    """probability that a client drops out in the middle of a round; if none, no client does"""
    tree: str | None = key(None, "edge servers such as edges(32, above=[4])")
    """servers between the clients and the root, whose sums nest, and which may be lost; if none, there is one server"""
    devices: str | None = key(None, "a model of devices such as lognormal(0.5)")
    """how fast the clients' devices and links are, which simulates the time of rounds; if none, there is no time"""
    deadline: Positive | None = None
    """longest duration of a round in simulated seconds; if none, a round waits for every reply"""
    late: Literal["discard", "keep"] = "discard"
    """what happens to replies after the deadline: discard drops them, keep counts them in the round of arrival"""
    clock: str | None = key(None, "a clock such as asynchronous(20)")
    """when the model moves: asynchronously, by every cohort of replies that is there; if none, rounds wait for all"""
    server: str | None = key(None, "a server optimiser such as momentum(0.9)", stage="job")
    """the optimiser that the server applies to the step of the method; if none, the step is taken as it is"""
    upload: str | None = key(None, "a compressor such as quantise(8) or topk(0.1)", stage="job")
    """how the clients' messages to the server are compressed; if none, they are not"""
    aggregate: str | None = key(None, "an aggregation rule such as median or krum(2)", stage="job")
    """how the server combines the clients' contributions; if none, by their weighted mean"""
    hostile: str | None = key(None, "an attack such as sign_flip(0.2) or nan(0.1)", stage="job")
    """how hostile clients attack, in a simulation; if none, no client is hostile"""
    seed: Seed | None = key(None, "an integer >= 0 and < 2**63", usual=0, stage="data")
    """the seed of all randomness of a run"""
    seeds: Annotated[list[Seed], Field(min_length=1)] | None = key(
        None, "a list of integers >= 0 such as 0,1,2", usual=[0], stage="job"
    )
    """the seeds of a comparison: every method runs once with each, on the same clients and batches as the others"""
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
