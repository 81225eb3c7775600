"""Which methods to tune first in a federation, with which settings, and why: rules over what can be seen of it."""

from fedconcord.insight.advice.choice import Advice, Named, Rule, Wishes, advise, federation_of, rules
from fedconcord.insight.advice.facts import FederationFacts, facts_of
from fedconcord.insight.advice.words import File, as_json, command, lines, lines_of

__all__ = [
    "Advice",
    "FederationFacts",
    "File",
    "Named",
    "Rule",
    "Wishes",
    "advise",
    "as_json",
    "command",
    "facts_of",
    "federation_of",
    "lines",
    "lines_of",
    "rules",
]
