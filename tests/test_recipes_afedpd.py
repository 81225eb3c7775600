"""A-FedPD's recipes resolve at every size, judge planted results rightly and print the slides' numbers."""

from itertools import product

import pytest
import torch

from fedconcord import settings
from fedconcord.algorithms import METHODS
from fedconcord.basis import grammar
from fedconcord.core import Algorithm
from fedconcord.engines import Serial, Stacked
from fedconcord.federation.schedule import Schedule
from fedconcord.federation.work import fixed
from fedconcord.jobs import Job, advance, start
from fedconcord.problems import quadratics
from fedconcord.recipes import afedpd
from fedconcord.recipes.fedpd_partial import fedpd_partial
from fedconcord.recipes.recipe import Comparison, Recipe, SizeName
from fedconcord.recipes.values import Values, values

SIZES: tuple[SizeName, ...] = ("quick", "desk", "paper")


def configs(recipe: Recipe, size: SizeName) -> list[settings.Config]:
    """Every run of a size with every point of every grid, resolved."""
    found, how, made = recipe.experiment, recipe.sizes[size], []
    assert isinstance(found, Comparison)
    for cell in found.cells:
        if how.cells is not None and cell.name not in how.cells:
            continue
        methods = []
        for entry in found.entries:
            call = grammar.parse(entry.call, "method")
            if how.entries is None or entry.name in how.entries:
                for k, point in enumerate(product(*entry.grid.values())):
                    own = {**call.kwargs, **dict(zip(entry.grid, point, strict=True)), "label": f"{entry.name} {k}"}
                    methods.append(str(grammar.Spec(call.name, call.args, own)))
        layers = (found.settings, cell.settings, how.settings, how.by_cell.get(cell.name, {}))
        merged = {key: value for layer in layers for key, value in layer.items()}
        config = settings.resolve_compare(settings.from_nested({**merged, "methods": methods}, recipe.name))
        made += settings.runs(config)
    return made


def planted(measure: str, cells: tuple[str, ...], by_entry: dict[str, float]) -> Values:
    """Three seeds of each entry in each cell."""
    return values(
        (measure, cell, entry, seed, value + 0.01 * seed)
        for cell, (entry, value), seed in product(cells, by_entry.items(), range(3))
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("recipe", afedpd.RECIPES, ids=lambda recipe: recipe.name)
def test_every_call_of_every_size_resolves(recipe: Recipe, size: SizeName) -> None:
    for config in configs(recipe, size):
        assert config.eval.clients is False
        assert config.validation is None
        plain = (config.label or "").split()[1:2] == ["plain"]
        assert config.local.clip_direction == (None if plain else 10.0)
        assert config.local.lr_decay == (1.0 if plain else 0.998)
        assert config.local.weight_decay == (0.0 if plain else 1e-3)


def test_paper_settings() -> None:
    job = configs(afedpd.P1, "paper")[0]
    assert (job.clients, job.cohort, job.local.steps, job.rounds, job.model) == (100, 10, 50, 800, "lenet")
    work = {(c.local.steps or 0) * c.rounds for c in configs(afedpd.P3, "paper") if c.local.steps != 50}
    assert 40_000 in work
    fixed_work = [c for c in afedpd.FIG2_CELLS if c.name.startswith("fixed")]
    assert [(c.settings["local.steps"], c.settings["rounds"]) for c in fixed_work] == [
        (10, 4000), (20, 2000), (100, 400), (200, 200)
    ]  # fmt: skip
    assert {c.cohort for c in configs(afedpd.P4, "paper")} == {10, 5, 2}


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
        (afedpd.BEST.name, cell, entry, 0, float("nan") if value == "-" else float(value))
        for (cell, entry), value in printed.items()
    )
    assert {claim.says: claim.judge(found).verdict for claim in recipe.claims} == {
        claim.says: "holds" for claim in recipe.claims
    }


def test_claims_on_the_drift() -> None:
    steady, swinging = {"A-FedPD": 0.5, "FedDyn": 1.0}, {"A-FedPD": 2.0, "FedDyn": 1.0}
    claim = afedpd.P4.claims[2]
    assert claim.judge(planted(afedpd.SWING.name, afedpd.DRIFT, steady)).verdict == "holds"
    assert claim.judge(planted(afedpd.SWING.name, afedpd.DRIFT, swinging)).verdict == "does not hold"
    assert claim.judge(Values(())).verdict == "not tested at this size"
    fewer = afedpd.P4.claims[4]
    both = [planted(afedpd.SWING.name, (cell,), {afedpd.PARTIAL.name: v}) for cell, v in zip(afedpd.DRIFT, (1, 2, 3))]
    assert fewer.judge(Values(tuple(row for one in both for row in one.rows))).verdict == "holds"


def path(algorithm: Algorithm, cohort: int, engine: Serial | Stacked, rounds: int = 30) -> torch.Tensor:
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
    found, wanted = path(fedpd_partial(0.5), 20, engine), path(METHODS["feddyn"](0.5), 20, engine)
    assert float((found - wanted).norm(dim=-1).max()) < 1e-12 * float(wanted.norm(dim=-1).max())
    apart = path(fedpd_partial(0.5), 5, engine) - path(METHODS["feddyn"](0.5), 5, engine)
    assert float(apart.norm(dim=-1).max()) > 0.1


def test_duals_of_the_active_alone_keep_fedpd_from_the_optimum() -> None:
    """Full gradients: FedDyn and A-FedPD come to rest at the optimum, FedPD of active duals swings far from it."""
    problem = quadratics(3, 20, torch.float64, torch.device("cpu"), dim=6, blocks=3, condition=4.0)
    best = torch.as_tensor(problem.optimum([1 / 20] * 20))
    far = {}
    for name, algorithm in {"partial": fedpd_partial(1.0), "dyn": METHODS["feddyn"](1.0)}.items():
        far[name] = float((path(algorithm, 5, Stacked(None), 200)[-20:] - best).norm(dim=-1).max())
    assert far["dyn"] < 1e-3
    assert not far["partial"] < 1
