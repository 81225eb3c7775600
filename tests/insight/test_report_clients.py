"""The report's section on single clients, against numbers worked out by hand from planted files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from test_report import flat, write_run

from fedconcord.federation.objectives import fairness
from fedconcord.federation.objectives.evaluation import Scores
from fedconcord.insight.report import load_runs, write_report
from fedconcord.insight.report.clients import section
from fedconcord.study.statistics.summary import summarise
from fedconcord.support.errors import UserError


def plant(folder: Path, label: str, seed: int, values: np.ndarray, after: np.ndarray | None = None) -> None:
    """A run whose clients have these accuracies, written by the program's own hand."""
    samples = np.where(np.isnan(values), 0, 9)
    scores = Scores("validation", samples, {"loss": 1 - values, "accuracy": values})
    own = None if after is None else Scores("validation", samples, {"loss": 1 - after, "accuracy": after})
    about = fairness.description(20, scores, own)
    write_run(folder, label, seed, flat(0.8), head={"clients_judged": about})
    fairness.write(folder / "clients.csv", scores, own, None)


def test_the_table_and_the_figures(tmp_path: Path) -> None:
    values = np.array([*np.linspace(0.0, 0.95, 20), np.nan])
    for seed in (0, 1):
        plant(tmp_path / f"a-{seed}", "fedavg", seed, values - 0.01 * seed, np.minimum(values + 0.5, 1))
        plant(tmp_path / f"b-{seed}", "scaffold", seed, np.sqrt(values), np.sqrt(values))
        for name, low in (("a", 0.2 + 0.1 * seed), ("b", 0.5)):
            spread = fairness.Spread(0.5, 0.1, low, 0.9, 0.9 - low, low)._asdict()
            fairness.write_rounds(
                tmp_path / f"{name}-{seed}" / "fairness.csv", [{"round": r, **spread} for r in (5, 10)]
            )
    found = section(summarise(load_runs([tmp_path])))
    assert found is not None
    assert [d.name for d in found.drawings] == ["clients", "worst-decile", "personalised"]
    assert found.drawings[1].alt.endswith("at the last look: fedavg 25.00 %, scaffold 50.00 %.")
    table = found.tables[0]
    rows = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    worst = (0.0 + 0.05) / 2 - 0.01 / 2  # the mean of the worst two of 20 clients, over two seeds
    assert rows["fedavg"]["worst decile"] == f"{100 * worst:.2f} [{100 * worst - 0.5:.2f}, {100 * worst + 0.5:.2f}]"
    assert rows["scaffold"]["worst decile"] == f"{100 * np.sqrt(0.05) / 2:.2f}"
    assert rows["fedavg"]["worst decile after"] == "52.50"
    assert rows["scaffold"]["mean"] == f"{100 * np.sqrt(values[:20]).mean():.2f}"
    assert "20 clients, up to 1 without samples left out" in table.caption
    assert "which no model was trained on" in table.caption
    page = write_report([tmp_path], tmp_path / "out").read_text()
    assert "How evenly the clients are served" in page
    assert (tmp_path / "out" / "figures" / "clients.svg").exists()
    assert (tmp_path / "out" / "figures" / "personalised.png").exists()
    assert (tmp_path / "out" / "figures" / "worst-decile.svg").exists()
    with (tmp_path / "out" / "tables" / "clients.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["name"], line["seed"]) for line in lines] == [
        (name, seed) for name in ("fedavg", "scaffold") for seed in "01"
    ]
    assert float(lines[0]["gap"]) == pytest.approx(0.925 - 0.025)


def test_training_samples_are_called_so(tmp_path: Path) -> None:
    plant(tmp_path / "a", "fedavg", 0, np.linspace(0, 1, 10))
    about = json.loads((tmp_path / "a" / "run.json").read_text())
    about["clients_judged"]["split"] = "train"
    (tmp_path / "a" / "run.json").write_text(json.dumps(about))
    found = section(summarise(load_runs([tmp_path])))
    assert found is not None
    assert "these figures flatter" in found.tables[0].caption
    assert [d.name for d in found.drawings] == ["clients"]


def test_runs_that_cannot_be_compared_have_no_section(tmp_path: Path) -> None:
    write_run(tmp_path / "old", "fedavg", 0, flat(0.8))
    assert section(summarise(load_runs([tmp_path]))) is None
    plant(tmp_path / "a", "scaffold", 0, np.linspace(0, 1, 10))
    (tmp_path / "a" / "clients.csv").unlink()
    with pytest.raises(UserError, match=r"cannot read .*clients\.csv"):
        section(summarise(load_runs([tmp_path])))


def test_a_run_that_stopped_early_does_not_shorten_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, flat(0.6, 20))
    why = "stopped early at round 8: validation_loss has not improved in 4 evaluations"
    write_run(tmp_path / "b", "scaffold", 0, flat(0.7, 8), head={"stopped": why})
    s = summarise(load_runs([tmp_path]))
    assert s.horizon == 20
    assert {row.name: row.final.mean for row in s.rows} == {"fedavg": 0.6, "scaffold": pytest.approx(0.7)}
    assert [w for w in s.warnings if "stopped early at round 8" in w]
    assert not [w for w in s.warnings if "differ in length" in w]
