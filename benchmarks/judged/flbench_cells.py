"""FL-bench, which no index has: its servers, its serial trainer and its clients of a checkout.

    FLBENCH=checkout fedconcord referee scaffold --command "python benchmarks/judged/flbench_cells.py SCAFFOLD"

FedAvgServer's `__init__` does not run, as it reads a data set: what it sets is set here, and the server's choice of
clients is the referee's. All others run. An epoch is one step, as a client's data are one batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock

import point
import torch


class Tree(dict):
    """Nested settings by their attributes' names, as omegaconf's DictConfig has them."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error

    __setattr__ = dict.__setitem__


class Model(point.Point):
    """What FL-bench asks of a model."""

    def check_and_preprocess(self, args: Any) -> None:
        """Nothing to prepare."""


class Numbers(torch.utils.data.Dataset):
    """Every client's data: the entry of an index is the index."""

    def __getitem__(self, i: int) -> Any:
        return i, 0

    def train(self) -> None:
        """No transforms."""

    eval = train


point.checkout(
    "FLBENCH",
    *("data", "data.utils", "data.utils.datasets", "hydra", "hydra.core", "hydra.core.hydra_config", "pynvml"),
    *("ray", "ray.actor", "rich", "rich.console", "rich.pretty", "rich.progress", "torchvision"),
    *("src.utils.models", "src.utils.logger", "src.utils.metrics"),
)
sys.modules["omegaconf"] = MagicMock(DictConfig=Tree)
torch.nn.CrossEntropyLoss = point.Loss


def begin(server: Any, args: Any) -> None:
    """What FedAvgServer's `__init__` sets, without a data set."""
    clients = range(len(args.sizes))
    server.args, server.device, server.client_num = args, torch.device("cpu"), len(clients)
    server.train_clients, server.verbose, server.dataset = clients, False, Numbers()
    server.client_data_indices = [{"train": [i] * args.sizes[i], "val": [], "test": []} for i in clients]
    server.client_metrics, server.client_optimizer_states = {i: {} for i in clients}, {i: {} for i in clients}
    server.client_lr_scheduler_states, server.client_local_epoches = {i: {} for i in clients}, [1 for _ in clients]
    server.init_model(Model(args.spec))
    server.init_trainer()


def judged(name: str, options: Callable[[Any], dict[str, Any]] = lambda p: {}, **changes: Any) -> Any:
    """A cell.

    Args:
        name: of the server's class, without its last word.
        options: from the spec's parameters to those of this method's section.
        changes: `server` and `client`, classes whose functions stand in place of FL-bench's; `decay`, whether the
            optimiser's weight decay is alpha; `equal`, whether all clients have the same size.
    """

    def cell(spec: Any, answer: Any) -> None:
        import_module("src.server.fedavg").FedAvgServer.__init__ = begin
        server_class = getattr(import_module(f"src.server.{name.lower()}"), f"{name}Server")
        server_class = type(name, (*changes.get("server", ()), server_class), {})
        server_class.client_cls = type(name, (*changes.get("client", ()), server_class.client_cls), {})
        decay = spec["parameters"]["alpha"] if changes.get("decay") else 0.0
        common = Tree(buffers="global", batch_size=2**20, local_epoch=1, reset_optimizer_on_global_epoch=True)
        common |= {"client_side_evaluation": False, "test": Tree(client=Tree(train=False, val=False, test=False))}
        args = Tree(common=common, mode="serial", model=Tree(external_model_weights_path=None), spec=spec)
        args.optimizer = Tree(name="sgd", lr=spec["rounds"][0]["lr"], weight_decay=decay)
        args.sizes = [2 if changes.get("equal") else int(one["size"]) for one in spec["clients"]]
        args[name.lower()] = Tree(options(spec["parameters"]))
        server = server_class(args)
        state = server.trainer.worker.init_optimizer_state
        for t, one in enumerate(spec["rounds"]):
            server.current_epoch, server.selected_clients = t, one["clients"]
            args.optimizer.lr = state["param_groups"][0]["lr"] = one["lr"]
            for i, steps in zip(one["clients"], one["steps"]):  # noqa: B905  (its own Python runs this)
                server.client_local_epoches[i] = steps
            server.train_one_round()
            answer(server.public_model_params["x"])

    return cell


class OwnSteps:
    """SCAFFOLD's client whose setting says its own number of steps, as FL-bench's stragglers' does not."""

    def fit(self: Any) -> None:
        self.args.common.local_epoch = self.local_epoch
        super().fit()


class Memory:
    """SCAFFOLD's server that stores clients' control variates."""

    def aggregate_client_updates(self: Any, client_packages: Any) -> None:
        super().aggregate_client_updates(client_packages)
        for i, package in client_packages.items():
            self.c_local[i] = [c + change for c, change in zip(self.c_local[i], package["c_delta"])]  # noqa: B905


class OwnDuals:
    """FedADMM's worker that keeps a dual variable a client, where FL-bench's has one."""

    def set_parameters(self: Any, package: Any) -> None:
        self.duals = getattr(self, "duals", {})
        zeros = {name: torch.zeros_like(dual) for name, dual in self.alpha.items()}
        self.alpha = self.duals.setdefault(package["client_id"], zeros)
        super().set_parameters(package)


class HeavyBall:
    """FedAvgM's server without Nesterov's look ahead."""

    def __init__(self: Any, args: Any) -> None:
        super().__init__(args)
        self.global_optmizer.param_groups[0]["nesterov"] = False


def dyn(**changes: Any) -> Any:
    return judged("FedDyn", lambda p: {"alpha": p["alpha"], "max_grad_norm": 10.0}, **changes)


def opt(kind: str) -> Any:
    return judged("FedOpt", lambda p: {"type": kind, "beta2": 0.0, **p})


def admm(**changes: Any) -> Any:
    return judged("FedADMM", lambda p: {"rho": p["rho"], "fixed": 1, "eta": 1.0, "target_round": 2**20}, **changes)


def scaffold(**changes: Any) -> Any:
    return judged("SCAFFOLD", lambda p: {"global_lr": p["server_lr"]}, **changes)


def avgm(**changes: Any) -> Any:
    return judged("FedAvgM", lambda p: {"server_momentum": p["server_momentum"]}, **changes)


point.main(
    {
        "FedAvg": judged("FedAvg"),
        "FedProx": judged("FedProx", lambda p: {"mu": p["mu"]}),
        "SCAFFOLD": scaffold(client=(OwnSteps,)),
        "SCAFFOLD, repaired": scaffold(client=(OwnSteps,), server=(Memory,)),
        "SCAFFOLD(straggler_ratio), repaired but for steps": scaffold(server=(Memory,)),
        "FedDyn": dyn(equal=True),
        "FedDyn(weight_decay=alpha)": dyn(decay=True, equal=True),
        "FedDyn(weight_decay=alpha), unequal sizes": dyn(decay=True),
        "FedAvgM": avgm(),
        "FedAvgM, repaired": avgm(server=(HeavyBall,)),
        "FedOpt(adam)": opt("adam"),
        "FedOpt(yogi)": opt("yogi"),
        "FedOpt(adagrad)": opt("adagrad"),
        "FedADMM": admm(equal=True),
        "FedADMM, repaired": admm(equal=True, client=(OwnDuals,)),
    }
)
