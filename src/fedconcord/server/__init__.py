"""The server's own optimiser, an axis of its own: any method's step becomes the pseudo-gradient of the optimiser."""

from collections.abc import Callable

from fedconcord.server.optimizers import Optimizer, adagrad, adam, momentum, sgd, with_server, yogi

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": sgd,
    "momentum": momentum,
    "adam": adam,
    "yogi": yogi,
    "adagrad": adagrad,
}

__all__ = ["OPTIMIZERS", "Optimizer", "adagrad", "adam", "momentum", "sgd", "with_server", "yogi"]
