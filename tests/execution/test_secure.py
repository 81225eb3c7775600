"""Secure sums: the plain total to the stated error; the server sees noise; both ends refuse to be used."""

import importlib.util
import json
import math
import re
import shutil
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from test_deploy_core import (
    BASE,
    SITES,
    SQUARES,
    Federation,
    answer_of,
    check,
    files,
    least_squares,
    optimum,
    quick_disk,
    text,
    with_,
)
from torch import Tensor

from fedconcord.execution.engines import Serial
from fedconcord.execution.engines.driver import decide
from fedconcord.execution.job import Job
from fedconcord.execution.job.job import population_of
from fedconcord.execution.messages import codec, masks, member
from fedconcord.execution.messages.client import RemoteClient, StoredState
from fedconcord.execution.messages.codec import Frame
from fedconcord.execution.messages.masks import Peer, Ring
from fedconcord.execution.messages.member import Member, Secret
from fedconcord.execution.messages.secure import Secure
from fedconcord.execution.messages.store import RemoteStore
from fedconcord.execution.messages.sums import PLAIN
from fedconcord.execution.messages.terms import Scale, Terms, signed
from fedconcord.execution.messages.way import Hooks
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import (
    Algorithm,
    Cohort,
    Outcome,
    Phases,
    Plan,
    Sender,
    Tree,
    space_of,
    tree_leaves,
    tree_map,
    weights,
)
from fedconcord.method.wrappers.forms import forms, unsummable
from fedconcord.method.wrappers.uploads import quantise, with_uploads
from fedconcord.support.errors import UserError
from fedconcord_flower import keys
from fedconcord_sites.ledger import Ledger
from fedconcord_sites.site import Site
from table import TABLE, make

__all__ = ["files", "least_squares", "quick_disk"]  # fixtures

CPU, RUN = torch.device("cpu"), "0123456789abcdef"
FINE = Terms(Scale(64.0, 48), 0.6, 5, ())  # with the samples of its party
CLIENTS = 7
KEYS = [ec.generate_private_key(ec.SECP384R1()) for _ in range(CLIENTS)]  # of each client, that last
PEERS = {i: Peer(f"client {i}", key.public_key()) for i, key in enumerate(KEYS)}


class Held:
    """What one client keeps, in memory."""

    def __init__(self) -> None:
        self.kept: StoredState | None = None
        self.secret = Secret()

    def read(self) -> StoredState | None:
        return self.kept

    def write(self, kept: StoredState) -> None:
        self.kept = kept


class Safe:
    """A safe of what `Held` holds, through text as in a file."""

    def __init__(self, held: Held) -> None:
        self.held = held

    def read(self) -> Secret:
        return member.read(self.held.secret.write())

    def write(self, secret: Secret) -> None:
        self.held.secret = secret


class Party:
    """A server and clients on quadratics, and the bytes between them.

    `meddle(client, frame)` is asked of every message down and every answer up: None loses it.
    """

    def __init__(self, algorithm: Algorithm, terms: Terms | None, cohort: int = 5, dim: int = 6) -> None:
        problem = quadratics(1, CLIENTS, torch.float64, CPU, dim=dim, blocks=5)
        problem.x0 = torch.linspace(-1, 1, dim, dtype=torch.float64)
        cohort = CLIENTS if algorithm.needs.everyone else cohort
        samples = tuple(problem.roster.samples.tolist())
        terms = None if terms is None else terms._replace(cohort=cohort, samples=samples)
        schedule = Schedule(seed=3, cohort=cohort, lr=0.05, work=uniform(1, 4), unit="steps", batch_size=2)
        self.job = Job(problem, algorithm, schedule, engine=Serial())
        self.space, self.forms = space_of(problem), forms(algorithm, problem.init(0))
        self.held = {i: Held() for i in range(CLIENTS)}
        self.clients = {}
        for i, held in self.held.items():
            ring = Ring(KEYS[i], PEERS)
            part = None if terms is None else Member(i, RUN, terms, Safe(held), self.space, ring, self.plans)
            own = problem.objective.alone(i)
            self.clients[i] = RemoteClient(i, self.job.assignment, own, held, self.forms, RUN, part)
        self.log = list[Frame]()
        self.refused: list[tuple[int, str]] = []
        self.voids: list[str] = []
        self.meddle: Callable[[int, Frame], Frame | None] = lambda client, frame: frame
        hooks = Hooks(lambda i: f"client {i}", "", lambda i: None, lambda i, why: self.refused.append((i, why)))
        way = SimpleNamespace(method=RUN, tries=1, is_simulated=False, counts={}, begin=lambda: self.exchange)
        way.hooks = hooks._replace(void=self.voids.append)
        self.store = RemoteStore(way, algorithm, problem, (), sums=PLAIN if terms is None else Secure(terms, PEERS))  # type: ignore[arg-type]
        self.server: Tree = algorithm.init(problem.init(3), population_of(self.job))

    def plans(self, t: int, ids: Sequence[int]) -> Plan:
        """As every client draws them from its own job."""
        drawn = self.job.schedule.plan(t, self.job.algorithm, self.job.problem.roster)
        return weights.redrawn(drawn, np.isin(drawn.ids, ids), self.job.algorithm.weights)

    def change(self, **parts: Any) -> None:
        """Another part of the job, at both ends."""
        self.job = replace(self.job, **parts)
        self.store.algorithm = self.job.algorithm
        for client in self.clients.values():
            client.assignment = self.job.assignment

    def exchange(self, sent: list[tuple[int, bytes]], silent: frozenset[int]) -> list[tuple[int, bytes]]:
        found = []
        for client, data in sent:
            frame = self.meddle(client, codec.read(data))
            for answer in [] if frame is None else self.ask(client, frame):
                self.log.append(answer)
                changed = self.meddle(client, answer)
                found += [] if changed is None else [(client, codec.write(changed))]
        return found

    def ask(self, client: int, frame: Frame) -> list[Frame]:
        """What a client answers; its refusals are kept."""
        try:
            return [codec.read(answer) for answer in self.clients[client].receive(codec.write(frame))]
        except UserError as refusal:
            self.refused.append((client, str(refusal)))
            return []

    def round(self, t: int) -> Outcome:
        algorithm, plan = self.job.algorithm, self.job.schedule.plan(t, self.job.algorithm, self.job.problem.roster)
        if algorithm.phases.prologue is not None and t == 0:
            self.server = self.store.prologue(self.server, population_of(self.job)).server
        outcome, kept, message = self.store.attempt(
            self.server, plan, lambda half: decide(half, algorithm, self.space, self.server, plan)
        )
        if message is not None:
            self.store.deliver(kept, message)
        self.server = outcome.server
        return outcome

    def cohort(self, t: int) -> list[int]:
        ids: list[int] = self.job.schedule.plan(t, self.job.algorithm, self.job.problem.roster).ids.tolist()
        return ids

    def rows(self) -> list[Tree]:
        """The rows that a next round would begin with."""
        rows = []
        for i, held in self.held.items():
            assert held.kept is not None
            counts = list(self.store.ledger.counted.get(i, ())) == held.kept.mark[:2].tolist()
            rows.append(held.kept.pending if counts else held.kept.row)
        return rows


def far(a: Tree, b: Tree) -> float:
    pairs = zip(tree_leaves(a).values(), tree_leaves(b).values(), strict=True)
    return max((float((x - y).abs().max()) if isinstance(x, Tensor) else abs(x - y) for x, y in pairs), default=0.0)


def lose(kind: str, *clients: int) -> Callable[[int, Frame], Frame | None]:
    """Answers of this kind of these clients do not arrive."""
    return lambda client, frame: None if client in clients and frame.kind == kind else frame


# -- the total -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"afl"}))  # which looks at contributions one by one
def test_every_method_is_the_plain_one(name: str) -> None:
    # losses of these quadratics are below 0, by which q-FFL's clients would weigh next to nothing
    algorithm = make(name, **({"q": 0.0} if name == "qffl" else {}))
    assert unsummable(algorithm) is None
    plain, secure = Party(algorithm, None), Party(algorithm, FINE)
    for t in range(3):
        plain.round(t)
        secure.round(t)
    moved = far(plain.server, plain.job.algorithm.init(plain.job.problem.init(3), population_of(plain.job)))
    assert moved > 1e-3
    assert far(secure.server, plain.server) < 1e-9
    assert secure.voids == secure.refused == []
    assert not any(name.startswith(("up/", "gradient/")) for frame in secure.log for name in frame.tensors)


def test_other_weights_compressors_and_rules() -> None:
    for algorithm in (
        *(make("fedavg", weights=kind) for kind in ("size", "unbiased")),
        *(make("fedvra", d=rule) for rule in ("inverse_p", "fednova")),
        with_uploads(make("scaffold"), quantise(8)),
    ):
        assert unsummable(algorithm) is None
        plain, secure = Party(algorithm, None), Party(algorithm, FINE)
        for party in plain, secure:
            party.meddle = lose("reply", 2, 5)
            for t in range(3):
                party.round(t)
        assert far(secure.server, plain.server) < 1e-9


@pytest.mark.parametrize(("bits", "clip"), [(8, 1.0), (12, 3.0), (24, 8.0)])
def test_the_error_is_the_stated_one(bits: int, clip: float) -> None:
    plain, secure = Party(make("fedavg"), None), Party(make("fedavg"), FINE._replace(scale=Scale(clip, bits)))
    plain.round(0)
    secure.round(0)
    error = far(secure.server, plain.server)
    assert 0.01 * clip / 2**bits < error <= 5 * clip / 2**bits + 1e-15


def test_rounding_is_unbiased() -> None:
    """The mean error of 20 000 roundings of each of some numbers, in steps: standard deviation below 0.5 / 141."""
    scale, values = Scale(3.0, 10), np.array([0.0, 0.1, -0.7, 2.999, -3.0, 1 / 3])
    draws = np.random.default_rng(0).random((20_000, len(values)))
    back = np.stack([scale.numbers(scale.integers(values, row, 1)) for row in draws])
    assert np.abs(back - values).max() <= scale.step
    assert np.abs((back - values).mean(0)).max() < 0.02 * scale.step


@pytest.mark.parametrize("bits", [8, 24, 28, 29, 30, 31, 32, 48])
def test_sums_of_the_largest_numbers_fit_their_modulus(bits: int) -> None:
    scale = Scale(2.5, bits)
    values = np.random.default_rng(0).uniform(-2.5, 2.5, (7, 50))
    values[:, 0], values[:, 1] = 2.5, -2.5
    draws = np.random.default_rng(1).random(values.shape)
    total = np.sum(
        [scale.integers(row, u, 7) for row, u in zip(values, draws, strict=True)], axis=0, dtype=scale.kind(7)
    )
    assert np.abs(scale.numbers(total) - values.sum(0)).max() <= 7 * 2.5 / 2**bits + 1e-14
    assert scale.kind(7) == (np.uint32 if bits <= 28 else np.uint64)


@pytest.mark.parametrize(
    ("clients", "bits", "length", "share"),
    [(127, 24, 10, 0.925), (100, 24, 10, 0.085), (100, 24, 100, 0.0), (100, 32, 1, 0.0)],
)
def test_how_often_noise_passes_as_a_sum(clients: int, bits: int, length: int, share: float) -> None:
    """As the page says: what no contributions come to is all that the root can see of a sum."""
    kind = Scale(1.0, bits).kind(clients)
    noise = signed(np.frombuffer(np.random.default_rng(0).bytes(2000 * length * kind.itemsize), kind))
    passes = (np.abs(noise.reshape(2000, length)) <= clients << bits).all(1).mean()
    assert abs(passes - share) < 4 * math.sqrt(share / 2000) + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scale", "error"),
    [
        *((name, FINE.scale, 1e-10) for name in ("scaffold", "afedpd", "mimesvrg")),
        ("scaffold", Scale(4.0, 24), 5e-5),
    ],
)
def test_the_optimum_is_reached_to_the_error(name: str, scale: Scale, error: float) -> None:
    party = Party(make(name), FINE._replace(scale=scale), CLIENTS)
    party.change(schedule=replace(party.job.schedule, batch_size=None, lr=0.4))
    for t in range(100):
        party.round(t)
    best = party.job.problem.optimum(np.full(CLIENTS, 1 / CLIENTS))  # type: ignore[attr-defined]
    assert float((party.server.x - best).norm()) < error


# -- what the server sees --------------------------------------------------------------------------------------------


def test_what_is_sent_is_noise() -> None:
    """A contribution of zeros under masks: bytes as often as each other, and others in every sum."""
    party = Party(make("fedavg"), FINE, 3)
    nothing: dict[str, Any] = {
        "contribute": lambda move, sender, cohort: move.new_zeros(500),
        "update": lambda server, total, cohort: server,
    }
    party.change(algorithm=replace(party.job.algorithm, **nothing))
    for t in range(8):
        party.round(t)
    sent = [frame.tensors["covered/"].numpy() for frame in party.log if "covered/" in frame.tensors]
    assert len(sent) == 24
    assert len({row.tobytes() for row in sent}) == 24
    counts = np.bincount(np.frombuffer(b"".join(row.tobytes() for row in sent), np.uint8), minlength=256)
    expected = counts.sum() / 256
    assert expected == 24 * 500 * 8 / 256
    assert ((counts - expected) ** 2 / expected).sum() < 400  # 255 degrees of freedom: above with probability 1e-8


def test_shares_below_the_threshold_say_nothing_and_above_it_all() -> None:
    secret = masks.new_key()
    shares = masks.split(secret, 5, 3)
    for some in ((1, 2, 3), (1, 3, 5), (5, 4, 2)):
        assert masks.joined({place: shares[place - 1] for place in some}) == secret
    assert masks.joined({1: shares[0], 2: shares[1]}) != secret
    # whatever the secret may be, a third share fits the two: they leave each equally possible
    for guess in (b"\x00" * 32, b"\xff" * 32):
        third = guess_share(guess, {1: shares[0], 2: shares[1]}, 3)
        assert masks.joined({1: shares[0], 2: shares[1], 3: third}) == guess


def guess_share(secret: bytes, shares: Mapping[int, bytes], place: int) -> bytes:
    """The share at a place of the polynomial through a secret at 0 and the shares given."""
    points = {0: int.from_bytes(secret), **{x: int.from_bytes(share) for x, share in shares.items()}}
    value = 0
    for x, y in points.items():
        above = below = 1
        for other in points:
            if other != x:
                above, below = above * (place - other), below * (x - other)
        value += y * above * pow(below, -1, masks.PRIME)
    return (value % masks.PRIME).to_bytes(masks.SHARE)


# -- who is lost -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["scaffold", "fednova", "feddyn", "mimesvrg"])
@pytest.mark.parametrize("kind", ["keys", "dealt", "reply", "agreed", "shares"])
def test_who_is_lost_is_out_of_the_sum_or_in_it(kind: str, name: str) -> None:
    plain, secure = Party(make(name), None), Party(make(name), FINE)
    for t in range(4):
        gone = secure.cohort(t)[t % 5]
        # of a method with two messages a round the first answer of that kind is of its first sum
        secure.meddle = lose(kind, gone)
        lost = {"agreed": "nothing", "shares": "nothing"}.get(kind, "reply")
        if name == "mimesvrg" and kind in ("keys", "dealt"):
            lost = "gradient"
        plain.meddle = lose(lost, gone)
        plain.round(t)
        secure.round(t)
        for one, other in zip(plain.rows(), secure.rows(), strict=True) if t == 3 else ():
            assert far(one, other) < 1e-9
    assert far(secure.server, plain.server) < 1e-9
    assert secure.voids == []


def test_below_the_threshold_a_round_changes_nothing() -> None:
    plain, secure = Party(make("scaffold"), None), Party(make("scaffold"), FINE)
    for kind, t in (("keys", 0), ("dealt", 1), ("reply", 2), ("shares", 3)):
        before, rows = secure.server, [None if held.kept is None else held.kept.row for held in secure.held.values()]
        counted = dict(secure.store.ledger.counted)
        secure.meddle = lose(kind, *secure.cohort(t)[: 3 if kind != "keys" else 4])
        secure.round(t)
        assert len(secure.voids) == t + 1
        assert far(secure.server, before) == 0
        assert secure.store.ledger.counted == counted
        now = [None if held.kept is None else held.kept.row for held in secure.held.values()]
        assert all(old is None or far(old, new) == 0 for old, new in zip(rows, now, strict=True))
    assert secure.voids == [
        "round 0 changed nothing: 1 client answered, and a sum of fewer than 3 hides nobody",
        "round 1 changed nothing: 2 clients of 5 were left, and 3 are needed to open their sum",
        "round 2 changed nothing: 2 clients of 5 were left, and 3 are needed to open their sum",
        "round 3 changed nothing: 2 clients of 5 were left, and 3 are needed to open their sum",
    ]
    secure.meddle = lambda client, frame: frame
    for t in range(4, 7):  # as if those rounds had never been
        plain.round(t)
        secure.round(t)
    assert far(secure.server, plain.server) < 1e-9


@pytest.mark.parametrize(
    ("clients", "share", "needed"), [(3, 0.6, 2), (4, 0.51, 3), (5, 0.6, 3), (5, 1.0, 5), (10, 0.6, 6)]
)
def test_the_threshold_is_above_one_half(clients: int, share: float, needed: int) -> None:
    assert FINE._replace(share=share, cohort=0).needed(clients) == needed
    assert FINE._replace(share=share, cohort=clients).needed(2) == needed  # whoever is said to be away


# -- a server that lies ----------------------------------------------------------------------------------------------

KINDS = ("keys", "deal", "orders", "agree", "open")


def begun(*lost: str) -> tuple[Party, int, dict[str, Frame]]:
    """A round whose first client did not get messages of these kinds: party, client, what it was asked by kind."""
    party, last = Party(make("fedavg"), FINE), dict[str, Frame]()
    first = party.cohort(0)[0]

    def meddle(client: int, frame: Frame) -> Frame | None:
        is_question = frame.kind == "deal" or "keys/" not in frame.tensors
        if client == first and frame.kind in KINDS and is_question:
            last[frame.kind] = frame
        return None if client == first and frame.kind in lost and is_question else frame

    party.meddle = meddle
    party.round(0)
    assert party.voids == party.refused == []
    assert set(last) == set(KINDS if lost == ("open",) else KINDS[:-1])  # who has not signed is not asked to open
    return party, first, last


@pytest.fixture
def asked() -> tuple[Party, int, dict[str, Frame]]:
    """A round whose first client got everything but the opening."""
    return begun("open")


def test_one_list_of_who_was_heard_is_signed() -> None:
    party, client, last = begun("agree")
    fields = last["agree"].fields
    few = last["agree"]._replace(fields={**fields, "heard": fields["heard"][:2]})
    without = last["agree"]._replace(fields={**fields, "heard": fields["heard"][:-1]})
    other = next(i for i in range(CLIENTS) if i not in fields["heard"])
    strange = last["agree"]._replace(fields={**fields, "heard": sorted([*fields["heard"], other])})
    absent = last["agree"]._replace(fields={**fields, "heard": fields["heard"][1:]})
    assert [party.ask(client, one) for one in (few, strange, absent)] == [[]] * 3
    [answer] = party.ask(client, last["agree"])
    assert party.ask(client, without) == party.ask(client, last["agree"]) == []
    assert [why for _, why in party.refused] == [
        "2 clients were heard, and 3 are needed",
        *["those who were heard are not those of this sum"] * 2,
        *["its secrets for round 0 were used, or are not there"] * 2,
    ]
    assert answer.tensors["agreed/"].shape == (masks.SIGNATURE,)


def test_shares_are_given_once_and_for_enough_signatures(asked: tuple[Party, int, dict[str, Frame]]) -> None:
    party, client, last = asked
    signers, signatures = last["open"].fields["signers"], last["open"].tensors["signatures/"]
    assert len(signers) == 5

    def asks(signers: list[int], signatures: Tensor) -> Frame:
        fields = {**last["open"].fields, "signers": signers}
        return last["open"]._replace(fields=fields, tensors={"signatures/": signatures})

    assert party.ask(client, asks(signers[:2], signatures[:2])) == []  # its own and one more
    assert party.ask(client, asks(signers, signatures.roll(1, 0))) == []  # of others
    [answer] = party.ask(client, asks(signers[1:3], signatures[1:3]))  # two more than its own are enough
    assert party.ask(client, last["open"]) == []
    assert [why for _, why in party.refused] == [
        "2 clients have signed that these were heard, and 3 are needed",
        "1 clients have signed that these were heard, and 3 are needed",
        "its secrets for round 0 were used, or are not there",
    ]
    assert answer.tensors["shares/"].shape == (5, masks.SHARE)


def covered(share: float, cohort: int) -> tuple[Party, list[int]]:
    """Clients whose contributions came, and of which nobody has signed who was heard."""
    party = Party(make("fedavg"), FINE._replace(share=share), cohort)
    party.meddle = lambda client, frame: None if frame.kind == "agree" else frame
    party.round(0)
    assert party.refused == []
    return party, party.cohort(0)


def had(
    party: Party, told: Mapping[int, list[int]], lists: list[list[int]], colluders: list[int]
) -> set[tuple[int, str]]:
    """Whose seed or key a server has that tells clients these lists of who was heard, with colluders who sign all of
    `lists` and give all of their shares."""
    secrets = {i: held.secret for i, held in party.held.items() if held.secret.stage == "covered"}
    one = next(iter(secrets.values()))
    about = member.context(RUN, 0, one.part, one.ids, one.keys, party.clients[0].member.terms)  # type: ignore[union-attr]
    signatures = {
        (i, *heard): masks.signed(KEYS[i], member.heard_of(about, one.among, heard))
        for i in colluders
        for heard in lists
    }
    for i, heard in told.items():
        for answer in party.ask(i, Frame("agree", RUN, 0, i, {"part": one.part, "heard": heard}, {})):
            signatures[i, *heard] = answer.tensors["agreed/"].numpy().tobytes()
    shares: dict[tuple[int, str], dict[int, bytes]] = {}
    for i in colluders:
        for k, j in enumerate(one.among):
            pair = secrets[i].shares[2 * masks.SHARE * k : 2 * masks.SHARE * (k + 1)]
            shares.setdefault((j, "key"), {})[one.ids.index(i) + 1] = pair[: masks.SHARE]
            shares.setdefault((j, "seed"), {})[one.ids.index(i) + 1] = pair[masks.SHARE :]
    for i, heard in told.items():
        signers = sorted(j for j in secrets if (j, *heard) in signatures)
        rows = torch.stack([torch.frombuffer(bytearray(signatures[j, *heard]), dtype=torch.uint8) for j in signers])
        fields = {"part": one.part, "signers": signers}
        for answer in party.ask(i, Frame("open", RUN, 0, i, fields, {"signatures/": rows})):
            for j, share in zip(one.among, answer.tensors["shares/"].numpy(), strict=True):
                which = (j, "seed" if j in heard else "key")
                shares.setdefault(which, {})[one.ids.index(i) + 1] = share.tobytes()
    needed = party.clients[0].member.terms.needed(len(one.ids))  # type: ignore[union-attr]
    commitments = {
        frame.client: frame.tensors["dealt/commitment"].numpy().tobytes()
        for frame in party.log
        if frame.kind == "dealt"
    }
    found = set()
    for (j, which), by_place in shares.items():
        if len(by_place) >= needed:
            secret = masks.joined(dict([*by_place.items()][:needed]))
            card = one.keys[member.CARD * one.ids.index(j) :]
            right = (
                masks.commitment(secret) == commitments[j]
                if which == "seed"
                else masks.public_of(secret) == card[32:64]
            )
            assert right
            found.add((j, which))
    return found


@pytest.mark.parametrize(
    ("share", "cohort", "colluders", "is_open"),
    [
        *((0.67, 3, c, False) for c in (0, 1)),  # 3 of 3 are needed, and what 2 know of the third is the sum
        *((0.6, 3, c, c >= 1) for c in (0, 1)),
        *((0.67, 5, c, c >= 3) for c in (2, 3)),
        *((0.6, 5, c, c >= 1) for c in (0, 1)),
        *((0.67, 7, c, c >= 3) for c in (2, 3)),
    ],
)
def test_two_stories_need_2t_n_colluders(share: float, cohort: int, colluders: int, is_open: bool) -> None:
    """One half is told that the victim was heard, the other that it was lost: with its seed and its key, of which
    honest clients give one each, its mask is off. 2 t - n of n clients must sign both lists and give both shares."""
    party, ids = covered(share, cohort)
    needed = FINE._replace(share=share, cohort=cohort).needed(cohort)
    assert is_open == (colluders >= 2 * needed - cohort)
    mates, honest = ids[cohort - colluders :], ids[: cohort - colluders]
    half = max(1, needed - colluders)
    victim, heard, lost = honest[0], ids, ids[1:]
    told = {i: heard if i in honest[:half] else lost for i in honest}
    secrets = had(party, told, [heard, lost], mates)
    assert (
        {(victim, "seed"), (victim, "key")} <= secrets
        if is_open
        else not {(victim, "seed"), (victim, "key")} <= secrets
    )


@pytest.mark.parametrize("are_compared", [True, False])
def test_many_stories_make_no_smaller_sum(are_compared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one colluder: were signatures not looked at, five clients with a threshold of three would open a sum of
    two, with the keys of the other three."""
    party, ids = covered(0.6, 5)
    a, b, *rest = ids
    told = {a: sorted([a, b, rest[0]]), b: sorted([a, b, rest[1]]), **{i: sorted([a, b, i]) for i in rest}}
    if not are_compared:
        monkeypatch.setattr(masks, "is_signed", lambda key, signature, digest: True)
        for i in ids:  # a signature that nobody made stands for those who signed other lists
            party.ask(i, Frame("agree", RUN, 0, i, {"part": 1, "heard": told[i]}, {}))
        everybody = torch.zeros(5, masks.SIGNATURE, dtype=torch.uint8)
        shares: dict[tuple[int, str], int] = {}
        for i in ids:
            fields = {"part": 1, "signers": ids}
            assert len(party.ask(i, Frame("open", RUN, 0, i, fields, {"signatures/": everybody}))) == 1
            for j in ids:
                which = (j, "seed" if j in told[i] else "key")  # as `had` looks at in full
                shares[which] = shares.get(which, 0) + 1
        enough = {which for which, count in shares.items() if count >= 3}
        assert enough == {(a, "seed"), (b, "seed"), *((i, "key") for i in rest)}
        return
    assert had(party, told, [], []) == set()
    assert {why.split(" ", 1)[1] for _, why in party.refused} == {
        "clients have signed that these were heard, and 3 are needed"
    }


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda ids, cards, old: (ids[:4], cards[:4]),
            "4 clients began this sum, and 5 of its job's cohort are needed to open it",
        ),
        (
            lambda ids, cards, old: (ids, [cards[0], stranger(ids[1]), *cards[2:]]),
            "the keys of {1} for this sum are not",
        ),
        (
            lambda ids, cards, old: ([*ids, 99], [*cards, stranger(99)]),
            "client 99 is in this sum, and it knows nobody of",
        ),
        (
            lambda ids, cards, old: (ids, [cards[0], old[1], *cards[2:]]),
            "the keys of {1} for this sum are not signed by",
        ),
        (
            lambda ids, cards, old: (ids, [cards[0], cards[1], cards[3], cards[2], *cards[4:]]),
            "the keys of {2} for this",
        ),
    ],
    ids=[
        "few of a cohort",
        "keys of the server's own",
        "an invented client",
        "keys of another round",
        "keys of another client",
    ],
)
def test_few_clients_and_keys_that_are_not_signed_get_nothing(
    change: Callable[[list[int], list[bytes], list[bytes]], tuple[list[int], list[bytes]]], why: str
) -> None:
    party, cards = Party(make("fedavg"), FINE, CLIENTS), dict[int, dict[int, bytes]]()

    def meddle(client: int, frame: Frame) -> Frame:
        if frame.kind == "keys" and frame.tensors:
            cards.setdefault(frame.round, {})[client] = frame.tensors["keys/"].numpy().tobytes()
        if frame.kind != "deal" or frame.round == 0:
            return frame
        ids, changed = change(frame.fields["ids"], [*cards[1].values()], [*cards[0].values()])
        keys = torch.frombuffer(bytearray(b"".join(changed)), dtype=torch.uint8).reshape(len(ids), member.CARD)
        return frame._replace(fields={**frame.fields, "ids": ids}, tensors={"keys/": keys})

    party.meddle = meddle
    party.round(0)
    assert party.voids == []
    party.round(1)
    assert len(party.voids) == 1
    said = [one for _, one in party.refused]
    assert any(one.startswith(why.replace("{1}", "client 1").replace("{2}", "client 2")) for one in said)
    assert {frame.kind for frame in party.log if frame.round == 1} == {"keys"}  # nothing else left anybody


def stranger(client: int) -> bytes:
    """Keys for round 1 that somebody made who has not the client's key."""
    public = b"".join(masks.public_of(masks.new_key()) for _ in range(2))
    return public + masks.signed(ec.generate_private_key(ec.SECP384R1()), member.card(RUN, 1, 1, client, public))


def test_masks_cover_one_contribution_and_sums_are_not_repeated(asked: tuple[Party, int, dict[str, Frame]]) -> None:
    party, client, last = asked
    assert party.ask(client, last["orders"]) == []  # another model under the same masks
    assert party.ask(client, last["deal"]) == []
    assert len(party.ask(client, last["open"])) == 1
    assert party.ask(client, last["keys"]) == []
    assert [why for _, why in party.refused] == [
        *["its secrets for round 0 were used, or are not there"] * 2,
        "round 0 was summed before, and is not summed twice",
    ]


def test_a_round_is_one_sum_whatever_part_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two of a round, one without a client, would differ by its contribution."""
    meet = Secure.meet
    monkeypatch.setattr(Secure, "meet", lambda self, half, round, part, *rest: meet(self, half, round, 2, *rest))
    party = Party(make("fedavg"), FINE)
    before = party.server
    party.round(0)
    assert party.refused == [(i, "part 2 of round 0 is no sum of answers to 'orders'") for i in party.cohort(0)]
    assert far(party.server, before) == 0


def test_a_server_cannot_choose_the_clients_of_a_sum(asked: tuple[Party, int, dict[str, Frame]]) -> None:
    party, client, last = asked
    party.ask(client, last["keys"])  # new keys: nothing was opened
    [keys] = party.ask(client, last["keys"])
    ids, told = last["deal"].fields["ids"], last["deal"].tensors["keys/"].clone()
    place = ids.index(client)
    assert party.ask(client, last["deal"]) == []  # the keys of before
    told[place] = keys.tensors["keys/"]
    pair = last["deal"]._replace(fields={"part": 1, "ids": [client, 6]}, tensors={"keys/": told[:2]})
    twice = told.clone()
    twice[(place + 1) % 5] = told[(place + 2) % 5]
    doubled = last["deal"]._replace(tensors={"keys/": twice})
    assert party.ask(client, pair) == party.ask(client, doubled) == []
    assert len(party.ask(client, last["deal"]._replace(tensors={"keys/": told}))) == 1
    small = {**last["orders"].fields["sum"], "among": sorted([client, *[i for i in ids if i != client][:1]])}
    orders = last["orders"]._replace(fields={**last["orders"].fields, "sum": small})
    assert party.ask(client, orders) == []
    bare = last["orders"]._replace(fields={k: v for k, v in last["orders"].fields.items() if k != "sum"})
    assert party.ask(client, bare) == []
    assert [why for _, why in party.refused] == [
        "the keys of this sum are not those of its clients",
        "a sum of 2 clients, of fewer than 3, hides nobody",
        "the keys of this sum are not those of its clients",
        "2 of 5 clients are left in this sum, too few to open it",
        "its job has secure sums, and it contributes to no other",
    ]
    x = codec.pack("x", party.server.x)
    assert party.ask(client, Frame("loss", RUN, 1, client, {}, x)) == []
    assert party.ask(client, Frame("prologue", RUN, 1, client, {"p": 0.1}, codec.pack("x0", party.server.x))) == []


def test_masks_of_clients_that_got_other_models_do_not_cancel() -> None:
    plain, party = Party(make("fedavg"), None), Party(make("fedavg"), FINE)
    first = party.cohort(0)[0]

    def other(client: int, frame: Frame) -> Frame:
        if client != first or frame.kind != "orders":
            return frame
        return frame._replace(tensors={**frame.tensors, "down/": frame.tensors["down/"] + 1e-9})

    party.meddle = plain.meddle = other
    plain.round(0)
    party.round(0)
    assert float(plain.server.x.abs().max()) < 10
    assert float((party.server.x - plain.server.x).abs().min()) > 1e-3
    noise = "what came under masks is beyond what so many contributions can come to"  # uniform on +-4e6
    assert party.voids == [f"round 0 changed nothing: {noise}"]


# -- clients that are hostile or broken ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda covered: covered[:-1], "another shape"),
        (lambda covered: covered.double(), "another number type"),
    ],
)
def test_an_answer_of_another_form_is_out_of_the_sum(change: Callable[[Tensor], Tensor], why: str) -> None:
    plain, secure = Party(make("scaffold"), None), Party(make("scaffold"), FINE)
    gone = secure.cohort(0)[1]
    plain.meddle = lose("reply", gone)

    def meddle(client: int, frame: Frame) -> Frame:
        if client != gone or "covered/" not in frame.tensors:
            return frame
        return frame._replace(tensors={"covered/": change(frame.tensors["covered/"])})

    secure.meddle = meddle
    plain.round(0)
    secure.round(0)
    assert secure.refused == [(gone, why)]
    assert far(secure.server, plain.server) < 1e-9


UNSIGNED = "keys that are not signed with the key by which others know it"


@pytest.mark.parametrize(
    ("half", "why"),
    [(slice(0, 32), "a key that is none"), (slice(32, 64), "a key that is none"), (slice(64, 160), UNSIGNED)],
)
def test_a_key_that_is_none_is_out_of_the_sum(half: slice, why: str) -> None:
    plain, secure = Party(make("scaffold"), None), Party(make("scaffold"), FINE)
    gone = secure.cohort(0)[1]
    plain.meddle = lose("reply", gone)

    def meddle(client: int, frame: Frame) -> Frame:
        if client != gone or frame.kind != "keys" or not frame.tensors:
            return frame
        keys = frame.tensors["keys/"].clone()
        keys[half] = 0
        return frame._replace(tensors={"keys/": keys})

    secure.meddle = meddle
    plain.round(0)
    secure.round(0)
    assert secure.refused == [(gone, why)]
    assert far(secure.server, plain.server) < 1e-9


def spoil(kind: str, name: str, clients: list[int], rows: list[int]) -> Callable[[int, Frame], Frame]:
    """These rows of a tensor in answers of these clients have another bit in every byte."""

    def meddle(client: int, frame: Frame) -> Frame:
        if client not in clients or frame.kind != kind or name not in frame.tensors:
            return frame
        changed = frame.tensors[name].clone()
        changed[rows] = changed[rows] ^ 1
        return frame._replace(tensors={**frame.tensors, name: changed})

    return meddle


def test_a_sum_before_the_local_steps_that_cannot_be_opened_ends_the_round() -> None:
    """Nobody is given orders, nobody's reply counts, and the next round goes on as if there had been none."""
    party, before = Party(make("mimesvrg"), FINE), Party(make("mimesvrg"), FINE).server
    party.meddle = lose("gradient", *party.cohort(0)[1:])
    outcome = party.round(0)
    assert far(party.server, before) == 0
    assert len(party.voids) == 1
    assert not party.store.ledger.counted
    assert "reply" not in {frame.kind for frame in party.log}
    assert outcome.refused == ()
    party.meddle = lambda client, frame: frame
    party.round(1)
    assert far(party.server, before) > 0
    assert sorted(party.store.ledger.counted) == party.cohort(1)


def test_wrong_shares_void_a_round_or_are_not_needed() -> None:
    plain, secure = Party(make("fedavg"), None), Party(make("fedavg"), FINE)
    ids = secure.cohort(0)
    secure.meddle = spoil("dealt", "dealt/sealed", ids[2:3], [0])  # one share of five, which three replace
    plain.round(0)
    secure.round(0)
    assert far(secure.server, plain.server) < 1e-9
    assert secure.voids == []
    before = secure.server
    ids = secure.cohort(1)
    secure.meddle = spoil("dealt", "dealt/sealed", ids[2:3], [0, 1, 3, 4])
    secure.round(1)
    ids = secure.cohort(2)
    secure.meddle = spoil("shares", "shares/", ids[:1], [3])
    secure.round(2)
    assert far(secure.server, before) == 0
    assert secure.voids == [
        f"round 1 changed nothing: 1 usable shares of client {secure.cohort(1)[2]} came, and 3 are needed",
        f"round 2 changed nothing: the shares that came do not open the mask of client {ids[3]}",
    ]
    ids = secure.cohort(3)

    def both(client: int, frame: Frame) -> Frame | None:
        return lose("reply", ids[4])(client, spoil("shares", "shares/", ids[1:2], [4])(client, frame))

    secure.meddle = both
    secure.round(3)
    assert secure.voids[2] == f"round 3 changed nothing: the shares that came are not of the key of client {ids[4]}"
    assert far(secure.server, before) == 0


def test_what_does_not_fit_the_clip_is_not_sent() -> None:
    party = Party(make("fedavg"), FINE._replace(scale=Scale(1e-4, 24)))
    party.round(0)
    why = "its contribution has a number beyond secure.clip, 0.0001; raise secure.clip"
    assert party.refused == [(i, why) for i in party.cohort(0)]
    assert party.voids == ["round 0 changed nothing: 0 clients of 5 were left, and 3 are needed to open their sum"]
    broken = Party(make("fedavg"), FINE)
    broken.change(algorithm=replace(broken.job.algorithm, contribute=lambda up, sender, cohort: up / 0))
    broken.round(0)
    assert {why for _, why in broken.refused} == {"its contribution has a number that is not finite"}
    assert all(held.kept is None or held.kept.mark[0] == -1 for held in broken.held.values())


# -- which methods ---------------------------------------------------------------------------------------------------


def test_methods_that_are_no_sum_are_found() -> None:
    assert unsummable(make("losac", init="gradient")) == "all clients send gradients before round 0, one by one"

    robust = replace(make("fedavg"), phases=Phases(combine=lambda server, rows, senders, cohort: rows.mean(0)))
    assert unsummable(robust) == "its server looks at contributions one by one"

    def drawn(up: Tree, sender: Sender, cohort: Cohort) -> Tree:
        return tree_map(lambda leaf: (sender.w + (sender.steps - cohort.mean_steps)) * leaf, up)

    why = unsummable(replace(make("fedavg"), contribute=drawn))
    assert why == "what a client contributes depends on who else is there, in another way for each client"
    whole = replace(make("fedavg"), contribute=lambda up, sender, cohort: (up > 0).to(torch.int64))
    assert unsummable(whole) == "a contribution has numbers that are not real"


# -- a deployment ----------------------------------------------------------------------------------------------------

SECURE = {"secure": {"clip": 64.0, "bits": 48}}


def job_with(method: str, **changes: Any) -> dict[str, Any]:
    return with_(BASE, method=method, algorithm=TABLE[method].options, cohort=3, **{**SECURE, **changes})


def test_a_deployment_with_secure_sums_is_the_one_without(files: Path, tmp_path: Path) -> None:
    job = job_with("mimesvrg", rounds=2)
    secure = Federation(job, files, tmp_path / "secure")
    plain = Federation({k: v for k, v in job.items() if k != "secure"}, files, tmp_path / "plain")

    def anew(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        frame = codec.read(next(iter(messages.values())))
        if frame.round == 1 and frame.kind in ("keys", "deal", "ask", "train", "agree", "open"):
            secure.sites.clear()  # a new process for every message of a round
        return secure.exchange(messages, wait)

    assert secure.serve(anew).status == plain.serve().status == "complete"
    want, got = plain.server(), secure.server()
    assert max(float((got[name] - want[name]).abs().max()) for name in want) < 1e-9
    assert (secure.said()["rounds_void"], secure.said()["config"]["secure"]) == (
        0,
        {**SECURE["secure"], "threshold": 0.67, "group": "cohort"},
    )
    for name in SITES:
        folder = tmp_path / "secure" / "sites" / name
        [path] = folder.glob("*/secrets.json")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        left = json.loads(path.read_text())
        assert left["opened"] == [1, 1]
        assert not any(left[key] for key in ("cipher", "private", "seed", "keys", "shares"))
        sent = {line["answer"]: " ".join(line["tensors"]) for line in Ledger(folder / "ledger.txt").lines()}
        assert re.fullmatch(r"covered/\[\d+\]", sent["reply"])
        assert sent["gradient"] == sent["reply"]
        assert (sent["keys"], sent["agreed"]) == ("keys/[160]", "agreed/[96]")


def test_a_server_that_was_killed_after_the_opening_loses_that_round(files: Path, tmp_path: Path) -> None:
    here = Federation(job_with("scaffold"), files, tmp_path)

    class KilledError(Exception):
        pass

    def killed(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        found = here.exchange(messages, wait)
        frame = codec.read(next(iter(messages.values())))
        if (frame.kind, frame.round) == ("open", 2):
            raise KilledError
        return found

    with pytest.raises(KilledError):
        here.serve(killed)
    assert here.serve(resume=True).status == "complete"
    assert here.said()["rounds_void"] == 1
    [void] = [event.text for event in here.events if event.kind == "void"]
    assert void == "round 2 changed nothing: 0 clients answered, and a sum of fewer than 3 hides nobody"
    assert [site["left_out"] for site in here.said()["sites"]] == [None] * 3


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"method": "losac", "algorithm": {"blocks": 3, "init": "gradient"}},
            "secure sums do not cover .*: all clients send gradients before round 0, one by one; use another method",
        ),
        ({"sampling": "power_of_choice(3)"}, r"sampling power_of_choice\(.*\) asks single sites for their loss"),
        ({"cohort": 2}, "a sum of 2 sites hides nobody, and secure sums need 3; raise cohort"),
        ({"secure": {"clip": 1, "threshold": 0.5}}, "secure.threshold must be"),
        ({"secure": {"clip": 0}}, "secure.clip must be"),
    ],
)
def test_jobs_that_cannot_have_secure_sums(changes: dict[str, Any], why: str, files: Path, tmp_path: Path) -> None:
    job = {**job_with("fedavg"), **changes}
    with pytest.raises(UserError, match=why):
        check(text(job), SITES, Federation(job, files, tmp_path).exchange, 1.0)


def test_a_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    spec = importlib.util.spec_from_file_location("masks_anew", masks.__file__)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(
        UserError, match=r"need the package cryptography; install it with: pip install 'fedconcord\[sec"
    ):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_sites_with_other_terms_are_told(files: Path, tmp_path: Path) -> None:
    job = job_with("fedavg")
    other = with_(job, secure={"bits": 24})
    here = Federation(job, files, tmp_path, bern=other)
    [said] = check(here.job, here.names, here.exchange, 1.0)
    assert said.startswith(
        "site bern: the secure sums is clip=64.0 bits=24 threshold=0.67 group='cohort' of 3 there and clip=64.0 bits=48"
    )


def test_sites_that_do_not_know_each_other_do_not_begin(files: Path, tmp_path: Path) -> None:
    job = job_with("fedavg")
    here = Federation(job, files, tmp_path)
    ring, bern = tmp_path / "keys", tmp_path / "bern"
    shutil.copytree(ring, bern)
    here.sites["bern"] = Site(here.job, files / "bern.csv", tmp_path / "sites" / "bern", "bern", keys=bern)
    assert check(here.job, here.names, here.exchange, 1.0) == []
    (bern / "chur.pub").unlink()
    lacks = "secure sums need a key of each site, and it has none of chur; put chur.pub into its --keys"
    assert check(here.job, here.names, here.exchange, 1.0) == [f"site bern: {lacks}"]
    keys.write_site(tmp_path / "new", "chur")
    shutil.copy(tmp_path / "new" / "chur.pub", bern)
    assert check(here.job, here.names, here.exchange, 1.0) == [
        "site bern has another key of site chur than chur; compare fingerprints (`fedconcord flower keys show`) by "
        "another way than the server"
    ]
    (bern / "chur.pub").write_text("ssh-ed25519 AAAA")
    with pytest.raises(UserError, match=r"chur.pub is no site's public key; it is the .pub file"):
        here.site("bern").answer(codec.write(Frame("hello", RUN, 0, 1, {"clients": 3, "sites": SITES})))
    here.sites["bern"] = Site(here.job, files / "bern.csv", tmp_path / "sites" / "bern", "bern")
    [said] = check(here.job, here.names, here.exchange, 1.0)
    assert said.endswith("it has none of basel, bern, chur; put basel.pub, bern.key, chur.pub into its --keys")


@pytest.mark.parametrize(
    ("sites", "why"),
    [
        (["basel", "bern", "zug"], "secure sums need a key of each site, and it has none of zug; put zug.pub into its"),
        (["basel", "chur", "bern"], "it is site bern, and is called another one, or sites have one name"),
        (["bern", "bern", "chur"], "it is site bern, and is called another one, or sites have one name"),
        ([], "its job has secure sums, and the server's has none; give both the same job"),
    ],
)
def test_a_site_takes_part_with_sites_that_it_knows(sites: list[str], why: str, files: Path, tmp_path: Path) -> None:
    """Whatever its server says in the handshake, which is not asked here."""
    here = Federation(job_with("fedavg", rounds=1), files, tmp_path)

    def other(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        frame = codec.read(messages["bern"])
        if frame.kind != "setup":
            return here.exchange(messages, wait)
        fields = {**frame.fields, "sites": sites}
        return here.exchange({**messages, "bern": codec.write(frame._replace(fields=fields))}, wait)

    [said] = check(here.job, here.names, other, 1.0)
    assert said.startswith(f"site bern: the site refused what it was sent: {why}")


def test_secure_rounds_beyond_the_job_are_refused(files: Path, tmp_path: Path) -> None:
    here, last = Federation(job_with("fedavg", rounds=1), files, tmp_path), dict[str, Frame]()

    def kept(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        frame = codec.read(messages["bern"])
        last[frame.kind] = frame
        return here.exchange(messages, wait)

    here.serve(kept)
    for kind in KINDS:
        answer = codec.read(here.site("bern").answer(codec.write(last[kind]._replace(round=1))))
        assert answer.fields["why"] == "round 1 is none of the job's, which has 1"


def test_a_run_that_goes_on_has_the_keys_that_it_began_with(files: Path, tmp_path: Path) -> None:
    here = Federation(job_with("fedavg", rounds=2), files, tmp_path)

    class KilledError(Exception):
        pass

    def killed(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        frame = codec.read(next(iter(messages.values())))
        if (frame.kind, frame.round) == ("keys", 1):
            raise KilledError
        return here.exchange(messages, wait)

    with pytest.raises(KilledError):
        here.serve(killed)
    for name in SITES:
        (tmp_path / "keys" / f"{name}.key").unlink()
        keys.write_site(tmp_path / "keys", name)
    here.sites.clear()
    assert here.serve(resume=True).status == "complete"
    assert here.said()["rounds_void"] == 1
    assert [site["refused"] for site in here.said()["sites"]] == [{UNSIGNED: 2}] * 3  # of a round and of an evaluation
    agreement = json.loads((tmp_path / "run" / "deployment.json").read_text())
    (tmp_path / "run" / "deployment.json").write_text(json.dumps({**agreement, "keys": None}))
    with pytest.raises(UserError, match=r"deployment.json has no keys of the sites, which secure sums need; begin a"):
        here.serve(resume=True)


@pytest.mark.slow
def test_the_optimum_is_reached_with_a_third_of_the_answers_lost(least_squares: Path, tmp_path: Path) -> None:
    """The sites' own files and rows; rounds below the threshold are void."""
    draw = np.random.default_rng(2)
    job = with_(SQUARES, method="scaffold", rounds=500, secure={**SECURE["secure"], "threshold": 0.6})
    here = Federation(job, least_squares, tmp_path)

    def lossy(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        late = {"keys", "deal", "orders", "agree", "open"}
        return {
            name: here.site(name).answer(data)
            for name, data in messages.items()
            if codec.read(data).kind not in late or draw.random() > 0.1
        }

    here.serve(lossy)
    assert here.said()["rounds_void"] > 20
    assert float((answer_of(here) - optimum(here)).norm()) < 1e-8
