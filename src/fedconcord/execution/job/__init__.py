"""A job and its rounds (`train` is the short way, `start` and `advance` are its parts), why it cannot run, its
checkpoint, the privacy it spends, and fine-tuning at the clients.
"""

from fedconcord.execution.job.job import (
    Job,
    Planner,
    Row,
    State,
    has_own_models,
    model_of,
    own_models,
    population_of,
    row_bytes,
    state_bytes,
)
from fedconcord.execution.job.loop import Step, advance, asked, blank, evaluate, plan_of, resolved, start, steps, train

__all__ = [
    "Job",
    "Planner",
    "Row",
    "State",
    "Step",
    "advance",
    "asked",
    "blank",
    "evaluate",
    "has_own_models",
    "model_of",
    "own_models",
    "plan_of",
    "population_of",
    "resolved",
    "row_bytes",
    "start",
    "state_bytes",
    "steps",
    "train",
]
