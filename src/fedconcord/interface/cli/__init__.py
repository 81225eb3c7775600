"""The command `fedconcord`: options in, folders and a report out. A mistake is one sentence and exit code 2."""

from fedconcord.interface.cli.main import call, main

__all__ = ["call", "main"]
