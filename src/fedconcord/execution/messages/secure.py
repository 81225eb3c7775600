"""A server's half of a secure sum: it asks, hands shares on, and opens the total of those who were heard.

A sum takes five exchanges (`member` says what is in each): keys, shares, orders with masked contributions in return,
signatures of who was heard, opening. Who is lost before the third is out of the sum; who is lost in it, is taken out of
it with the others' shares; who is lost after it is in it. Below the threshold nothing is opened, and the round changes
nothing.

Where sums are made below edge servers (`Terms.homes`) each is one of these, and all make an exchange at once. Totals
are whole numbers, and come together to what one sum would. Clients whose sum cannot be opened are out of the round.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.messages import masks
from fedconcord.execution.messages.masks import KEY, SEALED, SHARE, SIGNATURE, Peer, is_signed
from fedconcord.execution.messages.member import CARD, bound, card, context, heard_of
from fedconcord.execution.messages.server import RemoteServer, Reply, Request
from fedconcord.execution.messages.sums import Heard, Requests, Summed, form_of_total
from fedconcord.execution.messages.terms import FEWEST, STEPS, Plans, Terms, signed
from fedconcord.method.contract import (
    PRELUDE,
    Phase,
    Plan,
    Tree,
    cohort_of,
    tree_leaves,
    tree_unflatten,
    weights,
)
from fedconcord.method.wrappers.forms import factors, messages


class Dealt(NamedTuple):
    """A client's answer to the keys of all."""

    sealed: Tensor  # [n, SEALED] uint8: shares for the client at each place, zeros at its own
    commitment: Tensor  # [KEY] uint8: of its seed


class Pact(NamedTuple):
    """Clients that have dealt shares to each other."""

    round: int
    part: int
    among: list[int]  # of them, who did
    about: bytes  # the sum's context
    places: dict[int, int]  # client -> its place among all that keys were made by
    keys: dict[int, bytes]  # client -> its card
    dealt: dict[int, Dealt]
    needed: int  # clients that open the sum
    cohort: int  # of so many


class Opened(NamedTuple):
    """What came of it."""

    senders: list[int]  # whose contributions they are
    total: np.ndarray  # [L] int64, in steps of the scale


T = TypeVar("T")
Steps = Generator[dict[int, Request], dict[int, Reply], T]
"""Exchanges of one sum: what its clients are asked, and then their replies."""
Remaining = Callable[[Sequence[int], Mapping[int, Reply]], list[int]]
"""(clients that were asked, replies) -> who is still in their sum, in order."""
Collect = Callable[[RemoteServer, Requests], Heard]
"""How a round's contributions come under masks."""
CPU = torch.device("cpu")


def one_by_one(half: RemoteServer, requests: Requests) -> Heard:
    """Each client's to the server itself."""
    replies = half.hear(requests)
    return Heard(replies, {i: one.tree for i, one in replies.items()})


class Secure:
    """Sums of which the server learns nothing but the total.

    Args:
        peers: all clients. The server looks at signatures so that a wrong one puts its own client alone out of the sum;
            that it makes up no clients they see to themselves.
        prefix: of the kinds of messages beside that which a contribution answers.
        plans: as the clients' own, where sums are made below edge servers.
        collect: a round's contributions.
    """

    def __init__(
        self,
        terms: Terms,
        peers: Mapping[int, Peer],
        prefix: str = "",
        plans: Plans | None = None,
        collect: Collect = one_by_one,
    ) -> None:
        self.terms, self.peers, self.prefix, self.plans, self.collect = terms, peers, prefix, plans, collect

    def sum(self, half: RemoteServer, requests: Requests, phase: Phase) -> Summed:
        """As `Sums` says; a sum that cannot be opened is one of nobody."""
        plan = requests.plan
        if not len(plan.ids):
            return Summed(plan, {}, None)

        def only(ids: Sequence[int]) -> Plan:
            return weights.redrawn(plan, np.isin(plan.ids, ids), half.algorithm.weights)

        def remaining(ids: Sequence[int], answers: Mapping[int, Reply]) -> list[int]:
            return half.only(only(ids), answers).ids.tolist()  # type: ignore[no-any-return]

        pacts = self.meet(half, plan.round, phase.number, plan.ids.tolist(), remaining)
        if isinstance(pacts, str):
            return self._void(half, plan, pacts)
        before = only([i for pact in pacts for i in pact.among])
        form = form_of_total(phase, half.forms, cohort_of(half.space, before))
        covered = self.covered(pacts, requests.of_client, form)
        replies, rows = self.collect(half, Requests(before, covered, lost=requests.lost))
        opened = self.opened(half, pacts, covered, remaining(before.ids.tolist(), replies), rows)
        if isinstance(opened, str):
            return self._void(half, plan, opened)
        after = only(remaining(plan.ids.tolist(), {i: replies[i] for i in opened.senders}))
        if self.terms.homes is not None:
            assert self.plans is not None
            before = self.plans(plan.round, self.terms.weighed(opened.senders))
        message = messages(half.algorithm)[0 if phase.number == PRELUDE else -1][1]
        scaled = factors(phase.contribute, message, half.space, before, after)
        if scaled is None:
            return self._void(half, plan, "its weights depend on who was lost")
        return Summed(after, replies, unflat(form, self.terms.scale.numbers(opened.total), scaled, half.space.device))

    def meet(
        self, half: RemoteServer, round: int, part: int, ids: Sequence[int], remaining: Remaining
    ) -> list[Pact] | str:
        """Keys and shares of clients, for each of their sums; or why there is none."""
        groups = self.terms.groups(ids)
        return _those(half, groups, at_once(half, [self._met(half, round, part, one, remaining) for one in groups]))

    def opened(
        self,
        half: RemoteServer,
        pacts: Sequence[Pact],
        covered: Mapping[int, Request],
        senders: Sequence[int],
        rows: Mapping[int, Tensor],
    ) -> Opened | str:
        """What came under masks from these senders, or why it cannot be had."""
        groups = [[i for i in pact.among if i in senders] for pact in pacts]
        openings = [self._opened(half, *one, covered, rows) for one in zip(pacts, groups, strict=True)]
        each = _those(half, [pact.among for pact in pacts], at_once(half, openings, left_out=False))
        if isinstance(each, str):
            return each
        return Opened(sorted(i for one in each for i in one.senders), np.sum([one.total for one in each], axis=0))

    def _met(
        self, half: RemoteServer, round: int, part: int, ids: Sequence[int], remaining: Remaining
    ) -> Steps[Pact | str]:
        answers = yield self._to_all(half, "keys", round, ids, {"part": part}, {}, _bytes(CARD))
        keys = {i: _raw(one.tree) for i, one in answers.items()}
        for i, one in keys.items():
            if not (masks.usable(one[:KEY]) and masks.usable(one[KEY : 2 * KEY])):
                self._refuse(half, answers, i, "a key that is none")
            elif not is_signed(self.peers[i].key, one[2 * KEY :], card(half.method, round, part, i, one)):
                self._refuse(half, answers, i, "keys that are not signed with the key by which others know it")
        terms = self.terms if self.plans is None else self.terms.of_group(round, ids[0], self.plans)
        ids = remaining(ids, answers)
        if len(ids) < FEWEST:
            return f"{_sites(len(ids))} answered, and a sum of fewer than {FEWEST} hides nobody"
        needed, cohort = terms.needed(len(ids)), max(len(ids), terms.cohort)
        if len(ids) < needed:
            return _too_few(len(ids), cohort, needed)
        fields, tensors = {"part": part, "ids": ids}, {"keys/": torch.stack([answers[i].tree for i in ids]).cpu()}
        form = Dealt(_bytes(len(ids), SEALED), _bytes(KEY))
        dealt = yield self._to_all(half, "deal", round, ids, fields, tensors, form)
        among = remaining(ids, dealt)
        if len(among) < needed:
            return _too_few(len(among), cohort, needed)
        about = context(half.method, round, part, ids, b"".join(keys[i] for i in ids), self.terms)
        places = {i: k for k, i in enumerate(ids)}
        return Pact(round, part, among, about, places, keys, {i: one.tree for i, one in dealt.items()}, needed, cohort)

    def covered(self, pacts: Sequence[Pact], requests: Mapping[int, Request], form: Tree) -> dict[int, Request]:
        """These requests to all of these sums, answered by contributions of this form under masks."""
        length = sum(leaf.numel() for leaf in tree_leaves(form).values())
        covered = {}
        for i, pact in {i: one for one in pacts for i in one.among}.items():
            kind = self.terms.kind([*pact.places])
            like = torch.empty(length, dtype=torch.int32 if kind == np.uint32 else torch.int64)
            frame = requests[i].frame
            fields = {**frame.fields, "sum": {"part": pact.part, "among": pact.among}}
            sealed = torch.stack([pact.dealt[j].sealed[pact.places[i]] for j in pact.among])
            frame = frame._replace(fields=fields, tensors={**frame.tensors, "sealed/": sealed.cpu()})
            covered[i] = requests[i]._replace(frame=frame, name="covered", like=like)
        return covered

    def _opened(
        self,
        half: RemoteServer,
        pact: Pact,
        senders: list[int],
        covered: Mapping[int, Request],
        rows: Mapping[int, Tensor],
    ) -> Steps[Opened | str]:
        among, part = pact.among, pact.part
        if len(senders) < pact.needed:
            return _too_few(len(senders), pact.cohort, pact.needed)
        signatures = yield from self._agreed(half, pact, senders)
        if len(signatures) < pact.needed:
            return _too_few(len(signatures), pact.cohort, pact.needed)
        form, fields = _bytes(len(among), SHARE), {"part": part, "signers": sorted(signatures)}
        tensors = {"signatures/": torch.stack([signatures[i] for i in sorted(signatures)]).cpu()}
        shares = yield self._to_all(half, "open", pact.round, sorted(signatures), fields, tensors, form)
        if len(shares) < pact.needed:
            return _too_few(len(shares), pact.cohort, pact.needed)
        secrets = {}
        for k, i in enumerate(among):
            by_place = {pact.places[j] + 1: _raw(answer.tree[k]) for j, answer in shares.items()}
            usable = [(place, share) for place, share in by_place.items() if any(share)][: pact.needed]
            if len(usable) < pact.needed:
                return f"{len(usable)} usable shares of {half.hooks.name(i)} came, and {pact.needed} are needed"
            secrets[i] = masks.joined(dict(usable))
            if i in senders and masks.commitment(secrets[i]) != _raw(pact.dealt[i].commitment):
                return f"the shares that came do not open the mask of {half.hooks.name(i)}"
            if i not in senders and masks.public_of(secrets[i]) != pact.keys[i][KEY : 2 * KEY]:
                return f"the shares that came are not of the key of {half.hooks.name(i)}"
        kind = self.terms.kind([*pact.places])
        total = np.sum([rows[i].cpu().numpy().view(kind) for i in senders if i in rows], axis=0, dtype=kind)
        bond = bound(pact.about, among, covered[among[0]].frame.tensors)
        for i in among:
            if i in senders:
                total = total - masks.mask(secrets[i], len(total), kind)
            else:
                others = {j: pact.keys[j][KEY : 2 * KEY] for j in senders}
                total = total + masks.pairwise(i, secrets[i], others, bond, len(total), kind)
        whole = signed(np.asarray(total))
        if np.abs(whole).max(initial=0) > len(senders) << self.terms.scale.bits:
            return "what came under masks is beyond what so many contributions can come to"
        return Opened(senders, whole)

    def _agreed(self, half: RemoteServer, pact: Pact, senders: Sequence[int]) -> Steps[dict[int, Tensor]]:
        """The signatures of who was heard [SIGNATURE], by who signed."""
        fields, digest = {"part": pact.part, "heard": senders}, heard_of(pact.about, pact.among, senders)
        answers = yield self._to_all(half, "agree", pact.round, senders, fields, {}, _bytes(SIGNATURE))
        for i, one in [*answers.items()]:
            if not is_signed(self.peers[i].key, _raw(one.tree), digest):
                self._refuse(half, answers, i, "a signature that is not of the key by which others know it")
        return {i: one.tree for i, one in answers.items()}

    def _refuse(self, half: RemoteServer, answers: dict[int, Reply], client: int, why: str) -> None:
        half.hooks.refuse(client, why)
        del answers[client]

    def _void(self, half: RemoteServer, plan: Plan, why: str) -> Summed:
        changed = "changed nothing" if half.algorithm.phases.unheard is None else "added noise alone"
        half.hooks.void(f"round {plan.round} {changed}: {why}")
        return Summed(weights.redrawn(plan, np.zeros(len(plan.ids), bool), half.algorithm.weights), {}, None)

    def _to_all(
        self,
        half: RemoteServer,
        step: str,
        round: int,
        clients: Sequence[int],
        fields: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        like: Tree,
    ) -> dict[int, Request]:
        """The message of a step to all of these clients."""
        kind, answer = self.prefix + step, STEPS[step]
        return {i: Request(half.frame(kind, round, i, fields, tensors), answer, answer, like) for i in clients}


def at_once(half: RemoteServer, sums: Sequence[Steps[T]], left_out: bool = True) -> list[T]:
    """What several sums come to, each of whose exchanges is one of all.

    Args:
        left_out: who does not answer is out of the round.
    """
    ends, questions = dict[int, T](), dict[int, dict[int, Request]]()
    replies: Mapping[int, Reply] | None = None
    while replies is None or questions:
        for k, steps in enumerate(sums):
            if k in ends:
                continue
            try:
                if replies is None:
                    questions[k] = next(steps)
                else:
                    questions[k] = steps.send({i: replies[i] for i in questions[k] if i in replies})
            except StopIteration as end:
                ends[k] = end.value
                questions.pop(k, None)
        replies = half.answers(
            {i: one for of_sum in questions.values() for i, one in of_sum.items()}, left_out=left_out
        )
    return [ends[k] for k in range(len(sums))]


def _those(half: RemoteServer, groups: Sequence[Sequence[int]], outcomes: Sequence[T | str]) -> list[T] | str:
    """What came of groups of clients, those aside that have no sum, which is said; why, where that is all of them."""
    remaining = [one for one in outcomes if not isinstance(one, str)]
    for ids, why in zip(groups, outcomes, strict=True):
        if isinstance(why, str):
            if not remaining:
                return why
            half.hooks.apart(f"{', '.join(map(half.hooks.name, ids))} are in no sum: {why}")
    return remaining


def unflat(form: T, values: np.ndarray, scaled: Sequence[float] | None = None, device: torch.device = CPU) -> T:
    """Numbers [L] in the form of a contribution, each leaf times its factor where there are factors."""
    leaves, at = {}, 0
    for k, (name, leaf) in enumerate(tree_leaves(form).items()):
        piece = torch.from_numpy(values[at : at + leaf.numel()] * (1.0 if scaled is None else scaled[k]))
        leaves[name], at = piece.reshape(leaf.shape).to(dtype=leaf.dtype, device=device), at + leaf.numel()
    like: T = tree_unflatten(form, leaves)
    return like


def _bytes(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.uint8)


def _raw(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def _sites(count: int) -> str:
    return f"{count} client" + "s" * (count != 1)


def _too_few(remaining: int, of: int, needed: int) -> str:
    return f"{_sites(remaining)} of {of} were left, and {needed} are needed to open their sum"
