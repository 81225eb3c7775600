"""Messages as whole numbers, so that a message's noise is what its accountant takes it for.

A floating-point number that has noise added tells more than the noise allows: which values it can have, by their last
bits, depends on what was noised (Mironov, CCS 2012). Here a message u, clipped to C, is taken in steps of z C / SIGMA
and rounded to the nearest whole numbers q; sums of these are exact, in any order and under masks; noise on them is the
discrete Gaussian of deviation SIGMA; and all that follows, rounding to the model's type too, is made of that sum alone.

**How far one message moves a sum.** Rounding makes a message of L numbers longer by sqrt(L) / 2 steps at most, so it is
clipped to SIGMA / z - sqrt(L) / 2 of them before. The norm of q is looked at again, with room for its own errors, and a
message beyond SIGMA / z counts as zeros: the bound does not rest on the clipping.

**How far one sample moves a sum that is rounded once.** To round each sample's gradient would take longer than to make
it. Each is clipped by its norm in float64, and they are added up in float64: the l2 error of a sum of m vectors of norm
c at most is below m (m + 2) 2^-53 c, in whatever order. With and without one of n samples, a sum in steps, rounded to
the nearest whole numbers, differs by the one vector, twice that error, and sqrt(d) / 2 twice.

**What the noise costs.** The discrete Gaussian around q of variance SIGMA^2 is what comes of a continuous number around
q of variance SIGMA^2 - r^2 if that is rounded at random by a discrete Gaussian of deviation r around it: up to a factor
within 1 +- 2 eta for each number, eta = 2 exp(-2 pi^2 r^2) (Poisson summation; Peikert, CRYPTO 2010, Theorem 3.1). With
r = 4 eta is below 10^-136, so that whatever holds for the Gaussian mechanism of noise z sqrt(1 - 16 / SIGMA^2), for
every kind of sampling, any number of numbers and of rounds, holds for this one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedconcord.method.contract.discrete import BITS, SIGMA
from fedconcord.method.contract.trees import Tree, tree_leaves, tree_map
from fedconcord.support.errors import UserError

LEAST = 1e-4  # of the noise over C: sums of messages fit float64's whole numbers, in which masks come off
MOST = 1e6  # of the noise on the bits of adaptive clipping: half a bit is some of its steps


class Grid(NamedTuple):
    """The steps of messages of length C that get noise z C."""

    clip: float  # C
    noise: float  # z > 0

    def integers(self, up: Tree) -> Tree:
        """A message, or a stack of them, in whole numbers int64 whose l2 norm is at most SIGMA / z.

        Raises:
            UserError: the message is so long, or its noise so large, that clipping and rounding leave nothing of it.
        """
        most, count = SIGMA / self.noise, sum(leaf.shape[-1] for leaf in tree_leaves(up).values())
        margin = (count + 8) * 2.0**-52  # of a norm in float64, in whatever order it is added up
        room = most * (1 - 2 * margin) - math.sqrt(count) / 2
        if room <= 0:
            raise UserError(f"privacy.noise {self.noise:g} leaves nothing of a message of {count} numbers; give less")
        whole = tree_map(torch.round, clipped(tree_map(lambda leaf: leaf.double() * (most / self.clip), up), room))
        is_short = norm_of(whole) <= most * (1 - margin)
        return tree_map(lambda leaf: torch.where(is_short, leaf, torch.zeros_like(leaf)).long(), whole)

    def room(self, d: int, n: int) -> float:
        """The largest norm of vectors [d], n at most, of which one moves their sum, `rounded`, by SIGMA / z at most.

        Raises:
            UserError: so many parameters, or such noise, that clipping and rounding leave nothing.
        """
        margin = (d + 8 + 2 * n * (n + 4)) * 2.0**-52
        room = (SIGMA / self.noise - math.sqrt(d)) / (1 + margin)
        if room <= 0:
            raise UserError(f"privacy.noise {self.noise:g} leaves nothing of a gradient of {d} numbers; give less")
        return room * self.noise * self.clip / SIGMA

    def rounded(self, total: Tensor) -> Tensor:
        """A sum [d] float64 in whole numbers int64."""
        return (total * (SIGMA / (self.noise * self.clip))).round().long()

    def numbers(self, whole: Tree, dtype: torch.dtype) -> Tree:
        """What whole numbers stand for."""
        return tree_map(lambda leaf: (leaf.double() * (self.noise * self.clip / SIGMA)).to(dtype), whole)


def too_little(noise: float) -> str | None:
    """Why messages cannot have this noise over C, or None; 0 clips alone."""
    if not 0 < noise < LEAST:
        return None
    return f"privacy.noise {noise:g} protects nobody; give 0, which clips alone, or {LEAST:g} and more"


def whole_bits(noise: float) -> int:
    """Of the largest whole number of a message with this noise over C."""
    return max(1, math.ceil(BITS - math.log2(noise)))


def clipped(up: Tree, clip: float) -> Tree:
    """A message, or a stack of them, whose l2 norm over all its tensors is at most `clip`; zeros where not finite."""
    norm = norm_of(up)
    factor = (clip / norm).clamp(max=1.0)
    return tree_map(lambda leaf: torch.where(norm.isfinite(), leaf * factor, torch.zeros_like(leaf)), up)


def norm_of(up: Tree) -> Tensor:
    """The l2 norm [..., 1] of all tensors [..., d] of a message together."""
    squares = [leaf.square().sum(-1, keepdim=True) for leaf in tree_leaves(up).values()]
    return torch.stack(squares).sum(0).sqrt()
