"""What runs a round: the same result from each, at another speed or over another way."""

from fedconcord.engines.base import Engine
from fedconcord.engines.serial import Serial
from fedconcord.engines.stacked import Stacked
from fedconcord.engines.wire import Wire

__all__ = ["Engine", "Serial", "Stacked", "Wire"]
