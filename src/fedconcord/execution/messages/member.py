"""A client's half of a secure sum: five answers, after which the server can know the sum and nothing else of it.

1. `keys`: two public keys, made for this sum alone, signed with the client's own key, which the others know.
2. `deal`: given all clients' keys, each signed by whose they are, a share for each of them of the key behind its masks
   and of its own mask's seed, under encryption; and a commitment to the seed.
3. `cover`, in the answer to orders: its contribution in integers, plus its own mask, plus the masks with all others.
4. `agree`: its signature of who was heard.
5. `open`: where enough others have signed the same, of who was heard the share of the seed, of who was lost the share
   of the key; never both of one client.

What is between them lies in its safe, and every step is put down there before it is answered: no mask covers two
contributions, a client signs one list of who was heard, and no sum of a round is opened twice, whoever asks. Who is
drawn for a round, and what each weighs, no server says: it follows from the job and from numbers of samples that all
clients of a sum have alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.messages import codec, masks
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.execution.messages.masks import KEY, SEALED, SHARE, SIGNATURE, Ring
from fedconcord.execution.messages.terms import FEWEST, Plans, Terms
from fedconcord.method.contract import Cohort, Sender, Space, Tree, cohort_of, rng, sender_of, tree_leaves
from fedconcord.method.contract.round import PRELUDE, TRAIN
from fedconcord.method.contract.trees import raw
from fedconcord.support.errors import UserError

CARD = 2 * KEY + SIGNATURE  # bytes of a client's two public keys for a sum, and its signature of them
PARTS = {"ask": PRELUDE, "orders": TRAIN, "train": TRAIN, "judge": 2}  # of a round, by what its sum answers
MODELS = ("down/", "answer/", "x/")  # tensors that all clients of a sum must have got alike


@dataclass(frozen=True)
class Secret:
    """What a client keeps during a sum, and of the last one."""

    round: int = -1
    part: int = -1
    stage: str = "opened"  # or keys, dealt, covered, agreed
    cipher: bytes = b""  # private key of the shares' encryption
    private: bytes = b""  # private key of the masks
    seed: bytes = b""  # of its own mask
    ids: tuple[int, ...] = ()  # clients that shares were dealt for, in the order of their places
    keys: bytes = b""  # their cards
    among: tuple[int, ...] = ()  # clients whose contributions have masks in common with this one
    shares: bytes = b""  # of their secrets [among, 2 SHARE], zeros where nothing usable came; before: its own
    survivors: tuple[int, ...] = ()  # of these, those who were heard, as it has signed
    opened: tuple[int, int] = (-1, -1)  # round and part that was opened last

    def write(self) -> str:
        """As text."""
        plain = {name: value.hex() if isinstance(value, bytes) else value for name, value in asdict(self).items()}
        return json.dumps(plain)


def read(text: str) -> Secret:
    """The inverse of `Secret.write`.

    Raises:
        ValueError, TypeError: it is something else.
    """
    empty = asdict(Secret())
    fields: dict[str, Any] = {
        name: bytes.fromhex(value) if isinstance(empty[name], bytes) else tuple(value) if type(value) is list else value
        for name, value in json.loads(text).items()
    }
    return Secret(**fields)


class Safe(Protocol):
    """Where a client keeps its secret; what was written last is read, whatever happens in between."""

    def read(self) -> Secret: ...

    def write(self, secret: Secret) -> None: ...


class Member:
    """One client's part in sums.

    Args:
        run: what frames name, of which keys are made.
        space: what contributions are computed with.
        ring: its own key, and those of the others.
        plans: who is drawn and what each weighs, from the job and the terms' numbers of samples.
    """

    def __init__(self, id: int, run: str, terms: Terms, safe: Safe, space: Space, ring: Ring, plans: Plans) -> None:
        self.id, self.run, self.terms, self.safe, self.space, self.ring = id, run, terms, safe, space, ring
        self.plans = plans

    def answer(self, step: str, frame: Frame) -> dict[str, Tensor]:
        """Its answer to one of the messages of `STEPS`."""
        steps = {"keys": self.keys, "deal": self.deal, "agree": self.agree, "open": self.open}
        return steps[step](frame)

    def keys(self, frame: Frame) -> dict[str, Tensor]:
        """Its card for a new sum.

        Raises:
            UserError: the round's sum was opened before.
        """
        of, before = (frame.round, codec.whole(frame.fields["part"])), self.safe.read()
        if of <= before.opened:
            raise UserError(f"round {frame.round} was summed before, and is not summed twice")
        secret = Secret(*of, "keys", masks.new_key(), masks.new_key(), masks.new_key(), opened=before.opened)
        self.safe.write(secret)
        public = masks.public_of(secret.cipher) + masks.public_of(secret.private)
        return {"keys/": _tensor(public + masks.signed(self.ring.key, card(self.run, *of, self.id, public)))}

    def deal(self, frame: Frame) -> dict[str, Tensor]:
        """Shares of its secrets for all clients.

        Raises:
            UserError: the clients are too few, or not those that keys are for.
        """
        secret, ids = self._at(frame, "keys"), _ids(frame.fields["ids"])
        keys = _bytes(frame, "keys/", (len(ids), CARD))
        cards = dict(zip(ids, _rows(keys, CARD), strict=True))
        mine = masks.public_of(secret.cipher) + masks.public_of(secret.private)
        halves = {one[k : k + KEY] for one in cards.values() for k in (0, KEY)}
        if cards.get(self.id, b"")[: 2 * KEY] != mine or len(halves) < 2 * len(ids):
            raise UserError("the keys of this sum are not those of its clients")
        if len(ids) < FEWEST:
            raise UserError(f"a sum of {len(ids)} clients, of fewer than {FEWEST}, hides nobody")
        needed = self._needed(frame.round, ids)
        if len(ids) < needed:
            raise UserError(
                f"{len(ids)} clients began this sum, and {needed} of its job's cohort are needed to open it"
            )
        for i in ids:
            if i not in self.ring.peers:
                raise UserError(f"client {i} is in this sum, and it knows nobody of that number")
            if self.terms.homes is not None and self.terms.homes[i] != self.terms.homes[self.id]:
                raise UserError(f"{self.ring.peers[i].name} is in this sum, and is below another edge server")
            if not self._has_signed(i, cards[i][2 * KEY :], card(self.run, frame.round, secret.part, i, cards[i])):
                raise UserError(f"the keys of {self.ring.peers[i].name} for this sum are not signed by it")
        if strange := sorted({*ids} - {*self.plans(frame.round, ids).ids.tolist()}):
            raise UserError(f"client {strange[0]} is in this sum, and its job draws others for round {frame.round}")
        pairs = [
            one + other
            for one, other in zip(
                *(masks.split(of, len(ids), needed) for of in (secret.private, secret.seed)), strict=True
            )
        ]
        about = context(self.run, frame.round, secret.part, ids, keys, self.terms)
        sealed = b"".join(
            bytes(SEALED)
            if i == self.id
            else masks.seal(self._channel(secret, about, cards[i], self.id, i), pairs[k], about)
            for k, i in enumerate(ids)
        )
        self._put(secret, stage="dealt", ids=ids, keys=keys, shares=pairs[ids.index(self.id)])
        return {
            "dealt/sealed": _tensor(sealed, len(ids), SEALED),
            "dealt/commitment": _tensor(masks.commitment(secret.seed)),
        }

    def cover(self, frame: Frame, contribution: Callable[[Sender, Cohort], Tree]) -> dict[str, Tensor]:
        """A contribution under masks, as its sender of that cohort makes it.

        Raises:
            UserError: it does not fit the terms, or the sum's clients are too few.
        """
        about_sum = frame.fields.get("sum")
        if about_sum is None:
            raise UserError("its job has secure sums, and it contributes to no other")
        secret = self._at(frame._replace(fields=about_sum), "dealt")
        if secret.part != PARTS[frame.kind]:  # each part of a round is opened once, and so is what it is of
            raise UserError(f"part {secret.part} of round {frame.round} is no sum of answers to {frame.kind!r}")
        among = _ids(about_sum["among"])
        if self.id not in among or not set(among) <= set(secret.ids):
            raise UserError("the clients of this sum are not those that shares were dealt for")
        if len(among) < self._needed(frame.round, secret.ids):
            raise UserError(f"{len(among)} of {len(secret.ids)} clients are left in this sum, too few to open it")
        plan = self.plans(frame.round, among)  # refused where it would weigh too much in this sum
        plan = plan if self.terms.homes is None else self.plans(frame.round, self.terms.weighed(among))
        place = plan.ids.tolist().index(self.id)
        values = flat(contribution(sender_of(self.space, plan, place), cohort_of(self.space, plan)))
        if not np.isfinite(values).all():
            raise UserError("its contribution has a number that is not finite")
        if np.abs(values).max(initial=0) > self.terms.scale.clip:
            raise UserError(
                f"its contribution has a number beyond secure.clip, {self.terms.scale.clip:g}; raise secure.clip"
            )
        about = context(self.run, frame.round, secret.part, secret.ids, secret.keys, self.terms)
        sealed = _bytes(frame, "sealed/", (len(among), SEALED))
        key = dict(zip(secret.ids, _rows(secret.keys, CARD), strict=True))
        shares = b"".join(
            secret.shares
            if i == self.id
            else masks.unseal(self._channel(secret, about, key[i], i, self.id), _row(sealed, k, SEALED), about)
            or bytes(2 * SHARE)
            for k, i in enumerate(among)
        )
        kind = self.terms.kind(secret.ids)
        bond = bound(about, among, frame.tensors)
        others = {i: key[i][KEY : 2 * KEY] for i in among if i != self.id}
        draw = rng.generator(plan.seed, rng.Purpose.ROUND, frame.round, self.id)
        rounded = self.terms.scale.integers(values, draw.random(len(values)), len(self.terms.weighed(secret.ids)))
        covered = rounded + masks.mask(secret.seed, len(values), kind)
        covered = covered + masks.pairwise(self.id, secret.private, others, bond, len(values), kind)
        self._put(secret, stage="covered", among=among, shares=shares, cipher=b"", private=b"", seed=b"")
        return {"covered/": torch.from_numpy(covered.view(np.int32 if kind == np.uint32 else np.int64))}

    def agree(self, frame: Frame) -> dict[str, Tensor]:
        """Its signature of who was heard; of one sum it signs one list.

        Raises:
            UserError: they are too few, this client is not among them, or it has signed before.
        """
        secret, ids_heard = self._at(frame, "covered"), _ids(frame.fields["heard"])
        if self.id not in ids_heard or not set(ids_heard) <= set(secret.among):
            raise UserError("those who were heard are not those of this sum")
        needed = self._needed(frame.round, secret.ids)
        if len(ids_heard) < needed:
            raise UserError(f"{len(ids_heard)} clients were heard, and {needed} are needed")
        self._put(secret, stage="agreed", survivors=ids_heard)
        return {"agreed/": _tensor(masks.signed(self.ring.key, self._list(secret, ids_heard)))}

    def open(self, frame: Frame) -> dict[str, Tensor]:
        """The shares that open the sum of those who were heard.

        Raises:
            UserError: too few have signed the list that this client has signed, or it has answered before.
        """
        secret, signers = self._at(frame, "agreed"), _ids(frame.fields["signers"])
        signatures = dict(
            zip(signers, _rows(_bytes(frame, "signatures/", (len(signers), SIGNATURE)), SIGNATURE), strict=True)
        )
        digest, others = self._list(secret, secret.survivors), set(secret.survivors) - {self.id}
        agreeing = 1 + sum(self._has_signed(i, signatures[i], digest) for i in signers if i in others)
        needed = self._needed(frame.round, secret.ids)
        if agreeing < needed:
            raise UserError(f"{agreeing} clients have signed that these were heard, and {needed} are needed")
        pairs = _rows(secret.shares, 2 * SHARE)
        shares = b"".join(
            pair[SHARE:] if i in secret.survivors else pair[:SHARE] for i, pair in zip(secret.among, pairs, strict=True)
        )
        self.safe.write(Secret(opened=(frame.round, secret.part)))
        return {"shares/": _tensor(shares, len(secret.among), SHARE)}

    # -- parts -------------------------------------------------------------------------------------------------------

    def _at(self, frame: Frame, stage: str) -> Secret:
        """What is kept, where this step is the next one."""
        secret = self.safe.read()
        if (secret.round, secret.part, secret.stage) != (frame.round, codec.whole(frame.fields["part"]), stage):
            raise UserError(f"its secrets for round {frame.round} were used, or are not there")
        return secret

    def _put(self, secret: Secret, **changes: Any) -> None:
        self.safe.write(Secret(**{**vars(secret), **changes}))

    def _needed(self, round: int, ids: Sequence[int]) -> int:
        return self.terms.of_group(round, self.id, self.plans).needed(len(ids))

    def _has_signed(self, client: int, signature: bytes, digest: bytes) -> bool:
        return masks.is_signed(self.ring.peers[client].key, signature, digest)

    def _list(self, secret: Secret, survivors: Sequence[int]) -> bytes:
        about = context(self.run, secret.round, secret.part, secret.ids, secret.keys, self.terms)
        return heard_of(about, secret.among, survivors)

    def _channel(self, secret: Secret, about: bytes, keys: bytes, sender: int, to: int) -> bytes:
        """The key of what one client deals another."""
        return masks.agreed(secret.cipher, keys[:KEY], b"share " + about + b" %d %d" % (sender, to))


# -- what both ends compute ------------------------------------------------------------------------------------------


def card(run: str, round: int, part: int, client: int, keys: bytes) -> bytes:
    """What a client signs of its keys for a sum [32]."""
    return _hash("keys", run, round, part, client, keys[: 2 * KEY])


def context(run: str, round: int, part: int, ids: Sequence[int], keys: bytes, terms: Terms) -> bytes:
    """What a sum is known by [32]: whoever was shown other keys, or has other terms, comes to another."""
    return _hash(run, round, part, list(ids), keys, *terms)


def heard_of(about: bytes, among: Sequence[int], survivors: Sequence[int]) -> bytes:
    """What a client signs of who was heard [32]."""
    return _hash("heard", about, list(among), list(survivors))


def bound(about: bytes, among: Sequence[int], tensors: Mapping[str, Tensor]) -> bytes:
    """What masks are made for [32]: those of clients that were told of another cohort, or sent another model, do not
    cancel, and the total is noise."""
    models = [name for name in sorted(tensors) if name.startswith(MODELS)]
    content = [raw(tensors[name].cpu()).numpy().tobytes() for name in models]
    return b"mask " + _hash(about, list(among), models, *content)


def flat(contribution: Tree) -> np.ndarray:
    """The numbers [L] of a contribution, float64."""
    leaves = [leaf.detach().double().reshape(-1).cpu() for leaf in tree_leaves(contribution).values()]
    return np.asarray(torch.cat(leaves).numpy())


def _hash(*parts: Any) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else json.dumps(part).encode()
        digest.update(len(content).to_bytes(8))
        digest.update(content)
    return digest.digest()


def _ids(value: Any) -> tuple[int, ...]:
    """Numbers of clients, in order.

    Raises:
        FrameError: they are something else.
    """
    ids = tuple(codec.whole(i) for i in value)
    if list(ids) != sorted(set(ids)):
        raise FrameError("clients that are not in order")
    return ids


def _tensor(content: bytes, *shape: int) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(shape or (-1,))


def _bytes(frame: Frame, name: str, shape: tuple[int, ...]) -> bytes:
    tensor = frame.tensors.get(name)
    if tensor is None or tensor.dtype != torch.uint8 or tensor.shape != shape:
        raise FrameError("keys or shares of another form")
    return tensor.numpy().tobytes()


def _row(content: bytes, k: int, length: int) -> bytes:
    return content[k * length : (k + 1) * length]


def _rows(content: bytes, length: int) -> list[bytes]:
    return [_row(content, k, length) for k in range(len(content) // length)]
