"""Conformance suites for methods: ours and yours."""

from fedconcord.testing.check import CheckFailedError, algorithm_checks, check_algorithm

__all__ = ["CheckFailedError", "algorithm_checks", "check_algorithm"]
