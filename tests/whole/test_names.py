"""Variables are named by what they are: a participle alone ("found", "given") says only what became of something.

`python tests/whole/test_names.py` prints how many stand where.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
PARTICIPLES = {
    *("asked", "begun", "chosen", "done", "drawn", "found", "given", "gone", "grown", "heard", "held", "kept", "known"),
    *("left", "made", "met", "named", "own", "paced", "said", "seen", "sent", "settled", "shown", "spent", "spoilt"),
    *("taken", "told", "tried", "wanted", "written"),
}
MOST = {
    "fedconcord": 167,
    "fedconcord_diagnosis": 12,
    "fedconcord_papers": 48,
    "fedconcord_natural": 0,
    "fedconcord_referee": 0,
    "fedconcord_sites": 6,
    "fedconcord_flower": 4,
}  # it is only ever lowered


def named(source: str) -> Iterator[str]:
    """Every name that is assigned, and every parameter."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def participles(package: Path) -> Counter[str]:
    """Room -> variables that are a participle."""
    rooms: Counter[str] = Counter()
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0]
        rooms[room] += sum(name.strip("_") in PARTICIPLES for name in named(path.read_text()))
    return rooms


def test_no_more_variables_are_participles() -> None:
    assert {name: most for name, most in MOST.items() if participles(SOURCE / name).total() > most} == {}


def test_a_planted_participle_is_counted(tmp_path: Path) -> None:
    (tmp_path / "room.py").write_text("def f(given):\n    found = [one for one in given]\n    return found\n")
    assert participles(tmp_path).total() == 2


if __name__ == "__main__":
    for name in MOST:
        print(name, participles(SOURCE / name).total(), dict(participles(SOURCE / name).most_common()))
