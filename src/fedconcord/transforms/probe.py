"""What a method's first client sends, on two numbers: no bundle declares its message, so its own functions run once."""

from __future__ import annotations

import torch
from torch import Tensor

from fedconcord.core import Algorithm, Client, Cohort, Done, Population, Sender, Tree, map_moves

COHORT = Cohort(round=0, n=1, size=1, mass=1.0, mean_steps=1.0, dim=2, coin=0.0, regulariser=None, lr=1.0)


def message(algorithm: Algorithm, x: Tensor, move: float = 0.0) -> Tree:
    """The first message of a client whose model moved by `move` in both of its coordinates, from a model of ones."""
    x = torch.ones_like(x[:2])
    one, zero = x.new_ones(()), torch.zeros_like(x)
    number = torch.zeros_like(one, dtype=torch.int64)
    client = Client(number, one, one, 1.0, x.new_zeros, zero, torch.diag(x), 0 * one, x.new_zeros)
    down, row = algorithm.broadcast(algorithm.init(x, Population(1, x[:1]))), algorithm.init_client(x)
    if algorithm.phases.prelude is not None:
        sender = Sender(client.id, one, one, one, one, 1.0)
        down = algorithm.phases.prelude.absorb(down, algorithm.phases.prelude.contribute(zero, sender, COHORT))
    local = algorithm.start(down, row, client)
    done = Done(local.x + move, one, one, map_moves(local.pieces, lambda leaf: leaf + move))
    if algorithm.step.size is not None:
        done = done._replace(step_size=one, power=one, curvature=one)
    return algorithm.finish(down, row, done, client)[0]


def contribution(algorithm: Algorithm, population: Population, w: float) -> Tree:
    """What such a client, which did move, contributes with this weight."""
    one = population.p.new_ones(())
    sender = Sender(torch.zeros_like(one, dtype=torch.int64), w * one, one, one, one, 1.0, 0 * one)
    return algorithm.contribute(message(algorithm, population.p.new_ones(2), 0.5), sender, COHORT)
