"""A page for every method, from its file and its functions; what was measured with it is in `found`."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import textwrap
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from fedconcord.insight.methods import catalogue
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Oracle, Tree, tree_leaves
from fedconcord.support import factories, grammar
from fedconcord.support.factories import search_of
from fits import CLIENTS, COHORT, fits
from found import measured, title
from marks import code, plain, prose, table

ROOT = Path(__file__).parents[2]
LETTERS = """\
Letters of the definitions: f_i is client i's loss, g the gradient of f_i on a mini-batch, eta the local step size, K_i
or tau_i the local steps of client i in a round, x the server's model, y_i or x_i the client's, Delta_i its move over
the round. Of N clients S take part in a round, over which sum_A and mean_A go. p_i is a client's weight in the
objective, w_i its weight in the server's step, eta_g the server's step size; x+ is x after the round. The local step of
any method also has what `local.*` adds to it: momentum, weight decay, clipping."""


def pages() -> dict[str, Callable[[], str]]:
    """Path below docs -> what writes the page."""
    return {"methods/index.md": index} | {f"methods/{name}.md": partial(page, name) for name in METHODS}


def index() -> str:
    """All methods by mechanism, with their costs."""
    parts = ["# Methods", "A page each, made from the method's file, its functions and what was measured."]
    parts += [plain(LETTERS), f"In the tables, {plain(catalogue.LEGEND)}."]
    for mechanism, names in catalogue.groups().items():
        rows = [(f"[{title(name)}]({name}.md)", *catalogue.cells(_costs(name))[1:]) for name in names]
        parts += [f"## {mechanism[0].upper()}{mechanism[1:]}", table(catalogue.COLUMNS, rows)]
    return "\n\n".join(parts) + "\n"


def page(name: str) -> str:
    """The page of one method."""
    factory, algorithm = METHODS[name], METHODS[name]()
    file = Path(inspect.getsourcefile(inspect.unwrap(factory)) or "").relative_to(ROOT)
    module = inspect.getmodule(factory)
    about, source = factories.describe(factory)
    group = next(title for title, names in catalogue.groups().items() if name in names)
    siblings = [f"[{title(n)}]({n}.md)" for n, f in METHODS.items() if inspect.getmodule(f) is module and n != name]
    parts = [
        f"# {title(name)}",
        f"**`{name}`**: {plain(about.partition(':')[2].strip() or about)} {plain(source)}",
        f"Mechanism: [{group}](index.md#{group.replace(' ', '-')}). "
        f"File: `{file}`{', with ' + ', '.join(siblings) if siblings else ''}.",
        "## Definition",
        prose((module.__doc__ if module else None) or ""),
        "Letters stand on [Methods](index.md).",
        "## Parameters",
        parameters(factory),
        "## What is kept and sent",
        state(name, algorithm),
        "## What it goes with",
        together(algorithm),
        "## What it claims, and what was measured",
        *measured(name),
        "## Run it",
        f"```sh\n{command(name)}\n```\n\n```python\n{call(name)}\n```",
        "## The file",
        f'??? note "{file}"\n\n    ```python\n{textwrap.indent((ROOT / file).read_text(), "    ")}    ```',
    ]
    return "\n\n".join(parts) + "\n"


def parameters(factory: Callable[..., Algorithm]) -> str:
    """What may be set, from the factory's annotations."""
    rows = [
        (
            code(option.name),
            "needed" if option.required else code(grammar.text(option.default)),
            plain(option.values),
            plain(str(search_of(option.annotation) or "")),
            plain(option.meaning),
        )
        for option in factories.options(factory)
    ]
    steps = "what the clients' steps have, as `local.lr`, are [settings](../reference/settings.md#local)."
    if not rows:
        return f"None of its own; {steps}"
    head = ("parameter", "default", "values", "tuned in", "meaning")
    if not any(row[3] for row in rows):
        head, rows = (*head[:3], head[4]), [(*row[:3], row[4]) for row in rows]
    return f"{table(head, rows)}\n\n{steps[0].upper()}{steps[1:]}"


# -- state and messages ----------------------------------------------------------------------------------------------


@cache
def _costs(name: str) -> catalogue.Costs:
    return catalogue.describe(name)


def state(name: str, algorithm: Algorithm) -> str:
    """What the method keeps and sends, seen in a round; sizes in models."""
    costs, seen = _costs(name), catalogue.exchange(algorithm, 2)
    rows = [
        _held("a client keeps", seen.row),
        _held("the server keeps", seen.server),
        *(_held("a client sends", up) for up in seen.up),
        *(_held("a client gets", down) for down in seen.down),
    ]
    if algorithm.step.oracle == Oracle("full"):
        work = ["its steps take full gradients"]
    else:
        work = [f"{costs.step_gradients:.3g} of a mini-batch a local step"] * bool(costs.step_gradients)
        work += [f"{costs.round_gradients:.3g} of all samples a round"] * bool(costs.round_gradients)
    work += ["a Hessian a round"] * costs.hessian
    return (
        f"{table(('', 'size', 'holds'), rows)}\n\nSizes are in models: 1 is one vector as large as the model. "
        f"Gradients beyond those of plain local SGD: {', '.join(work) or 'none'}. Measured in a round, with defaults."
    )


def _held(who: str, tree: Tree) -> tuple[str, str, str]:
    vectors, numbers = catalogue.units(tree)
    size = f"{vectors:.3g}" + (f" + {numbers} number{'s' * (numbers > 1)}" if numbers else "")
    return who, size, "; ".join(_fields(tree)) if tree_leaves(tree) else "nothing"


def _fields(tree: Tree, prefix: str = "") -> list[str]:
    """Every field of a tree with its comment."""
    if not isinstance(tree, tuple):
        return [plain("a vector [d]")]
    found: list[str] = []
    for field, value in zip(getattr(tree, "_fields", map(str, range(len(tree)))), tree, strict=True):
        if isinstance(value, tuple) and value:
            found += _fields(value, f"{prefix}{field}.")
        elif not isinstance(value, tuple):
            found.append(f"{code(prefix + field)} {plain(_comment(type(tree), field))}".strip())
    return found


def _comment(kind: type, field: str) -> str:
    """The comment behind a field."""
    found = re.search(rf"^\s+{field}:[^#\n]*#\s*(.*)$", inspect.getsource(kind), re.MULTILINE)
    return found[1] if found else ""


# -- what it goes with -----------------------------------------------------------------------------------------------


def together(algorithm: Algorithm) -> str:
    """What it asks for; what it is run with, and what is refused with which sentence."""
    asked = {
        "x⁰, sent to clients that join late (`needs.x0`)": algorithm.needs.x0,
        "each client's weight, told to it (`needs.weight`)": algorithm.needs.weight,
        "a full gradient at the server's model (`needs.full_gradient`)": algorithm.needs.full_gradient,
        "the local solver's normaliser (`needs.normaliser`)": algorithm.needs.normaliser,
        "known probabilities of taking part (`needs.inclusion`)": algorithm.needs.inclusion,
        "every client in every round (`needs.everyone`)": algorithm.needs.everyone,
        "Hessians (`step.hessian_at`)": algorithm.step.hessian_at is not None,
        f"samples cut in {algorithm.step.blocks} blocks (`step.blocks`)": algorithm.step.blocks is not None,
    }
    needs = "; ".join(text for text, wanted in asked.items() if wanted)
    kept = f" It keeps {plain(algorithm.facts.invariant)}." if algorithm.facts.invariant else ""
    rows = [(fit.what, code(fit.setting), plain(fit.reason or "yes")) for fit in fits(algorithm)]
    asks = f"Asked with the defaults and {COHORT} of {CLIENTS} clients:"
    return f"It needs {needs or 'nothing of a job'}.{kept}\n\n{asks}\n\n{table(('', 'setting', ''), rows)}"


# -- how to run it ---------------------------------------------------------------------------------------------------


def arguments(name: str) -> dict[str, Any]:
    """Settings on which the method runs as it is, without a download."""
    algorithm = METHODS[name]()
    if algorithm.step.hessian_at is not None:
        return {"method": name, "data": "digits", "model": "logreg", "clients": 10, "cohort": 10, "rounds": 20}
    common = {"method": name, "data": "digits", "partition": "dirichlet(0.1)", "model": "2nn", "clients": 60}
    adapted = algorithm.facts.adapted
    common |= {} if adapted is None else {"settings": {"eval.personalise": adapted}}
    return common | {"cohort": 60 if algorithm.needs.everyone else 9, "rounds": 30}


def command(name: str) -> str:
    """The command that trains it."""
    values = arguments(name)
    more = [f"--set {shlex.quote(f'{key}={value}')}" for key, value in values.pop("settings", {}).items()]
    flags = [f"--{key} {shlex.quote(str(value))}" for key, value in values.items()] + more
    return f"fedconcord run {' '.join(flags)} --out runs/{name}"


def call(name: str) -> str:
    """The same in Python."""
    given = ", ".join(f"{key}={json.dumps(value)}" for key, value in arguments(name).items())
    return f'import fedconcord\n\nprint(fedconcord.run({given}, out="runs/{name}-python"))'
