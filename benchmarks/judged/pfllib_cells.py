"""PFLlib, which no index has: its servers and clients of a checkout, by its own loop of rounds.

    PFLLIB=checkout/system fedconcord referee scaffold --command "python benchmarks/judged/pfllib_cells.py SCAFFOLD"

All of it runs, `__init__` too, but for what reads or tests data, and the choice of clients, which is the referee's. An
epoch is one step, as a client's data are one batch.
"""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module
from typing import Any

import point
import torch

point.checkout("PFLLIB", "h5py", "utils.data_utils", "utils.dlg", "torchvision")
torch.nn.CrossEntropyLoss = point.Loss


class Settings(Namespace):
    """PFLlib's arguments: 0, False or nothing for all that is not stated."""

    def __getattr__(self, name: str) -> int:
        return 0


def judged(name: str, method: str, is_told: bool = True, **changes: Any) -> Any:
    """A cell.

    Args:
        name: of the server's class.
        method: the end of its module's name.
        is_told: `learning_rate` falls with the optimiser's step size, which PFLlib's own scheduler does not do.
        changes: `torch`, what the client's module takes for torch.
    """

    def cell(spec: Any, answer: Any) -> None:
        module, rounds, p = import_module(f"flcore.servers.server{method}"), iter(spec["rounds"]), spec["parameters"]
        base = import_module("flcore.servers.serverbase")
        client_module = import_module(f"flcore.clients.client{method}")
        client_module.torch = changes.get("torch", torch)

        def data(dataset: Any, i: int, is_train: bool, few_shot: int) -> Any:
            return list(zip(*point.samples(spec, i)))  # noqa: B905  (its own Python runs this)

        base.read_client_data = import_module("flcore.clients.clientbase").read_client_data = data

        class Server(getattr(module, name)):
            def select_clients(self) -> Any:
                one = next(rounds)
                cohort = [self.clients[i] for i in one["clients"]]
                for client, client.local_epochs in zip(cohort, one["steps"]):  # noqa: B905
                    client.batch_size = client.train_samples
                    client.optimizer.param_groups[0]["lr"] = one["lr"]
                    client.learning_rate = one["lr"] if is_told else spec["rounds"][0]["lr"]
                return cohort

            def evaluate(self) -> None:
                self.rs_test_acc = [0.0]

            def aggregate_parameters(self) -> None:
                super().aggregate_parameters()
                answer(self.global_model.x)

            save_results = save_global_model = lambda self: None

        n, lr = len(spec["clients"]), spec["rounds"][0]["lr"]
        args = Settings(model=point.Point(spec), device="cpu", num_clients=n, global_rounds=len(spec["rounds"]) - 1)
        args.local_learning_rate, args.learning_rate_decay_gamma, args.server_learning_rate = lr, 1.0, 1.0
        args.join_ratio, args.time_threthold, args.eval_gap = len(spec["rounds"][0]["clients"]) / n, float("inf"), 1
        args.alpha, args.mu = p.get("alpha"), p.get("mu")
        Server(args, 0).train()

    return cell


class SquareNorm:
    """torch, with the square of a norm for the norm."""

    norm = staticmethod(lambda v, order: v @ v)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


point.main(
    {
        "FedAvg": judged("FedAvg", "avg"),
        "FedProx": judged("FedProx", "prox"),
        "SCAFFOLD": judged("SCAFFOLD", "scaffold"),
        "SCAFFOLD(learning_rate_decay)": judged("SCAFFOLD", "scaffold", is_told=False),
        "FedDyn": judged("FedDyn", "dyn"),
        "FedDyn, repaired": judged("FedDyn", "dyn", torch=SquareNorm()),
    }
)
