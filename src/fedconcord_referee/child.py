"""Runs functions on a spec, in a process of its own: `python child.py FILE CLIENT SERVER < spec.json`, `FILE RULE`
or `--optimiser FILE CLASS`.

It imports NumPy and the file alone, and writes a line of JSON a round. What the functions are given and give back:

    client(server, own, task) -> (message, own)
    server(server, messages, task) -> server

`server` is a dict with the model "x" [d] and whatever the server function adds, which all clients of the next round
receive; `own` is what the client returned in its last round, an empty dict at first. A message with an entry "x" says
that this is the client's model after its local steps. `task` has the attributes that `Task` states. A rule alone gets
the moves of the cohort's clients [S, d], after plain local steps, and gives the server's [d].
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import os
import sys
from typing import Any

import numpy as np


class Task:
    """What a function is told: `round`, `lr`, `coin`, `n` (clients in all), `momentum` (local) and `parameters`.

    The client function has its `client`, `steps`, `p`, `size` and `gradient` beside; the server function the cohort's
    `clients` and, in their order, `steps`, `p` and `sizes`.
    """

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def client_task(spec: Any, t: int, client: int, gradient: Any) -> Task:
    """What a client's function is told in round t."""
    one, data = spec["rounds"][t], spec["clients"][client]
    steps = one["steps"][one["clients"].index(client)]
    return Task(**_common(spec, t), client=client, steps=steps, p=data["p"], size=data["size"], gradient=gradient)


def _common(spec: Any, t: int) -> Any:
    one = spec["rounds"][t]
    common = {"round": t, "lr": one["lr"], "coin": one["coin"], "n": len(spec["clients"])}
    return {**common, "momentum": spec["local_momentum"], "parameters": spec["parameters"]}


def gradient_of(spec: Any, client: int) -> Any:
    """x [d] -> grad f_i(x) [d]."""
    data = spec["clients"][client]
    if spec["kind"] == "quadratic":
        A, b = np.array(data["A"]), np.array(data["b"])
        return lambda x: A @ x - b
    rows, labels = np.array(data["rows"]), np.array(data["labels"])
    return lambda x: (1 / (1 + np.exp(-(rows @ x))) - labels) @ rows / len(rows) + spec["l2"] * np.asarray(x)


def loaded(file: str, *names: str) -> list[Any]:
    """Functions of a file, by name."""
    sys.path[0] = os.path.dirname(os.path.abspath(file))
    recipe = importlib.util.spec_from_file_location("judged", file)
    if recipe is None or recipe.loader is None:
        raise ImportError(f"{file} is no file of Python")
    module = importlib.util.module_from_spec(recipe)
    sys.modules["judged"] = module
    recipe.loader.exec_module(module)
    return [getattr(module, name) for name in names]


def local_steps(server: Any, row: Any, task: Any) -> Any:
    """The client of a rule that is judged alone: plain local steps."""
    x = server["x"]
    for _ in range(task.steps):
        x = x - task.lr * task.gradient(x)
    return {"x": x}, row


def stepping(rule: Any) -> Any:
    """The server of a rule: it moves by what the rule makes of the moves [S, d]."""
    return lambda server, messages, task: {"x": server["x"] + rule(np.stack([m["x"] - server["x"] for m in messages]))}


def stepped(make: Any) -> Any:
    """The client of a local optimiser: `make([x], lr=lr)` in each round, with gradients in x.grad at every step."""
    torch = importlib.import_module("torch")

    def client(server: Any, row: Any, task: Any) -> Any:
        x = torch.nn.Parameter(torch.tensor(server["x"]))
        optimiser = make([x], lr=task.lr)
        for _ in range(task.steps):
            x.grad = torch.tensor(task.gradient(x.detach().numpy()))
            optimiser.step()
        return {"x": x.detach().numpy().copy()}, row

    return client


def mean(server: Any, messages: Any, task: Any) -> Any:
    """The server of a local optimiser."""
    return {"x": sum(m["x"] for m in messages) / len(messages)}


def plain(value: Any) -> list[float]:
    return [float(entry) for entry in np.asarray(value).reshape(-1)]


def main(*words: str) -> None:
    is_optimiser = words[0] == "--optimiser"
    file, *names = words[is_optimiser:]
    spec = json.load(sys.stdin)
    answers, sys.stdout = sys.stdout, sys.stderr  # what the functions print goes elsewhere
    chosen_functions = loaded(file, *names)
    if is_optimiser:
        client, server = stepped(*chosen_functions), mean
    else:
        client, server = chosen_functions if len(names) > 1 else (local_steps, stepping(*chosen_functions))
    clients = spec["clients"]
    gradients = [gradient_of(spec, i) for i in range(len(clients))]
    rows: list[Any] = [{} for _ in clients]
    state: Any = {"x": np.array(spec["x0"])}
    for t, one in enumerate(spec["rounds"]):
        messages, local = [], []
        for i in one["clients"]:
            task = client_task(spec, t, i, gradients[i])
            message, rows[i] = client(copy.deepcopy(state), rows[i], task)
            messages.append(message)
            if isinstance(message, dict) and "x" in message:
                local.append(plain(message["x"]))
        cohort = [clients[i] for i in one["clients"]]
        cohort_values = {"clients": one["clients"], "steps": one["steps"], "p": [c["p"] for c in cohort]}
        state = server(state, messages, Task(**_common(spec, t), **cohort_values, sizes=[c["size"] for c in cohort]))
        if not isinstance(state, dict):
            state = {"x": np.asarray(state)}
        line = {"x": plain(state["x"])}
        answers.write(json.dumps({**line, "local": local} if len(local) == len(messages) else line) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
