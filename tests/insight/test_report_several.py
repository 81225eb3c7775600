"""Several data sets in one report: ranks against Demsar's worked example, matching by name, what may be said."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from test_report import Page, flat, write_run

from fedconcord.insight.report import load_runs, write_report
from fedconcord.insight.report.figures.ranking import critical
from fedconcord.insight.report.results_page import page_head, rank_words, summaries
from fedconcord.interface import cli
from fedconcord.study.statistics.load import data_names, load_data_sets, short_names
from fedconcord.study.statistics.ranks import Ranks, critical_difference, ranks
from fedconcord.study.statistics.summary import summarise
from fedconcord.support.errors import UserError

# Demsar (2006), table 6: the AUC of C4.5 with m and cf at their defaults or tuned, on 14 data sets
NAMES = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")
AUC = (
    (0.763, 0.768, 0.771, 0.798), (0.599, 0.591, 0.590, 0.569), (0.954, 0.971, 0.968, 0.967),
    (0.628, 0.661, 0.654, 0.657), (0.882, 0.888, 0.886, 0.898), (0.936, 0.931, 0.916, 0.931),
    (0.661, 0.668, 0.609, 0.685), (0.583, 0.583, 0.563, 0.625), (0.775, 0.838, 0.866, 0.875),
    (1.000, 1.000, 1.000, 1.000), (0.940, 0.962, 0.965, 0.962), (0.619, 0.666, 0.614, 0.669),
    (0.972, 0.981, 0.9751, 0.975), (0.957, 0.978, 0.946, 0.970),
)  # fmt: skip


def plant(root: Path, table: Sequence[Sequence[float]], names: Sequence[str] = NAMES) -> None:
    for i, line in enumerate(table):
        for name, value in zip(names, line, strict=True):
            write_run(root / f"{i}" / name, name, 0, flat(value, 2), head={"data": f"data{i:02}", "method": name})


def ranks_of(root: Path) -> Ranks:
    return ranks(summaries(load_data_sets([root])))


def said(r: Ranks) -> str:
    return re.sub(r"<[^>]+>", "", " ".join(rank_words(r)))


def test_ranks_of_the_worked_example(tmp_path: Path) -> None:
    """Average ranks 3.143, 2.000, 2.893 and 1.964, chi-square 9.28, critical difference 1.25 (page 14)."""
    plant(tmp_path, AUC)
    r = ranks_of(tmp_path)
    assert dict(zip(r.methods, r.average.round(3).tolist(), strict=True)) == {
        "C4.5+m+cf": 1.964, "C4.5+m": 2.0, "C4.5+cf": 2.893, "C4.5": 3.143,
    }  # fmt: skip
    plain = 12 * 14 / (4 * 5) * (np.sum(r.average**2) - 4 * 5**2 / 4)
    assert plain == pytest.approx(9.28, abs=0.01)
    tied = sum(n**3 - n for line in AUC for n in Counter(line).values())
    assert r.chi2 == pytest.approx(plain / (1 - tied / (14 * 4 * (4**2 - 1))))  # the paper has no correction for ties
    assert r.critical == pytest.approx(1.25, abs=0.005)
    assert r.groups == [(0, 3)]
    assert "data sets are too few" not in said(r)
    assert "finds a difference" in said(r)
    assert "no method is told apart from it" in said(r)  # at 0.10, as the paper has it, C4.5 would be


@pytest.mark.parametrize(("k", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (7, 2.949), (10, 3.164)])
def test_critical_difference_has_the_q_of_the_printed_table(k: int, q: float) -> None:
    """Demsar (2006), table 5(a), alpha 0.05."""
    assert critical_difference(k, 30) == pytest.approx(q * np.sqrt(k * (k + 1) / 180), rel=5e-4)


def test_groups_are_the_largest_runs_within_the_critical_difference() -> None:
    def groups(*average: float) -> list[tuple[int, int]]:
        names = tuple(map(str, average))
        return Ranks((), names, (), np.zeros((0, 0)), np.array(average), 9, 0.01, 1.0, ()).groups

    assert groups(1.0, 1.5, 2.4, 3.0) == [(0, 1), (1, 2), (2, 3)]
    assert groups(1.0, 1.4, 1.9, 4.0) == [(0, 2)]
    assert groups(1.0, 2.0, 3.0) == []


def test_few_data_sets_are_described_and_not_tested(tmp_path: Path) -> None:
    plant(tmp_path, AUC[:4])
    r = ranks_of(tmp_path)
    assert "4 data sets are too few for a test" in said(r)
    assert "p =" not in said(r)
    assert "Thick lines" not in critical(r).caption


def test_equal_methods_are_not_told_apart(tmp_path: Path) -> None:
    plant(tmp_path, [[0.8 + 0.01 * ((i + j) % 4) for j in range(4)] for i in range(8)])
    r = ranks_of(tmp_path)
    assert r.average.tolist() == [2.5] * 4
    assert "finds no difference" in said(r)


def label(folder: Path, data: str, labels: Mapping[str, tuple[str, float]]) -> None:
    for written, (method, value) in labels.items():
        write_run(folder / data / written, written, 0, flat(value, 2), head={"data": data, "method": method})


def test_methods_match_by_label_else_by_name(tmp_path: Path) -> None:
    label(tmp_path, "a", {"fedprox(mu=0.1)": ("fedprox", 0.9), "Ours": ("fedvra", 0.8), "fedavg": ("fedavg", 0.7)})
    label(tmp_path, "b", {"fedprox(mu=1)": ("fedprox", 0.9), "Ours": ("fedpd", 0.8), "fednova": ("fednova", 0.1)})
    r = ranks_of(tmp_path)
    assert r.methods == ("fedprox", "Ours")
    assert r.names == (("fedprox(mu=0.1)", "fedprox(mu=1)"), ("Ours", "Ours"))
    assert r.left_out == ("fedavg", "fednova")
    assert "Not ranked, for they are not on all data sets: fedavg and fednova." in said(r)
    label(tmp_path, "b", {"fedprox(mu=0.1)": ("fedprox", 0.5)})  # now the bare name is not one method's there
    assert ranks_of(tmp_path).methods == ("Ours",)


def test_a_method_that_diverged_comes_last(tmp_path: Path) -> None:
    label(tmp_path, "a", {"x": ("x", 0.9), "y": ("y", 0.8), "z": ("z", 0.7)})
    label(tmp_path, "b", {"x": ("x", 0.9), "y": ("y", 0.8), "z": ("z", 0.7)})
    write_run(tmp_path / "b" / "x", "x", 0, flat(0.9, 2), head={"data": "b", "method": "x", "status": "diverged"})
    r = ranks_of(tmp_path)
    assert {n: row.tolist() for n, row in zip(r.methods, r.ranks, strict=True)} == {
        "y": [2, 1], "x": [1, 3], "z": [3, 2],
    }  # fmt: skip


def test_the_page_of_several_data_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path / "in", AUC[:2], [f"{name} <b>" for name in NAMES])
    monkeypatch.chdir(tmp_path)
    assert cli.call(["report", "in/0", "in/1"]) == 0
    out = Path("runs/report-1")  # the report of the first of them stays as it is
    table, *_, last = capsys.readouterr().out.splitlines()
    assert table.split() == ["method", "average", "rank", "data00", "data01"]
    assert last == f"report: {out / 'report.html'}"
    html = (out / "report.html").read_text()
    page = Page(html)
    assert len(page.ids) == len(set(page.ids))
    assert "C4.5 <b>" not in html
    for part in ("4 methods on 2 data sets", "from 0 and 1", "2 data sets are too few", "fedconcord report in/0 in/1"):
        assert part in html, part
    assert page.open.count("details") == 2 * 2  # a data set, and in it the columns that are rarely asked for
    stems = {"ranks", *(f"data0{i}-{name}" for i in range(2) for name in ("final", "test-accuracy-by-round"))}
    for suffix in ("svg", "png", "pdf"):
        assert {p.stem for p in (out / "figures").glob(f"*.{suffix}")} == stems
    with (out / "tables" / "ranks.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 8
    assert {(x["data"], x["rank"], x["final"]) for x in lines if x["method"] == "C4.5 <b>"} == {
        ("data00", "4", "0.763"), ("data01", "1", "0.599"),
    }  # fmt: skip
    assert "\\label{tab:ranks}" in (out / "tables" / "ranks.tex").read_text()
    assert "\\label{tab:data01}" in (out / "tables" / "data01.tex").read_text()
    assert "\\label{fig:data01-final}" in (out / "figures" / "figures.tex").read_text()


def test_data_sets_without_a_common_method_are_one_sentence(tmp_path: Path) -> None:
    label(tmp_path, "a", {"x": ("x", 0.9)})
    label(tmp_path, "b", {"y": ("y", 0.9)})
    with pytest.raises(UserError, match=r"no method is in all data sets \(a: x; b: y\)"):
        write_report([tmp_path], tmp_path / "out")


def test_short_names() -> None:
    assert short_names(["b", "runs/b"]) == {"b": "b", "runs/b": "runs/b"}
    assert short_names(["runs/a", "runs/b"]) == {"runs/a": "a", "runs/b": "b"}
    assert data_names(["digits", "own.data:make('a/b')", "/x/y/a.csv"]) == {
        "digits": "digits", "own.data:make('a/b')": "own.data:make('a/b')", "/x/y/a.csv": "a.csv",
    }  # fmt: skip
    assert data_names(["/x/a/h.csv", "/x/b/h.csv"]) == {"/x/a/h.csv": "a/h.csv", "/x/b/h.csv": "b/h.csv"}


def test_runs_of_one_name_in_several_folders_are_named_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, end in (("before", 0.8), ("after", 0.9)):
        write_run(Path("runs", folder, "x"), "fedavg", 0, flat(end), head={"status": "interrupted", "rounds": 99})
        write_run(Path("runs", folder, "y"), "fedprox", {"before": 0, "after": 1}[folder], flat(end))
    runs = load_runs([Path("runs/before"), Path("runs/after")])
    assert sorted({r.name for r in runs}) == ["fedavg · after", "fedavg · before", "fedprox"]
    s = summarise(runs)
    assert any("`fedconcord run --resume runs/before/x` continues it" in w for w in s.warnings)
    assert page_head(s, [Path("runs/before"), Path("runs/after")])[1].endswith("seeds 0, 1 · from before and after")
