"""What a trial shows while it runs: rounds and the states of its sites."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.live import Live
from rich.table import Table

from fedconcord.interface.cli.base import console, say
from fedconcord.interface.cli.progress import latest_metric


class Watch:
    """Shows rounds and sites: a table that changes on a terminal, lines elsewhere."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.began = time.monotonic()
        self.states: Mapping[str, str] = {}
        self.answered: dict[str, int] = {}
        self.asked: dict[str, int] = {}
        self.title = "starting"
        self.live = Live(self._table(), console=console, transient=True) if console.is_terminal else None

    def __enter__(self) -> Watch:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.live.stop()

    def __call__(self, event: Mapping[str, Any]) -> None:
        if "say" in event:
            self._line(event["say"])
        elif "sites" in event:
            for name, state in event["sites"].items():
                if self.states.get(name) != state and not self.live:
                    self._line(f"site {name}: {state}")
            self.states = {**self.states, **event["sites"]}  # of one server, where there are edge servers too
        elif "asked" in event:
            for name in event["asked"]:
                self.asked[name] = self.asked.get(name, 0) + 1
            for name in event["answered"]:
                self.answered[name] = self.answered.get(name, 0) + 1
            for name, reason in event["failed"].items():
                self._line(f"site {name} failed: {reason}")
        elif "kind" in event:
            self._heard(event)
        if self.live:
            self.live.update(self._table())

    def _heard(self, event: Mapping[str, Any]) -> None:
        """What the core says: a round, or a sentence."""
        if event["kind"] != "row":
            self._line(event["text"])
            return
        metric = latest_metric(event["metrics"])
        self.title = f"round {event['round']} of {self.rounds}" + (f", {metric}" if metric else "")
        if not self.live:
            say(self.title)

    def _line(self, text: str) -> None:
        if self.live:
            self.live.console.print(text, markup=False, soft_wrap=True)
        else:
            say(text)

    def _table(self) -> Table:
        table = Table(title=f"{self.title}, {time.monotonic() - self.began:.0f} s", title_justify="left", box=None)
        for column in ("site", "state", "answered", "asked"):
            table.add_column(column)
        for name, state in self.states.items():
            table.add_row(name, state, str(self.answered.get(name, 0)), str(self.asked.get(name, 0)))
        return table
