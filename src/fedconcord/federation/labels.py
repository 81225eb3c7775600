"""Which of a client's samples keep their label, on top of any partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np

from fedconcord.basis.errors import UserError
from fedconcord.basis.parameters import Fraction, about
from fedconcord.core.rng import Purpose, generator

STREAM = 1  # the partition itself draws from round 0 of its purpose


def labelled(
    parts: Sequence[np.ndarray],
    seed: int,
    /,
    fraction: Annotated[Fraction, about("fraction of each client's samples that keep their label")] = 0.1,
) -> list[np.ndarray]:
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
        mask[generator(seed, Purpose.PARTITION, STREAM, i).permutation(len(part))[:count]] = True
        masks.append(mask)
    return masks


LABELS: dict[str, Callable[..., list[np.ndarray]]] = {"labelled": labelled}
