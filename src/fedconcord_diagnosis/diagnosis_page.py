"""diagnose.html, diagnosis.json and the tables beside them."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconcord.execution.run.folder import versions
from fedconcord.insight.advice import advise, command
from fedconcord.insight.methods.surrogate import Surrogate
from fedconcord.insight.report.page import Page, code_block, in_words, pairs, paragraphs
from fedconcord.study.runs.training import threads
from fedconcord.study.statistics.format import compact, percent
from fedconcord.support import files
from fedconcord.support.errors import UserError
from fedconcord_diagnosis.course import Diagnosis, diagnose
from fedconcord_diagnosis.diagnosis_figures import SHARES, drawings
from fedconcord_diagnosis.findings import Finding, findings, verdict
from fedconcord_diagnosis.measures import MEASURES, changes, numbers
from fedconcord_diagnosis.subject import Subject, same_model, why_other

FORMAT = 1
FOLDER = "diagnosis"  # of figures and tables, beside the page
TOPICS = {
    "course": ("The run", ""),
    "aim": (
        "Which objective it goes down",
        "Clients that do more local steps count more in an average (FedNova, Theorem 1). The weights are found by the "
        "method's own steps on unit gradients, with each client's mean work over the run.",
    ),
    "gradients": ("How far clients agree", "Gradients of the clients' own losses at the server's model."),
    "drift": (
        "Client drift",
        "Where the next round's local steps would end, if all these clients took part: nobody keeps them.",
    ),
    "steps": ("Step size and smoothness", ""),
    "memory": (
        "What clients remember",
        "Control variates and dual variables stand for a client's gradient; a client that was away brings back that of "
        "an old model.",
    ),
    "cohort": ("Who is drawn", ""),
    "skew": ("Who holds what", ""),
    "time": ("Where the time goes", ""),
}
esc = html.escape


class Diagnosed(NamedTuple):
    """A diagnosis that was written."""

    page: Path  # diagnose.html
    verdict: list[str]  # three to five sentences
    numbers: dict[str, Any]  # what diagnosis.json holds
    why_other: str  # what may have moved last digits, where they do not end at the run's own model
    same_model: bool | None  # whether the rounds trained again end at the run's own model; None without a run


def diagnosed(subject: Subject, folder: Path, each: Callable[[int], None] = lambda t: None) -> Diagnosed:
    """Train, look, and write diagnose.html and diagnosis/ (diagnosis.json, rounds.csv, clients.csv, figures).

    Args:
        each: told of every round done.

    Raises:
        UserError: the folder cannot be written.
    """
    with threads(subject.config.engine.threads):
        diagnosis = diagnose(subject.job, subject.rounds, subject.state, each)
    same = same_model(subject, diagnosis.state)
    sorted_findings = findings(subject.job, diagnosis)
    numbers = _clean(document(subject, diagnosis, sorted_findings, same))
    page = _page(subject, diagnosis, sorted_findings, same)
    page.files |= {
        f"{FOLDER}/diagnosis.json": json.dumps(numbers, indent=2) + "\n",
        f"{FOLDER}/rounds.csv": _rounds(diagnosis),
        f"{FOLDER}/clients.csv": _clients(diagnosis),
    }
    page.write(folder / "diagnose.html")
    return Diagnosed(folder / "diagnose.html", verdict(sorted_findings), numbers, why_other(subject), same)


def document(subject: Subject, diagnosis: Diagnosis, findings: list[Finding], same: bool | None) -> dict[str, Any]:
    """What diagnosis.json holds."""
    aim = {
        name: {"why_none": of}
        if isinstance(of, str)
        else {"effective_steps": of.effective, "chi2": diagnosis.aim.miss(of)}
        for name, of in (("method", diagnosis.aim.own), ("average", diagnosis.aim.plain))
    }
    total, change, features = diagnosis.history.seconds.sum(0), changes(), diagnosis.skew.features
    theory = diagnosis.looks[-1].theory if diagnosis.looks else None
    return {
        "format": FORMAT,
        "method": subject.config.method,
        "label": subject.config.label,
        "config": subject.config.as_dict(),
        "versions": versions(),
        "looked_at": [look.round for look in diagnosis.looks],
        "clients": subject.config.clients,
        "clients_asked": len(diagnosis.ids),
        "same_model_as_run": same,
        "diverged": diagnosis.diverged,
        "verdict": verdict(findings),
        "findings": [one._asdict() for one in findings],
        "surrogate": aim,
        "rounds": [{"round": look.round, **numbers(diagnosis, look)} for look in diagnosis.looks],
        "features": None if features is None else {"share": features.share, "within": features.within},
        "seconds": dict(zip(SHARES, total.tolist(), strict=True)) if total.sum() > 0 else None,
        "theory": None if theory is None else theory._asdict(),
        "measures": {
            one.key: {"title": one.title, "formula": one.formula, "source": one.source, "change": change[one.key]}
            for one in MEASURES
        },
    }


def _clean(value: Any) -> Any:
    """Plain values, with None where a number is not finite: JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: _clean(v) for key, v in value.items()}
    if hasattr(value, "_asdict"):
        return _clean(value._asdict())
    if isinstance(value, list | tuple):
        return [_clean(v) for v in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


# -- tables --------------------------------------------------------------------------------------------------------


def _rounds(diagnosis: Diagnosis) -> bytes:
    rows = [{"round": look.round, **numbers(diagnosis, look)} for look in diagnosis.looks]
    header = ["round", *(one.key for one in MEASURES)]
    return files.as_csv(header, [["" if row[key] is None else row[key] for key in header] for row in rows])


def _clients(diagnosis: Diagnosis) -> bytes:
    """A line a client and look; cells are empty where there is no number."""
    aim, skew, history = diagnosis.aim, diagnosis.skew, diagnosis.history
    header = [
        *("round", "client", "name", "weight", "samples", "steps", "gradient", "cosine", "noise", "smoothness"),
        *("move", "apart", "drift_share", "memory_error", "taken_part", "age"),
        *("weight_method", "weight_average", "label_distance"),
    ]
    names = None if diagnosis.names is None else np.array(diagnosis.names)
    weights = [of.w if isinstance(of, Surrogate) else None for of in (aim.own, aim.plain)]
    rows: list[Sequence[Any]] = []
    for look in diagnosis.looks:
        ids, drift = look.ids, look.drift
        has_ended = look.round == history.rounds
        columns = [
            *(np.full(len(ids), look.round), ids, names if names is None else names[ids], look.p, skew.samples[ids]),
            *(look.steps, look.gradient.norms, look.gradient.alignment, look.noise, look.secant),
            *(drift.move, drift.away, drift.share, None if look.memory is None else look.memory.error),
            *((history.taken[ids], history.age()[ids]) if has_ended else (None, None)),
            *(*weights, None if skew.labels is None else skew.labels[ids]),
        ]
        cells = ([""] * len(ids) if column is None else column.tolist() for column in columns)
        rows += zip(*cells, strict=True)
    return files.as_csv(header, rows)


# -- the page ------------------------------------------------------------------------------------------------------


def _page(subject: Subject, diagnosis: Diagnosis, findings: list[Finding], same: bool | None) -> Page:
    share = f"{len(diagnosis.ids)} of" if len(diagnosis.ids) < subject.config.clients else "all"
    job = [
        subject.config.label,
        subject.data,
        subject.config.partition,
        subject.config.model,
        f"{share} {subject.config.clients} clients, {subject.config.cohort} a round",
        f"seed {subject.config.seed}",
        f"looked at after rounds {', '.join(str(look.round) for look in diagnosis.looks) or 'none'}",
    ]
    footer = f"Figures, tables (CSV) and every number (JSON) are in <code>{FOLDER}/</code>."
    heading = f"Diagnosis of {subject.config.method} on {subject.data}"
    page = Page(heading, " · ".join(filter(None, job)), footer, FOLDER)
    first = in_words([_text(one) for one in verdict(findings)], _notes(subject, diagnosis, same))
    page.parts += [first, _advice(subject)]
    figures = drawings(diagnosis) if diagnosis.looks else {}
    for topic, (title, lead) in TOPICS.items():
        texts = [_text(one.text) for one in findings if one.topic == topic]
        if texts or figures.get(topic):
            page.section(title, paragraphs(texts), page.figures(figures.get(topic, [])), lead=lead)
    if diagnosis.looks:
        numbers, meanings = _measured(diagnosis)
        page.section("Every number", numbers)
        page.section("What each is", meanings)
    return page


def _advice(subject: Subject) -> str:
    """The methods to tune first, by `fedconcord advise`'s rules; nothing where they name none."""
    try:
        advice = advise(subject.config)
    except UserError:
        return ""
    items = "".join(f"<li><b>{esc(one.method)}</b>: {esc(one.why)} ({esc(one.source)}).</li>" for one in advice.named)
    lead = "By rules over what is seen before training (fedconcord advise), not by this diagnosis:"
    return f'<h2>What to tune first</h2><p class="note">{lead}</p><ol>{items}</ol>{code_block(command(advice))}'


def _text(sentence: str) -> str:
    """A sentence with its options set apart."""
    return re.sub(r"(?<![\w-])(--[a-z][\w-]*|(?:local|eval)\.\w+)", r"<code>\1</code>", esc(sentence))


def _notes(subject: Subject, diagnosis: Diagnosis, same: bool | None) -> list[str]:
    out = []
    if len(diagnosis.ids) < subject.config.clients:
        out.append(
            f"A keyed sample of {len(diagnosis.ids)} of {subject.config.clients} clients was asked: sums over clients "
            "are of these."
        )
    if same is False:
        out.append(
            "The rounds trained again do not end at the model in the run's folder, bit for bit: it was computed "
            f"otherwise ({why_other(subject)}), which moves last digits. The numbers are those of this machine's "
            "rounds."
        )
    return out


def _measured(diagnosis: Diagnosis) -> tuple[str, str]:
    """Every number by round, and what each is."""
    change, numbers, meanings = changes(), [], []
    for one in MEASURES:
        values = [one.of(diagnosis, look) for look in diagnosis.looks]
        absent = all(v is None for v in values)
        if not absent:
            numbers.append((one.title, *(_cell(v, one.is_share) for v in values)))
        changed_by = f"left out: {one.absent}" if absent else change[one.key]
        meanings.append((one.title, one.formula, one.source, changed_by))
    head = ["measure", *(f"round {look.round}" for look in diagnosis.looks)]
    return pairs(numbers, head), pairs(meanings, ["measure", "formula", "source", "what changes it"])


def _cell(value: float | None, is_share: bool) -> str:
    if value is None:
        return ""
    if not math.isfinite(value):
        return "not finite"
    return percent(value) if is_share else compact(value)
