"""FedLab 1.3: SyncServerHandler and SGDSerialClientTrainer in a StandalonePipeline; a loader of tensor slices."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib.metadata import version

import torch
import vision  # noqa: F401  before the peer
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from networks import accuracy, ready
from torch import Tensor


class Slices:
    """What FedLab asks of a data set; a torch DataLoader would add about a tenth to a round of job A."""

    def get_dataloader(self, id: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = at.clients[id]
        if batch_size >= len(y):  # all samples each time: the order is the same to the gradient
            return [(x, y)]
        order = torch.randperm(len(y))
        x, y = x[order], y[order]
        return zip(x.split(batch_size), y.split(batch_size), strict=True)


class Pipeline(StandalonePipeline):
    def evaluate(self) -> None:
        at.turns.lap()


at = ready()
setting = at.setting
logging.disable(logging.INFO)
handler = SyncServerHandler(
    at.model, global_round=at.args.warmup + at.args.rounds, sample_ratio=setting.cohort / setting.clients
)
trainer = SGDSerialClientTrainer(at.model, setting.clients)
trainer.setup_dataset(Slices())
trainer.setup_optim(setting.epochs or setting.steps, setting.batch or setting.samples, setting.lr)
pipeline = Pipeline(handler, trainer)
at.turns.begin()
pipeline.main()
at.turns.finish(
    at.args.warmup,
    accuracy=accuracy(handler.model, at.federation),
    versions={"fedlab": version("fedlab"), "torch": torch.__version__},
)
