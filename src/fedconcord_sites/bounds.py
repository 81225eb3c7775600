"""Numbers that come from a server, bounded before anything is made of them.

What the site's own job says of a round, it is not told: its step size, seed and number of steps are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconcord.execution.messages.codec import Frame, FrameError, whole
from fedconcord.federation.data.federated import MOST, Agreement, SiteFile
from fedconcord.federation.data.preprocess import read_columns, width
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.contract import Algorithm, Orders, Roster, weights
from fedconcord.support.errors import UserError
from fedconcord_sites.form import Form

SITES = 10_000  # of a deployment
ROUND = 2**42  # above the milliseconds since 1970, by which sums beside the rounds are known
SAMPLES = 2**40 - 1  # of a site, and its tokens
WORDS = 2**20  # of a vocabulary
NUMBERS = 2**31  # of all zeros that stand for samples


def check(frame: Frame) -> None:
    """Refuse numbers that no deployment has.

    Raises:
        FrameError: one of them, and its value.
    """
    for what, value, most in (("client", frame.client, SITES), ("round", frame.round, ROUND)):
        if not 0 <= value < most:
            raise FrameError(f"{what} {value} is none of 0 to {most - 1}")
    _finite(frame.fields, "")
    if "clients" in frame.fields:
        clients = whole(frame.fields["clients"])
        if not frame.client < clients <= SITES:
            raise FrameError(f"client {frame.client} of {clients}, and a deployment has at most {SITES} sites")
    if "form" in frame.fields:
        form = Form(**frame.fields["form"])
        outputs, shape = whole(form.outputs), [whole(one) for one in form.shape]
        most = WORDS if form.target == "tokens" else MOST
        if not 0 < outputs <= most:
            raise FrameError(f"outputs {outputs} is none of 1 to {most}")
        if len(shape) > 8 or whole(frame.fields["clients"]) * math.prod(shape) > NUMBERS:
            raise FrameError(f"samples of shape {shape[:8]} are more numbers than a site takes")


def _finite(value: Any, name: str) -> None:
    """Refuse numbers that are not finite, but a weight that is not told (`Orders.p`)."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            _finite(one, str(key))
    elif isinstance(value, list):
        for one in value:
            _finite(one, name)
    elif isinstance(value, float) and not math.isfinite(value) and not (name in ("p", "inclusion") and value != value):
        raise FrameError(f"{name} {value} is no finite number")


def check_form(form: Form, of: SiteFile | Form, agreement: Agreement | None) -> None:
    """Refuse a form of samples that is not what the site's own file, or part of named data, comes to.

    Raises:
        FrameError: what differs.
    """
    if isinstance(of, Form):
        mine = of
    else:
        assert agreement is not None
        unit = None if agreement.unit is None else [list(part) for part in agreement.unit]
        shape = list(of.shape) if of.source is None else [width(agreement.columns)]
        names = None if agreement.target == "tokens" else agreement.names
        mine = Form(shape, of.inputs, agreement.target, len(agreement.names), names, unit, None)
    for name in ("shape", "inputs", "target", "outputs", "names", "unit"):
        if getattr(form, name) != getattr(mine, name):
            raise FrameError(f"{name} {str(getattr(form, name))[:80]}, where the site's samples have another")


def check_orders(
    frame: Frame, schedule: Schedule, algorithm: Algorithm, samples: int, roster: Roster | None, drawn_of: int | None
) -> None:
    """Refuse orders of a round that are not what the site's own job has for it.

    Args:
        roster: of all sites, where they weigh each other.
        drawn_of: number of sites, where what the site spends counts on being in no round but those that it is drawn
            for.

    Raises:
        FrameError: what differs, and both values.
    """
    answered = frame.fields.get("orders")
    for fields in (answered, *frame.fields.get("silent", ())):
        if fields is None:
            continue
        theirs = Orders(**fields)
        if theirs.round != frame.round if fields is answered else not 0 <= theirs.round < frame.round:
            raise FrameError(f"orders of round {theirs.round} in a message of round {frame.round}")
        if drawn_of is not None:
            sizes = np.ones(drawn_of)
            ids = schedule.sampler.draw(schedule.seed, theirs.round, schedule.cohort, sizes, np.zeros_like).ids
            if frame.client not in ids:
                raise FrameError(f"its own job draws others for round {theirs.round}, and each round spends privacy")
        mine = schedule.orders(algorithm, theirs.round, frame.client, samples)
        for name in ("id", "steps", "lr", "seed", "late", "waited"):
            if getattr(theirs, name) != getattr(mine, name):
                raise FrameError(
                    f"{name} {getattr(theirs, name)} in round {theirs.round}, where the site's own job has "
                    f"{getattr(mine, name)}"
                )
        if theirs.p == theirs.p and not 0 <= theirs.p <= 1:
            raise FrameError(f"p {theirs.p} is no share")
        if theirs.p == theirs.p and roster is not None:
            p = float(weights.share(algorithm.weights, roster.sizes, np.array([frame.client]))[0])
            if not math.isclose(theirs.p, p, rel_tol=1e-9):
                raise FrameError(f"p {theirs.p} in round {theirs.round}, where the site's own job has {p}")


def told_of(fields: Mapping[str, Any]) -> Agreement:
    """What the server says of all sites' data."""
    try:
        columns = read_columns(fields, "the server's columns") if fields["columns"] else []
    except UserError as wrong:
        raise FrameError(str(wrong)) from wrong
    unit = None if fields["unit"] is None else (list(fields["unit"][0]), list(fields["unit"][1]))
    return Agreement(columns, fields["target"], [str(name) for name in fields["names"]], unit)
