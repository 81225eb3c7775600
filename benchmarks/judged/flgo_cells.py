"""FLGo: its algorithms in the horizontal scene; cohorts, steps and step sizes are set from outside."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from importlib import import_module
from typing import Any

import point
import torch
from flgo.utils.fmodule import FModule
from torch.utils.data import TensorDataset


class Point(FModule):  # type: ignore[misc]
    """The model with FLGo's arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor(SPEC["x0"]))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return point.value(SPEC, int(rows.reshape(-1)[0]), self.x)

    def __deepcopy__(self, memo: Any) -> Point:
        other = Point()
        other.load_state_dict(self.state_dict())
        return other


class Calculator:
    """What its parties compute with."""

    def __init__(self, device: Any, optimizer_name: str = "sgd") -> None:
        self.device, self.optimizer_name, self.criterion = torch.device("cpu"), optimizer_name, point.itself

    def get_optimizer(self, model: Any, lr: float, weight_decay: float = 0.0, momentum: float = 0.0) -> Any:
        return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr, weight_decay=weight_decay)

    def compute_loss(self, model: Any, data: Any) -> dict[str, Any]:
        return {"loss": model(data[0])}

    def test(self, model: Any, dataset: Any, *values: Any, **options: Any) -> dict[str, float]:
        return {"loss": float(model(dataset.tensors[0]))}

    def get_dataloader(self, dataset: Any, **options: Any) -> list[Any]:
        return [dataset.tensors]


class Communicator:
    """Messages between a server and its clients, without delays."""

    def __init__(self, clients: list[Any]) -> None:
        self.clients = clients

    def request(self, source: Any, target: int, package: Any) -> Any:
        return self.clients[target].message_handler(package)


SPEC: Any = {}
OPTIONS = {
    "task": "", "eval_interval": -1, "num_parallels": 1, "server_with_cpu": False, "optimizer": "SGD", "num_rounds": 0,
    "num_steps": 1, "num_epochs": 1, "proportion": 0.4, "learning_rate_decay": 1.0, "lr_scheduler": "-1",
    "learning_rate": 0.1, "sample": "uniform", "aggregate": "uniform", "momentum": 0.0, "weight_decay": 0.0,
    "batch_size": -1, "clip_grad": 0.0, "test_batch_size": 512, "num_workers": 0, "test_parallel": False,
    "use_cache": False, "pin_memory": False, "no_tqdm": True, "scene": "horizontal", "algo_para": None,
}  # fmt: skip


def judged(
    file: str,
    aggregate: str = "uniform",
    then: Callable[[Any, list[int], torch.Tensor], torch.Tensor] | None = None,
    decay: float = 0.0,
    **parameters: float,
) -> Callable[[Any, Any], None]:
    """A cell; the parameters in the order that the algorithm has them.

    `then` gets the server after a round, its cohort and the model before it, and returns what is added to the model.
    """

    def cell(spec: Any, answer: Any) -> None:
        SPEC.update(spec)
        os.chdir(tempfile.mkdtemp())
        module = import_module(f"flgo.algorithm.{file}")
        clients: list[Any] = []

        class Common:
            communicator = Communicator(clients)
            logger = simulator = clock = None
            cache_path = ""
            apply_for_device = staticmethod(lambda: torch.device("cpu"))

        options = {**OPTIONS, "aggregate": aggregate, "weight_decay": decay}
        options["algo_para"] = list(parameters.values()) or None
        for cls in (module.Server, module.Client):
            cls.gv, cls.TaskCalculator = Common(), Calculator
        server = module.Server(options)
        clients += [module.Client(options) for _ in spec["clients"]]
        for i, client in enumerate(clients):
            client.set_id(i)
            client.set_data(TensorDataset(*point.samples(spec, i)), "train")
        server.model = Point()
        server.register_clients(clients)
        server.device = torch.device("cpu")
        for party in [server, *clients]:
            party.initialize()
        server.aggregation_option = aggregate
        for one in spec["rounds"]:
            server.sample = lambda one=one: list(one["clients"])
            server.learning_rate = one["lr"]
            for i, count in zip(one["clients"], one["steps"]):  # noqa: B905  (its own Python runs this)
                clients[i].num_steps, clients[i].learning_rate = count, one["lr"]
            before = server.model.x.detach().clone()
            plainly(server)
            if then is not None:
                with torch.no_grad():
                    server.model.x += then(server, one["clients"], before)
            answer(server.model.x)

    return cell


def rest_of_weights(server: Any, cohort: list[int], before: torch.Tensor) -> torch.Tensor:
    """What weights p_k N/S of models lack to 1 stays at x, which makes them weights of moves."""
    p = [len(client.train_data) for client in server.clients]
    return (1 - sum(p[i] for i in cohort) / sum(p) * len(p) / len(cohort)) * before


def offset_of_all(server: Any, cohort: list[int], before: torch.Tensor) -> torch.Tensor:
    """FedSpeed's offset as the mean over all clients, where FLGo's models bring the cohort's."""
    h = torch.stack([client.local_grad_controller.x for client in server.clients])
    return h.mean(0) - h[cohort].mean(0)


def plainly(server: Any) -> None:
    """A round, with `communicate` as it is below its simulated clock."""
    bare = type(server).communicate
    bare = getattr(bare, "__wrapped__", None) or bare.__closure__[0].cell_contents
    server.communicate = lambda chosen, *values, **options: bare(server, chosen, *values, **options)
    server.iterate()


point.main(
    {
        "fedavg": judged("fedavg"),
        "fedavg(aggregate=other)": judged("fedavg", "other"),
        "fedavg(aggregate=weighted_com)": judged("fedavg", "weighted_com"),
        "fedavg(aggregate=weighted_scale)": judged("fedavg", "weighted_scale"),
        "fedavg(aggregate=weighted_scale), repaired": judged("fedavg", "weighted_scale", rest_of_weights),
        "fedavgm": judged("fedavgm", beta=0.9),
        "fedprox": judged("fedprox", mu=0.5),
        "scaffold": judged("scaffold", eta=1.0),
        "feddyn": judged("feddyn", alpha=0.5),
        "fednova": judged("fednova", "other"),
        "qfedavg": judged("qfedavg", q=1.0),
        "afl": judged("afl", learning_rate_lambda=0.1),  # its last model; it tests the mean of all, as the paper does
        "fedspeed": judged("fedspeed", lmbd=0.5, alpha=1.0, rho=0.1),
        # -0.5 reverses the linear term's sign, and that of the decay that FLGo adds to it, which 1 makes up for
        "fedspeed, repaired": judged("fedspeed", then=offset_of_all, decay=1.0, lmbd=-0.5, alpha=1.0, rho=0.1),
    }
)
