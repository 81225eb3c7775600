"""Other answers, parameters and methods: what code computes that is right, of something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import torch

from fedconcord.method.contract import Population
from fedconcord.support import factories
from fedconcord_referee.known import Known
from fedconcord_referee.reference import Setting
from fedconcord_referee.spec import JUDGED


def population(setting: Setting) -> Population:
    return Population(len(setting.spec.data), torch.as_tensor(setting.spec.p))


def answers(setting: Setting) -> Iterator[Known]:
    """Other models that the method offers than its answer."""
    x = torch.as_tensor(setting.spec.x0)
    first, *others = setting.algorithm.models(setting.algorithm.init(x, population(setting)))
    for name in others:
        says = f"is the method, and answers with the model {name!r} where the paper's answer is {first!r}"
        yield Known(f"answers with {name}", "variant", says, lambda s, name=name: s._replace(answer=name))  # type: ignore[misc]


def with_parameters(setting: Setting, **parameters: Any) -> Setting | None:
    """The same method with other parameters."""
    try:
        algorithm = JUDGED[setting.spec.method](**{**setting.spec.parameters, **parameters})
    except (ValueError, TypeError):
        return None
    spec = setting.spec._replace(parameters={**setting.spec.parameters, **parameters})
    return setting._replace(algorithm=algorithm, spec=spec)


def choices(annotation: Any) -> list[Any]:
    """The words and switches that an annotated parameter may be."""
    if get_args(annotation) and hasattr(annotation, "__metadata__"):
        return choices(get_args(annotation)[0])
    if annotation is bool:
        return [False, True]
    literal = list(get_args(annotation)) if "Literal" in str(annotation)[:20] else []
    return literal or [one for part in get_args(annotation) for one in choices(part)]


def variants(setting: Setting) -> Iterator[Known]:
    """The method's own choices other than the ones of the spec; a server step of 1 or |S| / N."""
    for option in factories.options(JUDGED[setting.spec.method]):
        now = setting.spec.parameters[option.name]
        every = choices(option.annotation)
        if option.name in ("server_lr", "d") and isinstance(now, float | str):
            every = [*every, 1.0, len(setting.spec.rounds[0].clients) / len(setting.spec.data)]
        for value in every:
            if value != now:
                says = f"is {setting.spec.method} with {option.name}={value}, where {option.name}={now} was asked for"
                yield Known(
                    f"{option.name}={value}",
                    "variant",
                    says,
                    lambda s, name=option.name, value=value: with_parameters(s, **{name: value}),  # type: ignore[misc]
                )


def other_methods(setting: Setting) -> Iterator[Known]:
    """Methods with parameters that it shares with this one; what this one adds then does nothing."""
    weighted = [(name, w) for name in ("fedavg", "fedsgd") for w in ("uniform", "size", "unbiased")]
    plain = (
        "fednova",
        "scaffold",
        "feddyn",
        "fedprox",
        "fednova_vr",
        "fedadmm",
        "afedpd",
        "vrlsgd",
        "fedcm",
        "fedavgm",
    )
    for name, weights in (*weighted, *((name, None) for name in plain)):
        if name == setting.spec.method:
            continue
        shared = {o.name for o in factories.options(JUDGED[name])} & setting.spec.parameters.keys()
        options = {key: setting.spec.parameters[key] for key in shared if key != "weights"}
        options |= {} if weights is None else {"weights": weights}
        words = name if weights in (None, "uniform") else f"{name} with weights {weights}"
        says = f"computes what {words} does"

        def other(s: Setting, name: str = name, options: dict[str, Any] = options) -> Setting | None:
            try:
                algorithm = JUDGED[name](**options)
            except (ValueError, TypeError):
                return None
            return s._replace(algorithm=algorithm)

        yield Known(words, "method", says, other)


PENALTIES = (
    *("mu", "alpha", "rho", "eta", "gamma", "a", "d", "radius", "tau", "eps", "q"),
    *("server_lr", "lambda_lr", "decay"),
)


def scaled(setting: Setting) -> Iterator[Known]:
    """A number of the method that is off by a factor that such code has."""
    n, cohort = len(setting.spec.data), len(setting.spec.rounds[0].clients)
    factors = {"2": 2.0, "1/2": 0.5, "N": n, "1/N": 1 / n, "S": cohort, "1/S": 1 / cohort}
    factors |= {"N/S": n / cohort, "S/N": cohort / n}
    for name, value in setting.spec.parameters.items():
        if name in PENALTIES and isinstance(value, float | int) and not isinstance(value, bool) and value > 0:
            for words, factor in factors.items():
                yield Known(
                    f"{name} times {words}",
                    "mistake",
                    f"is {setting.spec.method} with {name} multiplied by {words} (N clients, S in a cohort)",
                    lambda s, name=name, value=value * factor: with_parameters(s, **{name: value}),  # type: ignore[misc]
                )
