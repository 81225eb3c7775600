"""FL-Simulator, which no index has: its servers and clients of a checkout, by its own loop of rounds.

    FLSIM=checkout fedconcord referee scaffold --command "python benchmarks/judged/flsim_cells.py SCAFFOLD"

All of it runs, `__init__` too, but for what reads or tests data, and the choice of clients, which is the referee's. A
client's data are as many batches as it takes steps, so client 0's at the start say how many FL-Simulator thinks that
all take: those of its first round.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any
from unittest.mock import MagicMock

import point
import torch

sys.modules["dataset"] = MagicMock(Dataset=lambda rows, labels, train, dataset_name: list(zip(rows, labels)))  # noqa: B905
point.checkout("FLSIM")
torch.nn.CrossEntropyLoss = point.Loss


def judged(name: str, **changes: Any) -> Any:
    """A cell.

    Args:
        name: of the server's class.
        changes: `server`, a class whose functions stand in place of FL-Simulator's.
    """

    def cell(spec: Any, answer: Any) -> None:
        import server

        rounds, p, model = spec["rounds"], spec["parameters"], point.Point(spec)
        args = Namespace(total_client=len(spec["clients"]), comm_rounds=len(rounds), method=name, dataset="")
        args.local_learning_rate, args.lr_decay = rounds[0]["lr"], rounds[1]["lr"] / rounds[0]["lr"]
        args.local_epochs, args.batchsize, args.weight_decay, args.use_RI = 1, 1, 0.0, False
        args.global_learning_rate, args.epsilon = p.get("server_lr", 1.0), p.get("tau")
        args.beta1, args.beta2, args.rho = p.get("beta1"), p.get("beta2"), p.get("radius")
        args.alpha, args.lamb = p.get("alpha"), p.get("mu", p.get("alpha"))
        schedule = [pair for one in rounds for pair in zip(one["clients"], one["steps"])]  # noqa: B905
        first = next((steps for i, steps in schedule if i == 0), 1)
        data = Namespace(client_x={0: torch.zeros(first)}, client_y={})

        def choose(t: int) -> list[int]:
            for i, steps in zip(rounds[t]["clients"], rounds[t]["steps"]):  # noqa: B905  (its own Python runs this)
                data.client_x[i], data.client_y[i] = torch.full((steps, 1), i), torch.zeros(steps)
            return rounds[t]["clients"]

        simulator = type(name, (*changes.get("server", ()), getattr(server, name)), {})(
            torch.device("cpu"), lambda: point.Point(spec), model, model.x.detach().clone(), data, name, args
        )
        simulator._activate_clients_, simulator._save_results_ = choose, lambda: None
        simulator._test_ = lambda t, selected: answer(simulator.server_model_params_list)
        simulator.train()

    return cell


class OwnSteps:
    """A server that divides by the steps that a client took, where FL-Simulator divides by client 0's."""

    def postprocess(self: Any, client: int, received_vecs: Any) -> None:
        self.local_iteration = len(self.datasets.client_x[client])
        super().postprocess(client, received_vecs)


class OwnMeans:
    """The same for FedCM, which divides the cohort's mean: the mean of what each client's move is by its steps."""

    def process_for_communication(self: Any, client: int, Averaged_update: Any) -> None:
        if not hasattr(self, "moves"):
            self.moves, self.last = [], torch.zeros_like(Averaged_update)
        self.local_iteration = 1
        super().process_for_communication(client, self.last)

    def postprocess(self: Any, client: int, received_vecs: Any) -> None:
        self.moves.append(received_vecs["local_update_list"] / len(self.datasets.client_x[client]))

    def global_update(self: Any, *of_round: Any) -> Any:
        self.last, self.moves = torch.stack(self.moves).mean(0), []
        return super().global_update(*of_round)


plain = ("FedAvg", "FedProx", "SCAFFOLD", "FedDyn", "FedCM", "FedAdam", "FedSAM", "FedSpeed", "FedSMOO", "MoFedSAM")
point.main(
    {name: judged(name) for name in (*plain, "FedGamma")}
    | {f"{name}, repaired": judged(name, server=(OwnSteps,)) for name in ("SCAFFOLD", "FedGamma")}
    | {f"{name}, repaired": judged(name, server=(OwnMeans,)) for name in ("FedCM", "MoFedSAM")}
)
