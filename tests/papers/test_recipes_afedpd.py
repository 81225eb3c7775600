"""A-FedPD's recipes resolve at every size, judge planted results rightly and print the slides' numbers."""

import pytest
import torch

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm
from fedconcord_papers.recipes import afedpd
from fedconcord_papers.recipes.fedpd_partial import fedpd_partial
from fedconcord_papers.recipes.recipe import Recipe, SizeName
from fedconcord_papers.recipes.values import Values, values
from recipe_jobs import SIZES, configs, planted


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("recipe", afedpd.RECIPES, ids=lambda recipe: recipe.name)
def test_every_call_of_every_size_resolves(recipe: Recipe, size: SizeName) -> None:
    for config in configs(recipe, size):
        assert config.eval.clients is False
        assert config.validation is None
        plain = " plain " in (config.label or "")
        clipped = not plain and not (size == "desk" and config.data == "mnist")
        assert config.local.clip_direction == (10.0 if clipped else None)
        assert config.local.lr_decay == (1.0 if plain else 0.998)
        assert config.local.weight_decay == (0.0 if plain else 1e-3)


def test_paper_settings() -> None:
    job = configs(afedpd.P1, "paper")[0]
    assert (job.clients, job.cohort, job.local.steps, job.rounds, job.model) == (100, 10, 50, 800, "lenet")
    fixed_work = [cell.settings for cell in afedpd.FIG2_CELLS if cell.name.startswith("fixed")]
    assert [(own["local.steps"], own["rounds"]) for own in fixed_work] == [
        (10, 4000), (20, 2000), (100, 400), (200, 200)
    ]  # fmt: skip
    assert {config.cohort for config in configs(afedpd.P4, "paper")} == {10, 5, 2}


def test_published_numbers_are_the_slides() -> None:
    lenet, resnet = (recipe.published[afedpd.BEST.name] for recipe in (afedpd.P1, afedpd.P2))
    assert len(lenet) == len(resnet) == 48
    assert lenet["cifar10_iid", "FedAvg"] == 81.87
    assert lenet["cifar100_dir01", "A-FedPDSAM"] == 53.15
    assert lenet["cifar10_dir1", "FedSpeed"] == 85.11
    assert resnet["cifar10_dir01", "FedCM"] == 76.93
    assert resnet["cifar100_iid", "FedDyn"] == "-"
    assert resnet["cifar10_iid", "A-FedPDSAM"] == 87.44


@pytest.mark.parametrize("recipe", [afedpd.P1, afedpd.P2], ids=lambda recipe: recipe.name)
def test_the_printed_table_bears_out_its_claims(recipe: Recipe) -> None:
    printed = recipe.published[afedpd.BEST.name]
    found = values(
        (afedpd.BEST.name, cell, entry, seed, float("nan") if value == "-" else float(value))
        for (cell, entry), value in printed.items()
        for seed in range(2)
    )
    assert {claim.says: claim.judge(found).verdict for claim in recipe.claims} == {
        claim.says: "held" for claim in recipe.claims
    }


def test_claims_on_the_drift() -> None:
    steady, swinging = {"A-FedPD": 0.5, "FedDyn": 1.0}, {"A-FedPD": 2.0, "FedDyn": 1.0}
    claim = afedpd.P4.claims[2]
    assert claim.judge(planted(afedpd.SWING.name, afedpd.DRIFT, steady)).verdict == "held"
    assert claim.judge(planted(afedpd.SWING.name, afedpd.DRIFT, swinging)).verdict == "failed"
    assert claim.judge(Values(())).verdict == "untested"
    fewer, fedpd = afedpd.P4.claims[4], afedpd.PARTIAL.name
    rising = {name: planted(afedpd.SWING.name, (name,), {fedpd: s}).rows for s, name in enumerate(afedpd.DRIFT)}
    assert fewer.judge(Values(sum(rising.values(), ()))).verdict == "held"


def path(algorithm: Algorithm, cohort: int, engine: Serial | Stacked, rounds: int) -> torch.Tensor:
    """[R, d] the server's model after each round on 20 quadratics, 5 full gradient steps."""
    problem = quadratics(3, 20, torch.float64, torch.device("cpu"), dim=6, blocks=3, condition=4.0)
    job = Job(problem, algorithm, Schedule(2, cohort, 0.1, fixed(5), "steps"), engine=engine)
    state, models = start(job), []
    for _ in range(rounds):
        state = advance(job, state)
        models.append(state.server.x)
    return torch.stack(models)


@pytest.mark.parametrize("engine", [Serial(), Stacked(None)])
def test_fedpd_of_active_duals_is_feddyn_where_all_take_part(engine: Serial | Stacked) -> None:
    found, wanted = path(fedpd_partial(0.5), 20, engine, 8), path(METHODS["feddyn"](0.5), 20, engine, 8)
    assert float((found - wanted).norm(dim=-1).max()) < 1e-12 * float(wanted.norm(dim=-1).max())
    apart = path(fedpd_partial(0.5), 5, engine, 8) - path(METHODS["feddyn"](0.5), 5, engine, 8)
    assert float(apart.norm(dim=-1).max()) > 0.1


def test_duals_of_the_active_alone_keep_fedpd_from_the_optimum() -> None:
    """With full gradients FedDyn comes to rest at the optimum, FedPD of active duals does not."""
    problem = quadratics(3, 20, torch.float64, torch.device("cpu"), dim=6, blocks=3, condition=4.0)
    best = torch.as_tensor(problem.optimum([1 / 20] * 20))
    partial, feddyn = (
        float((path(algorithm, 5, Stacked(None), 120)[-20:] - best).norm(dim=-1).max())
        for algorithm in (fedpd_partial(1.0), METHODS["feddyn"](1.0))
    )
    assert feddyn < 0.01
    assert partial > 0.3
