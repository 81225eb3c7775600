"""What is known of a method: its claim, the verdicts on the papers' experiments, how often it was near the best."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from fedconcord.method.algorithms import METHODS
from fedconcord.support import factories, grammar
from fedconcord_papers.recipes import RECIPES
from fedconcord_papers.recipes.evidence import Judged, gather
from fedconcord_papers.recipes.pages import counted
from fedconcord_papers.recipes.recipe import Comparison, Study
from marks import plain, table

ROOT = Path(__file__).parents[2]
PAPERS = ROOT / "docs" / "papers"


def title(name: str) -> str:
    """The method's name as its paper writes it."""
    return factories.describe(METHODS[name])[0].partition(":")[0]


def measured(name: str) -> list[str]:
    """Paragraphs: its claim, the recipes that run it, how often it was near the best, a figure."""
    own = [one for one in _judged().values() if name in methods_of(one.recipe.name)]
    run = [one for one in own if one.sizes]
    judged = [
        (f"[{one.recipe.source}](../papers/{one.recipe.name}.md)", plain(one.recipe.claim), plain(counted(one)))
        for one in run
    ]
    parts = [claim(name)]
    if judged:
        parts.append(table(("table or figure", "the paper says", "measured again"), judged))
    rest = "; ".join(f"{one.recipe.source} (`{one.recipe.name}`)" for one in own if not one.sizes)
    if rest:
        parts.append(f"Experiments that run it and are untested yet, for `fedconcord reproduce`: {rest}.")
    near = _near().get(name)
    if near is not None:
        parts.append(
            f"Tuned, it came within 5 % of the best method's score in {near[0]} of {near[1]} federations: "
            "[choosing a method](../choosing.md#how-often-they-were-right)."
        )
    figures = [(one.recipe, path) for one in run for path in sorted(PAPERS.glob(f"{one.recipe.name}-*.png"))]
    if figures:
        recipe, path = figures[0]
        parts.append(f"![{recipe.source}](../papers/{path.name})")
    return parts


def claim(name: str) -> str:
    """What its row in the tests' table claims of quadratics whose clients differ."""
    row = _module("tests/table.py").TABLE[name]
    optimum = "the optimum of quadratics that differ by client"
    if row.exact == "partial":
        says = f"It reaches {optimum}, with absent clients and unequal numbers of local steps"
    elif row.exact == "full":
        equal = " and take the same number of local steps" if row.equal_steps else ""
        absent = "absent clients are refused" if row.everyone else "with absent clients it is shown to stop elsewhere"
        says = f"It reaches {optimum} when all clients take part{equal}; {absent}"
    else:
        says = f"It does not claim to reach {optimum}, and is shown to stop elsewhere"
    given = ", ".join(f"`{key}={grammar.text(value)}`" for key, value in row.options.items())
    return f"{says}: `tests/method/test_fixed_points.py`{f', with {given}' if given else ''}."


@cache
def methods_of(name: str) -> set[str]:
    """The methods that a recipe runs; of a study, those that its jobs or its claim name."""
    experiment = RECIPES[name].experiment
    if isinstance(experiment, Comparison):
        entries = [*experiment.entries, *(entry for cell in experiment.cells for entry in cell.entries or ())]
        return {grammar.parse(entry.call, "method").name for entry in entries}
    assert isinstance(experiment, Study)
    jobs = experiment.resolve("desk", RECIPES[name].sizes["desk"].options)
    words = " ".join([RECIPES[name].claim, *(str(value) for job in jobs for value in job.values())])
    return {name for name in METHODS if re.search(rf"(?<![\w-]){re.escape(title(name))}(?![\w-])", words)}


@cache
def _judged() -> Mapping[str, Judged]:
    """Every recipe with what the published values say of it."""
    return gather(PAPERS / "none", RECIPES, PAPERS)


@cache
def _near() -> Mapping[str, tuple[int, int]]:
    """In how many federations of how many each method was within 5 % of the best, as `benchmarks/federations.py` has
    measured."""
    judge = _module("benchmarks/federations.py")
    done = json.loads((ROOT / "benchmarks" / "federations.json").read_text())
    return {name: (sum(judge.near(one, name, "score") for one in done.values()), len(done)) for name in judge.METHODS}


@cache
def _module(path: str) -> ModuleType:
    """A file of the project that is no package."""
    spec = importlib.util.spec_from_file_location(f"fedconcord_docs_{Path(path).stem}", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
