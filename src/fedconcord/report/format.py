"""Numbers and names as the report writes them."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence

from fedconcord.report.metric import FLOOR, Metric


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
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(v) >= factor:
            return f"{v / factor:.3g} {unit}"
    return f"{v:.0f} B"


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


def lead_words(metric: Metric, v: float) -> str:
    """A lead on the averaging scale: points, a factor or a difference."""
    if metric.percent:
        return f"{100 * v:.2f}"
    return compact(10.0**v) if metric.log else compact(v)


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
