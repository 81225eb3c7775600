"""What a client may be asked of its f_i."""

from collections.abc import Callable

from fedconcord.core import Problem
from fedconcord.problems.linear import lasso_diabetes, logistic_cancer, ridge_diabetes, softmax_digits, sparse_digits
from fedconcord.problems.matrix import Matrix, low_rank
from fedconcord.problems.quadratic import Quadratic, fednova_quadratics, quadratics
from fedconcord.problems.regularised import Regularised
from fedconcord.problems.supervised import Supervised

PROBLEMS: dict[str, Callable[..., Problem]] = {
    "quadratics": quadratics,
    "fednova_quadratics": fednova_quadratics,
    "ridge_diabetes": ridge_diabetes,
    "lasso_diabetes": lasso_diabetes,
    "softmax_digits": softmax_digits,
    "logistic_cancer": logistic_cancer,
    "sparse_digits": sparse_digits,
    "low_rank": low_rank,
}
"""Problems with clients of their own, by name; a factory takes seed, clients, dtype and device, then its parameters."""

__all__ = ["PROBLEMS", "Matrix", "Quadratic", "Regularised", "Supervised", "fednova_quadratics", "quadratics"]
