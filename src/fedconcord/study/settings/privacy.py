"""The privacy of one run: the noise that its budget asks for, what it spends, what its settings may not release."""

from __future__ import annotations

import numpy as np

from fedconcord.execution.job import accountant
from fedconcord.execution.job.accountant import KEYED, Budget
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.judging import supervised
from fedconcord.federation.objectives.persons import Persons
from fedconcord.federation.participation.sampling import Sampler, likely_rounds, most_rounds
from fedconcord.federation.participation.work import epoch_steps, shares_of
from fedconcord.method.contract import Algorithm, Problem
from fedconcord.method.contract.grid import too_little
from fedconcord.method.step.noise import nodes
from fedconcord.method.wrappers.factors import FACTORS
from fedconcord.method.wrappers.privacy import Adaptive, with_adaptive_privacy, with_privacy
from fedconcord.method.wrappers.samples import with_sample_privacy
from fedconcord.study.settings.contents import kind_of
from fedconcord.study.settings.parts import batch_of, clipping_of, method_of, most_work, part
from fedconcord.study.settings.settings import Config, PrivacySettings
from fedconcord.support import grammar
from fedconcord.support.errors import UserError


def calibrated(config: Config) -> Config:
    """The settings of one run with the noise as a number, where its budget finds it.

    Raises:
        UserError: privacy is given in part, or beside something that releases what is not protected.
    """
    privacy = config.privacy
    size = config.local.batch_size
    if (unit := privacy.unit) != "client" and (privacy.clip is None or shares_of(batch_of(size)) is None):
        raise UserError(
            f"privacy.unit {unit} needs a bound on a {unit}'s gradient and batches that each {unit} is in by its own "
            f"coin, or once in so many steps, given privacy.clip {grammar.text(privacy.clip)} and local.batch_size "
            f"{size}; give all three, as in --dp-unit {unit} --batch-size 'poisson(0.05)' --dp-clip 1, or, without "
            "coins, 'disjoint(20)'"
        )
    if privacy.clip is None:
        keys, usual = ("noise", "epsilon", "client_clip", "client_noise", "delta", "kind"), type(privacy)()
        lonely = next((key for key in keys if getattr(privacy, key) != getattr(usual, key)), None)
        if lonely is not None:
            raise UserError(
                f"privacy.{lonely} {grammar.text(getattr(privacy, lonely))} needs a bound on what a client sends; give "
                "privacy.clip too, as in --dp-clip 1"
            )
        return config
    if privacy.noise is None and privacy.epsilon is None:
        raise UserError(
            f"privacy.clip {grammar.text(privacy.clip)} alone protects nobody; give a budget as in --epsilon 8, or "
            "--dp-noise"
        )
    _refuse(config)
    coin, steps = _coin(config), _steps(config)
    if privacy.noise is None:
        assert privacy.epsilon is not None
        times = steps * _likely(config)
        noise = accountant.calibrate(privacy.epsilon, privacy.delta, privacy.kind, coin, times)
        privacy = privacy.model_copy(update={"noise": noise})
    elif (reason := too_little(privacy.noise)) is not None:
        raise UserError(reason)
    elif privacy.noise == 0 and privacy.epsilon is not None:
        raise UserError(f"privacy.noise 0 meets no epsilon, given {privacy.epsilon:g}; leave one of them out")
    config = config.model_copy(update={"privacy": privacy})
    budget = budget_of(config)
    one = 0.0 if budget is None else budget.spending.epsilon(1)  # without a limit too: a missing library is said here
    if privacy.epsilon is not None and one > privacy.epsilon:
        raise UserError(
            f"one round with privacy.noise {privacy.noise:g} spends epsilon {one:.4g}, more than privacy.epsilon "
            f"{privacy.epsilon:g}; give more noise, or leave it out"
        )
    return config


def _refuse(config: Config) -> None:
    privacy, measures = config.privacy, config.eval
    if privacy.unit != "client":
        _refuse_of_samples(config)
    if isinstance(privacy.clip, str) and privacy.kind == "local":
        raise UserError(
            f"privacy.clip {privacy.clip} follows how many messages are within the clip, and privacy.kind local would "
            "drown that in noise on each client's yes or no; use central, or a number for the clip"
        )
    _refuse_of_clients(config)
    for key in ("aggregate", "hostile"):
        text = getattr(config, key)
        if text is not None and protects_clients(config) and grammar.parse(text).name not in FACTORS:  # which say so
            raise UserError(
                f"{key} {text} takes the contributions of clients apart, and privacy covers their sum "
                "alone; leave one of them out"
            )
    if protects_clients(config) and privacy.delta >= 1 / config.clients:
        raise UserError(
            f"privacy.delta {privacy.delta:g} lets one of {config.clients} clients be published whole; give less than "
            f"{1 / config.clients:.2g}, usually far less"
        )
    if measures.personalise is not None:
        raise UserError(
            f"eval.personalise {measures.personalise} reports what clients' samples do to the model, which privacy "
            "does not cover; leave it out"
        )
    watch = measures.watch or ("validation_loss" if config.validation is not None else "test_loss")
    if measures.patience is not None and not watch.startswith("test_"):
        raise UserError(
            f"eval.patience chooses the model by {watch}, of clients' own samples, which privacy does not cover; give "
            "eval.watch=test_loss, or leave it out"
        )


def protects_clients(config: Config) -> bool:
    """Whether clients are protected, alone or beside their samples."""
    return config.privacy.unit == "client" or config.privacy.client_clip is not None


def _refuse_of_clients(config: Config) -> None:
    """Why clients cannot be protected beside their samples."""
    privacy = config.privacy
    pair = (privacy.client_clip, privacy.client_noise)
    if pair != (None, None) and (None in pair or privacy.unit == "client" or privacy.noise == 0):
        raise UserError(
            "privacy.client_clip and privacy.client_noise protect clients beside privacy.unit sample or person with "
            f"its noise, given {grammar.text(pair[0])} and {grammar.text(pair[1])}, unit {privacy.unit} and noise "
            f"{grammar.text(privacy.noise)}; give both there, or neither"
        )
    if privacy.client_noise is not None and (reason := too_little(privacy.client_noise)) is not None:
        raise UserError(reason)


def _refuse_of_samples(config: Config) -> None:
    """Why settings do not go with privacy of samples; of the method, `job.refusals` says it."""
    privacy, local = config.privacy, config.local
    if isinstance(privacy.clip, str):
        raise UserError(
            f"privacy.clip {privacy.clip} follows the norms of messages, and privacy.unit {privacy.unit} clips "
            "gradients; give a number"
        )
    if privacy.kind != "central":
        raise UserError(
            f"privacy.kind {privacy.kind} is of noise on messages, and with privacy.unit {privacy.unit} each client "
            "has noise in its steps; leave it out"
        )
    if local.seconds is not None:
        raise UserError(
            "local.seconds leaves open how many steps clients take, each of which spends privacy of samples; give "
            "local.epochs or local.steps"
        )
    if config.clock is not None:
        raise UserError(
            f"clock {config.clock} leaves open how often a client takes part, which spends privacy of samples; leave "
            "one of them out"
        )


def refuse_data(config: Config, problem: Problem) -> None:
    """Refuse data of one's own whose numbers were made with sums of the clients' samples, which nothing protects.

    Raises:
        UserError: they were.
    """
    inner, privacy = supervised(problem), config.privacy
    if privacy.unit != "client":
        most = int(problem.roster.samples.max())
        if privacy.delta >= 1 / most:
            raise UserError(
                f"privacy.delta {privacy.delta:g} lets one of a client's {most} {privacy.unit}s be published whole; "
                f"give less than {1 / most:.2g}, usually far less"
            )
        if inner is not None and inner.factor is not None:
            raise UserError(
                f"the loss {inner.loss_of.name} weighs samples by what the others of their client hold, which privacy "
                "of samples does not cover; use another loss, or privacy.unit client"
            )
    if privacy.clip is None or inner is None or kind_of(config.data) == "named":
        return
    if str((inner.data.preprocessing or {}).get("statistics", "")).startswith("sums"):
        raise UserError(
            f"the columns of {config.data} are scaled by exact sums over the clients, which privacy does not cover; "
            "give input.statistics, a file of public ones"
        )
    if inner.data.unit is not None:
        raise UserError(
            f"the target of {config.data} is scaled by its exact mean over the clients, which privacy does not cover; "
            "use a target of classes"
        )


def of_persons(problem: Problem) -> Persons:
    """The problem whose samples are persons.

    Raises:
        UserError: nothing says whose a row is, or no model of labelled rows is shared whole.
    """
    if not isinstance(problem, Supervised) or problem.data.persons is None:
        raise UserError(
            "privacy.unit person needs labelled rows that say whose they are, and a model that is shared whole; give "
            "input.person, the column or array of persons, and leave local.private out, or use privacy.unit sample"
        )
    return Persons(problem, problem.data.persons)


def rows_note(config: Config, persons: np.ndarray | None) -> str | None:
    """That epsilon is of a row where persons have several, in a sentence; None where it is not.

    Args:
        persons: [n] whose each training row is, where that is known.
    """
    repeated = 0 if persons is None else int((np.unique(persons, return_counts=True)[1] > 1).sum())
    if config.privacy.unit != "sample" or not repeated:
        return None
    return (
        f"epsilon is of a row, and {repeated} person{'s have' if repeated > 1 else ' has'} several rows to train on, "
        "which together say more; privacy.unit person protects all rows of a person"
    )


def _steps(config: Config) -> int:
    """How often a round spends: once, or with privacy of samples at each node that one may be in, of the most steps."""
    local, shares = config.local, _shares(config)
    if shares is None:
        return 1
    steps = method_of(config.method or "fedavg", config.algorithm).step.steps
    if steps is None:
        work = local.epochs if local.steps is None else local.steps
        steps = int(most_work(work or 1, config.clients))
        steps *= epoch_steps(1, batch_of(local.batch_size)) if local.steps is None else 1
    return nodes(steps, shares[1])


def _shares(config: Config) -> tuple[float, int] | None:
    """`shares_of` the batches, with privacy of samples."""
    return None if config.privacy.unit == "client" else shares_of(batch_of(config.local.batch_size))


def _likely(config: Config) -> int:
    """The rounds that noise is found for: those of all seeds of a comparison, which have one method. A seed whose
    draws are more ends when its budget is spent."""
    if _most(config) is None:
        return config.rounds
    return likely_rounds(part("sampling", config.sampling).identity, config.cohort, config.clients, config.rounds)


def _most(config: Config) -> tuple[int, ...] | None:
    """[rounds + 1] rounds that a client is in at most, of the first t, where they are counted; None: all."""
    if config.availability is not None or config.late == "keep":  # of which the draws are not those of all clients
        return None
    sampling = part("sampling", config.sampling).identity
    return most_rounds(sampling, config.seed, config.cohort, config.clients, config.rounds)


def _coin(config: Config) -> float | None:
    shares = _shares(config)
    if shares is None:
        return _coin_of_clients(config)
    return shares[0] if shares[1] == 1 else None


def _coin_of_clients(config: Config) -> float | None:
    sampler: Sampler = part("sampling", config.sampling)
    return config.cohort / config.clients if sampler.poisson else None


def budget_of(config: Config) -> Budget | None:
    """What a run spends by its settings, as `calibrated` gives them; None without privacy or noise."""
    privacy = config.privacy
    if privacy.clip is None or not privacy.noise:
        return None
    coin = _coin(config)
    steps, unit, most = _steps(config), privacy.unit, _most(config)
    if (shares := _shares(config)) is not None and coin is None:
        many = f"each {unit} in one of them and in {steps} nodes a round at most"
        sampled = f"noise of a binary tree over the {shares[1]} local steps of a pass, {many}"
    elif unit != "client":
        many = f"{steps} local steps a round" if steps > 1 else "one local step a round"
        sampled = f"noise in every local step, {many} at most, each {unit} in each with probability {coin:.4g}"
    elif privacy.kind == "local":
        sampled = "noise on each message, no amplification claimed"
    elif coin is None:
        sampled = f"noise on the sum, no amplification claimed for sampling {config.sampling}; poisson has one"
    else:
        sampled = f"noise on the sum, Poisson sampling with probability {coin:.4g}"
    if most is not None and most[-1] < config.rounds:
        sampled += f"; a client is in {most[-1]} of {config.rounds} rounds at most"
    of_client = None
    if privacy.client_clip is not None and privacy.client_noise:
        of_client = accountant.spending(privacy.client_noise, "central", _coin_of_clients(config), privacy.delta)
        of_client = of_client._replace(most=most)
        times = f"noise {privacy.client_noise:g} times that on the sum"
        sampled += f"; messages clipped to {privacy.client_clip:g}, {times}"
    description = f"{_bounded(config)}, {sampled}"
    spending = accountant.spending(privacy.noise, privacy.kind, coin, privacy.delta)._replace(steps=steps, most=most)
    return Budget(spending, privacy.epsilon, config.rounds, description, unit=unit, of_client=of_client)


def _bounded(config: Config) -> str:
    """What is done to messages, in words."""
    privacy = config.privacy
    assert privacy.clip is not None
    assert privacy.noise is not None
    rule = clipping_of(privacy.clip)
    if not isinstance(rule, Adaptive):
        what = "messages" if privacy.unit == "client" else f"gradients of {privacy.unit}s"
        return f"{what} clipped to {rule:g}, noise {privacy.noise:g} times that"
    noises = rule.noises(privacy.noise, config.cohort)
    return (
        f"messages clipped to C, from {rule.start:g} towards quantile {rule.quantile:g} of their norms, noise "
        f"{noises.messages:.4g} C and {noises.bits:.4g} on how many are within, together as {privacy.noise:g} C alone"
    )


def privacy_note(config: Config, generator: str = KEYED) -> str | None:
    """What a run with these settings will spend, in a sentence; None without privacy.

    Args:
        generator: where noise and coins come from, in words.
    """
    privacy = config.privacy
    if privacy.clip is None:
        return None
    budget = budget_of(config)
    if budget is None:
        what = "messages" if privacy.unit == "client" else f"gradients of {privacy.unit}s"
        return f"{config.label}: {what} clipped to {grammar.text(privacy.clip)} without noise, which protects nobody"
    epsilon, also = budget.spending.epsilon(budget.rounds), budget.of_client
    more = "" if also is None else f", and epsilon {also.epsilon(budget.rounds):.4g} for a client,"
    return (
        f"{config.label}: epsilon {epsilon:.4g} at delta {privacy.delta:g} for a {budget.unit}{more} after "
        f"{budget.rounds} rounds; {budget.said}; {generator}"
    )


def unprotected(config: Config) -> Config:
    """The settings of one run without its privacy."""
    return config.model_copy(update={"privacy": PrivacySettings()})


def protected(algorithm: Algorithm, config: Config) -> Algorithm:
    """The method with the settings' privacy."""
    privacy: PrivacySettings = config.privacy
    if privacy.clip is None:
        return algorithm
    assert privacy.noise is not None
    clip, shares = clipping_of(privacy.clip), _shares(config)
    if shares is not None and not isinstance(clip, Adaptive):
        inner = with_sample_privacy(algorithm, clip, privacy.noise, *shares)
        if privacy.client_clip is None:
            return inner
        return with_privacy(inner, privacy.client_clip, privacy.client_noise or 0.0, "central", config.cohort)
    if isinstance(clip, Adaptive):
        return with_adaptive_privacy(algorithm, clip, privacy.noise, config.cohort)
    return with_privacy(algorithm, clip, privacy.noise, privacy.kind, config.cohort)
