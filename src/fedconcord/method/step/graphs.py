"""The local steps of stacked clients as one CUDA graph: recorded once, then replayed with no Python between kernels.

A graph reads and writes the memory that it was recorded with. So what differs between rounds (models, messages,
samples) is copied into tensors that stay, and what is a number in Python (step sizes, shapes, who has how many steps)
is part of the key: steps with another number are another graph.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import Tree, tree_leaves, tree_map
from fedconcord.method.contract.nested import Beside, Look, Moreau
from fedconcord.method.contract.pieces import (
    Ascent,
    Clip,
    Constant,
    Decay,
    Dual,
    Limit,
    Momentum,
    Perturbed,
    Pull,
    Scale,
    Snapshot,
)
from fedconcord.method.step.samples import Batches
from fedconcord.method.step.walk import Chain, Source, Walked

KEPT = 4  # graphs, each of which keeps the memory of its steps

Record = Callable[[Callable[[], Tree]], tuple[Tree, Callable[[], None]]]
"""A function of no arguments -> where its result lies, and what computes it there again."""


def record(work: Callable[[], Tree]) -> tuple[Tree, Callable[[], None]]:
    """A `Record` by CUDA; the result is there after the first replay."""
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        work()  # libraries make their plans and workspaces now, which they may not while they are recorded
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return result, graph.replay


class Recorded(NamedTuple):
    """A graph and the memory that it knows."""

    inputs: Tree
    result: Tree
    replay: Callable[[], None]
    of: object  # kept so that its id in the key stays its own


class Graphs:
    """The graphs of one job. Steps are recorded when they come a second time: numbers that never repeat, as under a
    decaying step size, are not worth a graph."""

    def __init__(self, record: Record = record) -> None:
        self.record = record
        self.replays = 0
        self._graphs: OrderedDict[Hashable, Recorded | None] = OrderedDict()

    def run(self, of: object, numbers: Hashable, steps: Callable[[Tree], Tree], inputs: Tree) -> Tree:
        """`steps(inputs)`, by its graph where there is one.

        Args:
            of: whose steps they are, by identity; with `numbers` and the forms of `inputs` all that decides `steps`.
            steps: reads nothing that differs between rounds but `inputs`, and no value of a tensor on the host.
            inputs: a tree of tensors, numbers and None.
        """
        key = id(of), numbers, tuple((name, _form(leaf)) for name, leaf in tree_leaves(inputs).items())
        if key not in self._graphs:
            self._graphs[key] = None
            if len(self._graphs) > KEPT:
                self._graphs.popitem(last=False)
            return steps(inputs)
        self._graphs.move_to_end(key)
        graph = self._graphs[key]
        if graph is None:
            memory = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs)
            graph = self._graphs[key] = Recorded(memory, *self.record(lambda: steps(memory)), of)
        for stays, leaf in zip(tree_leaves(graph.inputs).values(), tree_leaves(inputs).values(), strict=True):
            if isinstance(leaf, Tensor):
                stays.copy_(leaf)
        graph.replay()
        self.replays += 1
        return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, graph.result)


KNOWN = {Ascent, Perturbed, Snapshot, Clip, Scale, Decay, Constant, Dual, Momentum, Pull, Limit, Look, Moreau, Beside}


def replay_or_take(
    graphs: Graphs, take: Callable[[Chain, Source], Walked], chain: Chain, source: Batches, steps: np.ndarray
) -> Walked:
    """`take(chain, source)`, by a graph where all that it computes is the same kernels every round.

    A tolerance looks at values from the host, and so do the blocks of tables and the solutions of Newton's steps.
    """
    is_known = all(type(piece) in KNOWN for piece in chain.pieces)
    if source.samples is None or chain.tolerance is not None or not is_known:
        return take(chain, source)
    kinds = (*(type(piece).__name__ for piece in chain.pieces), type(chain.size).__name__, steps.tobytes())

    def work(inputs: Tree) -> Tree:
        return take(inputs[0], source._replace(samples=inputs[1]))

    walked: Walked = graphs.run(source.objective, kinds, work, (chain, source.samples))
    return walked


def _form(leaf: object) -> Hashable:
    return (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf
