"""Flower's own strategies before the referee, as docs/referee.md has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from fedconcord.support.errors import UserError
from fedconcord_referee import adapters, spec, verdict
from pages import ROOT, steps
from tiers import tiers


class Cell(NamedTuple):
    method: str
    kind: str
    name: str = ""


CELLS = {
    "FedAvg()": Cell("fedavg(weights=size)", "equal"),
    "FedAvgM(server_momentum=0.9)": Cell("fedavgm(weights=size)", "equal"),
    "FedProx(proximal_mu=0.5)": Cell("fedprox(mu=0.5,weights=size)", "equal"),
    "FedAdam()": Cell("fedadam(weights=size)", "mistake", "Adam's step size, a round late"),
    "FedYogi(eta=0.1)": Cell("fedyogi(weights=size)", "variant", "second moment from zero"),
    "FedMedian()": Cell("median", "equal"),
    "FedTrimmedAvg(beta=0.2)": Cell("trimmed_mean(share=0.2)", "equal"),
    "Krum(num_malicious_nodes=1)": Cell("krum(hostile=1)", "equal"),
    "MultiKrum(num_malicious_nodes=1, num_nodes_to_select=4)": Cell(
        "multi_krum(hostile=1,keep=4)", "variant", "the chosen by size"
    ),
    "FedAdagrad()": Cell("fedadagrad(weights=size)", "variant", "no first moment, second from zero"),
}


def judged(folder: Path, strategy: str, method: str, kind: spec.Kind = "quadratic") -> verdict.Verdict:
    file = folder / "strategy.py"
    file.write_text(f"from flwr.serverapp import strategy as s\n\n\ndef make():\n    return s.{strategy}\n")
    one = spec.make(method, kind)
    return verdict.judge(one, adapters.flower(f"{file}:make")(one))


@pytest.mark.parametrize("strategy", tiers(CELLS, quick=("FedAdam()",)))
def test_strategies_are_what_the_page_says(strategy: str, tmp_path: Path) -> None:
    cell, kinds = CELLS[strategy], spec.KINDS if strategy != "FedAdam()" else ("quadratic",)
    for kind in kinds:
        result = judged(tmp_path, strategy, cell.method, kind)
        assert (result.kind, result.name) == (cell.kind, cell.name)
    rows = re.findall(r"^\| `(\w+\(.*?\))` \| `(.*?)` \| (.*?) \|$", (ROOT / "docs" / "referee.md").read_text(), re.M)
    assert {row[0]: row[1] for row in rows} == {name: one.method for name, one in CELLS.items()}
    assert {row[0] for row in rows if row[2] == "equal"} == {n for n, one in CELLS.items() if one.kind == "equal"}


@pytest.mark.slow
def test_a_strategy_with_one_spot_changed_agrees(tmp_path: Path) -> None:
    """FedAdam with the powers of its own round is the variant of Kingma and Ba: that spot is all that differs."""
    file = tmp_path / "strategy.py"
    file.write_text(
        "from flwr.serverapp.strategy import FedAdam\n\n\nclass Mine(FedAdam):\n"
        "    def aggregate_train(self, server_round, replies):\n"
        "        return super().aggregate_train(server_round - 1, replies)\n"
    )
    one = spec.make("fedadam(weights=size)")
    result = verdict.judge(one, adapters.flower(f"{file}:Mine")(one))
    assert (result.kind, result.name) == ("variant", "Adam's step size from zero")


@pytest.mark.slow
def test_a_strategy_that_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"it trains nodes .* and the round's are .* fraction_train=1.0"):
        judged(tmp_path, "FedAvg(fraction_train=0.7)", "fedavg")


def both(folder: Path, old: str = "", new: str = "", app: str = "app") -> verdict.Verdict:
    """The page's strategy with its ClientApp, with one spot changed."""
    (text,) = (step.text for step in steps(ROOT / "docs" / "referee.md") if step.file == "both.py")
    assert old in text
    (folder / "both.py").write_text(text.replace(old, new) if old else text)
    one = spec.make("scaffold")
    return verdict.judge(one, adapters.flower(f"{folder / 'both.py'}:Scaffold,{app}")(one))


def test_a_client_app_is_judged_with_its_strategy(tmp_path: Path) -> None:
    """The mistake may lie on either side; state that a client keeps is its own."""
    result = both(tmp_path)
    assert result.name == "memory averaged over the cohort"
    assert result.departure is not None
    assert result.departure.clients
    assert both(tmp_path, "np.mean(changes, axis=0)", "np.sum(changes, axis=0) / 8").kind == "equal"


@pytest.mark.slow
def test_a_broken_client_app_is_one_sentence(tmp_path: Path) -> None:
    assert both(tmp_path, "+ c - ci", "- c + ci").name.startswith("sign of the correction + ")
    with pytest.raises(UserError, match="failed with exit code 1 before it answered a round: ZeroDivisionError"):
        both(tmp_path, "task = context.task", "task = context.task, 1 / 0")
    with pytest.raises(UserError, match="AttributeError: module 'judged' has no attribute 'application'"):
        both(tmp_path, app="application")
    with pytest.raises(UserError, match="x after round 1 has NaN"):
        both(tmp_path, "task.gradient(y)", "float('nan') * task.gradient(y)")
    with pytest.raises(UserError, match=r"--flower must be FILE:STRATEGY,APP, as in mine.py:strategy,app, given"):
        both(tmp_path, app="app,other")
