"""FedADMM's recipes: every job of every size resolves, the paper's own numbers pass its claims, others do not."""

import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import fedconcord
from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, advance, start
from fedconcord.execution.job.loop import evaluate
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.wrappers.server import momentum, with_server
from fedconcord.study.settings import methods
from fedconcord.study.settings.resolve import resolve_compare
from fedconcord.study.settings.sources import from_nested
from fedconcord.study.statistics.load import load_runs
from fedconcord_papers.recipes import dry, fedadmm_own, fedadmm_parts, fedadmm_rivals, measures
from fedconcord_papers.recipes.fedadmm import RECIPES
from fedconcord_papers.recipes.fedadmm_apart import APART, fedadmm_apart
from fedconcord_papers.recipes.grid import points_of, text_of
from fedconcord_papers.recipes.recipe import Claim, Comparison, Recipe, SizeName
from fedconcord_papers.recipes.run import RecipeSpec, cells_of, entries_of
from fedconcord_papers.recipes.values import Values, values
from recipe_jobs import resolved

BY_NAME = {recipe.name.removeprefix("fedadmm_"): recipe for recipe in RECIPES}
SEEDS = (0, 1, 2)
Table = Mapping[tuple[str, str], float | str]


def comparison(recipe: Recipe) -> Comparison:
    assert isinstance(recipe.experiment, Comparison)
    return recipe.experiment


@pytest.mark.parametrize("size", ["quick", "desk", "paper"])
@pytest.mark.parametrize("name", BY_NAME)
def test_every_job_resolves(name: str, size: SizeName) -> None:
    found = resolved(BY_NAME[name], size)
    assert found
    for config in found.values():
        assert config.validation is None
        assert config.eval.clients is False
        assert config.eval.every == 1
        assert size == "quick" or (config.data != "digits" and config.cohort == config.clients // 10)
        assert size != "paper" or config.model in ("cnn1", "cnn2", "cnn1(form=released)")
        assert size != "desk" or config.data in ("mnist", "fmnist", "cifar10")  # what is at hand


@pytest.mark.parametrize("name", BY_NAME)
def test_every_point_of_a_grid_is_a_method(name: str) -> None:
    experiment, size = comparison(BY_NAME[name]), BY_NAME[name].sizes["paper"]
    every = [entry for cell in experiment.cells for entry in entries_of(size, experiment, cell)]
    seen = {(entry.call, tuple(entry.grid)): entry for entry in every}.values()
    points = [(entry, point) for entry in seen for point in points_of(entry)]
    texts = [text_of(entry, point, f"{k}") for k, (entry, point) in enumerate(points)]
    config = resolve_compare(from_nested({"methods": texts}, name))
    assert len(config.methods or ()) == len(texts)
    assert {entry.name for entry in seen} == {entry.name for entry in experiment.entries}  # the order of pages


@pytest.mark.parametrize("name", BY_NAME)
def test_places_of_printed_numbers_exist(name: str) -> None:
    recipe = BY_NAME[name]
    asked = RecipeSpec(recipe, "paper", Path())
    experiment = comparison(recipe)
    places = {
        (cell.name, entry.name)
        for cell in cells_of(asked, experiment)
        for entry in entries_of(asked.size, experiment, cell)
    }
    for measure, table in recipe.published.items():
        assert measure in {one.name for one in experiment.measures}
        assert set(table) <= places


def test_settings_of_table_3() -> None:
    found = resolved(BY_NAME["table3"], "paper")
    small, full, tiny = found["mnist100_noniid"], found["cifar1000_iid"], found["fmnist1000_noniid"]
    assert (small.clients, small.cohort, small.local.epochs, small.local.batch_size) == (100, 10, 5, 200)
    assert (small.partition, small.eval.target, small.rounds) == ("shards(2)", 0.97, 100)
    assert (full.clients, full.cohort, full.local.epochs, full.local.batch_size) == (1000, 100, 20, "full")
    assert (full.model, full.eval.target, tiny.eval.target, tiny.local.batch_size) == ("cnn2", 0.45, 0.8, 10)
    assert found["mnist1000_iid_sgd"].methods == ["fedsgd(local.lr=0.1,label=FedSGD)"]
    assert found["mnist1000_iid_sgd"].rounds == 600
    assert found["mnist100_iid_released"].model == "cnn1(form=released)"
    for cell, epochs in (("mnist100_iid", 5), ("mnist1000_iid", 20)):
        runs = {one.label: one for one in methods.runs(found[cell])}
        assert runs["FedADMM"].local.epochs == runs["FedProx"].local.epochs == f"uniform(1,{epochs})"
        assert runs["FedAvg"].local.epochs == runs["SCAFFOLD"].local.epochs == epochs
        assert runs["FedADMM"].algorithm == {"rho": 0.01, "server_lr": 1.0, "form": "released"}
    assert "FedSGD" not in runs


def test_grids_are_the_papers() -> None:
    experiment = comparison(BY_NAME["table3"])
    by_name = {entry.name: entry for entry in experiment.entries}
    rates = {0.01, 0.1, 0.2, 0.5}
    assert {name: len(points_of(entry)) for name, entry in by_name.items() if name != "FedProx"} == {
        name: 4 for name in by_name if name != "FedProx"
    }
    points = {tuple(point.values()) for point in points_of(by_name["FedProx"])}
    assert points == set(product(rates, (0.001, 0.01, 0.1, 1.0)))
    fixed = next(cell for cell in experiment.cells if cell.name == "mnist100_noniid_fixed")
    assert all(len(points_of(entry)) == 1 for entry in fixed.entries or ())
    fig5 = {entry.name: len(points_of(entry)) for entry in comparison(BY_NAME["fig5"]).entries}
    assert fig5 == {"FedADMM": 1, "FedAvg": 4, "FedProx": 4, "SCAFFOLD": 4}  # FedADMM untouched


def test_a_dry_run_counts_the_runs_of_a_cells_own_methods() -> None:
    some = ["mnist1000_iid_sgd", "mnist1000_iid", "mnist100_noniid_fixed"]
    rows = list(dry.rows(RecipeSpec(BY_NAME["table3"], "paper", Path(), cells=some)))
    runs = {(row["cell"], row["method"]): row["runs"] for row in rows}
    assert runs["mnist1000_iid_sgd", "FedSGD"] == 5 + 4
    assert runs["mnist1000_iid", "FedProx"] == 5 + 16
    assert runs["mnist100_noniid_fixed", "FedProx"] == 5
    assert len(rows) == 1 + 4 + 7
    assert {row["parameters"] for row in rows} == {1_663_370}


def test_growing_cells_keep_what_was_tuned_at_100() -> None:
    cells = {cell.name: cell for cell in comparison(BY_NAME["fig3"]).cells}
    assert cells["cifar10_noniid_n100"].tuned_in is None
    assert cells["cifar10_noniid_n1000"].tuned_in == "cifar10_noniid_n100"
    assert {cell.settings["cohort"] / cell.settings["clients"] for cell in cells.values()} == {0.1}


@pytest.mark.parametrize(
    ("table", "cell", "entry", "value"),
    [
        (fedadmm_rivals.PRINTED_3, "mnist100_noniid", "FedADMM", 33),
        (fedadmm_rivals.PRINTED_3, "mnist100_noniid", "FedProx", "100+"),
        (fedadmm_rivals.PRINTED_3, "fmnist1000_noniid_sgd", "FedSGD", 530),
        (fedadmm_rivals.PRINTED_3, "cifar1000_iid", "SCAFFOLD", 37),
        (fedadmm_rivals.PRINTED_3, "mnist1000_iid", "FedProx", 78),
        (fedadmm_own.PRINTED_4, "mnist_noniid", "E = 10", 32),
        (fedadmm_own.PRINTED_4, "cifar10_iid", "E = 1", 24),
        (fedadmm_rivals.PRINTED_5, "mnist500_iid", "FedProx 0.01", 47),
        (fedadmm_rivals.PRINTED_5, "fmnist500_noniid", "FedADMM", 9),
        (fedadmm_rivals.PRINTED_5, "fmnist200_iid", "FedProx 1", 43),
    ],
)
def test_printed_numbers(table: Table, cell: str, entry: str, value: float | str) -> None:
    assert table[cell, entry] == value


def test_all_numbers_of_the_tables_are_there() -> None:
    sizes = [len(t) for t in (fedadmm_rivals.PRINTED_3, fedadmm_own.PRINTED_4, fedadmm_rivals.PRINTED_5)]
    assert sizes == [40, 12, 32]
    assert sum(v == "100+" for t in (fedadmm_rivals.PRINTED_3, fedadmm_rivals.PRINTED_5) for v in t.values()) == 11


def planted(table: Table) -> Values:
    """The printed numbers as if they had been measured with every seed; "100+" was not reached."""
    numbers = {place: math.inf if isinstance(value, str) else float(value) for place, value in table.items()}
    return values(
        (fedadmm_parts.ROUNDS.name, cell, entry, seed, value)
        for (cell, entry), value in numbers.items()
        for seed in SEEDS
    )


@pytest.mark.parametrize(
    ("name", "table"),
    [("table3", fedadmm_rivals.PRINTED_3), ("table4", fedadmm_own.PRINTED_4), ("table5", fedadmm_rivals.PRINTED_5)],
)
def test_the_papers_own_numbers_pass_its_claims(name: str, table: Table) -> None:
    claims = BY_NAME[name].claims
    found = {claim.says: claim.judge(planted(table)).verdict for claim in claims}
    tested = {says: verdict for says, verdict in found.items() if verdict != "untested"}
    assert set(tested.values()) == {"held"}
    assert len(tested) == {"table3": 8 + 2 + 1, "table4": 4 + 1, "table5": 8 + 3 + 1}[name]


@pytest.mark.parametrize(
    ("name", "table", "best", "other"),
    [
        ("table3", fedadmm_rivals.PRINTED_3, "FedADMM", "FedAvg"),
        ("table4", fedadmm_own.PRINTED_4, "E = 10", "E = 1"),
        ("table5", fedadmm_rivals.PRINTED_5, "FedADMM", "FedProx 0.01"),
    ],
)
def test_numbers_the_other_way_do_not(name: str, table: Table, best: str, other: str) -> None:
    swap = {best: other, other: best}
    swapped = {(cell, swap.get(entry, entry)): value for (cell, entry), value in table.items()}
    for claim in BY_NAME[name].claims:
        assert claim.judge(planted(swapped)).verdict != "held", claim.says


def test_a_printed_number_that_is_missed_is_named() -> None:
    claim = BY_NAME["table4"].claims[-1]
    assert claim.printed
    missed = {**fedadmm_own.PRINTED_4, ("mnist_iid", "E = 1"): 50.0}
    finding = claim.judge(planted(missed))
    assert finding.verdict == "in part"
    assert "E = 1 (mnist_iid) 50 for 27" in finding.why


def test_a_target_that_a_rival_reaches_is_no_hundred_plus() -> None:
    claim = fedadmm_parts.printed("", {("mnist100_noniid", "FedProx"): "100+"}, 0.25)
    assert claim.judge(planted({("mnist100_noniid", "FedProx"): "100+"})).verdict == "held"
    assert claim.judge(planted({("mnist100_noniid", "FedProx"): 99.0})).verdict == "failed"


def rounds(cell: str, *reached: float) -> dict[tuple[str, str], float]:
    return {(cell, entry): value for entry, value in zip(("FedADMM", *fedadmm_parts.RIVALS), reached, strict=True)}


@pytest.mark.parametrize(
    ("small", "large", "verdict"),
    [
        ((20, 40, 50, 60), (10, 40, 50, 60), "held"),  # 50 % and 75 % of the best rival's
        ((10, 40, 50, 60), (20, 40, 50, 60), "failed"),
        ((10, 40, 50, 60), (20, math.inf, math.inf, math.inf), "held"),  # what nobody else reaches: all is saved
        ((10, 40, 50, 60), (math.inf, 40, 50, 60), "failed"),
        ((10, 40, 50, 60), (math.inf, math.inf, math.inf, math.inf), "untested"),
    ],
)
def test_a_lead_that_grows(small: tuple[float, ...], large: tuple[float, ...], verdict: str) -> None:
    claim = fedadmm_parts.lead_grows("", "n100", "n500")
    found = planted(rounds("n100", *small) | rounds("n500", *large))
    assert claim.judge(found).verdict == verdict


def said(claim: Claim, found: Values) -> str:
    """How a claim about one difference came out: so, the other way, or another word where nothing is decided."""
    return claim.judge(found).why.partition(":")[0]


def test_server_steps_matter_less_where_their_ends_lie_closer_together() -> None:
    claim = BY_NAME["fig6"].claims[0]

    def ends(cell: str, *numbers: float) -> list[tuple[str, str, str, int, float]]:
        return [
            (fedadmm_parts.ACCURACY.name, cell, entry, seed, end)
            for seed in SEEDS
            for entry, end in zip(fedadmm_own.CONSTANT, numbers, strict=True)
        ]

    for iid, other, wanted in (
        ((97.0, 97.5, 98.1), (90.0, 93.0, 89.0), "so"),
        ((97.0, 97.5, 94.0), (93.0, 93.0, 92.0), "the other way"),
        ((97.0, 97.5, 98.1), (93.0, 92.0, math.nan), "so"),  # one diverged
    ):
        rows = values([*ends("mnist_iid", *iid), *ends("mnist_noniid", *other)])
        assert said(claim, rows) == wanted
    assert said(claim, values(ends("mnist_iid", 97.0, 97.0, 97.0))) == ""  # one cell says nothing
    early = next(one for one in BY_NAME["fig6"].claims if "slower at first" in one.says)
    slow = {"eta 0.5": 60.0, "eta 1": 70.0}
    rows = values((fedadmm_own.EARLY.name, "mnist_iid", e, seed, v) for e, v in slow.items() for seed in SEEDS)
    assert said(early, rows) == "so"


def test_fig_8_compares_starts_alone() -> None:
    """I and II differ in `form`, which changes the start and nothing else; the code's form stands beside them."""
    runs = {one.label: one.algorithm for one in methods.runs(resolved(BY_NAME["fig8"], "paper")["mnist_noniid"])}
    for eta, step in (("0.5", 0.5), ("1", 1.0), ("1.5", 1.5)):
        forms = [runs[f"{start}, eta {eta}"]["form"] for start in ("I", "II", "the code's")]
        assert forms == ["paper", "paper_from_theta", "released"]
        steps = [runs[f"{start}, eta {eta}"]["server_lr"] for start in ("I", "II", "the code's")]
        assert [one if isinstance(one, float) else one[0][1] for one in steps] == [step] * 3
    assert runs["I, eta |S|/N"]["server_lr"] == runs["II, eta |S|/N"]["server_lr"] == "participation"
    claims = BY_NAME["fig8"].claims
    assert {claim.ours for claim in claims if " above II " in claim.says} == {False}
    assert {claim.ours for claim in claims if " above II " not in claim.says} == {True}


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ((81, 25, 90), (5, 7, 43), "so"),
        ((5, 7, 90), (5, 7, 43), "the other way"),  # the same is ahead in both
        ((5, 5, 90), (5, 7, 43), "even"),
        ((math.inf, 25, math.inf), (5, 7, 43), "so"),
        ((math.inf, math.inf, math.inf), (5, 7, 43), "untested"),  # none is best where none gets there
    ],
)
def test_a_best_rho_that_changes(first: tuple[float, ...], second: tuple[float, ...], wanted: str) -> None:
    entries = ("0.01", "0.1", "1")
    claim = fedadmm_parts.best_changes("", entries, ["a", "b"])
    table = {
        (cell, entry): v for cell, row in (("a", first), ("b", second)) for entry, v in zip(entries, row, strict=True)
    }
    rows = values((fedadmm_parts.ROUNDS.name, *place, seed, value) for place, value in table.items() for seed in SEEDS)
    finding = claim.judge(rows)
    kinds = {"so:": "so", "the other way:": "the other way"}
    outcome = next(
        (kind for start, kind in kinds.items() if finding.why.startswith(start)), "even" if finding.why else ""
    )
    assert outcome == ("" if wanted == "untested" else wanted)


def test_a_best_rho_that_changes_by_chance_decides_nothing() -> None:
    """In the second cell the other one is best in the mean, and not in every seed."""
    claim = fedadmm_parts.best_changes("", ("0.01", "0.1"), ["a", "b"])
    b = {"0.01": (5, 9, 5), "0.1": (7, 7, 9)}
    rows = values(
        (fedadmm_parts.ROUNDS.name, cell, entry, seed, float(v))
        for cell, table in (("a", {"0.01": (9, 9, 9), "0.1": (7, 7, 7)}), ("b", b))
        for entry, row in table.items()
        for seed, v in enumerate(row)
    )
    assert said(claim, rows) not in ("so", "the other way", "")


@pytest.mark.parametrize("engine", [Serial(), Stacked(None)])
@pytest.mark.parametrize("rho", [0.3, [(0, 0.3), (2, 0.9)]], ids=["constant", "rising"])
def test_fedadmm_that_tells_how_far_clients_are(rho: float | list[tuple[int, float]], engine: Serial | Stacked) -> None:
    """It runs as FedADMM does, to the bit, and its number is the mean of ||w_i - theta||, by the rows of the duals:
    y_i moves by rho (w_i - theta)."""
    problem = quadratics(3, 12, torch.float64, torch.device("cpu"), dim=5, blocks=3, condition=4.0)
    schedule = Schedule(1, 4, 0.05, uniform(2, 6), "steps", 1)
    told = Job(problem, fedadmm_apart(rho), schedule, engine=engine)
    plain = Job(problem, METHODS["fedadmm"](rho), schedule, engine=engine)
    one, other = start(told), start(plain)
    assert evaluate(told, one)[APART] == 0.0
    duals = {client: np.zeros(5) for client in range(12)}
    for t in range(4):
        ids = plain.schedule.plan(t, plain.algorithm, problem.roster).ids
        one, other = advance(told, one), advance(plain, other)
        assert torch.equal(one.server.x, other.server.x)
        rows = other.store.export()
        new = {int(i): y.numpy().copy() for i, y in zip(rows["ids"], rows["y"], strict=True)}
        penalty = rho if isinstance(rho, float) else (0.3 if t < 2 else 0.9)
        apart = np.mean([np.linalg.norm(new[int(i)] - duals[int(i)]) / penalty for i in ids])
        assert evaluate(told, one)[APART] == pytest.approx(apart, rel=1e-9)
        assert APART not in evaluate(plain, other)
        duals |= new


def test_numbers_of_a_method_stand_among_the_metrics_of_one_that_is_wrapped() -> None:
    problem = quadratics(3, 6, torch.float64, torch.device("cpu"), dim=3, blocks=3)
    wrapped = with_server(fedadmm_apart(0.3), momentum(0.5))
    this = Job(problem, wrapped, Schedule(1, 3, 0.05, uniform(2, 6), "steps"), engine=Serial())
    assert evaluate(this, advance(this, start(this)))[APART] > 0


def test_fig_9_is_judged_by_the_distance_of_clients() -> None:
    claim, distances = BY_NAME["fig9"].claims[0], {fedadmm_own.RAISED: 1.0, "rho 0.01": 2.0}
    rows = values((fedadmm_own.APART.name, "mnist_iid", e, seed, v) for e, v in distances.items() for seed in SEEDS)
    assert not claim.ours
    assert said(claim, rows) == "so"
    accuracies = [one for one in BY_NAME["fig9"].claims if "ends above" in one.says]
    assert {one.ours for one in accuracies} == {True}


def test_measures_of_a_run(tmp_path: Path) -> None:
    given = {"data": "digits", "clients": 20, "cohort": 5, "partition": "groups", "validation": "none"}
    given |= {"eval.clients": False, "eval.target": 0.3, "local.epochs": 5}
    fedconcord.run("fedavg", settings=given, rounds=4, out=tmp_path / "a")
    (run,) = load_runs([tmp_path / "a"])
    reached = np.flatnonzero(run.metrics["test_accuracy"] >= 0.3)
    assert fedadmm_parts.ROUNDS.of(run) == run.round[reached[0]]
    assert measures.rounds_to(0.999).of(run) == math.inf
    assert fedadmm_parts.MODEL.of(run) == 64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10
    sizes = np.asarray(run.counts).sum(axis=1)
    assert fedadmm_rivals.MEAN.of(run) == pytest.approx(1437 / 20)
    assert fedadmm_rivals.DEVIATION.of(run) == pytest.approx(np.std(sizes, ddof=1))
