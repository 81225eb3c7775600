"""The virtual clock alone: who replies how often, how stale replies are, and that events go on from any moment."""

import itertools
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from fedconcord.federation.participation import events as events_of_the_clock
from fedconcord.federation.participation.events import (
    JOB,
    Clock,
    Event,
    Lengths,
    LengthsOf,
    Moment,
    beginning,
    hinge,
    in_flight,
    next_event,
    next_update,
    poly,
    refusal,
)
from fedconcord.method.contract import rng
from fedconcord.support.errors import UserError
from fedconcord.support.factories import build
from tiers import tiers

SEED = 3


def lengths_of(means: np.ndarray, jitter: float = 0.0, lost: float = 0.0) -> LengthsOf:
    """Jobs of these mean seconds [N], times 1 - jitter to 1 + jitter, lost with a chance."""

    def lengths(wave: int, ids: np.ndarray) -> Lengths:
        draws = [rng.generator(SEED, rng.Purpose.DEVICE, wave + 1, int(i)).random(2) for i in ids]
        u = np.array(draws).reshape(-1, 2)
        seconds = means[ids] * (1 + jitter * (2 * u[:, 0] - 1))
        return Lengths(seconds, u[:, 1] < lost, np.full(len(ids), 5))

    return lengths


def run(
    clock: Clock, buffer: int, lengths: LengthsOf, n: int, events: int, now: Moment | None = None
) -> list[tuple[Moment, Event]]:
    found, now = [], beginning() if now is None else now
    for _ in range(events):
        now, event = next_event(clock, buffer, n, SEED, lengths, now)
        found.append((now, event))
    return found


def words(found: list[tuple[Moment, Event]]) -> list[tuple[str, int, bytes]]:
    return [(event.kind, event.tick, event.jobs.tobytes()) for _, event in found]


def elementary(times: np.ndarray, k: int) -> float:
    return sum(float(np.prod(some)) for some in itertools.combinations(times, k))


@pytest.mark.parametrize("concurrency", tiers([1, 3, 6], quick=[3]))
def test_a_client_replies_as_often_as_the_symmetric_polynomial_of_the_others_times(concurrency: int) -> None:
    """Within four standard errors, of the means of 40 stretches, for each of six clients."""
    means = np.array([1.0, 1.7, 2.9, 4.3, 7.1, 10.9])
    found = run(Clock(concurrency), 1, lengths_of(means, 0.4), 6, 24_000)
    who = np.array([event.jobs["client"][0] for _, event in found if event.kind == "arrival"])
    who = who[len(who) % 40 :]
    shares = np.stack([np.bincount(some, minlength=6) / len(some) for some in np.split(who, 40)])
    want = np.array([elementary(np.delete(means, i), concurrency - 1) for i in range(6)])
    error = shares.std(0, ddof=1) / np.sqrt(40)
    assert (np.abs(shares.mean(0) - want / want.sum()) < 4 * error).all()
    assert (error < 0.006).all()
    if concurrency == 3:  # and it can tell: neither equal shares nor rates
        for wrong in (np.ones(6), 1 / means):
            assert (np.abs(shares.mean(0) - wrong / wrong.sum()) > 4 * error).any()


@pytest.mark.parametrize(
    ("concurrency", "buffer", "refill"),
    tiers([(4, 1, "reply"), (7, 4, "reply"), (8, 4, "update")], quick=[(4, 1, "reply")]),
)
def test_the_mean_staleness_knows_no_speed(concurrency: int, buffer: int, refill: str) -> None:
    means = np.geomspace(1, 11, 12)
    found = run(Clock(concurrency, refill), buffer, lengths_of(means, 0.2), 12, 24_000)  # type: ignore[arg-type]
    updates = [(now, event) for now, event in found if event.kind == "update"]
    tau = np.concatenate([now.version - 1 - event.jobs["version"] for now, event in updates])
    want = (concurrency - 1) / buffer if refill == "reply" else concurrency / buffer - 1
    assert tau.mean() == pytest.approx(want, rel=0.01)


def test_equal_times_are_rounds() -> None:
    """With C = K the k-th wave is the k-th update, whose jobs began from the model before it, whenever slots refill."""
    for refill in ("reply", "update"):
        found = run(Clock(4, refill), 4, lengths_of(np.full(9, 2.5)), 9, 600)  # type: ignore[arg-type]
        updates = [event for _, event in found if event.kind == "update"]
        assert len(updates) == 100
        for k, event in enumerate(updates):
            assert event.tick == (k + 1) * 2_500_000_000
            assert (event.jobs["wave"] == k).all()
            assert (event.jobs["version"] == k).all()


@pytest.mark.parametrize("refill", ["reply", "update"])
def test_no_client_has_two_jobs_and_slots_are_full(refill: str) -> None:
    """With losses and ties: after every event, a client at work or in the buffer is there once."""
    clock, means = Clock(5, refill), np.tile([1.0, 2.0, 3.0], 3)  # type: ignore[arg-type]
    found = run(clock, 3, lengths_of(means, lost=0.3), 9, 3000)
    kinds = Counter(event.kind for _, event in found)
    assert min(kinds[kind] for kind in ("dispatch", "arrival", "loss", "update")) > 100
    last = 0
    for now, event in found:
        clients = np.sort(np.append(now.flights["client"], now.buffer["client"]))
        assert (np.diff(clients) > 0).all()
        assert (clients == now.busy).all()
        assert (now.flights == np.sort(now.flights, order=["tick", "is_lost", "key", "client"])).all()
        held = len(now.flights) + (len(now.buffer) if refill == "update" else 0)
        assert held <= 5
        assert len(now.buffer) <= 3
        assert last <= event.tick == now.tick
        last = event.tick
        if event.kind == "dispatch":
            assert held == 5 or len(now.busy) == 9
            assert not now.flights["tick"][0] <= now.tick
        if event.kind == "update":
            assert len(event.jobs) == 3
            assert len(set(event.jobs["client"])) == 3


def test_events_of_one_tick_have_an_order_that_no_history_moves() -> None:
    """Arrivals go before losses, and each in the order of keys that are the same however jobs lay in memory."""
    lengths = lengths_of(np.ones(6), lost=0.4)
    now, event = next_event(Clock(6), 6, 6, SEED, lengths, beginning())
    ordered = now.flights
    assert event.kind == "dispatch"
    assert (ordered == np.sort(ordered, order=["tick", "is_lost", "key", "client"])).all()
    assert 0 < ordered["is_lost"].sum() < 6
    assert (ordered["client"] != np.arange(6)).any()  # ids have no part in it
    keys = {int(job["client"]): int(job["key"]) for job in ordered}
    assert keys[2] == rng.generator(SEED, rng.Purpose.TIE, 0, 2).integers(2**63)


def test_events_go_on_from_every_moment_to_the_same_bytes() -> None:
    clock, lengths = Clock(4), lengths_of(np.linspace(1, 5, 8), 0.3, 0.2)
    found = run(clock, 3, lengths, 8, 200)
    assert words(found) == words(run(clock, 3, lengths, 8, 200))
    for k in range(0, 190, 7):
        now = found[k][0]
        kept = Moment(  # what a file would hold
            *(np.frombuffer(array.tobytes(), array.dtype) for array in now[:3]),
            *(int(number) for number in now[3:]),
        )
        assert words(run(clock, 3, lengths, 8, 9, kept)) == words(found[k + 1 : k + 10])


def test_a_moment_knows_nothing_of_the_clients_that_it_did_not_draw() -> None:
    """The state of 10,000 clients is no larger than that of 100, and the same 40 slots are 40 jobs."""
    for n in (100, 10_000):
        now = run(Clock(40), 10, lengths_of(np.full(n, 1.0), 0.5), n, 800)[-1][0]
        assert len(now.flights) <= 40
        assert len(now.busy) <= 50
        assert now.flights.dtype == JOB


@pytest.mark.slow
def test_a_million_clients_take_no_more_memory_than_ten_thousand() -> None:
    peaks = []
    for n in (10_000, 1_000_000):
        means = np.broadcast_to(2.0, n)  # nothing of size N is the test's either
        tracemalloc.start()
        now = beginning()
        for _ in range(20_000):
            now, _ = next_event(Clock(1000), 100, n, SEED, lengths_of(means, 0.5), now)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert now.version > 50
    assert peaks[1] < 1.2 * peaks[0]


def test_a_reply_that_is_too_old_frees_its_client_and_does_not_count() -> None:
    """With one fast client of three and no staleness allowed, the others never count; without a limit they do."""
    lengths = lengths_of(np.array([1.0, 3.6, 7.7]))
    found = run(Clock(3, max_staleness=0), 1, lengths, 3, 400)
    counted = Counter(int(i) for _, event in found if event.kind == "update" for i in event.jobs["client"])
    stale = Counter(int(i) for _, event in found if event.kind == "stale" for i in event.jobs["client"])
    assert set(counted) == {0}
    assert set(stale) == {1, 2}
    for before, (now, event) in zip([now for now, _ in found], found[1:], strict=False):
        if event.kind == "stale":
            assert now.version - event.jobs["version"][0] > 0
            assert len(now.busy) == len(before.busy) - 1
            assert len(now.buffer) == len(before.buffer)
    every = run(Clock(3), 1, lengths, 3, 400)
    assert {int(i) for _, event in every if event.kind == "update" for i in event.jobs["client"]} == {0, 1, 2}


def test_an_update_has_with_it_what_ended_in_vain() -> None:
    clock, lengths, now = Clock(6, max_staleness=2), lengths_of(np.geomspace(1, 9, 9), 0.3, 0.2), beginning()
    events = [event for _, event in run(clock, 2, lengths, 9, 600)]
    ends = [k for k, event in enumerate(events) if event.kind == "update"]
    for first, last in zip([0, *ends], ends, strict=False):
        update = next_update(clock, 2, 9, SEED, lengths, now)
        now = update.after
        for kind, jobs in (("loss", update.lost), ("stale", update.stale)):
            wanted = [int(i) for event in events[first:last] if event.kind == kind for i in event.jobs["client"]]
            assert jobs["client"].tolist() == wanted
        assert (update.jobs == events[last].jobs).all()
        assert in_flight(clock, now) == tuple(sorted({int(v) for v in now.flights["version"] if now.version - v <= 2}))


def test_an_update_that_never_comes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_of_the_clock, "MANY", 200)
    with pytest.raises(UserError, match="200 jobs in a row were lost, with 0 of the 2 replies"):
        next_update(Clock(4), 2, 5, SEED, lengths_of(np.ones(5), lost=1.0), beginning())


def test_factors_of_staleness() -> None:
    tau = np.array([0.0, 3.0, 4.0, 6.0])
    assert poly(0.5)(tau) == pytest.approx([1, 0.5, 5**-0.5, 7**-0.5], abs=1e-15)
    assert hinge(10, 4)(tau) == pytest.approx([1, 1, 1, 1 / 21], abs=1e-15)


def test_what_can_never_update_is_refused() -> None:
    assert refusal(Clock(4), 9, 9) is None
    assert refusal(Clock(4, "update"), 4, 9) is None
    assert "concurrency of 10" in str(refusal(Clock(10), 1, 9))
    assert "give 1 to 9" in str(refusal(Clock(4), 10, 9))
    assert "refilled at updates" in str(refusal(Clock(4, "update"), 5, 9))


# -- who can be reached, and for how long the server waits -------------------------------------------------------------


def dispatches(clock: Clock, n: int, there: events_of_the_clock.There, events: int = 400) -> list[tuple[Moment, Event]]:
    now, seen = beginning(), []
    for _ in range(events):
        now, event = next_event(clock, 2, n, SEED, lengths_of(np.linspace(1, 5, n), 0.3), now, there)
        seen.append((now, event))
    return seen


def test_everybody_there_is_nobody_asked() -> None:
    clock, lengths = Clock(4, slot=2.0), lengths_of(np.linspace(1, 5, 8), 0.3)
    assert words(dispatches(clock, 8, lambda slot: np.arange(8))) == words(run(clock, 2, lengths, 8, 400))


def test_jobs_go_to_clients_that_are_there_and_wait_for_the_next_slot() -> None:
    """Odd clients in odd slots, even ones in even ones, nobody in every third: a job is for whom its slot has."""

    def there(slot: int) -> np.ndarray:
        return np.arange(slot % 2, 8, 2) if slot % 3 else np.empty(0, np.int64)

    seen, number = dispatches(Clock(4, slot=2.0), 8, there), 0
    for now, event in seen:
        if event.kind == "dispatch":
            slot, number = event.tick // (2 * 10**9), number + 1
            assert slot % 3 != 0
            assert (event.jobs["client"] % 2 == slot % 2).all()
            assert len(now.flights) <= 4
    assert number > 50
    first = next(event for _, event in seen if event.kind == "dispatch")
    assert first.tick == 2 * 10**9  # slot 0 has nobody
    waits = [event.tick for _, event in seen if event.kind == "dispatch" and event.tick % (2 * 10**9) == 0]
    assert len(waits) > 20  # places that were free when their clients came


def test_free_places_are_filled_as_clients_come() -> None:
    """One client a slot: the four places are full in the fourth, though nothing ended."""
    seen = dispatches(Clock(4, slot=0.1), 8, lambda slot: np.array([slot % 8]), 4)
    assert [(event.kind, event.tick, event.jobs["client"].tolist()) for _, event in seen] == [
        ("dispatch", k * 10**8, [k]) for k in range(4)
    ]


def test_nobody_ever_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_of_the_clock, "MANY", 50)
    with pytest.raises(UserError, match=r"nobody was available .* 50 slots of 60 seconds"):
        next_update(Clock(2), 2, 4, SEED, lengths_of(np.ones(4)), beginning(), lambda slot: np.empty(0, np.int64))


def test_a_slot_has_a_least_length() -> None:
    """An availability that goes on from slot to slot would take a step for each of them."""
    with pytest.raises(UserError, match=r"slot must be a number >= 0.001, given 1e-09"):
        build(events_of_the_clock.CLOCKS, "clock", "asynchronous(5,slot=1e-9)")
