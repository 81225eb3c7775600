"""The summary table: numbers for machines (CSV) and one set of formatted cells for Markdown, LaTeX and the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from fedconcord.insight.report.figures.style import Drawing
from fedconcord.study.statistics.format import NONE, decimals, goal_value, metric_cell, number, with_interval
from fedconcord.study.statistics.stats import FEW, Interval, interval
from fedconcord.study.statistics.summary import WINDOW, MethodResult, Reach, Summary
from fedconcord.support.files import as_csv


class Table(NamedTuple):
    """Formatted cells; `strong` marks the rows of the front, the best and what is not separated from it, in their first
    two columns."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    title: str = ""  # under which a page folds the table, if there is one
    strong: tuple[bool, ...] = ()  # of every row, or of none
    shown: int | None = None  # columns that are asked for first; a page folds those behind them; None: all


def tenths(v: float) -> int:
    return 1 if abs(v) < 100 else 0


def spread_words(counts: Iterable[int]) -> str:
    """What stands beside a mean over so many seeds, in the words of a caption."""
    several = [n for n in counts if n > 1]
    if not several:
        return "one seed, so neither range nor interval"
    range, t = "[lowest, highest seed]", "± its 95 % t interval"
    if max(several) < FEW:
        return f"{range}: {FEW} seeds would give an interval"
    return t if min(several) >= FEW else f"{t}, with fewer than {FEW} seeds {range}"


def _unit(values: Sequence[float], units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    top = max((v for v in values if v), default=0.0)
    return next(((u, s) for u, s in units if top >= 10 * s), units[-1])


BYTES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
STEPS = (("10⁹", 1e9), ("10⁶", 1e6), ("10³", 1e3), ("", 1.0))


def reach_cell(reach: Sequence[Reach], cost: str, scale: float = 1.0) -> str:
    """The cost of reaching the target: a mean where every seed did; else what is known, without a mean."""
    got = sorted(v / scale for r in reach if (v := getattr(r, cost)) is not None)
    digits: Callable[[float], int] = (lambda v: 0 if v == int(v) else tenths(v)) if cost == "round" else tenths
    if len(got) == len(reach):
        return with_interval(interval(got), digits)
    count = f"({len(got)} of {len(reach)} seeds)" if len(reach) > 1 else ""
    if cost == "round":
        ends = sorted({r.ended for r in reach if r.round is None})
        never = ", ".join(f">{e:g}" for e in (ends if len(ends) < 3 else ends[:1]))
    else:
        never = ""
    if not got:
        return f"{never} {count}".strip() if cost == "round" else NONE
    span = dict.fromkeys(number(v, digits(v)) for v in (got[0], got[-1]))
    return f"{' to '.join(span)}{', ' if never else ''}{never} {count}".strip()


def seeds_cell(row: MethodResult) -> str:
    return f"{row.runs} ({row.notes})" if row.notes else str(row.runs)


def target_words(s: Summary) -> str:
    """The target, and where it comes from."""
    if not math.isfinite(s.target):
        return "No target: no run ended with a finite value."
    side = "at or above" if s.primary.higher else "at or below"
    text = f"Target: {s.primary.title} {side} {goal_value(s.primary, s.target)}"
    if s.target_asked:
        return f"{text}, as the runs ask."
    if s.primary.higher:
        return f"{text} (none was asked for: 95 % of the best mean final value, rounded down to whole percent)."
    if s.primary.log or s.target == 10.0 ** round(math.log10(s.target)):
        return f"{text} (none was asked for: half the way, in decades, from the start to the best final value)."
    return f"{text} (none was asked for: 95 % of the way from the start to the best final value)."


def table(s: Summary, rows: Sequence[MethodResult], models: bool = False) -> Table:
    """The formatted table of some rows of the summary."""
    m, beside = s.primary, {} if models else iterates(s)
    of = [r for row in s.rows for r in row.reach]
    byte, byte_scale = _unit([r.bytes or 0.0 for r in of], BYTES)
    step, step_scale = _unit([r.gradient_steps or 0.0 for r in of], STEPS)
    goal = goal_value(m, s.target) if math.isfinite(s.target) else "target"
    percent = ", %" if m.percent else ""
    columns: dict[str, Callable[[MethodResult], str]] = {"method": lambda r: r.name}
    if models:
        columns["model"] = lambda r: r.model
    columns[f"final {m.title}{percent}"] = lambda r: metric_cell(m, r.final)
    columns[f"rounds to {goal}"] = lambda r: reach_cell(r.reach, "round")
    columns[f"{byte} to {goal}"] = lambda r: reach_cell(r.reach, "bytes", byte_scale)
    columns["seeds"] = seeds_cell
    first = len(columns)
    columns[f"last{percent}"] = lambda r: metric_cell(m, interval([r.last.mean]))
    columns[f"{step} gradient steps to {goal}".strip()] = lambda r: reach_cell(r.reach, "gradient_steps", step_scale)
    if beside:
        of_server = f"of its server's iterate{percent}"
        columns[of_server] = lambda r: metric_cell(m, beside[r.name].final) if r.name in beside else NONE
    if loss := s.loss:
        columns[f"final {loss.title}"] = lambda r: metric_cell(loss, r.loss) if r.loss else NONE
    if not models:
        columns["seconds a round"] = lambda r: with_interval(r.seconds, decimals)
    cells = tuple(tuple(cell(r) for cell in columns.values()) for r in rows)
    strong = tuple(r.name in s.verdict.front and not models for r in rows)
    return Table(tuple(columns), cells, caption(s), strong=strong, shown=first)


def iterates(s: Summary) -> dict[str, MethodResult]:
    """Method -> the row of the server's iterate, where that is not the model that it answers with."""
    return {r.name: r for r in s.second if r.model == "server"}


def caption(s: Summary) -> str:
    """What the columns are, exactly."""
    m = s.primary
    counts = [r.final.n for r in s.rows]
    mean = "geometric mean" if m.log else "mean"
    parts = [
        f"Final: the mean of the last {WINDOW} evaluated rounds of a run (to round {s.horizon}), "
        + (f"then the {mean} over seeds {spread_words(counts)}." if max(counts) > 1 else f"{spread_words(counts)}."),
        target_words(s) + " The first evaluated round that meets it counts, unsmoothed"
        + (f" (evaluated every {s.every} rounds)." if s.every > 1 else "."),
    ]  # fmt: skip
    if any(r.round is None for row in s.rows for r in row.reach):
        parts.append(">R: not reached in R rounds; where some seeds reached it no mean is formed.")
    if iterates(s):
        parts.append("A method is ranked by the model that it answers with, which files of models hold.")
    parts.append("Bytes: up and down, all clients. Seconds: median round, training only.")
    if s.verdict.front:
        parts.append("Bold: the best and every method that the data do not separate from it.")
    if m.log:
        parts.append("Distances below 1e-12 count as 1e-12.")
    return " ".join(parts)


def to_csv(s: Summary) -> str:
    """Plain numbers in base units, one line a method and model; empty cells where there is no number."""
    lines = [_plain_numbers(s, row) for row in (*s.rows, *s.second)]
    return as_csv([head for head, _ in lines[0]], [[cell for _, cell in line] for line in lines]).decode()


def _plain_numbers(s: Summary, row: MethodResult) -> list[tuple[str, object]]:
    """The heads and cells of a line."""

    def spread(head: str, i: Interval | None) -> Iterator[tuple[str, str]]:
        for what, v in zip(("mean", "low", "high"), (i or interval([]))[:3], strict=True):
            yield f"{head}_{what}", _number(v)

    def cost(what: str) -> Interval | None:
        values = [v for r in row.reach if (v := getattr(r, what)) is not None]
        return interval(values) if len(values) == len(row.reach) else None

    seeds = ";".join(f"{r.round:g}" if r.round is not None else f">{r.ended:g}" for r in row.reach)
    return [
        *(("name", row.name), ("model", row.model), ("runs", row.runs), ("finished", row.finished)),
        ("state", row.notes or "complete"),
        *spread(f"final_{s.primary.column}", row.final),
        *spread(f"last_{s.primary.column}", row.last),
        *spread(f"final_{s.loss.column if s.loss else 'loss'}", row.loss),
        *(("target", _number(s.target)), ("reached", sum(r.round is not None for r in row.reach))),
        *spread("rounds_to_target", cost("round")),
        *spread("bytes_to_target", cost("bytes")),
        *spread("gradient_steps_to_target", cost("gradient_steps")),
        ("rounds_to_target_by_seed", seeds),
        *spread("seconds_per_round", row.seconds),
        ("answers_with", s.method(row.name).answer),
    ]


def _number(v: float) -> str:
    return f"{v:.10g}" if math.isfinite(v) else ""


def to_markdown(t: Table) -> str:
    def cell(text: str, strong: bool) -> str:
        text = text.replace("|", "\\|").replace("\n", " ")
        return f"**{text}**" if strong else text

    lines = ["| " + " | ".join(cell(h, False) for h in t.header) + " |"]
    lines.append("|" + "|".join([":--"] + ["--:"] * (len(t.header) - 1)) + "|")
    for row, strong in zip(t.rows, t.strong or [False] * len(t.rows), strict=True):
        lines.append("| " + " | ".join(cell(c, strong and j in (0, 1)) for j, c in enumerate(row)) + " |")
    return "\n".join([*lines, "", t.caption, ""])


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "±": r"$\pm$", "–": "--",
    "\u202f": r"\,", "·": r"$\cdot$", "×": r"$\times$", "|": r"$|$", "⁰": "$^0$", "³": "$^3$", "⁶": "$^6$", "⁹": "$^9$",
}  # fmt: skip


def tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)


def to_latex(t: Table, key: str = "summary") -> str:
    """A table environment for a paper, with the label tab:`key`; needs only booktabs."""

    def line(cells: Sequence[str], strong: bool) -> str:
        texts = [rf"\textbf{{{tex(c)}}}" if strong and j in (0, 1) else tex(c) for j, c in enumerate(cells)]
        return "    " + " & ".join(texts) + r" \\"

    columns = "l" + "r" * (len(t.header) - 1)
    return "\n".join([
        "% needs \\usepackage{booktabs}",
        r"\begin{table}", r"  \centering", rf"  \caption{{{tex(t.caption)}}}", rf"  \label{{tab:{key}}}",
        rf"  \begin{{tabular}}{{{columns}}}", r"    \toprule", line(t.header, False), r"    \midrule",
        *(line(row, strong) for row, strong in zip(t.rows, t.strong or [False] * len(t.rows), strict=True)),
        r"    \bottomrule", r"  \end{tabular}", r"\end{table}", "",
    ])  # fmt: skip


def figures_tex(drawings: Sequence[Drawing]) -> str:
    """A figure environment a figure, with its caption and the label fig:NAME; needs graphicx."""
    parts = ["% needs \\usepackage{graphicx}; paths are below the report's folder"]
    for d in drawings:
        parts += [
            r"\begin{figure}", r"  \centering",
            rf"  \includegraphics[width={'' if d.wide else '0.5'}\linewidth]{{figures/{d.name}.pdf}}",
            rf"  \caption{{{tex(f'{d.alt} {d.caption}'.strip())}}}", rf"  \label{{fig:{d.name}}}", r"\end{figure}",
        ]  # fmt: skip
    return "\n".join([*parts, ""])
