"""What the report says beyond the ranking: few seeds, models of one kind, methods below FedAvg, falls from a peak."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context
from test_report import flat, plant, said, write_run

from fedconcord.insight.report import load_runs, write_report
from fedconcord.insight.report.figures.progress import by_axis
from fedconcord.insight.report.figures.ranking import ranked
from fedconcord.insight.report.figures.style import STYLE, to_files
from fedconcord.insight.report.method_tables import table, to_csv
from fedconcord.insight.report.words import below, fall, falls
from fedconcord.study.statistics.format import metric_cell
from fedconcord.study.statistics.metric import metric_of
from fedconcord.study.statistics.stats import interval
from fedconcord.study.statistics.summary import Summary, summarise

# -- fewer than five seeds -----------------------------------------------------------------------------------------


def caption_of(s: Summary, name: str) -> str:
    return next(d.caption for d in ranked(s) if d.name == name)


def bars(s: Summary, name: str) -> int:
    """Lines of the ranking figure that have an extent: the intervals."""
    fig = next(d for d in ranked(s) if d.name == name).draw(True)
    return sum(line.get_linewidth() == 2.2 for line in fig.axes[0].lines)


@pytest.mark.parametrize(("n", "bar"), [(4, 0), (5, 2)])
def test_an_interval_is_shown_from_five_seeds_on(n: int, bar: int, tmp_path: Path) -> None:
    values = [0.90, 0.93, 0.91, 0.94, 0.92][:n]
    s = plant(tmp_path, {"a": values, "b": [v - 0.01 * (1 + i % 2) for i, v in enumerate(values)]})
    i = interval(values)
    around = f"± {100 * i.half:.2f}" if bar else f"[90.00, {100 * max(values):.2f}]"
    shown = f"{100 * i.mean:.2f} {around}"
    assert metric_cell(s.primary, s.rows[0].final) == shown
    assert table(s, s.rows).rows[0][1] == shown
    assert ("± its 95 % t interval" in table(s, s.rows).caption) == bool(bar)
    assert ("[lowest, highest seed]" in table(s, s.rows).caption) != bool(bar)
    assert bars(s, "final") == bar
    assert bars(s, "lead") == bar / 2
    assert ("interval" in caption_of(s, "final")) == ("interval" in caption_of(s, "lead")) == bool(bar)
    assert ("paired 95 % interval" in said(s)) == bool(bar)
    assert ("seed by seed" in said(s)) != bool(bar)
    assert f"{i.low:.10g},{i.high:.10g}" in to_csv(s)  # which keeps the interval of any number of seeds


def test_no_bound_that_is_printed_lies_beyond_the_seeds(tmp_path: Path) -> None:
    """Two seeds of a t interval would have 12.7 times their half range."""
    s = plant(tmp_path, {"a": [0.9, 0.8], "b": [0.7, 0.75]})
    cells = [table(s, [row]).rows[0][1] for row in s.rows]
    assert cells == ["85.00 [80.00, 90.00]", "72.50 [70.00, 75.00]"]
    assert "a 85.00 % (2 seeds: 80.00 % to 90.00 %)" in said(plant(tmp_path / "one", {"a": [0.9, 0.8]})).replace(
        "ends at test accuracy ", ""
    )


# -- the model that is delivered ------------------------------------------------------------------------------------


def two_models(answer: str, server: float, mean: float) -> tuple[dict[str, list[float]], dict[str, Any]]:
    other = "mean" if answer == "server" else "server"
    ends = {"server": server, "mean": mean}
    return flat(ends[answer]) | {f"{other}:{c}": v for c, v in flat(ends[other]).items()}, {"models": [answer, other]}


def test_a_method_is_ranked_by_the_model_that_it_answers_with(tmp_path: Path) -> None:
    for seed in (0, 1):
        more = 0.001 * seed
        write_run(tmp_path / f"a{seed}", "fedavg", seed, flat(0.90 + more))
        series, head = two_models("mean", 0.85 + more, 0.95 + more)
        write_run(tmp_path / f"p{seed}", "afedpd(rho=0.1)", seed, series, head=head)
        series, head = two_models("server", 0.80 + more, 0.99 + more)
        write_run(tmp_path / f"d{seed}", "feddyn", seed, series, head=head)
    s = summarise(load_runs([tmp_path]))
    assert [(r.name, r.model) for r in s.rows] == [
        ("afedpd(rho=0.1)", "mean"), ("fedavg", "server"), ("feddyn", "server"),
    ]  # fmt: skip
    assert s.rows[0].final.mean == pytest.approx(0.9505)
    assert s.rows[0].loss is not None
    assert s.rows[0].loss.mean == pytest.approx(1 - 0.9505)
    assert s.verdict.top == "afedpd(rho=0.1)"
    assert {(r.name, r.model): round(r.final.mean, 4) for r in s.second} == {
        ("afedpd(rho=0.1)", "server"): 0.8505, ("feddyn", "mean"): 0.9905,
    }  # fmt: skip
    t = table(s, s.rows)
    at = t.header.index("of its server's iterate, %")
    assert [row[at] for row in t.rows] == ["85.05 [85.00, 85.10]", "–", "–"]
    assert "afedpd answers with its mean, which ranks it; its server's iterate ends at 85.05 %." in said(s)
    assert ",complete,0.95" in to_csv(s)
    assert [line.rsplit(",", 1)[1] for line in to_csv(s).splitlines()[1:4]] == ["mean", "server", "server"]


def test_a_model_that_was_not_evaluated_ranks_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, flat(0.9))
    write_run(tmp_path / "p", "afedpd", 0, flat(0.8), head={"models": ["mean", "server"]})
    s = summarise(load_runs([tmp_path]))
    assert {r.name: r.model for r in s.rows} == {"fedavg": "server", "afedpd": "mean"}


# -- below FedAvg, and falls ---------------------------------------------------------------------------------------


def test_a_method_below_fedavg_is_said(tmp_path: Path) -> None:
    s = plant(
        tmp_path,
        {"fedavg": [0.9, 0.8, 0.85], "fednova": [0.8, 0.7, 0.76], "fedprox(mu=0.1)": [0.89, 0.81, 0.80],
         "scaffold": [0.89, 0.88, 0.9], "fedadmm": [0.89, 0.79, 0.99]},
    )  # fmt: skip
    found = {b.name: (b.worse, b.seeds, round(100 * b.lead, 2)) for b in below(s)}
    assert found == {"fednova": (3, 3, 9.67), "fedprox(mu=0.1)": (2, 3, 1.67)}  # fedadmm is better on average
    assert "Below fedavg: fednova by 9.67 points in all 3 seeds and fedprox by 1.67 points in 2 of 3 seeds" in said(s)


def test_nothing_is_below_a_fedavg_that_is_not_there(tmp_path: Path) -> None:
    assert below(plant(tmp_path / "a", {"scaffold": [0.9, 0.8], "fednova": [0.8, 0.7]})) == []
    one = plant(tmp_path / "b", {"fedavg": [0.9], "fednova": [0.8]})
    assert "Below fedavg: fednova by 10.00 points in one seed" in said(one)


def noisy(peak: float, end: float, noise: float, seed: int, rounds: int = 100) -> list[float]:
    """A curve that rises to `peak` at round 40 and goes to `end` from there, under normal noise."""
    t = np.arange(rounds + 1)
    curve = np.interp(t, [0, 40, 70, rounds], [0.1, peak, end, end])
    return (curve + np.random.default_rng(seed).normal(0, noise, t.size) * (t > 0)).tolist()


def test_a_fall_from_the_peak_is_said_and_noise_is_not(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"f{seed}", "falls", seed, {"test_accuracy": noisy(0.95, 0.85, 0.005, seed)})
        write_run(tmp_path / f"n{seed}", "noisy", seed, {"test_accuracy": noisy(0.9, 0.9, 0.03, seed)})
        write_run(tmp_path / f"s{seed}", "slight", seed, {"test_accuracy": noisy(0.9, 0.895, 0.0, seed)})
    s = summarise(load_runs([tmp_path]))
    (one,) = falls(s)
    assert (one.name, one.seeds, one.of) == ("falls", 3, 3)
    assert 0.95 < one.peak < 0.97
    assert one.final == pytest.approx(0.85, abs=0.01)
    assert 35 <= one.round <= 45
    assert f"Falls from its peak: falls from {100 * one.peak:.2f} % at round {one.round} to" in said(s)
    assert "more than 5 times the noise of its last 20 evaluations and 2 % of the way from the start" in said(s)


def test_noise_alone_is_called_a_fall_at_most_once_in_a_hundred_curves(tmp_path: Path) -> None:
    """The rule by itself: 300 curves that rise and stay, under much noise."""
    run = load_runs([write_run(tmp_path, "m", 0, {"test_accuracy": [0.1] * 101})])[0]
    hits = 0
    for seed in range(300):
        run.metrics["test_accuracy"] = np.array(noisy(0.9, 0.9, 0.05, seed))
        hits += fall(run, metric_of("test_accuracy"), 100) is not None
    assert hits <= 3


def test_a_distance_that_rises_again_falls_from_its_peak(tmp_path: Path) -> None:
    t = np.arange(60)
    values = 10.0 ** np.interp(t, [0, 30, 45, 59], [1, -6, -3, -3])
    write_run(tmp_path, "m", 0, {"distance": values.tolist(), "loss": [1.0] * 60})
    (one,) = falls(summarise(load_runs([tmp_path])))
    assert (one.peak, one.final, one.round) == (pytest.approx(-6), pytest.approx(-3), 30)
    assert math.isfinite(one.final)


# -- axes that begin where the curves differ -----------------------------------------------------------------------


def rise(end: float, speed: float = 0.1, n: int = 60) -> list[float]:
    return [end + (0.1 - end) * math.exp(-speed * i) for i in range(n + 1)]


def axis_of(s: Summary) -> tuple[float, str]:
    d = by_axis(s, s.primary, "round")
    assert d.name == "test-accuracy-by-round"
    return float(d.draw(True).axes[0].get_ylim()[0]), d.caption


def test_an_accuracy_axis_begins_where_the_curves_differ(tmp_path: Path) -> None:
    for name, end in (("a", 0.95), ("b", 0.93)):
        for seed in (0, 1):
            write_run(tmp_path / name / str(seed), name, seed, {"test_accuracy": rise(end - 0.002 * seed)})
    low, caption = axis_of(summarise(load_runs([tmp_path])))
    assert 0.6 < low < 0.85  # at a quarter of the rounds: 0.93 - 0.83 exp(-1.5) = 0.75
    assert f"The axis begins at {100 * low:g} %" in caption
    bad = [*rise(0.9)[:5], *[0.1] * 20, math.nan]
    write_run(tmp_path / "c", "c", 0, {"test_accuracy": bad}, head={"status": "diverged"})
    again, caption = axis_of(summarise(load_runs([tmp_path])))
    assert again == low  # one that diverged does not stretch it
    assert "× marks" in caption


def test_no_method_that_ends_is_cut_away(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "a", 0, {"test_accuracy": rise(0.95)})
    write_run(tmp_path / "b", "b", 0, {"test_accuracy": rise(0.35)})
    low, _ = axis_of(summarise(load_runs([tmp_path])))
    assert low < 0.35


def test_a_figure_of_which_more_is_better_is_shown_whole(tmp_path: Path) -> None:
    """F1 ends at many times its start, where a loss that did so would leave the axis."""
    curve = np.linspace(0.05, 0.91, 11).tolist()
    write_run(tmp_path, "m", 0, {"test_macro_f1": curve, "test_accuracy": curve})
    drawn = by_axis(summarise(load_runs([tmp_path])), metric_of("test_macro_f1"), "round")
    assert drawn.draw(True).axes[0].get_ylim()[1] > 0.91
    assert "leaves" not in drawn.caption


def test_an_axis_that_the_curves_fill_is_not_cut(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "a", 0, {"test_accuracy": np.linspace(0.1, 0.9, 50).tolist()})
    _, caption = axis_of(summarise(load_runs([tmp_path])))
    assert "axis begins" not in caption


def test_a_curve_that_is_flat_after_its_start_keeps_some_height(tmp_path: Path) -> None:
    """As a specificity that is 100 % from round 1 on: its axis cannot begin where the curve is."""
    write_run(tmp_path / "a", "a", 0, {"test_accuracy": [0.4, *[1.0] * 5]})
    low, _ = axis_of(summarise(load_runs([tmp_path])))
    assert low == pytest.approx(0.94)  # a step of 0.01 below the target, 95 % of the end
    write_run(tmp_path / "a", "a", 0, {"test_accuracy": [0.4, *[1.0] * 5], "test_specificity": [0.4, *[1.0] * 5]})
    other = by_axis(summarise(load_runs([tmp_path])), metric_of("test_specificity"), "round")
    assert other.draw(True).axes[0].get_ylim()[0] == pytest.approx(0.99)
    write_report([tmp_path / "a"], tmp_path / "report")
    assert (tmp_path / "report" / "figures" / "test-specificity-by-round.svg").exists()


def test_figures_come_as_pdf_too_with_the_same_bytes(tmp_path: Path) -> None:
    d = ranked(plant(tmp_path, {"a": [0.9], "b": [0.8]}))[0]
    with rc_context(STYLE):
        first, second = (to_files(d.draw(True)) for _ in range(2))
    assert first == second
    assert list(first) == ["svg", "png", "pdf"]
    assert first["pdf"].startswith(b"%PDF-")
    assert b"CreationDate" not in first["pdf"]
