"""What every method says of itself, and what it keeps, sends and computes, as measured on a tiny problem.

Numbers are those of a method's defaults. No cost is written by hand, so none can grow wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedconcord.execution.engines import Serial
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed
from fedconcord.method.algorithms import METHODS, plugins
from fedconcord.method.contract import Algorithm, Facts, Tree, tree_leaves
from fedconcord.support import factories

GROUPS = (
    "averaging",
    "compressed uploads",
    "server optimiser",
    "client momentum",
    "proximal",
    "normalised averaging",
    "control variates",
    "gradient tables",
    "nothing to tune",
    "primal-dual",
    "sharpness-aware",
    "fairness",
    "personalised",
)
"""The mechanisms in the order in which they are listed; a method says its own, and may have another one."""
FOREIGN = "from other packages"  # those that say none


class Costs(NamedTuple):
    """The costs of a method. Vectors are in models: bytes over the bytes of the model. NaN: could not be measured."""

    name: str
    client: float = math.nan  # vectors that a client keeps between rounds
    server: float = math.nan  # vectors that the server keeps, the model among them
    up: float = math.nan  # vectors that a client sends in a round
    up_scalars: float = math.nan
    down: float = math.nan  # vectors that a client gets in a round
    down_scalars: float = math.nan
    step_gradients: float = math.nan  # mini-batch gradients of a local step, beyond its own
    round_gradients: float = math.nan  # full gradients of a client and round, beyond the local steps'
    hessian: bool = False  # a Hessian a client and round
    everyone: bool = False  # absent clients are refused


class Group(NamedTuple):
    """Methods of one mechanism."""

    title: str
    methods: list[Costs]


# -- measuring -----------------------------------------------------------------------------------------------------

CLIENTS, DIM, SAMPLES, BATCH = 3, 8, 10, 2  # LoSAC's five blocks hold two samples, so a batch either way


def describe(method: str) -> Costs:
    """The costs of a method, given as text with parameters or without.

    Raises:
        UserError: no such method, or wrong parameters.
    """
    call = factories.check(plugins.available(), "method", method)
    return measure(str(call), call())


def measure(name: str, algorithm: Algorithm) -> Costs:
    """The costs of a bundle: its state, and two rounds of all clients with different numbers of local steps."""
    few, many = exchange(algorithm, 2), exchange(algorithm, 5)
    if many.steps > few.steps:
        step = (many.gradients - few.gradients) / (many.steps - few.steps)
    else:  # the method fixes its steps
        step = few.gradients / few.steps
    whole = (few.gradients - few.steps * step) / (SAMPLES / BATCH)
    row, state = (units(tree) for tree in (few.row, few.server))
    up, down = units(few.up), units(few.down)
    hessian = algorithm.step.hessian_at is not None
    return Costs(name, row[0], state[0], *up, *down, step - 1, whole, hessian, algorithm.needs.everyone)


class Exchange(NamedTuple):
    """What one client had to do with a round, for a model of `DIM` parameters."""

    row: Tree  # what it keeps between rounds
    server: Tree  # what the server keeps
    up: tuple[Tree, ...]  # its messages, in their order
    down: tuple[Tree, ...]  # the server's messages to it
    steps: int
    gradients: float


def exchange(algorithm: Algorithm, steps: int) -> Exchange:
    """A round of all clients, with the messages that were seen."""
    up: list[Tree] = []
    down: list[Tree] = []

    def noting(function: Callable[..., Tree], notes: list[Tree], argument: int | None = None) -> Callable[..., Tree]:
        """The function, with its result written down, or one of its arguments."""

        def noted(*arguments: Any) -> Tree:
            result = function(*arguments)
            notes.append(result if argument is None else arguments[argument])
            return result

        return noted

    settle, prelude = algorithm.phases.settle, algorithm.phases.prelude
    if settle is not None:
        settle = settle._replace(send=noting(settle.send, down))
    if prelude is not None:
        prelude = prelude._replace(absorb=noting(prelude.absorb, down, argument=1))
    watched = replace(
        algorithm,
        contribute=noting(algorithm.contribute, up, argument=0),
        broadcast=noting(algorithm.broadcast, down),
        phases=algorithm.phases._replace(settle=settle, prelude=prelude),
        client_model=None,  # how models are judged costs no round
    )
    problem = quadratics(0, CLIENTS, torch.float32, torch.device("cpu"), dim=DIM, blocks=SAMPLES)
    schedule = Schedule(seed=0, cohort=CLIENTS, lr=0.01, work=fixed(steps), unit="steps", batch_size=BATCH)
    job = Job(problem, watched, schedule, engine=Serial())
    before = start(job)
    after = advance(job, before)
    gradient = () if prelude is None else (torch.zeros(DIM),)  # a prelude's message
    return Exchange(
        row=algorithm.init_client(problem.init(0)),
        server=after.server,
        up=(*gradient, *up[:1]),
        down=tuple(down),
        steps=int(job.schedule.plan(0, watched, problem.roster).steps[0]),
        gradients=(after.gradient_steps - before.gradient_steps) / CLIENTS,
    )


def units(tree: Tree) -> tuple[float, int]:
    """(bytes of what is larger than a number, in models of `DIM` parameters; how many numbers)."""
    leaves = [leaf if isinstance(leaf, Tensor) else torch.tensor(leaf) for leaf in tree_leaves(tree).values()]
    vectors = sum(leaf.numel() * leaf.element_size() for leaf in leaves if leaf.numel() > 1)
    return vectors / (DIM * torch.float32.itemsize), sum(leaf.numel() == 1 for leaf in leaves)


# -- showing -------------------------------------------------------------------------------------------------------

COLUMNS = ("method", "client", "server", "up", "down", "step", "round", "clients")
LEGEND = (
    "client, server: what each keeps; up, down: a client's messages of a round; all in models (1.0 is one vector as "
    "large as the model), +2s is two scalars; step: further mini-batch gradients a local step; round: further full "
    "gradients a round, +H a Hessian; clients: who must take part"
)


def stated() -> dict[str, Facts]:
    """What every method of this installation says of itself with its defaults, by name; methods that cannot be made
    with them are left out."""
    facts = dict[str, Facts]()
    for name in plugins.available():
        with suppress(Exception):  # whatever somebody else's functions raise; the list of methods says what is wrong
            facts[name] = plugins.available()[name]().facts
    return facts


def groups() -> dict[str, list[str]]:
    """Mechanism -> the names of its methods, in this installation."""
    facts, by_group = stated(), dict[str, list[str]]()
    for name in plugins.available():
        by_group.setdefault((facts[name].group if name in facts else "") or FOREIGN, []).append(name)
    titles = [title for title in GROUPS if title in by_group] + [title for title in by_group if title not in GROUPS]
    return {title: by_group[title] for title in sorted(titles, key=lambda title: title == FOREIGN)}


def table() -> list[Group]:
    """All methods of this installation by mechanism; a plug-in that cannot be measured has NaN for its numbers."""
    return [Group(title, [_attempt(name) for name in names]) for title, names in groups().items()]


def _attempt(name: str) -> Costs:
    try:
        return describe(name)
    except Exception:  # whatever somebody else's functions raise; the list of methods says what is wrong with it
        if name in METHODS:
            raise
        return Costs(name)


def cells(costs: Costs) -> tuple[str, ...]:
    """The texts under `COLUMNS`."""

    def number(value: float) -> str:
        return "?" if math.isnan(value) else f"{value:.3g}"

    def message(vectors: float, scalars: float) -> str:
        return number(vectors) + (f"+{scalars:.0f}s" if scalars > 0 else "")

    hessian, who = "+H" if costs.hessian else "", "all" if costs.everyone else "any"
    messages = message(costs.up, costs.up_scalars), message(costs.down, costs.down_scalars)
    gradients = number(costs.step_gradients), number(costs.round_gradients) + hessian
    return costs.name, number(costs.client), number(costs.server), *messages, *gradients, who
