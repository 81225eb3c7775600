"""What a server that reaches its clients by messages alone keeps between rounds, and how an attempt at a round begins.

As a store of rows it shows what its way to the clients knows of them; a checkpoint has it whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.messages import codec, ledger
from fedconcord.execution.messages.client import StoredState, stored_like
from fedconcord.execution.messages.codec import Frame
from fedconcord.execution.messages.ledger import Ledger
from fedconcord.execution.messages.link import Traffic
from fedconcord.execution.messages.server import RemoteServer
from fedconcord.execution.messages.sums import PLAIN, Sums
from fedconcord.execution.messages.way import RestartError, Way
from fedconcord.execution.rows import Store
from fedconcord.method.contract import Algorithm, Outcome, Plan, Population, Problem, Tree, space_of, tree_map
from fedconcord.method.step.assignment import settled
from fedconcord.method.wrappers.forms import forms
from fedconcord.support.errors import UserError

T = TypeVar("T")


class RemoteStore:
    """The server's ledger, its counts and its way to the clients.

    Args:
        beneath: the rows of clients in this process, as they keep them; None: they are elsewhere.
        sums: where contributions are summed.
    """

    def __init__(
        self,
        way: Way,
        algorithm: Algorithm,
        problem: Problem,
        template: Tree,
        beneath: Store | None = None,
        sums: Sums = PLAIN,
    ) -> None:
        self.way, self.algorithm, self.problem, self.template = way, algorithm, problem, template
        self.beneath, self.sums = beneath, sums
        self.space, self.forms = space_of(problem), forms(algorithm, problem.init(0))
        self.ledger, self.traffic = Ledger(), Traffic()

    def run(self, action: Callable[[RemoteServer], T], seed: int = 0) -> T:
        """What the server's half does from its ledger on; a restart begins it again."""
        before, send = self.traffic, self.way.begin()
        while True:
            half = RemoteServer(self, send, seed)
            try:
                result = action(half)
            except RestartError:
                self.traffic = _again(before, half.traffic)
                continue
            self.ledger, self.traffic = half.ledger, half.traffic._replace(**self.way.counts)
            return result

    # -- as `engines.base.Clients` -----------------------------------------------------------------------------------

    def prologue(self, server: Tree, population: Population) -> Outcome:
        return self.run(lambda half: half.prologue(server, population))

    def losses(self, x: Tensor, ids: np.ndarray) -> np.ndarray:
        """As `Clients` says; who does not answer is chosen last."""
        by_client = self.run(lambda half: half.losses(x, ids.tolist(), self.way.number))
        losses = np.array([by_client.get(int(i), -np.inf) for i in ids])
        return losses if self.way.is_simulated else np.where(np.isfinite(losses), losses, -np.inf)

    def attempt(self, server: Tree, plan: Plan, decide: Callable[[RemoteServer], T]) -> T:
        return self.run(decide, plan.seed)

    def deliver(self, plan: Plan, message: Tree) -> int:
        """As `Clients` says: what is owed is put down before any client hears it."""
        self.ledger.owe(plan.round, message, plan.ids[plan.heard].tolist())
        return self.run(lambda half: half.settle(plan.round)) if self.way.is_simulated else 0

    # -- as a store --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return 0 if self.beneath is None else len(self.beneath)

    def gather(self, ids: np.ndarray) -> Tree:
        """Rows of these clients after their last reply that counted, stacked [S, ...].

        Raises:
            UserError: they are elsewhere.
        """
        state: StoredState = self._here.gather(ids)
        settle, rows = self.algorithm.phases.settle, state.row
        for k, i in enumerate(ids.tolist()):
            counted = self.ledger.counted.get(i)
            if counted is None or counted != tuple(state.mark[k, :2].tolist()):
                continue
            row = tree_map(lambda leaf, k=k: leaf[k], state.pending)
            if settle is not None and i in self.ledger.owed:
                row = settled(settle, self.ledger.settles[self.ledger.owed[i]], row)
            rows = tree_map(lambda leaf, one, k=k: leaf.index_copy(0, torch.tensor([k]), one[None]), rows, row)
        return rows

    def scatter(self, ids: np.ndarray, rows: Tree) -> None:
        """Put rows that count where the clients keep theirs."""
        self._here.scatter(ids, StoredState(rows, rows, stored_like(()).mark.expand(len(ids), -1)))

    @property
    def _here(self) -> Store:
        if self.beneath is None:
            raise UserError("clients' rows never leave their sites; what needs them cannot be had of a deployment")
        return self.beneath

    def known(self, ids: np.ndarray) -> np.ndarray:
        """Which of these clients [S] have a row here, [S] bool."""
        return np.zeros(len(ids), bool) if self.beneath is None else self.beneath.known(ids)

    def ids(self) -> np.ndarray:
        """Clients that have a row here, sorted."""
        return np.empty(0, np.int64) if self.beneath is None else self.beneath.ids()

    def export(self) -> dict[str, Tensor]:
        """What is stored, and as bytes the ledger, the counts and what is on its way."""
        fields, pieces = self.way.write()
        fields = {"traffic": list(self.traffic), **fields}
        tensors = {name: _bytes(piece) for name, piece in {"ledger": self.ledger.write(), **pieces}.items()}
        frame = Frame(self.way.name, self.way.method or "", 0, 0, json.loads(json.dumps(fields)), tensors)
        rows = {} if self.beneath is None else self.beneath.export()
        return rows | {self.way.name: _bytes(codec.write(frame))}

    def commit(self) -> None:
        """Told when what was exported last is safe on disk."""
        if self.beneath is not None:
            self.beneath.commit()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `export`.

        Raises:
            UserError: the tensors are of a run on another engine, or of another deployment.
        """
        name = self.way.name
        if name not in tensors:
            raise UserError(self.way.elsewhere)
        if self.beneath is not None:
            self.beneath.restore({key: leaf for key, leaf in tensors.items() if key != name})
        frame = codec.read(tensors[name].cpu().numpy().tobytes())
        self.way.restore(frame)
        records = frame.tensors["ledger" if "ledger" in frame.tensors else "0"]  # as the wire called it before
        self.traffic = Traffic(*frame.fields["traffic"])
        self.ledger = ledger.read(records.numpy().tobytes(), self.forms, self.space.device)


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _again(before: Traffic, after: Traffic) -> Traffic:
    """Counts of a round that begins again: what it had sent so far is sent twice."""
    down = after.payload_down + after.framing_down - before.payload_down - before.framing_down
    up = after.payload_up + after.framing_up - before.payload_up - before.framing_up
    return after._replace(
        payload_down=before.payload_down,
        payload_up=before.payload_up,
        framing_down=before.framing_down,
        framing_up=before.framing_up,
        resent_down=after.resent_down + down,
        resent_up=after.resent_up + up,
        clients_lost=before.clients_lost,
        server_restarts=after.server_restarts + 1,
    )


def remote_store(store: Store) -> RemoteStore:
    """The store of an engine that sends messages, which opened it so."""
    assert isinstance(store, RemoteStore)
    return store
