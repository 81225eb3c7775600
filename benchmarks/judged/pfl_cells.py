"""pfl-research: its algorithms' client and server steps, without its simulator; differences are in single precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import point
import torch
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

torch.set_default_dtype(torch.float64)


class Network(point.Point):
    """The model with the two methods that pfl asks for."""

    def loss(self, rows: Any, labels: Any) -> Any:
        return self(rows)

    def metrics(self, rows: Any, labels: Any) -> dict[str, Any]:
        return {}


def judged(
    algorithm: Callable[[], Any], params: Callable[..., Any], server: Callable[[Any], Any], **options: Any
) -> Callable[[Any, Any], None]:
    """A cell: an algorithm, its parameters, and the optimiser of its server."""

    def cell(spec: Any, answer: Any) -> None:
        network, one_algorithm = Network(spec), algorithm()
        model = PyTorchModel(network, torch.optim.SGD, server(network.parameters()))
        n, cohort = len(spec["clients"]), len(spec["rounds"][0]["clients"])
        more = {key: value(n) if callable(value) else value for key, value in options.items()}
        parameters = params(
            central_num_iterations=len(spec["rounds"]) + 1,
            evaluation_frequency=10**6,
            train_cohort_size=cohort,
            val_cohort_size=0,
            **more,
        )
        for t, one in enumerate(spec["rounds"]):
            total = None
            contexts: Any = ()
            for i, steps in zip(one["clients"], one["steps"]):  # noqa: B905  (its own Python runs this)
                train = NNTrainHyperParams(local_num_epochs=steps, local_learning_rate=one["lr"], local_batch_size=None)
                if not contexts:
                    contexts, *_ = one_algorithm.get_next_central_contexts(model, t, parameters, train)
                context = CentralContext(t, False, len(one["clients"]), Population.TRAIN, parameters, train)
                before = model.get_parameters()
                data = PyTorchTensorDataset(point.samples(spec, i), user_id=str(i))
                statistics, _ = one_algorithm.train_one_user(before, model, data, context)
                statistics = statistics.apply_elementwise(lambda leaf: leaf.clone())
                model.set_parameters(before)
                total = statistics if total is None else total + statistics
            one_algorithm.process_aggregated_statistics(context, Metrics(), model, total)
            answer(network.x)

    return cell


class Signed(SCAFFOLD):  # type: ignore[misc]
    """SCAFFOLD with the sign of the move, x - y, that the paper's control variates have (option II)."""

    def train_one_user(self, initial: Any, model: Any, data: Any, context: Any) -> Any:
        storage, user = context.algorithm_params.user_state_storage, str(data.user_id)
        payload, metrics = super().train_one_user(initial, model, data, context)
        new = storage.load_state(user, "local_c").apply_elementwise(lambda leaf: leaf.clone())
        scale = 2 / (context.model_train_params.local_num_epochs * context.model_train_params.local_learning_rate)
        for k in new:
            new[k] = new[k] - scale * payload[f"model_update/{k}"]
            payload[f"c/{k}"] = payload[f"c/{k}"] - scale * payload[f"model_update/{k}"]
        storage.save_state(new, user, "local_c")
        return payload, metrics


def negated(is_kept: bool, sign: float) -> Callable[[], Any]:
    """Option I whose gradients have another sign, and stay what they are when the next client's are computed."""

    class Mine(SCAFFOLD):  # type: ignore[misc]
        def train_one_user(self, initial: Any, model: Any, data: Any, context: Any) -> Any:
            inner, count = model.get_model_difference, [0]

            def difference(other: Any, clone: bool = False) -> Any:
                count[0] += 1
                value = inner(other, clone=clone or is_kept)
                return value.apply_elementwise(lambda leaf: sign * leaf) if count[0] == 1 else value

            model.get_model_difference = difference
            try:
                return super().train_one_user(initial, model, data, context)
            finally:
                del model.get_model_difference

    return Mine


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=1.0)


def scaffold(make: Callable[[], Any], first: bool) -> Callable[[Any, Any], None]:
    return judged(
        make,
        SCAFFOLDParams,
        sgd,
        population=lambda n: n,
        use_gradient_as_control_variate=first,
        user_state_storage=InMemoryUserStateStorage(),
    )


point.main(
    {
        "FederatedAveraging": judged(FederatedAveraging, NNAlgorithmParams, sgd),
        "FederatedAveraging(momentum)": judged(
            FederatedAveraging, NNAlgorithmParams, lambda x: torch.optim.SGD(x, lr=1.0, momentum=0.9)
        ),
        "FederatedAveraging(Adam)": judged(
            FederatedAveraging,
            NNAlgorithmParams,
            lambda x: torch.optim.Adam(x, lr=0.1, betas=(0.9, 0.99), eps=1e-3),
        ),
        "FedProx": judged(FedProx, FedProxParams, sgd, mu=0.5),
        "SCAFFOLD": scaffold(SCAFFOLD, False),
        "SCAFFOLD, repaired": scaffold(Signed, False),
        "SCAFFOLD(option I)": scaffold(SCAFFOLD, True),
        "SCAFFOLD(option I), kept": scaffold(negated(True, 1.0), True),
        "SCAFFOLD(option I), repaired": scaffold(negated(True, -1.0), True),
    }
)
