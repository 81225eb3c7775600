"""Objects given from Python on their way from a comparison to its own worker processes: pickled, in their pipe."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from fedconcord import settings as settings_module
from fedconcord.basis import objects
from fedconcord.basis.errors import UserError
from fedconcord.basis.objects import Held
from fedconcord.settings import Config


def packed(configs: Iterable[Config]) -> list[Mapping[str, str]]:
    """The objects that these settings name, each once, as JSON.

    Raises:
        UserError: one cannot be sent.
    """
    texts = {text: key for config in configs for key, text in settings_module.objects_of(config.as_dict())}
    return [_packed(objects.held(text, key)) for text, key in texts.items()]


def _packed(held: Held) -> Mapping[str, str]:
    try:
        data = pickle.dumps(held.thing)
        why = "it is defined in the main program" if b"__main__" in data else None
    except Exception as error:  # whatever somebody else's object raises
        data, why = b"", " ".join(f"{type(error).__name__}: {error}".split())
    if why is not None:
        raise UserError(
            f"jobs > 1 works in other processes, and {held.text} cannot be sent to them ({why}); use jobs=1, or define "
            "it by name in a module that they can import"
        )
    return {"text": held.text, "words": held.words, "thing": base64.b64encode(data).decode()}


def unpacked(messages: Iterable[Mapping[str, Any]]) -> list[Held]:
    """The objects again, in a worker: known for as long as the result is kept."""
    things = [(one["text"], pickle.loads(base64.b64decode(one["thing"])), one["words"]) for one in messages]
    return [objects.keep(Held(*thing)) for thing in things]
