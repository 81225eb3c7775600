"""The contract between a method, the engines that run it and the problems it is run on: all that these files define.

Beside it stand, each by its own name, the files that only some need: identities, keyed randomness, flat vectors.
"""

from fedconcord.method.contract.contract import *
from fedconcord.method.contract.facts import *
from fedconcord.method.contract.nested import *
from fedconcord.method.contract.objective import *
from fedconcord.method.contract.pieces import *
from fedconcord.method.contract.round import *
from fedconcord.method.contract.terms import *
from fedconcord.method.contract.trees import *
