"""Where a site keeps its rows: one file, written whole or not at all, that never leaves the site."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from fedconcord.execution.messages.client import StoredState, stored_like
from fedconcord.execution.rows import tensors
from fedconcord.method.contract import Tree, tree_leaves, tree_unflatten
from fedconcord.support.errors import UserError, reason


class FileShelf(NamedTuple):
    """The rows of one client in a file."""

    path: Path
    template: Tree  # its row before its first round
    device: torch.device

    def read(self) -> StoredState | None:
        """What the client kept, None before it ever did.

        Raises:
            UserError: the file is damaged, or of another method.
        """
        try:
            stored, _ = tensors.read(self.path)
        except FileNotFoundError:
            return None
        except (tensors.DamagedError, OSError) as broken:
            raise UserError(
                f"cannot read the site's state {self.path} ({reason(broken)}); restore it from a copy, or begin a new "
                "run: without it this site's part of the server's sums is lost"
            ) from broken
        like = stored_like(self.template)
        for name, leaf in tree_leaves(like).items():
            if name not in stored or stored[name].shape != leaf.shape or stored[name].dtype != leaf.dtype:
                raise UserError(f"the site's state {self.path} is of another job; restore it, or begin a new run")
        leaves = {name: leaf if name == "mark" else leaf.to(self.device) for name, leaf in stored.items()}
        rows: StoredState = tree_unflatten(like, leaves)
        return rows

    def write(self, rows: StoredState) -> None:
        """Keep this in its place."""
        tensors.write(self.path, tree_leaves(rows), mode=0o600)
