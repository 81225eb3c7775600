"""Imports go one way between the layers of the design; a planted violation is found."""

import ast
import re
import subprocess
import sys
from pathlib import Path

from fedconcord import METHODS

PACKAGES = Path(__file__).parents[1] / "src"
SOURCE = PACKAGES / "fedconcord"
SIBLINGS = ("fedconcord_papers", "fedconcord_flower")  # they import the library, and never the reverse

ROOMS = [  # from the ground up; a room imports from those below it, and no two import each other
    *("options", "basis", "core", "data", "models", "problems", "local", "federation", "state", "transforms"),
    *("algorithms", "remote", "engines", "jobs", "analysis", "report", "settings", "runs", "trained"),
    *("advice", "diagnosis", "tuning", "tracking", "deploy"),
    *("api", "cli", "__main__", "testing"),
]
LEVEL = {name: level for level, name in enumerate(ROOMS)}


def names_imported(path: Path) -> set[str]:
    """Full names of all that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported(path: Path) -> set[str]:
    """Top-level modules of the package that a file imports."""
    return {name.split(".")[1] for name in names_imported(path) if name.startswith("fedconcord.")} & set(LEVEL)


def packages_imported(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in names_imported(path)}


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


def strangers(packages: Path) -> list[str]:
    """Files that import a package which they must not know: the library a sibling, or one sibling the other."""
    names = ("fedconcord", *SIBLINGS)
    known = {"fedconcord": set(), **{sibling: {"fedconcord"} for sibling in SIBLINGS}}
    return [
        f"{path} imports {name}"
        for package in names
        for path in sorted((packages / package).rglob("*.py"))
        for name in sorted((packages_imported(path) & set(names)) - known[package] - {package})
    ]


def test_the_library_knows_no_sibling() -> None:
    """But the list of public names, which says for type checkers where three functions of the papers stand."""
    assert strangers(PACKAGES) == [f"{SOURCE / '__init__.py'} imports fedconcord_papers"]
    text = (SOURCE / "__init__.py").read_text()
    (checked,) = re.findall(r"^if TYPE_CHECKING:\n((?:    .*\n)+)", text, re.MULTILINE)
    assert "    from fedconcord_papers.functions import arena, audit, reproduce\n" in checked
    assert len(re.findall(r"\bimport\b.*\baudit\b", text)) == 1


def test_a_planted_stranger_is_found(tmp_path: Path) -> None:
    for package, line in (
        ("fedconcord", "from fedconcord_papers.recipes import RECIPES"),
        ("fedconcord_papers", "def f():\n    import fedconcord_flower.grid"),
        ("fedconcord_flower", "import fedconcord.deploy.site"),
    ):
        (tmp_path / package).mkdir()
        (tmp_path / package / "bad.py").write_text(f"{line}\n")
    text = "\n".join(strangers(tmp_path))
    assert "fedconcord/bad.py imports fedconcord_papers" in text
    assert "fedconcord_papers/bad.py imports fedconcord_flower" in text
    assert "fedconcord_flower/bad.py" not in text


def test_the_library_works_without_its_siblings(tmp_path: Path) -> None:
    """None of its commands imports one, and where they cannot be imported only their own commands are missing."""
    code = f"""
import sys
for name in {SIBLINGS}:
    sys.modules[name] = None
from fedconcord.cli import call
def code(line): return call(line.split())
assert code("run --data quadratics --rounds 2 --out {tmp_path / "run"}") == 0
assert code("report {tmp_path / "run"}") == 0
assert code("flower --help") == 0
assert code("flower check") == 2
assert code("audit") == 2
assert code("--help") == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cannot load 'flower' of package fedconcord" in done.stderr
    assert re.search(r"^  audit +Not available", done.stdout, re.MULTILINE)
    assert re.search(r"^  compare +Compare methods", done.stdout, re.MULTILINE)


def test_no_command_of_the_library_imports_a_sibling() -> None:
    for words, packages in (("run --help", set()), ("tune --help", set()), ("reproduce --help", {"fedconcord_papers"})):
        code = (
            "import sys; from fedconcord.cli import call; call(sys.argv[1:]); "
            "print(sorted(name for name in sys.modules if name.startswith('fedconcord_') and '.' not in name))"
        )
        done = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == str(sorted(packages)), words


def files_that_name(pattern: str) -> list[str]:
    """Files of all packages with a match, as `package/file`."""
    return [
        f"{path.relative_to(PACKAGES).parts[0]}/{path.name}"
        for path in PACKAGES.rglob("*.py")
        if re.search(pattern, path.read_text())
    ]


def test_flower_is_imported_in_one_place() -> None:
    """The framework flwr in one file; the package flwr-datasets, which is another, in its own."""
    assert files_that_name(r"(?m)^\s*(from|import) flwr\b") == ["fedconcord_flower/grid.py"]
    assert files_that_name(r"flwr_datasets\.") == ["fedconcord/flower.py"]


def test_method_files_are_short() -> None:
    """About 60 lines of code at most; blank lines, imports and words (docstrings, descriptions, facts) do not count."""
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
            has_words = isinstance(node, ast.keyword) and node.arg in ("facts", "description")
            has_words |= isinstance(node, ast.Call) and getattr(node.func, "id", "") == "about"
            if isinstance(node, ast.Import | ast.ImportFrom) or has_words:
                docstrings |= set(range(node.lineno, (node.end_lineno or 0) + 1))
        code = [
            number
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if line.strip() and not line.strip().startswith("#") and number not in docstrings
        ]
        assert len(code) <= 70, f"{path.name} has {len(code)} lines of code"


def test_no_file_is_long() -> None:
    """A reader takes a file in at once; what grows beyond that has a seam."""
    long = {path: len(path.read_text().splitlines()) for path in PACKAGES.rglob("*.py")}
    assert {path: lines for path, lines in long.items() if lines > 400} == {}


def test_insight_knows_no_method_by_name() -> None:
    """Lists, advice, diagnosis and reports read what methods say of themselves; citations are in capitals."""
    methods = "|".join(sorted(METHODS))
    for room in ("advice", "analysis", "diagnosis", "report"):
        for path in (SOURCE / room).rglob("*.py"):
            named = set(re.findall(rf"\b(?:{methods})\b", path.read_text())) - {"auto"}  # an ordinary word too
            assert not named, f"{path} names {named}"
