"""The table of docs/testing.md of what clients train: its tests are there, and it has all that can be named."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest

from fedconcord.federation.layers import Norm
from fedconcord.method.algorithms import METHODS
from fedconcord.method.wrappers.factors import FACTORS
from fedconcord.method.wrappers.optimisers import OPTIMISERS
from fedconcord.method.wrappers.terms import terms

TESTS = Path(__file__).parents[1]
NAMED = re.compile(r"`(\w+/test_\w+\.py)::(\w+)`")


def table(page: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """(what, [(file, test)]) of each row."""
    [section] = re.findall(r"^## What clients train.*?(?=^## )", page, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (.+?) \| (`\w+/.+?) \|$", section, re.MULTILINE)
    return [(what, NAMED.findall(where)) for what, where in rows]


def absent(rows: list[tuple[str, list[tuple[str, str]]]]) -> list[str]:
    """Tests that the rows name and that are not there, and rows without a test."""
    missing = [what for what, tests in rows if not tests]
    for file, test in (pair for _, tests in rows for pair in tests):
        nodes = ast.parse((TESTS / file).read_text()).body if (TESTS / file).exists() else []
        if test not in {node.name for node in nodes if isinstance(node, ast.FunctionDef)}:
            missing.append(f"{file}::{test}")
    return missing


ROWS = table((TESTS.parent / "docs" / "testing.md").read_text())


def test_every_test_of_the_table_is_there() -> None:
    assert len(ROWS) > 40
    assert absent(ROWS) == []


@pytest.mark.parametrize(
    "names",
    [
        OPTIMISERS,
        terms(),
        FACTORS,
        get_args(Norm),
        [name for name, make in METHODS.items() if (one := make()).client_model or one.facts.adapted or one.needs.loss],
    ],
    ids=["optimisers", "terms", "factors", "norms", "personalised and fair methods"],
)
def test_all_that_can_be_named_has_a_row(names: Iterable[str]) -> None:
    words = {word for what, _ in ROWS for word in re.findall(r"`(\w+)`", what)}
    assert set(names) - words == set()


def test_a_test_that_is_gone_is_noticed() -> None:
    rows = table("## What clients train\n| what | shown by |\n| x | `whole/test_rows.py::test_gone` |\n\n## Next")
    assert absent(rows) == ["whole/test_rows.py::test_gone"]
