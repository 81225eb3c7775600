"""What runs a round: the same result from each, at another speed or over another way."""

from fedconcord.engines.base import Abilities, Engine
from fedconcord.engines.driver import run_round
from fedconcord.engines.serial import Serial
from fedconcord.engines.stacked import Stacked, with_choices
from fedconcord.engines.wire import Wire, traffic_of

__all__ = ["Abilities", "Engine", "Serial", "Stacked", "Wire", "run_round", "traffic_of", "with_choices"]
