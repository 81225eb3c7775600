"""What runs a round: the same result from each, at another speed or over another way."""

from fedconcord.execution.engines.base import Abilities, Engine
from fedconcord.execution.engines.driver import run_round
from fedconcord.execution.engines.serial import Serial
from fedconcord.execution.engines.stacked import Stacked, with_choices
from fedconcord.execution.engines.wire import Wire, traffic_of

__all__ = ["Abilities", "Engine", "Serial", "Stacked", "Wire", "run_round", "traffic_of", "with_choices"]
