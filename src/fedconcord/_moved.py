"""Modules by the paths that they had before there were folders of wings. They work for one release, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_FORMER = {  # what a folder was called, and where it is
    "basis": "support",
    "core": "method.contract",
    "local": "method.step",
    "transforms": "method.wrappers",
    "algorithms": "method.algorithms",
    "data": "federation.data",
    "models": "federation.models",
    "problems": "federation.objectives",
    **{f"federation.{name}": f"federation.participation.{name}" for name in ("sampling", "schedule", "work")},
    "state": "execution.rows",
    "remote": "execution.messages",
    "engines": "execution.engines",
    "jobs": "execution.job",
    "settings": "study.settings",
    "options": "study.options",
    "runs": "study.runs",
    "tuning": "study.search",
    "report": "insight.report",
    "analysis": "insight.methods",
    "advice": "insight.advice",
    "trained": "interface.trained",
    "tracking": "interface.tracking",
    "api": "interface.api",
    "cli": "interface.cli",
}


class FormerPaths(MetaPathFinder):
    """Asked first: a former folder that is found is the new one, and would find its files a second time."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if package != "fedconcord":
            return None
        head = next((old for old in _FORMER if rest == old or rest.startswith(f"{old}.")), None)
        if head is None:
            return None
        return ModuleSpec(fullname, _Alias(f"fedconcord.{_FORMER[head]}{rest.removeprefix(head)}"))


class _Alias(Loader):
    def __init__(self, place: str) -> None:
        self.place = place

    def exec_module(self, module: ModuleType) -> None:
        """Put the module itself in place of the empty one."""
        former = module.__name__
        sys.modules[former] = import_module(self.place)
        warnings.warn(f"{former} is {self.place} now; the former path goes with the next release", FutureWarning, 2)
