"""Whether federation is worth it: by the metric that ranks, on samples that were set apart, of sites that have enough
of them; beside what needs no training.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedconcord
from fedconcord.insight.report.baselines import section
from fedconcord.insight.report.worth import Worth, client_sentences, sentences, worth
from fedconcord.interface import cli
from fedconcord.study.statistics.load import load_runs
from fedconcord.study.statistics.stats import interval
from fedconcord.study.statistics.summary import Summary, summarise

SITES = {"Aarau": 150, "Bern": 120, "Chur": 20, "Davos": 130}
JOB: dict[str, Any] = {
    "model": "logreg", "rounds": 4, "lr": 0.3, "client_column": "site", "label_column": "ill",
    "baselines": ["local", "pooled"], "metrics": ["auroc", "accuracy", "sensitivity(0.2)"],
}  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sites, one small; 12 of 100 rows are ill."""
    draw = np.random.Generator(np.random.Philox(5))
    path = tmp_path_factory.mktemp("table") / "sites.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "u", "v", "ill"])
        for site, n in SITES.items():
            x = draw.normal(size=(n, 2))
            order = np.argsort(x.sum(1) + draw.normal(size=n))
            ill = np.zeros(n, int)
            ill[order[-max(2, round(0.12 * n)) :]] = 1
            writer.writerows(
                [site, f"{u:.3f}", f"{v:.3f}", "yes" if y else "no"] for (u, v), y in zip(x, ill, strict=True)
            )
    return path


@pytest.fixture(scope="module")
def compared(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "out"
    fedconcord.compare(["fedavg"], data=table, seeds=[0, 1, 2, 3, 4], out=out, **JOB)
    return out


def read(folder: Path) -> tuple[Summary, Worth]:
    summary = summarise(load_runs([folder]))
    found = worth(summary)
    assert found is not None
    return summary, found


def cells(folder: Path, column: str) -> np.ndarray:
    """[seeds, sites] of clients.csv."""
    files = sorted(folder.glob("seed-*/clients.csv"))
    rows = [[row[column] for row in csv.DictReader(path.read_text().splitlines())] for path in files]
    return np.array([[float(cell or "nan") for cell in line] for line in rows])


def test_it_goes_by_the_metric_that_ranks_and_by_sites_with_enough_rows(compared: Path) -> None:
    _, w = read(compared)
    assert w.metric.column == "auroc"
    assert w.few == ("Chur",)
    at = {name: cells(compared / name, "auroc") for name in ("fedavg", "local", "pooled")}
    enough = [list(SITES).index(name) for name in ("Aarau", "Bern", "Davos")]
    means = {name: np.nanmean(values[:, enough], 1) for name, values in at.items()}
    assert w.alone is not None
    assert (w.methods[0].mean, w.alone.mean) == pytest.approx((means["fedavg"].mean(), means["local"].mean()))
    gain = at["fedavg"][:, enough] - at["local"][:, enough]
    assert w.gains[0].mean.mean == pytest.approx(np.nanmean(gain, 1).mean())
    assert w.gains[0].units == np.isfinite(gain).sum() <= 15
    assert w.gains[0].mean[:3] == pytest.approx(
        interval(np.nanmean(gain, 1))[:3]
    )  # over seeds: sites are no draw of others
    said = " ".join(sentences(w))
    assert "Mean AUROC over sites: alone" in said
    assert "over 5 seeds, each with its own split of the same sites' samples; it says nothing of other sites" in said
    assert "Left out, as fewer than 10 samples are set apart there: Chur (3)." in said
    assert not any(line.startswith("Chur") for line in client_sentences(w))
    assert len(client_sentences(w)) == 3


def test_every_metric_has_the_baselines_by_site_too(compared: Path) -> None:
    summary, _ = read(compared)
    found = section(summary)
    assert found is not None
    first, *others = (one for one in found.tables if one.title)
    assert first.header == ("model", "AUROC", "loss", "accuracy", "sensitivity at 0.2")
    assert [row[0] for row in first.rows] == ["local", "fedavg", "pooled"]
    assert [one.title for one in others] == ["Loss by site", "Accuracy by site", "Sensitivity at 0.2 by site"]
    bern = next(row for row in others[1].rows if row[0] == "Bern")
    assert others[1].header == ("site", "samples", "local", "fedavg", "pooled")
    for cell, name in zip(bern[2:], ("local", "fedavg", "pooled"), strict=True):
        assert cell == f"{100 * cells(compared / name, 'accuracy')[:, 1].mean():.2f} %"
    assert "Sensitivity at 0.2 by site" in (compared / "report.html").read_text()


def test_the_commonest_answer_stands_beside_accuracy(
    table: Path, tmp_path: Path, compared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    share = summarise(load_runs([compared])).runs[0].head.majority
    assert share is not None
    assert share[0] == "no"
    assert 0.86 < share[1] < 0.90
    page = (compared / "report.html").read_text().replace("\u00a0", " ")
    assert f"Always answering “no” is right for {100 * share[1]:.1f} %" in page
    words = ["compare", "--data", str(table), "--client-column", "site", "--label-column", "ill", "--rounds", "2"]
    words += ["--methods", "fedavg", "--baselines", "local", "--seeds", "0,1", "--out", str(tmp_path / "o")]
    assert cli.call(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Mean accuracy over sites: alone" in said
    assert re.search(r"; always answering no (8[6-9]|90)\.\d %\.", said)
    assert "There are too few seeds for an interval over seeds (2)." in said


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"validation": None},
            "clients set no samples apart, and on samples that it trained on a client alone looks too",
        ),
        pytest.param(
            {"validation": 0.05},
            "no site sets 10 samples or more apart; set validation higher, or add samples",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_there_is_no_verdict_on_rows_that_were_trained_on_or_on_a_few(
    changes: dict[str, Any], why: str, table: Path, tmp_path: Path
) -> None:
    fedconcord.compare(["fedavg"], data=table, seeds=[0, 1], out=tmp_path / "out", settings=changes, **JOB)
    _, w = read(tmp_path / "out")
    (said,) = sentences(w)
    assert said.startswith(f"Whether federation is worth it is not said: {why}")
    assert client_sentences(w) == ()


def within(outputs: Any, targets: Any) -> float:
    """A metric of one's own, of which more is better, as its name does not say."""
    return float((outputs.argmax(-1) == targets).double().mean())


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 20 clients six take part, so that the others are known under the federated and the pooled model alone."""
    out = tmp_path_factory.mktemp("few") / "out"
    fedconcord.compare(
        ["fedavg"], data="digits", clients=20, cohort=2, rounds=3, lr=0.3, model="logreg", seeds=[0], out=out,
        baselines=["local", "pooled"], metrics=[within, "accuracy"], settings={"validation": 0.2, "eval.clients": True},
    )  # fmt: skip
    return out


def test_means_are_of_the_clients_that_the_gain_is_of(few: Path) -> None:
    _, w = read(few)
    assert w.alone is not None
    assert w.pooled is not None
    took_part = ~np.isnan(cells(few / "local", w.metric.column)[0])
    assert 0 < took_part.sum() < 20
    for model in (w.alone, *w.methods, w.pooled):
        assert model.mean == pytest.approx(cells(few / model.name, w.metric.column)[0][took_part].mean())
    assert w.methods[0].mean - w.alone.mean == pytest.approx(w.gains[0].mean.mean)
    assert "over clients that took part: alone" in sentences(w)[0]


def test_a_metric_of_ones_own_is_read_as_it_says_of_itself(few: Path) -> None:
    summary, w = read(few)
    assert (w.metric.column, w.metric.higher) == ("within", True)
    better = cells(few / "fedavg", "within")[0] > cells(few / "local", "within")[0]
    assert w.gains[0].more == better.sum()
    (run,) = (run for m in summary.methods for run in m.runs)
    judged = run.head.clients_judged
    assert judged is not None
    assert judged["metric"] == "accuracy" or judged["worst_decile"] <= judged["best_decile"]
    spread = judged if judged["metric"] == "within" else judged["others"]["within"]
    assert spread["worst_decile"] < spread["best_decile"]
