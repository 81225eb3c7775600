"""NVFlare: the aggregation and the update of its controllers, and its helpers for clients, without its messaging."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import point
import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg
from nvflare.app_common.workflows.scaffold import scaffold_aggregate_fn
from nvflare.app_opt.pt.fedopt_ctl import FedOpt
from nvflare.app_opt.pt.fedproxloss import PTFedProxLoss
from nvflare.app_opt.pt.scaffold import PTScaffoldHelper


def moves(spec: Any, one: Any, x: np.ndarray, mu: float = 0.0, weigh: bool = False) -> list[FLModel]:
    """The cohort's answers; with `mu` the client adds NVFlare's proximal loss, with `weigh` it counts its samples."""
    answers, prox = [], PTFedProxLoss(mu)
    for i in one["clients"]:
        model, start = point.Point(spec), point.Point(spec)
        for m in (model, start):
            m.load_state_dict({"x": torch.as_tensor(x)})
        optimiser = torch.optim.SGD(model.parameters(), lr=one["lr"])
        for _ in range(one["steps"][one["clients"].index(i)]):
            optimiser.zero_grad()
            (model(torch.tensor([i])) + (prox(model, start) if mu else 0.0)).backward()
            optimiser.step()
        meta = {"NUM_STEPS_CURRENT_ROUND": spec["clients"][i]["size"]} if weigh else {}
        change = {"x": model.x.detach().numpy() - x}
        answers.append(FLModel(params_type=ParamsType.DIFF, params=change, meta=meta, current_round=0))
    return answers


def averaged(**options: Any) -> Callable[[Any, Any], None]:
    """FedAvg's aggregation and its update."""

    def cell(spec: Any, answer: Any) -> None:
        model = FLModel(params_type=ParamsType.FULL, params={"x": np.array(spec["x0"])})
        for one in spec["rounds"]:
            result = BaseFedAvg.aggregate_fn(moves(spec, one, model.params["x"], **options))
            model = FLModelUtils.update_model(model, result)
            answer(model.params["x"])

    return cell


def optimised(optimiser: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    """FedOpt's update, with an optimiser of torch."""

    def cell(spec: Any, answer: Any) -> None:
        server = FedOpt.__new__(FedOpt)
        server.torch_model, server.device, server.lr_scheduler = point.Point(spec), torch.device("cpu"), None
        server.optimizer = optimiser(server.torch_model.parameters())
        for one in spec["rounds"]:
            x = server.torch_model.x.detach().numpy().copy()
            result = BaseFedAvg.aggregate_fn(moves(spec, one, x))
            server.optimizer_update(result.params)
            answer(server.torch_model.x)

    return cell


def scaffold(share: bool) -> Callable[[Any, Any], None]:
    """SCAFFOLD's aggregation and helper; with `share` the controls' mean of the cohort counts S/N."""

    def cell(spec: Any, answer: Any) -> None:
        n = len(spec["clients"])
        models = [point.Point(spec) for _ in range(n)]
        helpers = [PTScaffoldHelper() for _ in range(n)]
        for helper, model in zip(helpers, models):  # noqa: B905  (its own Python runs this)
            helper.init(model)
        server = FLModel(params_type=ParamsType.FULL, params={"x": np.array(spec["x0"])})
        control = {"x": np.zeros(len(spec["x0"]))}
        for one in spec["rounds"]:
            results = []
            for i, steps in zip(one["clients"], one["steps"]):  # noqa: B905  (its own Python runs this)
                model, start, helper = models[i], point.Point(spec), helpers[i]
                for m in (model, start):
                    m.load_state_dict({"x": torch.as_tensor(server.params["x"])})
                helper.load_global_controls(control)
                c_global, c_local = helper.get_params()
                optimiser = torch.optim.SGD(model.parameters(), lr=one["lr"])
                for _ in range(steps):
                    optimiser.zero_grad()
                    model(torch.tensor([i])).backward()
                    optimiser.step()
                    helper.model_update(model, one["lr"], c_global, c_local)
                helper.terms_update(model, one["lr"], c_global, c_local, start)
                meta = {AlgorithmConstants.SCAFFOLD_CTRL_DIFF: helper.get_delta_controls()}
                change = {"x": model.x.detach().numpy() - server.params["x"]}
                results.append(FLModel(params_type=ParamsType.DIFF, params=change, meta=meta, current_round=0))
            result = scaffold_aggregate_fn(results)
            server = FLModelUtils.update_model(server, result)
            factor = len(results) / n if share else 1.0
            control = {"x": control["x"] + factor * result.meta[AlgorithmConstants.SCAFFOLD_CTRL_DIFF]["x"]}
            answer(server.params["x"])

    return cell


point.main(
    {
        "FedAvg": averaged(),
        "FedAvg(num steps)": averaged(weigh=True),
        "FedProx": averaged(mu=0.5),
        "FedOpt(SGD)": optimised(lambda x: torch.optim.SGD(x, lr=1.0, momentum=0.9)),
        "FedOpt(Adam)": optimised(lambda x: torch.optim.Adam(x, lr=0.1, betas=(0.9, 0.99), eps=1e-3)),
        "Scaffold": scaffold(False),
        "Scaffold, repaired": scaffold(True),
    }
)
