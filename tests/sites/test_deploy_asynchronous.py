"""Asynchronous rounds at sites that reply in an order that the test dictates, against the simulation's equations."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_deploy_core import (
    BASE,
    SITES,
    SQUARES,
    Federation,
    Killed,
    answer_of,
    arriving,
    far,
    files,
    least_squares,
    leaves,
    optimum,
    quick_disk,
    running_sum,
    with_,
)

from fedconcord.execution.job import Job, checkpoint
from fedconcord.execution.messages import codec
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from fedconcord_sites.exchange import Flow
from fedconcord_sites.serve import serve
from replaying import End, replayed, rows_of

__all__ = ["files", "least_squares", "quick_disk"]  # fixtures

slow = pytest.mark.slow
PACE = {"basel": 1.0, "bern": 0.4, "chur": 0.08}  # chances to be the next that replies, not yet normed


class Dictated:
    """A flow in which a die says whose orders end next, and how: replied, lost on the way there, or on the way back."""

    def __init__(self, here: Federation, seed: int, lost: float = 0.0, together: float = 0.0) -> None:
        self.here, self.draw, self.lost, self.together = here, np.random.default_rng(seed), lost, together
        self.orders: dict[str, bytes] = {}
        self.ends: list[End] = []
        self.most = 0  # at work at a time

    def __call__(self, messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes | None]:
        assert not self.orders.keys() & messages.keys()  # one message a site
        self.orders |= messages
        self.most = max(self.most, len(self.orders))
        ends = self.one()
        while self.orders and self.draw.random() < self.together:
            ends |= self.one()
        return ends

    def one(self) -> dict[str, bytes | None]:
        names = sorted(self.orders)
        chance = np.array([PACE[name] for name in names])
        name = str(self.draw.choice(names, p=chance / chance.sum()))
        data = self.orders.pop(name)
        is_lost, arrives = self.draw.random() < self.lost, self.draw.random() < 0.5
        if self.draw.random() < 0.1:
            self.here.sites.pop(name, None)  # the site restarts
        answer = self.here.site(name).answer(data) if arrives or not is_lost else None
        version = codec.read(data).round
        self.ends.append(End(SITES.index(name), version, version, not is_lost))
        return {name: None if is_lost else answer}


def served(here: Federation, flow: Flow, resume: bool = False) -> None:
    folder = here.folder / "run"
    serve(here.job, here.names, here.exchange, folder, here.events.append, 1.0, resume, flow=flow)


def simulation(job: Mapping[str, Any], data: Path) -> Job:
    """The same job with all sites' samples in one process."""
    own = {"data": str(data), "validation": "none", "input": {"client": "site"}, "engine": {"name": "serial"}}
    return build(resolve_run(from_nested(with_(job, **own, devices="equal"), "here")))


DAMPED = "asynchronous(3,max_staleness=2)"
UNDAMPED = "asynchronous(3,staleness=none,max_staleness=2)"
OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "fedavg": ({}, DAMPED),
    "scaffold": ({}, DAMPED),
    "afedpd_share": ({}, UNDAMPED),  # whose message after the update goes with the next orders
    "fedadmm": ({"form": "paper", "server_lr": "participation"}, UNDAMPED),
    "losac": ({"blocks": 3}, DAMPED),  # asks all sites before round 0
    "ca2fl": ({}, DAMPED),
    "fedcm": ({}, DAMPED),
    "fedexp": ({}, DAMPED),  # a server optimiser that asks for more of its clients
}


@pytest.mark.parametrize("cohort", [1, 2])
@pytest.mark.parametrize(
    "name", [name if name in ("fedavg", "afedpd_share") else pytest.param(name, marks=slow) for name in OPTIONS]
)
def test_replies_in_any_order_are_the_simulations_updates_of_that_order(
    name: str, cohort: int, files: Path, tmp_path: Path
) -> None:
    options, clock = OPTIONS[name]
    local = {**BASE["local"], "lr_decay": 0.9}
    job = with_(BASE, method=name, algorithm=options, clock=clock, cohort=cohort, rounds=30, local=local)
    here = Federation(job, files, tmp_path)
    flow = Dictated(here, 4, lost=0.15, together=0.2)
    served(here, flow)
    server, plans = replayed(simulation(job, files / "all.csv"), flow.ends, 30)
    want, got = leaves(server), here.server()
    assert max(far(got[name], want[name]) for name in want) < 1e-12
    taus = np.concatenate([plan.round - plan.version for plan in plans])
    assert len(plans) == 30
    assert flow.most == 3
    assert {0, 1} <= {*taus.tolist()}
    assert sum(site["stale"] for site in here.said()["sites"]) > 0
    assert sum(site["missed"] for site in here.said()["sites"]) == sum(not end.replied for end in flow.ends)


EXACT = [
    ("scaffold", {}, "asynchronous(3,max_staleness=3)", 500),
    ("fedvra", {"gamma": 0.3, "a": 1.0, "d": 4.0}, "asynchronous(2,staleness=none)", 700),
    ("feddyn", {"alpha": 0.5, "weights": "uniform"}, "asynchronous(3,refill=update)", 500),
]


@pytest.mark.parametrize(
    ("method", "options", "clock", "updates"),
    [row if row[0] == "scaffold" else pytest.param(*row, marks=slow) for row in EXACT],
)
def test_a_server_killed_with_orders_in_flight_still_comes_to_the_optimum(
    method: str, options: dict[str, Any], clock: str, updates: int, least_squares: Path, tmp_path: Path
) -> None:
    """Sites that are slow, lose orders and replies, and reply too late: rows and their sum agree after every resume."""
    job = with_(SQUARES, method=method, algorithm=options, clock=clock, cohort=2, rounds=updates)
    here, kills = Federation(job, least_squares, tmp_path), 0

    def killed_after(calls: int, seed: int) -> Callable[..., Mapping[str, bytes | None]]:
        flow = Dictated(here, seed, lost=0.1, together=0.3)

        def dies(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes | None]:
            nonlocal calls
            calls -= 1
            ends = flow(messages, wait)  # a reply is here, and the server dies before it looks
            for name, data in flow.orders.items() if calls == 0 else ():
                here.site(name).answer(data)  # these sites finish their work for nobody
            if calls == 0:
                raise Killed
            return ends

        return dies

    for seed, calls in enumerate((1, 2, 7, 12, 3, 40, 41, 10**6)):
        try:
            served(here, killed_after(calls, seed), resume=True)
        except Killed:
            kills += 1
            here.sites.clear()
    assert kills == 7
    held, summed = running_sum(here, method)
    assert far(held, summed) < 1e-12
    assert float((answer_of(here) - optimum(here)).norm()) < 1e-8
    assert min(site["asked"] - site["missed"] for site in here.said()["sites"]) > 20


def mortal(flow: Flow, calls: int) -> Flow:
    """A flow of a server that dies in one of its calls."""
    left = iter(range(calls - 1))

    def dies(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes | None]:
        if next(left, None) is None:
            raise Killed
        return flow(messages, wait)

    return dies


@pytest.mark.parametrize("name", ["scaffold", pytest.param("afedpd_share", marks=slow)])
def test_the_trace_is_what_a_run_came_to(
    name: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of a server that was killed, once between trace and checkpoint; nobody heard of orders in flight."""
    options, clock = OPTIONS[name]
    local = {**BASE["local"], "lr_decay": 0.9}
    job = with_(BASE, method=name, algorithm=options, clock=clock, cohort=2, rounds=20, local=local)
    here, kills = Federation(job, files, tmp_path), 0
    for seed, calls in enumerate((4, 9, 15, 10**6)):
        saves, save = iter(range(2 if seed == 1 else 99)), checkpoint.save

        def fails(*args: Any, saves: Iterator[int] = saves, save: Callable[..., None] = save) -> None:
            if next(saves, None) is None:
                raise Killed
            save(*args)

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save", fails)
            try:
                served(here, mortal(Dictated(here, seed, lost=0.15, together=0.2), calls), resume=seed > 0)
            except Killed:
                kills += 1
    assert kills == 3
    rows = rows_of(tmp_path / "run" / "trace.csv")
    orders = [(SITES.index(row["client"]), int(row["wave"]), int(row["version"])) for row in rows]
    ends = [End(*order, row["fate"] != "lost") for order, row in zip(orders, rows, strict=True)]
    server, plans = replayed(simulation(job, files / "all.csv"), ends, 20)
    want, got = leaves(server), here.server()
    assert len(plans) == 20
    assert max(far(got[name], want[name]) for name in want) < 1e-12
    stale = [int(row["round"]) - 1 - int(row["version"]) > 2 for row in rows if row["fate"] != "lost"]
    assert stale == [row["fate"] == "stale" for row in rows if row["fate"] != "lost"]
    assert [int(row["round"]) for row in rows] == sorted(int(row["round"]) for row in rows)
    assert all(float(row["seconds"]) >= 0 and row["start"].endswith("+00:00") for row in rows)


@pytest.mark.parametrize(("updates", "near"), [(60, 1.0), pytest.param(900, 1e-8, marks=slow)])
def test_a_site_that_comes_later_joins_while_others_work(
    updates: int, near: float, least_squares: Path, tmp_path: Path
) -> None:
    """Its first orders are lost, two are its handshake in place of orders, and the optimum is that of all."""
    job = with_(SQUARES, method="scaffold", clock="asynchronous(3)", cohort=2, rounds=updates)
    here, draw, orders, calls = (
        Federation(job, least_squares, tmp_path),
        np.random.default_rng(0),
        dict[str, bytes](),
        0,
    )

    def flow(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes | None]:
        nonlocal calls
        orders.update(messages)
        calls += 1
        name = str(draw.choice(sorted(orders)))
        data = orders.pop(name)
        return {name: None if name == "chur" and calls < 30 else here.site(name).answer(data)}

    see, folder = here.events.append, here.folder / "run"
    serve(here.job, here.names, arriving(here, "chur", 4), folder, see, 1.0, False, later={"chur": 20}, flow=flow)
    assert [event.text for event in here.events if event.kind == "joined"] == ["site chur joins"]
    held, summed = running_sum(here, "scaffold")
    assert far(held, summed) < 1e-12
    assert float((answer_of(here) - optimum(here)).norm()) < near


def test_nobody_waits_for_a_slow_site(least_squares: Path, tmp_path: Path) -> None:
    """It replies once in ten updates, is asked for nothing else meanwhile, and what it says counts."""
    job = with_(SQUARES, method="fedavg", clock="asynchronous(3)", cohort=1, rounds=12, eval={"every": 1})
    here, orders, judges = Federation(job, least_squares, tmp_path), dict[str, bytes](), list[set[str]]()

    def flow(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes | None]:
        orders.update(messages)
        update = max(codec.read(data).round for data in orders.values())
        name = "chur" if update == 9 and "chur" in orders else min(orders)
        return {name: here.site(name).answer(orders.pop(name))}

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        if any(codec.read(data).kind == "judge" for data in messages.values()):
            judges.append({*messages})
        return here.exchange(messages, wait)

    serve(here.job, here.names, exchange, here.folder / "run", here.events.append, 1.0, False, flow=flow)
    assert judges[0] == judges[-1] == {*SITES}
    assert sum("chur" in sites for sites in judges) == 3  # before the first, after its reply, after the last
    assert [site["asked"] for site in here.said()["sites"]][2] == 3 + 4 + 2  # handshake, judged, orders
    assert here.said()["status"] == "complete"


def test_an_idle_site_that_is_away_does_not_end_the_run(least_squares: Path, tmp_path: Path) -> None:
    """It replied, is asked for a judgement while all others work, and is gone: that round is not judged."""
    job = with_(SQUARES, method="fedavg", clock="asynchronous(3)", cohort=1, rounds=6, eval={"every": 1})
    here, flow, asked = (
        Federation(job, least_squares, tmp_path),
        Dictated(Federation(job, least_squares, tmp_path), 0),
        [],
    )

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        if any(codec.read(data).kind == "judge" for data in messages.values()):
            asked.append(len(messages))
            if len(asked) == 3:
                return {}
        return here.exchange(messages, wait)

    serve(here.job, here.names, exchange, here.folder / "run", here.events.append, 1.0, False, flow=flow)
    assert here.said()["status"] == "complete"
    assert asked == [3, 1, 1, 1, 1, 1, 3]
    assert [row["round"] for row in here.metrics()] == ["0", "1", "3", "4", "5", "6"]
    assert [event.text for event in here.events if event.kind == "void"] == [
        "the model was not judged: no idle site answered"
    ]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clock": "asynchronous(9)"}, "concurrency of 9"),
        ({"method": "afedpd"}, "afedpd_share"),
        ({"aggregate": "median"}, "fedavg with these settings"),
        ({"availability": "coins(0.5,1)"}, "come and go by themselves"),
        ({"secure": {"clip": 1.0}}, "secure sums are of sites that reply in one round"),
        ({"devices": "equal"}, "devices is for simulations"),
    ],
)
def test_what_cannot_be_had_is_refused(
    changes: dict[str, Any], sentence: str, least_squares: Path, tmp_path: Path
) -> None:
    job = with_(SQUARES, **{"method": "fedavg", "clock": "asynchronous(2)", "rounds": 2, **changes})
    with pytest.raises(UserError, match=sentence):
        Federation(job, least_squares, tmp_path).serve()


def test_replies_that_never_come_end_the_run_in_a_sentence(least_squares: Path, tmp_path: Path) -> None:
    job = with_(SQUARES, method="fedavg", clock="asynchronous(2)", cohort=2, rounds=2)
    here = Federation(job, least_squares, tmp_path)
    with pytest.raises(
        UserError, match="no site replied to 3 orders in a row, with 0 of the 2 replies of update 0 there"
    ):
        served(here, lambda messages, wait: dict.fromkeys(messages))


def test_a_cohort_of_all_sites_is_said_to_wait(least_squares: Path, tmp_path: Path) -> None:
    for cohort in (None, 3, 2):
        job = with_(SQUARES, method="fedavg", clock="asynchronous(3)", rounds=1)
        job = {key: value for key, value in job.items() if key != "cohort"} | ({"cohort": cohort} if cohort else {})
        here = Federation(job, least_squares, tmp_path / str(cohort))
        here.serve()
        said = [event.text for event in here.events if event.text.startswith("every update waits")]
        assert len(said) == (cohort != 2)


def test_an_exchange_that_answers_at_once_will_do(least_squares: Path, tmp_path: Path) -> None:
    job = with_(SQUARES, method="scaffold", clock="asynchronous(3)", cohort=2, rounds=3)
    assert Federation(job, least_squares, tmp_path).serve().status == "complete"
