"""What a client's samples lack or have besides, on top of any partition: labels, and features that differ.

A skew of features takes the samples x [n_i, *shape] float32 of one client, scaled as the model gets them, the client's
number, the number of clients and a generator keyed by (seed, client), which the program gives, and the user's options.
It returns new samples of the same shape and never looks at labels. It is applied once, to a client's training samples,
and so to what is held out of them for validation as well; the test set stays as it is published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from fedconcord.method.contract.rng import Purpose, generator
from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name
from fedconcord.support.parameters import Fraction, Positive, about

LABEL_STREAM, FEATURE_STREAM = 1, 2  # of the partition's purpose, which itself draws from round 0
Kept = Annotated[Fraction, about("fraction of each client's samples that keep their label")]
Turn = Annotated[float, Field(gt=-360, lt=360, description="angle in degrees between one group and the next")]
GROUPS = "number of groups of clients; group g is turned by g times the angle"
Groups = Annotated[int, Field(gt=1, description=GROUPS)]
Std = Annotated[Positive, about("standard deviation of the noise at the last client, in scaled units")]
Low = Annotated[Positive, about("smallest gain")]
High = Annotated[Positive, about("largest gain")]


def labelled(parts: Sequence[np.ndarray], seed: int, /, fraction: Kept = 0.1) -> list[np.ndarray]:
    """A fraction of each client's samples, drawn uniformly, keep their label (FedVRA-U: 10 %); rounded to the nearest.

    Returns a bool array [n_i] for each client, True where there is a label.

    Raises:
        UserError: a client would keep none.
    """
    masks = []
    for i, part in enumerate(parts):
        count = round(fraction * len(part))
        if count == 0:
            raise UserError(
                f"labelled({fraction:g}) leaves client {i} without a label, as it has {len(part)} samples; raise the "
                "fraction, or use fewer clients or a more balanced partition"
            )
        mask = np.zeros(len(part), bool)
        mask[generator(seed, Purpose.PARTITION, LABEL_STREAM, i).permutation(len(part))[:count]] = True
        masks.append(mask)
    return masks


LABELS: dict[str, Callable[..., list[np.ndarray]]] = by_name(labelled)


def rotate(
    x: np.ndarray, client: int, n_clients: int, rng: np.random.Generator, /, degrees: Turn = 90.0, groups: Groups = 4
) -> np.ndarray:
    """Images turned anticlockwise, group by group: client i by (i mod groups) * degrees.

    90 and 4 are Rotated MNIST as in IFCA (Ghosh et al., NeurIPS 2020). Multiples of 90 degrees are exact for square
    images; others are interpolated linearly, and what turns in from outside repeats the edge.

    Raises:
        UserError: the samples are no images [channels, height, width].
    """
    if x.ndim != 4:
        raise UserError(
            f"skew rotate turns images [channels, height, width], and the samples here have the shape {x.shape[1:]}; "
            "use noise or scale"
        )
    angle = (client % groups) * degrees % 360
    if angle % 90 == 0 and (angle % 180 == 0 or x.shape[2] == x.shape[3]):
        return np.ascontiguousarray(np.rot90(x, int(angle // 90), axes=(2, 3)))
    from scipy import ndimage  # type: ignore[import-untyped]  # costs a tenth of a second, which other runs need not pay

    turned: np.ndarray = ndimage.rotate(x, angle, axes=(3, 2), reshape=False, order=1, mode="nearest")
    return turned


def noise(x: np.ndarray, client: int, n_clients: int, rng: np.random.Generator, /, std: Std = 1.0) -> np.ndarray:
    """Gaussian noise that grows with the client: client i = 0, .., N-1 has the variance std^2 (i + 1) / N.

    Source: Li, Diao, Chen, He, ICDE 2022 ("Non-IID Data Silos"), noise-based feature imbalance.
    """
    level = np.float32(std * np.sqrt((client + 1) / n_clients))
    noisy: np.ndarray = x + level * rng.standard_normal(x.shape, np.float32)
    return noisy


def scale(
    x: np.ndarray, client: int, n_clients: int, rng: np.random.Generator, /, low: Low = 0.5, high: High = 2.0
) -> np.ndarray:
    """A gain for each client: its scaled samples times a factor, log-uniform from low to high.

    Raises:
        UserError: low is above high.
    """
    if low > high:
        raise UserError(f"skew scale needs low <= high, given low = {low:g} and high = {high:g}")
    gain: np.ndarray = x * np.float32(np.exp(rng.uniform(np.log(low), np.log(high))))
    return gain


FEATURES: dict[str, Callable[..., np.ndarray]] = by_name(rotate, noise, scale)


def skewed(
    x: np.ndarray,
    parts: Sequence[np.ndarray],
    seed: int,
    skew: Callable[[np.ndarray, int, int, np.random.Generator], np.ndarray],
) -> np.ndarray:
    """A copy of the training samples [n, *shape] in which `skew` has changed those of every client."""
    new = x.copy()
    for i, part in enumerate(parts):
        new[part] = skew(x[part], i, len(parts), generator(seed, Purpose.PARTITION, FEATURE_STREAM, i))
    return new
