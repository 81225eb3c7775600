"""Edge servers over Flower: a SuperLink, a SuperNode at the root and an app each; what is refused before any starts."""

from __future__ import annotations

import csv
import json
import signal
import tomllib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from test_flower_command import JOB, LIMIT, Refused, Trial, alone, flower, job, refused, running, said

from fedconcord.interface.cli.main import call
from fedconcord.support.errors import UserError
from fedconcord_flower.app import edges_of
from fedconcord_flower.trial import Member, differences
from fedconcord_sites.serve import serve
from fedconcord_sites.site import Site

__all__ = ["alone", "job", "refused"]  # fixtures
NAMES = ["basel", "bern", "chur", "davos"]
FILES = ",".join(f"{name}.csv" for name in NAMES)
TREE = "north=basel+bern,south=chur+davos"


@pytest.fixture
def four(job: Path) -> Path:
    """The folder of a job with two sites more."""
    draw = np.random.default_rng(1)
    for name in NAMES[2:]:
        x = draw.normal(0.3, 1, (40, 2))
        lines = [f"{a:.4f},{b:.4f},{int(a > b)}" for a, b in x]
        (job / f"{name}.csv").write_text("\n".join(["age,dose,ill", *lines]) + "\n")
    (job / "job.toml").write_text(JOB.replace("clients = 2\n", ""))
    return job


def test_edge_servers_are_named_with_their_sites(four: Path, refused: Refused) -> None:
    assert edges_of(TREE) == {"north": ["basel", "bern"], "south": ["chur", "davos"]}
    assert edges_of("") == {}
    for text in ("north", "north=", "=basel", "north=basel+"):
        with pytest.raises(UserError, match="an edge server is given as NAME=SITE"):
            edges_of(text)
    new = ("new", "team", "--config", "job.toml", "--sites", ",".join(NAMES), "--tree")
    assert "site davos is below 0 edge servers" in refused(*new, "north=basel+bern+chur")
    assert "two sites are named 'basel'" in refused(*new, "basel=basel+bern+chur+davos")
    start = ("try", "--config", "job.toml", "--sites", FILES, "--tree")
    assert "elm is below an edge server and is neither a site nor an edge server" in refused(*start, f"{TREE}+elm")
    assert "is below itself, by north and land" in refused(*start, f"{TREE},north=land,land=north")
    (four / "old.flower" / "1" / "app" / "fedconcord_job").mkdir(parents=True)
    (four / "old.flower" / "1" / "app" / "fedconcord_job" / "job.toml").write_text((four / "job.toml").read_text())
    again = ("try", "--resume", "old", "--sites", FILES, "--tree")
    assert "edge server south is below 2 edge servers" in refused(*again, f"{TREE},land=north+south,west=south")
    assert "send sums; leave tree out" in refused(*start, TREE, "--set", "aggregate=median")
    assert "give one of them" in refused("site", "north")
    assert call(["flower", *new, TREE]) == 0
    config = tomllib.loads((four / "team" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert (config["edges"], config["edge"]) == (TREE, "")
    assert call(["flower", "new", "deep", *new[2:], f"{TREE},land=north+south"]) == 0
    config = tomllib.loads((four / "deep" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert edges_of(config["edges"]) == {**edges_of(TREE), "land": ["north", "south"]}


def test_what_is_compared_before_a_trial_goes_through_all_tiers(four: Path) -> None:
    """Also with a site that comes later, whose rows are counted and which is not asked."""
    text, edges = (four / "job.toml").read_text(), edges_of(f"{TREE},land=north+south")
    members = [Member(name, four / f"{name}.csv", name == "davos") for name in NAMES]
    assert differences(text, members, four / "checked", edges=edges) == []
    (four / "chur.csv").write_text("years,height,ill\n1,2,0\n2,1,1\n3,1,1\n")
    sentences = differences(text, members, four / "checked", edges=edges)
    assert any("chur" in one for one in sentences), sentences


@pytest.mark.flower
@pytest.mark.parametrize("tree", [TREE, "north=basel,south=bern+chur,land=north+south"])
def test_a_trial_with_edges_comes_to_what_one_server_does(tree: str, four: Path, alone: None) -> None:
    """One tier of edge servers, and two."""
    out, names = four / "run", [name for name in NAMES if name in tree]
    files = ",".join(f"{name}.csv" for name in names)
    start = ("try", "--config", "job.toml", "--sites", files, "--tree", tree, "--limit", str(LIMIT / 2))
    done = flower(*start, "--out", "run", cwd=four)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{said(out)}"
    assert not running(out)
    text = next(out.with_name("run.flower").glob("*/app/*/job.toml")).read_text()
    sites = {name: Site(text, four / f"{name}.csv", four / "flat" / name, name) for name in names}

    def exchange(messages: Mapping[str, bytes], wait: float) -> dict[str, bytes]:
        return {name: sites[name].answer(data) for name, data in messages.items()}

    serve(text, names, exchange, four / "flat" / "run", None, 1.0, False)
    rows = []
    for folder in (out, four / "flat" / "run"):
        with (folder / "metrics.csv").open() as file:
            rows.append([{key: row[key] for key in row if "seconds" not in key} for row in csv.DictReader(file)])
    for mine, theirs in zip(*rows, strict=True):
        values = [{key: float(value) for key, value in row.items() if value} for row in (mine, theirs)]
        assert values[0] == pytest.approx(values[1], rel=1e-12)
    run = json.loads((out / "run.json").read_text())
    assert {one["name"]: (one["below"], one["missed"]) for one in run["edges"]} == {
        edge: (below, 0) for edge, below in edges_of(tree).items()
    }


@pytest.mark.flower
def test_a_site_below_an_edge_comes_after_round_1(four: Path, alone: None) -> None:
    tree = "north=basel+bern,land=north"
    more = ("--config", "job.toml", "--out", "run", "--rounds", "5000", "--set", "eval.every=50", "--tree", tree)
    with Trial(four, four / "run", *more, "--later", "bern.csv", sites=("--sites", "basel.csv")) as trial:
        trial.until("round 1 of")
        trial.until("site bern joins")
        trial.until("round ")
        trial.process.send_signal(signal.SIGINT)
        assert trial.end() == 130


@pytest.mark.flower
def test_a_killed_edge_is_its_sites_absent_and_comes_again(four: Path, alone: None) -> None:
    """Its SuperLink, which is started again with its sites; then its SuperNode, which Flower takes for there for 60 s,
    in which rounds go on without its sites."""
    more = ("--config", "job.toml", "--out", "run", "--rounds", "5000", "--set", "eval.every=50", "--tree", TREE)
    with Trial(four, four / "run", *more, "--wait", "20", sites=("--sites", FILES)) as trial:
        trial.until("round 1 of")
        trial.kill("north-1/server.key")
        trial.until("edge server north: the process superlink was killed by SIGKILL")
        trial.until("site bern: online")
        trial.kill("north.key")
        trial.until("the SuperNode of north")
        trial.until("edge server north is out with its sites basel, bern")
        trial.until("site basel answers again")
        trial.until("round ")
        trial.process.send_signal(signal.SIGINT)
        assert trial.end() == 130
    run = json.loads((four / "run" / "run.json").read_text())
    missed = {site["name"]: site["missed"] for site in run["sites"]}
    assert missed["basel"] == missed["bern"] > 0
    assert missed["chur"] == missed["davos"] == 0
    assert not any(site["refused"] or site["left_out"] for site in run["sites"])
