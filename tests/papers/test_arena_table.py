"""The package's table of the arena: what is kept of a whole one, the page from it, and new methods beside it."""

import json
import math
from pathlib import Path

import pytest
from test_arena import SMALL, made, method, results

import arena_table as generate
from fedconcord.interface import cli
from fedconcord_papers.arena import kept, page
from fedconcord_papers.arena.federations import REFERENCE, chosen
from fedconcord_papers.arena.plan import CONTROLS, METHODS, labelled
from fedconcord_papers.arena.standing import contests, table_of

ONLY = SMALL.partition('[[federation]]\nname = "stated"')[0]  # the first of two federations


def arena(folder: Path, methods: str, seeds: str = "0,1") -> Path:
    """The folder of an arena of one small federation."""
    file = folder / "one.toml"
    file.write_text(ONLY)
    out = folder / f"{methods.partition(',')[0].partition('(')[0]}-{seeds}"
    options = ["--federations", str(file), "--budget", "2", "--jobs", "1", "--seeds", seeds]
    assert cli.call(["arena", "--methods", methods, "--out", str(out), *options]) == 0
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An arena that is to be the table."""
    return arena(tmp_path_factory.mktemp("table"), "scaffold,controls,fedavg(local.lr=1e6,label=wild)")


def test_what_is_kept_is_what_the_arena_came_to(whole: Path) -> None:
    """All but times: rounds, bytes, finals of runs that diverged, and the target of each seed."""
    table = kept.read(generate.values_of(whole))
    (result,) = table.results.values()
    (one,) = json.loads((whole / "arena.json").read_text())["federations"]
    again = json.loads(json.dumps(result.as_dict()))
    for entry in (*one["methods"], *again["methods"]):
        del entry["slower"], entry["is_kept"]
        entry["final"] = {seed: v and pytest.approx(v, rel=1e-14) for seed, v in entry["final"].items()}
    assert again == one
    assert math.isnan(next(o for o in result.outcomes if o.entry.label == "wild").final[0])


def test_federations_of_a_later_arena_join_the_table_in_the_packages_order(whole: Path, tmp_path: Path) -> None:
    """In place of those of the same names; what is of another budget is refused."""
    text, out = (whole / "arena.json").read_text(), tmp_path / "arena.json"
    table = json.loads(generate.values_of(whole)) | {"version": "1"}
    table["federations"] = [{**table["federations"][0], "name": name, "data": "old"} for name in ("silos", "exam")]
    for name in ("few labels", "exam"):
        out.write_text(text.replace('"name": "sorted"', f'"name": "{name}"'))
        table = json.loads(generate.values_of(tmp_path, json.dumps(table)))
    assert [one["name"] for one in table["federations"]] == ["few labels", "silos", "exam"]
    assert [one["data"] for one in table["federations"] if one["data"] == "old"] == ["old"]
    now = json.loads(text)["version"]
    assert table["version"] == f"1, and {now} (few labels), and {now} (exam)"
    with pytest.raises(SystemExit, match="differs from the table in budget"):
        generate.values_of(tmp_path, json.dumps(table | {"budget": 9}))
    out.write_text(text)
    with pytest.raises(SystemExit, match="'sorted' is none; leave it out"):
        generate.values_of(tmp_path, json.dumps(table))


def test_a_new_method_is_put_beside_the_table(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table's rows are there, marked, and no run of theirs; with other seeds they are not."""
    text = generate.values_of(whole)
    monkeypatch.setattr(kept, "kept", lambda: kept.read(text))
    monkeypatch.setattr(page, "kept", lambda: kept.read(text))
    out = arena(tmp_path, "fednova")
    one, theirs = results(out)["sorted"], results(whole)["sorted"]
    assert [m["label"] for m in one["methods"]] == [REFERENCE, "fednova", "scaffold", "wild", *CONTROLS]
    for label in ("scaffold", *CONTROLS):
        assert (method(one, label)["rounds"], method(one, label)["bytes"]) == (
            method(theirs, label)["rounds"],
            method(theirs, label)["bytes"],
        )
        assert not list(out.glob(f"sorted/*/{label}*"))
    shown = (out / "README.md").read_text()
    assert "| scaffold * |" in shown
    assert "| fednova |" in shown
    assert "Methods marked * were not run here" in shown
    assert "FedAvg needs other rounds here" not in shown
    said = capsys.readouterr().out
    assert said.splitlines()[-3].split("  ")[0] == "fednova"
    assert said.splitlines()[-3].endswith("none")
    assert said.splitlines()[-2] == "* of the package's table, and not run here"
    assert shown.count("| fednova | ") == 3  # its standing, its wins against each control, and in the federation
    fewer = arena(tmp_path, "fednova", "0")
    assert [m["label"] for m in results(fewer)["sorted"]["methods"]] == [REFERENCE, "fednova"]
    assert "marked *" not in (fewer / "README.md").read_text()


def test_a_machine_that_computes_otherwise_is_said(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedAvg runs here and there: where its rounds differ, the page says on which seed."""
    changed = json.loads(generate.values_of(whole))
    fedavg = method(changed["federations"][0], REFERENCE)
    fedavg["rounds"]["1"] += 1
    monkeypatch.setattr(kept, "kept", lambda: kept.read(json.dumps(changed)))
    shown = (arena(tmp_path, "fednova") / "README.md").read_text()
    assert "* sorted: with seed 1 FedAvg needs other rounds here than in the package's table" in shown


def test_a_control_is_beaten_where_a_sign_test_says_so() -> None:
    """8 of 9 federations are p = 20/512; 7 of 9 are 92/512; ties count for nobody."""
    rounds = {"mine": [10] * 9, "fedavg + decay": [*[12] * 8, 9], "fedavg + momentum": [*[12] * 7, 9, 9]}
    rounds["fedavg + server step"] = [*[12] * 5, *[10] * 4]
    each = [made(f"f{k}", {label: (by[k], by[k]) for label, by in rounds.items()}) for k in range(9)]
    found = {one.control: one for one in contests(table_of(each))}
    assert [(one.wins, one.losses) for one in map(found.get, CONTROLS) if one] == [(5, 0), (7, 2), (8, 1)]
    assert [found[control].p for control in CONTROLS] == pytest.approx([2 / 32, 92 / 512, 20 / 512])
    assert [found[control].is_won for control in CONTROLS] == [False, False, True]


def test_controls_are_fedavg_with_one_number_more() -> None:
    assert list(labelled(["controls", "scaffold"])) == [REFERENCE, "scaffold", *CONTROLS]


def test_the_table_is_of_the_federations_of_today_and_the_page_of_the_table() -> None:
    """Other settings than the table's would leave a new method alone on its page."""
    table = kept.kept()
    packaged = {one.name: one for one in chosen(["all", "natural", "natural_hold"])}
    assert table.results.keys() == packaged.keys()
    for name, result in table.results.items():
        assert (result.federation.nested, result.federation.target) == (packaged[name].nested, packaged[name].target)
        there = {one.entry.label for one in result.outcomes} | result.refused.keys()
        assert there == {*METHODS, *CONTROLS}
    assert generate.PAGE.read_text() == generate.text_of(table)
