"""Tables as hospitals send them: what cannot be read rightly is refused in a sentence with the way out, and what may be
wrong is said, in a simulation, by `data describe` and beside the sites' files; the examples give no alarm.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedconcord.federation.data import federated
from fedconcord.federation.data.doubts import doubts
from fedconcord.federation.data.inputs import Input
from fedconcord.federation.data.own import read_own
from fedconcord.federation.data.sources import numbers, open_table
from fedconcord.interface.cli import call
from fedconcord.study.settings.settings import InputSettings
from fedconcord.support.errors import UserError
from fedconcord_sites.overview import overview
from pages import ROOT

ASK = Input(label=("ill",), client="site")
DRAW = np.random.Generator(np.random.Philox(9))
ROWS = [
    [f"{a:.2f}", f"{b:.2f}", f"{c:.2f}", "mf"[int(d)], ("no", "yes")[int(a + b > 0)]]
    for a, b, c, d in zip(*DRAW.normal(size=(3, 60)), DRAW.integers(0, 2, 60), strict=True)
]
HEAD = ["crp", "age", "days", "sex", "ill"]


def text(rows: list[list[str]], head: list[str] = HEAD, mark: str = ",") -> str:
    return "\n".join(mark.join(line) for line in [head, *rows]) + "\n"


def with_sites(rows: list[list[str]]) -> str:
    return text([[*row, "ab"[i % 2]] for i, row in enumerate(rows)], [*HEAD, "site"])


def changed(column: int, change: Callable[[int, str], str]) -> list[list[str]]:
    return [[change(i, cell) if j == column else cell for j, cell in enumerate(row)] for i, row in enumerate(ROWS)]


COMMAS = changed(0, lambda i, cell: cell.replace(".", ","))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "t.csv",
            text(COMMAS, mark=";").encode(),
            f"column 'crp' has decimal commas, as in '{COMMAS[0][0]}', row 1 below",
        ),
        ("t.csv", with_sites(ROWS).encode("utf-16"), "t.csv is in UTF-16; save it as CSV UTF-8"),
        ("t.csv", with_sites(ROWS).encode("utf-16-le"), "t.csv is in UTF-16; save it as CSV UTF-8"),
        ("t.xlsx", b"PK\3\4", "is a spreadsheet; save the sheet with the table as CSV UTF-8, with one line of column"),
        (
            "t.csv",
            text(changed(3, lambda i, cell: f"CH{i:05d}")).encode(),
            "column 'sex' has 60 different texts in 60 rows, as numbers of patients have",
        ),
    ],
)
def test_what_cannot_be_read_rightly_is_refused_here_and_at_a_site(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    for read in (read_own, federated.open_file):
        with pytest.raises(UserError) as refused:
            read(tmp_path / name, ASK._replace(client=None))
        assert said in str(refused.value)
        assert "input.categories" not in str(refused.value)


def test_codes_for_no_value_and_rows_twice_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = changed(1, lambda i, cell: "-9" if i % 20 == 0 else cell)
    (tmp_path / "t.csv").write_text(with_sites(rows + rows[:7]))
    (tmp_path / "site.csv").write_text(text(rows))
    code = "column 'age' has -9 in 3 rows and else "
    assert [line[: len(code)] for line in doubts(open_table(tmp_path / "site.csv"), HEAD[:4], None)] == [code]
    ask = ["--data", str(tmp_path / "t.csv"), "--label-column", "ill", "--client-column", "site"]
    run = ["run", *ask, "--rounds", "1"]
    for words in (["data", "describe", *ask, "--out", str(tmp_path / "d")], [*run, "--out", str(tmp_path / "r")]):
        assert call(words) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "column 'age' has -9 in 4 rows and else " in said
        assert "give --set input.missing=-9" in said
        assert "7 of 67 rows are in it before, equal in every column" in said
    assert call([*run, "--out", str(tmp_path / "s"), "--set", "input.missing=-9"]) == 0
    assert "has -9" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_number_for_no_value_is_meant_by_its_value(kind: str, tmp_path: Path) -> None:
    """However it is written, and where the file holds numbers; a text with spaces stays the text that it is."""
    values = ["-9", "-9.0", "1.5", "n k", "2"] if kind == "csv" else [-9.0, -9.0, 1.5, None, 2.0]
    path = tmp_path / f"t.{kind}"
    if kind == "csv":
        path.write_text("\n".join(["u", *values]) + "\n")
    else:
        pq.write_table(pa.table({"u": values}), path)
    asked = InputSettings(missing=["n k", -9])
    assert asked.missing == ["n k", "-9"]
    [batch] = open_table(path, asked.missing).batches(["u"])
    found = numbers(batch["u"])
    assert found is not None
    assert found[np.isfinite(found)].tolist() == [1.5, 2.0]


def test_ids_of_a_large_table_leave_no_site(tmp_path: Path) -> None:
    """More different texts than are told apart are ids whatever their share."""
    rows = [f"CH{i:06d},{i % 7},{i % 2}" for i in range(30_000)]
    (tmp_path / "t.csv").write_text("\n".join(["patient,u,ill", *rows]) + "\n")
    with pytest.raises(UserError, match=r"column 'patient' has 10000 different texts or more in 30000 rows"):
        federated.open_file(tmp_path / "t.csv", ASK._replace(client=None))


def test_what_is_in_order_gives_no_alarm(tmp_path: Path) -> None:
    near = changed(1, lambda i, cell: "9" if i % 20 == 0 else f"{i % 9}")  # a nine among numbers up to eight
    few = [[str(i % 3), str(i % 2), "1", "m", "no"] for i in range(60)]  # equal rows by chance
    for rows in (ROWS, near, few):
        (tmp_path / "t.csv").write_text(text(rows))
        assert doubts(open_table(tmp_path / "t.csv"), HEAD[:4], None) == []
    for name, label, client in (
        ("cancer", "diagnosis", "site"), ("diabetes", "progression", "site"), ("hospitals", "readmitted", "hospital"),
    ):  # fmt: skip
        source = open_table(ROOT / "examples" / f"{name}.csv", ("unknown",))
        assert doubts(source, [one for one in source.names if one not in (label, client)], client) == []


def test_flower_check_shows_the_sites_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = {
        "basel": [[*row] for row in ROWS[:20]],
        "bern": [[*row[:3], ("mf".index(row[3]) and "2") or "1", row[4].title()] for row in ROWS[20:40]],
        "chur": [[str(float(row[0]) + 1000), row[1], "", row[3], "no"] for row in ROWS[40:]],
        "davos": [[*row] for row in ROWS[:20]],
    }
    for name, rows in parts.items():
        (tmp_path / f"{name}.csv").write_text(text(rows))
    sites = ["--sites", ",".join(str(tmp_path / f"{name}.csv") for name in parts)]
    code = call(["flower", "check", "--label-column", "ill", "--model", "logreg", *sites])
    out = capsys.readouterr()
    said = " ".join(out.out.split())
    assert "basel bern chur davos" in said
    assert "rows 20 20 20 20" in said
    for sentence in (
        "no other site has the class 'Yes' of 'ill'; others write 'yes': write it alike",
        "site chur: every row has 'ill' 'no'; it has no second class",
        "site chur: column 'days' has nothing in it",
        "column 'sex' has texts at basel, chur, davos (f, m) and numbers at bern (1 to 2): code it alike",
        "site chur: column 'crp' is 99",
        "is it in another unit?",
        "sites basel and davos hold the same rows; is one file there twice?",
    ):
        assert sentence in said, sentence
    assert code in (0, 2)
    gaps = [["" if i % 5 == 0 else row[0], *row[1:3], "x" if i == 3 else row[3], row[4]] for i, row in enumerate(ROWS)]
    (tmp_path / "basel.csv").write_text(text(gaps[:20]))
    (tmp_path / "chur.csv").write_text(text([row[1:] for row in parts["chur"]], HEAD[1:]))
    seen = overview({name: federated.open_file(tmp_path / f"{name}.csv", ASK) for name in ("basel", "chur")})
    table = {row[0]: row[1:] for row in seen.rows}
    positive = sum(row[4] == "yes" for row in ROWS[:20])
    assert table["label ill"] == (f"no {20 - positive}, yes {positive}", "no 20")
    assert table["crp"][0].endswith(", 20 % missing")
    assert (table["crp"][1], table["days"][1]) == ("not there", "empty")
    assert "site chur: there is no column 'crp', which counts as missing in all of its rows" in seen.doubts
    assert table["sex"][0] == "f, m, x"
    assert "site basel: no other site has in column 'sex': 'x'" in seen.doubts
    for name in parts:
        (tmp_path / f"{name}.csv").write_text(text(ROWS[15 * list(parts).index(name) :][:15]))
    assert call(["flower", "check", "--label-column", "ill", "--model", "logreg", *sites]) == 0
    assert "4 sites can begin this job\n" in capsys.readouterr().out


def test_a_program_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(60) + b"\x03\x00>\x00" * 30)
    with pytest.raises(UserError, match=r"t\.csv is no text; save it as CSV UTF-8"):
        open_table(path)
