"""MimeSVRG: SVRG steps around the server's model with the cohort's own full gradient.

Karimireddy et al., 2020 (Mime), plain SGD as the base optimiser, which has no state to send. Phase 1: every client of
the cohort sends its grad f_i(x) and c is their weighted mean (FedJAX: by size); phase 2, same cohort, both gradients on
the same mini-batch:
    y_i <- y_i - eta (g(y_i) - g(x) + c),   x <- x + eta_g sum_A w_i (y_i - x).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from fedconcord.method.algorithms.fedavg import ServerLR, WeightsOption, fedavg
from fedconcord.method.contract import Algorithm, Facts, Local, Phases, Prelude, Snapshot
from fedconcord.method.contract.identity import definition


class Down(NamedTuple):
    x: Tensor  # [d]
    c: Tensor  # [d], the cohort's full gradient, after the prelude


@definition()
def mimesvrg(server_lr: ServerLR = 1.0, weights: WeightsOption = "uniform") -> Algorithm:
    """MimeSVRG: every local step is corrected to the cohort's full gradient.

    Karimireddy et al., 2020, with SVRG and plain SGD.
    """
    return replace(
        fedavg(server_lr, weights),
        start=lambda down, row, client: Local(down.x, Snapshot(down.x, down.c)),
        phases=Phases(
            prelude=Prelude(
                contribute=lambda gradient, sender, cohort: sender.w * gradient,
                absorb=lambda x, c: Down(x, c),
            )
        ),
        facts=Facts(group="control variates"),
    )
