"""Differential privacy of persons with several rows at real sites: as in a simulation, and nothing of who is whose."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_deploy_core import Federation, far, leaves, quick_disk, simulated, with_
from test_deploy_private import JOB, NONE, SITES, Private, arrays

from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame
from fedconcord.support.errors import UserError
from fedconcord_sites.policy import USUAL
from fedconcord_sites.site import Site

__all__ = ["quick_disk"]  # a fixture
PERSONS = {"unit": "person", "clip": 0.3, "noise": 1.0}
EVERYONE = with_(JOB, local={"batch_size": "poisson(1)"}, privacy=PERSONS, input={"person": "patient"})
Bytes = Mapping[str, bytes]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arrays of 20 rows a site, of seven persons; and all of them."""
    return arrays(tmp_path_factory.mktemp("arrays"), persons=7)


def test_sites_take_a_simulations_steps_with_persons(tables: Path, tmp_path: Path) -> None:
    """Without noise and with coins that all fall alike: a simulation's model, another one than that of rows; as it is,
    every message and file of the server is without a person's name, and a site counts persons."""
    here, sent = Private(EVERYONE, tables, tmp_path / "quiet", NONE), list[bytes]()

    def exchange(messages: Bytes, wait: float) -> Bytes:
        answers = here.exchange(messages, wait)
        sent.extend(answers.values())
        return answers

    assert here.run(exchange) == "complete"
    quiet = with_(EVERYONE, privacy={"noise": 0.0})
    state, _ = simulated(quiet, tables / "all.npz")
    rows, _ = simulated(with_(quiet, privacy={"unit": "sample"}), tables / "all.npz")
    assert far(here.server()["x"], leaves(state.server)["x"]) < 1e-6
    assert far(here.server()["x"], leaves(rows.server)["x"]) > 1e-4
    assert not any(b"patient-" in data for data in sent)
    assert all(2 <= one["samples"] <= 7 for one in here.said()["sites"])
    assert here.said()["privacy"]["unit"] == "person"


def test_the_column_of_persons_is_no_feature_of_a_sites_table(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for name in SITES:
        rows = [f"p{k // 3},{draw.normal():.3f},{k % 2}" for k in range(30)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["patient,u,label", *rows]) + "\n")
    public = tmp_path / "public.toml"
    public.write_text('[[columns]]\nname = "u"\nkind = "number"\nmean = 0.0\nscale = 1.0\n')
    more = {"label": ["label"], "person": "patient", "statistics": str(public)}
    job = with_(JOB, local={"batch_size": "poisson(0.5)"}, privacy=PERSONS, input=more)
    here = Federation(job, tmp_path, tmp_path / "all", SITES)
    assert here.serve().status == "complete"
    assert len(here.server()["x"]) == 2 * (1 + 1)
    never = USUAL.model_copy(update={"never": ["patient"]})
    strict = Site(here.job, tmp_path / "a.csv", tmp_path / "strict", "a", policy=never)
    refused = codec.read(strict.answer(codec.write(Frame("hello", "0" * 16, 0, 0, {"clients": 4}))))
    assert "never lets column 'patient' be read" in refused.fields["why"]  # how many there are would leave it
    (tmp_path / "c.csv").write_text("u,label\n" + "".join(f"{k * 0.1},{k % 2}\n" for k in range(20)))
    with pytest.raises(UserError, match="'patient'"):
        Federation(job, tmp_path, tmp_path / "lacking", SITES).serve()


def test_who_protects_rows_and_who_persons_is_said_before_round_0(tables: Path, tmp_path: Path) -> None:
    by_rows = with_(EVERYONE, privacy={"unit": "sample"})
    here = Private(EVERYONE, tables, tmp_path / "run")
    own = Private(by_rows, tables, tmp_path / "run")

    def exchange(messages: Bytes, wait: float) -> Bytes:
        return {name: (own if name == "b" else here).site(name).answer(data) for name, data in messages.items()}

    with pytest.raises(UserError, match=r"site b.*what is protected"):
        here.run(exchange)
    no_names = Private({key: value for key, value in EVERYONE.items() if key != "input"}, tables, tmp_path / "none")
    with pytest.raises(UserError, match=r"give input\.person"):
        no_names.run()


def test_a_site_of_persons_gives_no_second_noise(tables: Path, tmp_path: Path) -> None:
    job, orders = with_(EVERYONE, cohort=4, rounds=1), list[bytes]()
    here = Private(job, tables, tmp_path)

    def exchange(messages: Bytes, wait: float) -> Bytes:
        orders.extend(data for name, data in messages.items() if name == "a" and codec.read(data).kind == "orders")
        return here.exchange(messages, wait)

    here.run(exchange)
    last: Any = codec.read(orders[-1])
    other = last._replace(tensors={name: leaf + 1 for name, leaf in last.tensors.items()})
    refused = codec.read(here.site("a").answer(codec.write(other)))
    assert (refused.kind, "spend privacy twice" in refused.fields["why"]) == ("refused", True)
