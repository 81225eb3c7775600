"""Trees of a method's values compared, and how a check fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from fedconcord.method.contract import Local, Tree

TOLERANCE = 1e-12  # between engines, relative to the largest entry


class MismatchError(Exception):
    """What a check expected and found; `testing.check` adds the name."""


def fail(expected: str, found: str) -> NoReturn:
    """A finding, for `testing.check` to name."""
    raise MismatchError(expected, found)


def leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Leaves of tuples, mappings and local problems with a readable path."""
    if isinstance(tree, Local):
        yield from leaves({"x": tree.x, "lr_scale": tree.lr_scale, "first": tree.first}, name)
        for piece in tree.pieces:
            yield from leaves(piece, f"{name}.{type(piece).__name__}")
    elif isinstance(tree, tuple):
        for field, part in zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True):
            yield from leaves(part, f"{name}.{field}")
    elif isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from leaves(part, f"{name}.{key}")
    else:
        yield name, tree


def clone(tree: Any, change: Callable[[Tensor], Tensor] = torch.clone) -> Any:
    """A deep copy; what is not a tensor, tuple, mapping or local problem is kept."""
    if isinstance(tree, Local):
        return tree.map(lambda leaf: clone(leaf, change))
    if isinstance(tree, tuple):
        parts = [clone(part, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if isinstance(tree, Mapping):
        return {key: clone(part, change) for key, part in tree.items()}
    return change(tree) if isinstance(tree, Tensor) else tree


def _bits(leaf: Tensor) -> Tensor:
    return leaf.detach().contiguous().reshape(-1).view(torch.uint8)


def kind(leaf: Any) -> str:
    """Type and shape of a leaf, in words."""
    return f"{leaf.dtype} {list(leaf.shape)}" if isinstance(leaf, Tensor) else f"{type(leaf).__name__} {leaf!r}"


def kinds(tree: Tree, name: str) -> dict[str, str]:
    """Path of every leaf -> its kind."""
    return {path: kind(leaf) for path, leaf in leaves(tree, name)}


def first_difference(a: Any, b: Any, name: str) -> str | None:
    """The first leaf of two trees whose bits differ, in words, or None."""
    left, right = dict(leaves(a, name)), dict(leaves(b, name))
    if left.keys() != right.keys():
        return f"leaves {', '.join(left) or 'none'} and {', '.join(right) or 'none'}"
    for path, one in left.items():
        other = right[path]
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            if one.dtype != other.dtype or one.shape != other.shape:
                return f"{path} as {kind(one)} and as {kind(other)}"
            if not torch.equal(_bits(one), _bits(other)):
                return f"{path} changed by {float((one.double() - other.double()).abs().max()):.1e}"
        elif isinstance(one, Tensor) or isinstance(other, Tensor):
            return f"{path} as {kind(one)} and as {kind(other)}"
        elif not callable(one) and one != other:
            return f"{path} as {one!r} and as {other!r}"
    return None


def far(a: Any, b: Any, name: str, tolerance: float = TOLERANCE) -> str | None:
    """The first leaf of two trees that differs by more than the tolerance, in words, or None."""
    left, right = dict(leaves(a, name)), dict(leaves(b, name))
    if left.keys() != right.keys():
        return f"leaves {', '.join(left) or 'none'} and {', '.join(right) or 'none'}"
    for path, one in left.items():
        other = right[path]
        if one.shape != other.shape:
            return f"{path} as {kind(one)} and as {kind(other)}"
        if one.numel():
            off = float((one.double() - other.double()).abs().max()) / max(1.0, float(other.double().abs().max()))
            if not off <= tolerance:
                return f"{path} off by {off:.1e}"
    return None
