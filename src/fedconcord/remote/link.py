"""The way between a server and its clients inside one process: bytes in, bytes out, and faults by a seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Faults(NamedTuple):
    """What goes wrong, as probabilities."""

    loss: float = 0.0  # a message does not arrive, either way
    duplicate: float = 0.0  # it arrives twice
    delay: float = 0.0  # it arrives after later ones, up to three exchanges late, perhaps in another round
    corrupt: float = 0.0  # one of its bytes is another
    restart: float = 0.0  # of a client, before it gets a message: what is not on its shelf is lost
    server_restart: float = 0.0  # of the server, at each exchange: it starts the round again

    def any(self) -> bool:
        """Whether anything can go wrong."""
        return any(self)


class Traffic(NamedTuple):
    """What went over the wire so far. Payload is the tensors' bytes of first sendings, what a report counts."""

    payload_down: int = 0  # bytes to clients
    payload_up: int = 0
    framing_down: int = 0  # bytes of headers, of messages without tensors too
    framing_up: int = 0
    resent_down: int = 0  # bytes of whole messages that were sent again
    resent_up: int = 0
    lost: int = 0  # messages that did not arrive, as the next
    duplicated: int = 0
    delayed: int = 0
    corrupted: int = 0
    refused: int = 0  # messages that the server would not take: damaged, of another round or form
    repeated: int = 0  # replies that the server had already
    clients_lost: int = 0  # times that a client of a cohort was given up
    client_restarts: int = 0
    server_restarts: int = 0


class Parcel(NamedTuple):
    """Bytes on their way."""

    due: int  # the exchange that they arrive in
    order: int
    client: int
    up: bool
    data: bytes


Answer = Callable[[int, bytes], list[bytes]]
"""(client, bytes) -> what that client answers."""


class Link:
    """Carries messages in exchanges: the server sends, clients answer, what has arrived is handed over."""

    def __init__(self, faults: Faults) -> None:
        self.faults, self.now, self._sent = faults, 0, 0
        self._queue: list[Parcel] = []
        self.lost = self.duplicated = self.delayed = self.corrupted = self.restarts = 0

    def exchange(
        self, draw: np.random.Generator, sent: list[tuple[int, bytes]], answer: Answer, silent: frozenset[int]
    ) -> list[tuple[int, bytes]]:
        """Send to clients and hand over what comes in, from earlier exchanges too, as (client, bytes).

        Args:
            answer: called for every message that reaches a client.
            silent: clients of which nothing arrives.
        """
        self.now += 1
        for client, data in sent:
            self._post(draw, client, False, data)
        arrived = []
        while self._queue and self._queue[0].due <= self.now:
            parcel = heapq.heappop(self._queue)
            if parcel.up:
                arrived.append((parcel.client, parcel.data))
                continue
            for reply in answer(parcel.client, parcel.data):
                if parcel.client not in silent:
                    self._post(draw, parcel.client, True, reply)
        return arrived

    def _post(self, draw: np.random.Generator, client: int, up: bool, data: bytes) -> None:
        faults = self.faults
        copies = 1
        if faults.any():
            lost, twice, late, broken = draw.random(4) < (faults.loss, faults.duplicate, faults.delay, faults.corrupt)
            self.lost, self.duplicated = self.lost + int(lost), self.duplicated + int(twice)
            self.delayed, self.corrupted = self.delayed + int(late), self.corrupted + int(broken)
            copies = 0 if lost else 1 + int(twice)
            if broken:
                spoilt = bytearray(data)
                spoilt[int(draw.integers(len(data)))] ^= 1 << int(draw.integers(8))
                data = bytes(spoilt)
        for copy in range(copies):
            behind = int(draw.integers(1, 4)) if faults.any() and (late or copy) else 0
            self._sent += 1
            # with faults messages of one exchange overtake each other
            order = int(draw.integers(2**31)) if faults.any() else self._sent
            heapq.heappush(self._queue, Parcel(self.now + behind, order, client, up, data))

    def on_their_way(self) -> list[Parcel]:
        """What has not arrived yet."""
        return sorted(self._queue)

    def restore(self, now: int, parcels: list[Parcel], counts: Traffic) -> None:
        """Take up what a checkpoint held."""
        self.now, self._queue = now, list(parcels)
        heapq.heapify(self._queue)
        self.lost, self.duplicated, self.delayed = counts.lost, counts.duplicated, counts.delayed
        self.corrupted, self.restarts = counts.corrupted, counts.client_restarts
