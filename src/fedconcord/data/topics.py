"""English text that ships with Python: the help topics of `pydoc_data.topics`, a client each."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedconcord.basis.errors import UserError
from fedconcord.basis.parameters import Count, about
from fedconcord.data.dataset import Dataset

SYMBOLS = string.ascii_letters + string.digits + string.punctuation + " \n"  # agreed upon, not counted; then any other
TRAIN_SHARE = 0.9


def topics(
    folder: Path,
    seed: int,
    /,
    context: Annotated[int, Field(ge=1, le=512, description="characters that a model sees")] = 24,
    stride: Annotated[Count, about("characters between samples")] = 4,
    smallest: Annotated[Count, about("number of characters below which a topic is left out")] = 2000,
) -> Dataset:
    """The next character of Python's help texts, 97 symbols, a client for each topic; no download.

    Samples are `context` symbols [context] int64 and the symbol that follows, `stride` characters apart; the first 90 %
    of a topic's text train and the rest test. The text is that of the Python that runs: 34 topics and 424,605
    characters in 3.11.7, others in other versions, so that their figures do not compare. `folder` and `seed` are not
    used.

    Raises:
        UserError: no topic is as long as the options ask for.
    """
    from pydoc_data.topics import topics as texts  # half a megabyte

    chosen = {name: text for name, text in sorted(texts.items()) if len(text) >= max(smallest, 4 * (context + stride))}
    if not chosen:
        raise UserError(
            f"data topics: no topic has {smallest} characters and {context} of context; lower these options"
        )
    train, test = [], []
    for text in chosen.values():
        code = encode(text)
        cut = int(TRAIN_SHARE * len(code))
        train.append(windows(code[:cut], context, stride))
        test.append(windows(code[cut:], context, stride))
    ends = np.cumsum([len(y) for _, y in train])
    return Dataset(
        "topics",
        np.concatenate([x for x, _ in train]),
        np.concatenate([y for _, y in train]),
        np.concatenate([x for x, _ in test]),
        np.concatenate([y for _, y in test]),
        len(SYMBOLS) + 1,
        natural=[np.arange(end - len(y), end) for end, (_, y) in zip(ends, train, strict=True)],
        client_names=list(chosen),
        output_names=[*SYMBOLS, "other"],
    )


def encode(text: str) -> np.ndarray:
    """The symbols [n] int64 of a text."""
    place = {symbol: k for k, symbol in enumerate(SYMBOLS)}
    return np.array([place.get(character, len(SYMBOLS)) for character in text], np.int64)


def windows(code: np.ndarray, context: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Contexts [n, context] and the symbols [n] that follow them."""
    whole = np.lib.stride_tricks.sliding_window_view(code, context + 1)[::stride]
    return np.ascontiguousarray(whole[:, :-1]), whole[:, -1].copy()
