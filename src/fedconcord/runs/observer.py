"""What looks on while a run goes its way."""

from __future__ import annotations

from typing import Any, Protocol

from fedconcord.jobs import State, Step


class Observer(Protocol):
    """One aspect of a run. Each finds what is left of a run that is resumed when it is made, on all processes.

    The rest is asked on rank 0 alone. An observer may read another that stands before it in the list.
    """

    def see(self, now: Step) -> None:
        """The start, and every round whose metrics are finite."""
        ...

    def save(self, state: State) -> None:
        """Write what is of one past with the checkpoint that follows; the state is after one round at least."""
        ...

    def end(self, state: State) -> None:
        """The run is complete."""
        ...

    def about(self) -> dict[str, Any]:
        """What run.json says of it."""
        ...
