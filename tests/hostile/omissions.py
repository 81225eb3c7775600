"""Omissions: a setting, oracle, rule or transform that nothing applies any more, and the test that notices it first.

Engines that leave something out alike agree with each other, so only a loop written out, an identity or a number can
tell. Each omission runs the fast tests that know the local steps and the rounds, in a process of its own.

    PYTHONPATH=src python tests/hostile/omissions.py [--list] [name ...]      # some minutes each

Exit status 1 if one is noticed by nobody.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "published", "optimum", "pace", "baselines", "uploads", "unequal", "engines", "fixed_points", "check", "state",
    "robust", "oracles", "privacy",
)  # fmt: skip
TRANSFORMS = {"with_table": "tables", "with_late_replies": "late", "with_server": "server", "with_uploads": "uploads"}


def solvers(change: Callable[[Any], Any]) -> None:
    """Every Solver that is made is changed so."""
    from fedconcord.local.solver import Solver

    made = Solver.__new__
    Solver.__new__ = lambda cls, *args, **given: change(made(cls, *args, **given))  # type: ignore[method-assign]


def schedules(field: str, default: Any) -> None:
    """Every Schedule that is made has this field's default."""
    from fedconcord.federation.schedule import Schedule

    begun = Schedule.__init__

    def begin(self: Any, *args: Any, **given: Any) -> None:
        begun(self, *args, **given)
        object.__setattr__(self, field, default)

    Schedule.__init__ = begin  # type: ignore[method-assign]


def transforms(name: str) -> None:
    """A wrapper that returns what it is given."""
    module = importlib.import_module(f"fedconcord.transforms.{TRANSFORMS[name]}")
    setattr(module, name, lambda algorithm, *given, **named: algorithm)


def omissions() -> dict[str, Callable[[], None]]:
    """What can be left out, by name."""
    from fedconcord.core import Oracle
    from fedconcord.federation.schedule import Schedule
    from fedconcord.local.solver import Solver

    usual = Solver()
    parts: dict[str, Callable[[], None]] = {
        field: lambda field=field: solvers(lambda one: one._replace(**{field: getattr(usual, field)}))
        for field in Solver._fields
        if field not in ("oracle", "pace")
    }
    for kind in ("full", "sam", "svrg"):
        parts[kind] = lambda kind=kind: solvers(
            lambda one: one._replace(oracle=Oracle()) if one.oracle.kind == kind else one
        )
    for kind in ("delta", "dog", "normed"):
        parts[kind] = lambda kind=kind: solvers(
            lambda one: one._replace(pace=None) if one.pace is not None and one.pace.kind == kind else one
        )
    for field in dataclasses.fields(Schedule):
        if field.name in ("lr_decay", "lr_drops", "sampler", "availability", "dropout", "deadline", "late"):
            parts[field.name] = lambda field=field: schedules(field.name, field.default)
    return parts | {name: lambda name=name: transforms(name) for name in TRANSFORMS}


def noticed(name: str) -> str | None:
    """The first test that fails without it."""
    code = f"import omissions, pytest, sys; omissions.omissions()[{name!r}](); sys.exit(pytest.main(sys.argv[1:]))"
    tests = [f"tests/test_{part}.py" for part in TESTS]
    done = subprocess.run(
        [sys.executable, "-c", code, "-xqp", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{Path(__file__).parent}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if found is None:
        sys.exit(f"error: {name}: no test ran: {(done.stdout + done.stderr)[-500:]}")
    return found.group(1)


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--list", action="store_true", help="the names")
    words.add_argument("names", nargs="*", help="which; default: all")
    given = words.parse_args()
    known = list(omissions())
    unknown = [name for name in given.names if name not in known]
    if unknown:
        print(f"error: no omission {unknown[0]}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    if given.list:
        print("\n".join(known))
        return 0
    missed = 0
    for name in given.names or known:
        test = noticed(name)
        missed += test is None
        print(f"{name}: {test or 'NOBODY NOTICED'}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
