"""fluke: its algorithms, each with its own server and client; cohorts, steps and step sizes are set from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import point  # noqa: F401  before the package: it makes torch ready
import torch
import vision  # noqa: F401  before the package, which imports torchvision
from fluke import DDict, FlukeENV
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.utils import FederationObserver
from fluke.utils.model import flatten_parameters
from point import Loss, Point, main, samples

SERVER: list[Any] = []  # of the cell that runs


def judged(
    file: str,
    algorithm: str,
    client_options: dict[str, Any] | None = None,
    change: Any = None,
    look: float | None = None,
    **server_options: Any,
) -> Callable[[Any, Any], None]:
    """A cell; `change` is handed the classes of server and client and returns others.

    Where clients look ahead by a step size of its own, the local one is their option `beta`.
    """

    def cell(spec: Any, answer: Any) -> None:
        FlukeENV().set_eval_cfg(
            task="classification", n_classes=2, locals=False, pre_fit=False, post_fit=False, server=False
        )
        cls = getattr(import_module(f"fluke.algorithms.{file}"), algorithm)
        bare = cls.__new__(cls)
        server_class, client_class = bare.get_server_class(), bare.get_client_class()
        if change is not None:
            server_class, client_class = change(server_class, client_class)
        optimizer = bare.get_optimizer_class()

        def steps(lr: float) -> OptimizerConfigurator:
            extra = {} if optimizer is torch.optim.SGD else {"name": optimizer}
            return OptimizerConfigurator(DDict(**{"name": "SGD", "lr": lr, **extra}))

        clients = []
        for i in range(len(spec["clients"])):
            x, y = samples(spec, i)
            data = FastDataLoader(x, y, num_labels=2, batch_size=len(y), shuffle=False)
            clients.append(
                client_class(
                    index=i,
                    train_set=data,
                    test_set=None,
                    optimizer_cfg=steps(0.1),
                    loss_fn=Loss(),
                    local_epochs=1,
                    clipping=0,
                    **(client_options or {}),
                )
            )
        server = server_class(model=Point(spec), test_set=None, clients=clients, **server_options)
        SERVER[:] = [server]
        cohorts: Iterator[Any] = iter(spec["rounds"])

        def next_cohort(share: float) -> list[Any]:
            one = next(cohorts)
            for i, count in zip(one["clients"], one["steps"]):  # noqa: B905  (its own Python runs this)
                clients[i].hyper_params.local_epochs = count
                clients[i]._optimizer_cfg = steps(one["lr"] if look is None else look)
                if look is not None:
                    clients[i].hyper_params.beta = one["lr"]
                if clients[i].model is not None:
                    clients[i].optimizer = None
            return [clients[i] for i in one["clients"]]

        server.get_eligible_clients = next_cohort

        class Watch(FederationObserver):  # type: ignore[misc]
            def end_round(self, round: int) -> None:
                answer(flatten_parameters(server.model))

        federation = cls(len(clients), None, None, clients=clients, server=server)
        federation.finalize = lambda: None
        federation.set_callbacks(Watch())
        federation.run(len(spec["rounds"]), 0.5, finalize=False)

    return cell


def first_round_too(server: type, client: type) -> tuple[type, type]:
    """FedAVGM whose first round moves too: its momentum starts at 0 before that round, not after."""

    class Mine(server):  # type: ignore[misc, valid-type]
        def aggregate(self, eligible: Any, models: Any) -> None:
            if self.momentum_vector is None:
                self.momentum_vector = {k: torch.zeros_like(v) for k, v in self.model.state_dict().items()}
            super().aggregate(eligible, models)

    return Mine, client


def stepped_once(server: type, client: type) -> tuple[type, type]:
    """FedOpt whose mean move is not scaled by the server's step size before the moments see it."""

    class Mine(server):  # type: ignore[misc, valid-type]
        def aggregate(self, eligible: Any, models: Any) -> None:
            lr = self.hyper_params.lr

            class Options(DDict):  # type: ignore[misc]
                """The step size is 1 where the base class averages, which asks first."""

                asked = 0

                @property
                def lr(self) -> float:
                    Options.asked += 1
                    return 1.0 if Options.asked == 1 else lr

            options = Options(**{k: v for k, v in self.hyper_params.items() if k != "lr"})
            self.hyper_params, before = options, self.hyper_params
            super().aggregate(eligible, models)
            self.hyper_params = before

    return Mine, client


def cleared(server: type, client: type) -> tuple[type, type]:
    """FedSAM whose gradients are zero before each step."""

    class Mine(client):  # type: ignore[misc, valid-type]
        def _get_closure(self, x: Any, y: Any) -> Any:
            self.optimizer.zero_grad()
            return super()._get_closure(x, y)

    return server, Mine


def stepped_back(server: type, client: type) -> tuple[type, type]:
    """Per-FedAvg whose second step starts where the first did, not where it led."""

    class Mine(client):  # type: ignore[misc, valid-type]
        def fit(self, override_local_epochs: int = 0) -> float:
            self.optimizer, _ = self._optimizer_cfg(self.model)
            inner, start = self.optimizer.step, self.model.x.detach().clone()

            def step(parameters: Any, beta: float = 0.0) -> None:
                with torch.no_grad():
                    if beta:
                        self.model.x.copy_(start)
                    inner(beta=beta)
                    if beta:
                        start.copy_(self.model.x)

            self.optimizer.step = step
            loss: float = super().fit(override_local_epochs)
            return loss

    return server, Mine


def as_published(server: type, client: type) -> tuple[type, type]:
    """FedDyn with four spots as its authors' code has them; each is named where it stands."""
    n = 8  # clients

    class MineServer(server):  # type: ignore[misc, valid-type]
        def aggregate(self, eligible: Any, models: Any) -> None:
            self.kept = getattr(self, "kept", {})
            super().aggregate(eligible, models)
            for one in eligible:
                self.kept[one.index] = one.prev_grads.clone()
            with torch.no_grad():  # 1. the mean of all clients' memories, not of the cohort's
                self.cld_mdl.x.copy_(self.model.x + sum(self.kept.values()) / n)

    class MineClient(client):  # type: ignore[misc, valid-type]
        def receive_model(self) -> None:
            is_new = self.model is None
            super().receive_model()
            if is_new:  # 2. a client that is there for the first time starts from the cloud's model as others do
                self.model.load_state_dict(SERVER[0].cld_mdl.state_dict())

        def fit(self, override_local_epochs: int = 0) -> float:
            old, start = self.prev_grads.clone(), flatten_parameters(self.model).detach().clone()
            loss: float = super().fit(override_local_epochs)
            # 3. and 4. the memory is the move itself: not its negative, and not times alpha
            self.prev_grads = old + flatten_parameters(self.model).detach() - start
            return loss

    return MineServer, MineClient


def weights_of_moves(server: type, client: type) -> tuple[type, type]:
    """FedNova that adds what the weights lack to 1 times the server's model: it then averages moves."""

    class Mine(server):  # type: ignore[misc, valid-type]
        def aggregate(self, eligible: Any, models: Any) -> None:
            models, before = list(models), flatten_parameters(self.model).clone()
            weights = torch.tensor(self._get_client_weights(eligible))
            a = torch.tensor([float(one.a) for one in eligible])
            super().aggregate(eligible, models)
            with torch.no_grad():
                self.model.x += (1 - (weights * (weights @ a) / a).sum()) * before

    return Mine, client


main(
    {
        "FedAVG": judged("fedavg", "FedAVG"),
        "FedAVG(weighted)": judged("fedavg", "FedAVG", weighted=True),
        "FedAVGM": judged("fedavgm", "FedAVGM", weighted=False, momentum=0.9),
        "FedAVGM, repaired": judged("fedavgm", "FedAVGM", change=first_round_too, weighted=False, momentum=0.9),
        "FedProx": judged("fedprox", "FedProx", {"mu": 0.5}),
        "SCAFFOLD": judged("scaffold", "SCAFFOLD", weighted=False),
        "FedDyn": judged("feddyn", "FedDyn", {"alpha": 0.5}, weighted=False, alpha=0.5),
        "FedDyn, repaired": judged("feddyn", "FedDyn", {"alpha": 0.5}, change=as_published, weighted=False, alpha=0.5),
        "FedNova": judged("fednova", "FedNova", weighted=True),
        "FedOpt(adam)": judged("fedopt", "FedOpt", mode="adam", lr=0.1, beta2=0.99, tau=1e-3, weighted=False),
        "FedOpt(yogi)": judged("fedopt", "FedOpt", mode="yogi", lr=0.1, beta2=0.99, tau=1e-3, weighted=False),
        "FedOpt(adagrad)": judged("fedopt", "FedOpt", mode="adagrad", lr=0.1, tau=1e-3, weighted=False),
        "FedOpt(adam), step repaired": judged(
            "fedopt", "FedOpt", change=stepped_once, mode="adam", lr=0.1, beta2=0.99, tau=1e-3, weighted=False
        ),
        "FedOpt(yogi), step repaired": judged(
            "fedopt", "FedOpt", change=stepped_once, mode="yogi", lr=0.1, beta2=0.99, tau=1e-3, weighted=False
        ),
        "FedOpt(adagrad), step repaired": judged(
            "fedopt", "FedOpt", change=stepped_once, mode="adagrad", lr=0.1, tau=1e-3, weighted=False
        ),
        "FedNova, repaired": judged("fednova", "FedNova", change=weights_of_moves, weighted=True),
        "FedSAM, repaired": judged("fedsam", "FedSAM", {"rho": 0.1}, change=cleared),
        "FedExP": judged("fedexp", "FedExP"),
        "FedSAM": judged("fedsam", "FedSAM", {"rho": 0.1}),
        "PerFedAVG": judged("per_fedavg", "PerFedAVG", {"mode": "FO", "beta": 0.1}, look=0.01),
        "PerFedAVG, repaired": judged(
            "per_fedavg", "PerFedAVG", {"mode": "FO", "beta": 0.1}, change=stepped_back, look=0.01
        ),
    }
)
