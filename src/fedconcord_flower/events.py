"""What the server's half of an app says while it runs, as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedconcord.support.files import for_owner

if TYPE_CHECKING:  # with torch, which a SuperLink and SuperNodes would take seconds to import for nothing
    from fedconcord.study.runs.events import Event


def plain(event: Event) -> dict[str, Any]:
    """An event of the core as plain values."""
    row = {} if event.row is None else {"round": event.row.round, "metrics": dict(event.row.metrics or {})}
    return {"kind": event.kind, "text": event.text, "site": event.site, **row}


def teller(path: str) -> Callable[[Mapping[str, Any]], None]:
    """Says what happens, a line of JSON each, into a file or else on stdout, which `flwr log` shows."""

    def tell(event: Mapping[str, Any]) -> None:
        line = json.dumps(event)
        if path:
            with open(path, "a", encoding="utf-8", opener=for_owner) as file:
                file.write(line + "\n")
        else:
            print(line, flush=True)

    return tell


def nameless(tell: Callable[[Mapping[str, Any]], None]) -> Callable[[Mapping[str, Any]], None]:
    """Says how many sites were asked in an exchange, answered and failed, where who is in a round is secret."""
    return lambda event: tell({f"number_{what}": len(names) for what, names in event.items()})
