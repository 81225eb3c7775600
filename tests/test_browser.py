"""Pages in a real browser, headless Chromium: nothing stands beyond their right edge, and no script fails.

Skipped where there is none; `apt-get install chromium` brings it.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedconcord.report import write_report
from test_report import plant, realistic

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (400, 1000, 1600)
FRAMES = """<!DOCTYPE html><title>waiting</title><body>%s<pre id="seen"></pre><script>
onload = function () {
  const over = one => one.scrollWidth - one.clientWidth;
  const seen = Array.from(document.querySelectorAll("iframe"), frame => {
    const page = frame.contentDocument;
    page.querySelectorAll("details").forEach(one => { one.open = true; });
    return [over(page.documentElement), Math.max(0, ...Array.from(page.querySelectorAll(".table"), over))];
  });
  document.getElementById("seen").textContent = JSON.stringify(seen);
};
</script>"""


def beyond(page: Path, place: Path) -> tuple[dict[int, list[int]], list[str]]:
    """Width of the window -> pixels that page and tables have beyond their right edge; and what scripts complain of."""
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
    return dict(zip(WIDTHS, json.loads(seen[1]), strict=True)), errors


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_the_report_fits_narrow_and_wide_windows(tmp_path: Path) -> None:
    realistic(tmp_path / "every column", methods=4, seeds=2)
    labels = ("fedavg", "AnExtremelyLongLabelThatSomebodyWroteWithoutAnySpaceOrBracketInIt")
    plant(tmp_path / "labels", {label: [0.95, 0.93] for label in labels})
    for name in ("every column", "labels"):
        pixels, errors = beyond(write_report([tmp_path / name]), tmp_path)
        assert errors == [], name
        assert {width: both[0] for width, both in pixels.items()} == dict.fromkeys(WIDTHS, 0), name  # of the page
        assert (pixels[1000][1], pixels[1600][1]) == (0, 0), name  # of its tables, with every fold open
