"""A server's half of a secure sum: it asks, hands shares on, and opens the total of those who were heard.

A sum takes five exchanges (`member` says what is in each): keys, shares, orders with masked contributions in return,
signatures of who was heard, opening. Who is lost before the third is out of the sum; who is lost in it, is taken out of
it with the others' shares; who is lost after it is in it. Below the threshold nothing is opened, and the round changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.messages import masks
from fedconcord.execution.messages.masks import KEY, SEALED, SHARE, SIGNATURE, Peer, is_signed
from fedconcord.execution.messages.member import CARD, bound, card, context, heard_of
from fedconcord.execution.messages.server import RemoteServer, Reply, Request
from fedconcord.execution.messages.sums import Requests, Summed, form_of_total
from fedconcord.execution.messages.terms import FEWEST, STEPS, Terms
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


T = TypeVar("T")
CPU = torch.device("cpu")
Remaining = Callable[[Mapping[int, Reply]], list[int]]
"""Replies of a sum's clients -> who is still in it, in order."""


class Secure:
    """Sums of which the server learns nothing but the total.

    Args:
        peers: all clients. The server looks at signatures so that a wrong one puts its own client alone out of the sum;
            that it makes up no clients they see to themselves.
        prefix: of the kinds of messages beside that which a contribution answers.
    """

    def __init__(self, terms: Terms, peers: Mapping[int, Peer], prefix: str = "") -> None:
        self.terms, self.peers, self.prefix = terms, peers, prefix

    def sum(self, half: RemoteServer, requests: Requests, phase: Phase) -> Summed:
        """As `Sums` says; a sum that cannot be opened is one of nobody."""
        if not len(requests.plan.ids):
            return Summed(requests.plan, {}, None)
        after = requests.plan

        def remaining(answers: Mapping[int, Reply]) -> list[int]:
            nonlocal after
            after = half.only(after, answers)
            return after.ids.tolist()  # type: ignore[no-any-return]

        pact = self.meet(half, after.round, phase.number, after.ids.tolist(), remaining)
        if isinstance(pact, str):
            return self._void(half, requests.plan, pact)
        before = after
        form = form_of_total(phase, half.forms, cohort_of(half.space, before))
        covered = self.covered(pact, requests.of_client, form)
        replies = half.hear(Requests(before, covered, lost=requests.lost))
        total = self.opened(half, pact, covered, {i: replies[i] for i in remaining(replies)})
        if isinstance(total, str):
            return self._void(half, after, total)
        message = messages(half.algorithm)[0 if phase.number == PRELUDE else -1][1]
        scaled = factors(phase.contribute, message, half.space, before, after)
        if scaled is None:
            return self._void(half, after, "its weights depend on who was lost")
        return Summed(after, replies, unflat(form, total, scaled, half.space.device))

    def meet(self, half: RemoteServer, round: int, part: int, ids: Sequence[int], remaining: Remaining) -> Pact | str:
        """Keys and shares of clients, or why there is no sum of theirs."""
        answers = half.answers(self._to_all(half, "keys", round, ids, {"part": part}, {}, _bytes(CARD)))
        keys = {i: _raw(one.tree) for i, one in answers.items()}
        for i, one in keys.items():
            if not (masks.usable(one[:KEY]) and masks.usable(one[KEY : 2 * KEY])):
                self._refuse(half, answers, i, "a key that is none")
            elif not is_signed(self.peers[i].key, one[2 * KEY :], card(half.method, round, part, i, one)):
                self._refuse(half, answers, i, "keys that are not signed with the key by which others know it")
        ids = remaining(answers)
        if len(ids) < FEWEST:
            return f"{_sites(len(ids))} answered, and a sum of fewer than {FEWEST} hides nobody"
        needed, cohort = self.terms.needed(len(ids)), max(len(ids), self.terms.cohort)
        if len(ids) < needed:
            return _too_few(len(ids), cohort, needed)
        fields, tensors = {"part": part, "ids": ids}, {"keys/": torch.stack([answers[i].tree for i in ids]).cpu()}
        form = Dealt(_bytes(len(ids), SEALED), _bytes(KEY))
        dealt = half.answers(self._to_all(half, "deal", round, ids, fields, tensors, form))
        among = remaining(dealt)
        if len(among) < needed:
            return _too_few(len(among), cohort, needed)
        about = context(half.method, round, part, ids, b"".join(keys[i] for i in ids), self.terms)
        places = {i: k for k, i in enumerate(ids)}
        return Pact(round, part, among, about, places, keys, {i: one.tree for i, one in dealt.items()}, needed, cohort)

    def covered(self, pact: Pact, requests: Mapping[int, Request], form: Tree) -> dict[int, Request]:
        """These requests to all of a pact, answered by contributions of this form under masks."""
        length = sum(leaf.numel() for leaf in tree_leaves(form).values())
        kind = self.terms.scale.kind(len(pact.places))
        like = torch.empty(length, dtype=torch.int32 if kind == np.uint32 else torch.int64)
        covered = {}
        for i in pact.among:
            frame = requests[i].frame
            fields = {**frame.fields, "sum": {"part": pact.part, "among": pact.among}}
            sealed = torch.stack([pact.dealt[j].sealed[pact.places[i]] for j in pact.among])
            frame = frame._replace(fields=fields, tensors={**frame.tensors, "sealed/": sealed.cpu()})
            covered[i] = requests[i]._replace(frame=frame, name="covered", like=like)
        return covered

    def opened(
        self, half: RemoteServer, pact: Pact, covered: Mapping[int, Request], replies: Mapping[int, Reply]
    ) -> np.ndarray | str:
        """The total [L] of what came under masks, or why it cannot be had."""
        among, senders, part = pact.among, sorted(replies), pact.part
        if len(senders) < pact.needed:
            return _too_few(len(senders), pact.cohort, pact.needed)
        signatures = self._agreed(half, pact, senders)
        if len(signatures) < pact.needed:
            return _too_few(len(signatures), pact.cohort, pact.needed)
        form, fields = _bytes(len(among), SHARE), {"part": part, "signers": sorted(signatures)}
        tensors = {"signatures/": torch.stack([signatures[i] for i in sorted(signatures)]).cpu()}
        opening = self._to_all(half, "open", pact.round, sorted(signatures), fields, tensors, form)
        shares = half.answers(opening, left_out=False)
        if len(shares) < pact.needed:
            return _too_few(len(shares), pact.cohort, pact.needed)
        secrets = {}
        for k, i in enumerate(among):
            by_place = {pact.places[j] + 1: _raw(answer.tree[k]) for j, answer in shares.items()}
            usable = [(place, share) for place, share in by_place.items() if any(share)][: pact.needed]
            if len(usable) < pact.needed:
                return f"{len(usable)} usable shares of {half.hooks.name(i)} came, and {pact.needed} are needed"
            secrets[i] = masks.joined(dict(usable))
            if i in replies and masks.commitment(secrets[i]) != _raw(pact.dealt[i].commitment):
                return f"the shares that came do not open the mask of {half.hooks.name(i)}"
            if i not in replies and masks.public_of(secrets[i]) != pact.keys[i][KEY : 2 * KEY]:
                return f"the shares that came are not of the key of {half.hooks.name(i)}"
        kind = self.terms.scale.kind(len(pact.places))
        rows = [replies[i].tree.cpu().numpy().view(kind) for i in senders]
        total = np.sum(rows, axis=0, dtype=kind)
        bond = bound(pact.about, among, covered[among[0]].frame.tensors)
        for i in among:
            if i in replies:
                total = total - masks.mask(secrets[i], len(total), kind)
            else:
                others = {j: pact.keys[j][KEY : 2 * KEY] for j in senders}
                total = total + masks.pairwise(i, secrets[i], others, bond, len(total), kind)
        return self.terms.scale.numbers(np.asarray(total))

    def _agreed(self, half: RemoteServer, pact: Pact, senders: Sequence[int]) -> dict[int, Tensor]:
        """The signatures of who was heard [SIGNATURE], by who signed."""
        fields, digest = {"part": pact.part, "heard": senders}, heard_of(pact.about, pact.among, senders)
        answers = half.answers(
            self._to_all(half, "agree", pact.round, senders, fields, {}, _bytes(SIGNATURE)), left_out=False
        )
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
