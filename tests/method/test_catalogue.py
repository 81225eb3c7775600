"""What methods keep, send and compute, as measured from their bundles."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedconcord.execution.engines import Stacked
from fedconcord.execution.job import Job, advance, refusals, start
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed
from fedconcord.insight.methods import catalogue
from fedconcord.insight.methods.catalogue import BATCH, CLIENTS, DIM, SAMPLES, Costs, cells, describe, measure, table
from fedconcord.method.algorithms import METHODS, plugins
from fedconcord.method.contract import Facts, Oracle
from fedconcord.method.wrappers.uploads import quantise, topk, with_uploads
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import factories
from fedconcord.support.errors import UserError
from fedconcord.support.grammar import Spec
from fits import COHORT, fits
from table import TABLE


def test_every_method_has_a_group() -> None:
    """One, and no group names a method that is not there."""
    grouped = [name for names in catalogue.groups().values() for name in names]
    assert sorted(grouped) == sorted(METHODS)


@pytest.mark.parametrize(
    ("method", "client", "server", "up", "down", "step", "whole"),
    [
        # vectors kept by a client and by the server, (vectors, scalars) up and down, further gradients;
        # down with what the server sends after its step
        ("fedavg", 0, 1, (1, 0), (1, 0), 0, 0),
        ("fedadam", 0, 3, (1, 0), (1, 0), 0, 0),
        ("fedcm", 0, 2, (1, 1), (2, 0), 0, 0),
        ("mofedsam", 0, 2, (1, 1), (2, 0), 1, 0),
        ("fednova", 0, 1, (1, 2), (1, 0), 0, 0),
        ("scaffold", 1, 2, (2, 0), (2, 0), 0, 0),
        ("scaffold(option=1)", 1, 2, (2, 0), (2, 0), 0, 1),
        ("mimesvrg", 0, 1, (2, 0), (2, 0), 1, 1),
        ("losac", 5, 2, (2, 0), (2, 0), 0, 0),
        ("losac(blocks=2)", 2, 2, (2, 0), (2, 0), 0, 0),
        ("fedsaga", 5, 1, (1, 0), (1, 0), 0, 0),
        ("fedadmm", 1, 1, (1, 0), (1, 0), 0, 0),
        ("fedadmm(form=paper)", 2, 1, (1, 0), (1, 0), 0, 0),
        ("fedadmm(form=paper_from_theta)", 2, 1, (1, 0), (1, 0), 0, 0),
        ("fedadmm(rho=[[0,0.01],[60,0.1]])", 1, 1, (1, 0), (1, 1), 0, 0),
        ("fedsmoo", 2, 4, (2, 0), (2, 0), 1, 0),
        ("fedpd", 3, 1, (1, 0), (2, 0), 0, 0),
        ("fedvra", 1, 2, (1, 0), (1, 1), 0, 0),
        ("afedpd", 1, 2, (1, 0), (3, 0), 0, 0),
        ("afedpdsam", 1, 2, (1, 0), (3, 0), 1, 0),
        ("fedsam", 0, 1, (1, 0), (1, 0), 1, 0),
    ],
)
def test_facts(
    method: str, client: int, server: int, up: tuple[int, int], down: tuple[int, int], step: int, whole: int
) -> None:
    costs = describe(method)
    assert (costs.client, costs.server) == (client, server)
    assert (costs.up, costs.up_scalars) == up
    assert (costs.down, costs.down_scalars) == down
    assert (costs.step_gradients, costs.round_gradients) == (step, whole)


def test_who_must_take_part_and_who_needs_a_hessian() -> None:
    everyone = {name for name in METHODS if describe(name).everyone}
    assert everyone == {"vrlsgd", "fedpd", "fedhybrid", "afl"}
    assert {name for name in METHODS if describe(name).hessian} == {"fedhybrid"}


def test_compressed_messages_are_counted_in_bytes() -> None:
    packed = measure("", with_uploads(METHODS["scaffold"](), quantise(200)))
    assert (packed.up, packed.up_scalars) == (2 * 0.5, 2)
    sparse = measure("", with_uploads(METHODS["fedavg"](), topk(0.5)))
    assert (sparse.up, sparse.up_scalars, sparse.client) == (0.5 * 2, 0, 1)  # a position is as large as a value


@pytest.mark.parametrize("name", METHODS)
def test_messages_agree_with_the_bytes_of_a_run(name: str) -> None:
    costs = describe(name)
    problem = quadratics(1, CLIENTS, torch.float32, torch.device("cpu"), dim=DIM, blocks=SAMPLES)
    schedule = Schedule(1, CLIENTS, 0.01, fixed(3), "steps", BATCH)
    method = replace(METHODS[name](), client_model=None)  # nobody here has samples to be judged on
    job = Job(problem, method, schedule, engine=Stacked(None))
    state = advance(job, start(job))
    assert state.bytes_up == CLIENTS * 4 * (costs.up * DIM + costs.up_scalars)
    assert state.bytes_down == CLIENTS * 4 * (costs.down * DIM + costs.down_scalars)
    rows = sum(leaf.numel() for leaf in state.store.export().values() if leaf.ndim > 1 and leaf[0].numel() > 1)
    assert rows == CLIENTS * costs.client * DIM
    if METHODS[name]().step.oracle != Oracle("full"):
        steps = 3 * (1 + costs.step_gradients) + costs.round_gradients * SAMPLES / BATCH
        assert state.gradient_steps == CLIENTS * steps


def test_the_table_fits_80_columns() -> None:
    rows = [catalogue.COLUMNS, *(cells(costs) for group in table() for costs in group.methods)]
    assert len(rows) == 1 + len(METHODS)
    widths = [max(len(row[k]) for row in rows) for k in range(len(catalogue.COLUMNS))]
    assert sum(widths) + 2 * len(widths) + 2 <= 80
    assert cells(describe("mimesvrg")) == ("mimesvrg", "0", "1", "2", "2", "1", "1", "any")
    assert cells(describe("fednova"))[3] == "1+2s"
    assert cells(describe("fedhybrid"))[4:] == ("1+1s", "4", "0+H", "all")


def test_methods_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the group that they state, or one of their own; what breaks is not measured and harms no other."""
    broken = replace(METHODS["fedavg"](), start=lambda *arguments: 1 / 0)
    silent = replace(METHODS["scaffold"](), facts=Facts())
    new = replace(METHODS["scaffold"](), facts=Facts(group="Newton steps"))
    more = {**METHODS, "theirs": METHODS["scaffold"], "silent": lambda: silent, "new": lambda: new}
    more |= {"broken": lambda: replace(broken, facts=Facts()), "unmade": lambda: 1 / 0}
    monkeypatch.setattr(plugins, "available", lambda: more)
    groups = {group.title: group.methods for group in table()}
    assert groups["control variates"][-1] == describe("scaffold")._replace(name="theirs")
    assert list(groups)[-2:] == ["Newton steps", catalogue.FOREIGN]
    assert [costs.name for costs in groups["Newton steps"]] == ["new"]
    theirs, failed, unmade = groups[catalogue.FOREIGN]
    assert theirs == describe("scaffold")._replace(name="silent")
    assert (unmade.name, math.isnan(unmade.up)) == ("unmade", True)
    assert failed.name == "broken"
    assert math.isnan(failed.up)
    assert cells(failed) == ("broken", "?", "?", "?", "?", "?", "?", "any")
    assert Costs("broken").everyone is False


def test_an_unknown_method_is_one_sentence() -> None:
    with pytest.raises(UserError, match="unknown method 'scafold'"):
        describe("scafold")


# -- what goes together ------------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "absent clients": {},
    "local momentum": {"local.momentum": 0.9},
    "SAM gradients": {"local.oracle": "sam(0.1)"},
    "L-BFGS at the clients": {"local.solver": "lbfgs"},
    "another server optimiser": {"server": "momentum(0.9)"},
    "quantised uploads": {"upload": "quantise(8)"},
    "sparse uploads with error feedback": {"upload": "topk(0.1)"},
    "late replies": {"devices": "lognormal(0.5)", "deadline": 1.0, "late": "keep"},
    "robust rules": {"aggregate": "median"},
}


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_goes_with_is_what_its_jobs_are_refused_for(name: str) -> None:
    options = {key: value for key, value in TABLE[name].options.items() if key == "blocks"}
    algorithm = METHODS[name](**options)
    found = {fit.what: fit.reason for fit in fits(algorithm)}
    for what, given in SETTINGS.items():
        cohort = 10 if algorithm.needs.everyone and what != "absent clients" else COHORT
        common = {"method": str(Spec(name, (), options)), "data": "quadratics", "clients": 10, "cohort": cohort}
        try:
            job = build(resolve_run(from_nested(common | given, "here")))
            refusals.check(replace(job, algorithm=replace(job.algorithm, client_model=None)))  # not of these data
            refused = False
        except UserError:
            refused = True
        assert refused == (found[what] is not None), what


def test_privacy_covers_what_its_page_lists() -> None:
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    listed = re.search(r"Of the methods here these are\n(.*?); with any", page, re.DOTALL)
    assert listed is not None
    covered = {
        factories.describe(METHODS[name])[0].partition(":")[0].lower()
        for name in METHODS
        for fit in fits(METHODS[name]())
        if fit.what == "differential privacy" and fit.reason is None
    }
    assert covered == set(re.split(r",\s+|\s+and\s+", listed[1].lower()))
