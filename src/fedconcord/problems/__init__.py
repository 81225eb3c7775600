"""What a client may be asked of its f_i."""

from collections.abc import Callable

from fedconcord.core import Problem
from fedconcord.problems.quadratic import Quadratic, fednova_quadratics, quadratics
from fedconcord.problems.supervised import Supervised

PROBLEMS: dict[str, Callable[..., Problem]] = {
    "quadratics": quadratics,
    "fednova_quadratics": fednova_quadratics,
}

__all__ = ["PROBLEMS", "Quadratic", "Supervised", "fednova_quadratics", "quadratics"]
