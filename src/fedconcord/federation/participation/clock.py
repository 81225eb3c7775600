"""Simulated time: how long a client takes for a round, by a model of its device and its link.

    down:    latency + bytes of the model, and of x^0 for a client that joins, / its bandwidth down
    compute: mini-batch gradients * its seconds a gradient * how busy it is in this round
    up:      latency + bytes of the reply / its bandwidth up

A round lasts until the last reply is in, or to the deadline, and then until what the server sends after its step has
arrived everywhere; the server's own work takes no time. Sizes of messages and
counts of gradients do not depend on values, so times are a pure function of (seed, round, client). A client that may
stop early (a tolerance, L-BFGS) is taken to use all its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from fedconcord.federation.participation.work import read_csv
from fedconcord.method.contract import rng
from fedconcord.method.contract.identity import definition
from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name
from fedconcord.support.parameters import NotNegative, Positive, about


class Device(NamedTuple):
    """A client's device and link in one round."""

    step: float  # seconds of one mini-batch gradient
    up: float  # bytes a second
    down: float  # bytes a second
    latency: float  # seconds by which a message is delayed in either direction


Devices = Callable[[int, int, int], Device]
"""(seed, round, client) -> its device."""


class Cost(NamedTuple):
    """What a round asks of one client."""

    down: int  # bytes to it
    up: int  # bytes from it
    exchanges: int = 1  # messages each way; 2 where a message goes before the local steps
    per_step: int = 1  # mini-batch gradients a local step
    full_per_step: int = 0  # full gradients a local step
    full: int = 0  # full gradients besides
    x0: int = 0  # bytes of x^0 to a client that joins after round 0
    settled: int = 0  # bytes to it after the server's step

    def gradients(self, steps: np.ndarray, full_cost: np.ndarray) -> np.ndarray:
        """Mini-batch gradients [S] of clients with these local steps, whose full gradients cost so many."""
        return np.asarray(steps * self.step_gradients(full_cost) + self.full * full_cost)

    def step_gradients(self, full_cost: np.ndarray) -> np.ndarray:
        """Mini-batch gradients [S] of one local step."""
        return np.asarray(self.per_step + self.full_per_step * full_cost)


class Times(NamedTuple):
    """Seconds [S] of each client."""

    down: np.ndarray
    compute: np.ndarray
    up: np.ndarray

    @property
    def total(self) -> np.ndarray:
        return np.asarray(self.down + self.compute + self.up)


def times(
    devices: list[Device], cost: Cost, gradients: np.ndarray, talks: bool = True, joins: np.ndarray | None = None
) -> Times:
    """Of clients with these devices that evaluate so many gradients.

    Args:
        talks: False: no message goes either way but x^0.
        joins: [S] bool, who is sent x^0; None: nobody.
    """
    step, up, down, latency = np.asarray(devices, np.float64).reshape(-1, 4).T
    wait = cost.exchanges * latency
    first = np.zeros(len(down)) if joins is None else joins * (cost.x0 / down + (not talks) * latency)
    return Times(talks * (wait + cost.down / down) + first, gradients * step, talks * (wait + cost.up / up))


def settling(devices: list[Device], cost: Cost) -> float:
    """Seconds until the message after the server's step has reached all of these."""
    return max((one.latency + cost.settled / one.down for one in devices), default=0.0) if cost.settled else 0.0


Step = Annotated[Positive, about("seconds of one mini-batch gradient, of a typical client")]
Up = Annotated[Positive, about("bytes per second from a client")]
Down = Annotated[Positive, about("bytes per second to a client")]
Latency = Annotated[NotNegative, about("seconds before a message arrives, either way")]
Jitter = Annotated[NotNegative, about("deviation of the logarithm of a client's speed from round to round")]
Spread = Annotated[NotNegative, about("standard deviation, over the clients, of the logarithm of their speed")]
LinkSpread = Annotated[NotNegative, about("standard deviation, over the clients, of the logarithm of their bandwidths")]
SLOWDOWN = "factor by which each class's seconds of a gradient are multiplied"
Slowdown = Annotated[list[Positive], Field(min_length=1, description=SLOWDOWN)]


def _model(factor: Callable[[np.random.Generator], tuple[float, float]], base: Device, jitter: float) -> Devices:
    """Devices that differ from the base by (compute, link) factors drawn once a client, and by jitter each round."""

    def of(seed: int, round: int, client: int) -> Device:
        slower, thinner = factor(rng.generator(seed, rng.Purpose.DEVICE, 0, client))
        if jitter:
            now = rng.generator(seed, rng.Purpose.DEVICE, round + 1, client)
            slower *= float(np.exp(jitter * now.standard_normal()))
        return Device(base.step * slower, base.up / thinner, base.down / thinner, base.latency)

    return of


@definition()
def equal(
    step: Step = 0.01, up: Up = 1.25e6, down: Down = 6.25e6, latency: Latency = 0.05, jitter: Jitter = 0.0
) -> Devices:
    """All devices alike: 10 ms a gradient, 10 Mbit/s up and 50 down unless given."""
    return _model(lambda draw: (1.0, 1.0), Device(step, up, down, latency), jitter)


@definition()
def lognormal(
    spread: Spread = 0.5,
    step: Step = 0.01,
    up: Up = 1.25e6,
    down: Down = 6.25e6,
    latency: Latency = 0.05,
    link_spread: LinkSpread = 0.0,
    jitter: Jitter = 0.0,
) -> Devices:
    """Speeds are drawn once for each client, lognormal around those of a typical client, the median."""

    def factor(draw: np.random.Generator) -> tuple[float, float]:
        slower, thinner = np.exp(draw.standard_normal(2) * (spread, link_spread))
        return float(slower), float(thinner)

    return _model(factor, Device(step, up, down, latency), jitter)


@definition()
def classes(
    slowdown: Slowdown = [1.0, 2.0, 5.0],  # noqa: B006
    step: Step = 0.01,
    up: Up = 1.25e6,
    down: Down = 6.25e6,
    latency: Latency = 0.05,
    jitter: Jitter = 0.0,
) -> Devices:
    """A few kinds of devices; each client is of one of them, drawn once, all equally likely."""
    return _model(
        lambda draw: (slowdown[int(draw.integers(len(slowdown)))], 1.0), Device(step, up, down, latency), jitter
    )


@definition()
def from_file(
    path: Annotated[str, about("CSV file with the columns client,step,up,down,latency, and a row for each client")],
    jitter: Jitter = 0.0,
) -> Devices:
    """Devices as measured: seconds of a gradient, bytes per second up and down, and latency of each client."""
    columns: dict[str, Callable[[str], float]] = {"client": int, **dict.fromkeys(Device._fields, float)}
    device_of = {int(client): Device(*figures) for client, *figures in read_csv(path, "list of devices", columns)}
    for client, device in device_of.items():
        if not all(np.isfinite(device)) or min(device[:3]) <= 0 or device.latency < 0:
            raise UserError(
                f"{path}: client {client} needs finite step, up and down > 0 and latency >= 0, given {device}"
            )

    def of(seed: int, round: int, client: int) -> Device:
        if client not in device_of:
            raise UserError(f"{path} has no row for client {client}; give one for every client")
        return _model(lambda draw: (1.0, 1.0), device_of[client], jitter)(seed, round, client)

    return of


DEVICES: dict[str, Callable[..., Devices]] = by_name(equal, lognormal, classes, from_file)
