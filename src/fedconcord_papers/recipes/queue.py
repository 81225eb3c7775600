"""The papers' experiments at their own size one after another, the most valuable first: what is left, and until when.

The order is data, items.toml. What is left of an item follows from the values that are known, so the queue has no state
of its own, and goes on wherever those are.
"""

from __future__ import annotations

import _thread
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import torch

from fedconcord.execution.run import interrupts
from fedconcord.support.errors import UserError
from fedconcord_papers.recipes.grid import points_of, text_of
from fedconcord_papers.recipes.items import ITEMS, Item
from fedconcord_papers.recipes.recipe import Comparison
from fedconcord_papers.recipes.run import (
    RecipeSpec,
    cells_of,
    entries_of,
    final_left,
    is_known,
    ledger_of,
    search_left,
)  # fmt: skip
from fedconcord_papers.recipes.whole import request

HOUR = 3600.0


class Left(NamedTuple):
    """What is left of an item."""

    item: Item
    spec: RecipeSpec
    runs: int  # that are left
    of: int  # runs in all
    hours: float | None  # that the runs which are left may take; None: not counted
    spent: float  # hours of the recipe's runs until now, added over processes; those of its other items too

    @property
    def row(self) -> dict[str, str]:
        """As a table shows it."""
        return {
            "recipe": self.item.recipe,
            "cells": "all" if self.item.cells is None else str(len(self.item.cells)),
            "runs left": f"{self.runs} of {self.of}",
            "hours left": "not counted" if self.hours is None else f"{self.hours:.1f}",
            "hours so far": f"{self.spent:.1f}",
            "why": self.item.why + (" (needs a GPU)" if self.item.needs_gpu else ""),
        }


def line(folder: Path, jobs: int = 1, device: str | None = None, values: Path | None = None) -> Iterator[Left]:
    """The items with what is left of them, in order.

    Args:
        folder: of all recipes.
        device: where comparisons compute; an item that needs a GPU has it anyway.
        values: folder of values, which count as the recipes' own do.

    Raises:
        UserError: a file of values cannot be read.
    """
    for item in ITEMS:
        place = "cuda" if item.needs_gpu and device is None else device
        yield left_of(item, request(item.recipe, "paper", folder, jobs, None, item.cells, place, values))


def left_of(item: Item, spec: RecipeSpec) -> Left:
    """What is left of an item, from the values that are known of it; nothing is written.

    Raises:
        UserError: a file of values cannot be read.
    """
    ledger, experiment = ledger_of(spec, lambda line: None), spec.recipe.experiment
    spells = ledger.done().log
    seconds, runs_made = sum(spell["seconds"] for spell in spells), sum(spell["runs"] for spell in spells)
    if not isinstance(experiment, Comparison):
        runs, of, of_one_seed = int(not is_known(spec, ledger)), 1, 1
        seconds_a_run = None
    else:
        by_name, homes = {cell.name: cell for cell in experiment.cells}, set[str]()
        seeds, runs, of, of_one_seed = spec.every_seed, 0, 0, 0
        for cell in cells_of(spec, experiment):
            home, entries = by_name[cell.tuned_in or cell.name], entries_of(spec.size, experiment, cell)
            unknown = search_left(spec, experiment, home, ledger)
            if home.name not in homes and spec.size.search is not None:
                sizes = {one.name: len(points_of(one)) for one in entries_of(spec.size, experiment, home)}
                grid = sum(size for size in sizes.values() if size > 1)
                of, of_one_seed = of + grid, of_one_seed + grid
                points = [text_of(one, values, one.name) for one in unknown for values in points_of(one)]
                runs += sum(ledger.point(home.name, text) is None for text in points)
            homes.add(home.name)
            of, of_one_seed = of + len(entries) * len(seeds), of_one_seed + len(entries)
            names = {one.name for one in unknown}
            certain = [one for one in final_left(spec, experiment, cell, home, ledger) if one[0] not in names]
            runs += len(certain) + len(seeds) * sum(entry.name in names for entry in entries)
        seconds_a_run = seconds / runs_made if runs_made else None
    hours = None if item.hours is None else item.hours * runs / of_one_seed
    if seconds_a_run is not None:
        hours = seconds_a_run * runs / HOUR
    return Left(item, spec, runs, of, hours, seconds / HOUR)


def has_gpu() -> bool:
    """Whether this machine has one."""
    return torch.cuda.is_available()


def next_time(text: str, now: datetime) -> datetime:
    """The next time that a clock shows HH:MM, today or tomorrow; local time, as `now` is.

    Raises:
        UserError: it is no such time.
    """
    match = re.fullmatch(r"(\d{1,2}):(\d\d)", text)
    if match is None or int(match[1]) > 23 or int(match[2]) > 59:
        raise UserError(f"--until takes a time of the day, from 00:00 to 23:59, given {text!r}")
    at = now.replace(hour=int(match[1]), minute=int(match[2]), second=0, microsecond=0)
    return at if at > now else at + timedelta(days=1)


@contextmanager
def ended_by(seconds: float | None) -> Iterator[threading.Event]:
    """After so many seconds the work inside is stopped as by Ctrl-C, in a process too that ignores that; the event says
    that it was this. None: never."""
    is_over = threading.Event()
    if seconds is None:
        yield is_over
        return

    def end() -> None:
        is_over.set()
        _thread.interrupt_main()

    before, timer = signal.signal(signal.SIGINT, interrupts.raising), threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield is_over
    finally:
        timer.cancel()
        interrupts.ctrl_c.clear()
        signal.signal(signal.SIGINT, before)
