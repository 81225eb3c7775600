"""Supervised learning at more clients than fit in memory: a client's samples are drawn when it takes part."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedconcord.federation.data.dataset import Streams
from fedconcord.federation.objectives.evaluation import Resident
from fedconcord.federation.objectives.supervised import Supervised
from fedconcord.method.contract import Evaluator, Objective, Roster, roster_of
from fedconcord.support.errors import UserError

KEPT = 2**28  # bytes of clients' samples that are kept: a round draws each of its clients once


class Streamed:
    """f_i(x) as in `Supervised`, with samples that a generator keyed by the client makes again whenever they are asked.

    Args:
        judged: the model, the loss, and samples of a few clients, on which alone `evaluate` is.
        streams: every client's training samples.
    """

    def __init__(self, judged: Supervised, streams: Streams) -> None:
        if judged.replaced.normalises:
            raise UserError(
                f"layer {judged.replaced.normalises[0]!r} normalises by statistics of all clients' samples, and these "
                "are drawn as clients take part; use norm=frozen, torch.nn.GroupNorm or fewer clients"
            )
        if judged.factor is not None:
            raise UserError(
                "clients count with their tokens, and the samples of these are drawn as they take part; use loss "
                "token_cross_entropy(per=sequence) or fewer clients"
            )
        self.judged, self.streams, self.offsets = judged, streams, streams.offsets
        self.init = judged.init
        self.evaluator: Evaluator = judged  # on the judged clients
        self._recent: OrderedDict[int, tuple[Resident, Tensor]] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def _client(self, client: int) -> tuple[Resident, Tensor]:
        """Training samples [n_i, *shape] and targets [n_i] of a client; those asked for last are kept."""
        with self._lock:
            if client in self._recent:
                self._recent.move_to_end(client)
                return self._recent[client]
            pair = self.judged.tensors(*self.streams.draw(client))
            self._recent[client] = pair
            self._bytes += pair[0].nbytes + pair[1].nbytes
            while self._bytes > KEPT and len(self._recent) > 1:
                self._bytes -= sum(part.nbytes for part in self._recent.popitem(last=False)[1])
            return pair

    def _samples(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [..., *shape] and targets [...] of samples [...]."""
        flat = samples.reshape(-1).cpu().numpy()
        owner = np.searchsorted(self.offsets, flat, side="right") - 1
        order = np.argsort(owner, kind="stable")
        clients, first = np.unique(owner[order], return_index=True)
        parts = [self._client(int(i)) for i in clients]
        inside = np.split(flat[order], first[1:])
        at = [torch.as_tensor(place - self.offsets[i]) for i, place in zip(clients, inside, strict=True)]
        at = [place.to(self.judged.device) for place in at]
        back = torch.as_tensor(np.argsort(order, kind="stable"), device=self.judged.device)
        x = torch.cat([x[place] for (x, _), place in zip(parts, at, strict=True)])[back]
        y = torch.cat([y[place] for (_, y), place in zip(parts, at, strict=True)])[back]
        return x.view(*samples.shape, *x.shape[1:]), y.view(*samples.shape, *y.shape[1:])

    @cached_property
    def objective(self) -> Objective:
        return replace(
            self.judged.reading(self._samples, self.offsets).objective,
            alone=lambda place: self.judged.holding(*self._client(place)).objective,
            network=None,
        )

    @cached_property
    def roster(self) -> Roster:
        return roster_of(self.offsets)  # no counts of labels: counting would draw every client
