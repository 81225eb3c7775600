"""Recipes as data: run, resume, verdicts, pages, refusals; by the command in a process of its own for the real ones."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedconcord.execution.run.folder import CHECKPOINT
from fedconcord.interface.cli.main import call
from fedconcord.study.runs.events import Event, Lines, Watch
from fedconcord.support.errors import UserError
from fedconcord_papers.recipes import RECIPES, claims, dry, grid, measures, pages, tables
from fedconcord_papers.recipes.evidence import judge
from fedconcord_papers.recipes.grid import measured, scores
from fedconcord_papers.recipes.recipe import Cell, Comparison, Entry, Headline, Recipe, Size, SizeName, Study, names_of
from fedconcord_papers.recipes.run import DONE, RecipeSpec, reproduce, settings_of
from fedconcord_papers.recipes.values import Done, Values, read, values
from recipe_jobs import SIZES, configs

PAGES = Path(__file__).resolve().parents[2] / "docs" / "papers"
LR = {"local.lr": [0.1, 0.3]}
SMALL = Recipe(
    "small",
    "Z1",
    "A paper, Table 1",
    "SCAFFOLD needs fewer rounds than FedAvg",
    Comparison(
        {"data": "digits", "clients": 10, "cohort": 5, "rounds": 4, "model": "logreg", "local.epochs": 1},
        [Entry("FedAvg", "fedavg", LR), Entry("SCAFFOLD", "scaffold", LR)],
        [Cell("iid", "IID", {"partition": "iid"}), Cell("skewed", "Non-IID", tuned_in="iid")],
        [measures.rounds_to(0.7), measures.final()],
    ),
    [claims.ahead("SCAFFOLD is ahead", "rounds to 70 %", "SCAFFOLD", ["FedAvg"], ["iid", "skewed"])],
    {
        "quick": Size(seeds=(0, 1), search={"rounds": 2}),
        "desk": Size({"local.steps": 3}, seeds=(0,), search=None),
        "paper": Size({"data": "fmnist", "model": "cnn1"}),
    },
    {"rounds to 70 %": {("iid", "FedAvg"): 12}},
    headline=Headline("rounds to 70 %", "iid", ("FedAvg", "SCAFFOLD")),
)


def done(out: Path, size: str = "quick", recipe: Recipe = SMALL, **asked: object) -> Values:
    return reproduce(RecipeSpec(recipe, size, out, **asked), Watch()).values  # type: ignore[arg-type]


class StopAfter(Watch):
    """Ctrl-C as a run starts after so many have ended."""

    def __init__(self, runs: int) -> None:
        self.left = runs

    def event(self, event: Event) -> None:
        if event.kind == "started" and self.left == 0:
            raise KeyboardInterrupt
        self.left -= event.kind == "ended"


# -- a comparison ------------------------------------------------------------------------------------------------------


def test_a_recipe_searches_compares_and_is_not_repeated(tmp_path: Path) -> None:
    found = done(tmp_path)
    assert found.cells() == ["iid", "skewed"]
    assert found.entries("iid") == ["FedAvg", "SCAFFOLD"]
    assert set(found.seeds("accuracy, %", "skewed", "SCAFFOLD")) == {0, 1}
    saved = read(tmp_path / DONE)
    assert saved.values == found
    assert saved.searched == 4
    assert set(saved.chosen) == {"iid"}  # the other cell takes its values
    assert saved.tried == {"iid": {"FedAvg": LR, "SCAFFOLD": LR}}
    lr = saved.chosen["iid"]["SCAFFOLD"]["local.lr"]
    assert saved.asked["skewed"]["methods"]["SCAFFOLD"] == f"scaffold(local.lr={lr},label=SCAFFOLD)"
    assert saved.asked["iid"]["settings"]["partition"] == "iid"
    (spell,) = saved.log
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d", spell["began"])
    assert spell["runs"] == 4 + 8
    assert saved.seconds == spell["seconds"] > 0
    config = json.loads((tmp_path / "skewed/final/SCAFFOLD/seed-0/run.json").read_text())["config"]
    assert config["local"]["lr"] == saved.chosen["iid"]["SCAFFOLD"]["local.lr"]
    assert config["validation"] == "none"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("checkpoint.safetensors")}
    more = done(tmp_path, seeds=(0, 1, 2))
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    assert {k: v for k, v in more.seeds("accuracy, %", "iid", "FedAvg").items() if k < 2} == found.seeds(
        "accuracy, %", "iid", "FedAvg"
    )
    assert done(tmp_path, cells=["iid"], seeds=[0]) == more  # what is known stays
    assert read(tmp_path / DONE).command == "fedconcord reproduce small --quick --seeds 0,1,2"
    with pytest.raises(UserError, match="other settings of this recipe"):
        done(tmp_path, recipe=SMALL._replace(sizes={"quick": Size({"rounds": 3}, seeds=(0, 1), search={"rounds": 2})}))


def runs_made(folder: Path) -> list[str]:
    """The runs of a folder, as CELL/final/METHOD/seed-0."""
    return sorted(str(path.parent.relative_to(folder)) for path in folder.rglob("run.json"))


def test_values_alone_are_gone_on_with(tmp_path: Path) -> None:
    """A clone elsewhere has the values and no runs: it makes those that are missing, and comes to the same."""
    there = tmp_path / "values"
    small = SMALL._replace(sizes={"quick": SMALL.sizes["quick"]._replace(seeds=(0, 1, 2))})
    whole = done(tmp_path / "whole", recipe=small)
    done(tmp_path / "first", values=there)  # seeds 0 and 1
    shutil.rmtree(tmp_path / "first")
    before = read(there / "small-quick.json")
    assert done(tmp_path / "second", recipe=small, values=there) == whole
    assert runs_made(tmp_path / "second") == [
        f"{cell}/final/{method}/seed-2" for cell in ("iid", "skewed") for method in ("FedAvg", "SCAFFOLD")
    ]
    after = read(there / "small-quick.json")
    assert after == read(tmp_path / "second" / DONE)._replace(log=after.log)
    assert (after.values, after.searched, after.chosen) == (whole, 4, before.chosen)
    assert sum(spell["runs"] for spell in after.log) == 4 + 12
    assert after.command == "fedconcord reproduce small --quick"
    done(tmp_path / "third", recipe=small, values=there)
    assert runs_made(tmp_path / "third") == []
    assert read(there / "small-quick.json") == after


def test_a_run_is_put_down_as_it_ends(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        # four runs of the search, two of the comparison
        reproduce(RecipeSpec(SMALL, "quick", tmp_path / "out", values=tmp_path / "values"), StopAfter(6))
    for path in (tmp_path / "out" / DONE, tmp_path / "values" / "small-quick.json"):
        saved = read(path)
        assert len({(row.entry, row.seed) for row in saved.values.rows}) == 2
        assert saved.searched == 4
        assert [spell["runs"] for spell in saved.log] == [6]
    assert done(tmp_path / "elsewhere", values=tmp_path / "values") == done(tmp_path / "whole")
    assert len(runs_made(tmp_path / "elsewhere")) == 8 - 2


def test_values_of_other_settings_or_another_method_are_replaced_and_it_is_said(tmp_path: Path) -> None:
    said: list[str] = []

    def again(recipe: Recipe, name: str) -> Done:
        said.clear()
        spec = RecipeSpec(recipe, "quick", tmp_path / name, values=tmp_path / "values")
        return reproduce(spec, Lines(said.append))

    one = again(SMALL, "one")
    assert isinstance(SMALL.experiment, Comparison)
    cells = [SMALL.experiment.cells[0], SMALL.experiment.cells[1]._replace(settings={"rounds": 2})]
    again(SMALL._replace(experiment=SMALL.experiment._replace(cells=cells)), "two")
    assert "skewed: the values that are there are of other settings, and are replaced" in said
    assert runs_made(tmp_path / "two") == [
        f"skewed/final/{m}/seed-{seed}" for m in ("FedAvg", "SCAFFOLD") for seed in (0, 1)
    ]
    assert again(SMALL, "three").values == one.values

    entries = [SMALL.experiment.entries[0], Entry("SCAFFOLD", "scaffold(option=1)", LR)]
    found = again(SMALL._replace(experiment=SMALL.experiment._replace(entries=entries)), "four")
    assert {run.split("/")[2].split("-")[0] for run in runs_made(tmp_path / "four")} == {"SCAFFOLD"}
    assert sum("SCAFFOLD: the values that are there are of another method" in line for line in said) == 2
    assert found.values.seeds("accuracy, %", "iid", "FedAvg") == one.values.seeds("accuracy, %", "iid", "FedAvg")

    longer = [Entry("FedAvg", "fedavg", {"local.lr": [0.1, 0.3, 1e-6]}), entries[1]]  # the best stays the best
    grown = again(SMALL._replace(experiment=SMALL.experiment._replace(entries=longer)), "five")
    assert runs_made(tmp_path / "five") == ["iid/search/FedAvg-2/seed-1000"]
    assert (grown.values, grown.searched) == (found.values, 3 + 2)


def test_where_a_run_computes_changes_no_value(tmp_path: Path) -> None:
    one = SMALL.sizes["quick"]._replace(search=None, seeds=(0,))
    done(tmp_path / "one", recipe=SMALL._replace(sizes={"quick": one}), values=tmp_path)
    other = one._replace(settings={"engine.threads": 1, "checkpoint.every": 5.0})
    done(tmp_path / "other", recipe=SMALL._replace(sizes={"quick": other}), values=tmp_path)
    assert runs_made(tmp_path / "other") == []


def test_a_study_whose_values_are_known_is_not_made_again(tmp_path: Path) -> None:
    calls: list[Path] = []

    def study(out: Path, *rest: object) -> Values:
        calls.append(out)
        return values([("m", f"c{len(calls)}", "A", 0, 1.0)])

    recipe = SMALL._replace(
        experiment=Study(study, lambda size, options: []), sizes={"quick": Size(options={"n": range(2)})}
    )
    first = done(tmp_path / "one", recipe=recipe, values=tmp_path)
    assert done(tmp_path / "two", recipe=recipe, values=tmp_path) == first
    assert calls == [tmp_path / "one"]
    other = recipe._replace(sizes={"quick": Size(options={"n": range(3)})})
    assert done(tmp_path / "two", recipe=other, values=tmp_path).cells() == ["c2"]  # the others are gone
    assert list(read(tmp_path / "small-quick.json").asked) == ["c2"]


def test_values_of_another_version_are_refused_in_a_sentence(tmp_path: Path) -> None:
    done(tmp_path, "desk")
    saved = json.loads((tmp_path / DONE).read_text())
    before = {**{k: v for k, v in saved.items() if k not in ("log", "tried", "asked")}, "seconds": 1.0}
    (tmp_path / "checksums.json").unlink()
    (tmp_path / DONE).write_text(json.dumps(before))
    with pytest.raises(UserError, match=r"another version of fedconcord, which differs in asked, log, seconds, tried"):
        read(tmp_path / DONE)


def test_a_search_asks_who_diverged_then_who_was_fast_then_who_ended_well() -> None:
    lines = {  # accuracies of 0, 2 and 4 rounds
        "diverged after the target": ("diverged", [0.1, 0.9, 0.1]),
        "at the target": ("complete", [0.1, 0.7, 0.7]),
        "sooner at it": ("complete", [0.7, 0.7, 0.7]),
        "never, low": ("complete", [0.1, 0.6, 0.2]),
        "never, high": ("complete", [0.1, 0.2, 0.6]),
    }
    asked = [measures.rounds_to(0.7), measures.rounds_to(0.5), measures.final()]
    experiment = Comparison({}, [], [], asked)
    seen_scores = {
        name: scores(
            experiment,
            measured(
                experiment,
                SimpleNamespace(  # type: ignore[arg-type]
                    head=SimpleNamespace(status=status),
                    round=np.array([0, 2, 4]),
                    metrics={"test_accuracy": np.array(seen)},
                ),
            ),
        )
        for name, (status, seen) in lines.items()
    }
    assert sorted(seen_scores, key=lambda name: seen_scores[name]) == [
        *("diverged after the target", "never, low", "never, high", "at the target", "sooner at it"),
    ]


def test_the_first_point_of_every_method_is_tried_before_the_second_of_any() -> None:
    assert grid.in_turn([["a0", "a1", "a2"], ["b0"], ["c0", "c1"]]) == ["a0", "b0", "c0", "a1", "c1", "a2"]


RACE = Comparison(
    {**SMALL.experiment.settings, "rounds": 20, "eval.target": 0.8, "eval.every": 1, "partition": "iid"},
    [
        Entry("FedAvg", "fedavg", {"local.lr": [0.1, 0.01, 0.5, 0.003]}),
        Entry("FedProx", "fedprox", {"mu": [1.0, 0.1, 0.5]}),
    ],
    [Cell("iid", "IID")],
    [measures.rounds_to_target(), measures.final()],
)


def searched(out: Path) -> dict[str, tuple[int, int]]:
    """Label -> rounds asked for and done, of the points of a grid."""
    runs = [json.loads(path.read_text()) for path in out.glob("iid/search/*/*/run.json")]
    return {run["label"]: (run["rounds"], run["rounds_done"]) for run in runs}


def test_a_point_gets_no_more_rounds_than_the_best_before_it_took_and_the_same_is_chosen(tmp_path: Path) -> None:
    def race(out: str, stops: bool, watch: Watch, jobs: int = 1) -> Done:
        experiment = RACE._replace(settings={**RACE.settings, "eval.stop_at_target": stops})
        recipe = SMALL._replace(experiment=experiment, claims=(), sizes={"quick": Size(seeds=(0,))}, published={})
        return reproduce(RecipeSpec(recipe, "quick", tmp_path / out, jobs), watch)

    whole, short = race("whole", False, Watch()), race("short", True, Watch())
    assert {asked for asked, _ in searched(tmp_path / "whole").values()} == {20}
    took = searched(tmp_path / "short")
    assert took["FedAvg 0"][0] == took["FedProx 0"][0] == 20
    assert took["FedAvg 1"] == (took["FedAvg 0"][1],) * 2  # with a tenth of the step it is far when its rounds are over
    assert all(took[f"FedAvg {k}"][0] <= took["FedAvg 0"][1] < 20 for k in (1, 2, 3))
    assert (short.chosen, short.values.seeds("rounds to target", "iid", "FedAvg")) == (
        whole.chosen,
        whole.values.seeds("rounds to target", "iid", "FedAvg"),
    )
    with pytest.raises(KeyboardInterrupt):
        race("cut", True, StopAfter(3))
    again = race("cut", True, Watch(), jobs=2)
    assert (again.values, again.chosen) == (short.values, short.chosen)


def of_grids(*grids: dict[str, list[float]]) -> Recipe:
    """FedAvg and FedProx in a race, each with its grid."""
    methods = (Entry(name, name.lower(), grid) for name, grid in zip(("FedAvg", "FedProx"), grids, strict=True))
    settings = {**RACE.settings, "eval.stop_at_target": True}
    experiment = RACE._replace(entries=[*methods], settings=settings)
    return SMALL._replace(experiment=experiment, claims=(), sizes={"quick": Size(seeds=(0,))}, published={})


def test_a_grid_is_gone_on_with_elsewhere_from_the_values_of_its_points(tmp_path: Path) -> None:
    """A clone elsewhere has no runs of a grid that was cut: it makes the other points, and chooses the same."""
    recipe = of_grids({"local.lr": [0.1, 0.01, 0.5]}, {"local.lr": [0.003, 1e9, 0.2]})
    whole = reproduce(RecipeSpec(recipe, "quick", tmp_path / "whole"), Watch())
    there = tmp_path / "values"
    with pytest.raises(KeyboardInterrupt):
        reproduce(RecipeSpec(recipe, "quick", tmp_path / "cut", values=there), StopAfter(4))
    first = searched(tmp_path / "cut")
    begun = read(there / "small-quick.json")
    assert (begun.chosen, begun.searched) == ({}, 0)
    assert len(begun.points["iid"]) == 4
    assert begun.points["iid"]["fedprox(local.lr=1000000000,label=FedProx)"]["diverged"] == 1
    said: list[str] = []
    again = reproduce(RecipeSpec(recipe, "quick", tmp_path / "again", values=there), Lines(said.append))
    second = searched(tmp_path / "again")
    assert "  4 of 6 points are known" in said
    assert (len(second), first.keys() & second.keys()) == (2, set())
    assert first["FedAvg 0"][1] == second["FedAvg 2"][0]  # no more rounds than the best of them took elsewhere
    assert again._replace(log=(), command="") == whole._replace(log=(), command="")
    assert read(there / "small-quick.json").points == whole.points


def test_values_of_no_grid_are_written_as_before_there_were_points(tmp_path: Path) -> None:
    done(tmp_path, "desk")
    assert "points" not in json.loads((tmp_path / DONE).read_text())
    assert read(tmp_path / DONE).points == {}


def test_a_point_that_does_not_say_whether_it_diverged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        reproduce(RecipeSpec(SMALL, "quick", tmp_path), StopAfter(1))
    raw = json.loads((tmp_path / DONE).read_text())
    for point in raw["points"]["iid"].values():
        del point["diverged"]
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    (tmp_path / DONE).write_text(json.dumps(raw))  # without checksums
    with pytest.raises(UserError, match=r"cannot read .*diverged is missing in a part of it"):
        read(tmp_path / DONE)


def test_a_longer_grid_takes_the_points_that_are_known(tmp_path: Path) -> None:
    short = of_grids({"local.lr": [0.1, 0.01]}, {"mu": [1.0, 0.1]})
    longer = of_grids({"local.lr": [0.1, 0.01, 0.5]}, {"mu": [0.1, 1.0]})
    there = tmp_path / "values"
    reproduce(RecipeSpec(short, "quick", tmp_path / "short", values=there), Watch())
    known = read(there / "small-quick.json").chosen["iid"]["FedProx"]
    after = reproduce(RecipeSpec(longer, "quick", tmp_path / "longer", values=there), Watch())
    assert [*searched(tmp_path / "longer")] == ["FedAvg 2"]
    assert after.chosen["iid"]["FedAvg"] == {"local.lr": 0.5}
    assert after.chosen["iid"]["FedProx"] == known
    assert after.tried["iid"] == {"FedAvg": {"local.lr": [0.1, 0.01, 0.5]}, "FedProx": {"mu": [0.1, 1.0]}}


@pytest.mark.parametrize(
    "change", [{"sizes": {"quick": Size(seeds=(0,), search={"rounds": 1})}}, {"sizes": {"quick": Size({"rounds": 19})}}]
)
def test_points_of_another_search_or_federation_count_nothing(tmp_path: Path, change: dict[str, object]) -> None:
    recipe = of_grids({"local.lr": [0.1, 0.01]}, {})
    with pytest.raises(KeyboardInterrupt):
        reproduce(RecipeSpec(recipe, "quick", tmp_path / "cut", values=tmp_path / "values"), StopAfter(1))
    reproduce(
        RecipeSpec(recipe._replace(**change), "quick", tmp_path / "out", seeds=[0], values=tmp_path / "values"), Watch()
    )
    assert searched(tmp_path / "out").keys() == {"FedAvg 0", "FedAvg 1"}


def test_a_grid_may_be_of_words(tmp_path: Path) -> None:
    assert isinstance(SMALL.experiment, Comparison)
    entry = Entry("FedLESAM", "fedavg", {"local.oracle": ["lesam(0.01)", "lesam(1e9)"]})
    recipe = SMALL._replace(experiment=SMALL.experiment._replace(entries=[entry]), claims=(), published={})
    said: list[str] = []
    reproduce(RecipeSpec(recipe, "quick", tmp_path), Lines(said.append))
    assert "  FedLESAM: oracle lesam(0.01)" in said
    assert "| oracle lesam(0.01) |" in tables.chosen(recipe, read(tmp_path / DONE))


def test_pages_leave_out_a_recipe_whose_grid_alone_was_tried(tmp_path: Path) -> None:
    recipe = SMALL._replace(sizes={"desk": SMALL.sizes["quick"], "paper": SMALL.sizes["paper"]})
    with pytest.raises(KeyboardInterrupt):
        reproduce(RecipeSpec(recipe, "desk", tmp_path / "out" / "small" / "desk"), StopAfter(4))  # all of the search
    saved = read(tmp_path / "out" / "small" / "desk" / DONE)
    assert (saved.searched, saved.values.rows) == (4, ())
    with pytest.raises(UserError, match="no recipe was done below"):
        pages.write_pages(tmp_path / "out", {"small": recipe}, tmp_path / "pages")


def test_of_two_keys_that_exclude_each_other_the_later_layer_counts() -> None:
    assert isinstance(SMALL.experiment, Comparison)
    found = settings_of(SMALL.experiment, SMALL.sizes["desk"], SMALL.experiment.cells[0])
    assert found["local.steps"] == 3
    assert "local.epochs" not in found


def test_missing_data_leave_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCONCORD_DATA", str(tmp_path / "none"))
    with pytest.raises(UserError, match="fmnist"):
        done(tmp_path / "out" / "small" / "paper", "paper")
    desk = SMALL._replace(sizes={"desk": SMALL.sizes["paper"]})
    with pytest.raises(UserError, match="fmnist"):
        done(tmp_path / "out" / "small" / "desk", "desk", desk)
    assert not (tmp_path / "out").exists()


def test_a_size_that_does_not_fit_is_refused_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedconcord.study.runs.training.room", lambda job: (1000.0, "this machine"))
    recipe = SMALL._replace(sizes={"paper": Size()})
    with pytest.raises(UserError, match=r"SCAFFOLD: the clients' state may grow to .* and this machine has"):
        done(tmp_path / "out", "paper", recipe)
    assert not (tmp_path / "out").exists()


def test_a_dry_run_counts_without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDCONCORD_DATA", str(tmp_path / "none"))
    rows = list(dry.rows(RecipeSpec(SMALL, "paper", tmp_path / "out")))
    assert [(row["cell"], row["method"], row["parameters"], row["samples"], row["runs"]) for row in rows[1:3]] == [
        ("iid", "SCAFFOLD", 1_663_370, 60_000, 5),
        ("skewed", "FedAvg", 1_663_370, 60_000, 3),
    ]
    assert not (tmp_path / "out").exists()


# -- the real ones -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_states_three_sizes_and_claims(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    assert recipe.name == name
    assert set(recipe.sizes) == {"quick", "desk", "paper"}
    assert recipe.claims
    assert len({claim.says for claim in recipe.claims}) == len(recipe.claims)
    if isinstance(recipe.experiment, Comparison):
        stated = {measure.name for measure in recipe.experiment.measures}
        assert set(recipe.published) <= stated
        cells = {cell.name for cell in recipe.experiment.cells}
        entries = {entry.name for entry in recipe.experiment.entries}
        for of in recipe.published.values():
            assert {cell for cell, _ in of} <= cells
            assert {entry for _, entry in of} <= entries
        for size in recipe.sizes.values():
            assert set(size.cells or ()) <= cells
            assert set(size.entries or ()) <= entries
            assert set(size.by_cell) <= cells
        assert recipe.headline is not None
        assert recipe.headline.measure in stated
        assert set(recipe.headline.entries) <= set(recipe.sizes["desk"].entries or names_of(recipe.experiment))
        assert recipe.headline.cell in (recipe.sizes["desk"].cells or cells)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [name for name, one in RECIPES.items() if isinstance(one.experiment, Comparison)])
def test_every_method_with_every_point_of_its_grid_resolves(name: str, size: SizeName) -> None:
    found = configs(RECIPES[name], size)
    assert found
    for config in found:
        assert config.validation is None
        assert config.eval.clients is False


@pytest.mark.parametrize("size", ["desk", "paper"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_dry_run_of_every_recipe(name: str, size: str, tmp_path: Path) -> None:
    rows = list(dry.rows(RecipeSpec(RECIPES[name], size, tmp_path / "out")))  # type: ignore[arg-type]
    assert rows
    assert len({tuple(row) for row in rows}) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_quick_form_by_the_command(name: str, tmp_path: Path) -> None:
    ended = command(tmp_path, name, "--quick", "--jobs", "2")
    assert ended.returncode == 0, ended.stderr
    folder = tmp_path / name / "quick"
    assert (folder / "README.md").stat().st_size > 500
    assert read(folder / DONE).values.rows
    assert any(folder.glob("*.png"))
    if isinstance(RECIPES[name].experiment, Study):
        assert pages.headline(judge(RECIPES[name], {"quick": read(folder / DONE)}))


def command(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedconcord", "reproduce", *words, "--out", str(out)],
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fedadmm_tabel3"], "did you mean 'fedadmm_table3'"),
        ([], "needs the name of a recipe"),
        (["fedadmm_table3", "--quick", "--paper"], "give one of"),
        (["fedadmm_table3", "--quick", "--cells", "mnist100"], "unknown cell"),
        (["all", "--seeds", "0"], "name it"),
        (["--verdicts"], "holds no recipe that was done"),
        (["--verdicts", "--until", "12:00"], "run nothing; leave --queue, --until, --values and --dry-run out"),
        (["all", "--queue"], "write reproduce all --paper --queue"),
        (["fednova_fig2", "--paper", "--queue"], "write reproduce all --paper --queue"),
        (["all", "--paper", "--until", "12:00"], "give --queue too"),
        (["all", "--paper", "--queue", "--until", "noon"], "given 'noon'"),
        (["fednova_fig4", "--quick", "--values", __file__], "test_reproduce.py (File exists); give another one"),
        (["fednova_fig4", "--quick", "--values", f"{__file__}/values"], "(Not a directory); give another one"),
    ],
)
def test_mistakes_get_a_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["reproduce", *words, "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_killed_recipe_goes_on(tmp_path: Path) -> None:
    """In its folder, and in another one from its values alone."""
    one, whole, elsewhere, known = (tmp_path / name for name in ("one", "whole", "elsewhere", "known"))
    words = ["fedvra_table4", "--quick", "--values", str(known)]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedconcord", "reproduce", *words, "--out", str(one)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _ in range(6000):
            if any(known.glob("fed*.json")):
                break
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    finally:
        process.wait()
    there = read(known / "fedvra_table4-quick.json").values.rows
    assert there
    for folder, options in ((elsewhere, words), (one, words[:2]), (whole, words[:2])):
        ended = command(folder, *options)
        assert ended.returncode == 0, ended.stderr
    folders = [folder / "fedvra_table4" / "quick" for folder in (whole, one, elsewhere)]
    first, *others = ([tuple(map(str, row)) for row in read(folder / DONE).values.rows] for folder in folders)
    assert others == [first, first]
    made = [{run for run in runs_made(folder) if "/final/" in run} for folder in folders]
    assert made[0] - made[2] == {f"{row.cell}/final/{row.entry}/seed-{row.seed}" for row in there}
    assert not any(one.rglob(CHECKPOINT))  # gigabytes, of 1,000 clients
    written = {path: path.stat().st_mtime_ns for path in whole.rglob("metrics.csv")}
    assert written
    assert command(whole, *words[:2]).returncode == 0
    assert written == {path: path.stat().st_mtime_ns for path in whole.rglob("metrics.csv")}  # no run was made again


def test_what_goes_on_after_an_interruption_has_the_same_values_and_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(spec: RecipeSpec, watch: Watch) -> None:
        spec.out.mkdir(parents=True)
        watch.begin(spec.out)
        raise KeyboardInterrupt

    monkeypatch.setattr("fedconcord_papers.recipes.whole.reproduced", stop)
    words = ["fedadmm_table3", "--quick", "--jobs", "2", "--values", str(tmp_path / "v"), "--out", str(tmp_path / "o")]
    assert call(["reproduce", *words]) == 130
    again = "continue with: fedconcord reproduce fedadmm_table3 --quick --jobs 2 "
    assert f"{again}--values {tmp_path / 'v'} --out {tmp_path / 'o'}" in capsys.readouterr().err
