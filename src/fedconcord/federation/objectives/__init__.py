"""What a client may be asked of its f_i, and how a model is judged."""

from collections.abc import Callable

from fedconcord.federation.objectives.linear import (
    lasso_diabetes,
    logistic_cancer,
    ridge_diabetes,
    softmax_digits,
    sparse_digits,
)
from fedconcord.federation.objectives.quadratic import Matrix, Quadratic, fednova_quadratics, low_rank, quadratics
from fedconcord.federation.objectives.regularisers import Regularised
from fedconcord.federation.objectives.supervised import Supervised
from fedconcord.method.contract import Problem
from fedconcord.support.factories import by_name

PROBLEMS: dict[str, Callable[..., Problem]] = by_name(
    *(quadratics, fednova_quadratics, ridge_diabetes, lasso_diabetes, softmax_digits, logistic_cancer, sparse_digits),
    low_rank,
)
"""Problems with clients of their own, by name; a factory takes seed, clients, dtype and device, then its parameters."""

__all__ = ["PROBLEMS", "Matrix", "Quadratic", "Regularised", "Supervised", "fednova_quadratics", "quadratics"]
