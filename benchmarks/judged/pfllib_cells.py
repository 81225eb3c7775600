"""PFLlib, which no index has: SCAFFOLD's client and server of a checkout, by their attributes' names.

    PFLLIB=checkout/system fedconcord referee scaffold --command "python benchmarks/judged/pfllib_cells.py SCAFFOLD"

Neither `__init__` runs, as both read a data set: what they set is set here, and the server's choice of clients is the
referee's.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import point
import torch

sys.path.insert(0, os.environ["PFLLIB"])
for module in ("h5py", "utils.dlg", "torchvision"):  # what it imports and no cell uses
    sys.modules.setdefault(module, MagicMock())


def judged(is_told: bool) -> Callable[[Any, Any], None]:
    """A cell; told: `learning_rate` falls with the optimiser's step size, which PFLlib's own scheduler does not do."""

    def cell(spec: Any, answer: Any) -> None:
        from flcore.clients.clientscaffold import clientSCAFFOLD
        from flcore.optimizers.fedoptimizer import SCAFFOLDOptimizer
        from flcore.servers.serverscaffold import SCAFFOLD

        server, clients = SCAFFOLD.__new__(SCAFFOLD), []
        for _ in spec["clients"]:
            client = clientSCAFFOLD.__new__(clientSCAFFOLD)
            client.model, client.loss, client.device = point.Point(spec), point.itself, "cpu"
            client.local_epochs, client.train_slow, client.learning_rate_decay = 1, False, False
            client.learning_rate = spec["rounds"][0]["lr"]
            client.optimizer = SCAFFOLDOptimizer(client.model.parameters(), lr=client.learning_rate)
            client.client_c = [torch.zeros_like(p) for p in client.model.parameters()]
            client.train_time_cost = {"num_rounds": 0, "total_cost": 0.0}
            clients.append(client)
        server.clients, server.num_clients, server.server_learning_rate = clients, len(clients), 1.0
        server.global_model = point.Point(spec)
        server.global_c = [torch.zeros_like(p) for p in server.global_model.parameters()]
        for one in spec["rounds"]:
            for client in clients:
                client.set_parameters(server.global_model, copy.deepcopy(server.global_c))
            for i, steps in zip(one["clients"], one["steps"]):  # noqa: B905  (its own Python runs this)
                client = clients[i]
                client.load_train_data = lambda i=i, steps=steps: [(torch.tensor([i]), torch.zeros(1))] * steps
                client.optimizer.param_groups[0]["lr"] = one["lr"]
                if is_told:
                    client.learning_rate = one["lr"]
                client.train()
            server.uploaded_ids, server.num_join_clients = one["clients"], len(one["clients"])
            server.aggregate_parameters()
            answer(server.global_model.x)

    return cell


point.main({"SCAFFOLD": judged(True), "SCAFFOLD(learning_rate_decay)": judged(False)})
