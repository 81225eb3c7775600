"""The one way to wrap a method: its client row, server state or broadcast goes into a larger one, as the field `inner`.

Every function of an algorithm that touches one of them is lifted here and nowhere else; a wrapper then replaces the
functions that it changes. A new function of `Algorithm` needs a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from fedconcord.method.contract import Algorithm, Client, Cohort, Done, Local, Population, Tree


class Place(NamedTuple):
    """Where the method's own tree stands in a larger one."""

    get: Callable[[Any], Tree]
    put: Callable[[Any, Tree], Any]  # (the larger tree, a new one of the method's own) -> the larger tree with it


WHOLE = Place(lambda tree: tree, lambda tree, new: new)
INNER = Place(lambda tree: tree.inner, lambda tree, new: tree._replace(inner=new))


def lift(
    algorithm: Algorithm,
    *,
    row: Callable[[Tree, Tensor], Any] | None = None,
    server: Callable[[Tree, Tensor], Any] | None = None,
    down: Callable[[Tree, Any], Any] | None = None,
) -> Algorithm:
    """The same method inside larger states, NamedTuples that hold the method's own as `inner`.

    Args:
        row: (row, x^0) -> the client's larger state.
        server: (state, x^0) -> the server's larger state, which has `x`.
        down: (broadcast, the server's larger state) -> what is broadcast in its place.
    """
    rows, servers, downs = (WHOLE if around is None else INNER for around in (row, server, down))
    client_model, memory, step = algorithm.client_model, algorithm.facts.memory, algorithm.step
    hessian_at, addition, previous, prototypes = step.hessian_at, step.addition, step.previous, step.prototypes
    phases = algorithm.phases
    prologue, prelude = phases.prologue, phases.prelude
    combine, settle, unheard = phases.combine, phases.settle, phases.unheard

    def init(x: Tensor, population: Population) -> Tree:
        state = algorithm.init(x, population)
        return state if server is None else server(state, x)

    def init_client(x: Tensor) -> Tree:
        state = algorithm.init_client(x)
        return state if row is None else row(state, x)

    def broadcast(state: Any) -> Tree:
        sent = algorithm.broadcast(servers.get(state))
        return sent if down is None else down(sent, state)

    def start(sent: Tree, state: Any, client: Client) -> Local:
        return algorithm.start(downs.get(sent), rows.get(state), client)

    def finish(sent: Tree, state: Any, done: Done, client: Client) -> tuple[Tree, Tree]:
        up, new = algorithm.finish(downs.get(sent), rows.get(state), done, client)
        return up, rows.put(state, new)

    def update(state: Any, total: Tree, cohort: Cohort) -> Tree:
        return servers.put(state, algorithm.update(servers.get(state), total, cohort))

    return replace(
        algorithm,
        init=init,
        init_client=init_client,
        broadcast=broadcast,
        start=start,
        finish=finish,
        update=update,
        models=lambda state: algorithm.models(servers.get(state)),
        client_model=client_model and (lambda state, x: client_model(rows.get(state), x)),
        phases=phases._replace(
            asynchronous=None,  # until the wrapper is known to be right with it
            portion=None,  # which is of the messages as they were: no wrapper goes around one
            prologue=prologue
            and prologue._replace(
                row=lambda state, blocks: rows.put(state, prologue.row(rows.get(state), blocks)),
                update=lambda state, total: servers.put(state, prologue.update(servers.get(state), total)),
            ),
            prelude=prelude
            and prelude._replace(absorb=lambda sent, total: downs.put(sent, prelude.absorb(downs.get(sent), total))),
            combine=combine
            and (lambda state, shares, senders, cohort: combine(servers.get(state), shares, senders, cohort)),
            settle=settle
            and settle._replace(
                send=lambda sent, state: settle.send(downs.get(sent), servers.get(state)),
                row=lambda message, state: rows.put(state, settle.row(message, rows.get(state))),
            ),
            unheard=unheard and (lambda state, cohort: servers.put(state, unheard(servers.get(state), cohort))),
        ),
        step=step._replace(
            hessian_at=hessian_at and (lambda sent, state: hessian_at(downs.get(sent), rows.get(state))),
            addition=addition and (lambda message: addition(downs.get(message))),
            previous=previous and (lambda state, x: previous(rows.get(state), x)),
            prototypes=prototypes and (lambda message: prototypes(downs.get(message))),
        ),
        facts=algorithm.facts._replace(
            numbers=lambda state: algorithm.facts.numbers(servers.get(state)),
            memory=memory
            and memory._replace(
                gradients=lambda state, states, p, mean: memory.gradients(
                    servers.get(state), rows.get(states), p, mean
                ),
                total=lambda state: memory.total(servers.get(state)),
            ),
        ),
    )


def moved(server: Any, x: Tensor) -> Any:
    """A server's state with another model x [d], through all that is lifted around it."""
    return server._replace(x=x) if "x" in server._fields else server._replace(inner=moved(server.inner, x))
