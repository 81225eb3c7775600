"""What is mathematics in recipes holds exactly."""

import numpy as np
import pytest

from fedconcord.recipes import fednova_fig2, fednova_fig4, fednova_lemma1


def test_lemma_1_and_the_general_closed_form() -> None:
    found = {(c.name, c.lr): c for c in fednova_lemma1.cases(quick=True)}
    for c in found.values():
        assert c.error < 1e-6
        assert c.deviation < 1e-12
        assert c.bias > 1e-3
    small = [found["FedAvg, H = I", lr].small_lr for lr in (0.05, 0.01, 0.002)]
    assert small[0] > small[1] > small[2]  # eta -> 0
    assert small[2] < 0.05


def test_fig_2_random_steps_part_fednova_from_the_rest() -> None:
    found = fednova_fig2.runs(fednova_fig2.WORK["b"], 160)
    end = {name: fednova_fig2.tail(t) for name, t in found.items()}
    assert end["FedAvg"] > 10 * end["FedNova"]
    assert end["FedProx"] > 10 * end["FedNova"]
    assert len(found["VRL-SGD"].value) < 160  # diverged


def test_fig_2_equal_steps_lose_nobody() -> None:
    found = fednova_fig2.runs(fednova_fig2.WORK["a"], 80)
    assert max(t.value[39] for name, t in found.items() if name != "FedProx") < 1e-14
    assert np.abs(found["FedAvg"].value - found["FedNova"].value).max() < 1e-14


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
