"""What FLGo imports of a benchmark; the file with the samples is named by an environment variable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from flgo.benchmark.toolkits.cv.classification import FromDatasetGenerator, FromDatasetPipe, GeneralCalculator
from settings import load
from torch import Tensor
from torch.utils.data import TensorDataset

FEDERATION = "FLGO_FEDERATION"
federation = load(Path(os.environ[FEDERATION]))
test = TensorDataset(torch.from_numpy(federation.test_x), torch.from_numpy(federation.test_y))
clients = [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in federation.clients]


class Slices:
    """A loader of slices; a torch DataLoader would add about a tenth to a round of job A."""

    def __init__(self, dataset: TensorDataset, batch_size: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.dataset.tensors
        if self.batch_size < len(y):  # a full batch is the same in any order
            order = torch.randperm(len(y))
            x, y = x[order], y[order]
        return zip(x.split(self.batch_size), y.split(self.batch_size), strict=True)


class TaskGenerator(FromDatasetGenerator):
    def __init__(self) -> None:
        super().__init__(benchmark="flgo_data", train_data=clients, test_data=test)

    def generate(self) -> None:
        self.local_datas = [[] for _ in clients]  # the federation is divided already
        self.task_name = "flgo_data"


class TaskPipe(FromDatasetPipe):
    def __init__(self, task_path: str) -> None:
        super().__init__(task_path, train_data=clients, test_data=test)

    def load_data(self, running_time_option: dict[str, Any]) -> dict[str, Any]:
        names = zip(self.feddata["client_names"], clients, strict=True)
        return {"server": {"test": test, "val": None}} | {
            name: {"train": own, "val": None, "test": None} for name, own in names
        }


class TaskCalculator(GeneralCalculator):
    def get_dataloader(self, dataset: TensorDataset, batch_size: int = 64, **options: Any) -> Slices:
        return Slices(dataset, batch_size)
