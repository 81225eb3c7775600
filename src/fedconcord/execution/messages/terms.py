"""What the two ends of a secure sum have from the job's settings: how numbers become integers, and how many open it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedconcord.method.contract import Plan

FEWEST = 3  # clients of a sum
STEPS: Mapping[str, str] = {"keys": "keys", "deal": "dealt", "agree": "agreed", "open": "shares"}
"""The messages of a sum beside that which is answered by a contribution, and the kinds of their answers."""
Plans = Callable[[int, Sequence[int]], Plan]
"""(round, ids) -> the plan of a round by the client's own job, of those of these clients whom it draws."""


class Scale(NamedTuple):
    """How numbers become integers: rounded at random to the one below or above, so that rounds' errors do not add up in
    one direction, and sums of a method that should vanish do not creep."""

    clip: float  # largest absolute value of a number
    bits: int  # clip / 2^bits is one step

    @property
    def step(self) -> float:
        """What 1 stands for; a number is off by less."""
        return math.ldexp(self.clip, -self.bits)

    def kind(self, clients: int) -> np.dtype[np.unsignedinteger]:
        """The smaller of two moduli, 2^32 and 2^64, that the sum of so many clients' integers fits."""
        return np.dtype(np.uint32 if clients << self.bits < 2**31 else np.uint64)

    def integers(self, values: np.ndarray, draws: np.ndarray, clients: int) -> np.ndarray:
        """Numbers as integers [L] modulo 2^32 or 2^64.

        Args:
            values: [L] float64, finite and at most `clip` in size.
            draws: [L] uniform on [0, 1).
        """
        scaled = values / self.step
        below = np.floor(scaled)
        raised = below + (draws >= 1 - (scaled - below))  # whole numbers stay what they are
        return np.asarray(raised.astype(np.int64).astype(self.kind(clients)))

    def numbers(self, total: np.ndarray) -> np.ndarray:
        """The inverse of `integers` for a sum [L], in float64."""
        return signed(total).astype(np.float64) * self.step


def signed(total: np.ndarray) -> np.ndarray:
    """What a sum [L] modulo 2^32 or 2^64 stands for, in int64."""
    return total.view(np.int32 if total.dtype == np.uint32 else np.int64).astype(np.int64)


class Terms(NamedTuple):
    """Of all sums of a run."""

    scale: Scale
    share: float  # of the clients that must be heard to the end
    cohort: int  # clients of a round, by the job: a server that says most of them are away makes no sum of the others
    samples: tuple[int | tuple[int, int], ...]  # [N] training samples, with tokens that weigh; each looks after its own
    homes: tuple[int, ...] | None = None  # [N] the edge server of each, below which its sum is made; None: one of all

    def groups(self, clients: Sequence[int]) -> list[list[int]]:
        """These clients by the sums that they are in."""
        if (homes := self.homes) is None:
            return [[*clients]]
        return [[i for i in clients if homes[i] == home] for home in sorted({homes[i] for i in clients})]

    def of_group(self, round: int, client: int, plans: Plans) -> Terms:
        """The terms of one client's sum of a round: below an edge server its cohort are those there who are drawn."""
        if self.homes is None:
            return self
        group = [i for i, home in enumerate(self.homes) if home == self.homes[client]]
        return self._replace(cohort=len(plans(round, group).ids))

    def kind(self, clients: Sequence[int]) -> np.dtype[np.unsignedinteger]:
        """The modulus of the sum of these: below edge servers one that fits the sum of all, in which totals add up."""
        return self.scale.kind(len(self.weighed(clients)))

    def weighed(self, clients: Sequence[int]) -> Sequence[int]:
        """Of whose plan the weights are in the sum of these: of theirs, or of the cohort below all edge servers, which
        the server corrects by what is left of it."""
        return clients if self.homes is None else range(len(self.homes))

    def needed(self, clients: int) -> int:
        """Of how many clients the shares open a sum that so many began: `share` of the cohort, and always more than
        half, so that no two disjoint parts of a cohort can be told different things of who was heard."""
        of = max(clients, self.cohort)
        return max(of // 2 + 1, math.ceil(self.share * of - 1e-9))
