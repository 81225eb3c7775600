"""Advice: what is seen of a federation against closed forms, methods that can run, rules held to measured outcomes."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedconcord import Dataset, UserError
from fedconcord.execution.job import refusals, train
from fedconcord.insight.advice import FederationFacts, Wishes, advise, as_json, facts_of, federation_of, lines_of
from fedconcord.insight.advice.choice import cautions, choose, methods_of, name_of, ranges, rules, slower
from fedconcord.insight.advice.facts import feature_skew, label_distances
from fedconcord.insight.methods import catalogue
from fedconcord.interface.cli.main import call
from fedconcord.method.algorithms import plugins
from fedconcord.study.settings.job import build
from fedconcord.study.settings.methods import read_method, single
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import from_nested

ROOT = Path(__file__).parents[2]
OUTCOMES: dict[str, Any] = json.loads((ROOT / "benchmarks" / "federations.json").read_text())


def federation(**given: Any) -> Config:
    return federation_of(from_nested(given, "test"))


def seen(**given: Any) -> FederationFacts:
    return facts_of(federation(**given))


@pytest.fixture(scope="module")
def measured() -> Any:
    """The module benchmarks/federations.py."""
    spec = importlib.util.spec_from_file_location("federations", ROOT / "benchmarks" / "federations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- what is seen --------------------------------------------------------------------------------------------------


def of_two_clients(x: list[float], y: list[int], classes: int) -> tuple[Dataset, list[np.ndarray]]:
    """Half of the samples each."""
    samples, labels = np.array(x, np.float32)[:, None], np.array(y, np.int64)
    parts = np.split(np.arange(len(x)), 2)
    return Dataset("two", samples, labels, samples, labels, classes), parts


def test_feature_skew_is_the_intraclass_correlation() -> None:
    """Two clients a -+ 1 and b -+ 1: between (a - b)^2, within 2, so ((a - b)^2 - 2) / 2 of the sum with 2."""
    of_two = of_two_clients([-1, 1, 3, 5], [0, 0, 0, 0], 1)
    assert feature_skew(*of_two) == pytest.approx(7 / 9)
    assert feature_skew(*of_two_clients([-1, 1, -1, 1], [0, 0, 0, 0], 1)) == 0


def test_feature_skew_leaves_labels_apart() -> None:
    """Features that the label alone decides are no skew, however the labels lie."""
    assert feature_skew(*of_two_clients([0, 0.1, 7, 7.1], [0, 0, 1, 1], 2)) == pytest.approx(0, abs=1e-9)


def test_feature_skew_sees_turned_images_and_no_random_deal() -> None:
    turned, dealt = (seen(partition="iid", clients=20, skew=skew).features for skew in ("rotate(90)", None))
    assert turned is not None
    assert dealt is not None
    assert turned > 0.2 > 0.02 > dealt


def test_clients_that_are_drawn_as_they_come_are_counted() -> None:
    facts = seen(data="synthetic(1,1)", clients=12_000, model="logreg", rounds=20)
    assert (facts.clients, facts.labels, facts.features) == (12_000, None, None)
    assert facts.visits == pytest.approx(20 * 10 / 12_000)


def test_symbols_have_no_feature_skew() -> None:
    assert seen(data="topics(stride=64)", model="charlm", cohort=5).features is None


def test_label_distances() -> None:
    """A class a client is 1 from the mix of both; dealt at random it is mostly less."""
    own, chance = label_distances(*of_two_clients([0] * 40, [0] * 20 + [1] * 20, 2), seed=0)
    assert own == 1
    assert chance < 0.5
    same, _ = label_distances(*of_two_clients([0] * 4, [0, 1, 0, 1], 2), seed=0)
    assert same == 0


def test_label_skew_of_a_random_deal_is_near_0() -> None:
    facts = seen(partition="iid", clients=200)
    assert facts.labels is not None
    assert facts.labels > 0.5  # of seven samples a client
    assert facts.label_skew < 0.05


def test_turnout_is_that_of_the_plans() -> None:
    facts = seen(clients=40, cohort=10, rounds=60, local={"epochs": "by_client(1,5)"})
    assert (facts.cohort, facts.share, facts.visits, facts.lost) == (10, 0.25, 15, 0)
    assert facts.steps[0] == 4  # one epoch of 36 samples, ten a step
    assert facts.steps[2] == 20
    half = seen(clients=40, cohort=10, rounds=60, dropout=0.5)
    assert half.lost == pytest.approx(0.5, abs=0.1)
    assert half.cohort == pytest.approx(10 * (1 - half.lost))
    away = seen(clients=40, cohort=30, rounds=60, availability="coins(0.2,0.2)")
    assert away.cohort == pytest.approx(8, abs=1)


# -- what is named -------------------------------------------------------------------------------------------------

PLAIN = {"clients": 40, "cohort": 10, "rounds": 60}


def test_the_rules_are_whole() -> None:
    """Every method of a rule begins with parameters that are tuned, and some rule holds everywhere."""
    assert rules()[-1].condition.holds(
        FederationFacts(4, 1, 1.0, 0.0, (1, 1.0, 1), (1, 1.0, 1), 0.0, None, None, None, 4)
    )
    for text in methods_of(rules()):
        begun, local = read_method(text)
        assert {*begun.given, *local} <= {*ranges(begun.name)}, f"{text} begins with a setting that is not tuned"
    assert {caution.method for caution in cautions()} <= set(plugins.available())


def test_the_first_rule_that_holds_comes_first_and_later_ones_fill_up() -> None:
    facts = FederationFacts(100, 10, 5.0, 0.0, (1, 1.0, 1), (1, 1.0, 1), 0.0, None, None, 0.5, 4)  # features differ
    every, methods = rules(), set(methods_of(rules()))
    holding = [rule for rule in every if rule.condition.holds(facts)]
    first, last = holding[0], holding[-1]
    assert first != last
    assert [pick for pick, _ in choose(every, facts, methods)] == list(first.picks[:3])
    without = choose(every, facts, methods - {first.picks[0].method})
    assert without[0] == (first.picks[1], first)
    only = choose(every, facts, {last.picks[-1].method})
    assert only == [(last.picks[-1], last)]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"cohort": 40},
        {"availability": "coins(0.5,0.9)", "sampling": "uniform", "dropout": 0.3},
        {"devices": "lognormal(1.0)", "deadline": 0.5, "late": "keep"},
        {"local": {"solver": "lbfgs", "batch_size": "full"}},
        {"regulariser": "l1(0.001)"},
        {"upload": "topk(0.1)"},
        {"sampling": "power_of_choice(20)"},
    ],
    ids=str,
)
def test_what_is_named_can_run(given: dict[str, Any]) -> None:
    config = federation(**{**PLAIN, **given})
    found = advise(config)
    assert 2 <= len(found.named) <= 3
    for one in found.named:
        job = build(single(config, one.method, 0))
        assert list(refusals.reasons(job)) == []
        assert one.up == job.cost.up
        *_, last = train(job, 1)
        assert last.bytes_up > 0


@pytest.mark.parametrize("clock", [None, "asynchronous(4)"])
def test_what_was_measured_on_rounds_that_wait_is_said_to_be(clock: str | None) -> None:
    clocks = {} if clock is None else {"clock": clock, "devices": "equal"}
    text = "\n".join(lines_of(advise(federation(data="synthetic(0,0)", model="logreg", clients=10, **clocks))))
    assert ("what was measured is of rounds that wait" in text) == (clock is not None)


def test_what_cannot_run_is_advised_against_in_its_own_words() -> None:
    """FedCM divides by local steps, which L-BFGS does not have; without that it is named here."""
    usual = advise(federation(**PLAIN))
    assert "fedcm" in [name_of(one.method) for one in usual.named]
    found = advise(federation(**PLAIN, local={"solver": "lbfgs", "batch_size": "full"}))
    assert "fedcm" not in [name_of(one.method) for one in found.named]
    assert "L-BFGS" in found.against["fedcm"]


@pytest.mark.parametrize("wishes", [Wishes(stateless=True), Wishes(private=True), Wishes(uplink="slow")], ids=str)
def test_wishes_are_kept(wishes: Wishes) -> None:
    config = federation(**PLAIN)
    found = advise(config, wishes)
    assert len(found.named) == 3
    for one in found.named:
        costs = catalogue.describe(name_of(one.method))
        assert one.kept == 0 or not (wishes.stateless or wishes.private)
        assert (one.kept == 0) == (costs.client == 0)
        assert costs.up <= 1
    stateful = {name_of(text) for text in methods_of(rules()) if catalogue.describe(name_of(text)).client > 0}
    if wishes.stateless:
        assert stateful
        assert stateful <= set(found.against)


def test_an_uplink_too_small_for_the_model_compresses() -> None:
    config = federation(**PLAIN)
    model = facts_of(config).model_bytes
    assert advise(config, Wishes(uplink=2 * model)).config.upload is None
    found = advise(config, Wishes(uplink=model // 3))
    assert found.config.upload == "quantise"
    assert all(one.up <= model // 3 for one in found.named)
    assert "--upload quantise" in as_json(found)["command"]
    with pytest.raises(UserError, match=r"not even .* bytes a round, and 5 are allowed"):
        advise(config, Wishes(uplink=5))


# -- the command ---------------------------------------------------------------------------------------------------


def words_of(command: str) -> list[str]:
    """The arguments of the next command that say which federation it is."""
    program, tune, *words = shlex.split(command)
    assert (program, tune) == ("fedconcord", "tune")
    for option in ("--methods", "--budget", "--seeds", "--jobs", "--out"):
        place = words.index(option)
        del words[place : place + 2]
    return words


@pytest.mark.parametrize(
    "given",
    [
        ["--data", str(ROOT / "examples" / "cancer.csv"), "--label-column", "diagnosis", "--client-column", "site"],
        ["--config", str(ROOT / "examples" / "demo.toml")],
        [
            *("--config", str(ROOT / "examples" / "flower" / "job.toml")),  # which names no data
            *("--data", str(ROOT / "examples" / "hospitals.csv"), "--client-column", "hospital"),
        ],
        ["--data", "synthetic(1,1)", "--model", "logreg", "--set", "local.clip=5", "--set", "dropout=by_client(0,0.2)"],
    ],
    ids=["cancer", "demo", "part of a job", "synthetic"],
)
def test_the_next_command_is_of_the_same_federation(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["advise", *given, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert call(["advise", *words_of(first["command"]), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again == first


def test_the_command_says_it_in_lines_and_writes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedconcord", "advise", "--clients", "40", "--rounds", "20", "--stateless"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    config = federation(clients=40, rounds=20)
    assert done.stdout.splitlines() == lines_of(advise(config, Wishes(stateless=True)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_times_are_those_of_the_page_of_costs() -> None:
    """The least and the most of the four jobs; a method that was not measured has none, and FedAvg is the yardstick."""
    page = (ROOT / "docs" / "cost.md").read_text().split("<!-- cost: end -->")[0]
    for name in ("afedpd", "feddyn", "fedsam", "losac"):
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {name} |"))
        ratios = [float(cell) for cell in line.split("|")[2:6] if cell.strip() != "-"]
        assert slower(name) == pytest.approx((min(ratios), max(ratios)), abs=0.006)
    assert slower("fedavg") is slower("mine") is None


def test_the_next_command_tunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What advice says to type runs as it stands; here in a folder of its own, with two trials a method."""
    monkeypatch.chdir(tmp_path)
    config = federation(clients=20, cohort=5, rounds=3)
    _, *words = shlex.split(as_json(advise(config))["command"])
    words[words.index("--budget") + 1] = "2"
    assert call([*words, "--final-seeds", "2"]) == 0
    assert list((tmp_path / "runs" / "tuned").glob("*.toml"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--uplink", "fast"], "--uplink must be slow or a number of bytes >= 1, given 'fast'"),
        (["--uplink", "0"], "--uplink must be slow or a number of bytes >= 1, given '0'"),
        (["--data", "nowhere"], "unknown data set 'nowhere'"),
        (["--set", "devices=equal", "--set", "deadline=1e-9"], "no client replies in the first 100 rounds"),
        (["--methods", "fedavg"], "unknown option --methods"),
    ],
)
def test_a_mistake_is_a_sentence(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["advise", *given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


# -- the rules against what was measured ---------------------------------------------------------------------------


def test_the_page_prints_what_the_rules_and_outcomes_come_to(measured: Any) -> None:
    """Every table of docs/choosing.md, the shares among them, is made anew from the rules and the outcomes."""
    page = (ROOT / "docs" / "choosing.md").read_text()
    assert measured.filled(page, measured.tables(OUTCOMES)) == page
    for place in measured.tables(OUTCOMES):
        assert f"<!-- {place} -->" in page


def test_enough_was_measured_and_held_out(measured: Any) -> None:
    assert set(OUTCOMES) == set(measured.FEDERATIONS)
    assert len(OUTCOMES) >= 10
    assert sum(one["held_out"] for one in OUTCOMES.values()) >= 3
    for name, one in OUTCOMES.items():
        assert one["settings"] == measured.FEDERATIONS[name].settings
        assert one["held_out"] == measured.FEDERATIONS[name].held_out
        assert len(measured.values(one, "score")) >= 10, f"{name}: too few methods ran"


def test_a_share_counts_what_is_within_5_percent(measured: Any) -> None:
    def of(score: float) -> dict[str, Any]:
        return {"score": score, "curves": [[score]]}

    one = {"metric": "test_accuracy", "methods": {"fedavg": of(0.8), "scaffold": of(0.77), "feddyn": of(0.75)}}
    assert [measured.near(one, name, "score") for name in one["methods"]] == [True, True, False]
    errors = {"metric": "test_rmse", "methods": {"fedavg": of(-50), "scaffold": of(-52), "feddyn": of(-53)}}
    assert [measured.near(errors, name, "score") for name in errors["methods"]] == [True, True, False]
    assert not measured.near({**one, "methods": {**one["methods"], "fedavg": {"refused": "why"}}}, "fedavg", "score")


@pytest.mark.parametrize("name", [name for name, one in OUTCOMES.items() if one["settings"]["data"] != "mnist"])
def test_the_facts_of_the_outcomes_are_those_that_are_seen(name: str, measured: Any) -> None:
    given = measured.FEDERATIONS[name].settings
    if given["data"].endswith(".csv"):
        given = {**given, "data": str(ROOT / given["data"])}
    found, kept = measured.facts_of(given), OUTCOMES[name]["facts"]
    assert found.keys() == kept.keys()
    for key, value in kept.items():
        close = value is None or isinstance(value, str)
        assert found[key] == (value if close else pytest.approx(value, rel=1e-3, abs=1e-6)), key


@pytest.mark.slow
def test_an_outcome_is_measured_again(measured: Any) -> None:
    found = OUTCOMES["easy"]["methods"]["fedavg"]
    again = [measured.measure(OUTCOMES["easy"]["settings"], found["best"], seed).test for seed in measured.FRESH]
    assert sum(again) / 2 == pytest.approx(found["score"], abs=0.01)
