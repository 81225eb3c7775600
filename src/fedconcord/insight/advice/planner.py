"""What a federation would cost, before anybody runs it: bytes and seconds by tier of servers, memory, state, money.

Sizes are those of a method's own messages and rows, whose forms are computed for tensors without values. Everything
else is arithmetic. With N clients, S replies a round, R rounds, messages of u bytes up and v down, servers with ports
of B bytes/s and c CPU seconds a byte:

    client     v / its bandwidth down + its local steps + u / its bandwidth up + latencies, as `participation.clock`
    tiers      T of them above the clients, with f = S^(1/T) children a server; between servers one total goes up for
               the messages of f children, and one message down
    a round    client + sum over tiers of f v / B + max(f u / B, c f u): a server sums while it receives
    one server is enough up to S = B client / max(u, v), where its port is busy as long as a client
    memory     state + total + open frames where replies are summed as they come (a stream), and
               state + total + f replies where a round's replies are kept until all are there, as servers here do
    rows       l = R S / N visits a client; the share that never comes is (1 - S/N)^R, and of those that come once
               l (1 - S/N)^(R-1), for cohorts drawn at random
    without rounds, C = S jobs in flight: S / client replies a second
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from fedconcord.execution.job.job import bytes_of
from fedconcord.execution.rows import Storage
from fedconcord.federation.participation import clock, sampling
from fedconcord.federation.participation.clock import Cost, Device
from fedconcord.federation.participation.events import Clock
from fedconcord.federation.participation.jobs import refusal_of_clock
from fedconcord.federation.participation.participation import Rules, refusal
from fedconcord.method.contract import Algorithm, Population, Sender, tree_bytes
from fedconcord.method.wrappers.factors import FactorRule
from fedconcord.method.wrappers.forms import COHORT, forms
from fedconcord.study.settings.job import with_parts
from fedconcord.study.settings.methods import read_method
from fedconcord.study.settings.parts import part
from fedconcord.support import grammar
from fedconcord.support.errors import UserError

LINKS = {  # bytes a second up and down, seconds of latency
    "phone": (1.25e6, 6.25e6, 0.05),
    "site": (12.5e6, 12.5e6, 0.0),
    "datacentre": (1.25e9, 1.25e9, 0.0),
}
PARTS = ("aggregate", "upload", "server")  # settings of a method that a plan looks at
CPU = 1.3e-9  # seconds a byte of a message: checked, read and added; docs/plan.md measures it
DEEPEST = 3  # tiers
PETABYTE = 1e15
SECONDS_AN_HOUR, HOURS_A_MONTH = 3600.0, 730.0


class Federation(NamedTuple):
    """What is planned."""

    clients: int  # N
    cohort: int  # S replies a round, or jobs in flight without rounds
    rounds: int  # R
    model: int  # bytes, of float32
    device: Device  # of every client; `step` are the seconds of its local work
    port: float = 1.25e9  # bytes a second of a server, each way
    cpu: float = CPU  # seconds a byte of a message at a server
    frames: int = 32  # messages that a server which sums a stream has open
    is_stored: bool = False  # rows lie in a store of the servers, not at clients
    prices: Mapping[str, float] = {}  # "server" an hour, "gb" sent by servers, "store" a GB and month


class Sizes(NamedTuple):
    """What one method sends and keeps, in bytes."""

    method: str
    cost: Cost  # of one client
    before: int  # from each of all clients, once before round 0
    total: int  # from a server to the one above it in a round
    nests: bool  # its contributions are summed, so that servers may stand above servers
    row: int  # of a client between rounds
    half_row: int  # the same with 2 bytes a number
    server: int  # state of the root
    rounds: str | None  # why its rounds cannot be had so, or None
    clock: str | None  # why it does not run without rounds, or None


class Tier(NamedTuple):
    """What passes between servers of one height and what is below them, in a round."""

    children: int  # of the busiest server
    servers: int
    bytes_down: int  # of all of them
    bytes_up: int
    seconds_down: float  # the busiest port
    seconds_up: float
    cpu_seconds: float  # of the busiest server
    stream: int  # bytes of memory of the busiest, that sums a stream
    replies: int  # that keeps a round's replies


class Layout(NamedTuple):
    """Servers above servers; the lowest tier first."""

    tiers: tuple[Tier, ...]
    seconds: float  # of a round

    @property
    def servers(self) -> int:
        return sum(tier.servers for tier in self.tiers)


class Rows(NamedTuple):
    """What clients keep between rounds, in bytes, and who comes how often."""

    visits: float  # l of a client
    distinct: float  # clients that come at all
    again: float  # that come at least twice
    most: int  # bytes of rows at most
    expected: float  # bytes of the rows of those that come
    traffic: int  # a round, in and out of a store of the servers
    advice: str


class Planned(NamedTuple):
    """The plan of one method."""

    sizes: Sizes
    client: float  # seconds of a client's round
    enough: int  # replies a round up to which one server is
    layouts: tuple[Layout, ...]  # with one tier, two, ...
    best: int  # which of them: the fewest tiers that take no longer than the clients, or the quickest
    rows: Rows | None  # none: clients keep nothing
    replies: float | None  # a second without rounds; none: it needs rounds
    ports: int | None  # that these keep busy
    hourly: Mapping[str, float]  # money by what it is paid for


# -- sizes ---------------------------------------------------------------------------------------------------------


def read_algorithm(text: str) -> tuple[str, Algorithm]:
    """A method as a comparison takes it, with its own aggregate, upload and server, and its label.

    Raises:
        UserError: there is no such method, or it has other settings of its own.
    """
    call, settings = read_method(text)
    algorithm: Algorithm = call()
    others = settings.keys() - {*PARTS, "label"}
    if others:
        raise UserError(f"method {call.name}: a plan does not look at {min(others)}; leave it out")
    aggregate, upload, server = (None if settings.get(key) is None else str(settings[key]) for key in PARTS)
    rule = None if aggregate is None else part("aggregate", aggregate)
    if isinstance(rule, FactorRule):
        raise UserError(
            f"method {call.name}: a plan has no model with factors, given aggregate={aggregate}; leave it out, and "
            "give the bytes of a client's factors as --model-bytes, of different ranks their mean"
        )
    label = str(settings.get("label") or text)
    return label, with_parts(algorithm, call.name, label, rule, upload, server)


def sizes_of(name: str, algorithm: Algorithm, of: Federation) -> Sizes:
    """What a method sends and keeps for a model of so many bytes.

    Raises:
        UserError: the forms of its messages cannot be had without values, or at this size.
    """
    x = torch.empty(of.model // torch.float32.itemsize, device="meta")
    try:
        messages = forms(algorithm, x)
        row, server = algorithm.init_client(x), algorithm.init(x, Population(of.clients, x.new_ones(of.clients)))
        one = x.new_ones(())
        sender = Sender(one.to(torch.int64), one, one, one, one, 1.0, 0 * one)
        share = algorithm.contribute(messages.up, sender, COHORT._replace(n=of.clients, size=of.cohort, dim=len(x)))
    except (RuntimeError, NotImplementedError) as wrong:
        why = str(wrong).splitlines()[0]
        raise UserError(
            f"method {name}: no messages can be formed for a model of {of.model} bytes ({why}); give a smaller model, "
            "or leave the method out"
        ) from wrong
    rules, buffer = Rules(sampling.uniform(), devices=clock.equal()), max(1, of.cohort // 10)
    return Sizes(
        method=name,
        cost=bytes_of(algorithm, messages, of.clients),
        before=tree_bytes(messages.share),
        total=tree_bytes(share) + tree_bytes(messages.answer),
        nests=algorithm.phases.combine is None,
        row=Storage().row_bytes(row),
        half_row=Storage(rows="bfloat16").row_bytes(row),
        server=tree_bytes(server),
        rounds=refusal(Rules(sampling.uniform()), algorithm, of.clients, of.cohort),
        clock=refusal_of_clock(Clock(of.cohort), rules, algorithm, of.clients, buffer),
    )


# -- arithmetic ----------------------------------------------------------------------------------------------------


def counts(cohort: int, depth: int) -> list[int]:
    """Of `depth` tiers with equal fan-out, how many send up in each: S clients, then servers; one root is above all."""
    fan_out = math.ceil(round(cohort ** (1 / depth), 9))
    return [cohort] + [math.ceil(cohort / fan_out**height) for height in range(1, depth)]


def layout(sizes: Sizes, of: Federation, client: float, depth: int) -> Layout:
    """Servers in so many tiers, and how long a round takes; clients take so many seconds of it."""
    senders = counts(of.cohort, depth)
    down, tiers = sizes.cost.down + sizes.cost.settled, []
    for height, number in enumerate(senders):
        servers = senders[height + 1] if height + 1 < depth else 1
        children, up = math.ceil(number / servers), sizes.cost.up if height == 0 else sizes.total
        state = sizes.server if height == depth - 1 else down
        tiers.append(
            Tier(
                children=children,
                servers=servers,
                bytes_down=number * down,
                bytes_up=number * up,
                seconds_down=children * down / of.port,
                seconds_up=children * up / of.port,
                cpu_seconds=children * up * of.cpu,
                stream=state + sizes.total + min(of.frames, children) * up,
                replies=state + sizes.total + children * up,
            )
        )
    busy = sum(tier.seconds_down + max(tier.seconds_up, tier.cpu_seconds) for tier in tiers)
    return Layout(tuple(tiers), client + busy)


def rows_of(sizes: Sizes, of: Federation) -> Rows:
    """What becomes of clients' rows, by how often clients come: `advice` has the case.

    Raises:
        UserError: rows in a store of the servers would be a petabyte or more.
    """
    share, visits = of.cohort / of.clients, of.rounds * of.cohort / of.clients
    log_absent = math.log1p(-share) if share < 1 else -math.inf
    never = math.exp(of.rounds * log_absent)
    once = visits * (math.exp((of.rounds - 1) * log_absent) if of.rounds > 1 else 1.0)
    distinct, again = of.clients * (1 - never), max(0.0, of.clients * (1 - never - once))
    most = min(of.clients, of.rounds * of.cohort) * sizes.row
    if visits >= 3:
        advice = "rows pay: keep them at the clients, where they cost the network nothing; lost rows need an audit"
    elif visits > 0.3:
        advice = (
            "rows pay a little: keep them at the clients, or compressed (bfloat16 halves them) with a method that need "
            "not be exact"
        )
    else:
        advice = (
            "rows are hardly ever read: use a method whose state is the cohort's or the server's alone, or rows of "
            "edge servers"
        )
    if of.is_stored and most >= PETABYTE:
        raise UserError(
            f"{sizes.method}: rows in a store of the servers grow to {most / PETABYTE:.2g} PB, and rounds x "
            f"replies / clients = {visits:.2g}; {advice}"
        )
    traffic = 2 * of.cohort * sizes.row if of.is_stored else 0
    return Rows(visits, distinct, again, most, distinct * sizes.row, traffic, advice)


def planned(sizes: Sizes, of: Federation) -> Planned:
    """The whole plan of a method.

    Raises:
        UserError: as `rows_of` does.
    """
    took = clock.times([of.device], sizes.cost, np.ones(1))
    client = float(took.total[0]) + clock.settling([of.device], sizes.cost)
    depths = [k for k in range(1, DEEPEST + 1) if k == 1 or (sizes.nests and of.cohort > 2**k)]
    layouts = tuple(layout(sizes, of, client, depth) for depth in depths)
    good = [k for k, one in enumerate(layouts) if one.seconds <= 2 * client]
    best = good[0] if good else min(range(len(layouts)), key=lambda k: layouts[k].seconds)
    rows = rows_of(sizes, of) if sizes.row else None
    replies = of.cohort / client if sizes.clock is None and client else None
    busiest = max(sizes.cost.up, sizes.cost.down + sizes.cost.settled, 1)
    ports = None if replies is None else math.ceil(replies * busiest / of.port)
    way = layouts[best]
    sent_up = sum(tier.bytes_up for tier in way.tiers[1:])  # by the servers below
    bytes_sent, an_hour = sent_up + sum(tier.bytes_down for tier in way.tiers), SECONDS_AN_HOUR / way.seconds
    store_gb = rows.expected / 1e9 if rows is not None and of.is_stored else 0.0
    amounts = {"server": way.servers, "gb": bytes_sent / 1e9 * an_hour, "store": store_gb / HOURS_A_MONTH}
    hourly = {name: price * amounts[name] for name, price in of.prices.items()}
    enough = int(of.port * client / busiest)
    return Planned(sizes, client, enough, layouts, best, rows, replies, ports, hourly)


# -- reading what was asked ----------------------------------------------------------------------------------------


def whole(name: str, value: str) -> int:
    """A whole number >= 1, which may be written as 1e8.

    Raises:
        UserError: it is none.
    """
    number = grammar.scalar(value)
    if isinstance(number, bool) or not isinstance(number, int | float) or not 1 <= number < 1e18 or number % 1:
        raise UserError(f"{name} must be an integer from 1 to 1e18, as in 100000 or 1e5, given {value!r}")
    return int(number)


def amount(name: str, value: str, least: float = 0.0) -> float:
    """A finite number, not below `least`.

    Raises:
        UserError: it is none.
    """
    number = grammar.scalar(value)
    if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number < math.inf:
        raise UserError(f"{name} must be a number >= {least:g}, given {value!r}")
    return float(number)


def device_of(links: str, seconds: float) -> Device:
    """A client's device, whose local work takes so long.

    Raises:
        UserError: there is no such class of links, and it is no up:down:latency.
    """
    if links in LINKS:
        return Device(seconds, *LINKS[links])
    parts = links.split(":")
    if len(parts) != 3:
        raise UserError(
            f"--links must be {', '.join(LINKS)} or up:down:latency in bytes a second and seconds, as in "
            f"1.25e6:6.25e6:0.05, given {links!r}"
        )
    up, down = (amount("--links", bytes_a_second, 1.0) for bytes_a_second in parts[:2])
    return Device(seconds, up, down, amount("--links", parts[2]))


def prices_of(text: str) -> dict[str, float]:
    """server=1.2,gb=0.09,store=0.02.

    Raises:
        UserError: it is not of this form.
    """
    prices = {}
    for item in text.split(","):
        name, sign, price = item.strip().partition("=")
        if name not in ("server", "gb", "store") or not sign:
            raise UserError(
                f"--prices must be some of server=, gb= and store=, as in server=1.2,gb=0.09, given {text!r}"
            )
        prices[name] = amount(f"--prices {name}", price)
    return prices


def as_json(plans: list[Planned], of: Federation) -> dict[str, Any]:
    """The plans as values of JSON, named as here."""

    def plain(value: Any) -> Any:
        if hasattr(value, "_asdict"):
            return {name: plain(inner) for name, inner in value._asdict().items()}
        if isinstance(value, tuple | list):
            return [plain(inner) for inner in value]
        return dict(value) if isinstance(value, Mapping) else value

    return {"federation": plain(of), "methods": [plain(one) for one in plans]}
