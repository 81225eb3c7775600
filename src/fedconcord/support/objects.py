"""Things given from Python as objects: settings hold a text for each, `object:Net_1a2b3c4d`, and the thing is here.

Such a text is an import path whose module is no file: whatever takes `package.module:name` takes it as well. A thing is
kept while somebody holds its `NamedObject`; texts that come back later, as when a run is resumed, need it given again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from fedconcord.support.errors import UserError

PREFIX = "object:"
ARGUMENT = {"data set": "data", "metric": "metrics"}  # what sentences call a thing, and the argument that gives it


@dataclass(frozen=True, eq=False)
class NamedObject:
    """A thing that settings name."""

    text: str  # what settings say
    thing: Any  # what an import path would stand for
    words: str  # what run.json says of it


_KNOWN: WeakValueDictionary[str, NamedObject] = WeakValueDictionary()


def hold(name: str, digest: str, thing: Any, words: str) -> NamedObject:
    """The thing under its name and digest, for as long as the result is kept."""
    text = f"{PREFIX}{re.sub(r'[^A-Za-z0-9_]+', '_', name).strip('_') or 'thing'}_{digest[:8]}"
    return keep(NamedObject(text, thing, words))


def keep(thing: NamedObject) -> NamedObject:
    """Make a thing known by its text; a newer one of the same text takes its place."""
    _KNOWN[thing.text] = thing
    return thing


def is_object(text: object) -> bool:
    """Whether a setting names an object."""
    return isinstance(text, str) and text.startswith(PREFIX)


def name_of(text: str) -> str:
    """The short name of an import path, or of an object: without its digest."""
    name = text.rpartition(":")[2]
    return name.rpartition("_")[0] if is_object(text) else name


def held(text: str, what: str) -> NamedObject:
    """What such a text stands for, without its parameters.

    Raises:
        UserError: nobody holds it here.
    """
    thing = _KNOWN.get(text.partition("(")[0].strip())
    if thing is None:
        raise UserError(
            f"the {what} {text} was given from Python as an object, which this process does not have; go on from "
            f"Python and give the same one again, as in fedconcord.run(resume=..., {ARGUMENT.get(what, what)}=...)"
        )
    return thing
