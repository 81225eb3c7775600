"""Data sets that need no download: what ships with scikit-learn and with Python, and what a generator draws.

scikit-learn's handwritten digits are of UCI (Alpaydin and Kaynak 1998); Synthetic(alpha, beta) is Li et al., MLSys 2020
(generator of litian96/FedProx); the text is `pydoc_data.topics`.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedconcord.federation.data.dataset import Dataset, Streams, scaling
from fedconcord.federation.data.published import read_numbers
from fedconcord.method.contract.rng import Purpose, generator
from fedconcord.support.errors import UserError
from fedconcord.support.parameters import Count, NotNegative, about

TRAIN_SHARE = 0.9  # of a client's samples or text

# -- handwritten digits --------------------------------------------------------------------------------------------

DIGITS_SHARE = 0.8  # of the samples that train


def digits(folder: Path, seed: int, /) -> Dataset:
    """Handwritten digits of scikit-learn, 8x8 grey, 10 classes, 1,437 + 360 samples; no download.

    Samples are [1, 8, 8], pixels in [0, 1]. The split is one and the same for every seed, so that test figures of
    different seeds compare; `folder` and `seed` are not used.
    """
    table = _table()
    x = (table[:, :-1] / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    y = table[:, -1].astype(np.int64)
    order = generator(0, Purpose.SPLIT).permutation(len(y))
    train, test = np.split(order, [int(DIGITS_SHARE * len(y))])
    return Dataset("digits", x[train], y[train], x[test], y[test], 10, preprocessing=scaling(16.0, [0.0], [1.0]))


def _table() -> np.ndarray:
    """Pixels and the digit of all images [1797, 65], from scikit-learn's file: importing the package takes a second."""
    spec = find_spec("sklearn")
    path = Path((spec and spec.origin) or "").parent / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        return read_numbers(path, 65, ",")
    from sklearn.datasets import load_digits  # of a version that keeps it elsewhere

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


# -- synthetic clients ---------------------------------------------------------------------------------------------

FEATURES, CLASSES = 60, 10
IN_MEMORY = 2**30  # bytes of training samples; with more, clients' samples are drawn when they take part
JUDGED = 200  # clients whose test samples judge the model then
Alpha = Annotated[NotNegative, about("spread of the clients' true models; with 0 they are drawn alike")]
Beta = Annotated[NotNegative, about("spread of the clients' feature means; with 0 they are drawn alike")]
Clients = Annotated[Count, about("number of clients N")]


def synthetic(folder: Path, seed: int, /, alpha: Alpha = 1.0, beta: Beta = 1.0, clients: Clients = 30) -> Dataset:
    """Synthetic(alpha, beta) of FedProx: 60 features, 10 classes, clients of very unequal sizes; no download.

    Client i has int(lognormal(4, 2)) + 50 samples. With u ~ N(0, alpha^2), B ~ N(0, beta^2), W and b ~ N(u, 1) and
    v ~ N(B, 1) (60 entries): x ~ N(v, diag(j^-1.2)), y = argmax(x W + b). The first 90 % of a client's samples train,
    the rest test; `natural` has the training samples of each client. Every client has its own generator, so the first
    clients are the same however many there are. `folder` is not used.

    Where the training samples would take more than 1 GiB (about 10,000 clients), a client's samples are drawn when it
    takes part (`streams`), and the arrays are those of the first 200 clients, which the model is judged on.

    Raises:
        UserError: an option is out of range.
    """
    if not (0 <= alpha < np.inf and 0 <= beta < np.inf and clients >= 1):
        raise UserError(
            f"data set 'synthetic' needs finite alpha >= 0, beta >= 0 and clients >= 1; "
            f"given alpha = {alpha}, beta = {beta}, clients = {clients}"
        )
    sizes = np.fromiter((_size(generator(seed, Purpose.DATA, 0, i)) for i in range(clients)), np.int64, clients)
    ends = np.cumsum((TRAIN_SHARE * sizes).astype(np.int64))
    streams = None
    if 4 * FEATURES * ends[-1] > IN_MEMORY:

        def draw(client: int) -> tuple[np.ndarray, np.ndarray]:
            x, y = _client(seed, client, alpha, beta)
            cut = int(TRAIN_SHARE * len(y))
            return x[:cut], y[:cut]

        streams = Streams(np.concatenate([[0], ends]), draw)
    pairs = [_client(seed, i, alpha, beta) for i in range(clients if streams is None else min(clients, JUDGED))]
    cuts = [int(TRAIN_SHARE * len(y)) for _, y in pairs]
    train = [(x[:cut], y[:cut]) for (x, y), cut in zip(pairs, cuts, strict=True)]
    test = [(x[cut:], y[cut:]) for (x, y), cut in zip(pairs, cuts, strict=True)]
    return _side_by_side("synthetic", train, test, CLASSES)._replace(streams=streams)


Pairs = Sequence[tuple[np.ndarray, np.ndarray]]


def _side_by_side(name: str, train: Pairs, test: Pairs, classes: int) -> Dataset:
    """The data set of clients' samples and targets (x, y), client after client."""
    (train_x, train_y), (test_x, test_y) = (map(np.concatenate, zip(*pairs, strict=True)) for pairs in (train, test))
    counts = [len(y) for _, y in train]
    natural = np.split(np.arange(len(train_y)), np.cumsum(counts)[:-1])
    return Dataset(name, train_x, train_y, test_x, test_y, classes, natural)


def _size(rng: np.random.Generator) -> int:
    """Samples of a client: the first draw of its generator."""
    return int(rng.lognormal(4.0, 2.0)) + 50


def _client(seed: int, client: int, alpha: float, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Features [n_i, 60] float32 and labels [n_i] int64 of one client."""
    rng = generator(seed, Purpose.DATA, client=client)
    n = _size(rng)
    u = rng.normal(0.0, alpha)
    v = rng.normal(rng.normal(0.0, beta), 1.0, FEATURES)
    w = rng.normal(u, 1.0, (FEATURES, CLASSES))
    b = rng.normal(u, 1.0, CLASSES)
    std = np.arange(1, FEATURES + 1) ** -0.6  # the covariance is diag(j^-1.2)
    x = v + std * rng.standard_normal((n, FEATURES))
    return x.astype(np.float32), (x @ w + b).argmax(axis=1)


# -- text ----------------------------------------------------------------------------------------------------------

SYMBOLS = string.ascii_letters + string.digits + string.punctuation + " \n"  # agreed upon, not counted; then any other
Context = Annotated[int, Field(ge=1, le=512, description="characters that a model sees")]
Stride = Annotated[Count, about("characters between samples")]
Smallest = Annotated[Count, about("number of characters below which a topic is left out")]


def topics(folder: Path, seed: int, /, context: Context = 24, stride: Stride = 4, smallest: Smallest = 2000) -> Dataset:
    """The next character of Python's help texts, 97 symbols, a client for each topic; no download.

    Samples are `context` symbols [context] int64 and the symbol that follows, `stride` characters apart; the first 90 %
    of a topic's text train and the rest test. The text is that of the Python that runs: 34 topics and 424,605
    characters in 3.11.7, others in other versions, so that their figures do not compare. `folder` and `seed` are not
    used.

    Raises:
        UserError: no topic is as long as the options ask for.
    """
    from pydoc_data.topics import topics as texts  # half a megabyte

    long = {name: text for name, text in sorted(texts.items()) if len(text) >= max(smallest, 4 * (context + stride))}
    if not long:
        raise UserError(
            f"data topics: no topic has {smallest} characters and {context} of context; lower these options"
        )
    train, test = [], []
    for text in long.values():
        code = encode(text)
        cut = int(TRAIN_SHARE * len(code))
        train.append(windows(code[:cut], context, stride))
        test.append(windows(code[cut:], context, stride))
    data = _side_by_side("topics", train, test, len(SYMBOLS) + 1)
    return data._replace(client_names=list(long), output_names=[*SYMBOLS, "other"])


def encode(text: str) -> np.ndarray:
    """The symbols [n] int64 of a text."""
    place = {symbol: k for k, symbol in enumerate(SYMBOLS)}
    return np.array([place.get(character, len(SYMBOLS)) for character in text], np.int64)


def windows(code: np.ndarray, context: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Contexts [n, context] and the symbols [n] that follow them."""
    whole = np.lib.stride_tricks.sliding_window_view(code, context + 1)[::stride]
    return np.ascontiguousarray(whole[:, :-1]), whole[:, -1].copy()
