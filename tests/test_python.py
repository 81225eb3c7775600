"""What the package offers beside `run` and `compare`: states in files, the contract's help, commands as functions."""

from __future__ import annotations

import pydoc
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

import fedconcord
from fedconcord import METHODS, PROBLEMS, Algorithm, Job, Schedule, UserError, advance, load, save, start
from fedconcord.core import tree_leaves


def job(method: str = "scaffold", **options: int) -> Job:
    problem = PROBLEMS["quadratics"](0, 8, torch.float64, torch.device("cpu"))
    return Job(problem, METHODS[method](**options), Schedule(seed=0, cohort=3, lr=0.1))


# -- states --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "options"), [("scaffold", {}), ("losac", {"blocks": 3})])  # rows; a table
def test_a_state_comes_back_from_its_file_to_the_bit(tmp_path: Path, method: str, options: dict[str, int]) -> None:
    this = job(method, **options)
    state = advance(this, start(this))
    save(this, state, tmp_path / "deep" / "state.safetensors")
    ends = []
    for begin in (state, load(job(method, **options), str(tmp_path / "deep" / "state.safetensors"))):
        for _ in range(3):
            begin = advance(this, begin)
        ends.append(begin)
    one, other = ends
    assert (one.round, one.bytes_up, one.gradient_steps) == (other.round, other.bytes_up, other.gradient_steps)
    every = np.arange(8)
    for a, b in ((one.server, other.server), (one.store.gather(every), other.store.gather(every))):
        assert tree_leaves(a).keys() == tree_leaves(b).keys()
        assert all(torch.equal(leaf, tree_leaves(b)[name]) for name, leaf in tree_leaves(a).items())


def test_a_round_changes_rows_in_place_as_it_says() -> None:
    this = job()
    before = start(this)
    after = advance(this, before)
    assert after.store is before.store
    assert before.round == 0
    assert "changed in place" in " ".join((advance.__doc__ or "").split())


def test_a_state_of_another_job_and_no_state_are_refused(tmp_path: Path) -> None:
    save(job(), start(job()), tmp_path / "s")
    with pytest.raises(UserError, match=r"belongs to another job, whose method is \"scaffold .version 1.\""):
        load(job("fedavg"), tmp_path / "s")
    with pytest.raises(UserError, match=r"there is no checkpoint .*none; write one with fedconcord\.save"):
        load(job(), tmp_path / "none")


def test_help_says_what_every_field_of_a_method_means() -> None:
    text = pydoc.render_doc(Algorithm, renderer=pydoc.plaintext)
    for field in fields(Algorithm):
        assert re.search(rf"^ \|\s+{field.name}: .*\w", text, re.MULTILINE), field.name
    assert fedconcord.Algorithm is Algorithm
