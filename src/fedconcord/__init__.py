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

from fedconcord.support.demand import on_demand

if TYPE_CHECKING:
    from fedconcord.execution.engines import Engine, Serial, Stacked, Wire
    from fedconcord.execution.job import Job, Row, State, advance, evaluate, start, train
    from fedconcord.execution.job.checkpoint import load, save
    from fedconcord.federation.data import DATASETS
    from fedconcord.federation.data.dataset import Dataset
    from fedconcord.federation.models import MODELS
    from fedconcord.federation.objectives import PROBLEMS, Quadratic, Supervised
    from fedconcord.federation.participation.sampling import SAMPLERS, Drawn, Sampler
    from fedconcord.federation.participation.schedule import Schedule
    from fedconcord.federation.participation.work import WORK
    from fedconcord.federation.partitions import PARTITIONS
    from fedconcord.interface.api import advise, compare, run, tune, write_report
    from fedconcord.interface.tracking import MLflow, TensorBoard, WandB
    from fedconcord.interface.trained.predict import predict
    from fedconcord.interface.trained.program import export
    from fedconcord.method.algorithms import METHODS
    from fedconcord.method.contract import (
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
        Term,
    )
    from fedconcord.method.step.sizes import RULES
    from fedconcord.method.step.solver import ORACLES, Solver
    from fedconcord.method.wrappers.server import OPTIMIZERS, with_server
    from fedconcord.method.wrappers.uploads import COMPRESSORS, with_uploads
    from fedconcord.study.runs.events import Callback, Compared, Finished, Run
    from fedconcord.study.search import Tuned
    from fedconcord.support.errors import UserError
    from fedconcord.support.factories import Search
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
    "Term",
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
    "fedconcord.method.algorithms": "METHODS",
    "fedconcord.interface.api": "advise compare run tune write_report",
    "fedconcord.method.contract": "Algorithm Client Cohort Done Local Oracle Plan Population Problem Rule Sender "
    "Settle Term",
    "fedconcord.federation.data": "DATASETS",
    "fedconcord.federation.data.dataset": "Dataset",
    "fedconcord.interface.trained.program": "export",
    "fedconcord.execution.engines": "Engine Serial Stacked Wire",
    "fedconcord.support.errors": "UserError",
    "fedconcord.support.factories": "Search",
    "fedconcord.federation.partitions": "PARTITIONS",
    "fedconcord.federation.participation.sampling": "SAMPLERS Drawn Sampler",
    "fedconcord.federation.participation.schedule": "Schedule",
    "fedconcord.federation.participation.work": "WORK",
    "fedconcord.interface.trained.predict": "predict",
    "fedconcord.federation.models": "MODELS",
    "fedconcord.method.step.solver": "ORACLES Solver",
    "fedconcord.method.step.sizes": "RULES",
    "fedconcord.federation.objectives": "PROBLEMS Quadratic Supervised",
    "fedconcord.study.runs.events": "Callback Compared Finished Run",
    "fedconcord.interface.tracking": "MLflow TensorBoard WandB",
    "fedconcord.method.wrappers.server": "OPTIMIZERS with_server",
    "fedconcord.study.search": "Tuned",
    "fedconcord.execution.job.loop": "Job Row State advance evaluate start train",
    "fedconcord.execution.job.checkpoint": "load save",
    "fedconcord.method.wrappers.uploads": "COMPRESSORS with_uploads",
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
