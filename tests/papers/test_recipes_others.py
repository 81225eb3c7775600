"""Local tolerances and clustering: calls resolve, verdicts follow the values."""

import inspect
import math

import torch

from fedconcord.federation.objectives.linear import logistic_cancer
from fedconcord_papers.commands import reproduce as reproduce_command
from fedconcord_papers.recipes import RECIPES, others, tables
from fedconcord_papers.recipes.recipe import Measure
from fedconcord_papers.recipes.values import Value, Values, values


def test_the_step_size_is_below_the_stable_one_of_every_seed() -> None:
    for seed in others.LOCAL_TOLERANCE.sizes["desk"].seeds:
        problem = logistic_cancer(seed, 10, torch.float64, torch.device("cpu"), l2=0.01)
        pairs = zip(problem.offsets[:-1], problem.offsets[1:], strict=True)
        curvature = [torch.linalg.eigvalsh(problem.hessian(problem.init(0), torch.arange(a, b)))[-1] for a, b in pairs]
        assert 0.15 <= 1 / (float(max(curvature)) + 0.05) < 0.17  # at 0, where logistic loss has its largest curvature


def test_a_desk_size_keeps_to_the_time_that_its_option_promises() -> None:
    minutes = {name: recipe.sizes["desk"].minutes for name, recipe in RECIPES.items()}
    assert {name: taken for name, taken in minutes.items() if taken is not None and taken > 90} == {}
    described = [line for line in inspect.getsource(reproduce_command).splitlines() if "--desk" in line]
    assert "in 90 minutes at most" in described[0]


def test_experiments_that_no_paper_prints_are_ours() -> None:
    assert {name for name, recipe in RECIPES.items() if recipe.ours} == {
        "local_tolerance",
        "federated_clustering",
        "modern",
    }


def planted(of: dict[tuple[str, str], float], cell: str = "cancer") -> Values:
    return values((measure, cell, entry, seed, v) for (measure, entry), v in of.items() for seed in range(2))


def test_verdicts_of_local_tolerance() -> None:
    rounds, gradients = others.ROUNDS.name, others.GRADIENTS.name
    taken = (("GD, 10 steps", math.inf), ("GD, 100 steps", 29), ("GD to eps", 27), ("L-BFGS to eps", 23))
    good = {(rounds, f"{m}, {how}"): v for m in others.EXACT for how, v in taken}
    good |= {
        (gradients, f"{m}, {how}"): v for m in others.EXACT for how, v in (("GD to eps", 9e4), ("L-BFGS to eps", 3e3))
    }
    good |= {("gap", "FedProx, GD, 10 steps"): 4e-4, ("gap", "FedProx, L-BFGS to eps"): 2e-3}
    assert [claim.judge(planted(good)).verdict for claim in others.LOCAL_TOLERANCE.claims] == ["held"] * 4
    bad = {key: {29: 99, 23: 12, 9e4: 1e3, 4e-4: 1.0}.get(v, 50 if math.isinf(v) else v) for key, v in good.items()}
    assert [claim.judge(planted(bad)).verdict for claim in others.LOCAL_TOLERANCE.claims] == ["failed"] * 4


def test_verdicts_of_clustering() -> None:
    cost = {(others.COST.name, name): 1.7 for name in others.OTHERS} | {(others.COST.name, "FedVRA-U"): 1.6}
    purity = {(others.PURITY.name, name): 50.0 for name in others.OTHERS} | {(others.PURITY.name, "FedVRA-U"): 45.0}
    verdicts = [claim.judge(planted(cost | purity, "digits")).verdict for claim in others.CLUSTERING.claims]
    assert verdicts == ["held", "held", "failed"]
    best, diverged = others.CLUSTERING.claims[0], dict.fromkeys(cost, math.nan)
    for own, verdict in ((1.78, "held"), (1.79, "failed"), (math.nan, "failed")):
        assert best.judge(planted(cost | {(others.COST.name, "FedVRA-U"): own}, "digits")).verdict == verdict
    assert best.judge(planted(diverged | {(others.COST.name, "FedVRA-U"): 1.6}, "digits")).verdict == "held"
    assert best.judge(planted(diverged, "digits")).verdict == "failed"
    assert best.judge(planted({(others.COST.name, "FedVRA-U"): 1.6}, "digits")).verdict == "untested"


def test_a_cell_of_a_page_keeps_few_digits_of_what_is_tiny_or_blew_up() -> None:
    stated = Measure("loss", lambda run: 0.0, False, digits=2)
    cells = {3.14159: "3.14", 0.000123456: "0.000123", 3.3417e26: "3.34e+26", math.inf: "never", math.nan: "diverged"}
    for value, words in cells.items():
        found = Values((Value("loss", "c", "m", 0, value),))
        assert tables.cell_of(found, stated, "loss", "c", "m", None) == words


def test_a_cell_of_a_page_says_where_seeds_lie_and_what_became_of_the_others() -> None:
    stated = Measure("rounds", lambda run: 0.0, False, digits=0, possible=(0, 99))
    cells: dict[tuple[float, ...], str] = {
        (7, 7, 7, 7, 7): "7",
        (6, 7, 8): "7 [6, 8], 3 seeds run",
        (5, 6, 7, 8, 9): "7 [5, 9]",
        (1, 1, 1, 1, 9): "3 [1, 9]",  # the interval would begin at -2
        (6, 7, 8, math.inf, math.inf): "7 [6, 8], reached in 3 of 5",
        (6, math.nan): "6, 2 seeds run, 1 of 2 diverged",
    }
    other = tuple(Value("rounds", "c", "other", seed, 1.0) for seed in range(5))
    for numbers, words in cells.items():
        there = Values((*other, *(Value("rounds", "c", "m", seed, v) for seed, v in enumerate(numbers))))
        assert tables.cell_of(there, stated, "rounds", "c", "m", None) == words
