"""Replay reference trajectories: `python -m fedconcord.testing.oracles DIR [--engine serial|stacked]`.

DIR holds `cases.json` and, for each of its sections, the .npz file of that name; arrays, schedules and hyper-parameters
are all read from there. A line a case: the largest error of any recorded array, relative to the largest entry of its
row. Exit status 1 if a case that is implemented is above 1e-9 or a file is missing, 2 if the folder cannot be used.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedconcord.execution.engines import Engine, Serial, Stacked
from fedconcord.support.errors import UserError
from fedconcord.testing.replay import Recorded, Replay

__all__ = ["Recorded", "load", "main"]

TOLERANCE = 1e-9
ENGINES: dict[str, Engine] = {"serial": Serial(), "stacked": Stacked()}


def replayer(section: str) -> Replay | None:
    """The `replay` of `fedconcord.testing.SECTION_oracle`, or None where there is no such module."""
    module = f"{__package__}.{section}_oracle"
    if not section.isidentifier() or importlib.util.find_spec(module) is None:
        return None
    replay: Replay = importlib.import_module(module).replay
    return replay


def load(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray]]]:
    """`cases.json` of a folder, and the arrays of those of its sections whose file is there.

    Raises:
        UserError: there is no cases.json, or a file is broken.
    """
    if not (folder / "cases.json").is_file():
        raise UserError(f"{folder} has no cases.json; give a folder with cases.json and the .npz files that it names")
    arrays = {}
    try:
        cases = json.loads((folder / "cases.json").read_text())
        if not isinstance(cases, dict):
            raise UserError(f"{folder / 'cases.json'} is no JSON object of sections; restore the file")
        for section in cases:
            path = folder / f"{section}.npz"
            if path.is_file():
                with np.load(path, allow_pickle=False) as file:
                    arrays[section] = dict(file)
    except UserError:
        raise
    except (ValueError, OSError, zipfile.BadZipFile) as broken:
        raise UserError(f"cannot read the cases of {folder}: {broken}; restore the file") from broken
    return cases, arrays


def report(cases: Mapping[str, Any], arrays: Mapping[str, Mapping[str, np.ndarray]], engine: str) -> int:
    """Replay and print everything; the exit status."""
    count = {"ok": 0, "FAILED": 0, "not implemented": 0}

    def line(case: str, error: float) -> None:
        word = "not implemented" if math.isnan(error) else "ok" if error <= TOLERANCE else "FAILED"
        count[word] += 1
        print(f"{case:28s} {word}" if math.isnan(error) else f"{case:28s} {error:9.2e}  {word}")

    for section, settings in cases.items():
        replay = replayer(section)
        if section not in arrays:
            count["FAILED"] += 1
            print(f"{section:28s} FAILED: cases.json has this section and the folder no {section}.npz")
        elif replay is None:
            line(section, math.nan)
        else:
            for case, error in replay(arrays[section], settings, ENGINES[engine]):
                line(case, error)
    passed, failed, missing = count.values()
    print(f"{passed} passed, {failed} failed, {missing} not implemented ({engine} engine, {TOLERANCE:g} relative)")
    return 1 if failed else 0


def main(argv: list[str] | None = None) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fedconcord.testing.oracles", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="stacked")
    args = parser.parse_args(argv)
    try:
        return report(*load(args.folder), args.engine)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
