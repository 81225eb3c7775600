"""Where a site keeps its secrets of a secure sum: a file that its owner alone reads, and that never leaves the site."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedconcord.execution.messages import member
from fedconcord.execution.messages.member import Secret
from fedconcord.support import files
from fedconcord.support.errors import UserError, reason


class FileSafe(NamedTuple):
    """The secrets of one client in a file."""

    path: Path

    def read(self) -> Secret:
        """What was written last; nothing before.

        Raises:
            UserError: the file is damaged.
        """
        try:
            return member.read(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Secret()
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as broken:
            raise UserError(
                f"cannot read the site's secrets {self.path} ({reason(broken)}); restore it, or begin a new run: it "
                "says which sums were opened"
            ) from broken

    def write(self, secret: Secret) -> None:
        """Keep this in its place."""
        files.write_bytes(self.path, secret.write().encode(), mode=0o600)
