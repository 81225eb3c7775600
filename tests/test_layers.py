"""Imports go one way between the layers of the design; a planted violation is found."""

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "fedconcord"

ROOMS = [  # from the ground up; a room imports from those below it, and no two import each other
    *("options", "basis", "core", "data", "models", "problems", "local", "federation", "state", "transforms"),
    *("algorithms", "remote", "engines", "jobs", "analysis", "report", "settings", "runs", "trained"),
    *("advice", "diagnosis", "tuning", "recipes", "arenas", "tracking", "deploy"),
    *("api", "studies", "cli", "__main__", "testing"),
]
LEVEL = {name: level for level, name in enumerate(ROOMS)}


def imported(path: Path) -> set[str]:
    """Top-level modules of the package that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("fedconcord.")}
    return found & set(LEVEL)


def violations(source: Path) -> list[str]:
    found = []
    for path in sorted(source.rglob("*.py")):
        own = path.relative_to(source).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        assert own in LEVEL, f"{path} stands in no room: give it one in {__file__}"
        found += [f"{path} imports {name}" for name in imported(path) if LEVEL[name] > LEVEL[own]]
        if own == "algorithms" and imported(path) - {"algorithms", "basis", "core", "transforms"}:
            found.append(f"{path} knows more than the contract")
        if own == "engines" and "algorithms" in imported(path):
            found.append(f"{path} names an algorithm")
    return found


def test_imports_go_one_way() -> None:
    assert violations(SOURCE) == []


def test_a_planted_violation_is_found(tmp_path: Path) -> None:
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "algorithms" / "bad.py").write_text("def f():\n    from fedconcord.engines import Serial\n")
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "bad.py").write_text("import fedconcord.algorithms.fedavg\n")
    (tmp_path / "core.py").write_text("from fedconcord import jobs\n")
    text = "\n".join(violations(tmp_path))
    for wrong in ("bad.py imports engines", "engines/bad.py names an algorithm", "core.py imports jobs"):
        assert wrong in text


def files_that_name(pattern: str) -> list[str]:
    return [path.name for path in SOURCE.rglob("*.py") if re.search(pattern, path.read_text())]


def test_flower_is_imported_in_one_place() -> None:
    """The framework flwr in one file; the package flwr-datasets, which is another, in its own."""
    assert files_that_name(r"(?m)^\s*(from|import) flwr\b") == ["grid.py"]
    assert files_that_name(r"flwr_datasets\.") == ["flower.py"]


def test_method_files_are_short() -> None:
    """About 60 lines of code at most: docstrings, blank lines and imports do not count."""
    for path in (SOURCE / "algorithms").glob("*.py"):
        if path.name == "__init__.py":
            continue
        tree = ast.parse(path.read_text())
        docstrings = set()
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            first = body[0] if isinstance(body, list) and body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings |= set(range(first.lineno, (first.end_lineno or 0) + 1))
            if isinstance(node, ast.Import | ast.ImportFrom):
                docstrings |= set(range(node.lineno, (node.end_lineno or 0) + 1))
        code = [
            number
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if line.strip() and not line.strip().startswith("#") and number not in docstrings
        ]
        assert len(code) <= 70, f"{path.name} has {len(code)} lines of code"


def test_no_file_is_long() -> None:
    """A reader takes a file in at once; what grows beyond that has a seam."""
    long = {path: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert {path: lines for path, lines in long.items() if lines > 400} == {}
