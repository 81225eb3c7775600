"""Omissions: a setting, oracle, rule or transform that nothing applies any more, and the test that notices it first.

Engines that leave something out alike agree with each other, so only a loop written out, an identity or a number can
tell. Each omission runs the fast tests that know the local steps and the rounds, in a process of its own; tests of
what is refused are left out, as they read settings and no step.

    PYTHONPATH=src python tests/hostile/omissions.py [--list] [name ...]      # some minutes each

Exit status 1 if one is noticed by nobody, 2 if what fails also fails without it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutations import ROOT, CannotTellError, failure, run_tests, snapshot

PARTS = (
    "published", "optimum", "pace", "baselines", "uploads", "unequal", "engines", "fixed_points", "check", "state",
    "robust", "oracles", "privacy",
)  # fmt: skip
FILES = [next(ROOT.glob(f"tests/*/test_{part}.py")).relative_to(ROOT) for part in PARTS]  # in the copy that is tested
TESTS = [*map(str, FILES), "-k", "not refus and not combinations"]
WITHOUT = """
import sys
sys.path.insert(0, "tests/hostile")
import omissions, pytest
omissions.omissions()[sys.argv.pop(1)]()
sys.exit(pytest.main(sys.argv[1:]))
"""
TRANSFORMS = {
    "with_table": "tables",
    "with_estimated_ascent": "perturbed",
    "with_late_replies": "late",
    "with_server": "server",
    "with_uploads": "uploads",
}


def solvers(change: Callable[[Any], Any]) -> None:
    """Every Solver that is made is changed so."""
    from fedconcord.method.step.solver import Solver

    made = Solver.__new__
    Solver.__new__ = lambda cls, *args, **given: change(made(cls, *args, **given))  # type: ignore[method-assign]


def schedules(field: str, default: Any) -> None:
    """Every Schedule that is made has this field's default."""
    from fedconcord.federation.participation.schedule import Schedule

    begun = Schedule.__init__

    def begin(self: Any, *args: Any, **given: Any) -> None:
        begun(self, *args, **given)
        object.__setattr__(self, field, default)

    Schedule.__init__ = begin  # type: ignore[method-assign]


def transforms(name: str) -> None:
    """A wrapper that returns what it is given."""
    module = importlib.import_module(f"fedconcord.method.wrappers.{TRANSFORMS[name]}")
    setattr(module, name, lambda algorithm, *given, **named: algorithm)


def omissions() -> dict[str, Callable[[], None]]:
    """What can be left out, by name."""
    from fedconcord.federation.participation.schedule import Schedule
    from fedconcord.method.contract import Oracle
    from fedconcord.method.step.solver import Solver

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


def noticed(name: str, clean: Path) -> str | None:
    """The first test of a checkout that fails without it, or None.

    Raises:
        CannotTellError: that test fails with it too.
    """
    found = failure(clean, ["-c", WITHOUT, name, *run_tests(*TESTS)[2:]])
    if found is not None and failure(clean, run_tests(found)) is not None:
        raise CannotTellError(f"{found} fails with it too")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help="what to leave out; all if none is given")
    parser.add_argument("--list", action="store_true", help="only show their names")
    args = parser.parse_args()
    known = list(omissions())
    unknown = set(args.name) - set(known)
    if unknown:
        parser.error(f"unknown omission {', '.join(map(repr, sorted(unknown)))}; see --list")
    if args.list:
        print(*known, sep="\n")
        return 0
    missed = unclear = 0
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "clean"
        snapshot(clean)
        for name in args.name or known:
            try:
                found = noticed(name, clean)
            except CannotTellError as error:
                unclear += 1
                print(f"{name:20s} CANNOT TELL: {error}", flush=True)
                continue
            missed += found is None
            print(f"{name:20s} {'NOBODY NOTICED' if found is None else f'noticed by {found}'}", flush=True)
    return 2 if unclear else 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
