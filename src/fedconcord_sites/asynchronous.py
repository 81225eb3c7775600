"""Asynchronous rounds at sites: some of them are at work, replies are taken as they come, and every K are an update.

What the clock of a simulation (`participation.events`) does in virtual time, in real time: a free place goes to an idle
site with the newest model, and a site is idle again when its reply was counted, lost or too old. Orders are of round v,
the updates that their model had seen. A site draws its batches by that and takes the steps that its own job has for
it, so it need not know that nobody waits; and of one site the orders that count are of ever later rounds.

What is in flight is on no disk. When the server goes down it is lost like a reply that never came: a site's row moves
when later orders say that its reply counted, and these are in the checkpoint before they are sent.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from fedconcord.execution.messages.server import RemoteServer, Reply, Request
from fedconcord.execution.messages.sums import Requests, Summed, summed
from fedconcord.execution.run.trace import End, Trace
from fedconcord.federation.participation.sampling import uniform
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.contract import Phase, Plan
from fedconcord.support.errors import UserError
from fedconcord_sites.exchange import Exchange, Flow
from fedconcord_sites.site_link import IN_A_ROW, SiteLink


class Flight(NamedTuple):
    """What a site works on."""

    request: Request
    began: float  # seconds since 1970


class Arrival(NamedTuple):
    """A reply that waits for its update."""

    request: Request
    reply: Reply


def at_once(exchange: Exchange) -> Flow:
    """A flow of an exchange, which returns when all have answered."""

    def flow(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes | None]:
        return {**dict.fromkeys(messages), **exchange(messages, wait)}

    return flow


class Asynchronous:
    """Sums of the next replies, as `messages.sums.Sums`; what it is asked with is a plan of all sites.

    Args:
        schedule: with the clock.
        updates: of the run; after the last one nobody is waited for.
        trace: is told what became of all orders.
    """

    def __init__(self, link: SiteLink, flow: Flow, schedule: Schedule, updates: int, trace: Trace) -> None:
        assert schedule.clock is not None
        self.link, self.flow, self.schedule, self.clock, self.updates = link, flow, schedule, schedule.clock, updates
        self.trace, self.flights = trace, dict[int, Flight]()  # by site
        self.buffer: dict[int, Arrival] = {}
        self.ends = deque[tuple[int, bytes | None]]()  # of flights, that nobody has looked at yet
        link.busy = self.flights

    def sum(self, half: RemoteServer, requests: Requests, phase: Phase) -> Summed:
        """Send orders and take replies until there are those of an update.

        Raises:
            UserError: they never come.
        """
        losses = Counter[int]()  # by site, since the last reply of any
        self.trace.cut(requests.plan.round)  # a server that was killed after its last checkpoint wrote more
        while len(self.buffer) < self.schedule.cohort:
            if not self.ends:
                self._dispatch(half, requests)
            if self.ends:
                site, data = self.ends.popleft()
                if self._take(half, requests.plan.round, site, data):
                    losses.clear()
                else:
                    losses[site] += 1
            able = [i for i in requests.of_client if i not in self.buffer and self.link.records[i].left_out is None]
            if able and min(losses[i] for i in able) >= IN_A_ROW:
                raise UserError(
                    f"no site replied to {IN_A_ROW} orders in a row, with {len(self.buffer)} of the "
                    f"{self.schedule.cohort} replies of update {requests.plan.round} there; go on with the run "
                    "(resume) when sites are there again, or with a longer --wait"
                )
        arrivals, self.buffer = dict(sorted(self.buffer.items())), {}
        if requests.plan.round + 1 >= self.updates:
            self.flights.clear()
        plan = self._plan(half, requests.plan.round, arrivals)
        return summed(half, plan, {i: arrival.reply for i, arrival in arrivals.items()}, phase)

    def _dispatch(self, half: RemoteServer, requests: Requests) -> None:
        """Fill the free places, and wait until a flight ends."""
        left_out = {i for i, record in enumerate(self.link.records) if record.left_out is not None}
        idle = [i for i in requests.of_client if i not in {*self.flights, *self.buffer, *left_out}]
        reach = len(self.flights) + len(self.buffer) + len(idle)
        if reach < self.schedule.cohort:
            raise UserError(
                f"{reach} sites are left that reply, and an update needs {self.schedule.cohort} (cohort); begin a new "
                "run with a smaller cohort, or with other sites"
            )
        occupied = len(self.flights) + len(self.buffer) * (self.clock.refill == "update")
        free = min(self.clock.concurrency - occupied, len(idle))
        messages = {}
        if free > 0:
            places = uniform().draw(self.schedule.seed, self.link.number, free, np.ones(len(idle)), np.zeros_like)
            for i in np.array(idle)[places.ids].tolist():
                self.flights[i] = Flight(requests.of_client[i], time.time())
                messages[i] = half.message(self.flights[i].request.frame, False)
        wait = self.link.wait if self.clock.timeout is None else self.clock.timeout
        self.ends.extend(self.link.relay(self.flow, messages, wait))

    def _take(self, half: RemoteServer, update: int, site: int, data: bytes | None) -> bool:
        """The end of a flight: whether a reply came."""
        (request, began), replies = self.flights.pop(site), dict[int, Reply]()
        if data is not None:
            half.take(site, data, {site: request}, replies, set())
        oldest, version = self.clock.max_staleness, request.frame.round
        is_stale = oldest is not None and update - version > oldest
        is_sound = site in replies and replies[site].is_finite
        fate = "lost" if data is None else "refused" if not is_sound else "stale" if is_stale else "counted"
        start = datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds")
        seconds = round(time.time() - began, 3)
        self.trace.add([End(update + 1, self.link.sites[site], version, version, start, seconds, fate)])
        if site not in replies:
            return False
        half.arrived(site, update)
        if is_stale:
            half.gradient_steps += replies[site].gradient_steps
            self.link.records[site].stale += 1
        else:
            self.buffer[site] = Arrival(request, replies[site])
        return True

    def _plan(self, half: RemoteServer, update: int, arrivals: Mapping[int, Arrival]) -> Plan:
        """The plan that they turn out to be of, by the simulation's own weights."""
        orders = [arrival.request.frame.fields["orders"] for arrival in arrivals.values()]
        ids, steps, versions = (np.array([one[name] for one in orders], np.int64) for name in ("id", "steps", "round"))
        return self.schedule.plan_of_update(update, half.algorithm, half.roster, ids, steps, versions, versions)
