"""What an implementation computes: its trajectory against the reference's, then against each explanation's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np

from fedconcord_referee import mistakes, rules, variants
from fedconcord_referee.known import Known
from fedconcord_referee.memories import memories
from fedconcord_referee.optimisers import OPTIMISED
from fedconcord_referee.reference import After, Setting, reference, setting_of, walk
from fedconcord_referee.single import SINGLE
from fedconcord_referee.spec import RULES, Spec, minimiser
from fedconcord_referee.trajectory import Trajectory

TOLERANCE = 1e-9
PAIRED = 1e-6  # a pair of changes must agree to this: there are thousands of them
SINGLE_PRECISION = 1e-4  # what departs by less and is not explained may be computed in float32
STILL, OPTIMAL = 1e-8, 1e-6  # relative moves of what stands still, and distances of what is at the optimum

KINDS: tuple[Literal["mistake", "method", "variant"], ...] = ("mistake", "method", "variant")  # of a pair, the first
Kind = Literal["equal", "method", "variant", "mistake", "fixed point", "different"]


class Departure(NamedTuple):
    """Where a trajectory leaves the reference."""

    round: int  # the first, from 1
    size: float  # of that round, relative to the largest entry of the reference
    where: str  # which vector, in words
    clients: tuple[int, ...] = ()  # whose local models depart there first, where they are known


class Limit(NamedTuple):
    """Where many rounds with a constant step size end. Distances are relative to the largest entry of the optimum."""

    rounds: int
    distance: float  # of the last point to the optimum
    reference: float  # of the reference's
    motion: float  # largest move of the last ten rounds


class Verdict(NamedTuple):
    """What a trajectory is."""

    kind: Kind
    largest: float  # largest relative departure from the reference
    name: str = ""  # of the explanation
    says: str = ""  # what it does, after "it"
    agrees: float = 0.0  # largest relative departure from the explanation
    also: tuple[str, ...] = ()  # other explanations that agree as well
    departure: Departure | None = None
    limit: Limit | None = None


def built(setting: Setting) -> Iterator[Known]:
    """Explanations that build the method anew, the plainest first."""
    yield from variants.answers(setting)
    yield from variants.variants(setting)
    yield from variants.other_methods(setting)


def changed(setting: Setting) -> Iterator[Known]:
    """Explanations that change one spot of a method as it is, the plainest first."""
    yield from SINGLE.get(setting.spec.method, OPTIMISED.get(setting.spec.method, ()))
    if setting.spec.method in RULES:
        yield from (*rules.COMMON, *rules.RULES.get(setting.spec.method, ()))
    yield from mistakes.LOCAL
    yield from mistakes.FINISH
    yield from mistakes.WEIGHTS
    yield from mistakes.STEPS
    yield from memories(setting)


def explanations(setting: Setting) -> list[Known]:
    """All that may explain a target that is not the reference, the plainest first."""
    return [*built(setting), *changed(setting), *variants.scaled(setting)]


def pairs(setting: Setting) -> list[Known]:
    """Each two of the explanations, one after the other; what builds the method anew comes first."""

    def both(one: Known, other: Known) -> Known:
        def change(setting: Setting) -> Setting | None:
            middle = one.change(setting)
            return None if middle is None else other.change(middle)

        kinds = (one.kind, other.kind)
        kind = next(kind for kind in KINDS if kind in kinds)
        return Known(f"{one.name} + {other.name}", kind, f"{one.says}, and {other.says}", change)

    singles = [*built(setting), *variants.scaled(setting), *changed(setting)]
    return [both(one, other) for one, other in combinations(singles, 2)]


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference of two vectors [d], relative to the largest entry of the one that is wanted."""
    size = float(np.abs(got - want).max()) / (float(np.abs(want).max()) or 1.0)
    return size if np.isfinite(size) else float("inf")


def compare(expected: Sequence[After], got: Trajectory, spec: Spec, tolerance: float = TOLERANCE) -> Departure | None:
    """Where a trajectory leaves the reference, None where it stays within the tolerance."""
    earlier: set[int] = set()
    for t, (want, x) in enumerate(zip(expected, got.x, strict=True)):
        ids = spec.rounds[t].clients
        if got.local:
            sizes = {i: relative(got.local[t][i], want.local[i]) for i in ids}
            away = tuple(i for i in ids if sizes[i] > tolerance)
            if away:
                who = f"the model after the local steps of client{'s' * (len(away) > 1)} {', '.join(map(str, away))}"
                return Departure(t + 1, max(sizes.values()), who, away)
        if (size := relative(x, want.x)) > tolerance:
            return Departure(t + 1, size, f"the server's model{_hint(ids, earlier, bool(got.local))}")
        earlier |= set(ids)
    return None


def _hint(ids: Sequence[int], earlier: set[int], has_local: bool) -> str:
    """What the round of a departure says."""
    if has_local:
        return ", while clients' models agree: look at what the server makes of them"
    back = [i for i in ids if i in earlier]
    if not earlier:
        return ", in the first round, where nothing is remembered yet"
    if back:
        return f"; of its cohort client{'s' * (len(back) > 1)} {', '.join(map(str, back))} took part before"
    return "; its cohort takes part for the first time, so look at what the server remembers"


def departure_of(setting: Setting, one: Known, got: Trajectory, tolerance: float) -> float | None:
    """Largest relative departure from a changed reference; None where it is beyond the tolerance or cannot run."""
    largest = 0.0
    try:
        if (with_it := one.change(setting)) is None:
            return None
        for after, x in zip(walk(with_it), got.x, strict=True):
            largest = max(largest, relative(x, after.x))
            if largest > tolerance:
                return None
    except Exception:  # a change that has no meaning for this method fails in whatever way
        return None
    return largest


def matching(setting: Setting, every: Sequence[Known], got: Trajectory, tolerance: float) -> list[tuple[Known, float]]:
    """Explanations that agree in all rounds, each with its largest relative departure."""
    sizes = ((one, departure_of(setting, one, got, tolerance)) for one in every)
    return [(one, size) for one, size in sizes if size is not None]


def judge(
    spec: Spec, got: Trajectory, tolerance: float = TOLERANCE, tell: Callable[[str], object] = lambda line: None
) -> Verdict:
    """What a trajectory is: by the reference, then by each single explanation, then by each two of them.

    No two are looked for where it departs by no more than single precision does.

    Args:
        tell: hears a line before a search that takes seconds.
    """
    expected = reference(spec)
    largest = max(relative(x, after.x) for x, after in zip(got.x, expected, strict=True))
    departure = compare(expected, got, spec, tolerance)
    if largest <= tolerance:
        return Verdict("equal", largest, departure=departure)
    setting = setting_of(spec)
    matches = matching(setting, explanations(setting), got, tolerance)
    if not matches and largest > SINGLE_PRECISION:
        two = pairs(setting)
        tell(f"no single change explains it; looking at {len(two):,} pairs of changes")
        matches = matching(setting, two, got, min(tolerance, PAIRED))
    if not matches:
        return Verdict("different", largest, departure=departure)
    closest = min(agrees for _, agrees in matches)
    near = [(one, agrees) for one, agrees in matches if agrees <= max(10 * closest, 1e-12)]
    (one, agrees), *others = near
    return Verdict(one.kind, largest, one.name, one.says, agrees, tuple(o.name for o, _ in others), departure)


def settled(spec: Spec, verdict: Verdict, got: Trajectory) -> Verdict:
    """The verdict with where a long trajectory ends; `spec` is of the long one."""
    best, last = minimiser(spec), got.x[-10:]
    motion = max((relative(a, b) for a, b in zip(last[1:], last[:-1], strict=True)), default=float("inf"))
    *_, end = walk(setting_of(spec))
    limit = Limit(len(spec.rounds), relative(got.x[-1], best), relative(end.x, best), motion)
    stands = limit.motion < STILL and limit.distance > OPTIMAL
    kind: Kind = "fixed point" if verdict.kind == "different" and stands else verdict.kind
    return verdict._replace(kind=kind, limit=limit)


def ending(limit: Limit) -> str:
    """Where it ends, in words."""
    if limit.distance <= OPTIMAL:
        where = f"reaches the optimum to {limit.distance:.1e}"
    elif limit.motion < STILL:
        where = f"stands still at a point that is not the optimum, {limit.distance:.1e} of its size away"
    else:
        where = f"still moves, {limit.distance:.1e} of its size away from the optimum"
    return (
        f"after {limit.rounds} rounds of a constant step size it {where}; the reference is {limit.reference:.1e} away"
    )


def sentences(spec: Spec, verdict: Verdict, tolerance: float = TOLERANCE) -> list[str]:
    """The verdict in words."""
    cohort = " or ".join(str(s) for s in sorted({len(one.clients) for one in spec.rounds}))
    scene = f"{spec.kind} problem, {len(spec.data)} clients, {cohort} a round, {len(spec.rounds)} rounds"
    if verdict.kind == "equal":
        lines = [f"{spec.method}: equal to the paper's method to {verdict.largest:.1e} ({scene})"]
        if (at := verdict.departure) is not None:
            lines.append(f"but {at.where} is another than the reference's in round {at.round}, by {at.size:.1e}")
        if tolerance > TOLERANCE:
            lines.append(
                f"what moves the model by less than {tolerance:g} of its size cannot be seen at this tolerance"
            )
        return lines
    first = f"{spec.method}: not the paper's method ({scene})"
    if verdict.kind == "variant":
        first = f"{spec.method}: a known variant, {verdict.name!r} ({scene})"
    lines = [first]
    if verdict.name:
        also = f" (so does: {', '.join(verdict.also[:4])})" if verdict.also else ""
        changes = "these changes" if " + " in verdict.name else "this change"
        lines.append(
            f"it {verdict.says}: our reference with {changes} agrees to {verdict.agrees:.1e} in all rounds{also}"
        )
    else:
        if verdict.largest > SINGLE_PRECISION:
            lines.append("none of the known variants and mistakes explains it, and no two of them")
        else:
            lines.append("none of the known variants and mistakes explains it")
            lines.append(
                f"it stays within {verdict.largest:.1e}, as single precision may; compute in float64, or give "
                "--tolerance 1e-4"
            )
    if verdict.departure is not None:
        at = verdict.departure
        lines.append(
            f"it departs from the reference first in round {at.round}, by {at.size:.1e} of its size, in {at.where}"
        )
    return lines if verdict.limit is None else [*lines, ending(verdict.limit)]


def plain(spec: Spec, verdict: Verdict, tolerance: float) -> dict[str, Any]:
    """The verdict as JSON has it, with the text of a badge as shields.io reads it."""
    departure = None if verdict.departure is None else verdict.departure._asdict()
    message = f"equal to {verdict.largest:.0e}" if verdict.kind == "equal" else verdict.name or "different"
    color = {"equal": "brightgreen", "variant": "yellow"}.get(verdict.kind, "red")
    return {
        "method": spec.method,
        "parameters": spec.parameters,
        "problem": spec.kind,
        **verdict._asdict(),
        "departure": departure,
        "limit": None if verdict.limit is None else verdict.limit._asdict(),
        "tolerance": tolerance,
        "sentences": sentences(spec, verdict, tolerance),
        "badge": {"schemaVersion": 1, "label": f"referee: {spec.method}", "message": message, "color": color},
    }
