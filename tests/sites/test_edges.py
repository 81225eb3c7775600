"""Edge servers between the root and real sites: the run is that of one server, and one total an edge goes up."""

import contextlib
import json
import os
import signal
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_deploy_core import (
    BASE,
    SITES,
    Federation,
    Killed,
    far,
    files,
    forged,
    framed,
    job_of,
    quick_disk,
    same,
    simulated,
    slow,
    with_,
    write,
)

from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame
from fedconcord.study.runs.events import Finished
from fedconcord.support.errors import LostError, UserError
from fedconcord_sites import mailbox
from fedconcord_sites.bundles import bundle, unbundled
from fedconcord_sites.edge import Edge
from fedconcord_sites.exchange import Exchange
from fedconcord_sites.serve import check, serve

__all__ = ["files", "quick_disk"]  # fixtures
HOMES = {"north": ["basel", "chur"], "south": ["bern"]}
SAID = {"bytes_sent", "bytes_got", "asked", "missed"}
Meddle = Callable[[str, Frame, Callable[[], bytes]], bytes | None]
"""(edge, what the root asks it, its answer) -> what the root gets."""


class Nested(Federation):
    """A federation whose server reaches its sites through edges, and these share nothing but bytes either."""

    def __init__(self, *order: Any, homes: Mapping[str, list[str]] = HOMES, **own: Any) -> None:
        super().__init__(*order, **own)
        self.homes = homes
        self.edges = {edge: Edge(self.job, self.below) for edge in homes}
        self.passed: list[tuple[str, Frame, Frame]] = []  # (edge, question, answer)
        self.meddle: Meddle = lambda edge, question, answer: answer()

    def of_sites(self, messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        return self.exchange(messages, wait)

    def below(self, messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        assert messages  # an exchange over Flower waits until one of those is there that are asked
        edges = {name: data for name, data in messages.items() if name in self.homes}
        sites = {name: data for name, data in messages.items() if name not in self.homes}
        return {**self.of_edges(edges, wait), **self.of_sites(sites, wait)}

    def of_edges(self, messages: Mapping[str, bytes], wait: float) -> dict[str, bytes]:
        answers = {}
        for edge, data in messages.items():
            question = codec.read(data)
            answer = self.meddle(edge, question, lambda edge=edge, data=data: self.edges[edge].answer(data))
            if answer is not None:
                answers[edge] = answer
                self.passed.append((edge, question, codec.read(answer)))
        return answers

    def serve(self, exchange: Exchange | None = None, resume: bool = False) -> Finished:
        place, see = self.folder / "run", self.events.append
        return serve(self.job, self.names, exchange or self.of_edges, place, see, 1.0, resume, edges=self.homes)


def in_round(question: Frame) -> int | None:
    """The round of what passes through an edge; None beside the rounds."""
    frames = unbundled(question).values()
    rounds = {one.round for one in frames if one.kind in ("orders", "ask", "train")}
    rounds |= {round for one in frames if one.kind == "pass" and (round := in_round(one)) is not None}
    return rounds.pop() if rounds else None


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "afedpd", "fedvra", "mimesvrg", "fednova"])
def test_a_run_through_edges_is_that_of_one_server(name: str, files: Path, tmp_path: Path) -> None:
    """State and metrics to 1e-12 of serial; what clients sent and got to the byte of a deployment of one server."""
    job = job_of(name)
    here, flat = Nested(job, files, tmp_path / "nested"), Federation(job, files, tmp_path / "flat")
    here.serve()
    flat.serve()
    same(here, *simulated(job, files / "all.csv"))
    for column in ("bytes_up", "bytes_down", "gradient_steps"):
        assert [row[column] for row in here.metrics()] == [row[column] for row in flat.metrics()]
    for edge in here.edges.values():
        edge.attend(tmp_path / "box")  # returns at once: they were told that the run is over


@pytest.mark.parametrize(
    "change", [{"cohort": 1}, {"upload": "quantise(8)"}, {"sampling": "bernoulli(0.6)", "cohort": None}]
)
def test_idle_edges_uploads_and_samplings(change: dict[str, Any], files: Path, tmp_path: Path) -> None:
    job = with_(BASE, method="fedavg", model="2nn", **change)
    here = Nested(job, files, tmp_path)
    here.serve()
    same(here, *simulated(job, files / "all.csv"))


def test_one_total_an_edge_goes_up_and_one_model_down(files: Path, tmp_path: Path) -> None:
    """Tensors of a round: up one total of each edge and 8 bytes for each tensor of a reply, down one broadcast."""
    job = with_(BASE, method="scaffold", model="2nn", cohort=3)
    here = Nested(job, files, tmp_path, homes={"only": SITES})
    here.serve()
    size = 8 * sum(leaf.numel() for name, leaf in here.server().items() if name == "x")
    down, up = defaultdict[int, int](int), defaultdict[int, int](int)
    totals = []
    for _, question, answer in here.passed:
        if question.kind == "total":
            totals.append(answer.payload)
        elif question.kind == "pass" and (round := in_round(question)) is not None:
            down[round], up[round] = question.payload, answer.payload
    assert totals == [2 * size] * 4
    assert set(up.values()) == {3 * 2 * 8}
    assert set(down.values()) == {2 * size}
    assert here.said()["tree"] == [{"bytes_down": 4 * 2 * size, "bytes_up": 4 * 2 * size}]
    [edge] = here.said()["edges"]
    assert (edge["name"], edge["below"], edge["missed"]) == ("only", SITES, 0)
    assert edge["bytes_sent"] < 4 * 2 * size + 60_000 < 3 * 4 * 2 * size
    assert edge.keys() > SAID


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "afedpd", "fedvra"])
@pytest.mark.parametrize("when", ["before", "after", "between"])
def test_an_edge_lost_in_a_round_is_its_sites_absent(when: str, name: str, files: Path, tmp_path: Path) -> None:
    """Before its sites hear of the round, after they replied, and when it was to send its total: the run in which one
    server hears nothing of these sites in that round, which goes on with their rows as they were."""
    job = with_(job_of(name), cohort=3, rounds=5)
    here, flat = Nested(job, files, tmp_path / "nested"), Federation(job, files, tmp_path / "flat")
    lost, now = {1, 2}, [-1]

    def killed(edge: str, question: Frame, answer: Callable[[], bytes]) -> bytes | None:
        if question.kind == "pass":
            round = in_round(question)
            now[0] = -1 if round is None else round
        is_lost = edge == "north" and now[0] in lost and (when == "between") == (question.kind == "total")
        if is_lost and when == "before":
            return None
        said = answer()
        return None if is_lost else said

    def silent(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        rounds = {site: codec.read(data) for site, data in messages.items()}
        away = {s for s, one in rounds.items() if one.kind == "orders" and one.round in lost and s in HOMES["north"]}
        answers = flat.exchange({s: d for s, d in messages.items() if s not in away or when != "before"}, wait)
        return {site: data for site, data in answers.items() if site not in away}

    here.meddle = killed
    here.serve()
    flat.serve(silent)
    mine, theirs = here.server(), flat.server()
    assert max(far(mine[leaf], theirs[leaf]) for leaf in theirs) < 1e-12
    for site, row in flat.rows().items():
        assert max([0.0, *(far(here.rows()[site][leaf], value) for leaf, value in row.items())]) < 1e-12
    for mine_row, their_row in zip(here.metrics(), flat.metrics(), strict=True):
        assert float(mine_row["test_loss"]) == pytest.approx(float(their_row["test_loss"]), rel=1e-12)
    said = {one["name"]: one for one in here.said()["edges"]}
    assert (said["north"]["missed"], said["south"]["missed"]) == (2, 0)
    assert any("edge server north is out with its sites basel, chur" in event.text for event in here.events)


def test_half_an_edge(files: Path, tmp_path: Path) -> None:
    """A site below an edge is away, sends what is not finite, of another shape, or no frame: that site alone is out."""
    job = with_(job_of("scaffold"), cohort=3, rounds=12, eval={"every": 12})
    here, flat = Nested(job, files, tmp_path / "nested"), Federation(job, files, tmp_path / "flat")

    def spoilt(of: Federation) -> Exchange:
        def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
            answers = dict(of.exchange(messages, wait))
            question = codec.read(messages.get("chur", codec.write(Frame("", "", 0, 0))))
            if question.kind == "orders" and question.round % 2 == 0:
                reply = codec.read(answers["chur"])
                x = reply.tensors["up/x"]
                bad = [None, torch.full_like(x, torch.nan), x[:3], x.float(), torch.zeros(2**19), b"no frame"][
                    question.round // 2
                ]
                del answers["chur"]
                if isinstance(bad, bytes):
                    answers["chur"] = bad
                elif bad is not None:
                    answers["chur"] = codec.write(reply._replace(tensors={**reply.tensors, "up/x": bad}))
            return answers

        return exchange

    here.of_sites = spoilt(here)  # type: ignore[method-assign]
    for edge in here.edges.values():
        edge.exchange = here.of_sites
    here.serve()
    flat.serve(spoilt(flat))
    mine, theirs = here.server(), flat.server()
    assert max(far(mine[leaf], theirs[leaf]) for leaf in theirs) < 1e-12
    records = {one["name"]: one for one in here.said()["sites"]}
    reasons = records["chur"]["refused"]
    assert {"a number that is not finite", "another shape", "another number type"} <= reasons.keys()
    assert (records["basel"]["refused"], records["basel"]["missed"]) == ({}, 0)


def test_a_site_whose_replies_fit_no_total_is_left_out_after_three(files: Path, tmp_path: Path) -> None:
    here = Nested(with_(job_of("fedavg"), cohort=3, rounds=5), files, tmp_path)

    def halved(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = dict(here.exchange(messages, wait))
        reply = codec.read(answers["bern"]) if "bern" in answers else Frame("", "", 0, 0)
        if reply.kind == "reply":
            answers["bern"] = codec.write(reply._replace(tensors={k: v[:2] for k, v in reply.tensors.items()}))
        return answers

    for edge in here.edges.values():
        edge.exchange = halved
    here.serve()
    bern = here.said()["sites"][SITES.index("bern")]
    assert bern["refused"] == {"another shape": 3}
    assert "left out after 3 refused answers in a row" in bern["left_out"]


@pytest.mark.parametrize("depth", [16, 500, 990])
def test_a_site_whose_answer_is_nested_deep_is_refused_alone(depth: int, files: Path, tmp_path: Path) -> None:
    """Below an edge, which passes fields on as they are, in a bundle that is nested deeper than each of its answers."""
    here = Nested(with_(job_of("fedavg"), cohort=3, rounds=2), files, tmp_path)

    def nested(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = dict(here.exchange(messages, wait))
        if "chur" in answers and codec.read(answers["chur"]).kind == "reply":
            data = forged(answers["chur"], fields={"deep": "@"})
            end = 12 + int.from_bytes(data[4:8], "little")
            header = data[12:end].replace(b'"@"', b"[" * depth + b"]" * depth)
            answers["chur"] = framed(header, data[end:])
        return answers

    here.of_sites = nested  # type: ignore[method-assign]
    assert here.serve().status == "complete"
    basel, bern, chur = (site["refused"] for site in here.said()["sites"])
    [(why, times)] = chur.items()
    assert (basel, bern, times) == ({}, {}, 2)
    assert "its answer is nested too deep" in why or "its answer is not decodable" in why
    assert [one["missed"] for one in here.said()["edges"]] == [0, 0]


def test_a_message_that_is_far_longer_is_said(files: Path, tmp_path: Path) -> None:
    job = with_(job_of("fedavg"), cohort=3, rounds=2)
    here = Nested(job, files, tmp_path)

    def loud(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = dict(here.exchange(messages, wait))
        reply = codec.read(answers["bern"]) if "bern" in answers else Frame("", "", 0, 0)
        if reply.kind == "reply":
            answers["bern"] = codec.write(reply._replace(tensors={k: 1e3 * v for k, v in reply.tensors.items()}))
        return answers

    for edge in here.edges.values():
        edge.exchange = loud
    here.serve()
    [event] = [one for one in here.events if one.kind == "far"]
    assert event.site == "bern"


def test_an_edge_started_anew_has_no_replies_and_blames_nobody(files: Path, tmp_path: Path) -> None:
    job = with_(job_of("fedavg"), cohort=3, rounds=5)
    here = Nested(job, files, tmp_path)

    def forgetful(edge: str, question: Frame, answer: Callable[[], bytes]) -> bytes | None:
        if question.kind == "total" and edge == "south":
            here.edges[edge] = Edge(here.job, here.of_sites)
            return here.edges[edge].answer(codec.write(question))
        return answer()

    here.meddle = forgetful
    assert here.serve().status == "complete"
    assert all(not one["refused"] and one["left_out"] is None for one in here.said()["sites"])


def test_a_killed_root_goes_on_with_other_edges(files: Path, tmp_path: Path) -> None:
    """What an edge knows is in the frames, so sites may be below others from then on."""
    job = with_(job_of("scaffold"), cohort=3)
    here = Nested(job, files, tmp_path / "nested")

    def dies(edge: str, question: Frame, answer: Callable[[], bytes]) -> bytes | None:
        if question.kind == "pass" and in_round(question) == 2:
            answer()
            raise Killed
        return answer()

    here.meddle = dies
    with pytest.raises(Killed):
        here.serve()
    other = {"east": ["chur", "bern"], "west": ["basel"]}
    here.homes, here.meddle = other, lambda edge, question, answer: answer()
    here.edges = {edge: Edge(here.job, here.of_sites) for edge in other}
    assert here.serve(resume=True).status == "complete"
    same(here, *simulated(job, files / "all.csv"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"aggregate": "median"}, "contributions that are not summed have to lie at one server"),
        ({"sampling": "power_of_choice(3)"}, "clients' losses are asked one by one"),
        ({"clock": "asynchronous(2)"}, "edge servers .tree. add up what clients send in a round"),
        ({"model": "2nn", "adapters": "lora(where='1|3',rank=[1,3])", "aggregate": "flora"}, "not summed"),
        ({"method": "losac", "algorithm": {"blocks": 2, "init": "gradient"}}, "which edge servers do not add up"),
        ({"secure": {"clip": 8, "group": "edge"}}, "2 sites are below edge server north, and a secure sum of fewer"),
    ],
)
def test_what_does_not_nest_is_refused(change: dict[str, Any], sentence: str, files: Path, tmp_path: Path) -> None:
    here = Nested(with_(with_(BASE, method="fedavg", cohort=3), **change), files, tmp_path)
    with pytest.raises(UserError, match=sentence):
        here.serve()
    assert not any(in_round(question) is not None for _, question, _ in here.passed if question.kind == "pass")


@pytest.mark.parametrize(
    ("homes", "sentence"),
    [
        ({"north": ["basel", "bern"]}, "site chur is below 0 edge servers"),
        ({"north": ["basel", "bern"], "south": ["chur", "bern"]}, "site bern is below 2 edge servers"),
        ({"north": [*SITES, "davos"]}, "davos is below an edge server and is neither a site nor an edge server"),
    ],
)
def test_every_site_has_one_edge(homes: dict[str, list[str]], sentence: str, files: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        Nested(job_of("fedavg"), files, tmp_path, homes=homes).serve()


def test_an_edge_with_another_job_is_named(files: Path, tmp_path: Path) -> None:
    here = Nested(job_of("fedavg"), files, tmp_path)
    assert check(here.job, SITES, here.of_edges, 1.0, edges=HOMES) == []
    here.edges["south"] = Edge(here.job.replace("rounds = 4", "rounds = 5"), here.of_sites)
    with pytest.raises(UserError, match="edge server south refuses: it has the app of another job"):
        here.serve()


def test_a_total_is_of_the_replies_that_the_root_names(files: Path, tmp_path: Path) -> None:
    here = Nested(with_(job_of("fedavg"), cohort=3), files, tmp_path)
    here.serve()
    _, question, answer = [one for one in here.passed if one[1].kind == "total" and one[0] == "north"][-1]

    def again(**changes: Any) -> Frame:
        fields = {**question.fields, **changes}
        return codec.read(here.edges["north"].answer(codec.write(question._replace(fields=fields))))

    torch.testing.assert_close(again().tensors, answer.tensors, rtol=0, atol=0)
    marks, plan = question.fields["replies"], question.fields["plan"]
    client, mark = marks["basel"]
    assert again(replies={**marks, "basel": [client, mark + 1]}).fields["wrong"] == {"basel": None}
    assert again(plan={**plan, "round": 2}).fields["wrong"] == {"basel": None, "chur": None}
    one = again(replies={"basel": marks["basel"]}).tensors["total/"]
    other = again(replies={"chur": marks["chur"]}).tensors["total/"]
    torch.testing.assert_close(one + other, answer.tensors["total/"], rtol=1e-14, atol=1e-14)


def test_damaged_messages_and_strangers_are_refused_at_an_edge(files: Path, tmp_path: Path) -> None:
    here = Nested(job_of("fedavg"), files, tmp_path)
    here.serve()
    edge, (_, question, _) = here.edges["north"], here.passed[0]
    whole = codec.write(question)
    for data in (b"", whole[:-1], codec.write(question._replace(kind="hello")), codec.write(Frame("pass", "", 0, 0))):
        assert codec.read(edge.answer(data)).kind == "refused"
    broken = question._replace(fields={**question.fields, "frames": {"basel": [1]}})
    assert codec.read(edge.answer(codec.write(broken))).fields["why"] == "no bundle of frames"


def test_a_bundle_gives_its_frames_back_and_has_equal_tensors_once() -> None:
    x, y = torch.arange(5.0), torch.arange(5.0).double()
    frames = {
        "a": Frame("orders", "f" * 16, 3, 0, {"p": float("nan"), "n": [1, None]}, {"x": x, "y": y}),
        "b": Frame("orders", "f" * 16, 3, 1, {}, {"x": x.clone(), "z": x.reshape(5, 1)}),
    }
    fields, tensors = bundle(frames)
    assert len(tensors) == 3
    back = unbundled(codec.read(codec.write(Frame("pass", "", 0, 0, fields, tensors))))
    assert {site: codec.write(one) for site, one in back.items()} == {s: codec.write(one) for s, one in frames.items()}
    assert json.dumps(fields)


# -- processes ---------------------------------------------------------------------------------------------------------


def tell(folders: Mapping[str, Path]) -> Exchange:
    """An exchange with processes, by the folders that they attend."""

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        with ThreadPoolExecutor(max(len(messages), 1)) as pool:
            asked = {name: pool.submit(mailbox.ask, folders[name], data, wait) for name, data in messages.items()}
        return {name: one.result() for name, one in asked.items() if one.exception() is None}

    return exchange


@pytest.fixture
def forks() -> Iterator[Callable[[Callable[[], None]], int]]:
    """Runs a function in a process of its own, which is killed in the end; its number."""
    children = list[int]()

    def fork(run: Callable[[], None]) -> int:
        child = os.fork()
        if child == 0:
            try:
                torch.set_num_threads(1)
                run()
            finally:
                os._exit(0)
        children.append(child)
        return child

    yield fork
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def rows_of(folder: Path, name: str, k: int) -> None:
    draw = np.random.default_rng(k)
    x = draw.standard_normal((12 + k % 5, 3)) + 0.1 * k
    rows = [[*(f"{value:.4f}" for value in one), "yes" if one.sum() > 0.2 * k else "no"] for one in x]
    write(folder / f"{name}.csv", ["u", "v", "w", "label"], rows)


@pytest.mark.parametrize(("edges", "sites"), [(2, 4), pytest.param(4, 40, marks=slow)])
def test_processes_of_their_own_one_edge_killed(edges: int, sites: int, forks: Any, tmp_path: Path) -> None:
    """A process each: the root, edges and sites. In rounds 2 and 3 one edge is dead, and started again then: the run in
    which one server hears nothing of its sites there. Where a site's label is of one class alone matters to nobody."""
    names = [f"s{k:02}" for k in range(sites)]
    homes = {f"e{k}": names[k::edges] for k in range(edges)}
    for k, name in enumerate(names):
        rows_of(tmp_path, name, k)
    job = with_(job_of("scaffold"), cohort=sites, rounds=6, eval={"every": 6}, input={"label": ["label"]})
    here = Federation(job, tmp_path, tmp_path / "nested", names)
    flat = Federation(job, tmp_path, tmp_path / "flat", names)
    boxes = {name: tmp_path / "boxes" / name for name in (*names, *homes)}

    def edge(name: str) -> int:
        def run() -> None:
            Edge(here.job, tell(boxes)).attend(boxes[name])

        return int(forks(run))

    for name in names:
        forks(lambda name=name: mailbox.attend(boxes[name], here.site(name).answer, lambda: False))
    processes = {name: edge(name) for name in homes}
    asks, lost = tell(boxes), {2, 3}

    def of_edges(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        question = codec.read(next(iter(messages.values())))
        round = in_round(question) if question.kind == "pass" else None
        if round in lost and processes["e0"]:
            os.kill(processes["e0"], signal.SIGKILL)
            processes["e0"] = 0
        if round == max(lost) + 1:
            processes["e0"] = edge("e0")
        dead = set() if processes["e0"] else {"e0"}
        return asks({name: data for name, data in messages.items() if name not in dead}, wait)

    def silent(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        frames = {site: codec.read(data) for site, data in messages.items()}
        away = {s for s, one in frames.items() if one.kind == "orders" and one.round in lost and s in homes["e0"]}
        answers = flat.exchange({s: d for s, d in messages.items() if s not in away}, wait)
        return {site: data for site, data in answers.items() if site not in away}

    serve(here.job, names, of_edges, here.folder / "run", here.events.append, 400.0, False, edges=homes)
    flat.serve(silent)
    mine, theirs = here.server(), flat.server()
    assert max(far(mine[leaf], theirs[leaf]) for leaf in theirs) < 1e-12
    assert [site["missed"] for site in here.said()["sites"]] == [2 * (name in homes["e0"]) for name in names]
    assert [one["missed"] for one in here.said()["edges"]] == [2, *([0] * (edges - 1))]
    for site, row in flat.rows().items():
        assert max(far(here.rows()[site][leaf], value) for leaf, value in row.items()) < 1e-12


def test_a_mailbox_drops_what_nobody_wants_any_more(tmp_path: Path, forks: Any) -> None:
    box = tmp_path / "box"
    with pytest.raises(LostError, match="nobody answers in"):
        mailbox.ask(box, b"x", 0.2)
    assert stat.S_IMODE(box.stat().st_mode) == 0o700
    (box / "1-old.question").write_bytes(b"of a process that was killed")
    forks(lambda: mailbox.attend(box, lambda data: time.sleep(0.5 * (data == b"slow")) or data.upper(), lambda: False))
    assert mailbox.ask(box, b"x", 20.0) == b"X"
    with pytest.raises(LostError, match="within 0 s"):
        mailbox.ask(box, b"slow", 0.1)
    assert mailbox.ask(box, b"x", 20.0) == b"X"
    assert [*box.iterdir()] == []
