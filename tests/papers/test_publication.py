"""The pages about the papers as a PDF and as an archive with checksums: what they hold, equal bytes, refusals."""

import hashlib
import re
import shutil
import sys
import zipfile
import zlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from test_reproduce import PAGES, SMALL, done

from fedconcord.interface.cli.main import call
from fedconcord_papers.recipes import RECIPES, pages, printed, tables
from fedconcord_papers.recipes.evidence import gather, published, standing
from fedconcord_papers.recipes.publication import write_publication
from fedconcord_papers.recipes.recipe import Recipe
from fedconcord_papers.recipes.threats import threats
from fedconcord_papers.recipes.values import read

NOWHERE = PAGES / "none"


def words_of(content: bytes) -> str:
    """The text of a PDF without spaces, as lines break anywhere, and without the numbers of its pages."""
    parts = []
    for stream in re.findall(rb"stream\n(.*?)\nendstream", content, re.DOTALL):
        try:
            drawn = zlib.decompress(stream)
        except zlib.error:  # a figure's
            continue
        parts += re.findall(rb"\(((?:[^\\()]|\\.)*)\) Tj", drawn, re.DOTALL)
    text = re.sub(r"(?m)^\d+ of \s*\d+$", "", b"\n".join(parts).decode("latin-1"))
    return close(re.sub(r"\\(.)", r"\1", text))


def close(text: str) -> str:
    return re.sub(r"\s", "", text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is published, for pages to be written anew in."""
    return Path(shutil.copytree(PAGES, tmp_path_factory.mktemp("published") / "papers"))


@pytest.fixture
def small(tmp_path: Path) -> dict[str, Recipe]:
    """A recipe with values at desk size below tmp_path/out, begun on a day that is known."""
    done(tmp_path / "out" / "small" / "desk", "desk")
    path = tmp_path / "out" / "small" / "desk" / "done.json"
    one = read(path)
    one._replace(log=[{**one.log[0], "began": began} for began in ("2026-01-31T13:45", "2025-12-01T10:00")]).write(path)
    return {"small": SMALL._replace(source="FedNova, Table 9")}


def test_the_pdf_says_of_every_recipe_what_its_page_says(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("fpdf")
    write_publication(tmp_path / "papers.pdf", NOWHERE, RECIPES, folder)
    text = words_of((tmp_path / "papers.pdf").read_bytes())
    judged = gather(NOWHERE, RECIPES, folder)
    for one in judged.values():
        recipe = one.recipe
        for sentence in (recipe.source, recipe.claim, recipe.silent.replace("`", ""), pages.counted(one)):
            assert close(sentence) in text, f"{recipe.name}: {sentence}"
        for k, (claim, finding) in enumerate(zip(recipe.claims, one.findings, strict=True), start=1):
            ours = " (ours)" if claim.ours and "(ours)" not in claim.says else ""
            assert close(f"{recipe.id}.{k}{claim.says}{ours}{finding.verdict}") in text, f"{recipe.name}: {claim.says}"
        for result in one.sizes.values():
            assert close(result.command) in text
            assert close(result.log[-1]["machine"]) in text
    for sentence in (*pages.INTRODUCTION.split("\n\n"), *threats(judged.values())):
        bare = re.sub(r"\]\([^)]*\)|[\[*#]", "", sentence)
        assert close(bare) in text, bare
    assert text.count(close("Numbers at the paper's size")) == sum(bool(one.at_paper.rows) for one in judged.values())


def test_a_table_that_is_too_wide_is_continued_below() -> None:
    pytest.importorskip("fpdf")
    names = [f"entry-{k:02}-of-a-name-without-spaces" for k in range(20)]
    table = tables.markdown(["", *names], [["cell", *(f"value-{k:02}" for k in range(20))], ["a|b", *[""] * 20]])
    text = words_of(
        printed.pdf([f"# Title\n\n{table}\n\n*often* `--jobs 2 --out`"], Path(), datetime(2026, 1, 1, tzinfo=UTC))
    )
    assert all(name in text for name in names)
    assert all(f"value-{k:02}" in text for k in range(20))
    assert text.count("cell") == text.count("a|b") > 1
    assert text.endswith("often--jobs2--out")


def test_a_row_higher_than_a_page_goes_on() -> None:
    pytest.importorskip("fpdf")
    names = [f"m{k:04}" for k in range(3000)]
    table = tables.markdown(["", "claim", "evidence"], [["Z1.1", "all of them", ", ".join(names)]])
    text = words_of(printed.pdf([f"# Title\n\n{table}"], Path(), datetime(2026, 1, 1, tzinfo=UTC)))
    assert all(name in text for name in names)


@pytest.mark.parametrize("ending", ["pdf", "zip"])
def test_the_same_values_give_the_same_bytes(small: dict[str, Recipe], ending: str, tmp_path: Path) -> None:
    if ending == "pdf":
        pytest.importorskip("fpdf")
    first, second, third = (tmp_path / "new" / f"{name}.{ending}" for name in "abc")
    write_publication(first, tmp_path / "out", small)
    write_publication(second, tmp_path / "out", small, tmp_path / "pages")
    shutil.rmtree(tmp_path / "out")
    write_publication(third, tmp_path / "out", small, tmp_path / "pages")
    assert first.read_bytes() == second.read_bytes() == third.read_bytes()
    if ending == "pdf":
        assert b"/CreationDate (D:20260131134500Z" in first.read_bytes()
        assert close("the newest of 2026-01-31.") in words_of(first.read_bytes())
    other = {"small": small["small"]._replace(claim="another claim")}
    write_publication(third, tmp_path / "out", other, tmp_path / "pages")
    assert first.read_bytes() != third.read_bytes()


def test_the_archive_has_all_values_with_their_checksums(
    folder: Path, small: dict[str, Recipe], tmp_path: Path
) -> None:
    write_publication(tmp_path / "papers.zip", NOWHERE, RECIPES, folder)
    with zipfile.ZipFile(tmp_path / "papers.zip") as archive:
        contents = {name.removeprefix("fedconcord-papers/"): archive.read(name) for name in archive.namelist()}
    sums = dict(reversed(line.split("  ")) for line in contents.pop("SHA256SUMS").decode().splitlines())
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    there = [path for path in PAGES.rglob("*") if path.suffix in (".md", ".png") or path in standing(PAGES, RECIPES)]
    assert {*contents} == {"README.md", "CITATION.cff", *(f"papers/{path.relative_to(PAGES)}" for path in there)}
    (tmp_path / "unpacked").mkdir()
    zipfile.ZipFile(tmp_path / "papers.zip").extractall(tmp_path / "unpacked")
    again = gather(NOWHERE, RECIPES, tmp_path / "unpacked" / "fedconcord-papers" / "papers")
    assert [one.findings for one in again.values()] == [
        one.findings for one in gather(NOWHERE, RECIPES, PAGES).values()
    ]

    own = (PAGES.parents[1] / "CITATION.cff").read_text()
    for line in (r"cff-version: .*", r"license: .*", r"authors:\n  - name: .*"):
        match = re.search(line, own)
        assert match is not None
        assert match[0] in contents["CITATION.cff"].decode()

    write_publication(tmp_path / "small.zip", tmp_path / "out", small)
    with zipfile.ZipFile(tmp_path / "small.zip") as archive:
        assert "\ndate-released: 2026-01-31\nlicense" in archive.read("fedconcord-papers/CITATION.cff").decode()
        assert " (2026): *What of five papers" in archive.read("fedconcord-papers/README.md").decode()
        assert archive.infolist()[0].date_time == (2026, 1, 31, 13, 45, 0)

    path = tmp_path / "out" / "small" / "desk" / "done.json"  # of earlier values the day is not known
    one = read(path)
    one._replace(log=[{**spell, "began": ""} for spell in one.log]).write(path)
    write_publication(tmp_path / "small.zip", tmp_path / "out", small)
    with zipfile.ZipFile(tmp_path / "small.zip") as archive:
        assert "date-released" not in archive.read("fedconcord-papers/CITATION.cff").decode()
        assert "from 1 files of values, by fedconcord" in archive.read("fedconcord-papers/README.md").decode()


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "papers.zip"
    assert call(["reproduce", "--report", str(path), "--out", str(NOWHERE), "--pages", str(folder)]) == 0
    assert str(path) in capsys.readouterr().out.replace("\n", "")
    assert path.exists()
    assert published(folder, "losac_fig2", "desk").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--report", "papers.docx"], "name it FILE.pdf or FILE.zip"),
        (["--report", "papers"], "name it FILE.pdf or FILE.zip"),
        (["--report", "papers.pdf"], "pip install 'fedconcord[pdf]'"),
        (["--report", "papers.zip"], "no recipe was done below"),
        (["losac_fig2", "--report", "papers.zip"], "--report are of all recipes"),
    ],
)
def test_mistakes_get_a_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fpdf", None)  # as if it were not installed
    monkeypatch.chdir(tmp_path)
    assert call(["reproduce", *words]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not [*tmp_path.iterdir()]
