"""How often a model is judged, and on which samples: rules on counted work and samples, for what settings leave open.

A clock would give the same job other files on another day, so samples are counted. A sample that goes forward costs
about a third of one that is trained on: evaluations that put at most half as many samples forward as were trained on
since the last one cost a sixth of the training. The methods of a comparison share what its own settings come to, so
that their rows are of the same rounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedconcord.federation.objectives import Regularised, Supervised
from fedconcord.federation.objectives.persons import Persons
from fedconcord.federation.objectives.semi import SemiSupervised
from fedconcord.federation.objectives.streamed import Streamed
from fedconcord.federation.participation.work import epoch_steps
from fedconcord.method.contract import Problem
from fedconcord.study.settings.methods import read_method
from fedconcord.study.settings.parts import batch_of, work_of
from fedconcord.study.settings.problem import first_problem, sizes_of
from fedconcord.study.settings.settings import MOST_TRAIN_SAMPLES, Config, EvalSettings
from fedconcord.support.errors import UserError
from fedconcord.support.grammar import Spec

LEAST_TRAIN_SAMPLES = 2_000
FREE = 2**30  # multiplications of an evaluation, about 1/50 s of a core, that nobody waits for
SHARE, MORE = 0.1, 0.2  # set apart for validation; the latter where clients are compared, or have models of their own
FEWEST = 10  # validation samples of the median client
DRAWN = 100  # clients whose drawn work stands for all


def held(config: Config) -> tuple[Config, str | None]:
    """The settings with `validation` as a number or none, and a sentence where the rule was at work.

    Raises:
        UserError: the data cannot be read.
    """
    if config.validation != "auto":
        return config, None
    without = config.model_copy(update={"validation": None})
    is_judged = config.eval.clients is not False or config.eval.personalise is not None
    has_samples = config.partition is not None and config.task is None
    sizes = sizes_of(config) if has_samples and is_judged else None
    if sizes is None:
        return without, None
    texts = config.methods or [str(Spec(config.method or "fedavg", (), config.algorithm))]
    # a test set of all clients' samples is no measure of a model a client, which some methods answer with
    is_personal = config.eval.personalise is not None or has_own_models(config, texts)
    needs_more = bool(config.baselines) or is_personal
    share, has = MORE if needs_more else SHARE, round(float(np.median(sizes)))
    apart = round(float(np.median(np.round(share * sizes))))
    if not needs_more and apart < FEWEST:
        return without, (
            f"clients are judged on the samples they train on: the median client has {has:,} samples, of which "
            f"{share:g} are {apart}; validation=0.2 sets some apart anyway"
        )
    few = "" if apart >= FEWEST else ", few to tell clients apart"
    return config.model_copy(update={"validation": share}), (
        f"each client sets apart {share:g} of its samples to be judged on, which nothing trains on: {apart:,} of the "
        f"median client's {has:,}{few}; validation=none trains on all"
    )


def check_ranked(config: Config) -> None:
    """Refuse a comparison that nothing could rank.

    Raises:
        UserError: a method answers with a model a client, and clients set no samples apart.
    """
    if config.validation is None and has_own_models(config, config.methods or []):
        raise UserError(
            "a comparison with personalised methods is ranked on clients' held-out samples, and there are none; set "
            "validation=0.2"
        )


def has_own_models(config: Config, methods: Sequence[str]) -> bool:
    """Whether one of the methods answers with a model a client."""
    calls = [read_method(text) for text in methods]
    has_parts = (more.get("local.private", config.local.private) is not None for _, more in calls)
    return config.norm == "silo" or any(has_parts) or any(call().client_model is not None for call, _ in calls)


class Judged(NamedTuple):
    """What one evaluation puts forward."""

    tested: int  # test samples, and those set apart for validation
    trained: int  # samples that there are to train on
    multiplications: int  # of a sample
    everyone: int  # samples of the look at all clients beyond an evaluation's


def judged(config: Config) -> tuple[Config, str | None]:
    """The settings with `eval.every` and `eval.train_samples` as numbers, and why, where the rule was at work.

    Raises:
        UserError: the data cannot be read.
    """
    measures = config.eval
    if measures.every is not None and measures.train_samples is not None:
        return config, None
    problem = first_problem(config)
    per_round, of = samples_a_round(config, problem), judges(problem)
    settings = rule(of, per_round, measures)
    forward = 0 if of is None else of.tested + min(settings.train_samples or 0, of.trained)
    with_numbers = config.model_copy(update={"eval": settings})
    if (settings.every, settings.train_samples) == (measures.every or 1, measures.train_samples or MOST_TRAIN_SAMPLES):
        return with_numbers, None
    how_often = "every round" if settings.every == 1 else f"every {settings.every} rounds"
    return with_numbers, (
        f"evaluates {how_often}, the train loss on {settings.train_samples:,} samples: an evaluation puts {forward:,} "
        f"samples forward and a round trains on about {round(per_round):,}; eval.every and eval.train_samples change it"
    )


def rule(of: Judged | None, per_round: float, settings: EvalSettings) -> EvalSettings:
    """The settings with numbers, for rounds that train on so many samples.

    First the sample of the train loss shrinks, then the rounds between evaluations grow, to 1, 2, 5, 10, 20 ... But a
    target, whose round is asked for, and patience, which counts evaluations, have one every round.
    """
    every, train_samples = settings.every or 1, settings.train_samples or MOST_TRAIN_SAMPLES
    if of is not None and of.multiplications * (of.tested + min(train_samples, of.trained)) > FREE:
        if settings.train_samples is None:
            room = int(every * per_round / 2) - of.tested
            train_samples = min(max(room, LEAST_TRAIN_SAMPLES), MOST_TRAIN_SAMPLES)
        if settings.every is None and settings.target is None and settings.patience is None:
            every = _round_up(2 * (of.tested + min(train_samples, of.trained)) / per_round)
    return settings.model_copy(update={"every": every, "train_samples": train_samples})


def looks(config: Config, problem: Problem) -> bool:
    """Whether all clients are looked at after the last round, of settings with numbers.

    What is asked for; else if the look costs little, or at most half of what the evaluations of all rounds do.
    """
    settings, of = config.eval, judges(problem)
    if settings.clients is not None or of is None:
        return settings.clients is not False
    assert settings.every is not None
    assert settings.train_samples is not None
    evaluated = (config.rounds // settings.every + 1) * (of.tested + min(settings.train_samples, of.trained))
    return of.multiplications * of.everyone <= FREE or of.everyone <= evaluated / 2


def evaluation(config: Config, problem: Problem, why: str | None) -> dict[str, object]:
    """What is said of how models are judged, by settings with numbers, and why where counted work decided."""
    clients = looks(config, problem)
    if config.eval.clients is None and not clients:
        sentence = "leaves out the look at all clients after the last round: it costs more than half of all evaluations"
        why = "; ".join(filter(None, [why, f"{sentence}; eval.clients=true asks for it"]))
    facts: dict[str, object] = {"every": config.eval.every, "train_samples": config.eval.train_samples}
    return {**facts, "clients": clients, **({} if why is None else {"why": why})}


def judges(problem: Problem) -> Judged | None:
    """What an evaluation puts forward; None where it is no model's outputs."""
    smooth = problem.smooth if isinstance(problem, Regularised) else problem
    smooth = smooth.rows if isinstance(smooth, Persons) else smooth
    inner = smooth.judged if isinstance(smooth, Streamed) else smooth
    inner = inner.base if isinstance(inner, SemiSupervised) else inner
    if not isinstance(inner, Supervised):
        return None
    apart = len(inner.judged.y) if inner.judged.split == "validation" else 0
    everyone = len(inner.y) if inner is smooth and not apart else 0
    measured = len(inner.y) * inner.forward.passes(len(inner.y), inner.replaced)  # for the statistics of layers
    return Judged(len(inner.test_y) + apart + measured, len(inner.y), inner.forward.cost.multiplications, everyone)


def samples_a_round(config: Config, problem: Problem) -> float:
    """Samples that the clients of a round train on, about: passes or steps of the job's local settings, which methods
    may have of their own; work in simulated seconds counts as one pass."""
    local, samples = config.local, float(problem.roster.samples.mean())
    setting = local.steps if local.steps is not None else local.epochs if local.seconds is None else 1
    work, n = work_of(setting or 1), min(problem.roster.n, DRAWN)
    amount = float(np.mean([work(0, 0, client) for client in range(n)]))
    if local.steps is None:
        return config.cohort * amount * samples
    return config.cohort * amount * samples / epoch_steps(round(samples), batch_of(local.batch_size))


def _round_up(value: float) -> int:
    """The least of 1, 2, 5, 10, 20, 50 ... that is no less."""
    return next(least for scale in itertools.count() for step in (1, 2, 5) if (least := step * int(10**scale)) >= value)
