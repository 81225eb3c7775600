"""The papers' experiments by name: `fedconcord reproduce NAME`. A recipe prints the paper's numbers beside ours.

To add one: a file with `run(out, quick, say)` and its line here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedconcord.recipes import (
    fednova_fig2,
    fednova_fig4,
    fednova_fig5,
    fednova_lemma1,
    local_tolerance,
    losac_fig6,
    losac_fig7,
)


class Recipe(NamedTuple):
    """An experiment of a paper."""

    run: Callable[[Path, bool, Callable[[str], None]], None]
    """(folder for figures and tables, quick form?, print a line of progress or result)."""
    source: str  # paper, figure or table
    claim: str  # what the paper says it shows, in one sentence
    minutes: str  # on two cores, full and quick


RECIPES: dict[str, Recipe] = {
    "fednova_fig2": Recipe(
        fednova_fig2.run,
        "FedNova, Fig. 2",
        "with random numbers of local steps FedNova ends much closer to the optimum than FedAvg, FedProx and VRL-SGD",
        "1 and 0.3",
    ),
    "fednova_lemma1": Recipe(
        fednova_lemma1.run,
        "FedNova, Lemma 1 and eqs. (28)-(32)",
        "FedAvg and FedProx converge to the optimum of a surrogate objective, which has a closed form",
        "0.5 and 0.1",
    ),
    "fednova_fig4": Recipe(
        fednova_fig4.run,
        "FedNova, Fig. 4",
        "a larger alpha = eta mu lowers FedProx's weight bias and raises its slowdown",
        "0.1 and 0.1",
    ),
    "fednova_fig5": Recipe(
        fednova_fig5.run,
        "FedNova, Fig. 5",
        "on Synthetic(1, 1) FedNova has a lower global loss than FedAvg and FedProx in three settings",
        "10 and 0.6",
    ),
    "local_tolerance": Recipe(
        local_tolerance.run,
        "FedADMM, eq. (6)",
        "clients may solve their local problem by any solver to ||grad L_i||^2 <= eps_i: rounds against gradients",
        "4 and 0.3",
    ),
    "losac_fig6": Recipe(
        losac_fig6.run,
        "LoSAC, Fig. 6",
        "gradient matching approaches the samples of DSGD and MimeSVRG clients and moves away from those of FedAvg, "
        "SCAFFOLD and LoSAC",
        "5 and 0.3",
    ),
    "losac_fig7": Recipe(
        losac_fig7.run,
        "LoSAC, Fig. 7",
        "in low-rank matrix estimation LoSAC-Prox has the smallest error and the exact rank, "
        "SCAFFOLD-Prox and FedADMM have neither",
        "35 and 0.5",
    ),
}
