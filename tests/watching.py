"""Callbacks that tests watch runs with."""

from collections.abc import Callable

import fedconcord
from fedconcord import Row, Run


class Rows(fedconcord.Callback):
    """Calls a function with every row."""

    def __init__(self, function: Callable[[Row], object]) -> None:
        self.function = function

    def row(self, run: Run, row: Row) -> None:
        self.function(row)
