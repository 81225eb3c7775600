"""The one way to wrap a method: its client row or its server state goes into a larger one, as the field `inner`.

Every hook of an algorithm that touches a row or the server's state is lifted here and nowhere else; a wrapper then
replaces the hooks that it changes. A new hook of `core.Algorithm` needs a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedconcord.core import Algorithm, Client, Cohort, Done, Local, Population, Tree


def lift_row(algorithm: Algorithm, around: Callable[[Tree, Tensor], Any]) -> Algorithm:
    """The same method on rows `around(row, x^0)`, a NamedTuple that holds the method's own row as `inner`."""
    settle, prologue = algorithm.phases.settle, algorithm.phases.prologue
    hessian_at, client_model, memory = algorithm.step.hessian_at, algorithm.client_model, algorithm.facts.memory

    def start(down: Tree, row: Any, client: Client) -> Local:
        return algorithm.start(down, row.inner, client)

    def finish(down: Tree, row: Any, done: Done, client: Client) -> tuple[Tree, Tree]:
        up, inner = algorithm.finish(down, row.inner, done, client)
        return up, row._replace(inner=inner)

    return replace(
        algorithm,
        init_client=lambda x: around(algorithm.init_client(x), x),
        start=start,
        finish=finish,
        client_model=None if client_model is None else lambda row: client_model(row.inner),
        phases=algorithm.phases._replace(
            settle=None
            if settle is None
            else settle._replace(row=lambda sent, row: row._replace(inner=settle.row(sent, row.inner))),
            prologue=None
            if prologue is None
            else prologue._replace(row=lambda row, blocks: row._replace(inner=prologue.row(row.inner, blocks))),
        ),
        step=algorithm.step._replace(
            hessian_at=None if hessian_at is None else lambda down, row: hessian_at(down, row.inner)
        ),
        facts=algorithm.facts._replace(
            memory=None
            if memory is None
            else memory._replace(gradients=lambda server, rows, p, mean: memory.gradients(server, rows.inner, p, mean))
        ),
    )


def lift_server(algorithm: Algorithm, around: Callable[[Tree, Tensor], Any]) -> Algorithm:
    """The same method on a server state `around(state, x^0)`, which holds the method's own as `inner`, and has `x`."""
    settle, prologue = algorithm.phases.settle, algorithm.phases.prologue
    unheard, combine, memory = algorithm.phases.unheard, algorithm.phases.combine, algorithm.facts.memory

    def init(x: Tensor, population: Population) -> Tree:
        return around(algorithm.init(x, population), x)

    def update(server: Any, total: Tree, cohort: Cohort) -> Tree:
        return server._replace(inner=algorithm.update(server.inner, total, cohort))

    return replace(
        algorithm,
        init=init,
        update=update,
        broadcast=lambda server: algorithm.broadcast(server.inner),
        models=lambda server: algorithm.models(server.inner),
        phases=algorithm.phases._replace(
            settle=None
            if settle is None
            else settle._replace(send=lambda down, server: settle.send(down, server.inner)),
            unheard=None
            if unheard is None
            else lambda server, cohort: server._replace(inner=unheard(server.inner, cohort)),
            combine=None
            if combine is None
            else lambda server, rows, senders, cohort: combine(server.inner, rows, senders, cohort),
            prologue=None
            if prologue is None
            else prologue._replace(
                update=lambda server, total: server._replace(inner=prologue.update(server.inner, total))
            ),
        ),
        facts=algorithm.facts._replace(
            memory=None
            if memory is None
            else memory._replace(
                gradients=lambda server, rows, p, mean: memory.gradients(server.inner, rows, p, mean),
                total=lambda server: memory.total(server.inner),
            )
        ),
    )


def moved(server: Any, x: Tensor) -> Any:
    """A server's state with another model x [d], through all that is lifted around it."""
    return server._replace(x=x) if "x" in server._fields else server._replace(inner=moved(server.inner, x))
