"""The pages of an arena: README.md and report.html with the same tables, figures, and every number as arena.json."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import fedconcord
from fedconcord.insight.report.figures.ranking import critical
from fedconcord.insight.report.figures.style import Drawing
from fedconcord.insight.report.method_tables import Table as Cells
from fedconcord.insight.report.method_tables import reach_cell, to_markdown
from fedconcord.insight.report.page import Page, details, in_words, note, pairs, paragraphs, with_code
from fedconcord.insight.report.results_page import rank_words
from fedconcord.study.statistics.format import NONE, lead_words, metric_cell, size, with_interval
from fedconcord.study.statistics.metric import Metric
from fedconcord.study.statistics.ranks import Ranks
from fedconcord.study.statistics.stats import ALPHA, FEW, interval
from fedconcord.study.statistics.summary import Reach
from fedconcord.support import files, grammar, process
from fedconcord_papers.arena.figures import profile
from fedconcord_papers.arena.kept import kept
from fedconcord_papers.arena.outcome import Outcome, Result
from fedconcord_papers.arena.plan import TUNING_SEEDS, ArenaSpec
from fedconcord_papers.arena.standing import FAR, NEAR, Contest, Standing, Table, Worst, contests, table_of

RESULTS = "arena.json"
ROLES = {
    "choose": "Federations to choose by: what a method's constants may have been made with",
    "hold": "Federations held out: what methods are judged on",
    "natural": "Federations that nature made, to choose by",
    "natural_hold": "Federations that nature made, held out",
}


class Pages(NamedTuple):
    """What was written."""

    html: Path
    markdown: Path
    tables: tuple[Table, ...]


def write(spec: ArenaSpec, results: Sequence[Result]) -> Pages:
    """Write arena.json, README.md, report.html and figures/ into the arena's folder."""
    tables, labels = tables_of(results), dict.fromkeys([*spec.methods, *labels_of(results)])
    facts = _facts(spec, is_beside=any(one.entry.is_kept for result in results for one in result.outcomes))
    heading = f"{len(labels)} methods on {len(results)} federations"
    footer = f"All numbers are in <code>{RESULTS}</code>, the runs in the federations' folders."
    page, lines = Page(heading, "arena", footer), ["# Arena", *facts]
    page.parts.append(in_words([with_code(fact) for fact in facts], warnings(results)))
    for table in tables:
        figures = drawings(table, [*labels])
        page.parts += _as_html(table, page.figures(figures))
        lines += as_markdown(table, [f"figures/{item.name}.png" for item in figures])
    if notes := warnings(results):
        lines += ["## Note", "\n".join(f"* {item}" for item in notes)]
    page.write(spec.out / "report.html")
    files.write_text(spec.out / "README.md", "\n\n".join(lines) + "\n")
    files.write_json(spec.out / RESULTS, as_dict(spec, results))
    return Pages(spec.out / "report.html", spec.out / "README.md", tables)


def tables_of(results: Sequence[Result]) -> tuple[Table, ...]:
    """A table a role."""
    roles = dict.fromkeys(result.federation.role for result in results)
    return tuple(table_of([result for result in results if result.federation.role == role]) for role in roles)


def labels_of(results: Sequence[Result]) -> list[str]:
    """All methods of some results."""
    return [*dict.fromkeys(one.entry.label for result in results for one in result.outcomes)]


def drawings(table: Table, labels: Sequence[str]) -> list[Drawing]:
    """The profile, and the ranks where there are any; a method has the look of its place among `labels`."""
    figures = [profile(table, {label: k for k, label in enumerate(labels)})]
    if _are_ranked(table.by_rounds):
        figures.append(critical(table.by_rounds)._replace(name=f"ranks-{table.role}"))
    return figures


def as_dict(spec: ArenaSpec, results: Sequence[Result]) -> dict[str, object]:
    """arena.json."""
    return {
        "format": 1,
        "command": spec.command,
        "version": fedconcord.__version__,
        "machine": process.machine(),
        "budget": spec.budget,
        "seeds": list(spec.seeds),
        "tuning_seeds": list(TUNING_SEEDS),
        "methods": dict(spec.methods),
        "federations": [result.as_dict() for result in results],
    }


def _facts(spec: ArenaSpec, is_beside: bool) -> list[str]:
    """How the numbers came about, in sentences."""
    facts = [
        f"`{spec.command}`, fedconcord {fedconcord.__version__}, {process.machine()}.",
        "In every federation FedAvg is tuned for its final value first; the target of a seed is the share of its way "
        "from the start to there that the federation names. Every method, FedAvg too, is tuned for few "
        f"rounds to the target, with {spec.budget} trials on seeds {_listed(TUNING_SEEDS)}, judged by samples that "
        "clients set apart or, where there are none, by the objective; and compared with seeds "
        f"{_listed(spec.seeds)}. A method with nothing to tune is compared as it is.",
        "Ratio: mean rounds to the target over those of the best tuned method; `never` where a seed does not come "
        "there. Final: the mean of the last five evaluations; its lead is over FedAvg tuned for it. Time a round: the "
        "median, over FedAvg's in the same comparison.",
    ]
    if is_beside:
        table = kept()
        facts.append(
            f"Methods marked * were not run here: their rows are of the package's table, fedconcord {table.version} on "
            f"{table.machine}, with the same settings, trials and seeds."
        )
    return facts


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


# -- over federations ------------------------------------------------------------------------------------------------


def _as_html(table: Table, figures_html: str) -> Iterator[str]:
    cells = standings(table)
    yield f"<h2>{html.escape(ROLES[table.role])}</h2>" + pairs(cells.rows, cells.header)
    yield note(cells.caption) + paragraphs(_ranked(table)) + figures_html
    if rivals := against(table):
        yield pairs(rivals.rows, rivals.header, rivals.caption)
    for result in table.results:
        cells = outcomes(result)
        title = f"<b>{html.escape(result.federation.name)}</b>: {html.escape(_size(result))}"
        yield details(title, pairs(cells.rows, cells.header, cells.caption))


def as_markdown(table: Table, figures: Sequence[str]) -> Iterator[str]:
    """The tables, sentences and figures of a role."""
    yield f"## {ROLES[table.role]}"
    yield to_markdown(standings(table))
    yield from (html.unescape(one).replace("<b>", "**").replace("</b>", "**") for one in _ranked(table))
    if rivals := against(table):
        yield to_markdown(rivals)
    yield from (f"![{table.role}]({figure})" for figure in figures)
    for result in table.results:
        yield f"### {result.federation.name}\n\n{_size(result)}."
        yield to_markdown(outcomes(result))


def _ranked(table: Table) -> list[str]:
    """What the ranks say, as HTML."""
    sentences = []
    for what, ranks in (("rounds to the target", table.by_rounds), ("the final value", table.by_final)):
        if _are_ranked(ranks):
            sentences.append(f"By {what}: {' '.join(rank_words(ranks)).replace('data sets', 'federations')}")
    return sentences


def against(table: Table) -> Cells | None:
    """Whether each method that was run here beats FedAvg with one number more; None where there is none, or no
    control."""
    by_label: dict[str, list[Contest]] = {}
    for one in contests(table):
        by_label.setdefault(one.label, []).append(one)
    if not by_label:
        return None
    controls = [one.control for one in next(iter(by_label.values()))]
    rows = []
    for label, of_method in by_label.items():
        losers = [one.control for one in of_method if one.is_won]
        which = "all" if len(losers) == len(controls) else ", ".join(losers) or "none"
        rows.append((label, *(f"{one.wins} to {one.losses} (p {one.p:.2g})" for one in of_method), which))
    caption = (
        "Federations in which a method needs fewer rounds to the target than FedAvg with one tuned number more, and "
        f"those in which it needs more; it beats what a sign test says so of, at {100 * ALPHA:g} %. What beats "
        "none has not been shown to be more than tuning."
    )
    return Cells(("method", *controls, "beats"), tuple(rows), caption)


def _are_ranked(ranks: Ranks) -> bool:
    """Several methods over several federations."""
    return len(ranks.methods) > 1 and len(ranks.data) > 1


def standings(table: Table) -> Cells:
    """A line a method over the federations of a role."""
    rounds = dict(zip(table.by_rounds.methods, table.by_rounds.average.tolist(), strict=True))
    final = dict(zip(table.by_final.methods, table.by_final.average.tolist(), strict=True))
    header = (
        "method", f"within {NEAR:g}", f"within {FAR:g}", "reached", "worst ratio", "bytes", "diverged or failed",
        "lead, points", "least lead", "time a round", "slowest", "rank by rounds", "rank by final",
    )  # fmt: skip
    rows = [_standing(s, rounds.get(s.label, math.nan), final.get(s.label, math.nan)) for s in table.standings]
    of_time = "time a round over FedAvg's, median and most; " * any(s.slowest.federation for s in table.standings)
    caption = (
        f"Of {len(table.results)} federations those where a method needs at most {NEAR:g} and {FAR:g} times the rounds "
        "of the best tuned method, and where it comes to the target on every seed; bytes to the target over those of "
        "the best tuned method, the median; runs; points of accuracy over tuned FedAvg, mean and least; "
        f"{of_time}average ranks. The tests of ranks assume that federations are independent, and those that share "
        "data are not."
    )
    return _without_empty(header, rows, caption)


def _without_empty(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> Cells:
    """A table without the columns that no row has anything in."""
    there = [k for k in range(len(header)) if any(row[k] not in ("", NONE) for row in rows)]
    return Cells(tuple(header[k] for k in there), tuple(tuple(row[k] for k in there) for row in rows), caption)


def _standing(s: Standing, rounds: float, final: float) -> tuple[str, ...]:
    return (
        _name(s.label, s.tuned, s.is_kept),
        *(f"{count} of {s.judged}" for count in (s.near, s.far, s.reached)),
        _worst(s.worst, ".2f"),
        _plain(s.bytes, ".2f"),
        f"{s.broken} of {s.runs}",
        _plain(s.lead, "+.2f"),
        _worst(s.behind, "+.2f"),
        _plain(s.slower, ".2f"),
        _worst(s.slowest, ".2f"),
        _plain(rounds, ".2f"),
        _plain(final, ".2f"),
    )


def _name(label: str, tuned: bool, is_kept: bool) -> str:
    return f"{label}{' (not tuned)' * (not tuned)}{' *' * is_kept}"


def _plain(v: float, form: str) -> str:
    return NONE if math.isnan(v) else "never" if math.isinf(v) else format(v, form)


def _worst(worst: Worst, form: str) -> str:
    return f"{_plain(worst.value, form)} ({worst.federation})" if worst.federation else NONE


# -- in a federation -------------------------------------------------------------------------------------------------


def outcomes(result: Result) -> Cells:
    """A line a method of a federation, the fewest rounds first."""
    metric, rounds = result.goals.metric, result.size.rounds
    order = sorted(result.outcomes, key=lambda one: (one.mean_rounds, one.broken))
    percent = ", %" if metric.percent else ""
    header = ("method", "rounds to target", "ratio", "bytes to target", f"final {metric.title}{percent}", "lead",
              "time a round", "diverged or failed", "settings")  # fmt: skip
    rows = [_outcome(result, one, metric, rounds) for one in order]
    around = "± 95 % t intervals" if len(order[0].rounds) >= FEW else "[lowest, highest seed]"
    caption = (
        f"Target: {result.goals} ({result.federation.target}), a value a seed; trials were tuned for "
        f"{result.trial_target:.4g} of what judged them. Lead over {_settings(result.reference)}"
        f"{', a factor' if metric.log else ''}. Means {around}."
    )
    return _without_empty(header, rows, caption)


def _outcome(result: Result, one: Outcome, metric: Metric, rounds: int) -> tuple[str, ...]:
    reach = [Reach(one.rounds[seed], one.bytes[seed], None, float(rounds)) for seed in one.rounds]
    final = metric.interval([v for v in one.final.values() if math.isfinite(v)])
    lead = interval([v for v in one.lead.values() if math.isfinite(v)])
    slower = interval(list(one.slower.values()))
    return (
        _name(one.entry.label, one.entry.tuned, one.entry.is_kept),
        reach_cell(reach, "round"),
        _plain(result.ratio(one), ".2f"),
        size(one.mean_bytes) if math.isfinite(one.mean_bytes) else NONE,
        metric_cell(metric, final),
        lead_words(metric, lead.mean) if lead.n else NONE,
        with_interval(slower, lambda v: 2),
        str(one.broken) if one.broken else "",
        _settings(one.entry.text),
    )


def _settings(text: str | None) -> str:
    """A method with its best values; the label stands elsewhere."""
    if text is None:
        return "no trial ended well"
    spec = grammar.parse(text, "method")
    return str(grammar.Spec(spec.name, spec.args, {key: v for key, v in spec.kwargs.items() if key != "label"}))


def _size(result: Result) -> str:
    size, best = result.size, result.best
    where = ", ".join(part for part in (size.data, size.model) if part != "none")
    best_words = "no tuned method came to the target" if best is None else f"best tuned: {best.entry.label}"
    return f"{where}; {size.cohort} of {size.clients} clients a round, {size.rounds} rounds; {best_words}"


def warnings(results: Sequence[Result]) -> list[str]:
    """What a reader must know: methods that cannot run or failed, targets that nobody met."""
    sentences = []
    for result in results:
        name = result.federation.name
        sentences += [f"{name}: {label} cannot run: {why}" for label, why in result.refused.items()]
        sentences += [
            f"{name}: {outcome.entry.label} failed: {why}" for outcome in result.outcomes for why in outcome.errors[:1]
        ]
        if result.moved:
            sentences.append(
                f"{name}: with seed {_listed(result.moved)} FedAvg needs other rounds here than in the package's "
                "table, which another machine or version made; run all methods here to compare to the last round."
            )
        if result.best is None:
            sentences.append(
                f"{name}: no tuned method came to the target on every seed, so nobody is judged by rounds there."
            )
    return sentences
