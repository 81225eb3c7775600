"""Whose message is far longer than the others': a server that takes a mean of messages follows it, which none sees."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from fedconcord.method.contract import Tree, tree_leaves

FACTOR = 10.0


def far(messages: Mapping[int, Tree]) -> dict[int, float]:
    """Clients one of whose vectors is more than `FACTOR` times as long as the median of the others', and how many
    times. One client by itself has no others.

    Args:
        messages: client -> what it sent, all of one form.
    """
    clients, times = [*messages], np.zeros(len(messages))
    leaves = [tree_leaves(tree) for tree in messages.values()]
    vectors = [name for name, leaf in leaves[0].items() if isinstance(leaf, Tensor) and leaf.ndim] if leaves[1:] else []
    for name in vectors:
        lengths = np.array([float(each[name].double().norm()) for each in leaves])
        medians = np.array([np.median(np.delete(lengths, k)) for k in range(len(lengths))])
        is_number = (medians > 0) & np.isfinite(medians)  # a length may overflow
        times = np.maximum(times, np.divide(lengths, medians, out=np.zeros_like(lengths), where=is_number))
    return {client: float(t) for client, t in zip(clients, times, strict=True) if t > FACTOR}
