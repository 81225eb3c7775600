"""Federated optimisation with unequal clients."""

__version__ = "0.1.0"
