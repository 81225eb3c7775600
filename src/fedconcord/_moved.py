"""Modules by the paths that they had before there were folders of wings, for one release, with a warning.

A file that was merged into another has its new path alone.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_FORMER = {  # what a folder was called, or a file that went elsewhere than its folder, and where it is
    "core.plan": "fedconcord.method.contract.round",
    "core.unkeyed": "fedconcord.method.contract.rng",
    "local.gradients": "fedconcord.method.step.solver",
    "problems.clustering": "fedconcord.federation.objectives.two_block",
    "problems.convex": "fedconcord.federation.objectives.linear",
    "problems.regularised": "fedconcord.federation.objectives.regularisers",
    **{
        f"report.{name}": f"fedconcord.study.statistics.{name}"
        for name in ("load", "stats", "format", "metric", "ranks", "summary")
    },
    **{
        f"runs.{name}": f"fedconcord.execution.run.{name}"
        for name in ("clock", "interrupts", "lock", "folder", "readme", "tables", "observers", "saving", "stopping")
    },
    "runs.final": "fedconcord.execution.run.final_model",
    "runs.results": "fedconcord.study.runs.training",
    "analysis.fairness": "fedconcord.federation.objectives.fairness",
    "analysis.accountant": "fedconcord.execution.job.accountant",
    "analysis.personalisation": "fedconcord.execution.job.personalisation",
    **{
        f"federation.{name}": f"fedconcord.federation.participation.{name}"
        for name in ("availability", "clock", "dropout", "sampling", "schedule", "work")
    },
    "federation.draws": "fedconcord.federation.participation.work",
    "federation.rates": "fedconcord.federation.participation.work",
    "federation.pooled": "fedconcord.federation.participation.schedule",
    "federation.labels": "fedconcord.federation.partitions.skew",
    "federation.features": "fedconcord.federation.partitions.skew",
    "federation.describe": "fedconcord.federation.partitions.describe",
    "basis": "fedconcord.support",
    "core": "fedconcord.method.contract",
    "local": "fedconcord.method.step",
    "transforms": "fedconcord.method.wrappers",
    "algorithms": "fedconcord.method.algorithms",
    "data": "fedconcord.federation.data",
    "models": "fedconcord.federation.models",
    "problems": "fedconcord.federation.objectives",
    "state": "fedconcord.execution.rows",
    "remote": "fedconcord.execution.messages",
    "engines": "fedconcord.execution.engines",
    "jobs": "fedconcord.execution.job",
    "settings": "fedconcord.study.settings",
    "options": "fedconcord.study.options",
    "runs": "fedconcord.study.runs",
    "tuning": "fedconcord.study.search",
    "report": "fedconcord.insight.report",
    "analysis": "fedconcord.insight.methods",
    "advice": "fedconcord.insight.advice",
    "trained": "fedconcord.interface.trained",
    "tracking": "fedconcord.interface.tracking",
    "api": "fedconcord.interface.api",
    "cli": "fedconcord.interface.cli",
    "diagnosis": "fedconcord_diagnosis",
    "deploy": "fedconcord_sites",
}


class FormerPaths(MetaPathFinder):
    """Asked first: a former folder that is found is the new one, and would find its files a second time."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, *names = fullname.split(".")
        if package == "fedconcord":
            for length in (2, 1):  # a file before its folder
                place = _FORMER.get(".".join(names[:length]))
                if place is not None:
                    return ModuleSpec(fullname, _Alias(".".join([place, *names[length:]])))
        return None


class _Alias(Loader):
    def __init__(self, place: str) -> None:
        self.place = place

    def exec_module(self, module: ModuleType) -> None:
        """Put the module itself in place of the empty one."""
        former = module.__name__
        sys.modules[former] = import_module(self.place)
        warnings.warn(f"{former} is {self.place} now; the former path goes with the next release", FutureWarning, 2)
