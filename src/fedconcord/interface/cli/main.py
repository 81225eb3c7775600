"""The program: commands, exit codes, signals."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import typer

from fedconcord.execution.run import interrupts
from fedconcord.interface.cli import advise, data, listing, plan, train  # noqa: F401  (commands of `app`)
from fedconcord.interface.cli.base import app, complain, fail
from fedconcord.support import process
from fedconcord.support.errors import LostError, UserError, closest, nearest


def _usage(error: Any) -> str:
    """typer's complaint about the command line as one sentence."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "fedconcord"
    name = getattr(error, "option_name", None)
    text = " ".join(error.format_message().split()).rstrip(".")
    if context is None:
        pass
    elif name is not None and text.startswith("No such option"):
        options = _options(context)
        text = f"unknown option {name}{_setting(name, options) or closest(name, options)}"
    elif text.startswith("No such command"):
        commands = context.command.list_commands(context)
        word = text.split("'")[1]
        text = f"unknown command {word!r}{closest(word, commands)}"
    elif text.startswith("Got unexpected extra argument") and "=" in (word := text.partition("(")[2][:-1].split()[0]):
        text = f"unexpected argument {word!r}{_assigned(word, _options(context))}"
    return f"{text[0].lower()}{text[1:]}; `{path} --help` shows what there is"


def _options(context: Any) -> list[str]:
    return [option for parameter in context.command.params if not parameter.hidden for option in parameter.opts]


def _setting(name: str, options: Sequence[str]) -> str:
    """' (did you mean '--set validation=...'?)' for --validation, a setting without an option of its own, or ''."""
    from fedconcord.study.settings.sources import keys

    word = name.lstrip("-").replace("-", "_")
    key = next((key for key in keys() if word in (key, key.rpartition(".")[2])), None)
    option = f"--{key}".replace(".", "-").replace("_", "-")
    way = option if option in options else f"--set {key}=..."
    return f" (did you mean {way!r}?)" if key and "--set" in options else ""


def _assigned(word: str, options: Sequence[str]) -> str:
    """' (did you mean '--clients 10'?)' for client=10."""
    key, _, value = word.partition("=")
    option = nearest(key, options)
    way = f"--set {word}" if "." in key and "--set" in options else option and f"{option} {value}"
    return f" (did you mean {way!r}?)" if way else ""


def call(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code.

    0; 1, a run of a comparison or a process failed; 2, a mistake; 3, diverged; 130, interrupted (docs/results.md).
    """
    try:
        code = app(args=list(arguments), prog_name="fedconcord", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (UserError, OSError) as error:
        from fedconcord.support.errors import sentence

        fail(sentence(error))
        return 2
    except LostError as error:
        fail(str(error))
        return 1
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted before the first round; nothing was written")
        return 130
    except Exception as error:
        from fedconcord.support import errors, imports

        line = _usage(error) if hasattr(error, "format_message") else errors.raised_with(imports.files(), error)
        if line is None:
            raise
        fail(line)
        return 2


def main() -> None:
    """The entry point of the command `fedconcord`."""
    process.settle()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _as_first_interrupt())
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by a shell's background
            signal.signal(signal.SIGINT, interrupts.raising)
    warnings.showwarning = lambda message, *where, **more: complain(f"warning: {message}")
    code = call(sys.argv[1:])
    if code == 130:  # after a second Ctrl-C threads may still compute, which the interpreter's end would wait for
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _as_first_interrupt() -> Callable[[int, FrameType | None], None]:
    """A handler as gentle as one Ctrl-C, however often it is called: schedulers and `timeout` send SIGTERM twice."""
    is_stopping = threading.Event()

    def heed(number: int, frame: FrameType | None) -> None:
        if not is_stopping.is_set():
            is_stopping.set()
            signal.raise_signal(signal.SIGINT)

    return heed
