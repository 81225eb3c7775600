"""Whether clients set samples apart on which they are judged: a rule on how many they have, for what is left open."""

from __future__ import annotations

import numpy as np

from fedconcord.basis.grammar import Spec
from fedconcord.settings.job import sizes_of
from fedconcord.settings.methods import read_method
from fedconcord.settings.settings import Config

SHARE, MORE = 0.1, 0.2  # the latter where clients are compared, or have models of their own
FEWEST = 10  # held-out samples of the median client


def held(config: Config) -> tuple[Config, str | None]:
    """The settings with `validation` as a number or none, and a sentence where the rule was at work.

    Raises:
        UserError: the data cannot be read.
    """
    if config.validation != "auto":
        return config, None
    none = config.model_copy(update={"validation": None})
    judged = config.eval.clients is not False or config.eval.personalise is not None
    if config.partition is None or config.task is not None or not judged:
        return none, None
    sizes = sizes_of(config)
    if sizes is None:
        return none, None
    asked = bool(config.baselines) or config.eval.personalise is not None or _personal(config)
    share, has = MORE if asked else SHARE, round(float(np.median(sizes)))
    apart = round(float(np.median(np.round(share * sizes))))
    if not asked and apart < FEWEST:
        return none, (
            f"clients are judged on the samples they train on: the median client has {has:,} samples, of which "
            f"{share:g} are {apart}; validation=0.2 sets some apart anyway"
        )
    few = "" if apart >= FEWEST else ", few to tell clients apart"
    return config.model_copy(update={"validation": share}), (
        f"each client sets apart {share:g} of its samples to be judged on, which nothing trains on: {apart:,} of the "
        f"median client's {has:,}{few}; validation=none trains on all"
    )


def _personal(config: Config) -> bool:
    """Whether a method answers with a model a client, for which a test set of all clients' is no measure."""
    texts = config.methods or [str(Spec(config.method or "fedavg", (), config.algorithm))]
    return any(read_method(text)[0]().own is not None for text in texts)
