"""A job and its rounds, without a file: `train` is the short way, `start` and `advance` are its parts."""

from fedconcord.jobs.job import Job, Planner, Row, State, population_of, row_bytes, state_bytes
from fedconcord.jobs.loop import advance, blank, evaluate, plan_of, resolved, start, train

__all__ = [
    "Job",
    "Planner",
    "Row",
    "State",
    "advance",
    "blank",
    "evaluate",
    "plan_of",
    "population_of",
    "resolved",
    "row_bytes",
    "start",
    "state_bytes",
    "train",
]
