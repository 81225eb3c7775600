"""What compiled local steps are given: tuples of arrays and numbers alone, so that who calls them needs no compiler."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

CROSS_ENTROPY, SQUARED, LOGISTIC = range(3)
TILE = 32768  # numbers in the rows of a layer that are dealt with at once, in the second cache
PLAIN, ADAMW, LION, SIGN = range(4)
NONE, DELTA, DOG, NORMED = range(4)


class Net(NamedTuple):
    """A network and the samples that it is trained on."""

    widths: np.ndarray  # [L + 1] int64: inputs, hidden layers, outputs
    bytes: np.ndarray  # [m, inputs] uint8, where samples are bytes; else [0, 0], and so the next two
    narrow: np.ndarray  # [m, inputs] float32
    inputs: np.ndarray  # [m, inputs] of the run's numbers, where those are not float32
    order: np.ndarray  # [n] int64 sample k is number order[k] of them; [0]: number k
    table: np.ndarray  # [c, 256] what bytes are read as, for c runs of inputs of the same length; [1, 0] without bytes
    classes: np.ndarray  # [n] int64; [0] where targets are numbers
    targets: np.ndarray  # [n, outputs]; [1, 0] where they are classes
    loss: int  # CROSS_ENTROPY, SQUARED or LOGISTIC


class Draw(NamedTuple):
    """The samples of every client's steps."""

    steps: np.ndarray  # [S] int64
    samples: np.ndarray  # [S, K, B] int64, or [S, 1, B] where all steps use the same
    weight: np.ndarray  # of the same shape, 0 for padding; [1, 1, 0] for 1/B each
    blocks: np.ndarray  # [S, K] int64 the block of each step; [1, 0] without tables


class Terms(NamedTuple):
    """The pieces of a local step as arrays: what clients share has one row, and what is absent one of no numbers."""

    eta: np.ndarray  # [K] step sizes
    scale: np.ndarray  # [S] kappa
    prox: np.ndarray  # [S] rho
    linear: np.ndarray  # [S or 1, d] a constant; or a dual [S, d] that moves, in place
    anchor: np.ndarray  # [S or 1, d]; absent where linear holds - rho anchor
    snapshot: np.ndarray  # [S or 1, d]
    reference: np.ndarray  # [S or 1, d] with a snapshot, before the clip
    buffer: np.ndarray  # [S, d], changed in place
    table: np.ndarray  # [S, M, d], changed in place
    mean: np.ndarray  # [S, d] of the table, changed in place
    table_rate: np.ndarray  # [S]
    tilt: np.ndarray  # [S, d] of SAM's ascent, each client's own, changed in place
    common: np.ndarray  # [S or 1, d] and that of all
    dual_rate: float
    momentum: float
    nesterov: bool
    weight_decay: float
    clip: float  # largest l2 norm of the gradient; 0: none
    radius: float  # of SAM's ascent; 0: none
    rule: int  # of step sizes: NONE, DELTA, DOG or NORMED; eta is then the factor on them
    reach: float  # delta: gamma / 2; normed: the first length
    growth: float  # delta; normed: the bound
    pace: np.ndarray  # [S, columns of the rule's state], changed in place; none without a rule
    start: np.ndarray  # [S or 1, d] x_0, for dog
    etas: np.ndarray  # [S, K] the size of every step, written where somebody asks for it


class Further(NamedTuple):
    """What takes further gradients on the samples of a step, apart from `Terms`, of which every function has a copy."""

    point: np.ndarray  # [S or 1, d] where the gradient is taken, if not at x: scratch, or pFedMe's theta
    beside: np.ndarray  # [S, d] Ditto's second model, changed in place
    beside_anchor: np.ndarray  # [S or 1, d]
    beside_eta: float
    beside_pull: float
    share: np.ndarray  # [S, 1] of it in the mixture with x at which its gradient is taken (APFL), changed in place
    share_rate: float
    inner: int  # steps of the point from x on the same samples; 0: SAM's ascent, or none
    inner_eta: float
    lam: float  # how strongly these pull the point to x
    shift: np.ndarray  # [S or 1, d] from x to the point, where it is fixed
    nested: bool  # lam (x - point) is used in place of the gradient at the point


class Optimiser(NamedTuple):
    """A local optimiser, which turns the direction of a step (`contract.optimisers`); what moves does so in place."""

    kind: int  # PLAIN, ADAMW, LION or SIGN
    m: np.ndarray  # [S, d] first moments; of one client [d] or [0], so the next three
    raw: np.ndarray  # [S, d] second moments of gradients
    second: np.ndarray  # [S, d] and of directions
    total: np.ndarray  # [S, d] the sum of gradients, where somebody asks for it
    t: np.ndarray  # [S, 1] AdamW's steps so far; of one client 1 / (1 - beta^t), and the same of beta2
    beta: float
    beta2: float
    eps: float
    decay: float


class Scratch(NamedTuple):
    """What a client's steps write and forget."""

    first: np.ndarray  # [L + 1] int64: where a layer's weights begin in x, its biases behind them; and d
    place: np.ndarray  # [L + 1] int64: where its inputs begin among the activations, and the outputs
    activations: np.ndarray  # [B x all widths]
    above: np.ndarray  # [B x widest layer]: derivatives of the loss
    below: np.ndarray  # the same, a layer before
    rows: np.ndarray  # [L] int64: of a layer that are dealt with at once
    tile: np.ndarray  # gradient of these rows
    gradient: np.ndarray  # [d], where one has to be whole before it is used; else [0]
    last: np.ndarray  # [d] the last step's direction, for delta; else [0]
    sums: np.ndarray  # [3] of squares, of the direction and of its change; 1 in a round's first step
    labels: np.ndarray  # [B] int64: the batch's samples
    share: np.ndarray  # [B] their weights
    corrections: np.ndarray  # [2] of an optimiser's moments


def scratch(net: Net, draw: Draw, terms: Terms, further: Further, x: np.ndarray) -> Scratch:
    """For steps from x [S, d]."""
    (B, d), kind, inside, outside = (draw.samples.shape[2], x.shape[1]), x.dtype, net.widths[:-1], net.widths[1:]
    rows = np.maximum(4, TILE // inside // 4 * 4)
    first, place = np.zeros((2, len(net.widths)), np.int64)
    first[1:], place[1:] = np.cumsum(outside * (inside + 1)), np.cumsum(B * inside)
    is_whole = terms.clip > 0 or terms.radius > 0 or terms.rule != NONE or further.nested
    whole = d if is_whole or terms.snapshot.size or further.share.size else 0
    return Scratch(
        first,
        place,
        _empty(place[-1] + B * net.widths[-1], kind),
        _empty(B * net.widths.max(), kind),
        _empty(B * net.widths.max(), kind),
        rows,
        _empty(max(outside.max(), (inside * rows).max()), kind),
        _empty(whole, kind),
        np.empty(d if terms.rule == DELTA else 0, kind),
        np.zeros(3, kind),
        np.empty(B, np.int64),
        np.empty(B, kind),
        np.ones(2, kind),
    )


def _empty(size: int, kind: np.dtype[Any]) -> np.ndarray:
    """From the beginning of a cache line on: vectors across two of them take a tenth longer."""
    block = np.empty(size * kind.itemsize + 64, np.uint8)
    begin = -block.__array_interface__["data"][0] % 64
    return block[begin : begin + size * kind.itemsize].view(kind)
