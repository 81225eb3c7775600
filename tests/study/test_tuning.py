"""Tuning: spaces from annotations, halving in numbers known before, scores that never see the test set, and a search
that is the same whatever interrupts it."""

import csv
import json
import math
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import optuna
import pytest

import fedconcord
from fedconcord.interface import cli
from fedconcord.method.algorithms import METHODS
from fedconcord.method.wrappers.server import OPTIMIZERS
from fedconcord.study import search as tuning
from fedconcord.study.runs.events import Watch
from fedconcord.study.runs.plan import plan_comparison
from fedconcord.study.runs.pool import carry_out
from fedconcord.study.search.plan import sentences
from fedconcord.study.search.scores import (
    MethodSearch,
    Objective,
    Rung,
    Score,
    Trial,
    chosen,
    cost,
    edges,
    ranked,
    rungs_of,
    score_of,
)
from fedconcord.study.search.search import batches, drawn, remarks, search, write_journal
from fedconcord.study.search.space import GRIDS, grid_space, read_grid, read_search, space_of, text_of
from fedconcord.study.settings.resolve import resolve_compare
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import from_file, from_nested
from fedconcord.study.statistics.metric import metric_of
from fedconcord.support import factories
from fedconcord.support.errors import UserError
from fedconcord.support.factories import Search, search_of
from watching import Rows

DIGITS = {"data": "digits", "model": "logreg", "clients": 12, "cohort": 4, "rounds": 8, "seeds": "0"}
ACCURACY = Objective(metric_of("validation_accuracy"), None, is_held_out=True)


def config(methods: str, **more: Any) -> Config:
    return resolve_compare(from_nested({**DIGITS, "methods": methods, **more}, "test"))


@pytest.mark.parametrize(
    ("kernel", "rounds", "expected"),
    [("torch", 5000, "torch"), ("compiled", 8, "compiled"), ("auto", 8, "torch"), ("auto", 200, "compiled")],
)
def test_trials_compute_their_steps_as_the_job_says(kernel: str, rounds: int, expected: str, tmp_path: Path) -> None:
    """Or, where it leaves that open, as all together are worth: a run of 200 rounds alone takes torch's."""
    job = DIGITS | {"methods": "fedavg", "model": "2nn", "rounds": rounds, "out": str(tmp_path / "t")}
    source = from_nested(job | {"engine.kernel": kernel}, "test")
    tuned = tuning.plan_tuning(tuning.SearchSpec(), source)
    (space,) = tuned.spaces
    trial = tuned.entry(space, space.start, 1, 0, 8).config
    assert trial.engine.kernel == expected


# -- what is looked for --------------------------------------------------------------------------------------------

FIXED = {  # real parameters that state no range, and why
    "server_lr": "1 takes the mean of the moves as it is, as the methods are published; FedOpt and FedADMM state one",
    "mu": "0 switches FedNova's proximal part off, which is the method",
    "beta1": "Reddi et al. keep 0.9",
    "beta2": "Reddi et al. keep 0.99",
    "tau": "Reddi et al. keep 1e-3",
    "v0": "a form of the released code's start",
    "m0": "a form of the released code's start",
    "eps_root": "a form of the released code's root",
    "lr": "own models of Ditto and APFL take the round's, which is tuned",
    "alpha_lr": "APFL's shares take the round's, as published",
    "p_skip": "saves communication, and costs accuracy",
    "newton_share": "which clients there are",
    "newton_lr": "1 is Newton's own step",
    "gradient_dual_lr": "the paper's",
    "newton_dual_lr": "the paper's",
    "block_scale": "1 as published, mean as SAGA",
}


@pytest.mark.parametrize("registry", [METHODS, OPTIMIZERS], ids=["methods", "server"])
def test_every_real_parameter_states_a_range_or_is_known_not_to(registry: Any) -> None:
    lacking = {
        option.name
        for name in registry
        for option in factories.options(registry[name])
        if "number" in option.values and search_of(option.annotation) is None
    }
    assert lacking - FIXED.keys() == set()
    assert registry is OPTIMIZERS or FIXED.keys() - lacking == set()


@pytest.mark.parametrize("name", METHODS)
def test_a_stated_range_holds_the_default_and_both_ends_are_values(name: str) -> None:
    for option in factories.options(METHODS[name]):
        place = search_of(option.annotation)
        if place is not None:
            assert place.low <= option.default <= place.high
            assert [option.validate(end, name) for end in place[:2]] == [*place[:2]]


def test_what_the_caller_fixes_is_not_looked_for() -> None:
    job = config("fedprox,fedprox(mu=0.1),fedprox(mu=0.1,local.lr=0.2),scaffold")
    spaces = [space_of(job, method, {}) for method in job.methods or []]
    assert [tuple(space.places) for space in spaces] == [("local.lr", "mu"), ("local.lr",), (), ("local.lr",)]
    assert spaces[0].start == {"local.lr": 0.1, "mu": 0.1}
    assert [space.trials(8) for space in spaces] == [8, 8, 1, 8]


def test_a_range_grows_to_where_the_job_stands() -> None:
    assert space_of(config("fedavg", local={"lr": 3.0}), "fedavg", {}).places == {"local.lr": Search(0.01, 3.0)}


def test_values_become_the_text_of_a_comparison() -> None:
    job = config("fedprox,fedavg(server=adam(beta1=0.8))")
    assert text_of(job, "fedprox", {"local.lr": 0.2, "mu": 0.03}) == "fedprox(mu=0.03,local.lr=0.2)"
    served = (job.methods or [])[1]
    assert tuple(space_of(job, served, {}).places) == ("local.lr", "server.lr")
    assert text_of(job, served, {"server.lr": 0.5}) == "fedavg(server=adam(lr=0.5,beta1=0.8))"


def test_other_ranges_and_more_parameters() -> None:
    job = config("fedprox,fedavgm")
    more = dict(
        read_search(one, job) for one in ("mu=log(0.5,2)", "server_lr=linear(0.5,2)", "local.momentum=linear(0,0.9)")
    )
    assert space_of(job, "fedprox", more).places == {
        "local.lr": Search(0.01, 1.0),
        "local.momentum": Search(0.0, 0.9, "linear"),
        "mu": Search(0.1, 2.0),
        "server_lr": Search(0.5, 2.0, "linear"),
    }
    assert "mu" not in space_of(job, "fedavgm", more).places


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("mu", "--search needs key=log(low,high) or key=linear(low,high), given 'mu'"),
        ("mu=0.1", "--search mu must be log(low,high) or linear(low,high), given '0.1'"),
        ("mu=log(1,0.1)", "--search mu needs 0 < low < high, given log(1,0.1)"),
        ("nu=log(0.1,1)", "--search names 'nu', which no method of the comparison has (did you mean 'mu'?); known: "),
        ("mu=linear(-1,1)", "--search for method fedprox: mu must be a number >= 0, given -1.0"),
        ("local.rate=log(0.1,1)", "method fedprox: unknown key 'local.rate'"),
    ],
)  # fmt: skip
def test_a_range_that_cannot_be_is_one_sentence(written: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        read_search(written, config("fedprox"))


def test_grids_are_the_papers_points_with_the_job_s_own_first() -> None:
    job = config("fedprox,fedavg,scaffold(local.lr=0.3)")
    spaces = [grid_space(job, method, GRIDS["fedadmm"]) for method in job.methods or []]
    assert [space.trials(99) for space in spaces] == [16, 4, 1]  # lr 0.1 and mu 0.1 are points of it
    assert spaces[0].points[0] == {"local.lr": 0.1, "mu": 0.1}
    assert {point["mu"] for point in spaces[0].points} == {0.001, 0.01, 0.1, 1.0}
    own = grid_space(job, "fedavg", read_grid("points(local.lr=[0.3,1])"))
    assert [point["local.lr"] for point in own.points] == [0.1, 0.3, 1.0]
    for written, said in (("fedamm", "did you mean 'fedadmm'"), ("points(mu=0.1)", "must be a list of numbers")):
        with pytest.raises(UserError, match=said):
            read_grid(written)


# -- budgets -------------------------------------------------------------------------------------------------------


def test_rungs_by_hand() -> None:
    assert rungs_of(16, 100) == (Rung(25, 16), Rung(50, 8), Rung(100, 4))
    assert cost(rungs_of(16, 100)) == 16 * 25 + 8 * 25 + 4 * 50
    assert rungs_of(16, 30, every=5) == (Rung(10, 16), Rung(15, 8), Rung(30, 4))
    assert rungs_of(5, 100) == (Rung(25, 5), Rung(50, 2), Rung(100, 2))
    assert rungs_of(2, 100) == (Rung(100, 2),)
    assert rungs_of(16, 2) == (Rung(1, 16), Rung(2, 8))
    assert rungs_of(16, 1) == (Rung(1, 16),)


def test_batches_are_all_trials_once_whatever_runs_at_once() -> None:
    for trials in range(1, 40):
        assert [number for batch in batches(trials) for number in batch] == list(range(trials))
    assert batches(16) == [range(8), range(8, 12), range(12, 16)]


def test_values_are_drawn_from_ranks_alone_and_again_the_same() -> None:
    space = space_of(config("fedprox"), "fedprox", {})
    first = drawn(space, range(8), [])
    assert first[0] == space.start
    assert first == drawn(space, range(8), [])
    rates = sorted(math.log10(values["local.lr"]) for values in first[1:])
    assert max(b - a for a, b in zip([-2.0, *rates], [*rates, 0.0], strict=True)) < 1  # spread over two decades
    later = drawn(space, range(8, 12), first)
    assert later == drawn(space, range(8, 12), first)
    assert later != drawn(space, range(8, 12), first[::-1])
    for values in (*first, *later):
        assert all(space.places[key].low <= value <= space.places[key].high for key, value in values.items())


# -- scores --------------------------------------------------------------------------------------------------------


def run(folder: Path, rows: list[tuple[int, float, float]], status: str = "complete", **more: str) -> Path:
    """A run's folder: rows of round, validation accuracy, test accuracy."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"status": status, "rounds_done": rows[-1][0], **more}))
    with open(folder / "metrics.csv", "w") as file:
        csv.writer(file).writerows([("round", "validation_accuracy", "test_accuracy"), *rows])
    return folder


def test_a_score_is_the_last_evaluations_of_the_validation_samples(tmp_path: Path) -> None:
    rows = [(k, 0.1 * k, 0.9) for k in range(9)]
    a, b = run(tmp_path / "a", rows), run(tmp_path / "b", [(k, v + 0.1, t) for k, v, t in rows])
    error = pytest.approx(0.05)  # of 0.6 and 0.7
    assert score_of([a, b], ACCURACY, 8) == Score(pytest.approx(0.65), None, 0, 0, error)  # rounds 4 to 8
    assert score_of([a], ACCURACY, 4).value == pytest.approx(0.25)  # rounds 1 to 4, whatever came later
    reach = ACCURACY._replace(target=0.45)
    assert score_of([a, b], reach, 8).reached == 4.5  # 5 and 4
    assert score_of([a, b], reach, 4) == Score(pytest.approx(0.3), None, 1, 0, error)


def test_what_diverged_or_never_came_is_no_score(tmp_path: Path) -> None:
    bad = run(tmp_path / "bad", [(0, 0.1, 0.1), (1, 0.9, math.nan)], "diverged")
    short = run(tmp_path / "short", [(0, 0.1, 0.1), (1, 0.9, 0.9)], "running")
    early = run(tmp_path / "early", [(0, 0.1, 0.1), (1, 0.9, 0.9)], stopped="patience")
    for folder in (bad, short, tmp_path / "none"):
        assert score_of([folder], ACCURACY, 4).broken == 1
        assert math.isnan(score_of([early, folder], ACCURACY, 4).value)
    assert score_of([early], ACCURACY, 4) == Score(0.9, None, 0, 0)
    assert score_of([short], ACCURACY, 1).broken == 0


def test_the_order_of_trials() -> None:
    broken, low, high = Score(math.nan, None, 0, 1), Score(0.2, None, 0, 0), Score(0.8, None, 0, 0)
    scores = {0: low, 1: broken, 2: high, 3: high, 4: Score(math.nan, None, 0, 2)}
    assert ranked(scores, ACCURACY) == [2, 3, 0, 1, 4]
    loss = Objective(metric_of("validation_loss"), None, is_held_out=True)
    assert ranked(scores, loss) == [0, 2, 3, 1, 4]
    timed = {0: Score(0.95, 30.0, 0, 0), 1: Score(0.91, 10.0, 0, 0), 2: Score(0.89, None, 1, 0), 3: broken}
    soonest = ACCURACY._replace(target=0.9, soonest=True)
    assert ranked({**timed, 4: Score(0.85, None, 1, 0)}, soonest) == [1, 0, 2, 4, 3]
    assert ranked(timed, ACCURACY._replace(target=0.9)) == [0, 1, 2, 3]  # whatever is reached how soon
    assert (chosen(timed, soonest), chosen(timed, ACCURACY)) == (1, 0)


def test_the_fewest_rounds_decide_among_trials_that_end_alike() -> None:
    """What is early and falls afterwards, trial 1, is not taken; a point or a standard error is no difference."""
    aim = ACCURACY._replace(target=0.9)
    scores = {
        0: Score(0.964, 28.0, 0, 0), 1: Score(0.902, 12.0, 0, 0), 2: Score(0.966, 24.0, 0, 0, 0.004),
        3: Score(0.957, 16.0, 0, 0), 4: Score(0.9665, None, 1, 0), 5: Score(math.nan, None, 0, 2),
    }  # fmt: skip
    assert ranked(scores, aim)[:4] == [4, 2, 0, 3]
    assert chosen(scores, aim) == 3
    assert chosen(scores, ACCURACY) == 4  # without a target where it ends
    wide = {**scores, 4: Score(0.9665, None, 1, 0, 0.07)}
    assert chosen(wide, aim) == 1  # seeds that differ by as much say no more
    loss = Objective(metric_of("validation_loss"), 0.3, is_held_out=True)
    scores = {0: Score(0.20, 9.0, 0, 0, 0.01), 1: Score(0.209, 5.0, 0, 0), 2: Score(0.211, 3.0, 0, 0)}
    assert chosen(scores, loss) == 1
    assert chosen({5: Score(math.nan, None, 0, 2)}, aim) == 5
    assert str(aim) == (
        "final validation accuracy (of trials within one standard error over seeds or one point of the best: the "
        "fewest rounds to 0.9)"
    )


def test_an_edge_says_what_to_extend() -> None:
    job = config("fedprox,fedavgm")

    def found(method: str, **values: float) -> MethodSearch:
        space = space_of(job, method, {})
        best = Trial(
            0, {**space.start, **{k.replace("_lr_", "."): v for k, v in values.items()}}, {8: Score(1, None, 0, 0)}, ()
        )
        return MethodSearch(space, (best,), best)

    [edge] = edges(job, found("fedprox", mu=0.9))
    assert (edge.key, edge.side, edge.search) == ("mu", "high", "mu=log(0.001,3)")
    assert edges(job, found("fedprox", mu=0.3)) == []
    [end] = edges(job, found("fedavgm", server_momentum=0.0))
    assert (end.side, end.search) == ("low", "")  # no momentum is below 0
    alone = Trial(0, {"local.lr": 0.1}, {8: Score(1, None, 0, 0)}, ())
    point = grid_space(job, "fedprox", {"local.lr": [0.1]})
    assert edges(job, MethodSearch(point, (alone,), alone)) == []  # a range of one point has no end


# -- the whole search ----------------------------------------------------------------------------------------------


def files_of(folder: Path) -> dict[str, bytes]:
    """What a search leaves, but for times and the figures of them."""
    names = ("metrics.csv", "tune.json", "compare.json", "partition.csv")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.name in names or path.suffix == ".toml"
    }


def journal(folder: Path) -> optuna.storages.JournalStorage:
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / "study.journal")))


def test_two_methods_on_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command to files that `compare` takes; a method with nothing to tune beside them, and what it is to be
    alone, tuned as the methods are."""
    out = tmp_path / "t"
    options = [f"--{key}={value}" for key, value in DIGITS.items()]
    more = ["--budget", "4", "--jobs", "1", "--final-seeds", "5,6", "--out", str(out)]
    beside = ["--baselines", "local,pooled(local.lr=0.3)"]
    code = cli.call(["tune", "--methods", "fedprox,scaffold(local.lr=0.05)", *beside, *options, *more])
    said = capsys.readouterr().out
    assert code == 0
    assert "scaffold(local.lr=0.05): nothing to tune, so it is only in the final comparison" in said
    assert "each method: 4 trials of budget 4 with seed 0: 4 to round 2, 2 to round 4, 2 to round 8; 20 rounds" in said
    assert "with seeds 5, 6, 8 rounds each; 104 rounds in all" in said
    found = json.loads((out / "tune.json").read_text())
    assert found["objective"] == {"column": "validation_accuracy", "higher": True, "target": None, "held": True}
    method, untuned, alone, pooled = found["methods"]
    assert pooled["winner"] == "pooled(local.lr=0.3)"
    assert len(alone["trials"]) == 4
    single = {
        trial["number"]: trial["scores"][-1]["value"] for trial in alone["trials"] if trial["scores"][-1]["rounds"] == 8
    }
    assert single[alone["best"]] == max(single.values())
    assert (method["cost"]["rounds"], untuned["cost"]["rounds"]) == (20, 0)
    lasts = [(trial["number"], trial["scores"][-1]) for trial in method["trials"]]
    ends = {number: last for number, last in lasts if last["rounds"] == 8}
    assert 0 in ends  # the method as it was goes the whole way, so that the best is no worse
    assert ends[method["best"]]["value"] == max(end["value"] for end in ends.values())
    best = tomllib.loads((out / "best.toml").read_text())
    assert best["methods"] == [f"{method['winner'].removesuffix(')')},label=fedprox)", "scaffold(local.lr=0.05)"]
    assert best["seeds"] == [5, 6]
    assert best["baselines"] == [alone["winner"], "pooled(local.lr=0.3)"]
    again = from_nested({"out": str(tmp_path / "c")}, "test")
    _, planned, _ = plan_comparison(1, from_file(out / "fedprox.toml"), again)
    assert [entry.config.label for entry in planned] == ["fedprox"] * 2
    assert not (out / "local.toml").exists()  # it is no comparison
    assert {path.parent.parent.name for path in (out / "final").glob("*/*/run.json")} >= {"scaffold-local.lr=0.05"}
    page = (out / "report.html").read_text().replace("<wbr>", "")  # where a long name may break
    for text in (
        "Sensitivity",
        "What tuning cost",
        'href="final/report.html"',
        "All trials",
        found["methods"][0]["winner"],
    ):
        assert text in page
    assert not list(out.rglob("trials/**/checkpoint.safetensors"))  # nobody goes on from them
    assert cli.call(["report", str(out)]) == 2
    assert f"{out} holds a search, whose trials are no comparison; give {out / 'final'}" in capsys.readouterr().err
    study = optuna.load_study(study_name="fedprox", storage=journal(out))
    assert [trial.params for trial in study.trials] == [trial["values"] for trial in method["trials"]]
    assert study.best_trial.number == method["best"]


def test_a_trial_that_is_early_and_stands_still_does_not_win(tmp_path: Path) -> None:
    """A step size that is large for two rounds and then nothing, beside one that goes on."""
    job = {**DIGITS, "methods": "fedavg", "rounds": 16, "seeds": [0, 1], "local": {"lr": 0.1}, "eval": {"target": 0.4}}
    asked = tuning.SearchSpec(2, [], "points(local.lr=[3],local.lr_decay=[0.02])", [5])
    planned = tuning.plan_tuning(asked, from_nested({**job, "out": str(tmp_path / "t")}, "test"))
    lines: list[str] = []
    [found] = carry_out(search(planned, lines.append), 1, Watch())
    slow, early = (trial.last for trial in found.trials)
    assert early.reached is not None
    assert slow.reached is not None
    assert early.reached < slow.reached
    assert early.value + early.standard_error < slow.value - slow.standard_error
    assert found.best == found.trials[0]
    rule = "one standard error over seeds or one point of the best: the fewest rounds to 0.4"
    assert (
        f"judged by final validation accuracy (of trials within {rule}); then the winners" in [*sentences(planned)][-1]
    )
    assert f"{slow.reached:.3g} rounds to 0.4 with local.lr 0.1" in lines[-1]


def test_a_winner_that_was_better_before_is_said(tmp_path: Path) -> None:
    job = {**DIGITS, "methods": "fedavg", "out": str(tmp_path / "t")}
    planned = tuning.plan_tuning(tuning.SearchSpec(1), from_nested(job, "test"))
    space = planned.spaces[0]

    def found(*values: float) -> MethodSearch:
        scores = {rounds: Score(value, None, 0, 0) for rounds, value in zip((2, 4, 8), values, strict=True)}
        best = Trial(0, space.start, scores, ())
        return MethodSearch(space, (best,), best)

    assert remarks(planned, found(0.6, 0.9, 0.95)) == []
    assert remarks(planned, found(0.6, 0.956, 0.95)) == []  # less than a point
    assert remarks(planned, found(0.6, 0.947, 0.902)) == [
        "The best ends at validation accuracy 90.20 %, worse than its own 94.70 % at round 4: stop earlier, or search "
        "smaller values."
    ]


QUADRATICS = [
    "--seeds",
    "0",
    "--data",
    "quadratics",
    "--clients",
    "8",
    "--cohort",
    "4",
    "--rounds",
    "100",
    "--final-seeds",
    "2",
]


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedconcord", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(pattern: str, folder: Path, process: subprocess.Popen[str]) -> None:
    for _ in range(6000):
        if list(folder.glob(pattern)):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    raise AssertionError(f"{pattern} never came")


@pytest.mark.slow
def test_a_killed_search_resumes_to_the_files_of_one_that_nobody_killed(tmp_path: Path) -> None:
    """SIGKILL in the second batch, whose values come of the first."""
    job = ["tune", "--methods", "feddyn", *QUADRATICS, "--budget", "6", "--jobs", "1"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert cli.call([*job, "--out", str(whole)]) == 0
    killed = started(*job, "--out", str(broken))
    wait_for("trials/feddyn/4/seed-0/metrics.csv", broken, killed)
    killed.kill()
    killed.communicate(timeout=120)
    assert json.loads((broken / "tune.json").read_text())["status"] == "running"
    assert not (broken / "final").exists()
    lines: list[str] = []
    rounds: list[int] = []
    seen = Rows(lambda row: rounds.append(row.round))
    done = fedconcord.tune(resume=broken, progress=lines.append, callbacks=[seen])
    assert (rounds[0], rounds[-1]) == (0, 100)  # of the one run of the final comparison
    assert rounds == sorted(set(rounds))
    assert [line.partition(":")[0] for line in lines] == [f"feddyn, round {rounds}" for rounds in (25, 50, 100)]
    assert (done.metric, done.methods[0].method, len(done.runs)) == ("distance", "feddyn", 1)
    found = files_of(broken)
    assert len(found) == 11  # six trials and a run of the final comparison, and what is said of them
    assert {k: v.replace(b"/broken", b"/whole") for k, v in found.items()} == files_of(whole)


@pytest.mark.slow
def test_ctrl_c_and_another_number_of_processes_change_nothing(tmp_path: Path) -> None:
    """Two workers, Ctrl-C in the first batch, SIGKILL to the parent in the second; then what one process finds."""
    digits = ["tune", "--methods", "fedavg,fedprox", *(f"--{key}={value}" for key, value in DIGITS.items())]
    job = [*digits, "--budget", "8", "--rounds", "60", "--seeds", "0,1"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert cli.call([*job, "--jobs", "1", "--out", str(one)]) == 0
    first = started(*job, "--jobs", "2", "--out", str(two))
    wait_for("trials/fedprox/1/seed-0/metrics.csv", two, first)
    first.send_signal(signal.SIGINT)
    _, complained = first.communicate(timeout=120)
    again = f"interrupted: {two} is usable as it is; continue with: fedconcord tune --resume {two}\n"
    assert (first.returncode, complained) == (130, again)
    second = started("tune", "--resume", str(two), "--jobs", "2")
    wait_for("trials/fedprox/5/seed-1/run.json", two, second)
    second.kill()
    second.communicate(timeout=120)
    third = started("tune", "--resume", str(two), "--jobs", "2")
    _, complained = third.communicate(timeout=300)
    assert (third.returncode, complained) == (0, "")
    found = {k: v.replace(b"/two", b"/one") for k, v in files_of(two).items() if k != "final/compare.json"}
    assert found == {k: v for k, v in files_of(one).items() if k != "final/compare.json"}  # which says how many jobs


def test_divergent_trials_are_results(tmp_path: Path) -> None:
    """A grid with a step size that diverges: its trial comes last, and the search goes on."""
    job = {"methods": "fedavg", "data": "quadratics", "clients": 8, "cohort": 4, "rounds": 100, "seeds": "0"}
    asked = tuning.SearchSpec(3, [], "points(local.lr=[0.3,1e6])", [7])
    planned = tuning.plan_tuning(asked, from_nested({**job, "out": str(tmp_path / "t")}, "test"))
    [found] = carry_out(search(planned, print), 1, Watch())
    assert [trial.values for trial in found.trials] == [{"local.lr": rate} for rate in (0.1, 0.3, 1e6)]
    assert [trial.last.broken for trial in found.trials] == [0, 0, 1]
    assert found.trials[2].rounds == 25
    assert found.best is not None
    assert found.best.number < 2
    write_journal(tmp_path / "t" / "study.journal", [found], higher=False)
    study = optuna.load_study(study_name="fedavg", storage=journal(tmp_path / "t"))
    assert study.trials[2].intermediate_values == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--budget", "0"], "--budget must be an integer >= 1, given '0'"),
        (["--grid", "fedadmm", "--budget", "5"], "--grid fedadmm has 16 trials for fedprox, the job's own values among "
         "them, given budget 5; give --budget 16"),
        (["--grid", "points(nu=[1])"], "--grid names 'nu', which no method of the comparison has"),
        (["--grid", "fednova", "--search", "mu=log(0.1,1)"], "--search gives ranges and --grid gives points"),
        (["--final-seeds", "0"], "final seeds must be integers >= 0, each once, that tuning does not use, given [0]"),
        (["--final-seeds", "1,one"], "each once, that tuning does not use, given [1,one] with seeds 0, 1; give others"),
        (["--target", "1.5"], "eval.target must be a number > 0 and <= 1, given 1.5: it is of accuracy"),
        (["--engine", "distributed"], "the distributed engine is one run; use engine stacked"),
        (["--data", "quadratics", "--target", "0.5"], "eval.target is an accuracy, which data quadratics does not"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t"
    assert cli.call(["tune", "--methods", "fedprox", "--out", str(out), *arguments]) == 2
    complained = capsys.readouterr().err
    assert complained.startswith("error: ")
    assert complained.count("\n") == 1
    assert said in complained
    assert not out.exists()


def test_a_folder_that_is_no_search_and_settings_that_change(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"holds no search \(no tune.json\); give the folder that fedconcord tune wrote"
    ):
        fedconcord.tune(resume=tmp_path)
    (tmp_path / "tune.json").write_text("{}")
    with pytest.raises(UserError, match=r"cannot read .*tune\.json"):
        fedconcord.tune(resume=tmp_path)
    (tmp_path / "tune.json").write_text('{"settings": {"methods": ["fedavg"]}, "asked": {}}')
    for changed, said in (
        ({"rounds": 5}, r"rounds \(argument\)"),
        ({"budget": 3}, "budget"),
        ({"final_seeds": [4]}, "final_seeds"),
    ):
        with pytest.raises(UserError, match=f"^{said} cannot change when"):
            fedconcord.tune(resume=tmp_path, **changed)  # type: ignore[arg-type]
