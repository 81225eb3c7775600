"""Methods tuned side by side: equal budgets of rounds, successive halving, then fresh seeds for the winners."""

from fedconcord.tuning.plan import Asked, Tuning, plan_resumed_tuning, plan_tuning, sentences
from fedconcord.tuning.whole import InterruptedSearchError, Lines, Tuned, TunedMethod, Watch, tuned

__all__ = [
    "Asked",
    "InterruptedSearchError",
    "Lines",
    "Tuned",
    "TunedMethod",
    "Tuning",
    "Watch",
    "plan_resumed_tuning",
    "plan_tuning",
    "sentences",
    "tuned",
]
