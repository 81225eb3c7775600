"""What the server remembers of its clients between rounds, besides the method's own state; it goes into checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import torch

from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame
from fedconcord.method.contract import Tree
from fedconcord.method.wrappers.forms import Forms


@dataclass
class Ledger:
    """Numbers of bytes a client that was ever asked; messages after the server's step only until they are received."""

    counted: dict[int, tuple[int, int]] = field(default_factory=dict)  # client -> its last reply that counted
    owed: dict[int, int] = field(default_factory=dict)  # client -> round whose message after the step it lacks
    settles: dict[int, Tree] = field(default_factory=dict)  # round -> that message
    silent: dict[int, list[dict[str, object]]] = field(default_factory=dict)  # client -> orders it has yet to get
    joined: set[int] = field(default_factory=set)  # clients that have x^0
    late: set[int] = field(default_factory=set)  # clients whose late reply is on its way

    def copy(self) -> Ledger:
        """The same records apart from these, for an attempt that may be begun again."""
        silent = {i: list(orders) for i, orders in self.silent.items()}
        return Ledger(dict(self.counted), dict(self.owed), dict(self.settles), silent, set(self.joined), set(self.late))

    def owe(self, round: int, message: Tree, clients: list[int]) -> None:
        """These clients are to get the message of a round."""
        self.settles[round] = message
        self.owed |= dict.fromkeys(clients, round)

    def received(self, client: int) -> None:
        """A client has what it was owed."""
        self.owed.pop(client, None)
        self.settles = {t: message for t, message in self.settles.items() if t in self.owed.values()}

    def write(self) -> bytes:
        """The ledger as bytes."""
        fields = {
            "counted": [[i, *at] for i, at in self.counted.items()],
            "owed": list(self.owed.items()),
            "silent": list(self.silent.items()),
            "joined": sorted(self.joined),
            "late": sorted(self.late),
            "settles": list(self.settles),
        }
        tensors = {k: v for t, message in self.settles.items() for k, v in codec.pack(f"settle{t}", message).items()}
        return codec.write(Frame("ledger", "", 0, 0, json.loads(json.dumps(fields)), tensors))


def read(data: bytes, forms: Forms, device: torch.device) -> Ledger:
    """The inverse of `Ledger.write`.

    Raises:
        FrameError: the bytes are damaged.
    """
    frame = codec.read(data)
    fields = frame.fields
    return Ledger(
        counted={i: (round, mark) for i, round, mark in fields["counted"]},
        owed=dict(fields["owed"]),
        settles={t: codec.unpack(f"settle{t}", frame, forms.settled, device) for t in fields["settles"]},
        silent=dict(fields["silent"]),
        joined=set(fields["joined"]),
        late=set(fields["late"]),
    )
