"""Privacy of samples and of clients in one job: each by its own noise, each with its own epsilon."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from safetensors.torch import load_file
from test_sample_privacy import CLIP, NOISE, SIZES, Q, config_of, problem, settings

import fedconcord
from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import Job, advance, plan_of, start
from fedconcord.execution.job.refusals import reasons
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import poisson
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import rng
from fedconcord.method.contract.discrete import SIGMA
from fedconcord.method.wrappers.privacy import with_privacy
from fedconcord.method.wrappers.samples import with_sample_privacy
from fedconcord.study.settings.job import build
from fedconcord.study.settings.privacy import budget_of, privacy_note
from fedconcord.support.errors import UserError

SEED, BOUND = 5, 0.05
BOTH: dict[str, Any] = {"privacy.client_clip": BOUND, "privacy.client_noise": 2.0}


def job(engine: Any = None, client_noise: float = 2.0) -> Job:
    inner = with_sample_privacy(METHODS["fedavg"](weights="uniform"), CLIP, NOISE, Q)
    both = with_privacy(inner, BOUND, client_noise, "central", len(SIZES))
    return Job(problem(), both, Schedule(SEED, len(SIZES), 0.1, batch_size=poisson(Q)), engine=engine or Serial())


def test_a_round_is_noisy_steps_whose_moves_are_clipped_and_added_with_noise() -> None:
    """By hand: each client's move of its noisy steps, clipped as a whole; their mean; the server's own noise over S."""
    one, alone = job(), job(client_noise=0.0)
    assert not list(reasons(one))
    x0, moves = one.problem.init(SEED), []
    for client, steps in enumerate(plan_of(one, start(one)).steps.tolist()):
        x, first, n = x0.clone(), sum(SIZES[:client]), SIZES[client]
        tosses = rng.generator(SEED, rng.Purpose.BATCH, 0, client).random(steps * n).reshape(steps, n)
        for k in range(steps):
            total = torch.as_tensor(rng.noise(len(x), SEED, 0, client, k + 1)) * (NOISE * CLIP / SIGMA)
            for j in np.flatnonzero(tosses[k] < Q):
                g = one.problem.objective.gradient(x, torch.tensor([first + j]))
                total = total + g * min(1.0, CLIP / float(g.norm()))
            x = x - 0.1 * total / (Q * n)
        moves.append((x - x0) * min(1.0, BOUND / float((x - x0).norm())))
    assert min(float(move.norm()) for move in moves) > 0.999 * BOUND  # the bound is met by each
    quiet = advance(alone, start(alone)).server.x
    torch.testing.assert_close(quiet, x0 + torch.stack(moves).mean(0), rtol=0, atol=1e-7)
    noisy = advance(one, start(one)).server.x
    noise = (noisy - quiet) * len(SIZES) / (2.0 * BOUND)
    assert 0.5 < float(noise.norm()) / len(noise) ** 0.5 < 2
    for engine in (Stacked(), Wire()):
        other = job(engine)
        torch.testing.assert_close(advance(other, start(other)).server.x, noisy, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["central", "local"])
def test_no_noise_is_drawn_twice(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, noise = [], rng.noise

    def kept(n: int, *key: int) -> np.ndarray:
        keys.append((*key, 0)[:4])
        return noise(n, *key)

    monkeypatch.setattr(rng, "noise", kept)
    both = with_privacy(
        with_sample_privacy(METHODS["fedavg"](weights="uniform"), CLIP, NOISE, Q), BOUND, 2.0, kind, len(SIZES)
    )
    one = Job(problem(), both, Schedule(SEED, len(SIZES), 0.1, batch_size=poisson(Q)), engine=Serial())
    advance(one, start(one))
    assert len(keys) > len(SIZES)
    assert len({*keys}) == len(keys)


@pytest.mark.parametrize("sampling", ["uniform", "poisson"])
def test_both_epsilons_are_those_of_each_alone_and_of_dp_accounting(sampling: str) -> None:
    many: dict[str, Any] = {"clients": 12, "cohort": 6, "rounds": 8, "sampling": sampling}
    config = config_of(**many, **BOTH)
    of_client = {"privacy.unit": "client", "privacy.noise": 2.0, "local.batch_size": 20}
    both, alone, client = budget_of(config), budget_of(config_of(**many)), budget_of(config_of(**many, **of_client))
    assert both is not None
    assert alone is not None
    assert client is not None
    assert both.spending == alone.spending
    assert both.of_client == client.spending
    gaussian: Any = dp_event.GaussianDpEvent(2.0)
    event = dp_event.PoissonSampledDpEvent(0.5, gaussian) if sampling == "poisson" else gaussian
    times = 8 if client.spending.most is None else client.spending.most[-1]
    by_hand = pld_privacy_accountant.PLDAccountant(value_discretization_interval=1e-3).compose(event, times)
    assert client.spending.epsilon(8) == pytest.approx(by_hand.get_epsilon(1e-5), rel=1e-3)
    shown = f"for a sample, and epsilon {client.spending.epsilon(8):.4g} for a client, after 8 rounds"
    assert shown in str(privacy_note(config))
    protection = build(config).algorithm.facts.protection
    assert protection is not None
    assert (protection.clip, protection.noise, protection.kind) == (BOUND, 2.0, "central")


def test_a_run_shows_both(tmp_path: Path) -> None:
    fedconcord.run(settings=settings(**BOTH), out=tmp_path / "run")
    privacy = json.loads((tmp_path / "run" / "run.json").read_text())["privacy"]
    assert privacy["unit"] == "sample"
    assert privacy["client_epsilon"] > 0
    assert "messages clipped to 0.05, noise 2 times that on the sum" in privacy["said"]
    assert f"epsilon {privacy['client_epsilon']:.4g} for a client" in privacy["said"]
    fedconcord.run(settings={**settings(**BOTH), "rounds": 1}, out=tmp_path / "parts")
    fedconcord.run(resume=tmp_path / "parts", rounds=3)
    once, again = (load_file(tmp_path / one / "model.safetensors") for one in ("run", "parts"))
    assert all(torch.equal(once[name], again[name]) for name in once)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"privacy.client_clip": None}, "give both there, or neither"),
        ({"privacy.client_noise": None}, "give both there, or neither"),
        ({"privacy.noise": 0.0}, "with its noise"),
        ({"privacy.unit": "client", "privacy.clip": None, "privacy.noise": None}, "give privacy.clip too"),
        ({"privacy.unit": "client", "local.batch_size": 20}, "give both there, or neither"),
        ({"privacy.client_noise": 1e-6}, "protects nobody"),
        ({"aggregate": "median"}, "takes the contributions of clients apart"),
        ({"method": "fednova"}, "weights size go by how many samples"),
    ],
)
def test_what_protects_no_client_is_one_sentence(more: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        fedconcord.run(settings=settings(**{**BOTH, **more}), out=tmp_path / "run")
    assert why in str(raised.value)
