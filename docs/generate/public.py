"""Which public names have nothing to be read about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

import fedconcord
from comments import Comments

SOURCE = Path(fedconcord.__file__).parents[1]
# of `fedconcord.method.contract`: what they say of a member holds for a class that has it
INTERFACES = ("Objective", "Roster", "Evaluator", "Problem")


def undocumented() -> Iterator[str]:
    """Names of `fedconcord.__all__` and their public members that have neither a docstring nor a comment."""
    loader = griffe.GriffeLoader(search_paths=[SOURCE], extensions=griffe.Extensions(Comments()))
    for sibling in ("fedconcord_diagnosis", "fedconcord_papers"):  # some public functions are defined there
        loader.load(sibling)
    package: Any = loader.load("fedconcord")
    contract = package["method.contract"]
    stated = {name for one in INTERFACES for name, member in contract[one].members.items() if member.docstring}
    for name in fedconcord.__all__:
        one: Any = package[name]
        one = one.final_target if one.is_alias else one
        if one.docstring is None:
            yield f"fedconcord.{name}"
        if one.is_class:
            yield from (f"fedconcord.{name}.{member}" for member in _bare(one) if member not in stated)


def _bare(one: Any) -> Iterator[str]:
    """Members of a class without a word; attributes that `__init__` makes are the class's own matter."""
    made = one.members.get("__init__")
    for name, member in one.members.items():
        own = made is not None and made.lineno <= member.lineno <= made.endlineno
        if not name.startswith("_") and not member.is_alias and member.docstring is None and not own:
            yield name
