"""Methods tuned side by side: equal budgets of rounds, successive halving, then fresh seeds for the winners."""

from fedconcord.study.search.plan import SearchSpec, Tuning, plan_resumed_tuning, plan_tuning, sentences
from fedconcord.study.search.search import Tuned, TunedMethod, tuned

__all__ = ["SearchSpec", "Tuned", "TunedMethod", "Tuning", "plan_resumed_tuning", "plan_tuning", "sentences", "tuned"]
