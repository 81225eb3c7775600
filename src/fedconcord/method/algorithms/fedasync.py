"""FedAsync: every reply moves the server's model toward the client's.

Xie, Koyejo and Gupta, OPT 2020 (arXiv:1903.03934), Algorithm 1: with z the model that the client was given,
    y from steps on f_i + rho / 2 ||y - z||^2,   x <- (1 - a) x + a y,   a = alpha s(tau),
s(tau) that of the clock (`poly`, `hinge`, `none`), where a cohort of 1 is the paper's. Read in FLSim and plato, whose
common defaults these are. Unlike FedBuff it mixes models: what others added to x since z is lost in part.
Deviation: an update may have several replies, of which a w_i in place of a each: in rounds that wait it is
x <- (1 - alpha) x + alpha sum_A w_i y_i.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from torch import Tensor

from fedconcord.method.algorithms.fedavg import WeightsOption
from fedconcord.method.contract import Algorithm, Facts, Local, Phases, Pull
from fedconcord.method.contract.identity import definition
from fedconcord.support.factories import Search
from fedconcord.support.parameters import Fraction, NotNegative, about


class Server(NamedTuple):
    x: Tensor  # [d]


class Mixed(NamedTuple):
    x: Tensor  # [d] sum of w_i y_i
    w: Tensor  # [] sum of w_i


@definition()
def fedasync(
    alpha: Annotated[
        Fraction, about("share of the server's model that a reply of age 0 replaces"), Search(0.05, 1.0)
    ] = 0.6,
    rho: Annotated[
        NotNegative, about("weight of the pull to the model that the client was given"), Search(0.001, 1.0)
    ] = 0.005,
    weights: WeightsOption = "uniform",
) -> Algorithm:
    """FedAsync: the server's model mixed with each reply's, the less the older that is.

    Xie, Koyejo and Gupta, OPT 2020, Algorithm 1.
    """
    return Algorithm(
        init=lambda x, population: Server(x),
        start=lambda x, row, client: Local(x, Pull(rho, x)),
        finish=lambda x, row, end, client: (end.x, row),
        contribute=lambda y, sender, cohort: Mixed(sender.w * y, sender.w),
        update=lambda server, total, cohort: Server(server.x + alpha * (total.x - total.w * server.x)),
        weights=weights,
        phases=Phases(asynchronous="damped"),
        facts=Facts(group="averaging"),
    )
