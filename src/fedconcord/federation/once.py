"""What depends on the whole population is computed once: a round may cost O(S), not O(N)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

import numpy as np

Value = TypeVar("Value")


def once(compute: Callable[[np.ndarray], Value]) -> Callable[[np.ndarray], Value]:
    """The same function of an array, remembered for as long as that array object lives.

    Only for arrays that nobody changes, such as a problem's sizes: the key is the object, not its content.
    """
    held: dict[int, tuple[weakref.ref[np.ndarray], Value]] = {}

    def remembered(array: np.ndarray) -> Value:
        key = id(array)
        found = held.get(key)
        if found is not None and found[0]() is array:
            return found[1]
        value = compute(array)
        held[key] = (weakref.ref(array, lambda gone: _forget(held, key, gone)), value)
        return value

    return remembered


def _forget(held: dict[int, tuple[weakref.ref[np.ndarray], Value]], key: int, gone: weakref.ref[np.ndarray]) -> None:
    """Drop an entry, unless a new array has taken the address already."""
    if key in held and held[key][0] is gone:
        del held[key]
