"""The report: numbers against independent computations, what may be said in words, a page that stands alone."""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats  # type: ignore[import-untyped]

from fedconcord.insight.report import load_runs, write_report
from fedconcord.insight.report.again import settings, to_toml, whole_job
from fedconcord.insight.report.curves import curve, log_floor
from fedconcord.insight.report.figures.heatmap import partition_order
from fedconcord.insight.report.figures.progress import by_axis
from fedconcord.insight.report.figures.style import look
from fedconcord.insight.report.method_tables import reach_cell, table, to_csv, to_latex, to_markdown
from fedconcord.insight.report.words import words
from fedconcord.study.statistics.load import Run
from fedconcord.study.statistics.stats import ALPHA, first_at, holm, interval, paired, tail_mean, verdict
from fedconcord.study.statistics.summary import Summary, summarise
from fedconcord.support.errors import UserError

T975 = {1: 12.706204736, 2: 4.302652730, 3: 3.182446305, 4: 2.776445105}  # printed tables of Student's t

# -- planted results -----------------------------------------------------------------------------------------------


def write_run(
    folder: Path,
    label: str,
    seed: int,
    series: Mapping[str, Sequence[float]],
    *,
    every: int = 1,
    head: Mapping[str, Any] | None = None,
    counts: np.ndarray[Any, Any] | None = None,
    seconds: Sequence[float] = (0.2, 0.1, 0.3),
) -> Path:
    """A result folder as run.py writes it, with given evaluation series; costs a round: 100 up, 300 down, 7 steps."""
    folder.mkdir(parents=True, exist_ok=True)
    n = len(next(iter(series.values())))
    rounds = [i * every for i in range(n)]
    names = [*series, "bytes_up", "bytes_down", "gradient_steps"]
    columns = [*series.values(), [100 * r for r in rounds], [300 * r for r in rounds], [7 * r for r in rounds]]
    lines = [",".join(["round", *names])]
    lines += [",".join([str(r), *(repr(float(c[i])) for c in columns)]) for i, r in enumerate(rounds)]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    times = "".join(f"{i + 1},{s}\n" for i, s in enumerate(seconds))
    (folder / "timing.csv").write_text("round,seconds\n" + times)
    if counts is not None:
        rows = [",".join(map(str, [i, *row])) for i, row in enumerate(counts.tolist())]
        classes = ",".join(["client", *map(str, range(counts.shape[1]))])
        (folder / "partition.csv").write_text("\n".join([classes, *rows]) + "\n")
    method = label.split("(")[0]
    content = {
        "format": 1, "method": method, "label": label, "seed": seed, "status": "complete",
        "rounds": rounds[-1], "rounds_done": rounds[-1], "models": ["server"], "dim": 54610, "clients": 60, "cohort": 8,
        "target": None, "data": "digits", "model": "2nn", "partition": "dirichlet(0.1)",
        "config": {"method": method, "algorithm": {}, "label": label, "seed": seed, "rounds": rounds[-1],
                   "local": {"epochs": 1, "lr": 0.1}, "data_dir": None},
        "versions": {"fedconcord": "0.1.0", "torch": "2.13.0"},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(content | dict(head or {})))
    return folder


def flat(final: float, n: int = 20) -> dict[str, list[float]]:
    """A run that starts at 0.1 and stands at one accuracy from round 1 on."""
    return {"test_accuracy": [0.1, *[final] * n], "train_loss": [2.3, *[1 - final] * n]}


def plant(root: Path, finals: Mapping[str, Sequence[float]], n: int = 20) -> Summary:
    for label, values in finals.items():
        for seed, value in enumerate(values):
            write_run(root / label / f"seed-{seed}", label, seed, flat(value, n))
    return summarise(load_runs([root]))


def realistic(root: Path, methods: int = 8, seeds: int = 3, rounds: int = 150) -> Path:
    """A comparison as it looks in life: noisy curves, one long name, a second model, one run diverged, one stopped."""
    rng = np.random.default_rng(5)
    t = np.arange(rounds + 1)
    long = "fedvra(a=inverse-steps, d=0.5, gamma=adaptive-per-client, option=II)"
    names = ["fedavg", "fedprox(mu=0.01)", long, "scaffold", "feddyn(alpha=0.1)", "fednova", "fedadmm", "afedpd"]
    for k, label in enumerate(names[:methods]):
        for seed in range(seeds):
            shared = np.random.default_rng([seed])
            counts = np.stack([shared.multinomial(30, p) for p in shared.dirichlet([0.1] * 10, 60)])
            rise = 1 - np.exp(-(0.02 + 0.006 * k) * t)
            acc = np.clip(0.1 + (0.78 + 0.01 * k) * rise + rng.normal(0, 0.015, t.size), 0, 1)
            series = {"test_accuracy": acc, "test_loss": 2.3 - 2 * rise, "train_loss": 2.3 * np.exp(-0.03 * t) + 0.01}
            head: dict[str, Any] = {}
            if label == "fedadmm":
                series |= {"mean:" + c: v - 0.02 for c, v in series.items()}
                head = {"models": ["server", "mean"]}
            if label == "scaffold" and seed == 1:
                for c in ("train_loss", "test_loss"):
                    series[c] = np.where(t < 50, series[c], np.where(t < 60, 10.0 ** np.minimum(t - 49, 12), np.nan))
                head = {"status": "diverged", "rounds_done": 60}
                series = {c: v[:61] for c, v in series.items()}
            if label == "fednova" and seed == 2:
                head = {"status": "interrupted", "rounds": rounds}
                series = {c: v[:80] for c, v in series.items()}
            write_run(
                root / f"{k}" / f"seed-{seed}", label, seed, {c: v.tolist() for c, v in series.items()},
                head=head, counts=counts,
            )  # fmt: skip
    return root


# -- statistics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_interval_is_the_t_interval(n: int) -> None:
    x = np.random.default_rng(n).normal(3.0, 2.0, n)
    got = interval(x)
    half = T975[n - 1] * math.sqrt(((x - x.mean()) ** 2).sum() / (n - 1)) / math.sqrt(n)
    assert got.n == n
    assert got.mean == pytest.approx(x.mean())
    assert got.half == pytest.approx(half, rel=1e-8)
    assert (got.low, got.high) == pytest.approx(scipy.stats.t.interval(0.95, n - 1, x.mean(), scipy.stats.sem(x)))


def test_interval_of_one_value_has_no_bounds() -> None:
    assert interval([0.7])[0] == 0.7
    assert math.isnan(interval([0.7]).low)
    assert math.isnan(interval([]).mean)


def test_paired_is_the_paired_t_test_over_shared_seeds() -> None:
    a, b = {0: 0.91, 1: 0.95, 2: 0.93, 9: 0.1}, {0: 0.90, 1: 0.91, 2: 0.92, 4: 0.99}
    x, y = [0.91, 0.95, 0.93], [0.90, 0.91, 0.92]
    diff, p = paired(a, b)
    expected = scipy.stats.ttest_rel(x, y)
    assert p == pytest.approx(expected.pvalue)
    assert diff.mean == pytest.approx(0.02)
    assert (diff.low, diff.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}).p == 1.0
    assert paired({0: 2.0, 1: 3.0}, {0: 1.0, 1: 2.0}).p == 0.5  # signs that agree by chance, as shares of a test do
    assert paired({0: 0.91, 1: 0.92, 2: 0.89}, {0: 0.9, 1: 0.91, 2: 0.88}).p == 0.25
    assert paired(dict.fromkeys(range(5), 2.0), dict.fromkeys(range(5), 1.0)).p == 0.0


@pytest.mark.parametrize(("methods", "seeds"), [(2, 3), (10, 5)])
def test_the_best_method_is_among_those_that_are_named(methods: int, seeds: int) -> None:
    """Of methods that are alike each is the best one, and is left out in 5 % of comparisons at most.

    Another may be, as docs/report.md says.
    """
    draw, missing = np.random.default_rng(0), 0
    for _ in range(1000):
        values = draw.normal(0.9, 0.01, (methods, seeds))
        missing += "0" not in verdict({str(k): dict(enumerate(v)) for k, v in enumerate(values)}, [], True, True).front
    assert missing <= scipy.stats.binom.ppf(0.999, 1000, ALPHA)


def test_equal_differences_of_few_seeds_make_no_method_best() -> None:
    """Accuracies are multiples of 1 / the number of test samples, so that equal differences come by chance."""
    draw, best = np.random.default_rng(0), 0
    for _ in range(1000):
        values = draw.binomial(50, 0.9, (2, 2)) / 50
        best += verdict({str(k): dict(enumerate(v)) for k, v in enumerate(values)}, [], True, True).kind == "best"
    assert best <= scipy.stats.binom.ppf(0.999, 1000, ALPHA)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([0.02, 0.02, 0.02]) == pytest.approx([0.06] * 3)


def test_final_value_and_first_crossing() -> None:
    rounds, values = np.arange(0, 9, dtype=float), np.array([9.0, 1, 2, 3, 4, 5, 6, 7, 8])
    assert tail_mean(rounds, values, 8, 5) == 6.0
    assert tail_mean(rounds, values, 5, 5) == 3.0
    assert tail_mean(rounds, values, 2, 5) == 1.5  # the start is not part of a final value
    assert tail_mean(rounds, values, 0, 5) == 9.0  # unless there is nothing else
    assert math.isnan(tail_mean(rounds, np.where(rounds == 7, np.nan, values), 8, 5))
    assert first_at(np.array([0.1, np.nan, 0.9, 0.5, 0.95]), 0.9, True) == 2
    assert first_at(np.array([5.0, 1.0, 0.1]), 1.0, False) == 1
    assert first_at(np.array([0.1, 0.2]), 0.9, True) is None


# -- what is said --------------------------------------------------------------------------------------------------


def said(s: Summary) -> str:
    return re.sub(r"<[^>]+>", "", " ".join(words(s)))


def test_a_separable_winner_is_named_with_its_lead(tmp_path: Path) -> None:
    s = plant(tmp_path, {"good": [0.95, 0.93, 0.94], "fair": [0.90, 0.881, 0.89], "poor": [0.7, 0.685, 0.69]})
    assert s.verdict.kind == "best"
    assert s.verdict.top == "good"
    text = said(s)
    assert text.startswith("good is best in final test accuracy (94.00 %): ahead of every other method")
    assert "fair, by 4.97 points (4.90 to 5.00, seed by seed)" in text
    worst = 2 * scipy.stats.ttest_rel([0.95, 0.93, 0.94], [0.90, 0.881, 0.89]).pvalue  # or that over poor
    assert s.verdict.comparisons[0].p_holm <= worst
    assert "(paired t test, Holm-corrected over 2 comparisons, seeds 0, 1 and 2)" in text
    assert s.verdict.front == ("good",)


def test_what_the_data_do_not_separate_has_no_winner(tmp_path: Path) -> None:
    s = plant(tmp_path, {"up": [0.95, 0.90, 0.93], "down": [0.91, 0.94, 0.92], "poor": [0.5, 0.455, 0.482]})
    assert s.verdict.kind == "tied"
    assert set(s.verdict.front) == {"up", "down"}
    text = said(s)
    assert "is best" not in text
    assert "No single best: the data do not separate up and down" in text
    assert "up is ahead of poor." in text


def test_pairing_separates_what_unpaired_intervals_would_not(tmp_path: Path) -> None:
    s = plant(tmp_path, {"a": [0.95, 0.75, 0.85], "b": [0.94, 0.741, 0.839]})
    a, b = (next(r.final for r in s.rows if r.name == n) for n in "ab")
    assert a.low < b.mean < a.high
    assert s.verdict.kind == "best"


def test_holm_takes_back_what_one_comparison_alone_would_claim(tmp_path: Path) -> None:
    top = [0.90, 0.91, 0.92, 0.93]
    rng = np.random.default_rng(3)
    near = [v - 0.01 - e for v, e in zip(top, [0.0, 0.02, 0.004, 0.012], strict=True)]
    assert 0.0125 < scipy.stats.ttest_rel(top, near).pvalue < 0.05
    alone = plant(tmp_path / "alone", {"top": top, "near0": near})
    many = {f"near{i}": (np.array(near) + 1e-4 * rng.normal(size=4)).tolist() for i in range(4)}
    among = plant(tmp_path / "among", {"top": top, **many})
    assert alone.verdict.kind == "best"
    assert among.verdict.kind == "tied"
    assert "corrected for 4 comparisons that is not enough" in said(among)


def test_equal_methods_are_called_equal(tmp_path: Path) -> None:
    s = plant(tmp_path, {"fedavg": [0.8, 0.9], "fedprox(mu=0)": [0.8, 0.9]})
    assert "have equal values in every seed" in said(s)


def test_the_last_bits_separate_nobody(tmp_path: Path) -> None:
    """The same differences of a rounding in every seed have no spread, and are none."""
    values = {s: 0.91 + 0.01 * s for s in range(5)}
    moved = {s: v * (1 + 2e-16) for s, v in values.items()}
    assert paired(moved, values).p == paired(values, moved).p == 1.0
    assert paired({s: v + 1e-6 for s, v in values.items()}, values).p < 1e-6
    s = plant(tmp_path, {"fedavg": list(values.values()), "fedprox(mu=0)": list(moved.values())})
    assert s.verdict.kind == "tied"
    assert len(s.verdict.front) == 2


def test_an_empty_cell_is_no_divergence(tmp_path: Path) -> None:
    """A metric that the held-out samples do not define, AUROC of one class, has an empty cell in every round."""
    for label, final in (("local", 0.7), ("fedavg", 0.8)):
        for seed in range(2):
            empty = (label, seed) == ("local", 1)
            series = flat(final) | {"test_auroc": [math.nan if empty else 0.9] * 21}
            path = write_run(tmp_path / label / str(seed), label, seed, series) / "metrics.csv"
            path.write_text(path.read_text().replace("nan", ""))
    s = summarise(load_runs([tmp_path]))
    assert not any("diverged" in text for text in s.warnings)
    assert [run.diverged for m in s.methods for run in m.runs] == [False] * 4
    lost = write_run(tmp_path / "lost" / "0", "lost", 0, flat(0.7) | {"test_loss": [0.5] * 20 + [math.nan]})
    assert load_runs([lost])[0].diverged


def test_one_seed_names_no_winner(tmp_path: Path) -> None:
    s = plant(tmp_path, {"a": [0.95], "b": [0.5]})
    assert s.verdict.kind == "one seed"
    assert "no interval can be given" in said(s)
    assert "is best" not in said(s)
    assert not any(table(s, s.rows).strong)


def test_diverged_and_unfinished_runs_are_named_and_not_ranked(tmp_path: Path) -> None:
    plant(tmp_path, {"a": [0.95, 0.94, 0.951], "b": [0.5, 0.49, 0.502], "c": [0.99, 0.99, 0.99]})
    bad = {"test_accuracy": [0.1, 0.99, 0.1], "train_loss": [2.3, 9.0, math.nan]}
    write_run(tmp_path / "c" / "seed-1", "c", 1, bad, head={"status": "diverged", "rounds": 20})
    write_run(tmp_path / "b" / "seed-2", "b", 2, flat(0.5, 4), head={"status": "interrupted", "rounds": 20})
    write_run(tmp_path / "d" / "seed-0", "d", 0, flat(0.999, 3), head={"status": "running", "rounds": 20})
    s = summarise(load_runs([tmp_path]))
    assert s.horizon == 20
    assert s.verdict.top == "a"
    assert s.verdict.seeds == (0, 1)
    assert dict(s.verdict.left_out) == {"c": "1 of 3 seeds diverged", "d": "no run of it is complete"}
    notes = " ".join(s.warnings)
    assert "c, seed 1 diverged after 2 of 20 rounds" in notes
    assert "b, seed 2 was interrupted after 4 of 20 rounds" in notes
    assert "d, seed 0 was still running after 3 of 20 rounds" in notes
    c = next(r for r in s.rows if r.name == "c")
    assert (c.finished, c.final.n, c.final.mean) == (2, 2, pytest.approx(0.99))


def test_all_runs_diverged(tmp_path: Path) -> None:
    bad = {"test_accuracy": [0.1, 0.1], "train_loss": [2.3, math.inf]}
    write_run(tmp_path / "a", "a", 0, bad, head={"status": "diverged"})
    s = summarise(load_runs([tmp_path]))
    assert s.verdict.kind == "nothing"
    assert math.isnan(s.target)
    assert by_axis(s, s.loss, "round").draw(True) is not None


def test_unequal_rounds_are_compared_at_the_last_common_one(tmp_path: Path) -> None:
    for seed in (0, 1):
        rising = {"test_accuracy": [i / 100 for i in range(61)]}
        write_run(tmp_path / f"long{seed}", "long", seed, rising)
        write_run(tmp_path / f"short{seed}", "short", seed, {"test_accuracy": [0.3 + 0.01 * seed] * 41})
    s = summarise(load_runs([tmp_path]))
    assert s.horizon == 40
    assert next(r.final.mean for r in s.rows if r.name == "long") == pytest.approx(0.38)
    assert any("differ in length (40 to 60 rounds)" in w for w in s.warnings)


def test_runs_over_other_clients_are_not_ranked(tmp_path: Path) -> None:
    for label, c in (("a", [[5, 0], [0, 5]]), ("b", [[0, 5], [5, 0]])):
        for seed in (0, 1):
            value = 0.9 if label == "a" else 0.5
            write_run(tmp_path / label / str(seed), label, seed, flat(value + 0.001 * seed), counts=np.array(c))
    s = summarise(load_runs([tmp_path]))
    assert s.verdict.kind == "unpaired"
    assert "is best" not in said(s)
    assert any("the clients' data under one seed" in w for w in s.warnings)


# -- tables --------------------------------------------------------------------------------------------------------


def test_summary_numbers_against_the_files(tmp_path: Path) -> None:
    root = realistic(tmp_path / "in", methods=3)
    s = summarise(load_runs([root]))
    rows = {r["name"]: r for r in csv.DictReader(to_csv(s).splitlines())}
    assert len(rows) == 3
    series: dict[str, list[np.ndarray[Any, Any]]] = {}
    for path in sorted(root.rglob("metrics.csv")):
        label = json.loads((path.parent / "run.json").read_text())["label"]
        series.setdefault(label, []).append(np.genfromtxt(path, delimiter=",", names=True))
    best = max(np.mean([m["test_accuracy"][-5:].mean() for m in ms]) for ms in series.values())
    target = math.floor(95 * best) / 100
    assert s.target == pytest.approx(target)
    for label, ms in series.items():
        finals = [m["test_accuracy"][-5:].mean() for m in ms]
        low, high = scipy.stats.t.interval(0.95, 2, np.mean(finals), scipy.stats.sem(finals))
        row = rows[label]
        assert float(row["final_test_accuracy_mean"]) == pytest.approx(np.mean(finals), rel=1e-9)
        assert float(row["final_test_accuracy_low"]) == pytest.approx(low, rel=1e-9)
        assert float(row["final_test_accuracy_high"]) == pytest.approx(high, rel=1e-9)
        assert float(row["last_test_accuracy_mean"]) == pytest.approx(np.mean([m["test_accuracy"][-1] for m in ms]))
        assert float(row["final_train_loss_mean"]) == pytest.approx(np.mean([m["train_loss"][-5:].mean() for m in ms]))
        hits = [m["round"][m["test_accuracy"] >= target] for m in ms]
        assert int(row["reached"]) == sum(h.size > 0 for h in hits)
        assert row["rounds_to_target_by_seed"] == ";".join(f"{h[0]:g}" if h.size else ">150" for h in hits)
        if all(h.size for h in hits):
            first = np.mean([h[0] for h in hits])
            assert float(row["rounds_to_target_mean"]) == pytest.approx(first)
            assert float(row["bytes_to_target_mean"]) == pytest.approx(400 * first)
            assert float(row["gradient_steps_to_target_mean"]) == pytest.approx(7 * first)
        else:
            assert row["rounds_to_target_mean"] == ""
        assert float(row["seconds_per_round_mean"]) == pytest.approx(0.2)  # the median of 0.2, 0.1, 0.3


def test_target_not_reached_is_counted_not_averaged(tmp_path: Path) -> None:
    target = {"target": 0.9}
    for seed, value in enumerate([0.95, 0.92, 0.5]):
        write_run(tmp_path / f"a{seed}", "a", seed, flat(value), head=target)
        write_run(tmp_path / f"b{seed}", "b", seed, flat(0.4), head=target)
    s = summarise(load_runs([tmp_path]))
    a, b = (next(r for r in s.rows if r.name == n) for n in "ab")
    assert s.target_asked
    assert reach_cell(a.reach, "round") == "1, >20 (2 of 3 seeds)"
    assert reach_cell(b.reach, "round") == ">20 (0 of 3 seeds)"
    assert reach_cell(b.reach, "bytes") == "–"
    line = next(csv.DictReader(to_csv(s).splitlines()))
    assert (line["reached"], line["rounds_to_target_mean"], line["bytes_to_target_mean"]) == ("2", "", "")
    assert "90 % test accuracy is reached in some by a (2 of 3 seeds); never by b." in said(s)


def test_markdown_and_latex_hold_the_same_cells(tmp_path: Path) -> None:
    s = plant(tmp_path, {"good_one(mu=0.1)": [0.95, 0.93, 0.94], "a & b|c": [0.5, 0.481, 0.49]})
    t = table(s, s.rows)
    assert t.rows[0][1] == "94.00 [93.00, 95.00]"
    md, latex = to_markdown(t), to_latex(t)
    assert "| **good_one(mu=0.1)** | **94.00 [93.00, 95.00]** |" in md
    assert r"a & b\|c" in md
    assert r"\textbf{good\_one(mu=0.1)} & \textbf{94.00 [93.00, 95.00]}" in latex
    assert r"a \& b$|$c" in latex
    body = latex[latex.index("\\midrule") : latex.index("\\bottomrule")]
    assert all(line.replace(r"\&", "").count("&") == len(t.header) - 1 for line in body.splitlines()[1:] if "&" in line)
    assert latex.isascii()


def test_quadratics_are_ranked_on_a_log_scale(tmp_path: Path) -> None:
    ends = {"slow": [1e-3, 4e-3, 2e-3], "fast": [1e-8, 2e-8, 3e-8], "exact": [0.0, 1e-14, 1e-13]}
    for label, values in ends.items():
        for seed, v in enumerate(values):
            series = {"loss": [50.0, *[-1.0] * 9], "distance": [10.0, *[v] * 9]}
            head = {"data": "quadratics", "partition": "none", "model": "none"}
            write_run(tmp_path / label / str(seed), label, seed, series, head=head)
    s = summarise(load_runs([tmp_path]))
    assert s.primary.column == "distance"
    assert s.verdict.kind == "best"
    assert s.verdict.top == "exact"
    rows = {r.name: r.final for r in s.rows}
    logs = np.log10(ends["fast"])
    low, high = scipy.stats.t.interval(0.95, 2, logs.mean(), scipy.stats.sem(logs))
    assert rows["fast"][:3] == pytest.approx((10 ** logs.mean(), 10**low, 10**high))
    assert rows["exact"].mean == pytest.approx(1e-12)  # what is below the floor is rounding
    assert "by a factor of" in said(s)
    assert log_floor(s.runs, ["distance"]) == 1e-14
    assert log_floor(s.runs, ["loss"]) is None  # it goes below zero


def test_a_second_model_has_its_own_row(tmp_path: Path) -> None:
    for seed in range(2):
        series = flat(0.9) | {"mean:test_accuracy": [0.1, *[0.8] * 20], "mean:train_loss": [2.3, *[0.2] * 20]}
        write_run(tmp_path / str(seed), "fedadmm", seed, series, head={"models": ["server", "mean"]})
    s = summarise(load_runs([tmp_path]))
    assert [(r.model, r.final.mean) for r in s.rows] == [("server", pytest.approx(0.9))]
    assert [(r.model, r.final.mean) for r in s.second] == [("mean", pytest.approx(0.8))]
    assert s.second[0].loss is not None
    assert s.second[0].loss.mean == pytest.approx(0.2)


# -- curves --------------------------------------------------------------------------------------------------------


def runs_of(root: Path, values: Sequence[Sequence[float]], status: Sequence[str] = ()) -> list[Run]:
    for seed, v in enumerate(values):
        head = {"status": status[seed]} if status else {}
        write_run(root / str(seed), "m", seed, {"train_loss": v}, head=head)
    return load_runs([root])


def test_band_is_the_range_for_few_seeds_and_the_t_interval_for_five(tmp_path: Path) -> None:
    few = curve(runs_of(tmp_path / "few", [[1, 2], [3, 4], [8, 6]]), "train_loss", "bytes", None)
    assert few.mid.tolist() == [4, 4]
    assert few.low.tolist() == [1, 2]
    assert few.high.tolist() == [8, 6]
    assert few.x.tolist() == [0, 400]
    x = [1.0, 3.0, 8.0, 2.0, 5.0]
    many = curve(runs_of(tmp_path / "many", [[v, v] for v in x]), "train_loss", "round", None)
    half = T975[4] * np.std(x, ddof=1) / math.sqrt(5)
    assert many.low[0] == pytest.approx(np.mean(x) - half)
    assert many.high[0] == pytest.approx(np.mean(x) + half)


def test_a_diverged_run_is_drawn_alone_up_to_its_last_finite_value(tmp_path: Path) -> None:
    runs = runs_of(
        tmp_path, [[4, 3, 2, 1], [4, 5, 1e3, 1e9, math.nan], [4, 1, 0.5]], ["complete", "diverged", "interrupted"]
    )
    c = curve(runs, "train_loss", "round", None)
    assert c.mid.tolist() == [4, 2, 1.25]  # over the two that did not diverge, while both go on
    assert c.breaks == ((3.0, 1e9),)
    assert [t[1].tolist() for t in c.tails] == [[2, 1], [4, 5, 1e3, 1e9]]
    capped = curve(runs, "train_loss", "round", None, cap=100)
    assert capped.breaks == ((2.0, 1e3),)


def test_every_method_has_its_own_look() -> None:
    assert len({(k.colour, str(k.dash)) for k in map(look, range(12))}) == 12
    assert len({k.marker for k in map(look, range(12))}) == 12


def test_partition_is_sorted_by_the_most_common_class() -> None:
    counts = np.array([[1, 9, 0], [5, 0, 5], [0, 0, 0], [10, 0, 0], [0, 6, 4]], dtype=float)
    assert partition_order(counts).tolist() == [3, 1, 2, 0, 4]


# -- the page ------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a browser would fetch, every id, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
                self.loads.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            if name == "aria-label" and tag == "svg":
                self.labels.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_stands_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = write_report([realistic(tmp_path / "in")], out)
    assert path == out / "report.html"
    html = path.read_text()
    page = Page(html)
    assert all(u.startswith(("#", "data:")) for u in page.loads)
    assert not re.search(r"https?://|@import|url\((?!#)", re.sub(r"data:image/png;base64,[\w+/=\s]+", "", html))
    assert len(page.ids) == len(set(page.ids))
    references = {u[1:] for u in page.loads if u.startswith("#")} | set(re.findall(r"url\(#([^)]+)\)", html))
    assert references <= set(page.ids)
    text = re.sub(r"\s+", " ", " ".join(page.text))
    for part in ("60 clients, 8 a round", "seeds 0, 1, 2", "dirichlet(0.1)", "scaffold, seed 1 diverged after 60 of",
                 "fednova, seed 2 was interrupted", "option=II", "torch 2.13.0", "fedconcord report"):  # fmt: skip
        assert part in text, part
    assert len(page.labels) == len(list((out / "figures").glob("*.svg")))
    assert all(len(label) > 40 for label in page.labels)
    stems = [{p.stem for p in (out / "figures").glob(f"*.{suffix}")} for suffix in ("svg", "png", "pdf")]
    assert stems[0] == stems[1] == stems[2] == {
        "final", "lead", "models", "partition", "test-loss-by-round",
        *(f"{m}-by-{x}" for m in ("test-accuracy", "train-loss") for x in ("round", "bytes", "gradient-steps")),
    }  # fmt: skip
    assert {p.name for p in (out / "tables").iterdir()} == {"summary.csv", "summary.md", "summary.tex"}
    assert not list(out.rglob(".*"))  # no temporary file is left


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / "in" / str(seed), "fedavg", seed, flat(0.9 - 0.1 * seed), counts=np.eye(3, dtype=int))
    first = write_report([tmp_path / "in"], tmp_path / "out")
    before = {p.relative_to(first.parent): p.read_bytes() for p in first.parent.rglob("*") if p.is_file()}
    write_report([tmp_path / "in"], tmp_path / "out")
    assert before == {p.relative_to(first.parent): p.read_bytes() for p in first.parent.rglob("*") if p.is_file()}


def test_hostile_names_and_a_thousand_clients(tmp_path: Path) -> None:
    """Names are text, never markup or TeX; many clients and no second round are no reason to fail."""
    name = '<script>alert("$x_1^{")</script>'
    counts = np.random.default_rng(0).integers(0, 5, (1000, 12))
    counts[3] = 0
    write_run(tmp_path / "in" / "a", name, 0, {"test_accuracy": [0.5]}, counts=counts, seconds=())
    html = write_report([tmp_path / "in"], tmp_path / "out").read_text()
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert" in html
    assert Page(html).open.count("script") == 1  # the page's own


# -- loading -------------------------------------------------------------------------------------------------------


def test_runs_are_found_anywhere_below_and_once(tmp_path: Path) -> None:
    plant(tmp_path, {"a": [0.5, 0.6], "b": [0.7, 0.8]})
    assert [(r.name, r.head.seed) for r in load_runs([tmp_path])] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert len(load_runs([tmp_path / "b", tmp_path, tmp_path / "b" / "seed-1"])) == 4


def test_one_label_with_other_settings_gets_them_in_its_name(tmp_path: Path) -> None:
    for lr in (0.1, 0.01):
        for seed in (0, 1):
            config = {"local": {"lr": lr, "epochs": 1}, "seed": seed}
            write_run(tmp_path / f"{lr}-{seed}", "fedavg", seed, flat(0.9), head={"config": config})
    assert {r.name for r in load_runs([tmp_path])} == {"fedavg · lr=0.1", "fedavg · lr=0.01"}


def test_other_partitions_show_in_the_names(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, flat(0.9))
    write_run(tmp_path / "b", "fedavg", 0, flat(0.8), head={"partition": "iid"})
    runs = load_runs([tmp_path])
    assert {r.name for r in runs} == {"fedavg · dirichlet(0.1)", "fedavg · iid"}
    assert summarise(runs).verdict.kind == "unpaired"


def _break(name: str, text: str | None) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        if text is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(text)

    return act


HEADER = "round,test_accuracy,bytes_up,bytes_down,gradient_steps\n"
BROKEN: list[tuple[Callable[[Path], None], str, str]] = [
    (_break("run.json", "{"), "run.json", "cannot read"),
    (_break("run.json", '{"format": 7}'), "run.json", "its format is 7"),
    (_break("run.json", '{"format": 1, "method": "a"}'), "run.json", "label"),
    (_break("run.json", "[]"), "run.json", "it holds a list in place of a table"),
    (_break("metrics.csv", None), "metrics.csv", "missing although the run is complete"),
    (_break("metrics.csv", ""), "metrics.csv", "is empty"),
    (_break("metrics.csv", "round,loss\n0,1\n"), "metrics.csv", "no column 'bytes_up'"),
    (_break("metrics.csv", HEADER + "0,0.1,0,0\n"), "metrics.csv", "row 2 has 4 cells"),
    (_break("metrics.csv", HEADER + "0,abc,0,0,0\n"), "metrics.csv", "'abc' is not a number"),
    (_break("metrics.csv", HEADER + "1,0.1,0,0,0\n1,0.1,0,0,0\n"), "metrics.csv", "increasing"),
    (_break("metrics.csv", HEADER.replace("test_accuracy", "round")), "metrics.csv", "occurs twice"),
    (_break("metrics.csv", HEADER.replace("test_accuracy,", "")), "metrics.csv", "no evaluation column"),
    (_break("timing.csv", "round,time\n1,2\n"), "timing.csv", "no column 'seconds'"),
    (_break("partition.csv", "id,0,1\n0,1,2\n"), "partition.csv", "header must be 'client'"),
    (_break("partition.csv", "client,0,1\n0,1,-2\n"), "partition.csv", ">= 0"),
]


def test_seeds_of_other_settings_are_not_pooled(tmp_path: Path) -> None:
    """Two runs of one label that differ in lr and seed are two methods, and lr is not shared by every run."""
    for seed, lr in enumerate((0.1, 0.7)):
        config = {"method": "fedavg", "label": "fedavg", "seed": seed, "local": {"epochs": 1, "lr": lr}}
        write_run(tmp_path / str(seed), "fedavg", seed, flat(0.8 + seed / 10), head={"config": config})
    runs = load_runs([tmp_path / "0", tmp_path / "1"])
    assert [r.name for r in runs] == ["fedavg · lr=0.1", "fedavg · lr=0.7"]
    assert {row.name: (row.runs, row.final.mean) for row in summarise(runs).rows} == {
        "fedavg · lr=0.1": (1, pytest.approx(0.8)),
        "fedavg · lr=0.7": (1, pytest.approx(0.9)),
    }
    page = settings(summarise(runs), [tmp_path / "0", tmp_path / "1"], tmp_path / "page")
    shared, _, apart = page.partition("Shared by every run")[2].partition("Where the methods differ")
    assert "local.epochs" in shared
    assert "local.lr" not in shared
    assert "local.lr = 0.7" in apart


def test_where_and_how_long_a_seed_ran_does_not_make_it_another_method(tmp_path: Path) -> None:
    for seed, (rounds, chunk) in enumerate(((20, 5), (40, 10))):
        config = {"method": "fedavg", "label": "fedavg", "seed": seed, "rounds": rounds, "engine": {"chunk": chunk}}
        write_run(tmp_path / str(seed), "fedavg", seed, flat(0.8), head={"config": config})
    runs = load_runs([tmp_path])
    assert [r.name for r in runs] == ["fedavg", "fedavg"]
    page = settings(summarise(runs), [tmp_path], tmp_path / "page")
    assert "rounds = 20 or 40, engine.chunk = 5 or 10" in page


@pytest.mark.parametrize(("damage", "file", "why"), BROKEN)
def test_a_broken_file_is_one_sentence_that_names_it(
    tmp_path: Path, damage: Callable[[Path], None], file: str, why: str
) -> None:
    damage(write_run(tmp_path / "a", "a", 0, flat(0.9), counts=np.eye(2, dtype=int)))
    with pytest.raises(UserError) as e:
        load_runs([tmp_path])
    text = str(e.value)
    assert str(tmp_path / "a" / file) in text
    assert why in text
    assert "\n" not in text


def test_wrong_paths_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run\.json in or below"):
        load_runs([tmp_path])
    with pytest.raises(UserError, match="there is no folder"):
        load_runs([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="no result folder was given"):
        load_runs([])
    write_run(tmp_path / "a", "a", 0, flat(0.9))
    write_run(tmp_path / "b", "a", 0, flat(0.9))
    with pytest.raises(UserError, match="'a' with seed 0 is there twice"):
        load_runs([tmp_path])
    write_run(tmp_path / "b", "b", 0, flat(0.9), head={"data": "mnist"})
    with pytest.raises(UserError, match=r"different data \(digits, mnist\)"):
        load_runs([tmp_path])
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the report to"):
        write_report([tmp_path / "a"], tmp_path / "file")


def test_runs_without_anything_to_show(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "a", 0, flat(0.9), head={"status": "running"})
    (folder / "metrics.csv").unlink()
    with pytest.raises(UserError, match="none of the 1 runs has an evaluated round"):
        summarise(load_runs([tmp_path]))
    write_run(tmp_path / "b", "b", 0, flat(0.9))
    assert any("nothing is evaluated yet" in w for w in summarise(load_runs([tmp_path])).warnings)
    write_run(tmp_path / "b", "b", 0, {"odd": [1.0, 2.0]})
    with pytest.raises(UserError, match="no metric that ranks"):
        summarise(load_runs([tmp_path]))


# -- settings ------------------------------------------------------------------------------------------------------


def test_toml_reads_back() -> None:
    config = {
        "data": "digits", "none": None, "lr": 0.1, "n": 3, "yes": True, "quote": 'a "b" \\ c', "odd key": [1, 2],
        "local": {"epochs": "uniform(1,5)", "deep": {"x": 1e-8, "inf": math.inf}}, "empty": {},
    }  # fmt: skip
    expected = {k: v for k, v in config.items() if k != "none"}
    assert tomllib.loads(to_toml(config)) == expected


def test_settings_on_the_page_give_the_same_runs_again(tmp_path: Path) -> None:
    """The comparison's TOML resolves to the very configurations that its runs recorded."""
    from fedconcord.study.settings.methods import runs
    from fedconcord.study.settings.resolve import resolve_compare, resolve_run
    from fedconcord.study.settings.sources import from_nested

    given = {
        "methods": ["fedavg", "fedprox(mu=0.1)", "scaffold(local.lr=0.05)"], "seeds": [0, 3], "rounds": 20,
        "clients": 20, "local": {"lr": 0.2, "epochs": "uniform(1,5)"},
    }  # fmt: skip
    wanted = [c.as_dict() for c in runs(resolve_compare(from_nested(given, "test")))]
    for i, c in enumerate(wanted):
        head = {"config": c, "method": c["method"]}
        write_run(tmp_path / str(i), c["label"], c["seed"], flat(0.9), head=head)
    job = whole_job(load_runs([tmp_path]))
    assert job is not None
    again = runs(resolve_compare(from_nested(tomllib.loads(to_toml(job)), "job.toml")))
    key = lambda c: (c["seed"], c["label"])  # noqa: E731
    assert sorted((c.as_dict() for c in again), key=key) == sorted(wanted, key=key)
    one = resolve_run(from_nested(tomllib.loads(to_toml(wanted[2])), "job.toml"))
    assert one.as_dict() == wanted[2]
