"""Engines run rounds; they name no method."""

from fedconcord.engines.base import Engine, Outcome
from fedconcord.engines.serial import Serial
from fedconcord.engines.stacked import Stacked

__all__ = ["Engine", "Outcome", "Serial", "Stacked"]
