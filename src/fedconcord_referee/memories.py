"""Known mistakes in what clients and server remember, field by field, and in the server's step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedconcord.method.contract import Algorithm, Tree, model_of
from fedconcord_referee.known import Change, Known, mistake, shaped
from fedconcord_referee.reference import Setting
from fedconcord_referee.variants import population

Keep = Callable[[Tensor, Tensor], Tensor]  # (a field before [.., d], after [.., d]) -> as it is kept
KEEPS: dict[str, tuple[str, Keep]] = {  # after "client's c": what follows "it", around the field
    "not updated": ("never updates what the {} remembers ({})", lambda before, after: before),
    "assigned": ("assigns what the {} remembers ({}) where the paper adds", lambda before, after: after - before),
    "subtracted": ("moves what the {} remembers ({}) the wrong way", lambda before, after: 2 * before - after),
    "negated": ("keeps what the {} remembers ({}) with its sign reversed", lambda before, after: -after),
}


def vectors(state: Tree, d: int) -> list[str]:
    """The fields of a state that are vectors [d], but for the model x."""
    fields = getattr(state, "_fields", ())
    return [f for f in fields if f != "x" and isinstance(v := getattr(state, f), Tensor) and v.shape[-1:] == (d,)]


def finished(change: Callable[[Any, Any, Any, Any], tuple[Tree, Tree]]) -> Change:
    """A change of what `finish` makes: (message, row after, row before, down) -> (message, row)."""

    def changed(algorithm: Algorithm, setting: Setting) -> Algorithm:
        def finish(down: Tree, row: Any, result: Any, client: Any) -> tuple[Tree, Tree]:
            return change(*algorithm.finish(down, row, result, client), row, down)

        return replace(algorithm, finish=finish)

    return shaped(changed)


def stored(field: str, keep: Callable[[Tensor, Tensor, Any], Tensor]) -> Change:
    """Another value of a row's field: (before, after, down) -> value."""
    return finished(
        lambda up, after, row, down: (
            up,
            after._replace(**{field: keep(getattr(row, field), getattr(after, field), down)}),
        )
    )


def seen(field: str, value: Callable[[Any, Any], Any]) -> Change:
    """Another value of a row's field in the message alone: (down, row) -> value."""

    def changed(algorithm: Algorithm, setting: Setting) -> Algorithm:
        def finish(down: Tree, row: Any, result: Any, client: Any) -> tuple[Tree, Tree]:
            up, _ = algorithm.finish(down, row._replace(**{field: value(down, row)}), result, client)
            return up, algorithm.finish(down, row, result, client)[1]

        return replace(algorithm, finish=finish)

    return shaped(changed)


def begun(field: str) -> Change:
    """A row's field that starts at x^0."""

    def changed(algorithm: Algorithm, setting: Setting) -> Algorithm:
        return replace(algorithm, init_client=lambda x: algorithm.init_client(x)._replace(**{field: x}))

    return shaped(changed)


def of_clients(setting: Setting, row: Tree) -> Iterator[Known]:
    """Mistakes with each vector that a client remembers."""
    for f in vectors(row, len(setting.spec.x0)):
        for name, (says, keep) in KEEPS.items():
            change = stored(f, lambda before, after, down, keep=keep: keep(before, after))  # type: ignore[misc]
            yield mistake(f"client's {f} {name}", says.format("client", f), change)
        common = stored(f, lambda before, after, down: after.mean(0, keepdim=True).expand_as(after))
        yield mistake(f"one {f} for all clients", f"keeps one {f} for all clients, where each has its own", common)
        yield mistake(f"client's {f} starts at x^0", f"starts {f} of the clients at the model's weights", begun(f))
        full = finished(lambda up, after, row, down, f=f: (up._replace(**{f: getattr(after, f)}), after))  # type: ignore[misc]
        yield mistake(f"{f} in full", f"sends {f} in full, where the paper sends its change", full)
        theirs = seen(f, lambda down, row: model_of(down))
        says = f"takes the server's model for the client's own ({f}) in the message"
        yield mistake(f"the server's model for the client's {f}", says, theirs)
        fixed = setting.spec.parameters.get("rho", setting.spec.parameters.get("alpha"))

        def unit(before: Tensor, after: Tensor, down: Any, fixed: Any = fixed) -> Tensor:
            change: Tensor = (after - before) / getattr(down, "rho", fixed)
            return before + change

        yield mistake(
            f"client's {f} without the penalty", f"adds to {f} without the factor of the penalty", stored(f, unit)
        )


def served(change: Callable[[Any, Any], Any]) -> Change:
    """Another step of the server: (state before, after) -> state."""

    def changed(algorithm: Algorithm, setting: Setting) -> Algorithm:
        def update(server: Any, total: Tree, cohort: Any) -> Any:
            return change(server, algorithm.update(server, total, cohort))

        return replace(algorithm, update=update)

    return shaped(changed)


def of_server(setting: Setting, server: Tree) -> Iterator[Known]:
    """Mistakes with each vector that the server keeps, and with its model."""
    n, s = len(setting.spec.data), len(setting.spec.rounds[0].clients)
    factors = {"N/S": n / s, "S/N": s / n, "N": n, "1/N": 1 / n, "S": s, "1/S": 1 / s, "2": 2.0, "1/2": 0.5}

    def one(f: str, keep: Keep) -> Change:
        return served(lambda server, after: after._replace(**{f: keep(getattr(server, f), getattr(after, f))}))

    fields = vectors(server, len(setting.spec.x0))
    for f in fields:
        for name, (says, keep) in KEEPS.items():
            yield mistake(f"server's {f} {name}", says.format("server", f), one(f, keep))
    for f in ["x", *fields] if "x" in getattr(server, "_fields", ()) else fields:
        for words, factor in factors.items():
            says = f"moves the server's {f} by {words} times what the paper has (N clients, S in a cohort)"
            scaled = one(f, lambda before, after, factor=factor: before + factor * (after - before))  # type: ignore[misc]
            yield mistake(f"server's {f} times {words}", says, scaled)


def memories(setting: Setting) -> Iterator[Known]:
    """Mistakes with all that the method remembers."""
    x = torch.as_tensor(setting.spec.x0)
    row, server = setting.algorithm.init_client(x), setting.algorithm.init(x, population(setting))
    yield from of_clients(setting, row)
    yield from of_server(setting, server)
    if setting.algorithm.phases.settle is not None:
        yield mistake(
            "clients do not hear the step", "leaves clients' memory as it was before the server's step", UNSETTLED
        )
    if "rho" in getattr(row, "_fields", ()):
        says = "takes the duals of the last round's rho for those of the new one"
        yield mistake(
            "the last rho for the new one", says, seen("rho", lambda down, row: down.rho.expand(row.rho.shape))
        )


def _unsettled(algorithm: Algorithm, setting: Setting) -> Algorithm:
    phases, settle = algorithm.phases, algorithm.phases.settle
    quiet = settle and settle._replace(row=lambda message, row: row)
    return replace(algorithm, phases=phases._replace(settle=quiet))


UNSETTLED = shaped(_unsettled)
