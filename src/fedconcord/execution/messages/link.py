"""The way between a server and its clients inside one process: bytes in, bytes out, and faults by a seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedconcord.execution.messages.codec import Frame
from fedconcord.execution.messages.way import Hooks, RestartError, Send
from fedconcord.method.contract import rng

if TYPE_CHECKING:
    from fedconcord.execution.messages.client import RemoteClient

RESTARTS = 3  # of the server in one round, so that every round ends


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


class Link:
    """The way to clients in this process; see `messages.way.Way`. What a client does not keep itself a restart loses.

    Args:
        tries: exchanges that a client has to reply in.
        seed: of the faults.
        make: a client as it is after a restart; it is made when it is first reached.
    """

    name = "wire"
    elsewhere = "the checkpoint is of a run on another engine than wire; resume with the engine it had"
    method: str | None = None
    is_simulated = True
    hooks = Hooks()

    def __init__(self, faults: Faults, tries: int, seed: int, make: Callable[[int], RemoteClient]) -> None:
        self.faults, self.tries, self.seed, self.make = faults, tries, seed, make
        self.number = self._sent = 0
        self.counts = dict.fromkeys(("lost", "duplicated", "delayed", "corrupted", "client_restarts"), 0)
        self._queue: list[Parcel] = []
        self._clients: dict[int, RemoteClient] = {}

    def begin(self) -> Send:
        """As `Way` says; the server restarts a few times at most."""
        draw, restarts = rng.generator(self.seed, rng.Purpose.FAULT, self.number), 0

        def exchange(messages: list[tuple[int, bytes]], silent: frozenset[int]) -> list[tuple[int, bytes]]:
            nonlocal restarts
            arrived = self._exchange(draw, messages, silent)
            if self.faults.server_restart and restarts < RESTARTS and draw.random() < self.faults.server_restart:
                restarts += 1
                raise RestartError
            return arrived

        return exchange

    def _exchange(
        self, draw: np.random.Generator, messages: list[tuple[int, bytes]], silent: frozenset[int]
    ) -> list[tuple[int, bytes]]:
        """Send to clients and hand over what comes in, from earlier exchanges too, as (client, bytes).

        Args:
            silent: clients of which nothing arrives.
        """
        self.number += 1
        for client, data in messages:
            self._post(draw, client, False, data)
        arrived = []
        while self._queue and self._queue[0].due <= self.number:
            parcel = heapq.heappop(self._queue)
            if parcel.up:
                arrived.append((parcel.client, parcel.data))
                continue
            for reply in self._replies(draw, parcel):
                if parcel.client not in silent:
                    self._post(draw, parcel.client, True, reply)
        return arrived

    def _replies(self, draw: np.random.Generator, parcel: Parcel) -> list[bytes]:
        """What a client that a parcel reaches answers."""
        if self.faults.restart and draw.random() < self.faults.restart:
            self._clients.pop(parcel.client, None)
            self.counts["client_restarts"] += 1
        if parcel.client not in self._clients:
            self._clients[parcel.client] = self.make(parcel.client)
        return self._clients[parcel.client].receive(parcel.data)

    def _post(self, draw: np.random.Generator, client: int, up: bool, data: bytes) -> None:
        faults = self.faults
        copies = 1
        if faults.any():
            struck = draw.random(4) < (faults.loss, faults.duplicate, faults.delay, faults.corrupt)
            lost, twice, late, broken = struck.tolist()
            for name, is_so in zip(("lost", "duplicated", "delayed", "corrupted"), struck.tolist(), strict=True):
                self.counts[name] += is_so
            copies = 0 if lost else 1 + twice
            if broken:
                damaged = bytearray(data)
                damaged[int(draw.integers(len(data)))] ^= 1 << int(draw.integers(8))
                data = bytes(damaged)
        for copy in range(copies):
            behind = int(draw.integers(1, 4)) if faults.any() and (late or copy) else 0
            self._sent += 1
            # with faults messages of one exchange overtake each other
            order = int(draw.integers(2**31)) if faults.any() else self._sent
            heapq.heappush(self._queue, Parcel(self.number + behind, order, client, up, data))

    def write(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """As `Way` says: the messages that are under way, and the counts."""
        parcels = sorted(self._queue)
        pieces = {str(k): parcel.data for k, parcel in enumerate(parcels, 1)}
        return {"now": self.number, "parcels": [[*parcel[:4], len(parcel.data)] for parcel in parcels]}, pieces

    def restore(self, frame: Frame) -> None:
        traffic = Traffic(*frame.fields["traffic"])._asdict()
        self.counts, self.number = {name: traffic[name] for name in self.counts}, frame.fields["now"]
        self._queue = [
            Parcel(due, order, client, up, frame.tensors[str(k)].numpy().tobytes())
            for k, (due, order, client, up, _) in enumerate(frame.fields["parcels"], 1)
        ]
        heapq.heapify(self._queue)
