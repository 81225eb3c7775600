"""What a search leaves: tune.json, a TOML file a method that `compare --config` takes, and report.html.

The page has the verdict, what tuning changed, sensitivity, what it cost, and all trials.
"""

from __future__ import annotations

import html
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from fedconcord.execution.run.tables import rows_of
from fedconcord.insight.report import method_tables
from fedconcord.insight.report.again import to_toml
from fedconcord.insight.report.figures.style import INK, MUTED, Drawing, drawing, look, y_axis
from fedconcord.insight.report.page import Page, code_block, details, in_words, pairs, table
from fedconcord.insight.report.results_page import write_report
from fedconcord.insight.report.words import words
from fedconcord.insight.report.worth import sentences as sentences_of_worth
from fedconcord.insight.report.worth import worth
from fedconcord.study.search.plan import Tuning, save, sentences
from fedconcord.study.search.scores import (
    Edge,
    MethodSearch,
    Trial,
    edges,
    extend_words,
    finalists,
    shown,
    winner,
    winners,
)
from fedconcord.study.search.search import remarks
from fedconcord.study.search.space import text_of
from fedconcord.study.settings.methods import single
from fedconcord.study.settings.settings import Config
from fedconcord.study.statistics.format import quantity, size
from fedconcord.study.statistics.load import data_name, load_runs
from fedconcord.study.statistics.summary import Summary, summarise
from fedconcord.support import files

esc = html.escape
SIZE = (4.4, 2.5)  # inches of a figure, one of two columns of the page


def write_all(tuning: Tuning, searches: Sequence[MethodSearch]) -> Path:
    """All that a search leaves beside its runs: settings, numbers, the report of the winners and its own page."""
    write_report([tuning.folder / "final"], tuning.folder / "final")
    page = write_page(tuning, searches)
    write(tuning, searches)
    return page


def write_page(tuning: Tuning, searches: Sequence[MethodSearch]) -> Path:
    """Write report.html, which links to the report of the final comparison; the path."""
    summary = summarise(load_runs([tuning.folder / "final"]))
    config = tuning.config
    names = [search.space.method for search in searches if search.space.method not in config.baselines]
    data = data_name(config.data)
    heading = f"{len(names)} methods tuned on {data}" if len(names) > 1 else f"{names[0]} tuned on {data}"
    job = [data, config.partition, config.model, f"{config.clients} clients, {config.cohort} a round"]
    job += [f"{config.rounds} rounds", f"tuned with seed{'s' * (len(tuning.seeds) > 1)} {_listed(tuning.seeds)}"]
    footer = (
        "All numbers of this page are in <code>tune.json</code>, the runs in <code>trials/</code> and "
        "<code>final/</code>, the trials for Optuna's tools in <code>study.journal</code>."
    )
    page = Page(heading, " · ".join(part for part in job if part), footer)
    tuned = [search for search in searches if search.trials]
    at = {search.space.method: edges(tuning.config, search) for search in tuned}
    warnings = [f"{search.space.method}: {remark}" for search in tuned for remark in remarks(tuning, search)]
    main = method_tables.table(summary, summary.rows)
    whole = (
        f"Each method with its best settings, with seeds {_listed(tuning.spec.final_seeds or ())}, which tuning has "
        'not seen: <a href="final/report.html">the whole comparison</a>.'
    )
    answer = worth(summary)  # where the final comparison has baselines
    verdicts = [] if answer is None else [esc(sentence) for sentence in sentences_of_worth(answer)]
    page.parts.append(in_words([*words(summary), *verdicts, whole], warnings))
    page.section("The winners, with fresh seeds", table(main, [row.style for row in summary.rows]))
    page.section("What tuning changed", _changed(tuning, searches))
    if tuned:
        first = dict.fromkeys(tuning.rungs[search.space.method][0].rounds for search in tuned)
        title = tuning.objective.metric.title
        lead = (
            f"{title[0].upper()}{title[1:]} against each parameter. Hollow: all trials after "
            f"{' or '.join(map(str, first))} rounds; filled: those that went on, after their last; ringed: the best. "
            "× marks trials that diverged or failed. A dotted line is the end of a range that the best is at."
        )
        page.section("Sensitivity", page.figures(_figures(tuning, tuned, at, summary), keep=False), lead=lead)
        page.section("What tuning cost", _cost(tuning, tuned))
        page.section("All trials", *(_trials(tuning, search) for search in tuned))
    plan = "".join(f"<li>{esc(line)}</li>" for line in sentences(tuning))
    command = f"fedconcord compare --config {shlex.quote(str(tuning.folder))}/best.toml --out runs/again"
    winners_again = f"<p>The winners again, or one of them, as any comparison:</p>{code_block(command)}"
    page.section("How to get this again", f"<ul>{plan}</ul>{winners_again}")
    return page.write(tuning.folder / "report.html")


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _changed(tuning: Tuning, searches: Sequence[MethodSearch]) -> str:
    rows = []
    for search in searches:
        if not search.trials:
            rows.append((search.space.method, "nothing to tune", "", "", ""))
            continue
        lost = sum(trial.last.broken > 0 for trial in search.trials)
        count = f"{len(search.trials)} ({lost} diverged or failed)" if lost else str(len(search.trials))
        best = "none ended well" if search.best is None else shown(tuning.objective, search.best.last)
        untuned, text = shown(tuning.objective, search.trials[0].last), winner(tuning.config, search) or ""
        rows.append((search.space.method, text, untuned, best, count))
    head = ("method", "best settings", "as it was", "tuned", "trials")
    note = (
        f"Judged by {tuning.objective}, seed{'s' * (len(tuning.seeds) > 1)} {_listed(tuning.seeds)}. The best of many "
        "trials looks better than it is; the table above, of fresh seeds, does not."
    )
    return pairs(rows, head, note)


def _figures(
    tuning: Tuning, tuned: Sequence[MethodSearch], at: dict[str, list[Edge]], summary: Summary
) -> list[Drawing]:
    """A figure a method and parameter, in the method's colour of the final comparison."""
    styles = {method.name: method.index for method in summary.methods}
    texts = winners(tuning.config, tuned)
    labels = {method: single(tuning.config, text, 0).label or "" for method, text in texts.items()}
    drawings: list[Drawing] = []
    for k, search in enumerate(tuned):
        method = search.space.method
        index, edges_of = styles.get(labels.get(method, ""), k), {edge.key: edge for edge in at[method]}
        drawings += [_sensitivity(tuning, search, index, key, edges_of.get(key)) for key in search.space.places]
    return drawings


def _sensitivity(tuning: Tuning, search: MethodSearch, index: int, key: str, edge: Edge | None) -> Drawing:
    """The metric of every trial of a method against one of its parameters."""
    metric, best = tuning.objective.metric, search.best
    stands = "" if best is None else f" Best: {key} {best.values[key]:g}, {shown(tuning.objective, best.last)}."
    place, first = search.space.places[key], tuning.rungs[search.space.method][0].rounds
    colour, _, marker = look(index)
    points: dict[str, Any] = {
        "color": colour, "marker": marker, "markersize": 4.5, "markeredgecolor": colour, "markeredgewidth": 0.9,
    }  # fmt: skip

    def plot(ax: Axes) -> None:
        whole = [trial for trial in search.trials if not trial.scores[first].broken]
        early = sorted((trial.values[key], trial.scores[first].value) for trial in whole)
        width = 0.9 if len(search.space.places) == 1 else 0.0  # else neighbours on this axis differ in the others
        ax.plot([x for x, _ in early], [y for _, y in early], linewidth=width, markerfacecolor="white", **points)
        late = [trial for trial in whole if trial.rounds > first and not trial.last.broken]
        for trial in late:
            x = trial.values[key]
            ax.plot([x, x], [trial.scores[first].value, trial.last.value], color=colour, linewidth=0.7, alpha=0.6)
            ax.plot([x], [trial.last.value], linewidth=0.0, markerfacecolor=colour, **points)
        if search.best is not None:
            x, y = search.best.values[key], search.best.last.value
            ax.plot([x], [y], "o", markersize=10, markerfacecolor="none", markeredgecolor=INK, zorder=5)
        if place.scale == "log":
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
            ax.xaxis.set_minor_formatter(NullFormatter())
        y_axis(ax, metric, metric.log)
        ax.set_xlabel(key)
        lost = [trial.values[key] for trial in search.trials if trial.last.broken]
        bottom = ax.get_xaxis_transform()
        ax.plot(lost, [0.03] * len(lost), "x", color=colour, transform=bottom, clip_on=False, markersize=5)
        if edge is not None:
            ax.axvline(
                edge.range.low if edge.side == "low" else edge.range.high, color=MUTED, linewidth=0.9, linestyle=":"
            )
        ax.margins(x=0.08, y=0.12)

    return drawing(
        f"{search.space.method}-{key}",
        f"{metric.title} of {len(search.trials)} trials of {search.space.method} against {key}.{stands}",
        f"{search.space.method}.{stands}{'' if edge is None else f' {extend_words(edge)}'}",
        plot,
        size=SIZE,
    )


def _cost(tuning: Tuning, tuned: Sequence[MethodSearch]) -> str:
    rows, total = [], 0.0
    for search in tuned:
        cost = spent(tuning, search)
        total += cost.seconds
        steps, moved = quantity(cost.gradient_steps), size(cost.bytes)
        rows.append((search.space.method, f"{cost.rounds:,}", steps, moved, f"{cost.seconds:.1f}"))
    head = ("method", "rounds", "gradient steps", "bytes up and down", "seconds of training")
    fewer = "A trial that diverges ends there, so that its method has fewer rounds than it was given. "
    are_equal = len({tuple(tuning.rungs[search.space.method]) for search in tuned}) == 1
    equal = "Every method was given the same rounds. " if are_equal else "Methods have grids of different sizes. "
    note = f"{equal}{fewer}Seconds: of one core, training alone, {total:.0f} in all."
    return pairs(rows, head, note)


def _trials(tuning: Tuning, search: MethodSearch) -> str:
    keys, best = tuple(search.space.places), None if search.best is None else search.best.number
    rows = []
    for trial in sorted(search.trials, key=lambda trial: (trial.number != best, trial.number)):
        name = f"{trial.number}{' (as it was)' if trial.number == 0 else ''}{', best' if trial.number == best else ''}"
        values = (f"{trial.values[key]:g}" for key in keys)
        rows.append((name, *values, str(trial.rounds), _outcome(tuning, trial)))
    title = f"{esc(search.space.method)}: {len(search.trials)} trials"
    return details(title, pairs(rows, ("trial", *keys, "rounds", "outcome")))


def _outcome(tuning: Tuning, trial: Trial) -> str:
    if trial.errors:
        return f"failed: {trial.errors[0]}"
    if trial.last.broken:
        return f"diverged ({trial.last.broken} of {len(tuning.seeds)} seeds)"
    return shown(tuning.objective, trial.last)


# -- files ------------------------------------------------------------------------------------------------------------


class Spent(NamedTuple):
    """What the trials of a method took, all seeds together."""

    rounds: int
    gradient_steps: int
    bytes: int  # up and down
    seconds: float  # of training and evaluating, on one core each


def spent(tuning: Tuning, search: MethodSearch) -> Spent:
    """What the trials of a method took. Runs that began anew after an interruption count once."""
    rounds = steps = size = 0
    seconds = 0.0
    for trial in search.trials:
        for seed in tuning.seeds:
            folder = tuning.place(search.space, trial.number, seed)
            if not (folder / "metrics.csv").exists():
                continue
            rows = rows_of(folder / "metrics.csv", tuning.config.rounds)
            last = rows[-1] if rows else {"round": 0, "gradient_steps": 0, "bytes_up": 0, "bytes_down": 0}
            rounds += int(last["round"])
            steps += int(last["gradient_steps"])
            size += int(last["bytes_up"]) + int(last["bytes_down"])
            seconds += sum(float(row["seconds"]) for row in rows_of(folder / "timing.csv", tuning.config.rounds))
    return Spent(rounds, steps, size, seconds)


def write(tuning: Tuning, searches: Sequence[MethodSearch]) -> None:
    """The TOML files and tune.json. The same search writes the same bytes: there are no times in it."""
    texts = winners(tuning.config, searches)
    for search in searches:
        if search.space.method in texts and search.space.method not in tuning.config.baselines:
            name = f"{files.folder_name(search.space.method)}.toml"
            files.write_text(
                tuning.folder / name, _toml(tuning, [texts[search.space.method]], [], _why(tuning, search))
            )
    comment = "The best settings of each method, for fedconcord compare --config"
    files.write_text(tuning.folder / "best.toml", _toml(tuning, *finalists(tuning.config, searches), comment))
    metric, target = tuning.objective.metric, tuning.objective.target
    judged = {"column": metric.column, "higher": metric.higher, "target": target, "held": tuning.objective.is_held_out}
    methods = [_method(tuning, search) for search in searches]
    save(tuning, {"status": "complete", "objective": judged, "methods": methods, "final": "final"})


def _toml(tuning: Tuning, methods: Sequence[str], baselines: Sequence[str], comment: str) -> str:
    """The job as it was asked for, where it is not the default, with these methods, baselines and the fresh seeds."""
    update = {"label": None, "seed": None, "methods": None, "seeds": None, "baselines": list(baselines)}
    job = tuning.config.model_copy(update=update).as_dict()
    job = _beyond(job, Config().model_dump(mode="json") | {"data": None})
    first = {"methods": list(methods), "seeds": list(tuning.spec.final_seeds or ())}
    return f"# {comment}\n{to_toml(first | job)}\n"


def _beyond(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the defaults, table by table."""
    different = {}
    for key, value in settings.items():
        beyond = _beyond(value, defaults[key]) if isinstance(value, dict) else value
        if beyond != defaults.get(key) and beyond != {}:
            different[key] = beyond
    return different


def _why(tuning: Tuning, search: MethodSearch) -> str:
    """Where the values of a method come from, on one line."""
    if search.best is None:
        return "nothing to tune"
    best, untuned = (shown(tuning.objective, trial.last) for trial in (search.best, search.trials[0]))
    of = f"{len(search.trials)} trials with seed {_listed(tuning.seeds)}"
    return f"{best} after {search.best.rounds} rounds, the best of {of}; untuned: {untuned}"


def _method(tuning: Tuning, search: MethodSearch) -> dict[str, Any]:
    cost = spent(tuning, search)
    return {
        "method": search.space.method,
        "winner": winner(tuning.config, search),
        "search": {key: list(place) for key, place in search.space.places.items()},
        "best": None if search.best is None else search.best.number,
        "extend": [edge.search for edge in edges(tuning.config, search) if edge.search],
        "rungs": [list(rung) for rung in tuning.rungs[search.space.method]] if search.trials else [],
        "trials": [_trial(tuning, search, trial) for trial in search.trials],
        "cost": {"rounds": cost.rounds, "gradient_steps": cost.gradient_steps, "bytes": cost.bytes},
    }


def _trial(tuning: Tuning, search: MethodSearch, trial: Trial) -> dict[str, Any]:
    scores = []
    for rounds, score in trial.scores.items():
        finite = math.isfinite(score.value)
        value, error = (score.value, score.standard_error) if finite else (None, None)
        target = {"rounds_to_target": score.reached, "missed": score.missed, "broken": score.broken}
        scores.append({"rounds": rounds, "value": value, "standard_error": error, **target})
    return {
        "number": trial.number,
        "method": text_of(tuning.config, search.space.method, trial.values),
        "values": dict(trial.values),
        "scores": scores,
        **({"errors": list(trial.errors)} if trial.errors else {}),
    }
