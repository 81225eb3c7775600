"""Runs a Flower strategy, perhaps with a ClientApp, on a spec, in a process of its own: `python flower_child.py FILE
STRATEGY [APP] < spec.json`.

It runs in the environment of whoever wrote the strategy, with NumPy, flwr and what the file imports; of the referee it
has the file `child` alone. STRATEGY is a `flwr.serverapp.strategy.Strategy` in the file, or what makes one when called.
Its own `start` runs the rounds, on a grid whose nodes are the cohort of each round and take the local steps of the
spec: x <- x - lr (gradient + mu (x - server's x)), with mu the `proximal-mu` that the strategy sends, 0 otherwise. A
reply has the model in one array record, and `num-examples`, the client's size, in a metric record.

With an APP, messages to train go to it instead. Its context, one for each client, which keeps `state` between rounds,
has an attribute `task` beside: what `child.client_task` tells. Other messages are answered here.
"""

import importlib
import json
import os
import sys
from contextlib import suppress
from typing import Any

import numpy as np

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"


class Nodes:
    """What a strategy asks of a grid: who is there, and replies to its messages."""

    def __init__(self, spec: Any, child: Any, app: Any, client_app: Any) -> None:
        self.spec, self.child, self.app, self.client_app = spec, child, app, client_app
        clients = range(len(spec["clients"]))
        self.gradients = [child.gradient_of(spec, i) for i in clients]
        self.contexts = [app.Context(1, i + 1, {"partition-id": i}, app.RecordDict(), {}) for i in clients]
        self.local: dict[int, list[float]] = {}
        self.t = 0  # the round, from 0

    def get_node_ids(self) -> list[int]:
        """Clients' ids from 1, as Flower has no node 0."""
        return [i + 1 for i in self.spec["rounds"][self.t]["clients"]]

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> list[Any]:
        """The replies of the nodes, in the order of the messages."""
        messages = list(messages)
        is_training = [one.metadata.message_type.startswith("train") for one in messages]
        if any(is_training):
            ids, cohort = sorted(one.metadata.dst_node_id for one in messages), self.get_node_ids()
            if ids != cohort:
                raise ValueError(
                    f"it trains nodes {ids} and the round's are {cohort}; let it take all nodes that are there, "
                    "as with fraction_train=1.0"
                )
        answer = self.reply if self.client_app is None else self.reply_of_app
        return [answer(one, trains) for one, trains in zip(messages, is_training)]  # noqa: B905

    def reply_of_app(self, message: Any, trains: bool) -> Any:
        """The answer of the ClientApp under judgement."""
        if not trains:
            return self.reply(message, trains)
        i = message.metadata.dst_node_id - 1
        context = self.contexts[i]
        context.task = self.child.client_task(self.spec, self.t, i, self.gradients[i])
        reply = self.client_app(message, context)
        arrays = [array for record in reply.content.array_records.values() for array in record.to_numpy_ndarrays()]
        if arrays and arrays[0].shape == (len(self.spec["x0"]),):
            self.local[i] = self.child.plain(arrays[0])
        return reply

    def reply(self, message: Any, trains: bool) -> Any:
        """A node's answer."""
        i, content, metrics = message.metadata.dst_node_id - 1, self.app.RecordDict(), {"num-examples": 1}
        if trains:
            one, client = self.spec["rounds"][self.t], self.spec["clients"][i]
            (arrays,) = message.content.array_records.values()
            start, *others = arrays.to_numpy_ndarrays()
            if others or start.shape != (len(self.spec["x0"]),):
                raise ValueError(
                    f"it sends {1 + len(others)} arrays, the first of shape {start.shape}; send the model alone"
                )
            configs = list(message.content.config_records.values())
            mu = float(next((config["proximal-mu"] for config in configs if "proximal-mu" in config), 0.0))
            x = start
            for _ in range(one["steps"][one["clients"].index(i)]):
                x = x - one["lr"] * (self.gradients[i](x) + mu * (x - start))
            self.local[i] = x.tolist()
            content["arrays"] = self.app.ArrayRecord({"x": self.app.Array(x)})
            metrics = {"num-examples": int(client["size"])}
        content["metrics"] = self.app.MetricRecord(metrics)
        return self.app.Message(content, reply_to=message)


def main(file: str, *names: str) -> None:
    child = importlib.import_module("child")  # beside this file
    spec = json.load(sys.stdin)
    answers, sys.stdout = sys.stdout, sys.stderr
    app = importlib.import_module("flwr.app")
    with suppress(ImportError):  # versions that have it let no process make messages that has no run
        task = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
        task.task_id, task.run_id, task.node_id = 1, 1, 1
    strategy, *client_apps = child.loaded(file, *names)
    strategy = strategy if hasattr(strategy, "aggregate_train") and not isinstance(strategy, type) else strategy()
    nodes = Nodes(spec, child, app, *(client_apps or [None]))

    def follow(number: int, arrays: Any) -> None:
        """After each round, and before the first."""
        if number > 0:
            x, *others = arrays.to_numpy_ndarrays()
            if others:
                raise ValueError(f"its model has {1 + len(others)} arrays; keep the model alone in what it aggregates")
            local = [nodes.local.pop(i, None) for i in spec["rounds"][nodes.t]["clients"]]
            line = {"x": child.plain(x)} if None in local else {"x": child.plain(x), "local": local}
            answers.write(json.dumps(line) + "\n")
            answers.flush()
            nodes.t = min(number, len(spec["rounds"]) - 1)

    initial = app.ArrayRecord({"x": app.Array(np.array(spec["x0"]))})
    strategy.start(grid=nodes, initial_arrays=initial, num_rounds=len(spec["rounds"]), evaluate_fn=follow)


if __name__ == "__main__":
    main(*sys.argv[1:])
