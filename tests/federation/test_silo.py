"""SiloBN and FedBN: clients normalise by statistics of their own samples, and share weights, all or all others."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from test_batchnorm import SMALL, after, data, job, parts, problem, three
from torch import nn

import fedconcord
from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import evaluate, has_own_models, own_models
from fedconcord.execution.job.refusals import reasons
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.judging import at_client, pooled
from fedconcord.federation.objectives.parts import with_private


def alone(client: int) -> Supervised:
    """The client's samples and no others, normalised by all of them."""
    return Supervised(three, data(SMALL, (4,)), [parts(SMALL)[client]], dtype=torch.float64)


@pytest.mark.parametrize("client", range(len(SMALL)))
def test_a_client_normalises_by_its_own_samples(client: int) -> None:
    of = problem(norm="silo")
    x = torch.randn(of.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    mine, expected, everyones = at_client(of, client).export(x), alone(client).export(x), of.export(x)
    assert mine.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-12, atol=1e-12)
    assert any(not torch.allclose(mine[name], everyones[name], atol=1e-3) for name in mine)


def test_shared_weights_take_the_steps_that_pooled_ones_take() -> None:
    ends = [after(job("scaffold", problem(norm=norm))).server for norm in ("pooled", "silo")]
    assert torch.equal(ends[0].x, ends[1].x)
    assert torch.equal(ends[0].c, ends[1].c)


@pytest.mark.parametrize("rounds", [0, 2])
def test_every_client_is_judged_under_its_own_statistics(rounds: int) -> None:
    """Those that never took part too, as the weights are everyone's; by torch's module with what is exported."""
    this = job("fedavg", problem(norm="silo"))
    this = dataclasses.replace(this, schedule=dataclasses.replace(this.schedule, cohort=1))
    state, of = after(this, rounds), this.problem
    assert has_own_models(this)
    losses, accuracies = [], []
    for i in range(len(SMALL)):
        x = own_models(this, state)(i)
        assert x is not None
        assert torch.equal(x, state.server.x)
        model = of.build().double()
        model.load_state_dict(at_client(of, i).export(x))
        outputs = model.eval()(of.test_x[torch.arange(len(of.test_y))])
        losses.append(torch.nn.functional.cross_entropy(outputs, of.test_y).item())
        accuracies.append((outputs.argmax(1) == of.test_y).double().mean().item())
    metrics = evaluate(this, state)
    assert metrics["test_loss"] == pytest.approx(np.mean(losses), rel=1e-12)
    assert metrics["test_accuracy"] == pytest.approx(np.mean(accuracies), rel=1e-12)


@pytest.mark.parametrize("engine", [Serial(), Stacked(None)])
def test_fedbn_keeps_the_layers_weights_as_well(engine: object) -> None:
    """Which private weights make of it; the shared ones are trained by any method."""
    of = with_private(problem(norm="silo"), "1.*|4.*", 3)
    this = job("scaffold", problem(norm="silo"))
    this = dataclasses.replace(this, problem=of, engine=engine)
    state = after(this, 3)
    models = [own_models(this, state)(i) for i in range(len(SMALL))]
    trained = [i for i, one in enumerate(models) if one is not None]
    assert len(trained) > 1
    states = [at_client(of.whole, i).export(models[i]) for i in trained]
    for name in ("1.weight", "1.bias", "1.running_mean"):
        assert not torch.allclose(states[0][name], states[1][name], atol=1e-6)
    assert torch.equal(states[0]["0.weight"], states[1]["0.weight"])
    assert evaluate(this, state).keys() >= {"test_accuracy", "test_loss"}


def test_all_samples_in_one_place_are_normalised_together() -> None:
    whole = pooled(problem(norm="silo"))
    assert isinstance(whole, Supervised)
    assert at_client(whole, 0) is whole


def test_what_does_not_go_with_it_is_refused() -> None:
    silo = problem(norm="silo")
    assert any("judged in one process" in why for why in reasons(job("fedavg", silo, engine=Wire())))
    assert not [*reasons(job("fedavg", silo))]
    assert any("use norm=silo" in why for why in reasons(job("ditto", problem())))


@pytest.mark.slow
def test_a_comparison_ranks_on_what_clients_set_apart(tmp_path: Path) -> None:
    methods = ["fedavg", "fedavg(local.private='1.*',label=FedBN)"]
    settings = {
        "data": "digits",
        "partition": "shards(2)",
        "clients": 6,
        "cohort": 3,
        "rounds": 3,
        "seeds": [0],
        "batch_size": 9,
    }
    compared = fedconcord.compare(methods, model="test_silo:net", norm="silo", **settings, out=tmp_path / "run")
    assert (tmp_path / "run" / "FedBN" / "seed-0" / "models").is_dir()
    assert compared is not None


def net(shape: tuple[int, ...], classes: int) -> nn.Module:
    n = int(np.prod(shape))
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.BatchNorm1d(n),
        torch.nn.Linear(n, 16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, classes),
    )
