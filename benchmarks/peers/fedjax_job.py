"""FedJAX 0.0.17: its FedAvg algorithm on its in-memory federated data, compiled by JAX."""

# ruff: noqa: E402  what is set below must be set before these imports
from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import numpy as np
from settings import arguments, load
from turns import Turns

args, setting = arguments()
if args.threads == 1:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["NPROC"] = "1"

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp

INIT = hk.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")  # torch's default


def linear(width: int) -> hk.Linear:
    return hk.Linear(width, w_init=INIT)


def convolution(channels: int, side: int = 5, padding: str = "SAME") -> hk.Conv2D:
    return hk.Conv2D(channels, side, w_init=INIT, padding=padding)


NETWORKS = {
    "2nn": lambda: [hk.Flatten(), linear(200), jax.nn.relu, linear(200), jax.nn.relu, linear(10)],
    "cnn1": lambda: [
        convolution(32),
        jax.nn.relu,
        hk.MaxPool(2, 2, "VALID"),
        convolution(64),
        jax.nn.relu,
        hk.MaxPool(2, 2, "VALID"),
        hk.Flatten(),
        linear(512),
        jax.nn.relu,
        linear(10),
    ],
    "logreg": lambda: [hk.Flatten(), linear(10)],
    "pfl_cnn": lambda: [
        convolution(32, 3, "VALID"),
        jax.nn.relu,
        convolution(64, 3, "VALID"),
        jax.nn.relu,
        hk.MaxPool(2, 2, "VALID"),
        hk.Flatten(),
        linear(128),
        jax.nn.relu,
        linear(10),
    ],
}
federation = load(Path(args.federation))


def pixels(x: np.ndarray) -> np.ndarray:
    """Images with the channel last, as JAX's convolutions take them."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


data = fedjax.InMemoryFederatedData(
    {f"{i:05}".encode(): {"x": pixels(x), "y": y.astype(np.int32)} for i, (x, y) in enumerate(federation.clients)}
)
model = fedjax.create_model_from_haiku(
    transformed_forward_pass=hk.transform(lambda batch: hk.Sequential(NETWORKS[setting.model]())(batch["x"])),
    sample_batch={"x": jnp.zeros((1, *federation.x.shape[2:], federation.x.shape[1])), "y": jnp.zeros(1, jnp.int32)},
    train_loss=lambda batch, out: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], out),
    eval_metrics={"accuracy": fedjax.metrics.Accuracy()},
)
algorithm = fedjax.algorithms.fed_avg.federated_averaging(
    fedjax.model_grad(model),
    fedjax.optimizers.sgd(setting.lr),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(
        batch_size=setting.batch or setting.samples, num_epochs=setting.epochs or setting.steps, seed=args.seed
    ),
)
sampler = fedjax.client_samplers.UniformGetClientSampler(data, num_clients=setting.cohort, seed=args.seed)
state = algorithm.init(model.init(jax.random.PRNGKey(args.seed)))
turns = Turns(args.warmup + args.rounds)
turns.begin()
for _ in range(args.warmup + args.rounds):
    state, _ = algorithm.apply(state, sampler.sample())
    jax.block_until_ready(state.params)
    turns.lap()
test = fedjax.ClientDataset({"x": pixels(federation.test_x), "y": federation.test_y.astype(np.int32)})
found = fedjax.evaluate_model(model, state.params, test.batch(batch_size=1000))
turns.finish(
    args.warmup,
    accuracy=float(found["accuracy"]),
    versions={"fedjax": version("fedjax"), "jax": jax.__version__},
)
