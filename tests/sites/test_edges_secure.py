"""Secure sums through edge servers, of masks that cancel over a cohort or below each edge: what edges and root see of a
site, and what an edge that lies comes to."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_deploy_core import Federation, far, job_of, quick_disk, slow, with_
from test_edges import Nested, rows_of

from fedconcord.execution.messages import codec, secure, terms
from fedconcord.execution.messages.codec import Frame
from fedconcord.support.errors import UserError
from fedconcord_sites import gate
from fedconcord_sites.edges import MASKED, unbundled
from fedconcord_sites.policy import USUAL, Policy
from fedconcord_sites.serve import check
from fedconcord_sites.site import Site

__all__ = ["quick_disk"]  # fixtures
NAMES = [f"s{k}" for k in range(8)]
NORTH = ["s1", "s4", "s6"]
SOUTH = ["s0", "s2", "s3", "s5", "s7"]
HOMES = {"north": NORTH, "south": SOUTH}
TIERS = {"north": NORTH, "west": SOUTH[:2], "east": SOUTH[2:], "south": ["west", "east"]}
SECURE = {"clip": 64.0, "bits": 40, "threshold": 0.6}
GROUPS = ["cohort", "edge"]
NOISE = "what came under masks is beyond what so many contributions can come to"
Change = Callable[[str, Frame], Frame | None]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table a site."""
    folder = tmp_path_factory.mktemp("tables")
    for k, name in enumerate(NAMES):
        rows_of(folder, name, k)
    return folder


def job(method: str, group: str = "edge", **changes: Any) -> dict[str, Any]:
    settings = {"cohort": 8, "rounds": 3, "eval": {"every": 3}, "secure": {**SECURE, "group": group}}
    return with_(job_of(method), **settings | changes)


def open_(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "secure"}


def through(settings: dict[str, Any], data: Path, folder: Path) -> Nested:
    """A federation below three edges; `meddling` changes what passes between these and the sites."""
    return Nested(settings, data, folder, NAMES, homes=HOMES)


def meddling(here: Federation, down: Change, up: Change = lambda site, frame: frame) -> Any:
    """An exchange with sites in which `down` and `up` change messages or lose them."""

    def exchange(messages: Mapping[str, bytes], wait: float) -> dict[str, bytes]:
        changed = {site: down(site, codec.read(data)) for site, data in messages.items()}
        sent = {site: codec.write(one) for site, one in changed.items() if one is not None}
        answers = {site: up(site, codec.read(data)) for site, data in here.exchange(sent, wait).items()}
        return {site: codec.write(one) for site, one in answers.items() if one is not None}

    for edge in here.edges.values() if isinstance(here, Nested) else ():
        edge.exchange = exchange
    return exchange


def silent(lost: set[str], rounds: set[int], *kinds: str) -> Change:
    """These sites' messages of these kinds are lost."""
    return lambda site, frame: None if site in lost and frame.round in rounds and frame.kind in kinds else frame


def alike(mine: Federation, theirs: Federation, error: float) -> None:
    """The server's state and all sites' rows."""
    got, want = mine.server(), theirs.server()
    assert got.keys() == want.keys()
    assert max(far(got[leaf], want[leaf]) for leaf in want) <= error
    for site, row in theirs.rows().items():
        assert max([0.0, *(far(mine.rows()[site][leaf], value) for leaf, value in row.items())]) <= error


def voids(here: Federation) -> list[str]:
    return [event.text for event in here.events if event.kind == "void"]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        *(("fedavg", group) for group in GROUPS),
        *((name, "edge") for name in ("scaffold", "afedpd", "mimesvrg")),
        *(pytest.param(name, "cohort", marks=slow) for name in ("scaffold", "afedpd", "mimesvrg")),
    ],
)
def test_a_secure_run_through_edges_is_that_of_one_server(name: str, group: str, tables: Path, tmp_path: Path) -> None:
    """Bit for bit that of the secure sum of all at one server, and to its rounding that of sums in clear."""
    here = through(job(name, group), tables, tmp_path / "edges")
    flat = Federation(job(name, "cohort"), tables, tmp_path / "flat", NAMES)
    plain = Federation(open_(job(name)), tables, tmp_path / "plain", NAMES)
    for one in (here, flat, plain):
        assert one.serve().status == "complete"
    alike(here, flat, 0.0)
    alike(here, plain, 1e-8)
    sent, at_one = ([row["bytes_up"] for row in one.metrics()] for one in (here, flat))
    assert sent == at_one if group == "cohort" else int(sent[1]) < int(at_one[1])  # fewer shares
    assert [row["gradient_steps"] for row in here.metrics()] == [row["gradient_steps"] for row in flat.metrics()]
    assert here.metrics()[0]["test_accuracy"] == plain.metrics()[0]["test_accuracy"]
    assert voids(here) == []
    assert all(not site["refused"] and not site["missed"] for site in here.said()["sites"])


def test_cohorts_of_some_sites(tables: Path, tmp_path: Path) -> None:
    """Two sums a round, whose thresholds are of those whom the job draws below each edge; of fewer than three there is
    no sum."""
    settings = job("mimesvrg", cohort=6, rounds=5)
    here = through(settings, tables, tmp_path / "edges")
    plain = Federation(open_(settings), tables, tmp_path / "plain", NAMES)
    here.serve()
    drawn = {(one.round, site) for _, one, site in orders_of(here)}
    few = set[tuple[int, str]]()
    for round in range(5):
        for below in HOMES.values():
            group = {(round, site) for site in below} & drawn
            few |= group if len(group) < 3 else set()
    plain.serve(meddling(plain, lambda site, frame: None if (frame.round, site) in few else frame))
    alike(here, plain, 1e-7)
    assert 0 < len(voids(here)) == len({(round, site in NORTH) for round, site in few}) < 5


def orders_of(here: Nested) -> list[tuple[str, Frame, str]]:
    """(edge, message, site) of keys of rounds that were asked."""
    asked = [(edge, unbundled(question)) for edge, question, _ in here.passed if question.kind == "pass"]
    return [(edge, one, site) for edge, each in asked for site, one in each.items() if one.kind == "keys"]


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        *((kind, "edge") for kind in ("keys", "deal", "orders", "agree", "open")),
        ("orders", "cohort"),
        *(pytest.param(kind, "cohort", marks=slow) for kind in ("keys", "deal", "agree", "open")),
    ],
)
def test_a_site_that_is_lost_is_out_of_its_sum_or_in_it(kind: str, group: str, tables: Path, tmp_path: Path) -> None:
    """In the middle of a round, before its reply is heard or after: as at one server that sees what comes."""
    settings = job("scaffold", group)
    here = through(settings, tables, tmp_path / "edges")
    plain = Federation(open_(settings), tables, tmp_path / "plain", NAMES)
    meddling(here, silent({"s5"}, {1}, kind))
    here.serve()
    plain.serve(meddling(plain, silent({"s5"}, {1}, *(["orders"] if kind in ("keys", "deal", "orders") else []))))
    alike(here, plain, 1e-8)
    assert voids(here) == []


@pytest.mark.parametrize(
    ("when", "group"),
    [
        *((when, "edge") for when in ("keys", "orders", MASKED, "agree")),
        *((when, "cohort") for when in (MASKED, "agree")),
        *(pytest.param(when, "cohort", marks=slow) for when in ("keys", "orders")),
    ],
)
def test_an_edge_that_is_lost_is_its_sites_absent(when: str, group: str, tables: Path, tmp_path: Path) -> None:
    """With a sum an edge at any time. In one of all, whose threshold the others reach, after it gave its total up its
    sites are in the sum."""
    settings = job("scaffold", group, rounds=4)
    here = through(settings, tables, tmp_path / "edges")
    plain = Federation(open_(settings), tables, tmp_path / "plain", NAMES)
    state = {"is_lost": False}

    def killed(edge: str, question: Frame, answer: Callable[[], bytes]) -> bytes | None:
        frames = unbundled(question) if question.kind == "pass" else {}
        kinds = {one.kind for one in frames.values() if one.round == 1} or {question.kind}
        if question.kind == MASKED and question.fields["round"] != 1:
            kinds = set()
        state["is_lost"] = (state["is_lost"] or when in kinds) and not any(one.round > 1 for one in frames.values())
        return None if edge == "north" and state["is_lost"] else answer()

    here.meddle = killed
    here.serve()
    is_in = group == "cohort" and when == "agree"
    plain.serve(meddling(plain, silent(set(NORTH), set() if is_in else {1}, "orders")))
    alike(here, plain, 1e-8)
    assert here.said()["rounds_void"] == 0
    assert any("edge server north is out with its sites" in event.text for event in here.events)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_sum_of_all_passes_through_tiers(name: str, tables: Path, tmp_path: Path) -> None:
    """Bit for bit that at one server; an edge that is lost below another, before it gave its total up, is its sites
    absent."""
    settings = job(name, "cohort")
    here = Nested(settings, tables, tmp_path / "edges", NAMES, homes=TIERS)
    flat = Federation(settings, tables, tmp_path / "flat", NAMES)
    here.serve()
    flat.serve()
    alike(here, flat, 0.0)
    assert {edge for edge, question, _ in here.passed if question.kind == MASKED} == {*TIERS}
    again = Nested(settings, tables, tmp_path / "lost", NAMES, homes=TIERS)
    plain = Federation(open_(settings), tables, tmp_path / "plain", NAMES)
    again.meddle = lambda edge, question, answer: (
        None if (edge, question.kind, question.fields.get("round")) == ("west", MASKED, 1) else answer()
    )
    again.serve()
    plain.serve(meddling(plain, silent({*SOUTH[:2]}, {1}, "orders")))
    alike(again, plain, 1e-8)
    assert again.said()["rounds_void"] == 0


def test_sums_of_their_own_want_one_tier(tables: Path, tmp_path: Path) -> None:
    tiers = {**HOMES, "land": [*HOMES]}
    with pytest.raises(UserError, match=r"edge server land has edge servers below it, and secure\.group=edge makes a"):
        Nested(job("fedavg", "edge"), tables, tmp_path, NAMES, homes=tiers).serve()


@pytest.mark.parametrize("group", GROUPS)
def test_too_few_below_an_edge(group: str, tables: Path, tmp_path: Path) -> None:
    """Three of five are away, and three are needed of a sum below the edge: the other two count as absent too. In a sum
    of all they count."""
    settings, lost = job("scaffold", group), {"s0", "s2", "s3"}
    here = through(settings, tables, tmp_path / "edges")
    plain = Federation(open_(settings), tables, tmp_path / "plain", NAMES)
    meddling(here, silent(lost, {1}, "orders"))
    here.serve()
    out = set(SOUTH) if group == "edge" else lost
    plain.serve(meddling(plain, silent(out, {1}, "orders")))
    alike(here, plain, 1e-8)
    why = (
        "site s0, site s2, site s3, site s5, site s7 are in no sum: 2 clients of 5 were left, and 3 are needed to open"
    )
    assert [text.startswith(why) for text in voids(here)] == [True] * (group == "edge")
    assert here.said()["rounds_void"] == 0


def test_no_edge_with_enough_sites_is_a_round_that_changes_nothing(tables: Path, tmp_path: Path) -> None:
    here = through(job("fedavg"), tables, tmp_path)
    meddling(here, silent({"s1", "s4", *SOUTH[:3]}, {1}, "deal"))
    here.serve()
    assert voids(here) == ["round 1 changed nothing: 1 client of 3 were left, and 2 are needed to open their sum"]
    assert here.said()["rounds_void"] == 1


# -- evaluations -------------------------------------------------------------------------------------------------------


def test_figures_of_an_edge_that_is_lost_are_those_of_the_others(tables: Path, tmp_path: Path) -> None:
    settings = job("fedavg", rounds=1, eval={"every": 1}, metrics=["accuracy", "macro_f1"])
    here = through(settings, tables, tmp_path / "edges")
    plain = Federation(open_(settings), tables, tmp_path / "plain", NAMES)
    meddling(here, lambda site, frame: None if site in NORTH and frame.kind == "judge-open" else frame)
    here.serve()
    plain.serve(meddling(plain, lambda s, frame: None if s in NORTH and frame.kind == "judge" else frame))
    for name in ("test_accuracy", "test_macro_f1"):
        assert here.metrics()[0][name] == plain.metrics()[0][name]
    assert float(here.metrics()[0]["test_loss"]) == pytest.approx(float(plain.metrics()[0]["test_loss"]), rel=1e-6)
    assert all("are in no sum: 0 clients of 3 were left" in text for text in voids(here))
    assert len(voids(here)) == 2


# -- who sees what -----------------------------------------------------------------------------------------------------


def looked_at(here: Nested, kind: str) -> list[tuple[str, Frame]]:
    """All answers of this kind that an edge gets from its sites while a run goes on."""
    answers = list[tuple[str, Frame]]()

    def seen(site: str, frame: Frame) -> Frame:
        if frame.kind == kind:
            answers.append((site, frame))
        return frame

    meddling(here, lambda site, frame: frame, seen)
    here.serve()
    return answers


@pytest.mark.parametrize("group", [None, *GROUPS])
def test_what_an_edge_and_the_root_see_of_a_site(group: str | None, tables: Path, tmp_path: Path) -> None:
    """Without masks an edge has each site's move of the model. With them it has uniform integers, and the root one
    total of these an edge."""
    settings = job("fedavg", group or "edge", model="2nn", rounds=1)
    here = through(settings if group else open_(settings), tables, tmp_path)
    replies = looked_at(here, "reply")
    assert len(replies) == 8
    if group is None:
        moves = {site: frame.tensors["up/"] for site, frame in replies}
        assert max(float(move.abs().max()) for move in moves.values()) < 1
        assert min(float(move.norm()) for move in moves.values()) > 1e-3
        return
    assert all(set(frame.tensors) == {"covered/"} for _, frame in replies)
    content = np.concatenate([frame.tensors["covered/"].numpy() for _, frame in replies]).view(np.uint8)
    expected = len(content) / 256
    counts = np.bincount(content, minlength=256)
    assert ((counts - expected) ** 2 / expected).sum() < 400  # 255 degrees of freedom: above with probability 1e-8
    up = [tensor for _, question, answer in here.passed for tensor in answer.tensors.values() if tensor.numel() > 1000]
    kinds = [question.kind for _, question, answer in here.passed if answer.payload > 8000]
    assert kinds == [MASKED] * 2
    singles = {frame.tensors["covered/"].numpy().tobytes() for _, frame in replies}
    assert not {tensor.numpy().tobytes() for tensor in up} & singles


@pytest.mark.parametrize(("group", "is_enough"), [("cohort", False), ("edge", True)])
def test_whose_total_an_edge_can_open(group: str, is_enough: bool, tables: Path, tmp_path: Path) -> None:
    """It hears the shares of its own sites alone: enough for their sum below it, and not for one of all."""
    here = through(job("fedavg", group, rounds=1), tables, tmp_path)
    shares = [frame for site, frame in looked_at(here, "shares") if site in NORTH and frame.round == 0]
    member = here.site("s1")._opened.client.member  # type: ignore[union-attr]
    assert len(shares) == 3
    assert (len(shares) >= member._needed(0, [*range(8)] if group == "cohort" else [1, 4, 6])) == is_enough
    assert {frame.tensors["shares/"].shape[0] for frame in shares} == {3 if is_enough else 8}


# -- edges and roots that lie ------------------------------------------------------------------------------------------


def lying(here: Nested, change: Callable[[Frame, Frame], Frame]) -> None:
    """Edge north changes its total of round 1: `change(question, answer)`."""

    def meddle(edge: str, question: Frame, answer: Callable[[], bytes]) -> bytes:
        data = answer()
        if edge == "north" and question.kind == MASKED and question.fields["round"] == 1:
            return codec.write(change(question, codec.read(data)))
        return data

    here.meddle = meddle


def without_one(here: Nested) -> Callable[[Frame, Frame], Frame]:
    """The total of its sites but one."""

    def change(question: Frame, answer: Frame) -> Frame:
        replies = dict([*question.fields["replies"].items()][1:])
        asked = question._replace(fields={**question.fields, "replies": replies})
        return codec.read(here.edges["north"].answer(codec.write(asked)))

    return change


def twice_one(here: Nested) -> Callable[[Frame, Frame], Frame]:
    """One site's in place of another's."""
    rest = without_one(here)

    def change(question: Frame, answer: Frame) -> Frame:
        first = dict([*question.fields["replies"].items()][1:2])
        asked = question._replace(fields={**question.fields, "replies": first})
        again = codec.read(here.edges["north"].answer(codec.write(asked)))
        total = rest(question, answer).tensors["total/"] + again.tensors["total/"]
        return answer._replace(tensors={"total/": total})

    return change


@pytest.mark.parametrize("change", [without_one, twice_one])
@pytest.mark.parametrize("group", GROUPS)
def test_an_edge_that_drops_or_swaps_what_sites_sent_is_found(
    change: Callable[[Nested], Callable[[Frame, Frame], Frame]], group: str, tables: Path, tmp_path: Path
) -> None:
    """Masks do not cancel then: its sites are out of the round, or the round is void where the sum is one of all."""
    here = through(job("fedavg", group), tables, tmp_path / "edges")
    plain = Federation(open_(job("fedavg")), tables, tmp_path / "plain", NAMES)
    lying(here, change(here))
    here.serve()
    out = {*NORTH} if group == "edge" else {*NAMES}
    plain.serve(meddling(plain, silent(out, {1}, "orders")))
    alike(here, plain, 1e-8)
    [void] = voids(here)
    assert void.endswith(NOISE)
    assert here.said()["rounds_void"] == (group == "cohort")


def test_what_an_edge_adds_within_the_bounds_is_not_found(tables: Path, tmp_path: Path) -> None:
    """As a site that poisons: masks hide numbers and prove none."""
    here = through(job("fedavg", rounds=2), tables, tmp_path / "lie")
    honest = through(job("fedavg", rounds=2), tables, tmp_path / "honest")
    step = SECURE["clip"] / 2 ** SECURE["bits"]
    lying(here, lambda question, answer: answer._replace(tensors={"total/": answer.tensors["total/"] + 2**38}))
    here.serve()
    honest.serve()
    move = here.server()["x"] - honest.server()["x"]
    assert float((move - 2**38 * step).abs().max()) < 1e-9
    assert voids(here) == []


@pytest.mark.parametrize("wrong", [{}, {"nobody": None}])
@pytest.mark.parametrize("group", [None, *GROUPS])
def test_an_edge_without_a_total_and_without_a_reason_is_not_asked_for_ever(
    wrong: dict[str, Any], group: str | None, tables: Path, tmp_path: Path
) -> None:
    settings = job("fedavg", group or "edge", rounds=2)
    here = through(settings if group else open_(settings), tables, tmp_path / "edges")
    plain = Federation(open_(settings), tables, tmp_path / "plain", NAMES)

    def meddle(edge: str, question: Frame, answer: Callable[[], bytes]) -> bytes:
        if edge == "north" and question.kind in ("total", MASKED):
            return codec.write(question._replace(fields={"wrong": wrong}, tensors={}))
        return answer()

    here.meddle = meddle
    here.serve()
    plain.serve(meddling(plain, silent({*NORTH}, {0, 1}, "orders")))
    got, want = here.server(), plain.server()
    assert max(far(got[leaf], want[leaf]) for leaf in want) < 1e-8
    assert not any(site["refused"] for site in here.said()["sites"])


def retold(homes: Mapping[str, list[int]]) -> Change:
    """These sites are told other groups."""

    def change(site: str, frame: Frame) -> Frame:
        if frame.kind != "setup" or site not in homes:
            return frame
        return frame._replace(fields={**frame.fields, "homes": homes[site]})

    return change


SMALL = [int(k not in (0, 3)) for k in range(8)]  # s0 and s3 below one of their own


@pytest.mark.parametrize(
    ("homes", "why"),
    [
        (SMALL, "2 sites are below its edge server, and a sum of this site's has 3 at least"),
        (SMALL[:5], "its content cannot be used"),
        (None, "its job has sums below edge servers (secure.group), and nobody told it whose sites are whose"),
        ([0.5] * 8, "a field that is no whole number"),
    ],
)
def test_groups_that_are_too_small_or_none_are_refused(homes: Any, why: str, tables: Path, tmp_path: Path) -> None:
    here = through(job("fedavg"), tables, tmp_path)
    meddling(here, retold({"s0": homes}))
    [said] = check(here.job, NAMES, here.of_edges, 1.0, edges=HOMES)
    assert said.startswith(f"site s0: the site refused what it was sent: {why}")


def test_a_sites_policy_says_how_many_are_below_its_edge(tables: Path, tmp_path: Path) -> None:
    here = through(job("fedavg"), tables, tmp_path)
    rules = Policy(**{**USUAL.model_dump(), "least_sites": 6})
    here.sites["s0"] = Site(here.job, tables / "s0.csv", tmp_path / "s0", "s0", policy=rules, keys=tmp_path / "keys")
    [said] = check(here.job, NAMES, here.of_edges, 1.0, edges=HOMES)
    assert said.endswith("5 sites are below its edge server, and a sum of this site's has 6 at least")


def test_a_group_of_other_sites_is_refused(tables: Path, tmp_path: Path) -> None:
    """An edge tells two of its sites that they are below one with another: they take no part with the others."""
    here = through(job("fedavg", rounds=1), tables, tmp_path / "edges")
    plain = Federation(open_(job("fedavg", rounds=1)), tables, tmp_path / "plain", NAMES)
    other = [int(k not in (0, 1, 3)) for k in range(8)]
    meddling(here, retold({"s0": other, "s3": other}))
    here.serve()
    plain.serve(meddling(plain, silent({"s0", "s3"}, {0}, "orders")))
    got, want = here.server(), plain.server()
    assert max(far(got[leaf], want[leaf]) for leaf in want) < 1e-8
    for site in here.said()["sites"]:
        why = "the site refused what it was sent: site s2 is in this sum, and is below another edge server"
        assert [*site["refused"]] == [why] * (site["name"] in ("s0", "s3"))


def test_groups_for_each_site_give_no_sum(tables: Path, tmp_path: Path) -> None:
    """One is told another truth of sites below the other edge: shares and masks are made for what sites were told."""
    here = through(job("fedavg", rounds=1), tables, tmp_path)
    meddling(here, retold({"s0": [1, 0, 1, 1, 0, 1, 2, 1]}))
    here.serve()
    start = "site s0, site s2, site s3, site s5, site s7 are in no sum: "
    assert len(voids(here)) == 3  # of a round and two evaluations
    assert all(text.startswith(start) for text in voids(here))


@pytest.mark.parametrize("is_open", [False, True])
def test_two_runs_with_other_groups_do_not_give_one_site(
    is_open: bool, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root begins a job twice, with one site more below an edge the second time: the difference of that edge's totals
    of round 0, from one model, is that site's contribution. The ledgers of the edge's other sites know better."""
    totals = list[np.ndarray]()

    def seen(total: np.ndarray) -> np.ndarray:
        totals.append(terms.signed(total))
        return totals[-1]

    monkeypatch.setattr(secure, "signed", seen)
    here = through(job("fedavg", rounds=1), tables, tmp_path)
    here.serve()
    here.homes, here.folder = {"north": [*NORTH, "s0"], "south": SOUTH[1:]}, tmp_path / "again"
    if not is_open:
        said = check(here.job, NAMES, here.of_edges, 1.0, edges=here.homes)
        assert len(said) == 8
        assert said[1] == (
            "site s1: the site refused what it was sent: its secure sums of this job were with s1, s4, s6 by its "
            "ledger, and would be with s0, s1, s4, s6 now, so that their difference is of few sites; name edge "
            "servers as they were, or give the job another seed"
        )
        return
    monkeypatch.setattr(gate, "_group", lambda frame: None)
    here.serve()
    north, south, north_again, south_again = (one for one in totals if len(one) == here.server()["x"].numel())
    assert north.tolist() != north_again.tolist()
    assert (north_again - north).tolist() == (south - south_again).tolist()  # the contribution of s0


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_sums_below_edges_need_edges(tables: Path, tmp_path: Path) -> None:
    here = Federation(job("fedavg"), tables, tmp_path, NAMES)
    for start in (lambda: check(here.job, NAMES, here.exchange, 1.0), here.serve):
        with pytest.raises(
            UserError, match=r"secure.group is edge, and there are no edge servers; name them by --tree"
        ):
            start()


@pytest.mark.parametrize("group", GROUPS)
def test_a_run_goes_on_with_other_edges_where_they_have_no_sums(group: str, tables: Path, tmp_path: Path) -> None:
    here = through(job("fedavg", group, rounds=1), tables, tmp_path)
    here.serve()
    here.homes = {"north": NAMES[:4], "south": NAMES[4:]}
    if group == "edge":
        with pytest.raises(UserError, match=r"has sums below other edge servers \(secure.group\); resume it with the"):
            here.serve(resume=True)
    else:
        assert here.serve(resume=True).status == "complete"


def test_an_edge_adds_what_the_root_names(tables: Path, tmp_path: Path) -> None:
    here = through(job("fedavg", rounds=1), tables, tmp_path)
    here.serve()
    _, question, answer = next(one for one in here.passed if one[0] == "north" and one[1].kind == MASKED)

    def again(**changes: Any) -> Frame:
        asked = question._replace(fields={**question.fields, **changes})
        return codec.read(here.edges["north"].answer(codec.write(asked)))

    torch.testing.assert_close(again().tensors, answer.tensors, rtol=0, atol=0)
    length, bits = question.fields["form"]
    site, (client, mark) = next(iter(question.fields["replies"].items()))
    assert again(replies={site: [client, mark + 1]}).fields["wrong"] == {site: None}
    assert again(form=[length + 1, bits], replies={site: [client, mark]}).fields["wrong"] == {site: "another shape"}
    assert again(form=[length, 16]).kind == again(replies={}).kind == "refused"


@pytest.mark.parametrize("kind", ["orders", "open"])
def test_a_method_that_needs_all_sites_ends_where_an_edge_has_no_sum(kind: str, tables: Path, tmp_path: Path) -> None:
    here = through(job("fedpd"), tables, tmp_path)
    meddling(here, silent({*NORTH}, {1}, kind))
    with pytest.raises(
        UserError, match=r"site s1 did not answer in round 1 .* and fedpd needs all clients in every round"
    ):
        here.serve()
