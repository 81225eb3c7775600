"""The client side of flower_job.py, a module of its own because ray's workers import it."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from networks import NETWORKS
from settings import Setting, load
from torch import Tensor
from torch.nn import functional as F

FEDERATION, SETTING = "FLOWER_FEDERATION", "FLOWER_SETTING"


@functools.cache
def data() -> tuple[Setting, list[tuple[Tensor, Tensor]]]:
    """The setting and the samples of every client; each worker reads the file once."""
    torch.set_num_threads(1)
    clients = load(Path(os.environ[FEDERATION])).clients
    setting = Setting(*json.loads(os.environ[SETTING]))
    return setting, [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in clients]


app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    setting, clients = data()
    x, y = clients[context.node_config["partition-id"]]
    model = NETWORKS[setting.model]()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), setting.lr)
    batch = setting.batch or len(y)
    for _ in range(setting.epochs or setting.steps):
        if batch < len(y):
            order = torch.randperm(len(y))
            x, y = x[order], y[order]
        for k in range(0, len(y), batch):
            optimizer.zero_grad()
            F.cross_entropy(model(x[k : k + batch]), y[k : k + batch]).backward()
            optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(content), reply_to=message)
