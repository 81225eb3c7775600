"""Numbers and names as the report writes them."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Sequence

import numpy as np

from fedconcord.study.statistics.metric import FLOOR, Metric
from fedconcord.study.statistics.stats import FEW, Interval

NONE = "–"


def superscript(n: int) -> str:
    return str(n).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def quantity(v: float) -> str:
    """A count, short: 12k, 3.4M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(v) >= size:
            return f"{v / size:.3g}{unit}"
    return f"{v:.3g}"


def compact(v: float, form: str = ".3g") -> str:
    """A number with exponents as people write them: 1e-5, not 1e-05."""
    return re.sub(r"e([-+])0*(\d)", lambda m: f"e{'-' if m[1] == '-' else ''}{m[2]}", format(v, form))


def size(v: float) -> str:
    """Bytes in decimal units."""
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(v) >= factor:
            return f"{v / factor:.3g} {unit}"
    return f"{v:.0f} bytes"


def percent(v: float) -> str:
    """A share in whole percent: 62 %."""
    return f"{100 * v:.0f} %"


def value(metric: Metric, v: float) -> str:
    """A metric's value in words."""
    if metric.log and v <= FLOOR * (1 + 1e-9):
        return f"at most {compact(FLOOR)}"
    if not math.isfinite(v):
        return "not finite"
    return f"{100 * v:.2f} %" if metric.percent else compact(v)


def goal_value(metric: Metric, v: float) -> str:
    """A target in words: no more digits than it was given with."""
    return f"{100 * v:.4g} %" if metric.percent else compact(v)


def decimals(v: float) -> int | None:
    """How many decimals show three or four digits of a number; None: an exponent reads better."""
    if not math.isfinite(v) or (v != 0 and (abs(v) < 1e-3 or abs(v) >= 1e5)):
        return None
    return 3 if v == 0 else min(4, max(0, 2 - math.floor(math.log10(abs(v)))))


def number(v: float, digits: int | None) -> str:
    return compact(v, ".1e" if digits is None else f".{digits}f")


def with_interval(i: Interval, digits: Callable[[float], int | None], log: bool = False) -> str:
    """'mean ± half' of a t interval, as 'mean [low, high]' on a log scale; of few values 'mean [least, most]'; the mean
    alone for one value, or for equal ones."""
    if i.n == 0 or not math.isfinite(i.mean):
        return NONE
    if i.n == 1:
        return number(i.mean, digits(i.mean))
    if log or i.n < FEW:
        mean, *ends = (number(v, digits(v)) for v in (i.mean, *i.ends))
        return mean if {*ends} == {mean} else f"{mean} [{', '.join(ends)}]"
    d = digits(i.mean)
    return f"{number(i.mean, d)} ± {number(i.half, d)}"


def metric_cell(metric: Metric, i: Interval) -> str:
    if metric.percent:
        return with_interval(i.mapped(lambda v: 100 * v), lambda v: 2)
    return with_interval(i, decimals, metric.log)


def lead_words(metric: Metric, v: float) -> str:
    """A lead on the averaging scale: points, a factor or a difference."""
    if metric.percent:
        return f"{100 * v:.2f}"
    return compact(10.0**v) if metric.log else compact(v)


def span(values: np.ndarray) -> str:
    """The range of whole numbers, which may be one number."""
    low, high = f"{values.min():.0f}", f"{values.max():.0f}"
    return low if low == high else f"from {low} to {high}"


def decades(v: float, _: object = None) -> str:
    e = round(math.log10(v)) if v > 0 else 0
    return f"10{superscript(e)}" if v > 0 and math.isclose(v, 10.0**e, rel_tol=1e-9) else f"{v:.3g}"


def wrap(text: str, width: int, lines: int = 3) -> str:
    """A name over some lines, broken at spaces or after commas; what does not fit ends in '…'."""
    parts = textwrap.wrap(text.replace(",", ", ").replace(",  ", ", "), width)
    if len(parts) > lines:
        parts = [*parts[: lines - 1], parts[lines - 1][: width - 1] + "…"]
    return "\n".join(parts)


def listing(names: Sequence[str], last: str = "and") -> str:
    """'a', 'a and b', 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"
