"""What a server has to know of a way to its clients by messages: on a simulated wire, or to real sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from fedconcord.execution.messages.codec import Frame

Send = Callable[[list[tuple[int, bytes]], frozenset[int]], list[tuple[int, bytes]]]
"""(messages to clients, clients that nothing arrives of) -> what came in, as (client, bytes)."""


class RestartError(Exception):
    """The server is gone with all that it had not put down."""


class Hooks(NamedTuple):
    """How a server speaks of its clients, and who is told what became of their replies."""

    name: Callable[[int], str] = lambda client: f"client {client}"
    remedy: str = "use more wire.tries"  # where one does not reply that must
    accept: Callable[[int], None] = lambda client: None
    refuse: Callable[[int, str], None] = lambda client, why: None  # why: a few words
    far: Callable[[int, float], None] | None = None  # times: how long its message is, over the median of the others'
    void: Callable[[str], None] = lambda why: None  # a round that changed nothing; why: a sentence
    apart: Callable[[str], None] = lambda why: None  # clients that are in no sum of a round; why: a sentence


class Way(Protocol):
    """A way to clients by messages.

    Attributes:
        name: of its part of a checkpoint.
        elsewhere: why a checkpoint without that part cannot be taken up, in a sentence.
        method: what frames name; the digest of the method's identity if none.
        tries: exchanges that a client has to reply in.
        is_simulated: whether the clients are in this process: the message after the server's step goes at once, and not
            with the next orders, and what they say of their losses is believed if it is not finite.
        number: of exchanges so far, which questions beside the rounds are known by.
        counts: fields of `Traffic` that the way alone knows.
    """

    name: str
    elsewhere: str
    method: str | None
    tries: int
    is_simulated: bool
    number: int

    @property
    def counts(self) -> Mapping[str, int]: ...

    @property
    def hooks(self) -> Hooks: ...

    def begin(self) -> Send:
        """Exchanges of one attempt, which raise `RestartError` where it is to be begun again."""
        ...

    def write(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """All that a checkpoint has to hold of it: fields, and bytes by name."""
        ...

    def restore(self, frame: Frame) -> None:
        """The inverse of `write`, from the fields and tensors of a frame."""
        ...
