"""Jobs of asynchronous rounds: how long they last by the rules of participation, and what cannot be had with them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedconcord.federation.participation import clock, dropout, events
from fedconcord.federation.participation.clock import Cost
from fedconcord.federation.participation.events import Clock, Lengths
from fedconcord.federation.participation.participation import Rules
from fedconcord.federation.participation.sampling import uniform
from fedconcord.method.contract import Algorithm


class Amount(NamedTuple):
    """The work of some clients."""

    steps: np.ndarray  # [F] int64 local steps
    full: np.ndarray  # [F] mini-batches in a full gradient


def job_lengths(
    rules: Rules,
    seed: int,
    wave: int,
    ids: np.ndarray,
    work: Amount,
    cost: Cost,
    joins: np.ndarray,
    timeout: float | None = None,
) -> Lengths:
    """Of the jobs of a dispatch, ids [F]: the server hears of a lost one when it is.

    Args:
        joins: [F] bool, who is sent x^0 as well.
        timeout: seconds after which the server waits no longer; the client stops then.
    """
    assert rules.devices is not None
    gradients = cost.gradients(work.steps, work.full)
    cost = cost._replace(down=cost.down + cost.settled)  # what followed a client's last update comes with its next job
    took = clock.times([rules.devices(seed, wave, int(i)) for i in ids], cost, gradients, joins=joins)
    lost, share = np.zeros(len(ids), bool), np.ones(len(ids))
    if rules.dropout is not None:
        lost, at, _ = dropout.draw(rules.dropout, seed, wave, ids)
        share = np.where(lost, at, share)
    seconds = np.where(lost, took.down + share * took.compute, took.total)
    if timeout is not None:
        late, lost = seconds > timeout, lost | (seconds > timeout)
        until = np.clip((timeout - took.down) / np.maximum(took.compute, 1e-9), 0.0, share)
        seconds, share = np.minimum(seconds, timeout), np.where(late, until, share)
    return Lengths(seconds, lost, (share * gradients).astype(np.int64))


def refusal_of_clock(timed: Clock, rules: Rules, algorithm: Algorithm, n: int, buffer: int) -> str | None:
    """Why a method's rounds cannot be asynchronous under these rules, with so many replies an update; None if they
    can."""
    name, phases = algorithm.identity.method or "the method", algorithm.phases
    if rules.tree is not None:
        return "edge servers (tree) add up what clients send in a round; leave tree out, or clock"
    if rules.deadline is not None or rules.late == "keep":
        return "a deadline is of rounds that wait for replies; leave deadline and late out, or clock"
    if rules.sampler.identity != uniform().identity:
        return "asynchronous rounds (clock) give free places to idle clients at random; use sampling uniform"
    if algorithm.facts.protection is not None:
        return "differential privacy has no account of asynchronous rounds; leave privacy out, or clock"
    if algorithm.weights == "unbiased" or algorithm.needs.inclusion:
        return (
            f"how often clients reply in asynchronous rounds is not known, and {name} weighs by it; use other weights"
        )
    needs_rounds = phases.prelude or phases.combine or phases.communicates or phases.late
    if not phases.asynchronous or needs_rounds or algorithm.needs.everyone:
        return (
            f"asynchronous rounds (clock) are not known to be right for {name} with these settings; leave clock out, "
            "or use a method such as fedavg, fedasync, scaffold or afedpd_share without upload, aggregate, "
            "hostile and local.optimiser"
        )
    if phases.asynchronous == "undamped" and timed.staleness is not None:
        return (
            f"{name} adds to running sums what a factor of staleness would damp; write clock=asynchronous(..., "
            "staleness=none)"
        )
    return events.refusal(timed, buffer, n)
