"""Conformance suites for methods and local optimisers: ours and yours."""

from fedconcord.testing.asynchronous import check_asynchronous
from fedconcord.testing.check import CheckFailedError, algorithm_checks, check_algorithm
from fedconcord.testing.optimiser import check_optimiser, optimiser_checks

__all__ = [
    "CheckFailedError",
    "algorithm_checks",
    "check_algorithm",
    "check_asynchronous",
    "check_optimiser",
    "optimiser_checks",
]
