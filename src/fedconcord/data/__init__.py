"""Data sets by name. To add one: write `name(folder, seed, /, options) -> Dataset` and list it here.

The program gives the positional arguments (where files lie, the run's seed); the others are the user's options, each
annotated with its range and meaning. The first line of the docstring is what `fedconcord list data` prints.
"""

from __future__ import annotations

from collections.abc import Callable

from fedconcord.data.cifar import cifar10, cifar100
from fedconcord.data.dataset import Dataset
from fedconcord.data.digits import digits
from fedconcord.data.esr import esr
from fedconcord.data.har import har
from fedconcord.data.mnist import fmnist, mnist
from fedconcord.data.published import data_folder
from fedconcord.data.synthetic import synthetic
from fedconcord.data.topics import topics

DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "mnist": mnist,
    "fmnist": fmnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "har": har,
    "esr": esr,
    "synthetic": synthetic,
    "topics": topics,
}
"""Data sets by name; a factory takes the folder of the data, the seed, then its parameters."""

__all__ = [
    "DATASETS",
    "Dataset",
    "cifar10",
    "cifar100",
    "data_folder",
    "digits",
    "esr",
    "fmnist",
    "har",
    "mnist",
    "synthetic",
]
