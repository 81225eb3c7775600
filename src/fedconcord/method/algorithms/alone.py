"""What a federation is measured against: every client by itself, and all samples in one place. They are no methods: a
comparison runs them beside its methods (`baselines`) and ranks them with none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from fedconcord.method.algorithms.fedavg import fedavg
from fedconcord.method.contract import Algorithm, Local, Phases
from fedconcord.method.contract.identity import definition


class Model(NamedTuple):
    x: Tensor  # [d]


@definition()
def local() -> Algorithm:
    """Every client alone: the local steps that it would take in the federation, on a model of its own from x^0."""
    return Algorithm(
        init=lambda x, population: Model(x),
        start=lambda x, row, client: Local(row.x),
        finish=lambda x, row, done, client: ((), Model(done.x)),
        contribute=lambda up, sender, cohort: (),
        update=lambda server, total, cohort: server,
        init_client=Model,
        client_model=lambda row, x: row.x,
        phases=Phases(communicates=lambda cohort: False),
    )


@definition()
def pooled() -> Algorithm:
    """All samples in one place: FedAvg with one client that holds them, plain SGD."""
    return fedavg()


BASELINES: dict[str, Callable[..., Algorithm]] = {"local": local, "pooled": pooled}
