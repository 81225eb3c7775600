"""A site's own model, where the answer is one a client: judged there, kept there, and in no message.

It is what came of the site's last reply that counted, and of the server's model as the method has it. With a model a
server says which reply that is; it is refused where it names another one than the site's last.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedconcord.execution.job import Job
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.execution.rows import tensors
from fedconcord.execution.run.final_model import MODEL
from fedconcord.federation.objectives.parts import PrivateParts
from fedconcord.method.contract import Tree
from fedconcord.support import files
from fedconcord_sites.shelf import FileShelf


class Own(NamedTuple):
    """The own model of one site in one run.

    `folder` has the one that was judged last, as the folder of a run: `predict` and `export` take it.
    """

    job: Job
    shelf: FileShelf
    folder: Path
    card: Mapping[str, Any]  # what model.json says

    def judged(self, frame: Frame, x: Tensor) -> Tensor:
        """The model [d] or [d + e] that is judged in place of the server's x [d]: before the site has one of its own,
        what it would begin with.

        Raises:
            FrameError: the server names another reply than the last that counted.
            UserError: the site's rows are damaged.
        """
        whole, problem = self._row(frame.fields["counted"]), self.job.problem
        row, mine = whole, x
        if whole is not None:
            row = whole.row if isinstance(problem, PrivateParts) else whole
            client_model = self.job.algorithm.client_model
            mine = x if client_model is None else client_model(row, x)
        if isinstance(problem, PrivateParts):
            mine = problem.joined(mine) if whole is None else torch.cat([mine, whole.private])
        if whole is not None:
            self._keep(mine)
        return mine

    def _row(self, reply: list[int] | None) -> Tree | None:
        """The row after this reply, the last that counted; None before there is one."""
        state = self.shelf.read()
        pending, fingerprint, last = (-1, 0, -1) if state is None else state.mark.tolist()
        if reply is None and last < 0:
            return None
        if state is not None and reply == [pending, fingerprint]:
            return state.pending
        if reply is None or state is None or last < 0 or reply[0] != last:
            what = "no reply" if reply is None else f"the reply of round {reply[0]}"
            raise FrameError(f"it says that {what} counted, and the site's last is another one")
        return state.row

    def _keep(self, mine: Tensor) -> None:
        files.private_folder(self.folder)
        for name, content in {"run.json": {"status": "complete"}, "model.json": self.card}.items():
            if not (self.folder / name).exists():
                files.write_bytes(self.folder / name, files.as_json(content), mode=0o600)
        tensors.write(self.folder / MODEL, self.job.problem.evaluator.export(mine), mode=0o600)
