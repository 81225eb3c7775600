"""A picture of what a command says: run it, and draw its lines as on a terminal.

python docs/generate/terminal.py docs/deployment.svg fedconcord flower try ...
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100  # columns
FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)  # rich's picture asks another host for them


def main(picture: str, *command: str) -> int:
    """Write the picture; the command's own exit code."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text(f"$ {shlex.join(command)}\n{done.stdout.rstrip()}"))
    drawn = console.export_svg(title=" ".join(command[:3]), unique_id=Path(picture).stem)
    Path(picture).write_text(FONTS.sub("", drawn).replace("Fira Code, monospace", "monospace"))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
