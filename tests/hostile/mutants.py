"""Mutation testing: errors drawn at random in the source, each against fast tests that know its file.

Mutants are those of cosmic-ray's operators (arithmetic, comparisons, signs, boolean operators, numbers, conditions,
loops, decorators, exceptions), one changed place each; an operator becomes one of its kind, so that few mutants die
of a TypeError alone. Left out are annotations, names of types, sentences of errors and asserts. A mutant runs in a fork
that has torch in memory, and is killed by the first test that fails, by time, or if it cannot be imported.

    pip install --constraint constraints.txt -e '.[dev]' cosmic-ray    # in an environment of your own
    PYTHONPATH=src python tests/hostile/mutants.py --n 120 --seed 1 --to found.jsonl

goes on with what found.jsonl holds already, and runs the tests that killed on the unchanged source at the end. Exit
status 1 if a mutant survived, 2 if such a test fails.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.util
import json
import os
import random
import re
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutations import ROOT, snapshot

ROOMS = ("method/contract", "method/step", "method/algorithms", "execution/rows")
SOURCE = ROOT / "src" / "fedconcord"
KINDS = ("Add Sub", "Mul Div FloorDiv", "Mul Pow", "FloorDiv Mod", "BitOr BitAnd BitXor", "RShift LShift",
         "Eq NotEq Lt LtE Gt GtE", "Is IsNot", "UAdd USub Nothing", "Not Nothing")  # fmt: skip
ORACLES, PUBLISHED = "tests/method/test_oracles.py -k all_cases and serial", "tests/method/test_published.py"
QUICK = (
    "tests/execution/test_engines.py -k short_loop or combinations or one_block or full_batches or "
    "full_gradient_costs or purposes or regulariser_of or who_stops or svrg"
)
PACE = (
    "tests/method/test_pace.py -k published_loop or vanish or never_changes or first_step or without_a_gradient or "
    "whole or refused or shared or units or meant"
)
STEPS = "tests/execution/test_engines.py -k solver_setting and fednova or lbfgs"
UNEQUAL = "tests/federation/test_unequal.py -k late_reply or lost or answers"
LOOP = PUBLISHED, QUICK, PACE, STEPS, ORACLES, "tests/method/test_local_step.py"
METHOD = (
    *(
        "tests/method/test_published.py -k {0}",
        "tests/method/test_identity.py",
        "tests/method/test_check.py -k {0}",
        ORACLES,
    ),
    *("tests/method/test_fixed_points.py -k {0}", "tests/whole/test_golden.py -k {0}"),
)
SUITES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("method/algorithms/plugins", ("tests/interface/test_plugins.py",)),
    ("method/algorithms/__init__", ("tests/interface/test_plugins.py", "tests/method/test_catalogue.py")),
    ("method/algorithms/auto", ("tests/method/test_auto.py", *METHOD)),
    ("method/algorithms/fedvra", (*METHOD, "tests/method/test_family.py", "tests/method/test_nonsmooth.py -k fedvra")),
    (
        "method/algorithms/family",
        ("tests/method/test_family.py", ORACLES, "tests/method/test_check.py -k fedvra or fedavg"),
    ),
    ("method/algorithms/alone", ("tests/study/test_baselines.py", *METHOD)),
    (
        "method/algorithms/",
        (
            *(*METHOD, "tests/method/test_family.py -k {0}", "tests/method/test_fixed_points.py -k identities or sums"),
            "tests/execution/test_engines.py -k combinations",
        ),
    ),
    ("method/step/sizes", (PACE, "tests/method/test_pace.py -k not compiled")),
    ("method/step/graphs", ("tests/method/test_graphs.py", "tests/method/test_pace.py -k graph")),
    ("method/step/step", (*LOOP, "tests/method/test_graphs.py -k every_method or solvers")),
    ("method/step/solver", (*LOOP, "tests/method/test_fixed_points.py -k normaliser or solver")),
    ("method/step/samples", (*LOOP, "tests/federation/test_streamed.py")),
    (
        "method/step/assignment",
        (*LOOP, "tests/method/test_check.py -k scaffold or fedpaq or plan", "tests/execution/test_seam.py", UNEQUAL),
    ),
    ("method/step/", LOOP),
    (
        "execution/rows/tensors",
        ("tests/execution/test_state.py -k not kill_9 and not half_rows", "tests/execution/test_results.py"),
    ),
    ("execution/rows/", ("tests/execution/test_state.py -k not kill_9 and not half_rows",)),
    ("method/contract/rng", ("tests/sites/test_deploy_private.py -k system_generator", PUBLISHED, QUICK, UNEQUAL)),
    (
        "method/contract/flat",
        (
            ORACLES,
            "tests/execution/test_engines.py -k batchnorm or kernels_are",
            "tests/federation/test_models.py",
            "tests/federation/test_losses.py -k sentences",
        ),
    ),
    (
        "method/contract/",
        (
            *(PUBLISHED, "tests/method/test_check.py -k scaffold", QUICK, UNEQUAL),
            *(STEPS, "tests/method/test_robust.py -k engines_agree"),
        ),
    ),
)
WITHOUT = ("VariableReplacer", "VariableInserter")  # they need to be told names
HEAVY = (
    "numpy",
    "torch",
    "torch._dynamo",
    "scipy.optimize",
    "sklearn.linear_model",
    "pydantic",
    "pytest",
    "numba",
    "safetensors",
)


class Mutant(NamedTuple):
    file: str  # under src/fedconcord
    line: int
    operator: str  # of cosmic-ray
    occurrence: int


def left_out(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Ranges of positions without mutants."""
    ranges = []
    for node in ast.walk(ast.parse(source)):
        skipped: list[Any] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert) or getattr(node, "name", "") == "__repr__":
            skipped.append(node)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            word = node.targets[0].id
            skipped.append(node if word[0].isupper() and not word.isupper() else None)  # Weights = Literal[...]
        ranges += [
            ((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)) for n in skipped if isinstance(n, ast.AST)
        ]
    return ranges


def allowed(operator: str) -> bool:
    """Whether it exchanges an operator for one of its kind."""
    if not operator.startswith("Replace") or operator.count("_") < 2:
        return operator not in WITHOUT
    before, after = operator.split("_")[-2:]
    return any({before, after} <= set(kind.split()) for kind in KINDS)


def mutants(file: str) -> dict[tuple[Any, str], list[Mutant]]:
    """Mutants of a file by their place and kind of operator."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.operators.provider import OperatorProvider

    source, provider = (SOURCE / file).read_text(), OperatorProvider()
    nodes, ranges, found = list(ast_nodes(get_ast(source))), left_out(source), defaultdict(list)
    for name in filter(allowed, provider):
        places = [place for node in nodes for place in provider[name]().mutation_positions(node)]
        for occurrence, (start, _) in enumerate(places):
            if not any(low <= start < high for low, high in ranges):
                found[start, name.partition("_")[0]].append(Mutant(file, start[0], name, occurrence))
    return found


def mutated(mutant: Mutant) -> str:
    """The source of its file."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.operators.provider import OperatorProvider

    text: str = mutate_code(
        (SOURCE / mutant.file).read_text(), OperatorProvider()[mutant.operator](), mutant.occurrence
    )
    return text


def drawn(n: int, seed: int, below: Sequence[str], skip: Sequence[str]) -> list[Mutant]:
    """n mutants, at most one a place: places are drawn, then what changes there."""
    files = sorted(str(path.relative_to(SOURCE)) for room in below for path in (SOURCE / room).rglob("*.py"))
    places = [place for file in files if not file.startswith((*skip, "-")) for place in mutants(file).values()]
    draw = random.Random(seed)
    draw.shuffle(places)
    chosen = places[:n]  # what a smaller n has as well
    print(f"{len(chosen)} of {len(places)} places in {', '.join(below)}", flush=True)
    return [draw.choice(place) for place in chosen]


def suites(file: str) -> list[list[str]]:
    """Arguments of pytest for a file of the package, one call after another until one fails."""
    found = next(those for start, those in SUITES if file.startswith(start))
    return [part.format(Path(file).stem).split(" ", 2) for part in found]


def verdict(checkout: Path, calls: Sequence[Sequence[str]], limit: int) -> str:
    """What tests say of a checkout: 'survived', or 'killed', with 'time' if by its seconds on a processor."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        os.chdir(checkout)
        os.environ["PYTHONPATH"] = str(checkout / "src")
        sys.path[:0] = [str(checkout / "src"), str(checkout / "tests")]
        sink = os.open(checkout.parent / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        options = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=300"]
        codes = (int(pytest.main([*options, *call])) for call in calls)
        os._exit(next((code for code in codes if code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)), 0))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "survived" if status == 0 else "killed" if status > 0 else "killed: time"


def run(chosen: Sequence[Mutant], to: Path, limit: int) -> int:
    """Write a line a mutant and a row a room; 1 if one survived, 2 if what killed fails anyway."""
    for name in HEAVY:
        importlib.import_module(name)
    lines = to.read_text().splitlines() if to.exists() else []
    known = {Mutant(*found["mutant"]): found for found in map(json.loads, lines)}
    with tempfile.TemporaryDirectory() as folder:
        checkout, said = Path(folder) / "checkout", Path(folder) / "said.txt"
        snapshot(checkout)
        sys.dont_write_bytecode = True  # a mutant is as old as the source to the second
        for mutant in chosen:
            if mutant in known:
                continue
            path, begin = checkout / "src" / "fedconcord" / mutant.file, time.perf_counter()
            before, text = path.read_text(), mutated(mutant)
            path.write_text(text)
            found = {"mutant": mutant, "verdict": verdict(checkout, suites(mutant.file), limit)}
            path.write_text(before)
            changes = difflib.ndiff(before.splitlines(), text.splitlines())
            found["change"] = [line for line in changes if line[0] in "+-"]
            found["by"] = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said.read_text(), re.MULTILINE)[:1]
            found["seconds"] = round(time.perf_counter() - begin, 1)
            with to.open("a") as file:
                file.write(json.dumps(found) + "\n")
            known[mutant] = found
        killers = sorted({test for mutant in chosen for test in known[mutant]["by"]})
        sound = not killers or verdict(checkout, [killers], 20 * limit) == "survived"
    for room in ROOMS:
        those = [known[mutant]["verdict"] for mutant in chosen if mutant.file.startswith(room)]
        print(f"| {room} | {len(those)} | {sum(one != 'survived' for one in those)} |")
    if not sound:
        print(f"a test that killed fails without a mutant too: one of {', '.join(killers)}")
    return 2 if not sound else int(any(known[mutant]["verdict"] == "survived" for mutant in chosen))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=120, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to", type=Path, required=True, help="file of what was found, a line a mutant")
    parser.add_argument(
        "--seconds", type=int, default=120, help="on a processor, after which a mutant counts as killed"
    )
    parser.add_argument("--below", nargs="+", default=ROOMS, help="folders of src/fedconcord to draw from")
    parser.add_argument("--skip", nargs="*", default=["method/step/compiled"], help="folders to leave out")
    given = parser.parse_args()
    if importlib.util.find_spec("cosmic_ray") is None:
        parser.error("cosmic-ray is not installed; pip install cosmic-ray in an environment of your own")
    if not given.to.parent.is_dir():
        parser.error(f"--to {given.to}: there is no folder {given.to.parent}; make it")
    absent = [name for name in given.below if not (SOURCE / name).exists()]
    if absent:
        parser.error(f"--below: src/fedconcord has no {absent[0]}; give a folder of it, as {', '.join(ROOMS)}")
    return run(drawn(given.n, given.seed, given.below, given.skip), given.to, given.seconds)


if __name__ == "__main__":
    sys.exit(main())
