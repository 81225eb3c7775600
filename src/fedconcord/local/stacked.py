"""The local steps of a cohort, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedconcord.core import Done, Local, Objective, Orders
from fedconcord.local import lbfgs
from fedconcord.local.assignment import Assignment, local_regulariser
from fedconcord.local.compiled import in_one_call
from fedconcord.local.fused import fused
from fedconcord.local.graphs import Graphs, replay_or_take
from fedconcord.local.samples import Batches, batches, blocks_of, everything
from fedconcord.local.walk import Chain, Source, Walked, walk


def solve(
    objective: Objective,
    assignment: Assignment,
    local: Local,
    places: np.ndarray,
    orders: Sequence[Orders],
    is_compiled: bool = False,
    graphs: Graphs | None = None,
) -> tuple[Done, int]:
    """The local loop of clients, sorted by steps, most first; and the mini-batch gradients it took.

    Args:
        is_compiled: all steps of a client in one compiled call, where `local.compiled` knows them.
        graphs: where to record and replay steps whose kernels are the same every round.
    """
    counts, steps = objective.counts(places), np.array([order.steps for order in orders], np.int64)
    full = assignment.draws.full_cost(assignment.algorithm, counts)  # of a full gradient
    regulariser = local_regulariser(objective, assignment.algorithm)
    chain = assignment.chain(local, orders[0].lr, steps, regulariser, on_host=graphs is None)
    if assignment.solver.kind == "lbfgs":
        walked, passes = lbfgs.minimisers(objective, chain, [objective.samples(int(i)) for i in places], steps)
        return assignment.done(local, chain, walked), int((passes * full).sum())
    drawn = [
        assignment.draws.draw(assignment.algorithm, order, int(n)) for order, n in zip(orders, counts, strict=True)
    ]
    is_full = drawn[0].batches is None or assignment.oracle.kind == "full"
    samples = everything(objective, places) if is_full else batches(objective, places, drawn)
    blocks = None if drawn[0].blocks is None else blocks_of(objective, drawn)
    source = Batches(objective, places, samples, blocks)
    ways = (in_one_call, fused) if is_compiled else (fused,)

    def take(chain: Chain, source: Source) -> Walked:
        for way in ways:
            walked = way(chain, source, steps)
            if walked is not None:
                return walked
        return walk(chain, source, steps)

    walked = take(chain, source) if graphs is None else replay_or_take(graphs, take, chain, source, steps)
    return assignment.done(local, chain, walked), int(assignment.costs(chain, full, walked).sum())
