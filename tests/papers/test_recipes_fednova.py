"""FedNova's recipes: calls resolve, printed numbers, verdicts; the mathematics of its figures holds exactly."""

from collections.abc import Sequence

import numpy as np
import pytest

from fedconcord.execution.job import train
from fedconcord.federation.partitions import partitions
from fedconcord.federation.partitions.mixtures import split_by_proportions
from fedconcord.study.settings import methods
from fedconcord.study.settings.job import build
from fedconcord.support import factories
from fedconcord_papers.recipes import fednova
from fedconcord_papers.recipes.recipe import Claim
from fedconcord_papers.recipes.studies import fednova_fig4, fednova_lemma1
from fedconcord_papers.recipes.values import Values, values
from recipe_jobs import resolved


def test_table_1_has_the_papers_settings() -> None:
    found = resolved(fednova.TABLE1, "paper")
    runs = {(cell, one.label): one for cell, config in found.items() for one in methods.runs(config) if one.seed == 0}
    assert len(runs) == 6 + 11
    one = runs["E2to5", "FedNova, hybrid momentum"]
    assert (one.clients, one.cohort, one.rounds, one.local.batch_size) == (16, 16, 100, 32)
    assert one.local.lr_drops == [(50, 0.1), (75, 0.1)]
    assert (one.local.lr, one.local.momentum, one.local.weight_decay) == (0.02, 0.9, 1e-4)
    assert runs["E2", "FedAvg, vanilla"].local.lr == 0.05
    assert runs["E2", "FedAvg, proximal"].algorithm["mu"] == 0.005
    assert runs["E2to5", "FedNova, proximal"].algorithm["mu"] == 0.001
    assert runs["E2to5", "FedNova, proximal"].algorithm["tau_eff"] == "tau"


def test_printed_numbers() -> None:
    printed = fednova.TABLE1.published["accuracy, %"]
    assert len(printed) == 17
    assert printed["E2", "FedAvg, vanilla"] == 60.68
    assert printed["E2", "FedNova, momentum"] == 73.32
    assert printed["E2to5", "FedNova, VR"] == printed["E2to5", "FedAvg, VR"] == 74.72
    assert printed["E2to5", "FedNova, hybrid momentum"] == 81.15


def test_the_partition_of_the_released_code_is_a_setting() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    wanted = split_by_proportions(labels, 16, np.random.RandomState(2020), 0.1, 10)
    call = resolved(fednova.TABLE1, "paper")["E2"].partition
    assert call is not None
    for seed in (0, 1):
        found = factories.build(partitions(), "partition", call, labels, 16, np.random.default_rng(seed))
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


# -- verdicts on planted values ----------------------------------------------------------------------------------------


def planted(measure: str, of: dict[tuple[str, str], float]) -> Values:
    """(cell, entry) -> a mean, three seeds around it."""
    return values((measure, *at, seed, value + 0.01 * (seed - 1)) for at, value in of.items() for seed in range(3))


def verdicts(claims: Sequence[Claim], found: Values) -> list[str]:
    return [claim.judge(found).verdict for claim in claims]


def test_the_papers_table_1_holds_in_its_own_numbers_and_not_turned_round() -> None:
    printed = {k: float(v) for k, v in fednova.TABLE1.published["accuracy, %"].items()}
    assert verdicts(fednova.TABLE1.claims, planted("accuracy, %", printed)) == ["held"] * 6
    turned = planted("accuracy, %", {k: 140 - v for k, v in printed.items()})
    assert verdicts(fednova.TABLE1.claims, turned)[:4] == ["failed"] * 4
    assert fednova.TABLE1.claims[-1].printed  # which needs VGG-11


def test_fig_2_and_5_claims() -> None:
    far = {("random", "FedAvg"): -2.2, ("random", "FedProx"): -2.3, ("random", "VRL-SGD"): 80.0}
    near = {("random", "FedNova"): -3.7}
    equal = {("equal", name): -16.0 for name in ("FedAvg", "FedProx", "VRL-SGD", "FedNova")}
    measure = fednova.DISTANCE.name
    assert verdicts(fednova.FIG2.claims, planted(measure, far | near | equal)) == ["held"] * 5
    other = planted(measure, far | {("random", "FedNova"): -2.25, ("equal", "FedAvg"): -3.0})
    assert verdicts(fednova.FIG2.claims, other)[:3] == ["in part", "in part", "failed"]
    loss = {(cell, name): 0.5 for cell in fednova.THREE for name in ("FedAvg", "FedProx")}
    found = planted(fednova.LOSS.name, loss | {(cell, "FedNova"): 0.2 for cell in fednova.THREE})
    assert verdicts(fednova.FIG5.claims, found) == ["held", "untested"]
    found = planted(fednova.LOSS.name, loss | {(cell, "FedNova"): 0.7 for cell in fednova.THREE})
    assert verdicts(fednova.FIG5.claims, found) == ["failed", "untested"]


def test_closed_forms_that_are_off_do_not_hold() -> None:
    cell = fednova_lemma1.LEMMA
    rows = [
        (fednova_lemma1.BIAS, cell, "eta 0.05", 0, 0.0),
        (fednova_lemma1.ERROR, cell, "eta 0.05", 0, 0.1),
        (fednova_lemma1.DEVIATION, cell, "eta 0.05", 0, 0.1),
        (fednova_lemma1.SMALL, cell, "eta 0.05", 0, 0.2),
        (fednova_lemma1.SMALL, cell, "eta 0.01", 0, 0.3),
    ]
    assert verdicts(fednova_lemma1.CLAIMS, values(rows)) == ["failed"] * 4
    rows = [(measure, cell, f"alpha {a}", 0, v)
            for measure, low, high in (("weight bias", 1.0, 2.0), ("slowdown", 2.0, 1.0))
            for a, v in ((0, low), (1, high)) for cell in fednova_fig4.SPREAD]  # fmt: skip
    rows += [(fednova_fig4.DIFFERENCE, cell, "closed forms", 0, 0.1) for cell in fednova_fig4.SPREAD]
    assert verdicts(fednova_fig4.CLAIMS, values(rows)) == ["failed"] * 4


# -- mathematics -------------------------------------------------------------------------------------------------------


def distances(cell: str, rounds: int) -> dict[str, np.ndarray]:
    """Distance to the optimum by round, up to where it is beyond 1e12, step sizes as in Fig. 2 in so many rounds."""
    config = resolved(fednova.FIG2, "quick")[cell]
    drops = [(rounds // 2, 0.2), (3 * rounds // 4, 0.2)]
    found = {}
    for one in methods.runs(config):
        job = build(one.model_copy(update={"local": one.local.model_copy(update={"lr_drops": drops})}))
        path = []
        for row in train(job, rounds, eval_every=1):
            assert row.metrics is not None
            path.append(row.metrics["distance"])
            if not path[-1] < 1e12:
                break
        found[one.label or ""] = np.array(path)
    return found


@pytest.mark.parametrize("rates", [(0.05,), pytest.param((0.05, 0.01, 0.002), marks=pytest.mark.slow)])
def test_lemma_1_and_the_general_closed_form(rates: tuple[float, ...]) -> None:
    found = {(c.name, c.lr): c for c in fednova_lemma1.cases(rates)}
    for c in found.values():
        assert c.error < 1e-6
        assert c.deviation < 1e-12
        assert c.bias > 1e-3
    small = [found[fednova_lemma1.LEMMA, lr].small_lr for lr in rates]
    assert small == sorted(small, reverse=True)  # eta -> 0
    assert small[-1] < 0.05 or len(rates) == 1


@pytest.mark.slow
def test_fig_2_random_steps_part_fednova_from_the_rest() -> None:
    found = distances("random", 100)
    end = {name: float(np.sqrt(np.mean(path[-9:] ** 2))) for name, path in found.items()}
    assert end["FedAvg"] > 5 * end["FedNova"]
    assert end["FedProx"] > 5 * end["FedNova"]
    assert len(found["VRL-SGD"]) < 100  # diverged


def test_fig_2_equal_steps_lose_nobody() -> None:
    found = distances("equal", 60)
    assert max(path[39] for name, path in found.items() if name != "FedProx") < 1e-14
    assert np.abs(found["FedAvg"] - found["FedNova"]).max() < 1e-14


@pytest.mark.parametrize("std", fednova_fig4.SPREAD.values())
def test_fig_4_closed_forms_are_those_of_simulated_steps(std: float) -> None:
    tau = fednova_fig4.steps(std)
    for alpha in (0.0, 0.01, 0.3, 1.0):
        assert fednova_fig4.simulated(tau, alpha) == pytest.approx(fednova_fig4.closed(tau, alpha), rel=1e-9, abs=1e-12)
    curve = [fednova_fig4.closed(tau, a) for a in np.linspace(0, 1, 21)]
    assert (np.diff([e.bias for e in curve]) < 1e-12).all()
    assert (np.diff([e.slowdown for e in curve]) > 0).all()
    assert curve[0].slowdown == pytest.approx(1)
    assert curve[0].variance == pytest.approx(1)
    assert curve[-1].bias == pytest.approx(0, abs=1e-12)
    assert curve[-1].slowdown == pytest.approx(tau.mean())
