"""Supervised learning at more clients than fit in memory: a client's samples are drawn when it takes part."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import Accumulate, Evaluator, Objective, Roster, objective_of, roster_of
from fedconcord.data.dataset import Streams
from fedconcord.problems.resident import Resident
from fedconcord.problems.supervised import Supervised

KEPT = 2**28  # bytes of clients' samples that are kept: a round draws each of its clients once


class Streamed:
    """f_i(x) as in `Supervised`, with samples that a generator keyed by the client makes again whenever they are asked.

    Args:
        judged: the model, the loss, and samples of a few clients, on which alone `evaluate` is.
        streams: every client's training samples.
    """

    def __init__(self, judged: Supervised, streams: Streams) -> None:
        self.judged, self.streams = judged, streams
        self.dim, self.dtype, self.device, self.regulariser = judged.dim, judged.dtype, judged.device, None
        self.offsets = streams.offsets
        self.sizes = np.diff(self.offsets).astype(np.float64)
        self.accumulate: Accumulate | None = None if judged.accumulate is None else self._accumulate
        self._held: OrderedDict[int, tuple[Resident, Tensor]] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def _client(self, client: int) -> tuple[Resident, Tensor]:
        """Training samples [n_i, *shape] and targets [n_i] of a client; those asked for last are kept."""
        with self._lock:
            if client in self._held:
                self._held.move_to_end(client)
                return self._held[client]
            found = self.judged.tensors(*self.streams.draw(client))
            self._held[client] = found
            self._bytes += _bytes(found)
            while self._bytes > KEPT and len(self._held) > 1:
                self._bytes -= _bytes(self._held.popitem(last=False)[1])
            return found

    def _samples(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [..., *shape] and targets [...] of samples [...]."""
        flat = samples.reshape(-1).cpu().numpy()
        owner = np.searchsorted(self.offsets, flat, side="right") - 1
        order = np.argsort(owner, kind="stable")
        clients, first = np.unique(owner[order], return_index=True)
        parts = [self._client(int(i)) for i in clients]
        inside = np.split(flat[order], first[1:])
        at = [torch.as_tensor(place - self.offsets[i]) for i, place in zip(clients, inside, strict=True)]
        at = [place.to(self.device) for place in at]
        back = torch.as_tensor(np.argsort(order, kind="stable"), device=self.device)
        x = torch.cat([x[place] for (x, _), place in zip(parts, at, strict=True)])[back]
        y = torch.cat([y[place] for (_, y), place in zip(parts, at, strict=True)])[back]
        return x.view(*samples.shape, *x.shape[1:]), y.view(*samples.shape, *y.shape[1:])

    @cached_property
    def objective(self) -> Objective:
        return objective_of(
            self,
            lambda place: self.judged.holding(*self._client(place)).objective,
            accumulate=self.accumulate,
            sample_size=math.prod(self.judged.x.shape[1:]),
            precision=self.judged.numbers,
            frozen=self.judged.layout.digest,
        )

    @cached_property
    def roster(self) -> Roster:
        return roster_of(self.offsets, self.sizes)  # no counts of labels: counting would draw every client

    @property
    def evaluator(self) -> Evaluator:
        return self

    def init(self, seed: int) -> Tensor:
        return self.judged.init(seed)

    def gradient(self, x: Tensor, samples: Tensor) -> Tensor:
        return self.judged.gradient_on(x, *self._samples(samples))

    def loss(self, x: Tensor, samples: Tensor) -> Tensor:
        return self.judged.loss_on(x, *self._samples(samples))

    def gradients(self, x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
        return self.judged.gradients_on(x, *self._samples(samples), weight)

    def hessian(self, x: Tensor, samples: Tensor) -> Tensor:
        return self.judged.hessian_on(x, *self._samples(samples))

    def _accumulate(
        self, into: Tensor, beta: float, alpha: float, x: Tensor, samples: Tensor, weight: Tensor | None
    ) -> None:
        self.judged.accumulate_on(into, beta, alpha, x, *self._samples(samples), weight)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        """As `Supervised.evaluate`, on the judged clients."""
        return self.judged.evaluate(x)

    def export(self, x: Tensor) -> Mapping[str, Tensor]:
        return self.judged.export(x)


def _bytes(pair: tuple[Resident, Tensor]) -> int:
    return sum(part.nbytes for part in pair)
