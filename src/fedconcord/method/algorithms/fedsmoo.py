"""FedSMOO: FedDyn's regulariser for the models, and one like it for SAM's perturbations.

Sun et al., ICML 2023, as FL-Simulator has it. A local step climbs by e and steps by the gradient up there, with
FedDyn's dual and pull:
    e = radius u / ||u|| with u = g(y_i) - mu_i - s,   mu_i <- mu_i + e - s,
    y_i <- y_i - eta (g(y_i + e) + alpha (y_i - x + h_i)),
    s+ = radius m / ||m|| with m = mean_A mu_i.
mu_i is the client's own dual, s the server's perturbation: the cohort's mean mu_i at length `radius`. Deviation of that
code from the paper, kept: the mean is of mu_i alone, where the paper subtracts each client's last e.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms.fedavg import Radius, sharpness_aware
from fedconcord.method.algorithms.feddyn import Alpha, feddyn
from fedconcord.method.contract import Algorithm, Ascent, Client, Cohort, Constant, Done, Local, Phases, Pull
from fedconcord.method.contract.identity import definition


class Server(NamedTuple):
    x: Tensor  # [d]
    mean: Tensor  # [d] participants' mean model, before the offset
    h: Tensor  # [d] sum_i p_i h_i
    s: Tensor  # [d] the common perturbation


class Down(NamedTuple):
    x: Tensor  # [d]
    s: Tensor  # [d]


class Row(NamedTuple):
    h: Tensor  # [d]
    mu: Tensor  # [d] dual of the perturbation


class Message(NamedTuple):
    move: Tensor  # [d] x_i - x
    mu: Tensor  # [d]


class Sums(NamedTuple):
    move: Tensor  # [d] sum w_i (x_i - x)
    h: Tensor  # [d] sum p_i (x_i - x)
    mu: Tensor  # [d] sum w_i mu_i


@definition()
def fedsmoo(alpha: Alpha = 0.1, radius: Radius = 0.1) -> Algorithm:
    """FedSMOO: FedDyn with sharpness-aware gradients whose perturbations agree.

    Sun et al., ICML 2023.
    """

    def start(down: Down, row: Row, client: Client) -> Local:
        return Local(down.x, Ascent(radius, row.mu, down.s), Constant(alpha * row.h), Pull(alpha, down.x))

    def finish(down: Down, row: Row, done: Done, client: Client) -> tuple[Message, Row]:
        move, mu = done.x - down.x, done.piece(Ascent).dual
        assert mu is not None
        return Message(move, mu), Row(row.h + move, mu)

    def update(server: Server, total: Sums, cohort: Cohort) -> Server:
        mean, h = server.x + total.move, server.h + total.h
        length = torch.linalg.vector_norm(total.mu, dim=-1, keepdim=True)
        return Server(mean + h, mean, h, total.mu * (radius / (length + 1e-7)))

    plain = feddyn(alpha)
    smoothed = replace(
        plain,
        init=lambda x, population: Server(x, x, torch.zeros_like(x), torch.zeros_like(x)),
        init_client=lambda x: Row(torch.zeros_like(x), torch.zeros_like(x)),
        broadcast=lambda server: Down(server.x, server.s),
        start=start,
        finish=finish,
        contribute=lambda up, sender, cohort: Sums(sender.w * up.move, sender.p * up.move, sender.w * up.mu),
        update=update,
        facts=plain.facts._replace(unfit=(("upload", "its clients send their duals as they are"),)),
        phases=Phases(),  # not asynchronous: nobody has shown what age does to the perturbations' common part
    )
    return sharpness_aware(smoothed, radius)
