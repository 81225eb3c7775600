"""report.html of a search: the verdict, what tuning changed, sensitivity, what it cost, and all trials."""

from __future__ import annotations

import html
import shlex
from collections.abc import Sequence
from pathlib import Path

from fedconcord.report import method_tables
from fedconcord.report.figures import Drawing
from fedconcord.report.format import quantity, size
from fedconcord.report.load import data_name, load_runs
from fedconcord.report.page import Page, code_block, details, in_words, pairs, table
from fedconcord.report.results_page import write_report
from fedconcord.report.summary import Summary, summarise
from fedconcord.report.words import words
from fedconcord.report.worth import sentences as sentences_of_worth
from fedconcord.report.worth import worth
from fedconcord.settings.methods import single
from fedconcord.tuning.figures import sensitivity
from fedconcord.tuning.output import spent, write
from fedconcord.tuning.plan import Tuning, sentences
from fedconcord.tuning.results import Edge, MethodSearch, Trial, edges, shown, winner, winners
from fedconcord.tuning.search import remarks

esc = html.escape


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
    names = [search.space.method for search in searches]
    data = data_name(config.data)
    heading = f"{len(names)} methods tuned on {data}" if len(names) > 1 else f"{names[0]} tuned on {data}"
    job = [data, config.partition, config.model, f"{config.clients} clients, {config.cohort} a round"]
    job += [f"{config.rounds} rounds", f"tuned with seed{'s' * (len(tuning.seeds) > 1)} {_listed(tuning.seeds)}"]
    footer = (
        "All numbers of this page are in <code>tune.json</code>, the runs in <code>trials/</code> and "
        "<code>final/</code>, the trials for Optuna's tools in <code>study.journal</code>."
    )
    page = Page(heading, " · ".join(part for part in job if part), footer)
    _fill(page, tuning, searches, summary)
    return page.write(tuning.folder / "report.html")


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _fill(page: Page, tuning: Tuning, searches: Sequence[MethodSearch], summary: Summary) -> None:
    tuned = [search for search in searches if search.trials]
    at = {search.space.method: edges(tuning.config, search) for search in tuned}
    warnings = [f"{search.space.method}: {remark}" for search in tuned for remark in remarks(tuning, search)]
    main = method_tables.table(summary, summary.rows)
    whole = (
        f"Each method with its best settings, with seeds {_listed(tuning.spec.final_seeds or ())}, which tuning has "
        'not seen: <a href="final/report.html">the whole comparison</a>.'
    )
    page.parts.append(in_words([*words(summary), *_worth(summary), whole], warnings))
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
    page.section("How to get this again", _again(tuning))


def _worth(summary: Summary) -> list[str]:
    """Whether federation is worth it, where the final comparison has baselines."""
    answer = worth(summary)
    return [] if answer is None else [esc(sentence) for sentence in sentences_of_worth(answer)]


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
    styles = {method.name: method.index for method in summary.methods}
    texts = winners(tuning.config, tuned)
    labels = {method: single(tuning.config, text, 0).label or "" for method, text in texts.items()}
    drawings: list[Drawing] = []
    for k, search in enumerate(tuned):
        method = search.space.method
        drawings += sensitivity(tuning, search, styles.get(labels.get(method, ""), k), at[method])
    return drawings


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
    keys = tuple(search.space.places)
    order = sorted(
        search.trials, key=lambda trial: (search.best is None or trial.number != search.best.number, trial.number)
    )
    rows = [
        (_name(search, trial), *(f"{trial.values[key]:g}" for key in keys), *_went(tuning, trial)) for trial in order
    ]
    title = f"{esc(search.space.method)}: {len(search.trials)} trials"
    return details(title, pairs(rows, ("trial", *keys, "rounds", "outcome")))


def _name(search: MethodSearch, trial: Trial) -> str:
    best = search.best is not None and trial.number == search.best.number
    return f"{trial.number}{' (as it was)' if trial.number == 0 else ''}{', best' if best else ''}"


def _went(tuning: Tuning, trial: Trial) -> tuple[str, str]:
    if trial.errors:
        return str(trial.rounds), f"failed: {trial.errors[0]}"
    if trial.last.broken:
        return str(trial.rounds), f"diverged ({trial.last.broken} of {len(tuning.seeds)} seeds)"
    return str(trial.rounds), shown(tuning.objective, trial.last)


def _again(tuning: Tuning) -> str:
    folder = shlex.quote(str(tuning.folder))
    plan = "".join(f"<li>{esc(line)}</li>" for line in sentences(tuning))
    command = f"fedconcord compare --config {folder}/best.toml --out runs/again"
    return f"<ul>{plan}</ul><p>The winners again, or one of them, as any comparison:</p>{code_block(command)}"
