"""The hostile clients of a simulation, from its settings."""

from __future__ import annotations

import numpy as np

from fedconcord.basis.errors import UserError
from fedconcord.core import Algorithm
from fedconcord.data import Dataset
from fedconcord.settings.parts import part
from fedconcord.settings.settings import Config
from fedconcord.transforms.hostile import Attack, chosen, with_hostile


def liars(config: Config) -> str | None:
    """The attack of the settings, if it is one on labels."""
    written = config.hostile
    return None if written is None or part("hostile", written).labels is None else written


def lied(dataset: Dataset, parts: list[np.ndarray], seed: int, written: str) -> Dataset:
    """The data with what hostile clients say of their labels; parts: the samples of each client [n_i].

    Raises:
        UserError: the data have no classes, or lie nowhere.
    """
    if dataset.target != "class" or dataset.streams is not None:
        raise UserError(
            f"hostile {written} lies about the classes of samples in memory, and these data have none; use another "
            "attack"
        )
    attack: Attack = part("hostile", written)
    assert attack.labels is not None
    labels = dataset.train_y.copy()
    for i in chosen(attack, seed, len(parts)):
        labels[parts[i]] = attack.labels(labels[parts[i]], dataset.classes)
    return dataset._replace(train_y=labels)


def among(algorithm: Algorithm, config: Config, clients: int) -> tuple[Algorithm, tuple[int, ...]]:
    """The method among so many clients, some of them hostile, and who they are."""
    if config.hostile is None:
        return algorithm, ()
    attack: Attack = part("hostile", config.hostile)
    seed = config.seed or 0
    return with_hostile(algorithm, attack, seed, clients), chosen(attack, seed, clients)
