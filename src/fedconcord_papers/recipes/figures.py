"""The figure of a comparison: a metric by round, a panel a cell, the mean over seeds and their range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from fedconcord.insight.report.curves import foot
from fedconcord.insight.report.figures.style import cut_below, look
from fedconcord.study.statistics.load import Array, Run, load_runs
from fedconcord_papers.recipes.recipe import Comparison, Recipe, names_of
from fedconcord_papers.recipes.tools import line, panels
from fedconcord_papers.recipes.values import Values

ROW = 3  # panels side by side


def draw(recipe: Recipe, folder: Path, table: Values) -> None:
    """NAME.png and NAME.svg, more with -2, -3 for further panels, of every final comparison that the folder has whole:
    curves of some of the runs that the values are of would be taken for those of all."""
    assert isinstance(recipe.experiment, Comparison)
    cells = [cell for cell in recipe.experiment.cells if _is_whole(folder / cell.name / "final", cell.name, table)]
    for k in range(0, len(cells), ROW):
        some = cells[k : k + ROW]
        name = recipe.name if k == 0 else f"{recipe.name}-{k // ROW + 1}"
        with panels(folder, name, [cell.title for cell in some]) as axes:
            for ax, cell in zip(axes, some, strict=True):
                runs = load_runs([folder / cell.name / "final"])
                column = _column(runs[0])
                percent = column.endswith("accuracy")
                entries = names_of(recipe.experiment)
                whole, every = list[Array](), list[float]()
                for index, entry in enumerate(entries):
                    own = [run for run in runs if run.head.label == entry]
                    if not own:
                        continue
                    rounds, values = _together(own, column)
                    if len(rounds) > 1 and not any(run.diverged for run in own):
                        whole.append(values.mean(axis=0))
                        every += [float(values.min()), float(values.max())]
                    values = 100 * values if percent else values
                    line(ax, index, rounds, values.mean(axis=0), entry)
                    colour, _, _ = look(index)
                    ax.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, lw=0)
                if not percent and all(
                    (run.metrics[column][np.isfinite(run.metrics[column])] > 0).all() for run in runs
                ):
                    ax.set_yscale("log")
                low = foot(whole, every) if percent else None
                if low is not None:
                    cut_below(ax, 100 * low)
                ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
                ax.set_xlabel("round")
                ax.set_ylabel(f"{column.replace('_', ' ')}{', %' if percent else ''}")


def _is_whole(folder: Path, cell: str, values: Values) -> bool:
    """Whether a folder has the runs of all values of a cell."""
    there = {(run.head.label, run.head.seed) for run in load_runs([folder])} if folder.exists() else set()
    return bool(there) and there >= {(row.entry, row.seed) for row in values.rows if row.cell == cell}


def _column(run: Run) -> str:
    """The metric that is drawn: the one that ranks."""
    return str(run.head.ranking[0]["column"]) if run.head.ranking else next(iter(run.metrics))


def _together(runs: list[Run], column: str) -> tuple[Array, Array]:
    """(rounds [P], values [seeds, P]) up to where the shortest run stopped or the first was not finite."""
    length = min(len(run.round) for run in runs)
    values = np.stack([run.metrics[column][:length] for run in runs])
    whole = np.isfinite(values).all(axis=0)
    end = length if whole.all() else int(np.argmin(whole))
    return runs[0].round[:end], values[:, :end]
