"""What a newcomer is handed: README, the first pages, packaging. Commands parse, settings resolve, files are there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fedconcord
import made
from fedconcord.interface import cli
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_file, from_nested
from fedconcord.support import files, imports
from pages import ROOT

COMING_FROM = ROOT / "docs" / "guides" / "coming-from.md"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, BUILD = SETTINGS["project"], SETTINGS["build-system"]
LINK = re.compile(r"\]\((?P<path>[^)#:]+)(?:#[^)]*)?\)")
MADE = set(made.pages())
OURS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(page: Path) -> list[list[str]]:
    """Every line of the page's code that calls fedconcord, as words."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(body for language, body in blocks if language in ("", "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("fedconcord")]


def test_links_lead_somewhere() -> None:
    """To a file, or to a page that the site makes; the site's own build looks at what docs link to among themselves."""
    lost = []
    for page in OURS:
        text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
        for found in LINK.finditer(text):
            path = Path(os.path.normpath(page.parent / found["path"]))
            written = path.is_relative_to(ROOT / "docs") and path.relative_to(ROOT / "docs").as_posix() in MADE
            if not written and not path.exists():
                lost.append(f"{page}: {found['path']}")
    assert lost == []


def test_the_picture_is_small() -> None:
    (picture,) = re.findall(r"^!\[.*\]\((.*)\)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert (ROOT / picture).stat().st_size < 100_000


def test_readme_s_first_command_is_the_job_of_the_demo() -> None:
    """`make demo` and the block of Python are one job, in the Makefile's file and in the README."""
    (source,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(source.partition("tuned =")[0], names)  # its arguments; the search itself takes minutes
    demo = tomllib.loads((ROOT / "examples" / "demo.toml").read_text())
    assert names["methods"] == demo["methods"]
    job = names["job"]
    assert isinstance(job, dict)
    assert job.pop("epochs") == demo["local"]["epochs"]
    assert job.items() <= demo.items()


def test_the_demo_installs_the_package_alone(tmp_path: Path) -> None:
    """What tests, lint and documentation need is added when they first need it."""

    def commands_of(target: str) -> str:
        line = ["make", "--dry-run", "--always-make", target, f"VENV={tmp_path}", "LOCK="]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "--editable .\n" in commands_of("demo")
    assert "dev" not in commands_of("demo")
    for target in ("test", "docs"):
        assert "--editable '.[dev,docs]'" in commands_of(target)


def test_flower_whose_private_parts_are_used_is_bounded() -> None:
    """By the versions that the tests over a real SuperLink passed with; the pinned one is among them."""
    pinned = re.search(r"^flwr==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    bounds = [
        requirement.specifier
        for extra in PROJECT["optional-dependencies"].values()
        if (requirement := Requirement(next((one for one in extra if one.startswith("flwr>")), "none"))).name == "flwr"
    ]
    assert len(bounds) == 2
    for bound in bounds:
        assert [bound.contains(version) for version in ("1.40.9", pinned[1], "1.42.0", "1.43.0")] == [0, 1, 1, 0]


def test_readme_s_commands_for_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that start nothing, as they are printed; `try` runs in the tests over a real SuperLink."""
    check, attempt, new = commands(ROOT / "README.md")
    assert [words[:2] for words in (check, attempt, new)] == [["flower", what] for what in ("check", "try", "new")]
    assert attempt[2:-2] == check[2:]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    pytest.importorskip("flwr")
    assert cli.call(check) == 0
    assert cli.call(new) == 0
    assert (tmp_path / "team" / "README.md").exists()


@pytest.mark.flower
def test_readme_s_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, attempt, _ = commands(ROOT / "README.md")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run([sys.executable, "-m", "fedconcord", *attempt], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "flower try --resume" in (tmp_path / "sites" / "README.txt").read_text()


# -- coming from another framework -----------------------------------------------------------------------------------


def test_every_block_of_settings_resolves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`package.module` is the reader's own; here it is there."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    models = "".join(f"def {name}(*given):\n    ...\n" for name in ("Net", "simple_cnn", "cnn"))
    data = "".join(
        f"def {name}(*given):\n    return {{'x': np.eye(60), 'y': np.arange(60) % 3, 'client': np.arange(60) % 20}}\n"
        for name in ("emnist", "instructions")
    )
    (tmp_path / "package" / "module.py").write_text(f"import numpy as np\n{data}{models}")
    monkeypatch.syspath_prepend(str(tmp_path))
    blocks = re.findall(r"^```toml\n(.*?)^```$", COMING_FROM.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.toml"
        files.write_text(path, block)
        source = from_file(path)
        imports.trust(source.values)
        config = resolve_run(source)
        assert config.rounds == tomllib.loads(block)["rounds"]


def test_every_method_and_setting_named_in_a_line_resolves() -> None:
    text = re.sub(r"^```.*?^```$", "", COMING_FROM.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = re.findall(r"`((?:fed|afed)\w+\([^`]*\))`", text)
    assert len(named) >= 15
    for method in named:
        resolve_run(from_nested({"method": method}, "page"))
    settings = re.findall(r"`((?:local\.|privacy\.)?\w+ = (?:\"[^`]+\"|[\d.e-]+))`", text)
    ours = [line for line in settings if line.split(" = ")[0] in
            {"aggregate", "partition", "sampling", "validation", "local.steps", "local.batch_size", "local.clip",
             "local.lr_decay"}]  # fmt: skip
    assert len(ours) >= 8
    for line in ours:
        resolve_run(from_nested(tomllib.loads(line), "page"))


# -- packaging -------------------------------------------------------------------------------------------------------


def test_the_version_is_the_installed_one() -> None:
    assert fedconcord.__version__ == metadata.version("fedconcord")


def test_metadata_of_the_package() -> None:
    for key in ("description", "readme", "license", "requires-python", "authors", "keywords", "classifiers", "scripts"):
        assert PROJECT[key], key
    for path in (*PROJECT["license-files"], PROJECT["readme"]):
        assert (ROOT / path).is_file()
    assert PROJECT["dynamic"] == ["version"]
    assert PROJECT["scripts"]["fedconcord"] == "fedconcord.interface.cli:main"


def test_the_lock_is_of_the_pinned_versions_and_of_all_that_is_asked_for() -> None:
    """`make lock` was run after the last change of constraints.txt and pyproject.toml; every archive has its hash."""
    lines = (ROOT / "requirements.lock").read_text().replace(" \\\n", "").splitlines()
    locked = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, *hashes = line.split("    --hash=sha256:")
            assert hashes, line
            assert all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes), line
            (pin,) = Requirement(name).specifier  # no address, no file, one version
            assert pin.operator == "==", line
            locked[canonicalize_name(Requirement(name).name)] = pin.version.partition("+")[0]
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    assert {name: locked.get(name) for name in pinned} == pinned
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *extras["dev"], *extras["docs"], *BUILD["requires"]]
    for line in map(Requirement, asked):
        assert line.specifier.contains(locked[canonicalize_name(line.name)]), line


def test_what_the_image_copies_is_there() -> None:
    """Nothing here builds images: their files are looked for."""
    hidden = (ROOT / ".dockerignore").read_text().split()
    copied = [
        path
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for path in line.split()[1:-1]
    ]
    assert "src" in copied
    assert {*PROJECT["license-files"], PROJECT["readme"], "pyproject.toml"} <= set(copied)  # a build reads them
    assert [path for path in copied if not (ROOT / path).exists() or path in hidden] == []
    extras = re.search(r"\.whl\)\[(.*?)\]", (ROOT / "Dockerfile").read_text())
    assert extras is not None
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])


def test_the_citation_says_what_the_package_does() -> None:
    lines = dict(re.findall(r"^([\w-]+): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    assert {"cff-version", "message", "title", "type", "license"} <= set(lines)
    assert lines["license"] == PROJECT["license"]
    assert f'name: "{PROJECT["authors"][0]["name"]}"' in (ROOT / "CITATION.cff").read_text()
