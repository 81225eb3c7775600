"""What a method may be had together with: every wrapper and local solver is asked, nothing is listed by hand."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fedconcord.federation.participation.clock import lognormal
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.contract import Algorithm, Oracle, Population
from fedconcord.method.step import solver
from fedconcord.method.step.assignment import Assignment
from fedconcord.method.step.solver import Solver
from fedconcord.method.wrappers.forms import forms, unsummable
from fedconcord.method.wrappers.late import with_late_replies
from fedconcord.method.wrappers.privacy import uncovered
from fedconcord.method.wrappers.robust import median, with_aggregate
from fedconcord.method.wrappers.server import momentum, with_server
from fedconcord.method.wrappers.uploads import quantise, topk, with_uploads
from fedconcord.support.errors import UserError

CLIENTS, COHORT = 10, 4


class Fit(NamedTuple):
    """One thing that a method is run with, or not."""

    what: str
    setting: str  # by which it is had
    reason: str | None  # why it is refused; None where it is not


def fits(algorithm: Algorithm) -> list[Fit]:
    """What a method goes with, as its own declarations and trials of its functions have it; `cohort` of `CLIENTS`."""
    return [
        Fit("absent clients", "cohort < clients", Schedule(0, COHORT, 0.1).refuse(algorithm, CLIENTS)),
        Fit("local momentum", "local.momentum", _stepped(algorithm, Solver(momentum=0.9))),
        Fit("SAM gradients", "local.oracle = sam", _stepped(algorithm, Solver(oracle=Oracle("sam", 0.1)))),
        Fit("L-BFGS at the clients", "local.solver = lbfgs", _stepped(algorithm, Solver(kind="lbfgs"))),
        Fit("another server optimiser", "server", _served(algorithm)),
        Fit("quantised uploads", "upload = quantise", _refused(with_uploads(algorithm, quantise()))),
        Fit("sparse uploads with error feedback", "upload = topk", _refused(with_uploads(algorithm, topk(0.1)))),
        Fit("late replies", "late = keep", _late(with_late_replies(algorithm))),
        Fit("robust rules", "aggregate", _refused(with_aggregate(algorithm, median()))),
        Fit("differential privacy", "privacy.clip", uncovered(algorithm)),
        Fit("secure sums", "secure.clip", _unsummed(algorithm)),
    ]


def _refused(wrapped: Algorithm) -> str | None:
    """Why a wrapped method refuses to run where nothing but the wrapper is special."""
    p = torch.full((CLIENTS,), 1 / CLIENTS, dtype=torch.float64)
    return wrapped.refuse(Population(CLIENTS, p), CLIENTS if wrapped.needs.everyone else COHORT)


def _stepped(algorithm: Algorithm, local: Solver) -> str | None:
    """Why its local steps cannot be those of a local solver."""
    draws = Schedule(0, COHORT, 0.1).draws
    try:
        Assignment(algorithm, local, draws).pieces(forms(algorithm, torch.ones(2)).local)
    except UserError as refused:
        return str(refused)
    return solver.refuse(local, algorithm)


def _late(wrapped: Algorithm) -> str | None:
    cohort = CLIENTS if wrapped.needs.everyone else COHORT
    schedule = Schedule(0, cohort, 0.1, devices=lognormal(0.5), deadline=1.0, late="keep")
    return _refused(wrapped) or schedule.refuse(wrapped, CLIENTS)


def _served(algorithm: Algorithm) -> str | None:
    try:
        with_server(algorithm, momentum())
    except UserError as refused:
        return str(refused)
    return None


def _unsummed(algorithm: Algorithm) -> str | None:
    why = unsummable(algorithm)
    return None if why is None else f"secure sums cannot be had: {why}"
