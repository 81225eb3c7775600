"""Trees of NamedTuples and tensors: what servers and clients keep and send."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

Tree = Any
"""A tensor, a NamedTuple of trees, or () for nothing."""


def tree_map(f: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply f to corresponding tensors of trees of one structure."""
    if isinstance(tree, tuple):
        mapped = [tree_map(f, *leaves) for leaves in zip(tree, *rest, strict=True)]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else tuple(mapped)
    return f(tree, *rest)


def tree_sum(trees: Iterable[Tree]) -> Tree:
    """The sum of trees of one structure, added in their order, of which it keeps none; None of no trees."""
    total = None
    for tree in trees:
        total = tree if total is None else tree_map(torch.add, total, tree)
    return total


def tree_leaves(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted field name, in order: State(x, c) -> {'x': ..., 'c': ...}; a bare tensor has the name ''."""
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", None) or [str(k) for k in range(len(tree))]
        leaves: dict[str, Any] = {}
        for name, leaf in zip(names, tree, strict=True):
            leaves |= tree_leaves(leaf, f"{prefix}.{name}" if prefix else name)
        return leaves
    return {prefix: tree}


def tree_unflatten(like: Tree, leaves: Mapping[str, Any], prefix: str = "") -> Tree:
    """The inverse of `tree_leaves` for a tree of the same structure as `like`."""
    if isinstance(like, tuple):
        names = getattr(like, "_fields", None) or [str(k) for k in range(len(like))]
        parts = [
            tree_unflatten(leaf, leaves, f"{prefix}.{name}" if prefix else name)
            for name, leaf in zip(names, like, strict=True)
        ]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    return leaves[prefix]


def tree_bytes(tree: Tree) -> int:
    """Bytes of a message or state: every tensor counts numel * itemsize, a Python number (broadcasts only) 8."""
    return sum(
        leaf.numel() * leaf.element_size() if isinstance(leaf, Tensor) else 8 for leaf in tree_leaves(tree).values()
    )


def raw(leaf: Tensor) -> Tensor:
    """The bytes of a tensor [n * itemsize] uint8, in order; a view where its memory is that already."""
    flat = leaf.detach().cpu().contiguous().reshape(-1)
    # one number of a larger tensor counts as contiguous whatever its stride
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)
