"""docs/tutorial.md: every command runs, in order, and says what the page prints, numbers aside."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages import ROOT, blocks, prepare, says

PAGE = ROOT / "docs" / "tutorial.md"


def shape(text: str) -> list[str]:
    """Its lines with # for numbers, sorted: another processor may move last digits, and so the order of a table."""
    return sorted(" ".join(re.sub(r"\d[\d,]*(\.\d+)?", "#", line).split()) for line in text.splitlines())


@pytest.mark.slow
def test_every_command_says_what_the_page_prints(tmp_path: Path) -> None:
    prepare(tmp_path)
    assert len(blocks(PAGE)) == 6
    for line, output in blocks(PAGE):
        assert shape(says(tmp_path, line)) == shape(output)
    page = (tmp_path / "tutorial" / "tuned" / "final" / "report.html").read_text()
    assert "Is federation worth it?" in page
    assert "Glarus" in page
    assert len((tmp_path / "tutorial" / "predictions.csv").read_text().splitlines()) == 2126
