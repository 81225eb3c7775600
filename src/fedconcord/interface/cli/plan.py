"""plan: what a federation would cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from fedconcord.interface.cli.base import app, importing, say, say_columns
from fedconcord.interface.cli.options import option
from fedconcord.support.errors import UserError

if TYPE_CHECKING:
    from fedconcord.insight.advice.planner import Federation, Planned

METHODS = "fedavg,scaffold,fedadmm,afedpd"


@app.command()
def plan(
    clients: Annotated[str, option("Number of clients, as in 1e8.", "N")],
    cohort: Annotated[str, option("Number of replies in a round, or of jobs in flight without rounds.", "N")],
    model_bytes: Annotated[str, option("Bytes of the model in float32, as in 10e6.", "BYTES")],
    rounds: Annotated[str, option("Number of rounds. [1000]", "N")] = "1000",
    methods: Annotated[
        str, option(f"Methods with their parameters, upload=, aggregate= and server=. [{METHODS}]", "LIST")
    ] = METHODS,
    links: Annotated[
        str,
        option("Clients' links: phone, site, datacentre, or bytes/s up:down:seconds of latency. [phone]", "LINKS"),
    ] = "phone",
    work: Annotated[str, option("Seconds of a client's local work in a round. [0]", "SECONDS")] = "0",
    port: Annotated[str, option("Bytes a second of a server's port, each way. [1.25e9]", "NUMBER")] = "1.25e9",
    rows: Annotated[str, option("Where clients' rows lie: clients, or a store of the servers. [clients]", "PLACE")] = (
        "clients"
    ),
    prices: Annotated[
        str | None,
        option("Prices of a server and hour, a GB sent by servers, a GB and month of rows in store.", "server=1.2,..."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Compute what a federation of any size would cost. The plan has bytes and seconds by tier of servers, memory,
    clients' state and money. Nothing is trained."""
    with importing():
        from fedconcord.federation.participation import sampling
        from fedconcord.insight.advice import planner
        from fedconcord.support.grammar import split_list

    if rows not in ("clients", "store"):
        raise UserError(f"--rows must be clients or store, given {rows!r}")
    if prices is not None and "store=" in prices and rows != "store":
        raise UserError("--prices store= is of rows in a store of the servers; give --rows store too, or leave it out")
    of = planner.Federation(
        clients=planner.whole("--clients", clients),
        cohort=planner.whole("--cohort", cohort),
        rounds=planner.whole("--rounds", rounds),
        model=planner.whole("--model-bytes", model_bytes),
        device=planner.device_of(links, planner.amount("--work", work)),
        port=planner.amount("--port", port, 1.0),
        is_stored=rows == "store",
        prices={} if prices is None else planner.prices_of(prices),
    )
    if of.model % 4:
        raise UserError(f"--model-bytes must be a multiple of 4, the bytes of a float32, given {model_bytes!r}")
    sampling.check(of.cohort, of.clients)
    algorithms = [planner.read_algorithm(text.strip()) for text in split_list(methods)]
    if not algorithms:
        raise UserError("--methods names no method; give one or more, as in fedavg,scaffold")
    plans = [planner.planned(planner.sizes_of(*one, of), of) for one in algorithms]
    if json_:
        say(json.dumps(planner.as_json(plans, of), indent=2))
        return
    for line in lead(of, links):
        say(line)
    say("")
    say_columns([overview(one, of) for one in plans])
    for one in plans:
        say("")
        for line in remarks(one, of):
            say(line)
        say_columns(list(tiers(one)))


def lead(of: Federation, links: str) -> list[str]:
    """What is planned."""
    from fedconcord.study.statistics.format import size

    device = of.device
    return [
        f"{of.clients:,} clients, {of.cohort:,} replies a round, {of.rounds:,} rounds, a model of {size(of.model)}",
        f"clients' links ({links}): {size(device.up)}/s up, {size(device.down)}/s down, {device.latency:g} s; local "
        f"work {device.step:g} s; servers' ports: {size(of.port)}/s each way",
    ]


def overview(one: Planned, of: Federation) -> dict[str, str]:
    """A row of the table of methods."""
    from fedconcord.study.statistics.format import size

    sizes, way = one.sizes, one.layouts[one.best]
    cells = {
        "method": sizes.method,
        "up": size(sizes.cost.up),
        "down": size(sizes.cost.down + sizes.cost.settled),
        "a round, all clients": size(sum(way.tiers[0][2:4])),
        "client": f"{one.client:.3g} s",
        "one server": f"{one.layouts[0].seconds:.3g} s",
        f"tiers, at most {len(one.layouts)}": f"{len(way.tiers)}",
        "with them": f"{way.seconds:.3g} s",
        "servers": f"{way.servers:,}",
        "rows at most": "-" if one.rows is None else size(one.rows.most),
        "without rounds": "-" if one.replies is None else f"{one.replies:.3g}/s, {one.ports} ports",
    }
    return cells | ({"an hour": f"{sum(one.hourly.values()):.3g}"} if of.prices else {})


def remarks(one: Planned, of: Federation) -> list[str]:
    """Sentences about one method."""
    from fedconcord.study.statistics.format import size

    sizes, rows = one.sizes, one.rows
    lines = [f"{sizes.method}: one server is enough up to {one.enough:,} replies a round"]
    if sizes.rounds is not None:
        lines.append(f"  cannot be had so: {sizes.rounds}")
    if not sizes.nests:
        lines.append("  its server looks at contributions one by one, so that no servers can sum below it")
    if sizes.before:
        lines.append(f"  before round 0 each of all clients sends {size(sizes.before)}")
    if sizes.cost.x0:
        lines.append(f"  a client that comes for the first time after round 0 gets {size(sizes.cost.x0)} more")
    if sizes.clock is not None:
        lines.append(f"  no rate without rounds: {sizes.clock}")
    if rows is None:
        lines.append("  clients keep nothing between rounds")
    else:
        lines.append(
            f"  rounds x replies / clients = {rows.visits:.3g}: {rows.distinct:,.0f} clients come, {rows.again:,.0f} "
            f"again; a row of {size(sizes.row)} ({size(sizes.half_row)} in bfloat16), {size(rows.expected)} in all"
            + (f", {size(rows.traffic)} a round in and out of the store" if of.is_stored else "")
        )
        lines.append(f"  {rows.advice}")
    if one.hourly:
        lines.append("  an hour: " + ", ".join(f"{name} {price:.3g}" for name, price in one.hourly.items()))
    return lines


def tiers(one: Planned) -> list[dict[str, str]]:
    """A row each tier of each layout."""
    from fedconcord.study.statistics.format import size

    return [
        {
            "  tiers": f"  {len(layout.tiers)}" if height == 0 else "",
            "tier": "clients" if height == 0 else f"servers {height}",
            "to servers": f"{tier.servers:,}",
            "children": f"{tier.children:,}",
            "down": size(tier.bytes_down),
            "up": size(tier.bytes_up),
            "port": f"{tier.seconds_down:.2g} + {tier.seconds_up:.2g} s",
            "CPU": f"{tier.cpu_seconds:.2g} s",
            "memory, a stream": size(tier.stream),
            "replies kept": size(tier.replies),
        }
        for layout in one.layouts
        for height, tier in enumerate(layout.tiers)
    ]
