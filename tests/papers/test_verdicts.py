"""What values say of claims: by paired seeds, at the paper's size or on stand-ins; and the pages made of both."""

import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from test_reproduce import SMALL, done

from fedconcord.support.errors import UserError
from fedconcord_papers.recipes import RECIPES, claims, pages, tables
from fedconcord_papers.recipes.evidence import Judged, differences, gather, in_short, judge, published
from fedconcord_papers.recipes.found import FOUND, PAPERS, Sentence
from fedconcord_papers.recipes.ledger import plain
from fedconcord_papers.recipes.recipe import Cell, Comparison, Entry, Measure, Recipe, Size
from fedconcord_papers.recipes.run import settings_of
from fedconcord_papers.recipes.values import Done, Request, Values, read, values

PAGES = Path(__file__).resolve().parents[2] / "docs" / "papers"


def planted(a: Sequence[float], b: Sequence[float], cell: str = "c") -> Values:
    return values([("m", cell, name, seed, v) for name, them in (("A", a), ("B", b)) for seed, v in enumerate(them)])


# -- claims ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "outcome"),
    [
        ([10, 11, 12], [20, 21, 22], "held"),
        ([20, 21, 22], [10, 11, 12], "failed"),
        ([10, 21, 12], [20, 20, 22], "undecided"),  # one of three seeds the other way
        ([10, 21, 10, 10, 10], [20, 20, 20, 20, 20], "held"),  # five: by the interval of the differences
        ([10, 31, 10, 29, 10], [20, 20, 20, 20, 20], "undecided"),
        ([10, 11, 12], [math.inf] * 3, "held"),  # a target that was never reached
        ([math.inf] * 3, [math.inf] * 3, "undecided"),
        ([math.nan] * 3, [20, 21, 22], "failed"),  # diverged
        ([math.nan] * 5, [20, 21, 22, 20, 20], "failed"),
        ([10], [20], "undecided"),  # one seed agrees with itself
        ([], [], "untested"),
    ],
)
def test_a_difference_is_decided_over_paired_seeds(a: list[float], b: list[float], outcome: str) -> None:
    claim = claims.ahead("A before B", "m", "A", ["B"], ["c"])
    assert claim.judge(planted(a, b)).outcome == outcome


def test_claims_about_several_differences() -> None:
    both = Values((*planted([1, 1], [2, 2], "c").rows, *planted([3, 3], [2, 2], "d").rows))
    assert claims.ahead("", "m", "A", ["B"], ["c", "d"]).judge(both).outcome == "in part"
    assert claims.ahead("", "m", "A", ["B"], ["c", "e"]).judge(both).outcome == "in part"  # e was not run
    assert claims.ahead("", "m", "A", ["B"], ["d", "e"]).judge(both).outcome == "in part"  # it lowers both sides
    assert claims.order("", "m", ["B", "A"], ["d"]).judge(both).outcome == "held"
    assert claims.between_cells("", "m", ["A"], "c", "d").judge(both).outcome == "held"
    assert claims.between_cells("", "m", ["A"], "c", "d", higher=True).judge(both).outcome == "failed"
    assert claims.within("", "m", [("c", "A", 1.1)], 0.1).judge(both).outcome == "held"
    assert claims.within("", "m", [("c", "A", 1.2)], 0.1).judge(both).outcome == "failed"
    assert claims.within("", "m", [("c", "A", "100+")], 0.1).judge(both).outcome == "failed"
    assert claims.within("", "m", [("c", "A", "100+")], 0.1).judge(planted([math.inf] * 2, [])).outcome == "held"
    assert claims.within("", "m", [("c", "A", 1.1)], 0.1).judge(planted([1], [])).outcome == "undecided"  # one seed
    spread, far = planted([0.9, 1.0, 1.4, 1.1, 1.1], []), planted([9, 9, 9, 9, 8], [])
    assert (
        claims.within("", "m", [("c", "A", 1.0)], 0.12).judge(spread).outcome == "undecided"
    )  # a mean of 1.1 is inside
    assert claims.within("", "m", [("c", "A", 1.0)], 0.5).judge(spread).outcome == "held"
    assert claims.within("", "m", [("c", "A", 1.0)], 0.5).judge(far).outcome == "failed"
    some = planted([1.0, 1.0, math.inf], [])
    assert (
        claims.within("", "m", [("c", "A", 1.0)], 0.5).judge(some).outcome == "undecided"
    )  # one seed never came there
    assert claims.holds_where("", lambda v: [("x", True), ("y", None)]).judge(both).outcome == "in part"


@pytest.mark.parametrize(
    ("a", "so"),
    [
        ([10, 11, 12], "ahead"),
        ([10, 11, 22], "even"),  # one of three seeds is beyond the bound, though their mean is not
        ([17, 18, 22], "behind"),
        ([math.nan] * 3, "behind"),
        ([10, 10, 16, 10, 10], "ahead"),  # five: by the interval of their distances to the bound
        ([10, 10, 28, 10, 10], "even"),
        ([10], "even"),
        ([], None),
    ],
)
def test_a_bound_is_judged_on_the_distances_to_it_by_seed(a: list[float], so: str | None) -> None:
    bound = planted(a, [20.0] * 5)
    runs = [("c", "A"), ("c", "B")]
    text, sign = claims.told(bound, "m", runs, lambda a, b: f"{a:g} of {b:g}", lambda a, b: 0.8 * b - a)
    assert sign == so
    assert text == (f"{sum(a) / len(a):g} of 20" if a else "")


def test_what_chance_does() -> None:
    assert [claims.chance(n) for n in (1, 2, 3, 4)] == [1, 1 / 2, 1 / 4, 1 / 8]


# -- the paper's size and stand-ins ------------------------------------------------------------------------------------

HERE = {"data": "digits", "clients": 10, "cohort": 5, "rounds": 40, "model": "logreg"}
MEASURE = Measure("m", lambda run: 0.0, False)
TWO = Recipe(
    "two",
    "Z2",
    "A paper, Table 2",
    "A is ahead of B",
    Comparison(HERE, [Entry("A", "fedavg"), Entry("B", "scaffold")], [Cell("c", "C"), Cell("d", "D")], [MEASURE]),
    [
        claims.ahead("A is ahead in c", "m", "A", ["B"], ["c"]),
        claims.ahead("A is ahead in d", "m", "A", ["B"], ["d"]),
        claims.within("printed", "m", [("d", "A", 1.0)], 0.1),
        claims.ahead("A is ahead", "m", "A", ["B"], ["c"])._replace(ours=True),
    ],
    {
        "quick": Size({"rounds": 1}),
        "desk": Size({"engine.device": "cuda"}, by_cell={"d": {"rounds": 4, "model": "2nn"}}),
        "paper": Size(cells=("c", "d")),
    },
    {"m": {("c", "A"): 1.5, ("d", "A"): 1.25}},
)


def made(size: str, rows: Values, recipe: Recipe = TWO) -> Done:
    log = [{"began": "2026-11-24T16:00", "seconds": 7200.0, "runs": 4, "machine": "2 cores", "version": "1"}]
    cells = {cell.name: cell for cell in recipe.experiment.cells}  # type: ignore[union-attr]
    asked = {
        name: Request(settings=plain(settings_of(recipe.experiment, recipe.sizes[size], cells[name])), methods={})  # type: ignore[arg-type,index]
        for name in rows.cells()
    }
    return Done(recipe.name, size, rows, {}, {}, asked, 0, log, f"fedconcord reproduce {recipe.name} --{size}")  # type: ignore[arg-type]


BOTH = Values((*planted([1, 1, 1], [2, 2, 2], "c").rows, *planted([1, 1, 1], [2, 2, 2], "d").rows))


def test_a_stand_in_is_recognised_by_its_settings_cell_by_cell() -> None:
    assert differences(TWO, "desk", "c") == []  # where a run computes changes no number
    apart = differences(TWO, "desk", "d")
    assert ("rounds", "40", "4") in apart
    assert ("model", "logreg", "2nn") in apart
    assert any(one.is_stand_in for one in apart)
    (own,) = differences(TWO._replace(sizes={**TWO.sizes, "paper": Size(cells=("d",))}), "desk", "c")
    assert own.is_stand_in
    (otherwise,) = differences(TWO._replace(paper_has={"model": ("a CNN", "logreg")}), "paper", "c")
    assert otherwise == ("model", "a CNN", "logreg")
    assert otherwise.is_stand_in
    assert in_short(TWO, "desk") == "rounds 4 for 40; model 2nn for logreg"
    assert in_short(TWO, "paper") == ""


def test_a_stand_in_neither_holds_nor_refutes() -> None:
    one = judge(TWO, {"desk": made("desk", BOTH)})
    assert [finding.verdict for finding in one.findings] == ["held", "seen on a stand-in", "untested", "held"]
    assert one.counts == {"held": 1, "stand-in": 1, "untested": 1}  # ours is not among them
    turned = Values(tuple(row._replace(entry={"A": "B", "B": "A"}[row.entry]) for row in BOTH.rows))
    one = judge(TWO, {"desk": made("desk", turned)})
    assert [finding.verdict for finding in one.findings][:2] == ["failed", "not seen on a stand-in"]
    one = judge(TWO, {"quick": made("quick", BOTH)})  # it tests the code alone
    assert one.counts == {"untested": 3}
    assert judge(TWO, {}).counts == {"untested": 3}


def test_what_was_asked_counts_and_not_what_the_recipe_has_now() -> None:
    longer = TWO._replace(experiment=TWO.experiment._replace(settings={**HERE, "rounds": 400}))  # type: ignore[union-attr]
    (apart,) = differences(longer, "desk", "c", made("desk", BOTH))
    assert apart == ("rounds", "400", "40")
    assert next(one.verdict for one in judge(longer, {"desk": made("desk", BOTH)}).findings) == "seen on a stand-in"
    unknown = made("desk", BOTH)._replace(asked={})
    assert next(one.verdict for one in judge(TWO, {"desk": unknown}).findings) == "seen on a stand-in"
    entries = [Entry("A", "fedavg", {"local.lr": (0.1, 0.3)}), Entry("B", "scaffold")]
    searched = TWO._replace(experiment=TWO.experiment._replace(entries=entries))  # type: ignore[union-attr]
    short = made("paper", BOTH, searched)._replace(searched=1, tried={"c": {"A": {"local.lr": [0.1]}}})
    short.asked["c"]["search"] = {"rounds": 5}
    assert {one.what: one.is_stand_in for one in differences(searched, "paper", "c", short)} == {
        "search": True,  # a short search may choose another point
        "grid of A": False,
    }


def test_a_size_that_was_begun_does_not_hide_another() -> None:
    one = judge(TWO, {"desk": made("desk", BOTH), "paper": made("paper", planted([5], [], "c"))})
    assert one.at_paper.seeds("m", "c", "A") == {0: 5, 1: 1, 2: 1}
    assert one.at_paper.seeds("m", "c", "B") == {0: 2, 1: 2, 2: 2}


def test_what_was_run_at_the_papers_size_counts_before_a_stand_in() -> None:
    rows = planted([2, 2, 2], [1, 1, 1], "d")
    one = judge(TWO, {"desk": made("desk", BOTH), "paper": made("paper", rows)})
    assert [finding.verdict for finding in one.findings] == ["held", "failed", "failed", "held"]
    assert one.at_paper.seeds("m", "d", "A") == {0: 2, 1: 2, 2: 2}
    ours = judge(TWO._replace(ours=True), {"paper": made("paper", rows)})
    assert ours.counts.total() == 0


# -- pages -------------------------------------------------------------------------------------------------------------


def test_printed_numbers_stand_beside_the_papers_size_alone() -> None:
    text = pages.page(judge(TWO, {"desk": made("desk", BOTH)}), ["two-desk.png"], "values")
    exact, _, rest = text.partition("## Numbers on stand-ins")
    assert "(1.5)" in exact
    assert "1.25" not in text
    assert rest
    assert "**Of 3 predicates: held 1, stand-in 1, untested 1.**" in text
    searched = made("desk", BOTH)._replace(
        searched=4, chosen={"c": {"A": {"local.lr": 0.1}}}, tried={"c": {"A": {"local.lr": [0.1, 0.3]}}}
    )
    assert (
        "Taken of the grid at size desk, by m of one seed (1000), which no other run has. Points tried of each: 2"
        in pages.page(judge(TWO, {"desk": searched}), [], "values")
    )
    assert "3 seeds put methods that are alike in one order by chance in one of 4 comparisons" in text
    assert "| desk | D | rounds | 40 | 4 |" in text
    assert "| Z2.4 | A is ahead (ours) | **held** |" in text
    assert "2.0 hours" in text
    assert "by seed: [values/two-desk.json](values/two-desk.json)" in text
    assert "What is left at the paper's size" in text


def test_a_page_without_runs_says_so() -> None:
    text = pages.page(judge(TWO, {}), [], "values")
    assert "**Of 3 predicates: untested 3.**" in text
    assert "## Numbers" not in text
    assert "Not run at the paper's size" in text


def test_the_index_counts_predicates() -> None:
    own = {"two": TWO._replace(source="FedNova, Table 2"), "ours": TWO._replace(source="FedADMM, eq. (6)", ours=True)}
    rows = {name: judge(recipe, {"desk": made("desk", BOTH)}) for name, recipe in own.items()}
    text = pages.index(rows)
    assert "Of 3 predicates: held 1, in part 0, failed 0, undecided 0, stand-in 1, untested 1." in text
    parts = text.split("\n## ")
    heads = [*PAPERS, "Experiments of our own", "Threats to validity", "How"]
    assert [part.splitlines()[0] for part in parts[1:]] == heads
    assert "| A is ahead of B | 1 | 0 | 0 | 0 | 1 | 1 |" in parts[1]
    tables = [part for part in text.split("\n\n") if part.startswith("|")]
    assert {line.count(" | ") for table in tables for line in table.splitlines()} == {11}
    assert "| [eq. (6)](two.md) |" in parts[-3]
    assert "Of 3 predicates 1 were not tested, and 1 on stand-ins alone" in parts[-2]
    assert "2 of the 2 recipes that were run have fewer than 5 seeds" in parts[-2]


def test_published_pages_outlive_the_runs(tmp_path: Path) -> None:
    out, to = tmp_path / "out", tmp_path / "pages"
    done(out / "small" / "desk", "desk")
    for number in ("", "-2"):
        (out / "small" / "desk" / f"small{number}.png").write_bytes(b"drawn")
    recipes = {"small": SMALL._replace(source="FedNova, Table 9"), "other": SMALL._replace(name="other")}
    index = pages.write_pages(out, recipes, to)
    first = index.read_text()
    assert "1 of 2 recipes were run" in first
    assert "](small-desk-2.png)" in (to / "small.md").read_text()
    assert "untested 1" in (to / "other.md").read_text()

    reworded = recipes["small"]._replace(claim="SCAFFOLD is faster than FedAvg")
    shutil.rmtree(out)
    pages.write_pages(out, {**recipes, "small": reworded}, to)  # judged anew from the values that stand beside the page
    assert index.read_text() == first.replace(SMALL.claim, reworded.claim, 1)
    assert "](small-desk-2.png)" in (to / "small.md").read_text()

    done(out / "small" / "quick")
    pages.write_pages(out, recipes, to)
    assert not published(to, "small", "quick").exists()
    done(out / "small" / "desk", "desk")
    (out / "small" / "desk" / "small.png").write_bytes(b"drawn")
    pages.write_pages(out, recipes, to)
    assert (to / "small-desk.png").exists()
    assert not (to / "small-desk-2.png").exists()
    with pytest.raises(UserError, match="no recipe was done below"):
        pages.write_pages(tmp_path / "empty", recipes, tmp_path / "nowhere")


def test_values_of_some_cells_do_not_replace_those_of_others(tmp_path: Path) -> None:
    to, recipes = tmp_path / "pages", {"small": SMALL}
    done(tmp_path / "first" / "small" / "desk", "desk", cells=["iid"])
    pages.write_pages(tmp_path / "first", recipes, to)
    done(tmp_path / "second" / "small" / "desk", "desk", cells=["skewed"])
    pages.write_pages(tmp_path / "second", recipes, to)
    assert read(published(to, "small", "desk")).values.cells() == ["iid", "skewed"]


def test_a_best_value_at_an_end_of_what_was_tried_is_marked() -> None:
    tried = {"c": {"A": {"local.lr": [0.1, 0.3, 0.2], "mu": [1.0]}}}
    words = {0.1: "lr 0.1 (lowest tried)", 0.2: "lr 0.2", 0.3: "lr 0.3 (highest tried)"}
    for taken, said in words.items():
        one = made("desk", BOTH)._replace(tried=tried, chosen={"c": {"A": {"local.lr": taken, "mu": 1.0}}})
        assert tables.chosen(TWO, one).splitlines()[2] == f"| C | {said}, mu 1 |"


def test_unequal_grids_are_said() -> None:
    tried = {"A": {"local.lr": [0.1, 0.3], "mu": [1.0, 2.0]}, "B": {"local.lr": [0.1, 0.3]}, "C": {"local.lr": [0.1]}}
    one = made("desk", BOTH)
    assert tables.grids(one._replace(tried={"c": tried})) == "The grids are not equally long, in points: A: 4; B: 2."
    assert (
        tables.grids(one._replace(tried={"c": {"B": tried["B"]}}))
        == "Points tried of each: 2, as many of all in one federation."
    )


# -- what is published -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    return gather(PAGES / "none", RECIPES, PAGES)


def test_published_pages_are_what_their_values_give(tmp_path: Path) -> None:
    there = shutil.copytree(PAGES, tmp_path / "papers")
    pages.write_pages(tmp_path / "no runs", RECIPES, there)
    written = {path.name: path.read_text() for path in PAGES.glob("*.md")}
    assert {*written} == {f"{name}.md" for name in RECIPES} | {"README.md", "earlier.md"}
    for name, text in written.items():
        assert (there / name).read_text() == text
    assert {path.name for path in there.glob("*.png")} == {path.name for path in PAGES.glob("*.png")}


def test_every_published_sentence_is_carried_by_predicates(judged: dict[str, Judged]) -> None:
    verdicts = {
        f"{one.recipe.id}.{k}": finding.verdict
        for one in judged.values()
        for k, finding in enumerate(one.findings, start=1)
    }
    sentences: list[Sentence] = [s for paper in PAPERS.values() for s in paper.sentences]
    sentences += [s for found in FOUND.values() for s in found.sentences]
    for sentence in sentences:
        assert len(sentence.carriers) == len(sentence.by) > 0, sentence.text
        for number, verdict in sentence.carriers:
            those = [seen for place, seen in verdicts.items() if number in (place, place.rpartition(".")[0])]
            assert {*those} == {verdict}, f"{sentence.text} ({number})"


def test_what_is_said_is_of_recipes_and_papers() -> None:
    assert set(FOUND) <= set(RECIPES)
    assert set(PAPERS) == {pages.paper_of(recipe) for recipe in RECIPES.values()} - {"Papers of 2023 to 2025"}


def test_earlier_measurements_are_of_recipes_without_values(judged: dict[str, Judged]) -> None:
    linked = re.findall(r"\]\((\w+)\.md\);", (PAGES / "earlier.md").read_text())
    assert linked
    for name in linked:
        assert not judged[name].sizes, f"{name} was run again: take it out of earlier.md"
