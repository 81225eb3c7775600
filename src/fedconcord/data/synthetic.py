"""Synthetic(alpha, beta) of FedProx (Li et al., MLSys 2020; generator of litian96/FedProx)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np

from fedconcord.basis.errors import UserError
from fedconcord.basis.parameters import Count, NotNegative, about
from fedconcord.core.rng import Purpose, generator, sweep
from fedconcord.data.dataset import Dataset, Streams

FEATURES, CLASSES = 60, 10
TRAIN_SHARE = 0.9
IN_MEMORY = 2**30  # bytes of training samples; with more, clients' samples are drawn when they take part
JUDGED = 200  # clients whose test samples judge the model then


def synthetic(
    folder: Path,
    seed: int,
    /,
    alpha: Annotated[NotNegative, about("spread of the clients' true models; with 0 they are drawn alike")] = 1.0,
    beta: Annotated[NotNegative, about("spread of the clients' feature means; with 0 they are drawn alike")] = 1.0,
    clients: Annotated[Count, about("number of clients N")] = 30,
) -> Dataset:
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
    sizes = np.fromiter((_size(rng) for rng in sweep(seed, Purpose.DATA, clients)), np.int64, clients)
    ends = np.cumsum((TRAIN_SHARE * sizes).astype(np.int64))
    streams = None
    if 4 * FEATURES * ends[-1] > IN_MEMORY:

        def draw(client: int) -> tuple[np.ndarray, np.ndarray]:
            x, y = _client(seed, client, alpha, beta)
            cut = int(TRAIN_SHARE * len(y))
            return x[:cut], y[:cut]

        streams = Streams(np.concatenate([[0], ends]), draw)
    drawn = [_client(seed, i, alpha, beta) for i in range(clients if streams is None else min(clients, JUDGED))]
    cuts = [int(TRAIN_SHARE * len(y)) for _, y in drawn]
    pairs = list(zip(drawn, cuts, strict=True))
    return Dataset(
        "synthetic",
        np.concatenate([x[:cut] for (x, _), cut in pairs]),
        np.concatenate([y[:cut] for (_, y), cut in pairs]),
        np.concatenate([x[cut:] for (x, _), cut in pairs]),
        np.concatenate([y[cut:] for (_, y), cut in pairs]),
        CLASSES,
        natural=[np.arange(end - cut, end) for end, cut in zip(ends, cuts, strict=False)],
        streams=streams,
    )


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
