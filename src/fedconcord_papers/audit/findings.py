"""What an audit found, as a table, a figure and a text (see the package)."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedconcord.execution.job import Job
from fedconcord.method.contract import Protection
from fedconcord.support import files
from fedconcord_papers.audit.attack import Attack, Audit, Curve, audit

LIMITS = """\
## What this audit cannot show

* A failed attack is no guarantee. This is one attack with one optimiser, one start and no knowledge of what real
  samples look like; attacks with priors on images, with many restarts, or with several rounds' messages rebuild more.
* A small distance means that samples were rebuilt; a large one does not mean that nothing was learnt. Labels,
  membership, and properties of a client's data leak from far less than a rebuilt sample.
* It is one client in one round of one seed. Smaller batches, earlier rounds and clients with few samples leak more.
* The server is honest but curious: it follows the protocol. One that sends a model made for the purpose reads more.
* Messages before round 0 (LoSAC with init=gradient) and evaluation results are not audited.
* What protects is outside the optimiser: secure aggregation (the server sees sums only) and differential privacy (a
  bound on what any message can tell). Neither is replaced by a method whose attack curve happens to rise.
"""


def verdict(audit: Audit, curve: Curve) -> str:
    """One cautious clause about a curve."""
    start, end = curve.matched[0], curve.matched[-1]
    if end < 0.1 * audit.blank:
        return "the samples are rebuilt"
    if end < audit.blank:
        return "the samples are partly rebuilt: closer than a guess without any message"
    moved = f"{'falls' if end < start else 'rises'} by {100 * abs(end - start) / start:.2g} %"
    return f"the distance {moved} and stays above that of a blank guess: this attack rebuilds no sample"


def summary(audits: Sequence[Audit], attack: Attack) -> str:
    """The text of an audit: what was measured, and what it cannot show."""
    head = ["method", "reading", "gradient error", "distance, start", "end", "matched, start", "end", "random", "blank"]
    lines = ["# Audit of what a client's message gives away", ""]
    step = "a searched step" if attack.lr is None else f"step {attack.lr:g}"
    how = "L-BFGS" if attack.optimiser == "lbfgs" else f"gradient descent with {step}"
    lines += [f"The attack: gradient matching by {how}, {attack.iterations} iterations, labels {attack.labels}.", ""]
    lines += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for one in audits:
        for c in one.curves:
            cells = [one.name, c.reading, f"{100 * c.error:.2g} %"]
            ends = (c.distance[0], c.distance[-1], c.matched[0], c.matched[-1], one.random, one.blank)
            lines.append(f"| {' | '.join([*cells, *(f'{v:.5g}' for v in ends)])} |")
    lines.append("")
    for one in audits:
        work = " on ".join(_count(n, what) for n, what in ((one.steps, "local step"), (one.samples, "sample")))
        text = "; ".join(f"{c.reading}: {verdict(one, c)}" for c in one.curves)
        lines.append(
            f"* {one.name}, client {one.client}, round {one.round}: {one.bytes:,} bytes after {work}. "
            f"{text[0].upper()}{text[1:]}."
        )
        if one.protection is not None:
            lines.append(f"  Its message was {_protected(one.protection)}, and is read as if it were plain.")
        short = [c.reading for c in one.curves if len(c.objective) <= attack.iterations]
        if short:
            lines.append(f"  The attack diverged early ({', '.join(short)}); a smaller step may do better.")
    lines += [
        "",
        "Distance: ||D^ - D||_F between dummy and real samples, as they lie and matched. Gradient error: how far the",
        "server's estimate is from the client's true gradient, relative; 0 % means that the message gives it away,",
        "whatever the attack then makes of it. Random: fresh N(0, 1) samples, matched. Blank: the mean test sample,",
        "repeated; an attack that ends above it has rebuilt nothing that a guess would not. Readings: move is the mean",
        "local direction; protocol also subtracts what the server knows of the client's duals and control variates.",
        "",
    ]
    return "\n".join(lines) + "\n" + LIMITS


def _protected(by: Protection) -> str:
    clipped = f"clipped to {by.clip:g}"
    if by.kind == "central":
        return f"{clipped}, without noise, which the server adds to the sum"
    return f"{clipped}, with noise of {by.noise:g} times that"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def figure(audits: Sequence[Audit], *, column: Literal["distance", "matched"] = "matched") -> Figure:
    """Distance by iteration relative to its start, a line for each method and reading."""
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    axes = figure.add_subplot()
    for k, one in enumerate(audits):
        for c in one.curves:
            values = np.array(getattr(c, column))
            label = one.name if len(one.curves) == 1 else f"{one.name}, {c.reading}"
            dash = "--" if c.reading == "protocol" else "-"
            axes.plot(values / values[0], dash, color=f"C{k % 10}", label=label, linewidth=1.6)
    levels = {round(a.blank / getattr(a.curves[0], column)[0], 6) for a in audits if a.curves}
    for level in levels:
        axes.axhline(level, color="#5b6570", linewidth=0.9, linestyle=":")
    if levels:
        axes.plot([], [], ":", color="#5b6570", linewidth=0.9, label="blank guess (mean test sample)")
    axes.set_xlabel("iteration of the attack")
    axes.set_ylabel(f"||D^ - D||_F, {'matched, ' if column == 'matched' else ''}relative to the start")
    axes.grid(color="#d9dee3", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def save_figure(figure: Figure, stem: Path) -> None:
    """The figure as PNG and SVG."""
    FigureCanvasAgg(figure)
    for suffix, options in ((".png", {"dpi": 150}), (".svg", {"metadata": {"Date": None}})):
        out = io.BytesIO()
        figure.savefig(out, format=suffix[1:], **options)
        files.write_bytes(stem.with_suffix(suffix), out.getvalue())


def write(audits: Sequence[Audit], attack: Attack, out: Path) -> Path:
    """Write audit.csv, audit.png, audit.svg and audit.md to a folder; returns the path of the text."""
    out.mkdir(parents=True, exist_ok=True)
    header = ["method", "client", "round", "reading", "gradient_error", "iteration", "objective", "distance", "matched"]
    rows = [
        [a.name, a.client, a.round, c.reading, c.error, k, *point]
        for a in audits
        for c in a.curves
        for k, point in enumerate(zip(c.objective, c.distance, c.matched, strict=True))
    ]
    files.write_csv(out / "audit.csv", header, rows)
    save_figure(figure(audits), out / "audit")
    files.write_text(out / "audit.md", summary(audits, attack))
    return out / "audit.md"


def audit_jobs(
    jobs: Mapping[str, Job],
    out: Path,
    *,
    client: int | None = None,
    round: int = 5,
    attack: Attack | None = None,
    plain: Mapping[str, Job] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Audit]:
    """Audit jobs by name, one client and round for all, and write table, figure and text to a folder.

    `plain` has the jobs without differential privacy by which the messages of those with it are read, by name.

    Raises:
        UserError: as `audit`.
    """
    attack = Attack() if attack is None else attack
    audits = []
    for name, job in jobs.items():
        read_by = None if plain is None else plain.get(name)
        one_audit = audit(job, client=client, round=round, attack=attack, name=name, plain=read_by)
        audits.append(one_audit)
        for c in one_audit.curves:
            say(f"{name}, {c.reading}: gradient error {100 * c.error:.2g} %, {verdict(one_audit, c)}")
    write(audits, attack, out)
    return audits
