"""The methods. To add one: a file with a factory, and its line here."""

from collections.abc import Callable

from fedconcord.algorithms.afedpd import afedpd
from fedconcord.algorithms.fedadmm import fedadmm
from fedconcord.algorithms.fedavg import fedavg, fedprox, fedsgd
from fedconcord.algorithms.feddyn import feddyn
from fedconcord.algorithms.fednova import fednova
from fedconcord.algorithms.fedvra import fedvra
from fedconcord.algorithms.scaffold import scaffold
from fedconcord.core import Algorithm

METHODS: dict[str, Callable[..., Algorithm]] = {
    "fedsgd": fedsgd,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "fednova": fednova,
    "feddyn": feddyn,
    "fedadmm": fedadmm,
    "fedvra": fedvra,
    "afedpd": afedpd,
}
