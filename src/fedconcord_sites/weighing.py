"""Who is drawn for a secure sum, and what each site weighs in it: from the site's own job, not from its server's words.

All that a server says is how many training samples each site has. A site looks after its own number, and the list is
among the terms that masks, shares and signatures are made for: sites that were told two lists have no sum in common.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedconcord.execution.job import Job
from fedconcord.execution.messages.codec import Frame, FrameError, whole
from fedconcord.execution.messages.terms import FEWEST, Plans
from fedconcord.method.contract import Plan, Roster, Weights, roster_of, weights
from fedconcord.support.errors import UserError
from fedconcord_sites.bounds import SAMPLES
from fedconcord_sites.policy import Policy


def roster(frame: Frame, samples: int, tokens: int | None) -> Roster:
    """Who has how many training samples, as the server says it of others where sites weigh each other.

    Args:
        samples: that this site has.
        tokens: with a class among them, where they count with these; the server says them of all when a run begins,
            after it has heard them.

    Raises:
        FrameError: it says another number of this site, or none, or one that no site has.
    """
    numbers = _numbers(frame, "samples", samples, "training samples")
    if tokens is None or not frame.fields["begins"]:
        return roster_of(np.cumsum([0, *numbers]))
    return roster_of(np.cumsum([0, *numbers]), np.array(_numbers(frame, "counts", tokens, "training tokens")))


def _numbers(frame: Frame, field: str, mine: int, what: str) -> list[int]:
    """The server's list of numbers, one a site, in which this site's is its own."""
    numbers = [whole(one) for one in frame.fields.get(field, ())]
    if len(numbers) != whole(frame.fields["clients"]) or not all(0 < one <= SAMPLES for one in numbers):
        raise FrameError(f"numbers of {what} that are none of 1 to {SAMPLES}, or not one a site")
    if numbers[frame.client] != mine:
        raise FrameError(f"it has {mine} {what}, and {numbers[frame.client]} by the server's list")
    return numbers


def homes(frame: Frame, rules: Policy) -> tuple[int, ...]:
    """The number of each site's edge server, as the server says it where secure sums are made below these.

    Args:
        rules: how many sites a sum is to have.

    Raises:
        FrameError: it says none, or too few sites are below this one's.
    """
    homes = tuple(whole(one) for one in frame.fields.get("homes") or ())
    if len(homes) != whole(frame.fields["clients"]):
        raise FrameError("its job has sums below edge servers (secure.group), and nobody told it whose sites are whose")
    count, least = homes.count(homes[frame.client]), max(FEWEST, rules.least_sites)
    if count < least:
        raise FrameError(f"{count} sites are below its edge server, and a sum of this site's has {least} at least")
    return homes


def plans(job: Job, roster: Roster) -> Plans:
    """The plans of a job's rounds, as secure sums ask for them."""
    kind = job.algorithm.weights

    def plan_of(round: int, ids: Sequence[int]) -> Plan:
        plan = job.schedule.plan(round, job.algorithm, roster)
        return weights.redrawn(plan, np.isin(plan.ids, ids), kind)

    return plan_of


def plans_of_figures(roster: Roster) -> Plans:
    """The plans of sums of all sites' figures, of which each has the share of its training samples."""

    def plan_of(number: int, ids: Sequence[int]) -> Plan:
        here = np.array([i for i in ids if i < roster.n], np.int64)
        ones = np.ones(len(here))
        return Plan(number, here, np.ones(len(here), np.int64), roster.sizes[here], ones, ones, 0.0, 0)

    return plan_of


def within(rules: Policy, client: int, kind: Weights, sizes: np.ndarray, plan_of: Plans) -> Plans:
    """The plans of a site's sums.

    Args:
        rules: how much of a sum's weight it may have.
        client: the site's number.
        kind: of the weights of all sites.
        sizes: [N] of these.

    Raises:
        FrameError: it has more of all sites' weight than that. A plan raises UserError where it has more of a sum's.
    """
    why = rules.refuses_weight(weights.objective(kind, sizes), client)
    if why is not None:
        raise FrameError(why)

    def checked(round: int, ids: Sequence[int]) -> Plan:
        plan = plan_of(round, ids)
        for place in np.flatnonzero(plan.ids == client):
            why = rules.refuses_weight(plan.w, int(place))
            if why is not None:
                raise UserError(why)
        return plan

    return checked
