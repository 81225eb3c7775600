"""The driver of a round at its corners, on every engine: who is refused, who joins late, who is idle, what is lost."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_wire import far, job

from fedconcord.execution.engines import Stacked, Wire
from fedconcord.execution.job import Job, State, advance, start
from fedconcord.execution.messages.link import Traffic
from fedconcord.execution.messages.store import remote_store
from fedconcord.execution.messages.way import RestartError, Send
from fedconcord.federation.participation.clock import lognormal
from fedconcord.federation.participation.dropout import fixed
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Tree, tree_leaves, tree_map
from fedconcord.method.wrappers.hostile import nan, with_hostile
from fedconcord.method.wrappers.late import with_late_replies
from fedconcord.method.wrappers.robust import median, with_aggregate

EVERYONE = np.arange(7)
ENGINES: dict[str, Callable[[], Any]] = {"stacked": lambda: Stacked(2), "wire": Wire}


def rounds(this: Job, number: int = 6) -> list[State]:
    """The states after each round, with copies of the rows."""
    state, found = start(this), []
    for _ in range(number):
        state = advance(this, state)
        found.append(state)
    return found


def assert_same(this: Job, engine: Any, number: int = 6) -> State:
    """The engine comes to the servers, rows, counts and refusals of the serial one; its last state."""
    want, got = start(this), start(replace(this, engine=engine))
    for _ in range(number):
        want, got = advance(this, want), advance(replace(this, engine=engine), got)
        assert far(got.server, want.server) < 1e-12
        assert far(got.store.gather(EVERYONE), want.store.gather(EVERYONE)) < 1e-12
        assert got._replace(server=(), store=()) == want._replace(server=(), store=())  # type: ignore[arg-type]
    return want


# -- replies that are not finite -----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_replies_are_refused_before_the_local_steps_and_after_them(engine: str) -> None:
    """Client 5's gradient is none, so that it is out before the local steps; clients 1 and 3 send nan after them."""
    this = job("mimesvrg", cohort=5)
    this = replace(this, algorithm=with_hostile(this.algorithm, nan(0.3), 5, 7))
    this.problem.b[25:30] = np.nan  # type: ignore[attr-defined]
    refused = assert_same(this, ENGINES[engine]()).refused
    assert len(refused) == 3
    assert refused[5] > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_where_no_finite_reply_is_left_the_model_is_lost(engine: str) -> None:
    this = job("mimesvrg")
    this.problem.b[:] = np.nan  # type: ignore[attr-defined]
    for one in (this, replace(this, engine=ENGINES[engine]())):
        state = advance(one, start(one))
        assert state.server.x.isnan().all()
        assert state.refused == {}


# -- contributions apart, and replies that come later --------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_late_replies_are_combined_in_the_round_that_they_come_in(engine: str) -> None:
    slow = job("scaffold", cohort=6, devices=lognormal(0.9), deadline=0.12, late="keep")
    this = replace(slow, algorithm=with_late_replies(with_aggregate(METHODS["fedavg"](), median())))
    sizes: list[int] = []
    combine = this.algorithm.phases.combine
    assert combine is not None

    def counted(server: Tree, rows: Tree, senders: Any, cohort: Any) -> Tree:
        sizes.append(len(next(iter(tree_leaves(rows).values()))))
        return combine(server, rows, senders, cohort)

    phases = this.algorithm.phases._replace(combine=counted)
    assert_same(replace(this, algorithm=replace(this.algorithm, phases=phases)), ENGINES[engine](), 8)
    assert min(sizes) < 6


# -- clients that begin late ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_begins_late_is_sent_x0_once(engine: str) -> None:
    """FedHybrid's first row depends on x^0, which is no longer the model when somebody begins in a later round; those
    who are lost in mid-round have it too, and get it again as nobody knows that it came."""
    this = job("fedhybrid", cohort=7)
    algorithm = replace(
        this.algorithm,
        needs=this.algorithm.needs._replace(everyone=False),
        refuse=lambda population, cohort: None,
    )
    this = replace(this, algorithm=algorithm, schedule=replace(this.schedule, cohort=3, dropout=fixed(0.3)))
    state = assert_same(this, ENGINES[engine](), 8)
    assert len(state.store) > 3


# -- processes -----------------------------------------------------------------------------------------------------


class Pair:
    """Two processes as threads: each sums with what the other brings, rank 0's first."""

    size = 2

    def __init__(self, rank: int, barrier: threading.Barrier, shelf: list[Any]) -> None:
        self.rank, self.barrier, self.shelf = rank, barrier, shelf

    def owns(self, ids: np.ndarray) -> np.ndarray:
        mine: np.ndarray = ids % 2 == self.rank
        return mine

    def both(self, what: Any) -> tuple[Any, Any]:
        self.shelf[self.rank] = what
        self.barrier.wait(60)
        found = self.shelf[0], self.shelf[1]
        self.barrier.wait(60)
        return found

    def total(self, tree: Tree, counts: tuple[int, ...]) -> tuple[Tree, tuple[int, ...]]:
        (one, some), (other, more) = self.both((tree, counts))
        return tree_map(torch.add, one, other), tuple(a + b for a, b in zip(some, more, strict=True))

    def any(self, *flags: bool) -> tuple[bool, ...]:
        return tuple(a or b for a, b in zip(*self.both(flags), strict=True))

    def tell(self, text: Callable[[], str]) -> str:
        return str(self.both(text() if self.rank == 0 else "")[0])


@pytest.mark.parametrize("name", ["scaffold", "afedpd", "mimesvrg", "hostile", "hostile, prelude"])
def test_a_process_without_clients_adds_nothing(name: str) -> None:
    this = job({"hostile": "scaffold", "hostile, prelude": "mimesvrg"}.get(name, name), cohort=2)
    if "hostile" in name:
        this = replace(this, algorithm=with_hostile(this.algorithm, nan(0.3), 5, 7))
    want, barrier, shelf = rounds(this)[-1], threading.Barrier(2), [None, None]
    ends: list[Any] = [None, None]

    def process(rank: int) -> None:
        torch.set_grad_enabled(True)
        ends[rank] = rounds(replace(this, engine=Stacked(1, 1, Pair(rank, barrier, shelf), "torch")))[-1]  # type: ignore[arg-type]

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank, end in enumerate(ends):
        assert far(end.server, want.server) < 1e-12
        assert end._replace(server=(), store=()) == want._replace(server=(), store=())
        mine = EVERYONE[rank == EVERYONE % 2]
        assert far(end.store.gather(mine), want.store.gather(mine)) < 1e-12


# -- a server that is lost -----------------------------------------------------------------------------------------


def test_a_server_that_restarts_after_its_step_does_not_take_it_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second thing that A-FedPD's server does is to send the message after its step: it is lost in there."""
    this = replace(job("afedpd"), engine=Wire())
    want, state = rounds(this)[-1], start(this)
    way = remote_store(state.store).way
    begin, begun = way.begin, []

    def breaks() -> Send:
        send, broken = begin(), []
        begun.append(send)

        def exchange(sent: list[tuple[int, bytes]], silent: frozenset[int]) -> list[tuple[int, bytes]]:
            arrived = send(sent, silent)
            if len(begun) % 2 == 0 and not broken:
                broken.append(True)
                raise RestartError
            return arrived

        return exchange

    monkeypatch.setattr(way, "begin", breaks)
    for _ in range(6):
        state = advance(this, state)
    assert far(state.server, want.server) == 0
    assert far(state.store.gather(EVERYONE), want.store.gather(EVERYONE)) == 0
    assert remote_store(state.store).traffic.server_restarts == 6
    assert (state.bytes_down, state.gradient_steps) == (want.bytes_down, want.gradient_steps)


def test_a_message_after_the_step_that_is_owed_is_in_the_checkpoint() -> None:
    """A server that is lost before any client heard it sends it with the next orders."""
    this = replace(job("afedpd"), engine=Wire())
    want, state = rounds(this, 3), start(this)
    for number in range(3):
        store = remote_store(state.store)
        store.way.is_simulated = False  # as real sites: the message waits for the next orders
        state = advance(this, state)
        again = this.engine.open(this.problem, this.assignment, this.storage, store.template, None)
        again.restore(state.store.export())
        assert far(again.gather(EVERYONE), want[number].store.gather(EVERYONE)) < 1e-12 or number < 2
        assert len(remote_store(again).ledger.owed) >= 3
        state = state._replace(store=again)
        assert far(state.server, want[number].server) < 1e-12
    assert remote_store(state.store).traffic != Traffic()
