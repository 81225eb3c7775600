"""The clients' objectives of the jobs, and their samples as arrays for contestants that know nothing of the library."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from networks import pfl_cnn
from settings import Federation, Setting
from torch import Tensor, nn

from fedconcord import DATASETS, MODELS, PARTITIONS, Dataset, Problem, Supervised
from fedconcord.federation.adapters import lora
from fedconcord.federation.data.published import data_folder
from fedconcord.federation.objectives.precision import Precision
from fedconcord.method.contract import Objective, roster_of
from fedconcord.method.contract.rng import Purpose, generator

POOL_FEATURES, POOL_CLIENTS = 60, 100


def dataset(setting: Setting, seed: int, quick: bool) -> tuple[Dataset, list[np.ndarray]]:
    """The data of a job and the samples of each client."""
    data = DATASETS[setting.data](data_folder(None), seed)
    if quick:
        data = data._replace(test_x=data.test_x[:1000], test_y=data.test_y[:1000])
    parts = PARTITIONS["iid"](data.train_y, setting.clients, generator(seed, Purpose.PARTITION))
    return data, [part[: setting.samples] for part in parts]


def federation(setting: Setting, seed: int, quick: bool) -> Federation:
    """The same as arrays, for contestants that know nothing of the library."""
    data, parts = dataset(setting, seed, quick)
    data = data.scaled()
    order = np.concatenate(parts)
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return Federation(data.train_x[order], data.train_y[order], offsets, data.test_x, data.test_y)


def problem_of(setting: Setting, args: argparse.Namespace) -> Problem:
    """The clients' objectives of a job."""
    dtype, device = getattr(torch, args.dtype), torch.device(args.device)
    if setting.data == "pool":
        return Pool(setting, args.seed, dtype, device, args.precision)
    data, parts = dataset(setting, args.seed, args.quick)

    def build() -> nn.Module:
        if setting.model == "pfl_cnn":
            return pfl_cnn()
        name, _, adapters = setting.model.partition("_")
        plain = MODELS[name](data.shape, data.classes)
        return lora().attach(plain) if adapters else plain

    return Supervised(build, data, parts, dtype=dtype, device=device, train_samples=1000, numbers=args.precision)


class Pool:
    """N clients of n samples each that share a pool of 1,000 samples: 16 bytes a client, whatever N.

    Client i's j-th sample is the pool's (i n + j) mod 1000. Labels are those of a random linear teacher.
    """

    def __init__(
        self, setting: Setting, seed: int, dtype: torch.dtype, device: torch.device, numbers: Precision
    ) -> None:
        draw = generator(seed, Purpose.DATA)
        x = draw.standard_normal((POOL_CLIENTS * 10 + 500, POOL_FEATURES)).astype(np.float32)
        y = (x @ draw.standard_normal((POOL_FEATURES, 10))).argmax(1).astype(np.int64)
        cut = POOL_CLIENTS * 10
        data = Dataset("pool", x[:cut], y[:cut], x[cut:], y[cut:], 10)
        parts = np.split(np.arange(cut), POOL_CLIENTS)
        self.pool = Supervised(
            lambda: MODELS[setting.model](data.shape, 10), data, parts, dtype=dtype, device=device, numbers=numbers
        )
        self.dim, self.dtype, self.device, self.size = self.pool.dim, dtype, device, cut
        self.offsets = np.arange(setting.clients + 1, dtype=np.int64) * setting.samples

        self.objective = Objective(
            dim=self.dim,
            offsets=self.offsets,
            dtype=dtype,
            device=device,
            gradient=self.gradient,
            gradients=self.gradients,
            loss=self.loss,
            alone=self.alone,
            hessian=self.hessian,
            sample_size=POOL_FEATURES,
            precision=numbers,
        )
        self.roster, self.evaluator = roster_of(self.offsets), self.pool.evaluator

    def alone(self, place: int) -> Objective:
        """One client's objective, with copies of its samples."""
        own = self.objective.samples(place) % self.size
        return self.pool.holding(self.pool.x.copy(own), self.pool.y[own]).objective

    def init(self, seed: int) -> Tensor:
        return self.pool.init(seed)

    def gradient(self, x: Tensor, samples: Tensor) -> Tensor:
        return self.pool.gradient(x, samples % self.size)

    def loss(self, x: Tensor, samples: Tensor) -> Tensor:
        return self.pool.loss(x, samples % self.size)

    def gradients(self, x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
        return self.pool.gradients(x, samples % self.size, weight)

    def hessian(self, x: Tensor, samples: Tensor) -> Tensor:
        return self.pool.hessian(x, samples % self.size)
