"""Mutation testing: errors drawn at random in the source, each against the tests that run its line.

Mutants are those of cosmic-ray's operators (arithmetic, comparison, unary and boolean operators, numbers, conditions,
loops, decorators, exceptions), one changed place each; operators are only exchanged for others of their kind, so that
few mutants die of a TypeError alone. Left out are annotations and names of types, sentences of errors, and asserts.
A mutant runs in a fork that has torch in memory, the tests of its line cheapest first, and is killed by the first that
fails, by one that takes ten times as long as it should, or if it cannot be imported.

    pip install cosmic-ray coverage          # in an environment of your own: no part of the project needs them
    python tests/hostile/mutants.py map --to map.json tests/test_check.py ...
    python tests/hostile/mutants.py run --map map.json --to found.jsonl --n 150 --seed 0

`run` goes on with what `--to` holds already. Exit status 1 if a mutant survived.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import random
import resource
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutations import ROOT, snapshot

ROOMS = ("core", "local", "algorithms", "state")
SOURCE = ROOT / "src" / "fedconcord"
KINDS = ("Add Sub", "Mul Div FloorDiv", "Mul Pow", "FloorDiv Mod", "BitOr BitAnd BitXor", "RShift LShift",
         "Eq NotEq Lt LtE Gt GtE", "Is IsNot", "UAdd USub Nothing", "Not Nothing")  # fmt: skip
WITHOUT = ("VariableReplacer", "VariableInserter")  # they need to be told names
HEAVY = ("numpy", "torch", "scipy.optimize", "sklearn.linear_model", "pydantic", "pytest", "numba", "safetensors")


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
    places = [place for file in files if not file.startswith(tuple(skip)) for place in mutants(file).values()]
    draw = random.Random(seed)
    chosen = draw.sample(places, min(n, len(places)))
    print(f"{len(chosen)} of {len(places)} places in {', '.join(below)}", flush=True)
    return [draw.choice(place) for place in chosen]


class Recorder:
    """A plugin of pytest: the lines that every test runs, and its seconds."""

    def __init__(self) -> None:
        import coverage

        rooms = [f"{SOURCE / room}/*" for room in ROOMS]
        self.coverage = coverage.Coverage(data_file=None, include=rooms, config_file=False, messages=False)
        self.coverage.start()
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        begin, times = time.process_time(), os.times()
        result = yield
        children = os.times().children_user - times.children_user
        self.seconds[item.nodeid] = round(time.process_time() - begin + children, 3)
        self.coverage.switch_context("")
        return result

    def write(self, path: Path) -> None:
        """Add what was seen to a map; a test that was there is there as it ran now."""
        self.coverage.stop()
        data = self.coverage.get_data()
        table = json.loads(path.read_text()) if path.exists() else {"seconds": {}, "lines": {}}
        lines = {line: {*those} - self.seconds.keys() for line, those in table["lines"].items()}
        for file in data.measured_files():
            for line, tests in data.contexts_by_lineno(file).items():
                lines.setdefault(f"{Path(file).relative_to(SOURCE)}:{line}", set()).update(tests)
        lines = {line: sorted(those - {""}) for line, those in lines.items()}
        path.write_text(json.dumps({"seconds": table["seconds"] | self.seconds, "lines": lines}))


def suites(mutant: Mutant, table: dict[str, Any], most: float) -> list[list[str]]:
    """Tests of its line, or of its file where no test runs the line, a list a file of tests, the cheapest first."""
    seconds: dict[str, float] = table["seconds"]
    tests = table["lines"].get(f"{mutant.file}:{mutant.line}") or {
        test for line, those in table["lines"].items() if line.startswith(f"{mutant.file}:") for test in those
    }
    by_file, spent = defaultdict[str, list[str]](list), 0.0
    for test in sorted(tests, key=lambda test: (seconds[test], test)):
        spent += seconds[test]
        if spent <= most or not by_file:
            by_file[test.partition("::")[0]].append(test)
    return sorted(by_file.values(), key=lambda those: sum(seconds[test] for test in those))


def verdict(checkout: Path, lists: list[list[str]], expected: float) -> str:
    """What the tests say of a checkout: 'killed', 'killed: time', or 'survived'."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        limit = int(30 + 10 * expected)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        os.chdir(checkout)
        os.environ |= {"PYTHONPATH": str(checkout / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path[:0] = [str(checkout / "src"), str(checkout / "tests")]
        sink = os.open(checkout.parent / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        options = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=200"]
        codes = (pytest.main([*options, *tests]) for tests in lists)
        os._exit(next((int(code) for code in codes if code), 0))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "survived" if status == 0 else "killed" if status > 0 else "killed: time"


def run(chosen: Sequence[Mutant], table: dict[str, Any], most: float, to: Path) -> int:
    """Write a line a mutant; the number that survived."""
    lines = to.read_text().splitlines() if to.exists() else []
    known = {tuple(found["mutant"]): found["verdict"] for found in map(json.loads, lines)}
    for name in HEAVY:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        snapshot(checkout)
        for mutant in chosen:
            if mutant in known:
                continue
            path, lists = checkout / "src" / "fedconcord" / mutant.file, suites(mutant, table, most)
            before, text = path.read_text(), mutated(mutant)
            changes = zip(before.splitlines(), text.splitlines(), strict=False)
            change = next(((old, new) for old, new in changes if old != new), ("", ""))
            path.write_text(text)
            begin = time.perf_counter()
            said = verdict(checkout, lists, sum(table["seconds"][test] for those in lists for test in those))
            path.write_text(before)
            known[mutant] = said
            about = {"tests": sum(map(len, lists)), "wall": round(time.perf_counter() - begin, 1), "change": change}
            if said != "survived":
                about["by"] = [
                    line
                    for line in (checkout.parent / "said.txt").read_text().splitlines()
                    if line.startswith(("FAILED", "ERROR", "E  "))
                ][:3]
            with to.open("a") as file:
                file.write(json.dumps({"mutant": mutant, "verdict": said, **about}) + "\n")
    survived = sum(known[mutant] == "survived" for mutant in chosen)
    for room in ROOMS:
        those = [known[mutant] for mutant in chosen if mutant.file.startswith(room)]
        print(f"| {room} | {len(those)} | {sum(said != 'survived' for said in those)} |")
    return survived


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("map", "run"))
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--map", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--n", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0, help="of tests a mutant, as the map has them")
    parser.add_argument("--rooms", nargs="+", default=ROOMS)
    parser.add_argument("--skip", nargs="*", default=("local/compiled",), help="files; these cost a compilation each")
    given = parser.parse_intermixed_args()
    warnings.filterwarnings("ignore", message="Module already imported")
    if given.what == "map":
        recorder = Recorder()
        pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *given.tests], plugins=[recorder])
        recorder.write(given.to)
        return 0
    chosen = drawn(given.n, given.seed, given.rooms, tuple(given.skip) or ("nothing",))
    return bool(run(chosen, json.loads(given.map.read_text()), given.seconds, given.to))


if __name__ == "__main__":
    sys.exit(main())
