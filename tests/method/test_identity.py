"""Every method says which it is, with all of its parameters."""

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedconcord.execution.job import Job, checkpoint, start
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation import clock, dropout
from fedconcord.federation.participation.availability import markov
from fedconcord.federation.participation.sampling import cyclic
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.wrappers.late import with_late_replies
from fedconcord.method.wrappers.perturbed import with_estimated_ascent
from fedconcord.method.wrappers.server import OPTIMIZERS, with_server
from fedconcord.method.wrappers.tables import with_table
from fedconcord.method.wrappers.uploads import COMPRESSORS, NONE, with_uploads
from fedconcord.support.errors import UserError

WRAPPERS = (with_estimated_ascent, with_late_replies, with_server, with_table, with_uploads)
FACTORIES = {**METHODS, **COMPRESSORS, **OPTIMIZERS, **{w.__name__: w for w in WRAPPERS}}


def rebuilt(value: Any) -> Any:
    """The thing that a text of an identity, read as JSON, says."""
    if isinstance(value, dict):
        thing = FACTORIES[value["name"]](**{name: rebuilt(part) for name, part in value["parameters"].items()})
        assert thing.identity.version == value["version"]
        return thing
    return [rebuilt(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_which_it_is_and_is_rebuilt_from_the_text(name: str) -> None:
    made = METHODS[name]().identity
    assert made.name == name
    assert {key for key, _ in made.parameters} == set(inspect.signature(METHODS[name]).parameters)
    assert rebuilt(json.loads(str(made))).identity == made


MEANT = """
auto(duals=own, weights=uniform)
fedsgd(server_lr=1.0, weights=uniform)
fedavg(server_lr=1.0, weights=uniform)
fedavgm(server_lr=1.0, server_momentum=0.9, weights=uniform)
fedadam(beta1=0.9, beta2=0.99, bias_correction=False, eps_root=0.0, server_lr=0.1, tau=0.001, v0=None, weights=uniform)
fedyogi(beta1=0.9, beta2=0.99, bias_correction=False, eps_root=0.0, m0=0.0, server_lr=0.1, tau=0.001, v0=None, \
weights=uniform)
fedadagrad(beta1=0.9, eps_root=0.0, server_lr=0.1, tau=0.001, v0=None, weights=uniform)
fedexp(eps=0.001, weights=uniform)
fedpaq(levels=127, server_lr=1.0, weights=uniform)
fedprox(mu=0.1, server_lr=1.0, weights=uniform)
fedsam(radius=0.1, server_lr=1.0, weights=uniform)
fedcm(alpha=0.1, server_lr=1.0, weights=uniform) version 3
mofedsam(alpha=0.1, radius=0.1, server_lr=1.0, weights=uniform) version 2
mfl(momentum=0.9, server_lr=1.0, weights=uniform)
fednova(mu=0.0, server_lr=1.0, tau_eff=a, weights=size)
fednova_vr(mu=0.0, server_lr=1.0, tau_eff=a, weights=size)
scaffold(option=2, server_lr=1.0, weights=uniform)
vrlsgd()
fedgamma(radius=0.01, server_lr=1.0, weights=uniform)
mimesvrg(server_lr=1.0, weights=uniform)
fedsaga(blocks=5, xscale=S)
losac(block_scale=1.0, blocks=5, init=zero, scaling=consistent)
feddyn(alpha=0.1, weights=uniform)
fedspeed(alpha=0.1, radius=0.1)
fedsmoo(alpha=0.1, radius=0.1)
fedpd(eta=1.0, p_skip=0.0)
fedadmm(form=released, rho=0.01, server_lr=1.0) version 2
fedadmm_inexact(objective=sum, rho=1.0, server_lr=0.0001, server_steps=None)
fedhybrid(gradient_dual_lr=0.5, newton_dual_lr=0.5, newton_lr=1.0, newton_share=0.5, rho=1.0) version 2
fedvra(a=7.0, d=10.0, gamma=0.1, weights=uniform)
afedpd(rho=0.1, weights=uniform)
afedpdsam(radius=0.1, rho=0.1, weights=uniform)
"""


def test_a_name_alone_means_what_it_meant() -> None:
    """Defaults are part of every result: another one is a decision, and another version of the definition.

    A method that is not among these yet is free.
    """
    found = set()
    for made in (METHODS[name]().identity for name in METHODS):
        given = ", ".join(f"{key}={value}" for key, value in made.parameters)
        found.add(f"{made.name}({given})" + (f" version {made.version}" if made.version > 1 else ""))
    assert not set(MEANT.strip().split("\n")) - found


def test_parameters_parts_and_their_order_make_it() -> None:
    scaffold, fedavg = METHODS["scaffold"], METHODS["fedavg"]
    coarse, adam = COMPRESSORS["quantise"](7), OPTIMIZERS["adam"]()
    kinds = [
        scaffold(),
        scaffold(option=1),
        fedavg(),
        with_server(fedavg(), adam),
        with_server(with_uploads(fedavg(), coarse), adam),
        with_uploads(with_server(fedavg(), adam), coarse),
        with_late_replies(fedavg()),
        with_table(fedavg(), 3),
        with_table(fedavg(), 4),
        with_estimated_ascent(fedavg(), 0.1),
        METHODS["fedvra"](gamma=[0.1, 0.2]),
    ]
    texts = {str(kind.identity) for kind in kinds}
    assert len(texts) == len(kinds)
    for text in texts:
        assert str(rebuilt(json.loads(text)).identity) == text
    assert scaffold(2).identity == scaffold(option=2).identity == scaffold().identity


def test_no_compression_changes_nothing() -> None:
    plain = METHODS["fedavg"]()
    assert with_uploads(plain, NONE) is plain


def test_policies_say_which_they_are_and_a_checkpoint_refuses_others(tmp_path: Path) -> None:
    problem = quadratics(0, 5, torch.float64, torch.device("cpu"))
    schedule = Schedule(0, 2, 0.1, uniform(1, 3), "steps", dropout=dropout.fixed(0.1), devices=clock.lognormal(0.3))
    for policy in (schedule.work, schedule.dropout, schedule.devices, schedule.sampler, markov(0.1, 0.3)):
        assert policy.identity.name != ""  # type: ignore[union-attr]
    job = Job(problem, METHODS["fedavg"](), schedule)
    checkpoint.save(job, start(job), tmp_path / "c")
    assert checkpoint.load(replace(job, schedule=replace(schedule)), tmp_path / "c").round == 0
    others = {
        "work": uniform(1, 4),
        "dropout": dropout.fixed(0.2),
        "devices": clock.lognormal(0.4),
        "sampler": cyclic(),
        "availability": markov(0.1, 0.3),
    }
    for name, other in others.items():
        with pytest.raises(UserError, match=f"schedule.{name}"):
            checkpoint.load(replace(job, schedule=replace(schedule, **{name: other})), tmp_path / "c")
