"""FedVRA's recipes resolve at every size, judge planted results rightly, print the paper's numbers; Fig. 1 is exact."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from fedconcord_papers.recipes import fedvra
from fedconcord_papers.recipes.recipe import Comparison, Recipe, SizeName
from fedconcord_papers.recipes.studies import fedvra_fig1
from fedconcord_papers.recipes.values import Values, values
from recipe_jobs import SIZES, configs, planted

COMPARISONS = [recipe for recipe in fedvra.RECIPES if isinstance(recipe.experiment, Comparison)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("recipe", COMPARISONS, ids=lambda recipe: recipe.name)
def test_every_call_of_every_size_resolves(recipe: Recipe, size: SizeName) -> None:
    for config in configs(recipe, size):
        assert config.eval.clients is False
        assert config.validation is None
        assert config.local.epochs in (2, "uniform(1,5)")
        if size == "paper":
            local = config.local
            assert (config.clients, config.cohort, config.rounds, local.batch_size, local.lr) == (
                100,
                10,
                500,
                50,
                0.01,
            )


def test_the_papers_network_is_convolutional_and_the_desks_is_a_stand_in() -> None:
    for recipe in (fedvra.TABLE4, fedvra.FIG2):
        models = {size: {c.model for c in configs(recipe, size) if c.data == "mnist"} for size in ("desk", "paper")}
        assert models == {"desk": {"2nn"}, "paper": {"cnn1"}}
    assert "calibration" in fedvra.TABLE4.silent


def test_the_semi_supervised_jobs_hide_nine_labels_of_ten() -> None:
    for config in configs(fedvra.FIG4, "paper"):
        assert config.labels == "labelled(fraction=0.1)"
        assert config.task == "semi"


def test_published_numbers_are_the_papers() -> None:
    three, four = fedvra.TABLE3.published, fedvra.TABLE4.published
    assert three["accuracy, %"]["noniid", "SCAFFOLD"] == 55.49
    assert three["accuracy, %"]["iid", "FedVRA"] == 75.47
    assert three["rounds to 60 %"]["noniid_hlu", "SCAFFOLD"] == 481
    assert three["rounds to 60 %"]["noniid", "FedProx"] == 459
    assert three["rounds to 70 %"]["iid", "FedAvg"] == "> 500"
    assert four["accuracy, %"]["noniid_hlu", "FedDyn"] == 97.86
    assert four["rounds to 95 %"]["noniid", "FedProx"] == 393
    assert four["rounds to 97 %"]["noniid_hlu", "FedVRA"] == 87
    assert [sum(map(len, table.values())) for table in (three, four)] == [60, 40]


@pytest.mark.parametrize("recipe", [fedvra.TABLE3, fedvra.TABLE4], ids=lambda recipe: recipe.name)
def test_the_printed_table_bears_out_its_claims(recipe: Recipe) -> None:
    """But for what it does not print, rounds to 40 %."""
    found = values(
        (measure, cell, entry, seed, math.inf if isinstance(value, str) else value)
        for measure, table in recipe.published.items()
        for (cell, entry), value in table.items()
        for seed in range(2)
    )
    for claim in recipe.claims:
        expected = "untested" if "40 %" in claim.says else "held"
        assert claim.judge(found).verdict == expected, claim.says


def test_claims_on_planted_results() -> None:
    measure, cells = fedvra.ACCURACY.name, fedvra.CELLS_4
    good = dict.fromkeys(fedvra.OTHERS, 95.0) | {"FedVRA": 98.0}
    claim = fedvra.TABLE4.claims[0]
    assert claim.judge(planted(measure, cells, good)).verdict == "held"
    assert claim.judge(planted(measure, cells, good | {"FedVRA": 90.0})).verdict == "failed"
    assert claim.judge(planted(measure, cells, good | {"FedDyn": 99.0})).verdict == "in part"
    assert claim.judge(Values(())).verdict == "untested"
    near, printed = fedvra.TABLE4.claims[6], fedvra.TABLE4.published[measure]
    rows = [(measure, *place, seed, float(value)) for place, value in printed.items() for seed in range(2)]
    assert near.judge(values(rows)).verdict == "held"
    assert near.judge(values((*row[:4], row[4] - 2.0) for row in rows)).verdict == "failed"


def test_faster_is_by_a_factor_and_paired() -> None:
    claim = fedvra.TABLE3.claims[1]  # two thirds of FedDyn's rounds
    rounds = "rounds to 50 %"
    for ours, verdict in ((50.0, "held"), (70.0, "failed"), (math.inf, "failed")):
        assert claim.judge(planted(rounds, fedvra.CELLS_3, {"FedVRA": ours, "FedDyn": 100.0})).verdict == verdict
    assert claim.judge(planted(rounds, fedvra.CELLS_3, {"FedVRA": 50.0, "FedDyn": math.inf})).verdict == "held"


def test_fig_1_in_float64(tmp_path: Path) -> None:
    said: list[str] = []
    found = fedvra_fig1.run(tmp_path, "quick", {"rounds": 6}, said.append)
    assert {(tmp_path / f"fedvra_fig1.{kind}").exists() for kind in ("png", "svg", "csv")} == {True}
    apart = {row.entry: row.value for row in found.rows if row.measure == fedvra_fig1.APART}
    assert all(apart[name] < 1e-12 for name in fedvra_fig1.EXACT)
    assert all(apart[name] > 1e-3 for name in fedvra_fig1.CONTROLS)
    assert all(not apart[name] < 1e-1 for name in fedvra_fig1.LIMITS)
    falling = [fedvra_fig1.apart_after_a_round(gamma) for gamma in fedvra_fig1.GAMMAS]
    for first, second, third in zip(*falling, strict=True):
        assert third < second / 9 < first / 81  # proportional to gamma
    verdicts = [claim.judge(found).verdict for claim in fedvra.FIG1.claims]
    assert verdicts == ["held"] * 5 + ["failed", "held"]
    worse = values((*row[:4], 1e-6 if row.entry == "FedNova" else row.value) for row in found.rows)
    assert fedvra.FIG1.claims[0].judge(worse).verdict == "in part"
    assert {row["clients"] for row in fedvra_fig1.resolve("quick", {"rounds": 6})} == {20}


@pytest.mark.slow
def test_runs_go_where_the_device_says() -> None:
    """The option reaches the runs' settings; which devices there are, `engine.device` knows."""
    words = [sys.executable, "-m", "fedconcord", "reproduce", "fedvra_table4", "--dry-run", "--device", "nowhere"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2
    assert "engine.device" in ended.stderr
    assert "nowhere" in ended.stderr
