"""Which cases of a test are quick: the others, of the same kind, go to the slow tier."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def tiers(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """The cases as parameters, those that are not quick marked slow; a tuple is of several parameters."""
    every = list(cases)
    assert set(quick) <= set(every), f"no such case: {set(quick) - set(every)}"
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in quick else pytest.mark.slow)
        for case in every
    ]
