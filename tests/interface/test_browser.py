"""Pages in a real browser, headless Chromium: nothing stands beyond their right edge, no word is torn, no script fails.

Every kind of page that the package writes, of runs of a few seconds. Skipped where there is none;
`apt-get install chromium` brings it. Recipes' pages are Markdown.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from test_arena import METHODS, SMALL, arena
from test_deploy_core import BASE, Federation
from test_report import plant, realistic
from test_report_several import AUC
from test_report_several import plant as plant_several

from fedconcord.insight.report import write_report
from fedconcord.interface import cli
from fedconcord_sites.site import Site
from tiers import tiers

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
WIDTHS = (400, 1000, 1600)
LONG = "AnExtremelyLongLabelThatSomebodyWroteWithoutAnySpaceOrBracketInIt"
CANCER = Path(__file__).parents[2] / "examples" / "cancer.csv"
TABLE = ("--data", str(CANCER), "--label-column", "diagnosis", "--client-column", "site", "--model", "logreg")
DIGITS = ("--data", "digits", "--model", "logreg", "--clients", "8", "--rounds", "4")
FRAMES = """<!DOCTYPE html><title>waiting</title><body>%s<pre id="seen"></pre><script>
const over = one => one.scrollWidth - one.clientWidth;
function torn(page) {  // words of a cell that stand on two lines, though they have no hyphen; long ones may
  const words = [];
  page.querySelectorAll("th, td").forEach(cell => {
    const texts = page.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let text; (text = texts.nextNode()); ) {
      for (const word of text.data.matchAll(/[^\\s-]{2,19}(?![^\\s])/g)) {
        const range = page.createRange();
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        const tops = Array.from(range.getClientRects(), one => Math.round(one.top));
        if (!text.parentElement.closest(".long") && new Set(tops).size > 1) words.push(word[0]);
      }
    }
  });
  return words;
}
onload = function () {
  const seen = Array.from(document.querySelectorAll("iframe"), frame => {
    const page = frame.contentDocument;
    page.querySelectorAll("details").forEach(one => { one.open = true; });
    return {
      page: over(page.documentElement),
      within: Math.max(0, ...Array.from(page.querySelectorAll(".table, pre"), over)),
      torn: torn(page),
    };
  });
  document.getElementById("seen").textContent = JSON.stringify(seen);
};
</script>"""


class Look(NamedTuple):
    """What a page looks like in a window of some width, every fold open."""

    page: int  # pixels beyond the right edge
    within: int  # of a table or a block of code, behind a scroll bar
    torn: list[str]  # words of tables that stand on two lines


def look_at(page: Path, place: Path) -> tuple[dict[int, Look], list[str]]:
    """Width of the window -> what is seen there; and what scripts complain of."""
    frames = "".join(
        f'<iframe src="{page.as_uri()}" style="width:{width}px;height:900px;border:0"></iframe>' for width in WIDTHS
    )
    outer = place / "frames.html"
    outer.write_text(FRAMES % frames)
    assert BROWSER is not None
    ended = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
            "--enable-logging=stderr", f"--user-data-dir={place / 'profile'}", "--dump-dom", outer.as_uri(),
        ],
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    seen = re.search(r'<pre id="seen">(.+?)</pre>', ended.stdout)
    assert seen, ended.stderr[-2000:]
    errors = [line for line in ended.stderr.splitlines() if ":CONSOLE" in line]
    looks = [Look(**one) for one in json.loads(seen[1])]
    return dict(zip(WIDTHS, looks, strict=True)), errors


# -- pages ---------------------------------------------------------------------------------------------------------


def every_column(folder: Path) -> Path:
    return write_report([realistic(folder / "runs", methods=4, seeds=2)])


def long_labels(folder: Path) -> Path:
    plant(folder / "runs", {label: [0.95, 0.93] for label in ("fedavg", LONG)})
    return write_report([folder / "runs"])


def several_data_sets(folder: Path) -> Path:
    plant_several(folder / "runs", AUC[:6])
    return write_report(sorted((folder / "runs").iterdir()), folder / "all")


def hospitals(folder: Path) -> Path:
    """With baselines, sites by name, and metrics of two classes."""
    metrics = ("--metrics", "accuracy,auroc,sensitivity(0.2),specificity")
    asked = ("--methods", "fedavg,scaffold", "--seeds", "0,1", "--rounds", "3", "--baselines", "local,pooled")
    assert cli.call(["compare", *TABLE, *metrics, *asked, "--out", str(folder / "out")]) == 0
    return folder / "out" / "report.html"


def one_run(folder: Path) -> Path:
    assert cli.call(["run", *DIGITS, "--out", str(folder / "out")]) == 0
    return write_report([folder / "out"])


def search(folder: Path) -> Path:
    trials = ("--methods", "fedavg,fedcm,fedadam", "--budget", "2", "--seeds", "0", "--final-seeds", "1,2")
    assert cli.call(["tune", *DIGITS, *trials, "--jobs", "1", "--out", str(folder / "out")]) == 0
    return folder / "out" / "report.html"


def arenas(folder: Path) -> Path:
    (folder / "small.toml").write_text(SMALL)
    assert arena(folder / "out", folder / "small.toml", "--methods", METHODS, "--seeds", "0,1") == 0
    return folder / "out" / "report.html"


def diagnosis(folder: Path) -> Path:
    assert cli.call(["run", *DIGITS, "--method", "scaffold", "--cohort", "4", "--out", str(folder / "out")]) == 0
    assert cli.call(["diagnose", str(folder / "out")]) == 0
    return folder / "out" / "diagnose.html"


def sites(folder: Path) -> Path:
    """What `flower try` ends with: the report of a folder that a server and sites wrote."""
    job = {key: value for key, value in BASE.items() if key != "input"}
    job |= {"method": "fedavg", "rounds": 2, "data": "digits", "partition": "dirichlet(0.3)", "cohort": 3}
    here = Federation(job, folder, folder, ["basel", "bern", "chur"])
    here.site = lambda name: Site(here.job, Path(), folder / "sites" / name, name)  # type: ignore[method-assign]
    here.serve()
    return write_report([folder / "run"])


PAGES: Mapping[str, Callable[[Path], Path]] = {
    "a comparison with every column": every_column,
    "a comparison with long labels": long_labels,
    "a comparison of hospitals": hospitals,
    "several data sets": several_data_sets,
    "a run": one_run,
    "a search": search,
    "an arena": arenas,
    "a diagnosis": diagnosis,
    "sites": sites,
}


@pytest.mark.parametrize("kind", tiers(PAGES, quick=("several data sets", "sites")))
def test_pages_fit_narrow_and_wide_windows(kind: str, tmp_path: Path) -> None:
    looks, errors = look_at(PAGES[kind](tmp_path), tmp_path)
    assert errors == []
    assert {width: look.page for width, look in looks.items()} == dict.fromkeys(WIDTHS, 0)
    assert {width: looks[width].within for width in (1000, 1600)} == {1000: 0, 1600: 0}
    assert {width: looks[width].torn for width in (1000, 1600)} == {1000: [], 1600: []}


def test_a_browser_sees_what_is_wrong(tmp_path: Path) -> None:
    """A line that is too long, a table that scrolls, a word that is torn, a script that fails."""
    (tmp_path / "page.html").write_text(
        '<!DOCTYPE html><div style="width:1200px">wide</div>'
        '<div class="table" style="width:300px; overflow-x:auto"><table style="width:350px"><td>cell</table></div>'
        '<table style="width:20px; table-layout:fixed; overflow-wrap:anywhere"><td>validation</table>'
        "<script>nowhere();</script>"
    )
    looks, errors = look_at(tmp_path / "page.html", tmp_path)
    assert len(errors) == len(WIDTHS)
    assert all("nowhere is not defined" in line for line in errors)
    assert [looks[width].page > 0 for width in WIDTHS] == [True, True, False]
    assert {(look.within, *look.torn) for look in looks.values()} == {(50, "validation")}
