"""FedJAX: its algorithms; clients' data are copies of their number, and cohorts, steps and step sizes are set anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import point

jax.config.update("jax_enable_x64", True)


def losses(spec: Any) -> Callable[[Any, Any, Any], Any]:
    """(x [d], batch, key) -> f_i(x) for each sample of the batch."""
    clients = spec["clients"]

    def one(x: Any, i: Any) -> Any:
        if spec["kind"] == "quadratic":
            A, b = jnp.array([c["A"] for c in clients])[i], jnp.array([c["b"] for c in clients])[i]
            return 0.5 * x @ A @ x - b @ x
        most = max(len(c["rows"]) for c in clients)
        rows = jnp.array([np.pad(c["rows"], ((0, most - len(c["rows"])), (0, 0))) for c in clients])[i]
        labels = jnp.array([np.pad(c["labels"], (0, most - len(c["labels"]))) for c in clients])[i]
        count = jnp.array([len(c["rows"]) for c in clients])[i]
        here, z = jnp.arange(most) < count, rows @ x
        return (here * (jnp.logaddexp(0, z) - labels * z)).sum() / count + spec["l2"] / 2 * (x**2).sum()

    return lambda x, batch, key: jax.vmap(lambda i: one(x, i))(batch["i"])


def judged(make: Callable[[Any, Any, Any, Any], Any]) -> Callable[[Any, Any], None]:
    """A cell: (losses, gradient, optimiser of clients, options of batches) -> algorithm; clients run one by one."""

    def cell(spec: Any, answer: Any) -> None:
        loss = losses(spec)
        gradient = jax.grad(lambda x, batch, key: loss(x, batch, key).mean())
        state = None
        for one in spec["rounds"]:
            most = max(len_of(spec, i) for i in one["clients"])

            class Repeated(fedjax.ClientDataset):  # type: ignore[misc]
                """Full batches, as many as the client has steps."""

                steps = 1

                def shuffle_repeat_batch(self, hparams: Any) -> Any:
                    return [self.all_examples()] * self.steps

            batches = fedjax.ShuffleRepeatBatchHParams(batch_size=most, num_epochs=1)
            algorithm = make(loss, gradient, fedjax.optimizers.sgd(one["lr"]), batches)
            if state is None:
                state = algorithm.init(jnp.array(spec["x0"]))
            clients = []
            for i, steps in zip(one["clients"], one["steps"]):  # noqa: B905  (its own Python runs this)
                data = Repeated({"i": np.full(len_of(spec, i), i)})
                data.steps = steps
                clients.append((str(i).encode(), data, jax.random.PRNGKey(0)))
            state, _ = algorithm.apply(state, clients)
            answer(state.params)

    return cell


def len_of(spec: Any, i: int) -> int:
    return int(spec["clients"][i]["size"])


def averaging(server: Callable[[], Any]) -> Callable[[Any, Any], None]:
    """FedAvg with an optimiser of the server's."""
    return judged(
        lambda loss, grad, sgd, batches: fedjax.algorithms.fed_avg.federated_averaging(grad, sgd, server(), batches)
    )


opt = fedjax.optimizers
point.main(
    {
        "fed_avg": averaging(lambda: opt.sgd(1.0)),
        "fed_avg(momentum)": averaging(lambda: opt.sgd(1.0, momentum=0.9)),
        "fed_avg(adam)": averaging(lambda: opt.adam(0.1, b1=0.9, b2=0.99, eps=1e-3)),
        "fed_avg(adagrad)": averaging(lambda: opt.adagrad(0.1, initial_accumulator_value=0.0, eps=1e-3)),
        "fed_prox": judged(
            lambda loss, grad, sgd, batches: fedjax.algorithms.fed_prox.fed_prox(loss, sgd, opt.sgd(1.0), batches, 0.5)
        ),
        "mime": judged(
            lambda loss, grad, sgd, batches: fedjax.algorithms.mime.mime(
                loss, sgd, batches, fedjax.PaddedBatchHParams(batch_size=512), 1.0
            )
        ),
    }
)
