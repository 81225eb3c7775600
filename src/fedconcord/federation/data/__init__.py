"""Data sets by name. To add one: write `name(folder, seed, /, options) -> Dataset` and list it here.

The program gives the positional arguments (where files lie, the run's seed); the others are the user's options, each
annotated with its range and meaning. The first line of the docstring is what `fedconcord list data` prints.
"""

from __future__ import annotations

from collections.abc import Callable

from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.data.offline import digits, synthetic, topics
from fedconcord.federation.data.pixels import cifar10, cifar100, fmnist, mnist
from fedconcord.federation.data.uci import esr, har
from fedconcord.support.factories import by_name

DATASETS: dict[str, Callable[..., Dataset]] = by_name(
    digits, mnist, fmnist, cifar10, cifar100, har, esr, synthetic, topics
)
"""Data sets by name; a factory takes the folder of the data, the seed, then its parameters."""
