"""The contract between a method, the engines that run it and the problems it is run on: all that these files define.

Beside it stand, each by its own name, the files that only some need: identities, keyed randomness, flat vectors.
"""

from fedconcord.core.contract import *
from fedconcord.core.facts import *
from fedconcord.core.objective import *
from fedconcord.core.pieces import *
from fedconcord.core.round import *
from fedconcord.core.trees import *
