"""A recipe without its runs: every job resolved, and how many parameters, clients, samples and steps it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from fedconcord.federation.models import MODELS
from fedconcord.federation.objectives import PROBLEMS
from fedconcord.study.settings.job import build
from fedconcord.study.settings.methods import runs
from fedconcord.study.settings.problem import forget_problem
from fedconcord.study.settings.resolve import resolve_compare
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import factories, grammar
from fedconcord_papers.recipes.grid import points_of
from fedconcord_papers.recipes.recipe import Comparison
from fedconcord_papers.recipes.run import RecipeSpec, entries_of, planned_texts


class Shape(NamedTuple):
    """Of a data set that need not be at hand."""

    shape: tuple[int, ...]  # of a sample
    classes: int
    samples: int  # for training


SHAPES = {
    "digits": Shape((1, 8, 8), 10, 1437),
    "mnist": Shape((1, 28, 28), 10, 60_000),
    "fmnist": Shape((1, 28, 28), 10, 60_000),
    "cifar10": Shape((3, 32, 32), 10, 50_000),
    "cifar100": Shape((3, 32, 32), 100, 50_000),
    "har": Shape((561,), 6, 7352),
    "esr": Shape((178,), 5, 9200),
}
DRAWN: Mapping[str, Callable[[Mapping[str, Any], int], tuple[int, int]]] = {  # problems that take long to draw
    "low_rank": lambda given, clients: (given["dim"] ** 2, clients * given["samples"]),
}
COLUMNS = ("cell", "method", "data", "clients", "a round", "parameters", "samples", "local work", "rounds", "runs")


def rows(request: RecipeSpec) -> Iterator[dict[str, object]]:
    """A row a method and cell, with its runs of search and comparison.

    Raises:
        UserError: settings that do not resolve.
    """
    recipe, size = request.recipe, request.size
    if not isinstance(recipe.experiment, Comparison):
        for row in recipe.experiment.resolve(request.size_name, size.options):
            yield dict(row)
        return
    cells = {cell.name: cell for cell in recipe.experiment.cells}
    seeds = len(size.seeds if request.seeds is None else request.seeds)
    for cell, settings, methods in planned_texts(request):
        grid = {entry.name: len(points_of(entry)) for entry in entries_of(size, recipe.experiment, cells[cell])}
        nested = {**settings, "methods": methods}
        config = resolve_compare(from_nested(nested, recipe.name))
        for one in runs(config):
            trials = grid[one.label or ""] if size.search is not None and cells[cell].tuned_in is None else 1
            parameters, samples = counts(one)
            local = one.local
            work = f"{local.steps} steps" if local.steps is not None else f"{local.epochs} epochs"
            cells_of_row = (
                *(cell, one.label, one.data, one.clients, one.cohort, parameters, samples),
                *(f"{work} of {local.batch_size}", one.rounds, seeds + (trials if trials > 1 else 0)),
            )
            yield dict(zip(COLUMNS, cells_of_row, strict=True))


def counts(config: Config) -> tuple[int | None, int | None]:
    """(parameters, training samples) of a run, without its data where their shape is known."""
    name = grammar.parse(config.data, "data").name
    if name in SHAPES and config.model is not None:
        return _parameters(config.model, name), SHAPES[name].samples
    if name in DRAWN:
        return DRAWN[name](factories.check(PROBLEMS, "data", config.data).resolved(), config.clients)
    job = build(config)
    forget_problem()
    return len(job.problem.init(0)), int(job.problem.roster.samples.sum())


@cache  # a large model takes longer than all else of a dry run
def _parameters(model: str, data: str) -> int:
    """Parameters of a model on samples of a data set's shape."""
    shape, call = SHAPES[data], grammar.parse(model, "model")
    return sum(p.numel() for p in MODELS[call.name](shape.shape, shape.classes, *call.args, **call.kwargs).parameters())
