"""Auto: a method with nothing to tune.

Of this library, no paper's: A-FedPD's duals (`afedpd`), AdaGrad-Norm over rounds (Ward et al., JMLR 2020) and steps of
a set length (`step.sizes.normed`). In round t a client takes K_i steps from y = x and sends its move and s_i, the mean
of ||D||^2 over its steps; all clients' duals move, absent clients' too, by a common part u and an own part u_i:
    D = g(y) + u + u_i + rho (y - x),   y <- y - min(eta, b L / ||D||) D,
    u_i <- u_i + rho (y_i - mean),   u <- u + rho (mean - x),
    G^2 <- G^2 + eps mean_A s_i,   h <- h exp(-a cos(g, u)), held to [1/2, 1],   eta = h L / G,
    rho = max(c / K, r) / eta,   x <- mean + u / rho,
with mean = mean_A y_i, K = mean_A K_i, g what the mean move says of the round's mean gradient and u as it was; a is
0.1 where that lengthens steps and 0.3 where it shortens them. In round 0 rho = 0, every client takes L over the length
of its first D for eta, G^2 becomes mean_A s_i, and its moves already give duals: u_i and u as above with the rho that
follows. The answer is 0.3 answer + 0.7 mean.

Where clients keep nothing (duals common) u_i is 0: a heavy ball over normalised steps, which is not exact.

Why. Duals are in units of gradients, so that the penalty may change while they last: u + u_i = -grad f_i(x) is the
fixed point at any eta and rho that have settled, with absent clients and unequal work. The length of the first
gradients is what tells step sizes of federations apart; the cap on a step's length keeps one steep client from undoing
a round. h is a hypergradient (Baydin et al., ICLR 2018): where the round's gradient points along what the duals hold
against it, the last rounds went too far, or gradients are noise. The sum in G hardly acts while all goes well, and
where steps are too long gradients grow, so that it shortens them until they are not. What a penalty does depends on
rho eta: a round of K steps damps the server's extrapolation, a heavy ball of weight 1 - rho eta K, by c at least, and
long rounds are held to the server's model by r at every step.

The constants are chosen on the federations of benchmarks/federations.py and of the arena that are not held out;
docs/auto.md has what came of it on others, and where it falls short. Gradients may be scaled by any factor; models may
not: L is in their units, which the usual initialisations and normalised inputs fix.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms.afedpd import COUNTED, Normalised
from fedconcord.method.contract import (
    Algorithm,
    Client,
    Cohort,
    Constant,
    Done,
    Facts,
    Local,
    Phases,
    Population,
    Pull,
    Rule,
    Settle,
    Step,
)
from fedconcord.method.contract.identity import definition
from fedconcord.support.parameters import about

LENGTH, LONGEST = 0.7, 0.8 / 0.7  # L, and b, the longest step over it
EPS, C, R, KEPT = 0.02, 0.07, 0.01, 0.3  # KEPT: weight of the last answer in the answer
GROW, SHRINK, LEAST = 0.1, 0.3, 0.5  # a where steps grow and shrink, and the least h


class Server(NamedTuple):
    x: Tensor  # [d] the model that is sent
    dual: Tensor  # [d] u
    mean: Tensor  # [d] the last cohort's mean model
    answer: Tensor  # [d]
    square: Tensor  # [] G^2; 0 before round 0
    rho: Tensor  # [] the next round's
    first: Tensor  # [] and its step size; 0: clients find their own
    factor: Tensor  # [] h


class Down(NamedTuple):
    x: Tensor  # [d]
    dual: Tensor  # [d]
    rho: Tensor  # []
    first: Tensor  # []


class Row(NamedTuple):
    dual: Tensor  # [d] u_i


class Message(NamedTuple):
    move: Tensor  # [d]
    square: Tensor  # [] mean of ||D||^2 over its steps


class Settled(NamedTuple):
    common: Tensor  # [d] what the cohort's new own duals have in common
    unit: Tensor  # [] 1; after round 0, whose rows hold moves, rho


Duals = Annotated[Literal["own", "common"], about("own: clients keep duals; common: none, so skew is not corrected")]


def longer(server: Server, move: Tensor, steps: float) -> Tensor:
    """exp(-a cos(g, u)), with g from the cohort's mean move of so many steps."""
    g = -move * server.rho / (1 - (1 - server.rho * server.first) ** steps) - server.dual  # the pull takes some back
    cosine = torch.dot(g, server.dual) / (g.norm() * server.dual.norm()).clamp(min=torch.finfo(g.dtype).tiny)
    return torch.exp(-SHRINK * cosine.clamp(min=0) - GROW * cosine.clamp(max=0))


@definition()
def auto(duals: Duals = "own", weights: Normalised = "uniform") -> Algorithm:
    """Auto: A-FedPD's duals with step sizes and penalty that find themselves; nothing to tune.

    Of this library; A-FedPD, NeurIPS 2024, with AdaGrad-Norm, Ward et al., JMLR 2020.
    """

    def init(x: Tensor, population: Population) -> Server:
        zero, one = x.new_zeros(()), x.new_ones(())
        return Server(x, torch.zeros_like(x), x, x, square=zero, rho=zero, first=zero, factor=one)

    def start(down: Down, row: Row | tuple[()], client: Client) -> Local:
        dual = down.dual + row.dual if isinstance(row, Row) else down.dual
        return Local(down.x, Constant(dual), Pull(down.rho, down.x), first=down.first)

    def finish(down: Down, row: Row | tuple[()], done: Done, client: Client) -> tuple[Message, Row | tuple[()]]:
        assert done.power is not None
        move = done.x - down.x
        gain = down.rho + (down.rho == 0)  # a row of round 0 is a move, until its rho is known
        return Message(move, done.power), Row(row.dual + gain * move) if isinstance(row, Row) else row

    def update(server: Server, total: Message, cohort: Cohort) -> Server:
        begun, power = server.square > 0, total.square.reshape(())  # [1] where clients are stacked
        mean = server.x + total.move
        square = torch.where(begun, server.square + EPS * power, power)
        factor = torch.where(begun, server.factor * longer(server, total.move, cohort.mean_steps), 1.0).clamp(LEAST, 1)
        first = torch.where(square > 0, factor * LENGTH / square.sqrt(), 0.0)
        rho = torch.where(square > 0, max(C / cohort.mean_steps, R) / first, 0.0)
        dual = server.dual + torch.where(begun, server.rho, rho) * total.move
        x = mean + torch.where(rho > 0, dual / rho, 0.0)
        answer = torch.where(begun, KEPT * server.answer + (1 - KEPT) * mean, mean)
        return Server(x, dual, mean, answer, square, rho, first, factor)

    def send(down: Down, server: Server) -> Settled:
        gain = down.rho + (down.rho == 0)
        return Settled(gain * (server.mean - down.x), unit=torch.where(down.rho > 0, 1.0, server.rho))

    settle = Settle(send=send, row=lambda shift, row: Row(shift.unit * (row.dual - shift.common)))
    return Algorithm(
        init=init,
        init_client=lambda x: Row(torch.zeros_like(x)) if duals == "own" else (),
        broadcast=lambda server: Down(server.x, server.dual, server.rho, server.first),
        start=start,
        finish=finish,
        contribute=lambda up, sender, cohort: Message(sender.w * up.move, sender.w * up.square),
        update=update,
        models=lambda server: {"answer": server.answer, "mean": server.mean, "server": server.x},
        weights=weights,
        phases=Phases(settle=settle if duals == "own" else None),
        step=Step(size=Rule("normed", LENGTH, bound=LONGEST)),
        facts=Facts(
            group="nothing to tune",
            invariant="duals that are measured from the mean of the cohort's models" if duals == "own" else None,
            unfit=(("repeats", COUNTED),) if duals == "own" else (),
        ),
    )
