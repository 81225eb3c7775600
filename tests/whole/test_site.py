"""The documentation as a site: methods, commands and public names have their page, nav holds all, and it builds."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

import fedconcord
import found
import made
import methods
import nav
import reference
from fedconcord.method.algorithms import METHODS
from marks import plain, prose, spaced

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def every_page() -> set[str]:
    """Paths below docs, of those that lie there and those that are made."""
    return {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | set(made.pages())


def test_every_method_and_every_command_has_its_page() -> None:
    written = made.pages()
    assert {f"methods/{name}.md" for name in METHODS} < set(written)
    shown = subprocess.run([sys.executable, "-m", "fedconcord", "--help"], capture_output=True, text=True, check=True)
    commands = re.findall(r"^[│ ] +([a-z]+)  ", shown.stdout, re.MULTILINE)
    assert len(commands) > 10
    assert {path for path in written if path.startswith("reference/commands/")} == {
        f"reference/commands/{name}.md" for name in commands
    }


def test_every_public_name_stands_in_the_reference_once() -> None:
    text = "".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    assert Counter(re.findall(r"^::: fedconcord\.(\w+)$", text, re.MULTILINE)) == Counter(fedconcord.__all__)


def test_the_order_holds_every_page_once() -> None:
    named = Counter(nav.named(nav.expanded(CONFIG["nav"], every_page())))
    assert named == Counter(every_page())


def test_a_star_takes_what_no_other_entry_names() -> None:
    entries = ["index.md", {"A": ["a/*.md", "b/two.md"]}, {"B": ["b/*.md", "b*.md"]}, {"Empty": [{"None": ["c/*.md"]}]}]
    pages = ["index.md", "a/2.md", "a/1.md", "b/two.md", "b/one.md"]
    assert nav.expanded(entries, pages) == ["index.md", {"A": ["a/1.md", "a/2.md", "b/two.md"]}, {"B": ["b/one.md"]}]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_states_its_equations(name: str) -> None:
    """As formulas, in its file's header, with a source."""
    module = inspect.getmodule(METHODS[name])
    assert module is not None
    formulas = re.findall(r"```text\n(.*?)```", prose(module.__doc__ or ""), re.DOTALL)
    assert any("<-" in one or "=" in one for one in formulas)
    assert re.search(r"\b(19|20)\d\d\b|arXiv", module.__doc__ or "")


def test_a_method_page_says_what_its_file_and_functions_say() -> None:
    page = methods.page("scaffold")
    assert "| `option` | `2` | one of 1, 2 |" in page
    assert "| a client keeps | 1 | `c` \\[d\\] the client's control variate |" in page
    assert "| a client sends | 2 | `x` \\[d\\] the client's move; `c` \\[d\\] change of its control variate |" in page
    assert "| quantised uploads | `upload = quantise` | yes |" in page
    assert "which L-BFGS does not have; use local SGD" in page
    assert "with absent clients and unequal numbers of local steps: `tests/method/test_fixed_points.py`" in page
    assert "[FedVRA, Fig. 1 and section 3](../papers/fedvra_fig1.md)" in page
    assert "fedconcord run --method scaffold --data digits --partition 'dirichlet(0.1)'" in page
    assert "in 12 of 20 federations" in page  # docs/choosing.md: 10 of 16, and 2 of 4 held out
    page = methods.page("fedpd")
    assert "| absent clients | `cohort < clients` | fedpd needs all 10 clients in every round" in page
    assert "--cohort 60" in page
    assert page.count("| a client gets |") == 2  # the model, and what the server sends after its step


def test_recipes_are_found_by_the_methods_that_they_run() -> None:
    assert found.methods_of("fednova_fig2") == {"fedavg", "fedprox", "vrlsgd", "fednova"}
    assert {"fedavg", "fedprox"} <= found.methods_of("fednova_lemma1")  # a study
    table, *_ = [part for part in found.measured("vrlsgd") if "measured again" in part]
    assert "[FedNova, Fig. 2](../papers/fednova_fig2.md)" in table
    assert "Of 5 predicates" in table
    assert found.claim("vrlsgd").startswith("It reaches the optimum of quadratics that differ by client when all")


def test_a_command_page_shows_options_and_their_settings() -> None:
    page = reference.page("run")
    assert "| `--rounds` | `N` |" in page
    assert "[`local.lr`](../settings.md#local)" in page
    assert "## fedconcord data fetch" in reference.page("data")
    assert "## local\n" in reference.settings()
    assert "**`dirichlet`**" in reference.names()


def test_text_of_the_package_is_no_markup() -> None:
    assert plain("c_i <x> a * b `d_i` *old*") == "c\\_i &lt;x> a \\* b `d_i` *old*"
    assert prose("One:\n    x <- y_i.\nTwo x_i\n    goes on.") == (
        "One:\n\n```text\nx <- y_i.\n```\n\nTwo x\\_i\ngoes on."
    )


def test_lists_and_tables_below_text_are_seen() -> None:
    assert spaced("So\n* one\n  more\n* two\n") == "So\n\n* one\n  more\n* two\n"
    assert spaced("So\n| a |\n|---|\n") == "So\n\n| a |\n|---|\n"
    assert spaced("```\nSo\n- a\n```\n") == "```\nSo\n- a\n```\n"


# -- the whole site ----------------------------------------------------------------------------------------------------


def build(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(out)]  # as make docs
    return subprocess.run(program, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True)


@pytest.mark.slow
def test_the_site_builds_and_asks_no_network_for_anything(tmp_path: Path) -> None:
    done = build(ROOT / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert {f"{path.removesuffix('.md')}.html".replace("README", "index") for path in every_page()} <= {
        page.relative_to(tmp_path).as_posix() for page in pages
    }
    fetched = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)="?(?:https?:)?//[^">\s]*')
    assert [found for page in pages for found in fetched.findall(page.read_text())] == []
    styles = [path.read_text() for path in tmp_path.rglob("*.css")]
    assert [found for text in styles for found in re.findall(r"(?:@import|url\()\W*https?:[^)]*", text)] == []
    assert "var __index" in (tmp_path / "search" / "search_index.js").read_text()[:20]  # found from disk, too


@pytest.mark.slow
def test_a_broken_link_a_lost_page_and_a_bare_name_fail(tmp_path: Path) -> None:
    for part in ("docs", "src", "tests", "benchmarks"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("mkdocs.yml", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    with open(tmp_path / "docs" / "wire.md", "a") as page:
        page.write("\n[gone](nowhere.md), [no such part](scale.md#nowhere)\n")
    (tmp_path / "docs" / "lost.md").write_text("# Lost\n")
    search = tmp_path / "src" / "fedconcord" / "support" / "factories.py"
    search.write_text(search.read_text().replace("    low: float  # the smallest value\n", "    low: float\n"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path / "src"))
        done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    for said in ("'nowhere.md'", "'scale.md#nowhere'", "lost.md", "fedconcord.Search.low has no docstring"):
        assert said in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_command_of_every_method_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = fedconcord.run(**methods.arguments(name) | {"rounds": 1}, out="out")
    assert result.status == "complete"
