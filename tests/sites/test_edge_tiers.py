"""Edge servers above edge servers, at any depth: the run is that of one server; a total goes up from each of them."""

import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from test_deploy_core import (
    SITES,
    Federation,
    Killed,
    far,
    files,
    job_of,
    quick_disk,
    same,
    simulated,
    with_,
)
from test_edges import Nested, in_round

from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame
from fedconcord.support.errors import UserError
from fedconcord_sites.edge import Edge
from fedconcord_sites.edges import EdgeExchange, homes_of, tops_of
from fedconcord_sites.form import source_of
from fedconcord_sites.serve import check

__all__ = ["files", "quick_disk"]  # fixtures
Homes = dict[str, list[str]]
TWO: Homes = {"north": ["basel"], "south": ["bern", "chur"], "land": ["north", "south"]}
THREE: Homes = {
    "a": ["basel"],
    "b": ["bern"],
    "c": ["chur"],
    "north": ["a", "b"],
    "south": ["c"],
    "land": ["north", "south"],
}
UNEQUAL: Homes = {"land": ["north", "bern"], "north": ["basel"], "west": ["chur"]}
TREES = {"two": TWO, "three": THREE, "unequal": UNEQUAL}


def same_rows(here: Federation, flat: Federation) -> None:
    for site, row in flat.rows().items():
        assert max([0.0, *(far(here.rows()[site][leaf], value) for leaf, value in row.items())]) < 1e-12


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "afedpd", "mimesvrg"])
@pytest.mark.parametrize("tree", TREES)
def test_a_run_through_tiers_is_that_of_one_server_and_of_one_tier(
    tree: str, name: str, files: Path, tmp_path: Path
) -> None:
    """State and metrics to 1e-12 of serial, rows to those of one tier, bytes of clients to the byte; and all are told
    that the run is over."""
    job = job_of(name)
    here, one = Nested(job, files, tmp_path / "here", homes=TREES[tree]), Nested(job, files, tmp_path / "one")
    here.serve()
    one.serve()
    same(here, *simulated(job, files / "all.csv"))
    same_rows(here, one)
    for column in ("bytes_up", "bytes_down", "gradient_steps"):
        assert [row[column] for row in here.metrics()] == [row[column] for row in one.metrics()]
    for edge in here.edges.values():
        edge.attend(tmp_path / "box")  # returns at once


CARDS = {  # the same trees as a simulation draws them
    "two": (TWO, [0, 1, 1], [1]),
    "three": (THREE, [0, 1, 2], [2, 1]),
}


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "afedpd", "mimesvrg"])
@pytest.mark.parametrize("tree", CARDS)
def test_bytes_by_tier_are_the_simulations(tree: str, name: str, files: Path, tmp_path: Path) -> None:
    homes, servers, above = CARDS[tree]
    job = job_of(name)
    here = Nested(job, files, tmp_path, homes=homes)
    here.serve()
    path = tmp_path / "tree.csv"
    path.write_text("client,server\n" + "".join(f"{i},{server}\n" for i, server in enumerate(servers)))
    state, _ = simulated(job, files / "all.csv", tree=f"from_file(path='{path}',above={above})")
    pairs = zip(state.between[::2], state.between[1::2], strict=True)
    assert here.said()["tree"] == [{"bytes_down": down, "bytes_up": up} for down, up in pairs]
    assert len(here.said()["tree"]) == len(above) + 1


def test_bytes_of_unequal_tiers_are_counted_from_the_root(files: Path, tmp_path: Path) -> None:
    """North alone is below another edge; who is below land itself passes no server of that tier."""
    job = with_(job_of("fedavg"), cohort=3)
    here = Nested(job, files, tmp_path, homes=UNEQUAL)
    here.serve()
    size = 8 * here.server()["x"].numel()
    assert here.said()["tree"] == [{"bytes_down": 4 * n * size, "bytes_up": 4 * n * size} for n in (1, 2)]


def test_one_total_goes_up_from_each_edge_and_one_model_down_to_it(files: Path, tmp_path: Path) -> None:
    """Also from one that has two edges below it; what is said of edges is what passed, of those below others too."""
    job = with_(job_of("scaffold"), model="2nn", cohort=3)
    here = Nested(job, files, tmp_path, homes=TWO)
    waits = defaultdict[str, set[float]](set)
    for name, edge in here.edges.items():

        def noted(messages: Mapping[str, bytes], wait: float, name: str = name) -> Mapping[str, bytes]:
            waits[name].add(wait)
            return here.below(messages, wait)

        edge.exchange = noted
    here.serve()
    size = 8 * here.server()["x"].numel()
    sent, got = defaultdict[str, int](int), defaultdict[str, int](int)
    for edge, question, answer in here.passed:
        got[edge], sent[edge] = got[edge] + len(codec.write(question)), sent[edge] + len(codec.write(answer))
        if question.kind == "total":
            assert answer.payload == 2 * size
        elif question.kind == "pass" and in_round(question) is not None:
            assert question.payload == 2 * size
            assert answer.payload == 2 * 8 * {"north": 1, "south": 2, "land": 3}[edge]
    said = {one["name"]: one for one in here.said()["edges"]}
    assert {name: one["below"] for name, one in said.items()} == TWO
    asked = {one["asked"] for one in said.values()}
    assert len(asked) == 1
    end = {edge: len(codec.write(question)) for edge, question, _ in here.passed if question.kind == "end"}
    for name, one in said.items():
        assert one["missed"] == 0
        # run.json is written before the edges hear that the run is over
        assert one["bytes_got"] == got[name] - end[name]
        assert one["bytes_sent"] < sent[name]
    rounded = {name: {round(wait, 6) for wait in each if wait < 2} for name, each in waits.items()}
    assert rounded == {"land": {0.8}, "north": {0.64}, "south": {0.64}}


LOSS: Homes = {"north": ["basel"], "south": ["bern"], "land": ["north", "south"], "west": ["chur"]}


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "afedpd"])
@pytest.mark.parametrize("when", ["before", "after", "between"])
@pytest.mark.parametrize("edge", ["north", "land"])
def test_a_lost_edge_of_any_tier_is_its_sites_absent(
    edge: str, when: str, name: str, files: Path, tmp_path: Path
) -> None:
    """In either half of a round: the run in which one server hears nothing of the sites below, rows too."""
    job = with_(job_of(name), cohort=3, rounds=5)
    here, flat = Nested(job, files, tmp_path / "here", homes=LOSS), Federation(job, files, tmp_path / "flat")
    lost, now, absent = {1, 2}, [-1], {"north": {"basel"}, "land": {"basel", "bern"}}[edge]

    def killed(each: str, question: Frame, answer: Callable[[], bytes]) -> bytes | None:
        if question.kind == "pass":
            round = in_round(question)
            now[0] = -1 if round is None else round
        is_lost = each == edge and now[0] in lost and (when == "between") == (question.kind == "total")
        said = b"" if is_lost and when == "before" else answer()
        return None if is_lost else said

    def silent(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        rounds = {site: codec.read(data) for site, data in messages.items()}
        away = {s for s, one in rounds.items() if one.kind == "orders" and one.round in lost and s in absent}
        answers = flat.exchange({s: d for s, d in messages.items() if s not in away or when != "before"}, wait)
        return {site: data for site, data in answers.items() if site not in away}

    here.meddle = killed
    here.serve()
    flat.serve(silent)
    mine, theirs = here.server(), flat.server()
    assert max(far(mine[leaf], theirs[leaf]) for leaf in theirs) < 1e-12
    same_rows(here, flat)
    for mine_row, their_row in zip(here.metrics(), flat.metrics(), strict=True):
        assert float(mine_row["test_loss"]) == pytest.approx(float(their_row["test_loss"]), rel=1e-12)
    missed = {one["name"]: one["missed"] for one in here.said()["edges"]}
    assert missed == {name: 2 * (name == edge) for name in LOSS}
    said = {one["name"]: one for one in here.said()["sites"]}
    assert not any(one["refused"] or one["left_out"] for one in said.values())
    texts = [event.text for event in here.events if "edge server" in event.text]
    assert any(f"edge server {edge} is out with its sites {', '.join(sorted(absent))}" in text for text in texts)
    assert all(f"edge server {edge} is out" in text for text in texts)


def test_a_site_two_tiers_down_is_blamed_alone_and_an_edge_started_anew_blames_nobody(
    files: Path, tmp_path: Path
) -> None:
    here = Nested(with_(job_of("fedavg"), cohort=3, rounds=6), files, tmp_path, homes=LOSS)

    def spoilt(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = dict(here.exchange(messages, wait))
        question = codec.read(messages["basel"]) if "basel" in messages else Frame("", "", 0, 0)
        if question.kind == "orders" and question.round in (1, 2):
            reply = codec.read(answers["basel"])
            bad = {k: v[:2] if question.round == 1 else v * torch.nan for k, v in reply.tensors.items()}
            answers["basel"] = codec.write(reply._replace(tensors=bad))
        return answers

    def forgetful(edge: str, question: Frame, answer: Callable[[], bytes]) -> bytes | None:
        if question.kind == "total" and edge == "south" and question.fields["plan"]["round"] == 4:
            here.edges[edge] = Edge(here.job, here.below)
            return here.edges[edge].answer(codec.write(question))
        return answer()

    here.of_sites, here.meddle = spoilt, forgetful  # type: ignore[method-assign]
    assert here.serve().status == "complete"
    records = {one["name"]: one for one in here.said()["sites"]}
    assert records["basel"]["refused"] == {"another shape": 1, "a number that is not finite": 1}
    assert not any(records[name]["refused"] for name in ("bern", "chur"))
    assert [one["missed"] for one in here.said()["edges"]] == [0, 0, 0, 0]


@pytest.mark.parametrize("edge", ["land", "north"])
@pytest.mark.parametrize("wrong", [{}, {"nobody": None}, {"chur": None}])
def test_an_edge_that_names_none_of_its_sites_as_wrong_is_out(
    wrong: dict[str, None], edge: str, files: Path, tmp_path: Path
) -> None:
    """Of a round, which would ask it for ever; another edge's site is none of its own."""
    here = Nested(with_(job_of("fedavg"), cohort=3, rounds=2), files, tmp_path, homes=LOSS)

    def empty(each: str, question: Frame, answer: Callable[[], bytes]) -> bytes | None:
        said = answer()
        if question.kind == "total" and each == edge:
            frame = codec.read(said)
            return codec.write(frame._replace(fields={**frame.fields, "wrong": wrong}, tensors={}))
        return said

    here.meddle = empty
    assert here.serve().status == "complete"
    totals = [question for each, question, _ in here.passed if question.kind == "total" and each == "west"]
    assert len(totals) == 2 * 2  # of each round again, without those that land does not have
    assert not any(one["refused"] for one in here.said()["sites"])


@pytest.mark.parametrize("fields", [{}, {"below": 1}, {"below": {"north": [1, 2]}}, {"below": {"north": [-1, 2, ""]}}])
def test_an_edge_that_does_not_say_what_passed_below_it_is_lost(
    fields: dict[str, Any], files: Path, tmp_path: Path
) -> None:
    here = Nested(with_(job_of("fedavg"), cohort=3, rounds=2), files, tmp_path, homes=LOSS)

    def mute(edge: str, question: Frame, answer: Callable[[], bytes]) -> bytes | None:
        frame = codec.read(answer())
        if question.kind == "total" and edge == "land":
            frame = frame._replace(fields={**{k: v for k, v in frame.fields.items() if k != "below"}, **fields})
        return codec.write(frame)

    here.meddle = mute
    assert here.serve().status == "complete"
    assert {one["name"]: one["missed"] for one in here.said()["edges"]}["land"] == 2


@pytest.mark.parametrize(("before", "after"), [(TWO, UNEQUAL), (TWO, {"only": SITES}), ({"only": SITES}, THREE)])
def test_a_killed_root_goes_on_with_another_tree(before: Homes, after: Homes, files: Path, tmp_path: Path) -> None:
    """Bytes between tiers are added from the root, where the numbers of tiers differ."""
    job = with_(job_of("scaffold"), cohort=3)
    here = Nested(job, files, tmp_path / "here", homes=before)

    def dies(edge: str, question: Frame, answer: Callable[[], bytes]) -> bytes | None:
        if question.kind == "pass" and in_round(question) == 2:
            answer()
            raise Killed
        return answer()

    here.meddle = dies
    with pytest.raises(Killed):
        here.serve()
    here.homes, here.meddle = after, lambda edge, question, answer: answer()
    here.edges = {edge: Edge(here.job, here.below) for edge in after}
    assert here.serve(resume=True).status == "complete"
    same(here, *simulated(job, files / "all.csv"))
    size = 2 * 8 * here.server()["x"].numel()
    tops = 2 * len(tops_of(before)) + 2 * len(tops_of(after))
    assert here.said()["tree"][-1] == {"bytes_down": tops * size, "bytes_up": tops * size}


def test_an_edge_below_another_with_another_job_is_named(files: Path, tmp_path: Path) -> None:
    here = Nested(job_of("fedavg"), files, tmp_path, homes=TWO)
    assert check(here.job, SITES, here.of_edges, 1.0, edges=TWO) == []
    here.edges["south"] = Edge(here.job.replace("rounds = 4", "rounds = 5"), here.below)
    with pytest.raises(UserError, match="land refuses: edge server south refuses: it has the app of another job"):
        here.serve()


@pytest.mark.parametrize(
    ("homes", "sentence"),
    [
        ({"north": ["basel", "bern"], "land": ["north", "basel", "chur"]}, "site basel is below 2 edge servers"),
        ({"north": [*SITES], "a": ["north"], "b": ["north"]}, "edge server north is below 2 edge servers"),
        ({"north": [*SITES], "land": ["north", "south"]}, "south is below an edge server and is neither a site nor an"),
        ({"north": [*SITES], "south": []}, "edge server south has nothing below it"),
        ({"north": [*SITES, "north"]}, "edge server north is below itself, by north; one has to be below none"),
        (
            {"north": [*SITES, "land"], "land": ["south"], "south": ["north"]},
            "edge server north is below itself, by north and south and land",
        ),
        ({"basel": ["bern", "chur"], "land": ["basel"]}, "basel is the name of a site and of an edge server"),
    ],
)
def test_edges_are_a_tree(homes: Homes, sentence: str, files: Path, tmp_path: Path) -> None:
    here = Nested(job_of("fedavg"), files, tmp_path, homes=homes)
    with pytest.raises(UserError, match=sentence):
        here.serve()
    assert not here.passed


def test_where_an_edge_stands() -> None:
    job = source_of('method = "fedavg"\n')
    assert tops_of(UNEQUAL) == ["land", "west"]
    assert homes_of(UNEQUAL, SITES, job) == {"north": "land", "bern": "land", "basel": "north", "chur": "west"}


def test_the_root_has_a_model_once_beside_its_messages() -> None:
    """Of 40 messages with one model, four copies at most are made beside them: in the pool, and as they are written."""
    names, x = [f"s{k}" for k in range(40)], torch.ones(50_000, dtype=torch.float64)
    edges = {"north": names[:20], "south": names[20:], "land": ["north", "south"]}
    job, asked = source_of('method = "fedavg"\n'), list[Mapping[str, bytes]]()
    root = EdgeExchange(edges, names, lambda messages, wait: asked.append(messages) or {}, job, lambda event: None)
    messages = {name: codec.write(Frame("orders", "f", 3, k, {}, {"x": x})) for k, name in enumerate(names)}
    tracemalloc.start()
    assert root(messages, 1.0) == {}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(len(data) for each in asked for data in each.values()) < 1.1 * 8 * len(x)
    assert peak < 5 * 8 * len(x)
