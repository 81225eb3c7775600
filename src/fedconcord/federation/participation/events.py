"""The virtual clock of asynchronous rounds: jobs go out, replies arrive, and every K of them are an update.

`concurrency` C slots hold a job each. A dispatch wave fills the free ones: clients drawn uniformly from the idle, keyed
by (seed, wave) as a round's cohort is by (seed, round). A client is idle again after the update that its reply is in,
so a buffer has distinct clients. A job that is lost leaves its slot and its client free when it ends, and so does one
whose reply is too old: more than `max_staleness` updates are between its start and its arrival. Where clients come and
go, who is there is asked for slot floor(time / `slot`); a free place that nobody is there for waits for the next slot,
and whoever goes in mid-work finishes.

Time is whole nanoseconds, each duration rounded up once, so that the order of events is the same on every machine.
What happens at one tick: arrivals in the order of a 64-bit key drawn from (seed, TIE, wave, client), an update as soon
as there are K, then losses, then one wave. Nothing here is of size N, and times depend on no values: the events are a
pure function of the settings and the seed, and go on from any moment.

How often client i replies, where K = 1: with q_i proportional to e_{C-1} of all clients' times but i's own, e being the
elementary symmetric polynomial. The mean staleness of a reply, the updates between its start and its own, is (C - 1)/K
with slots refilled at every reply and C/K - 1 with slots refilled at updates, whatever the times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedconcord.federation.participation.sampling import uniform
from fedconcord.method.contract import rng
from fedconcord.method.contract.identity import definition
from fedconcord.support.errors import UserError
from fedconcord.support.factories import build, by_name
from fedconcord.support.parameters import Count, NotNegative, Positive, about

JOB = np.dtype(
    [
        ("tick", np.int64),  # nanosecond at which the server hears of it
        ("is_lost", np.int64),  # 1: it hears that nothing will come
        ("key", np.int64),  # the order of what happens at one tick
        ("client", np.int64),
        ("wave", np.int64),
        ("version", np.int64),  # updates that the model had seen which the client was given
        ("gradients", np.int64),  # mini-batch gradients until it ends
        ("start", np.int64),  # nanosecond of its dispatch
    ]
)
LONGEST = 2**61  # nanoseconds of a job: 73 years
MANY = 100_000  # jobs lost in a row


class Clock(NamedTuple):
    """How asynchronous rounds go."""

    concurrency: int  # C, jobs in flight
    refill: Literal["reply", "update"] = "reply"  # when a slot whose reply came is free again
    staleness: Staleness | None = None  # the factor on the model's part of a reply's contribution; none: 1
    max_staleness: int | None = None  # updates between a job's start and its own, beyond which a reply does not count
    slot: float = 60.0  # seconds for which who is available stays the same
    timeout: float | None = None  # seconds after which the server waits for a job no longer


class Lengths(NamedTuple):
    """How long jobs last, and what is left of them."""

    seconds: np.ndarray  # [F] float64
    is_lost: np.ndarray  # [F] bool
    gradients: np.ndarray  # [F] int64, mini-batch gradients until it ends


LengthsOf = Callable[[int, np.ndarray], Lengths]
"""(wave, ids [F]) -> of their jobs."""


There = Callable[[int], np.ndarray]
"""slot -> ids [A] of the clients that could take part, sorted."""


class Moment(NamedTuple):
    """The clock between two events. No array of it is ever changed in place."""

    flights: np.ndarray  # [J] JOB, at work, in the order in which they end
    buffer: np.ndarray  # [B] JOB, replies that wait for their update
    busy: np.ndarray  # [J + B] int64, clients of both, sorted
    tick: int = 0  # nanoseconds
    version: int = 0  # updates so far
    wave: int = 0  # dispatches so far


class Event(NamedTuple):
    """What happened."""

    kind: Literal["dispatch", "arrival", "loss", "stale", "update"]
    tick: int
    jobs: np.ndarray  # [] JOB, those that it happened to


def beginning() -> Moment:
    """Before anything was sent."""
    nothing = np.empty(0, JOB)
    return Moment(nothing, nothing, np.empty(0, np.int64))


class Update(NamedTuple):
    """An update, and what ended before it without being in one."""

    after: Moment
    jobs: np.ndarray  # [K] JOB, whose replies it is of
    lost: np.ndarray  # [] JOB
    stale: np.ndarray  # [] JOB, whose reply came too late


def next_event(
    clock: Clock, buffer: int, n: int, seed: int, lengths: LengthsOf, now: Moment, there: There | None = None
) -> tuple[Moment, Event]:
    """The next event of a clock over n clients, and the moment after it; costs O(C + K), whatever n is.

    Args:
        buffer: K, replies of an update.
        there: who can be reached; everybody if none.

    Raises:
        UserError: a job is longer than the clock counts, or nobody can be reached for too long.
    """
    if len(now.buffer) == buffer:
        after = now._replace(buffer=now.buffer[:0], busy=_without(now.busy, now.buffer), version=now.version + 1)
        return after, Event("update", now.tick, now.buffer)
    if len(now.flights) and now.flights["tick"][0] == now.tick:
        return _ended(clock, now)
    occupied = len(now.flights) + (len(now.buffer) if clock.refill == "update" else 0)
    free = min(clock.concurrency - occupied, n - len(now.busy))
    if free > 0 and there is None:
        return _dispatched(n, seed, lengths, now, free)
    width, ends = math.ceil(clock.slot * 1e9), int(now.flights["tick"][0]) if len(now.flights) else LONGEST
    first = now.tick // width
    while free > 0 and there is not None and now.tick < ends:
        ids = np.setdiff1d(there(now.tick // width), now.busy, assume_unique=True)
        if len(ids):
            return _dispatched(n, seed, lengths, now, min(free, len(ids)), ids)
        now = now._replace(tick=min(ends, (now.tick // width + 1) * width))
        if now.tick // width - first >= MANY:
            raise UserError(
                f"nobody was available for {MANY} slots of {clock.slot:g} seconds but clients whose reply waits "
                "for its update; give an availability with more clients, or a smaller cohort"
            )
    return _ended(clock, now._replace(tick=ends))


def next_update(
    clock: Clock, buffer: int, n: int, seed: int, lengths: LengthsOf, now: Moment, there: There | None = None
) -> Update:
    """The next update; for the arguments see `next_event`.

    Raises:
        UserError: so many jobs in a row are lost that it may never come, or as `next_event`.
    """
    lost, stale, in_a_row = [now.buffer[:0]], [now.buffer[:0]], 0
    while True:
        now, event = next_event(clock, buffer, n, seed, lengths, now, there)
        if event.kind == "update":
            return Update(now, event.jobs, np.concatenate(lost), np.concatenate(stale))
        if event.kind == "loss":
            lost.append(event.jobs)
        if event.kind == "stale":
            stale.append(event.jobs)
        in_a_row = in_a_row + 1 if event.kind == "loss" else 0 if event.kind == "arrival" else in_a_row
        if in_a_row > MANY:
            raise UserError(
                f"{MANY} jobs in a row were lost, with {len(now.buffer)} of the {buffer} replies of an update there; "
                "lower dropout or the cohort, or give a longer timeout"
            )


def in_flight(clock: Clock, now: Moment) -> tuple[int, ...]:
    """Versions that jobs at work began from whose reply may still count, sorted: after an update at most C - 1, and at
    most max_staleness."""
    versions = np.unique(now.flights["version"])
    if clock.max_staleness is not None:
        versions = versions[now.version - versions <= clock.max_staleness]
    return tuple(versions.tolist())


def refusal(clock: Clock, buffer: int, n: int) -> str | None:
    """Why n clients cannot run by this clock with so many replies an update, or None."""
    if clock.concurrency > n:
        return f"a concurrency of {clock.concurrency} is more than there are clients; give 1 to {n}"
    most = n if clock.refill == "reply" else clock.concurrency
    if buffer > most:
        why = f"there are {n} clients" if clock.refill == "reply" else f"slots are refilled at updates, {most} of them"
        return f"an update of {buffer} replies (cohort) never comes where {why}; give 1 to {most}"
    return None


def _ended(clock: Clock, now: Moment) -> tuple[Moment, Event]:
    one, rest = now.flights[:1], now.flights[1:]
    stale = clock.max_staleness is not None and now.version - one["version"][0] > clock.max_staleness
    if one["is_lost"][0] or stale:
        kind: Literal["loss", "stale"] = "loss" if one["is_lost"][0] else "stale"
        return now._replace(flights=rest, busy=_without(now.busy, one)), Event(kind, now.tick, one)
    return now._replace(flights=rest, buffer=np.append(now.buffer, one)), Event("arrival", now.tick, one)


def _dispatched(
    n: int, seed: int, lengths: LengthsOf, now: Moment, free: int, idle: np.ndarray | None = None
) -> tuple[Moment, Event]:
    number = n - len(now.busy) if idle is None else len(idle)
    sizes = np.broadcast_to(1.0, number)  # of which uniform sampling reads the number
    places = uniform().draw(seed, now.wave, free, sizes, np.zeros_like).ids
    # the client at place p among the idle is p + the busy ones below it
    busy = now.busy - np.arange(len(now.busy))
    ids = places + np.searchsorted(busy, places, side="right") if idle is None else idle[places]
    jobs, length = np.empty(free, JOB), lengths(now.wave, ids)
    whole = np.maximum(np.ceil(length.seconds * 1e9), 1)
    if not (whole < LONGEST).all():
        worst = int(np.argmin(whole < LONGEST))
        raise UserError(
            f"a job of client {ids[worst]} takes {length.seconds[worst]:.3g} seconds, more than the clock counts; give "
            "devices that are faster"
        )
    jobs["start"], jobs["tick"], jobs["is_lost"] = now.tick, now.tick + whole.astype(np.int64), length.is_lost
    jobs["key"] = [rng.generator(seed, rng.Purpose.TIE, now.wave, i).integers(2**63) for i in ids.tolist()]
    jobs["client"], jobs["wave"], jobs["version"], jobs["gradients"] = ids, now.wave, now.version, length.gradients
    jobs.sort(order="tick")
    flights = np.insert(now.flights, np.searchsorted(now.flights["tick"], jobs["tick"], side="right"), jobs)
    if (np.diff(flights["tick"]) == 0).any():  # seldom, unless devices are alike
        flights.sort(order=["tick", "is_lost", "key", "client"])
    busy = np.insert(now.busy, np.searchsorted(now.busy, ids), ids)
    return now._replace(flights=flights, busy=busy, wave=now.wave + 1), Event("dispatch", now.tick, jobs)


def _without(busy: np.ndarray, jobs: np.ndarray) -> np.ndarray:
    return np.delete(busy, np.searchsorted(busy, jobs["client"]))


# -- how much the model's part of a stale reply counts ------------------------------------------------------------

Staleness = Callable[[np.ndarray], np.ndarray]
"""Updates between a job's start and its own [K] -> a factor [K]."""

Late = Annotated[NotNegative, about("updates between a job's start and its own that are not damped")]


@definition()
def poly(a: Annotated[Positive, about("the power")] = 0.5) -> Staleness:
    """(1 + tau)^-a (FedBuff's, with 1/2)."""
    return lambda tau: (1.0 + tau) ** -a


@definition()
def hinge(a: Annotated[Positive, about("how fast it falls")] = 10.0, b: Late = 4.0) -> Staleness:
    """1 up to tau = b, then 1 / (a (tau - b) + 1) (FedAsync's)."""
    return lambda tau: 1.0 / (a * np.maximum(tau - b, 0.0) + 1.0)


def none() -> None:
    """1, however stale."""


STALENESS: dict[str, Callable[..., Staleness | None]] = by_name(poly, hinge, none)
"""How replies are damped by their staleness, by name."""


def asynchronous(
    concurrency: Annotated[Count, about("number of clients that work at a time")],
    staleness: Annotated[str, about("how a reply is damped by its age: poly(a), hinge(a,b) or none")] = "poly(0.5)",
    max_staleness: Annotated[
        int | None, Field(ge=0, description="age in updates beyond which a reply does not count; if none, all count")
    ] = None,
    refill: Annotated[
        Literal["reply", "update"], about("when a client that replied is replaced: at once, or at the next update")
    ] = "reply",
    slot: Annotated[float, Field(ge=1e-3, description="seconds for which who is available stays the same")] = 60.0,
    timeout: Annotated[
        Positive | None, about("seconds after which a job counts as lost; if none, the server waits for every job")
    ] = None,
) -> Clock:
    """Updates of as many replies as the cohort has clients, whenever they are there; nobody waits for a round.

    FedBuff: Nguyen et al., AISTATS 2022, Algorithm 1.
    """
    return Clock(concurrency, refill, build(STALENESS, "staleness", staleness), max_staleness, slot, timeout)


CLOCKS: dict[str, Callable[..., Clock]] = by_name(asynchronous)
"""What decides when the server's model moves, by name."""
