"""The processes that compute a job together, and this process alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from fedconcord.method.contract import Tree


class Team(Protocol):
    """The processes that compute a job together. Each owns some clients: it trains them and keeps their rows.

    All of them draw the same plans and hold the same server state; what they exchange is below.
    """

    @property
    def rank(self) -> int:
        """Which of the processes this is, from 0; only 0 evaluates, writes and speaks."""
        ...

    @property
    def size(self) -> int:
        """How many processes there are."""
        ...

    def owns(self, ids: np.ndarray) -> np.ndarray:
        """Which of these clients [S] are this process's, [S] bool; the same in every round."""
        ...

    def total(self, tree: Tree, counts: tuple[int, ...]) -> tuple[Tree, tuple[int, ...]]:
        """The sums of trees of one form and of counts >= 0 over the processes, to the same bits on all of them."""
        ...

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag whether it is set on any process: what all of them do next."""
        ...

    def tell(self, text: Callable[[], str]) -> str:
        """What rank 0 makes of this, on all of them; its UserError too."""
        ...

    def collect(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """On rank 0 what `Store.export` gives of all clients, from what it gives here; elsewhere nothing of use."""
        ...


class Alone(NamedTuple):
    """A team of this process alone."""

    rank: int = 0
    size: int = 1

    def owns(self, ids: np.ndarray) -> np.ndarray:
        return np.ones(len(ids), bool)

    def total(self, tree: Tree, counts: tuple[int, ...]) -> tuple[Tree, tuple[int, ...]]:
        return tree, counts

    def any(self, *flags: bool) -> tuple[bool, ...]:
        return flags

    def tell(self, text: Callable[[], str]) -> str:
        return text()

    def collect(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        return rows


ALONE = Alone()
