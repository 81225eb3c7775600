"""Federated optimisation with unequal clients.

    import fedconcord

    compared = fedconcord.compare(["fedavg", "scaffold"], data="digits", seeds=[0, 1, 2], target=0.9)
    print(compared.report)

The same from its parts, a round at a time:

    from fedconcord import METHODS, PROBLEMS, Job, Schedule, advance, evaluate, start

    problem = PROBLEMS["quadratics"](0, 20, torch.float64, torch.device("cpu"))
    job = Job(problem, METHODS["scaffold"](), Schedule(seed=0, cohort=5, lr=0.1))
    state = start(job)
    for _ in range(100):
        state = advance(job, state)
    print(evaluate(job, state))

Names are imported when they are first used, so that the command can say `--help` without torch.
"""

from importlib import metadata
from typing import TYPE_CHECKING, Any

from fedconcord.basis.demand import on_demand

if TYPE_CHECKING:
    from fedconcord.algorithms import METHODS
    from fedconcord.api import advise, compare, run, tune, write_report
    from fedconcord.basis.errors import UserError
    from fedconcord.basis.factories import Search
    from fedconcord.core import (
        Algorithm,
        Client,
        Cohort,
        Done,
        Local,
        Oracle,
        Plan,
        Population,
        Problem,
        Rule,
        Sender,
        Settle,
    )
    from fedconcord.data import DATASETS
    from fedconcord.data.dataset import Dataset
    from fedconcord.engines import Engine, Serial, Stacked, Wire
    from fedconcord.federation.partitions import PARTITIONS
    from fedconcord.federation.sampling import SAMPLERS, Drawn, Sampler
    from fedconcord.federation.schedule import Schedule
    from fedconcord.federation.work import WORK
    from fedconcord.jobs import Job, Row, State, advance, evaluate, start, train
    from fedconcord.jobs.checkpoint import load, save
    from fedconcord.local.sizes import RULES
    from fedconcord.local.solver import ORACLES, Solver
    from fedconcord.models import MODELS
    from fedconcord.problems import PROBLEMS, Quadratic, Supervised
    from fedconcord.runs.events import Callback, Compared, Finished, Run
    from fedconcord.tracking import MLflow, TensorBoard, WandB
    from fedconcord.trained.predict import predict
    from fedconcord.trained.program import export
    from fedconcord.transforms.server import OPTIMIZERS, with_server
    from fedconcord.transforms.uploads import COMPRESSORS, with_uploads
    from fedconcord.tuning import Tuned
    from fedconcord_diagnosis.functions import diagnose
    from fedconcord_papers.functions import arena, audit, reproduce

    __version__: str
    """The version of the package."""

__all__ = [
    "COMPRESSORS",
    "DATASETS",
    "METHODS",
    "MODELS",
    "OPTIMIZERS",
    "ORACLES",
    "PARTITIONS",
    "PROBLEMS",
    "RULES",
    "SAMPLERS",
    "WORK",
    "Algorithm",
    "Callback",
    "Client",
    "Cohort",
    "Compared",
    "Dataset",
    "Done",
    "Drawn",
    "Engine",
    "Finished",
    "Job",
    "Local",
    "MLflow",
    "Oracle",
    "Plan",
    "Population",
    "Problem",
    "Quadratic",
    "Row",
    "Rule",
    "Run",
    "Sampler",
    "Schedule",
    "Search",
    "Sender",
    "Serial",
    "Settle",
    "Solver",
    "Stacked",
    "State",
    "Supervised",
    "TensorBoard",
    "Tuned",
    "UserError",
    "WandB",
    "Wire",
    "__version__",
    "advance",
    "advise",
    "arena",
    "audit",
    "compare",
    "diagnose",
    "evaluate",
    "export",
    "load",
    "predict",
    "reproduce",
    "run",
    "save",
    "start",
    "train",
    "tune",
    "with_server",
    "with_uploads",
    "write_report",
]

_PLACES = {  # module -> the names that it has
    "fedconcord.algorithms": "METHODS",
    "fedconcord.api": "advise compare run tune write_report",
    "fedconcord.core": "Algorithm Client Cohort Done Local Oracle Plan Population Problem Rule Sender Settle",
    "fedconcord.data": "DATASETS",
    "fedconcord.data.dataset": "Dataset",
    "fedconcord.trained.program": "export",
    "fedconcord.engines": "Engine Serial Stacked Wire",
    "fedconcord.basis.errors": "UserError",
    "fedconcord.basis.factories": "Search",
    "fedconcord.federation.partitions": "PARTITIONS",
    "fedconcord.federation.sampling": "SAMPLERS Drawn Sampler",
    "fedconcord.federation.schedule": "Schedule",
    "fedconcord.federation.work": "WORK",
    "fedconcord.trained.predict": "predict",
    "fedconcord.models": "MODELS",
    "fedconcord.local.solver": "ORACLES Solver",
    "fedconcord.local.sizes": "RULES",
    "fedconcord.problems": "PROBLEMS Quadratic Supervised",
    "fedconcord.runs.events": "Callback Compared Finished Run",
    "fedconcord.tracking": "MLflow TensorBoard WandB",
    "fedconcord.transforms.server": "OPTIMIZERS with_server",
    "fedconcord.tuning": "Tuned",
    "fedconcord.jobs.loop": "Job Row State advance evaluate start train",
    "fedconcord.jobs.checkpoint": "load save",
    "fedconcord.transforms.uploads": "COMPRESSORS with_uploads",
    "fedconcord_diagnosis.functions": "diagnose",  # of the packages beside: known by name here alone
    "fedconcord_papers.functions": "arena audit reproduce",
}


def _version() -> str:
    """As it was installed; of files that nobody installed nothing is known."""
    try:
        return metadata.version("fedconcord")
    except metadata.PackageNotFoundError:
        return "0.0.0+unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker would take every misspelt name for something that this function may return
    _named = on_demand(globals(), _PLACES)

    def __getattr__(name: str) -> Any:
        return _version() if name == "__version__" else _named(name)
