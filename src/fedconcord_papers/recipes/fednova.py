"""FedNova (IEEE TSP 2021): Figs. 2, 4 and 5, Lemma 1 and Table I."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedconcord_papers.recipes.claims import So, across, ahead, holds_where, number, order, told, within
from fedconcord_papers.recipes.measures import final, magnitude
from fedconcord_papers.recipes.recipe import Cell, Comparison, Entry, Headline, Recipe, Size, Study
from fedconcord_papers.recipes.studies import fednova_fig4, fednova_lemma1
from fedconcord_papers.recipes.values import Values

PLAIN: Mapping[str, Any] = {"validation": "none", "eval.clients": False}

# -- Fig. 2 ------------------------------------------------------------------------------------------------------------

DISTANCE = magnitude("distance", 100, "log10 of the distance to the optimum")


def arrived(table: Values) -> list[tuple[str, So]]:
    """Whether each method reaches the optimum to rounding with equal steps."""
    return [
        (f"{entry}: 10^{max(distances):.1f}" if distances else entry, max(distances) < -12 if distances else None)
        for entry in table.entries()
        for distances in [list(table.seeds(DISTANCE.name, "equal", entry).values())]
    ]


def much_closer(table: Values) -> list[tuple[str, So]]:
    """Whether FedNova ends more than ten times closer with random steps, for every seed."""
    nova = table.seeds(DISTANCE.name, "random", "FedNova")
    rows: list[tuple[str, So]] = []
    for entry in ("FedAvg", "FedProx"):
        distances = table.seeds(DISTANCE.name, "random", entry)
        gains = [distances[seed] - nova[seed] for seed in nova.keys() & distances.keys()]
        rows.append((f"{entry}: {min(gains):.2f} decades" if gains else entry, min(gains) > 1 if gains else None))
    return rows


FIG2 = Recipe(
    name="fednova_fig2",
    id="F1",
    source="FedNova, Fig. 2",
    claim="with random numbers of local steps FedNova ends much closer to the optimum than FedAvg, FedProx and VRL-SGD",
    experiment=Comparison(
        {
            **PLAIN,
            "data": "fednova_quadratics(start=1)",
            "clients": 30,
            "cohort": 30,
            "local.batch_size": "full",
            "local.lr": 0.05,
            "rounds": 1200,
            "local.lr_drops": [[600, 0.2], [900, 0.2]],
            "engine.dtype": "float64",
            "eval.every": 1,
        },
        (
            Entry("FedAvg", "fedavg"),
            Entry("FedProx", "fedprox(mu=1.0)"),
            Entry("VRL-SGD", "vrlsgd"),
            Entry("FedNova", "fednova"),
        ),
        (
            Cell("equal", "30 steps for all", {"local.steps": 30}),
            Cell("random", "Gaussian steps, mean 30, new each round", {"local.steps": "gaussian(30,22,1,96)"}),
        ),
        (DISTANCE,),
    ),
    claims=(
        holds_where("with equal steps every method reaches the optimum", arrived),
        ahead(
            "with random steps FedNova ends closer to it than the others",
            DISTANCE.name,
            "FedNova",
            ["FedAvg", "FedProx", "VRL-SGD"],
            ["random"],
        ),
        holds_where("more than ten times closer", much_closer),
        ahead("FedProx slightly improves on FedAvg's gap", DISTANCE.name, "FedProx", ["FedAvg"], ["random"]),
        ahead("VRL-SGD may diverge: it is worse than FedAvg", DISTANCE.name, "FedAvg", ["VRL-SGD"], ["random"]),
    ),
    sizes={
        "quick": Size(
            {"rounds": 160, "local.lr_drops": [[80, 0.2], [120, 0.2]]},
            seeds=(0,),
            search=None,
        ),
        "desk": Size(search=None, seeds=range(5)),
        "paper": Size(search=None, seeds=range(5)),
    },
    silent="The dimension (10), the start (every coordinate 1) and the deviation of the Gaussian (22, so that 96 is "
    "three deviations; clipping to [1, 96] moves the mean to 30.6). Distances are means over the last 100 rounds, one "
    "round of random steps being noise.",
    headline=Headline("log10 of the distance to the optimum", "random", ("FedNova", "FedAvg", "FedProx")),
)

# -- closed forms ------------------------------------------------------------------------------------------------------

LEMMA1 = Recipe(
    name="fednova_lemma1",
    id="F2",
    source="FedNova, Lemma 1 and eqs. (28)-(32)",
    claim="FedAvg and FedProx converge to the optimum of a surrogate objective, which has a closed form",
    experiment=Study(fednova_lemma1.run, fednova_lemma1.resolve),
    claims=fednova_lemma1.CLAIMS,
    sizes={
        "quick": Size(seeds=(0,), options={"rates": (0.05, 0.01)}),
        "desk": Size(seeds=(0,), options={"rates": (0.05, 0.01, 0.002, 0.0004)}),
        "paper": Size(seeds=(0,), options={"rates": (0.05, 0.01, 0.002, 0.0004)}),
    },
    silent="tau_i uniform on 1 to 96, kept for all rounds; the quadratics of unequal curvature are drawn here.",
    headline=Headline("run against (31), relative", "FedAvg, H = I", ("eta 0.05",)),
)

FIG4 = Recipe(
    name="fednova_fig4",
    id="F3",
    source="FedNova, Fig. 4",
    claim="a larger alpha = eta mu lowers FedProx's weight bias and raises its slowdown",
    experiment=Study(fednova_fig4.run, fednova_fig4.resolve),
    claims=fednova_fig4.CLAIMS,
    sizes={
        "quick": Size(seeds=(0,), options={"points": 21, "tried": 5}),
        "desk": Size(seeds=(0,), options={"points": 101, "tried": 21}),
        "paper": Size(seeds=(0,), options={"points": 101, "tried": 21}),
    },
    silent="N(20, 20) has 20 as its deviation or as its variance: both are drawn, rounded and at least 1.",
    headline=Headline("weight bias", "std 20", ("alpha 0", "alpha 1")),
)

# -- Fig. 5 ------------------------------------------------------------------------------------------------------------

THREE = ("all", "sampled", "random")
LOSS = final("train_loss", False, 40, "global loss, mean of the last 40 rounds")
RATES: Mapping[str, Any] = {"local.lr": (0.02, 0.005, 0.01, 0.05, 0.1)}
PULLS: Mapping[str, Any] = {"FedProx": {"mu": (1.0, 0.1, 0.01)}}
CONVEX = {"FedAvg": "fedavg(weights=size)", "FedProx": "fedprox(mu=1.0,weights=size)", "FedNova": "fednova"}

FIG5 = Recipe(
    name="fednova_fig5",
    id="F4",
    source="FedNova, Fig. 5",
    claim="on Synthetic(1, 1) FedNova has a lower global loss than FedAvg and FedProx in three settings",
    experiment=Comparison(
        {
            **PLAIN,
            "data": "synthetic(alpha=1,beta=1,clients=30)",
            "model": "logreg",
            "local.batch_size": 20,
            "local.lr": 0.02,
            "rounds": 200,
            "local.lr_drops": [[100, 0.1], [150, 0.1]],
            "eval.every": 1,
            "eval.train_samples": 100_000,
        },
        (
            *(Entry(name, call) for name, call in CONVEX.items()),
            *(Entry(f"{name}, tuned", call, {**RATES, **PULLS.get(name, {})}) for name, call in CONVEX.items()),
        ),
        (
            Cell("all", "all clients, 5 epochs", {"cohort": 30, "local.epochs": 5}),
            Cell("sampled", "9 of 30, 5 epochs", {"cohort": 9, "local.epochs": 5}),
            Cell("random", "9 of 30, 1 to 5 epochs", {"cohort": 9, "local.epochs": "uniform(1,5)"}),
        ),
        (LOSS,),
    ),
    claims=(
        ahead("FedNova has the lowest loss in all three settings", LOSS.name, "FedNova", ["FedAvg", "FedProx"], THREE),
        ahead(
            "so it is with each at its best of a grid",
            *(LOSS.name, "FedNova, tuned", ["FedAvg, tuned", "FedProx, tuned"], THREE),
        )._replace(ours=True),
    ),
    sizes={
        "quick": Size(
            {"rounds": 10, "local.lr_drops": [[5, 0.1], [8, 0.1]]},
            cells=("random",),
            entries=tuple(CONVEX),
            seeds=(0,),
            search=None,
        ),
        "desk": Size(search={"rounds": 50, "local.lr_drops": [[25, 0.1], [38, 0.1]]}),
        "paper": Size(seeds=range(5)),
    },
    silent="The number of rounds (200), the factor by which step sizes fall after 50 and 75 % of them (10, the "
    "code's), mu of FedProx (1), and how the 9 are drawn (uniformly without replacement, weighed by size among "
    "themselves). The paper tunes the step size for FedAvg alone (0.02); entries called tuned have their own. Each "
    "seed draws another Synthetic(1, 1).",
    headline=Headline(
        LOSS.name,
        "random",
        ("FedNova, tuned", "FedAvg, tuned", "FedProx, tuned"),
    ),
)

# -- Table I -----------------------------------------------------------------------------------------------------------

SCORE = final(window=3)
SLOW = {"local.lr": (0.05, 0.005, 0.01, 0.02, 0.08)}  # the paper's grid; in front what it chose
FAST = {"local.lr": (0.02, 0.005, 0.01, 0.05, 0.08)}
BALL = "local.momentum=0.9"


def pairs_of(mu: float) -> tuple[Entry, ...]:
    """Vanilla, momentum and proximal SGD under both rules."""
    return (
        Entry("FedAvg, vanilla", "fedavg(weights=size)", SLOW),
        Entry("FedNova, vanilla", "fednova", SLOW),
        Entry("FedAvg, momentum", f"fedavg(weights=size,{BALL})", FAST),
        Entry("FedNova, momentum", f"fednova({BALL})", FAST),
        Entry("FedAvg, proximal", f"fedprox(mu={mu},weights=size)", SLOW),
        Entry("FedNova, proximal", f"fednova(mu={mu},tau_eff=tau)", SLOW),
    )


SERVER = "server=momentum(0.9,units=gradients)"
RANDOM = (
    *pairs_of(0.001),
    Entry("FedAvg, VR", "scaffold(weights=size)", SLOW),
    Entry("FedNova, VR", "fednova_vr", SLOW),
    Entry("FedNova, momentum + VR", f"fednova_vr({BALL})", FAST),
    Entry("FedNova, server momentum", f"fednova({SERVER})", SLOW),
    Entry("FedNova, hybrid momentum", f"fednova({BALL},{SERVER})", FAST),
)
TABLE = {
    "E2": {
        "FedAvg, vanilla": (60.68, 1.05),
        "FedNova, vanilla": (66.31, 0.86),
        "FedAvg, momentum": (65.26, 2.42),
        "FedNova, momentum": (73.32, 0.29),
        "FedAvg, proximal": (60.44, 1.21),
        "FedNova, proximal": (69.92, 0.34),
    },
    "E2to5": {
        "FedAvg, vanilla": (64.22, 1.06),
        "FedNova, vanilla": (73.22, 0.32),
        "FedAvg, momentum": (70.44, 2.99),
        "FedNova, momentum": (77.07, 0.12),
        "FedAvg, proximal": (63.74, 1.44),
        "FedNova, proximal": (73.41, 0.45),
        "FedAvg, VR": (74.72, 0.34),
        "FedNova, VR": (74.72, 0.19),
        "FedNova, momentum + VR": (79.19, 0.17),
        "FedNova, server momentum": (77.49, 0.25),
        "FedNova, hybrid momentum": (81.15, 0.38),
    },
}


def same_vr(table: Values) -> list[tuple[str, So]]:
    """Whether VR ends within a point under both rules."""
    runs = [("E2to5", f"{rule}, VR") for rule in ("FedAvg", "FedNova")]
    return [
        told(
            *(table, SCORE.name, runs),
            lambda a, b: f"{number(a, '.2f')} and {number(b, '.2f')} %",
            lambda a, b: 1 - abs(a - b),
        )
    ]


TABLE1 = Recipe(
    name="fednova_table1",
    id="F5",
    source="FedNova, Table I",
    claim="on CIFAR-10 over 16 unequal clients FedNova is ahead of the FedAvg rule with every local solver, and "
    "momentum, then both momenta together, are ahead of vanilla SGD",
    experiment=Comparison(
        {
            **PLAIN,
            "data": "cifar10",
            "partition": "dirichlet_unbalanced(0.1,numpy_seed=2020)",
            "clients": 16,
            "cohort": 16,
            "model": "vgg11(hidden=2)",
            "local.batch_size": 32,
            "local.weight_decay": 1e-4,
            "rounds": 100,
            "local.lr_drops": [[50, 0.1], [75, 0.1]],
            "eval.every": 5,
        },
        RANDOM,
        (
            Cell("E2", "E = 2", {"local.epochs": 2}, entries=pairs_of(0.005)),
            Cell("E2to5", "E ~ U(2, 5)", {"local.epochs": "uniform(2,5)"}),
        ),
        (SCORE,),
    ),
    claims=(
        across(
            "FedNova is ahead of the FedAvg rule with vanilla, momentum and proximal SGD",
            SCORE.name,
            [
                ((cell, f"FedNova, {solver}"), (cell, f"FedAvg, {solver}"))
                for cell in TABLE
                for solver in ("vanilla", "momentum", "proximal")
            ],
            higher=True,
        ),
        order(
            "vanilla < momentum < hybrid momentum",
            SCORE.name,
            ["FedNova, hybrid momentum", "FedNova, momentum", "FedNova, vanilla"],
            ["E2to5"],
            higher=True,
        ),
        ahead(
            "momentum with variance reduction is ahead of all other local solvers",
            SCORE.name,
            "FedNova, momentum + VR",
            ["FedNova, vanilla", "FedNova, momentum", "FedNova, proximal", "FedNova, VR"],
            ["E2to5"],
            higher=True,
        ),
        ahead(
            "hybrid momentum is ahead of server momentum alone",
            SCORE.name,
            "FedNova, hybrid momentum",
            ["FedNova, server momentum"],
            ["E2to5"],
            higher=True,
        ),
        holds_where("variance reduction ends alike under both rules: within a point", same_vr),
        within(
            "the printed accuracies, within 3 %",
            SCORE.name,
            [(cell, entry, mean) for cell, rows in TABLE.items() for entry, (mean, _) in rows.items()],
            0.03,
        ),
    ),
    sizes={
        "quick": Size(
            {
                "data": "digits",
                "partition": "dirichlet_unbalanced(0.1,min_samples=2)",
                "model": "2nn",
                "rounds": 8,
                "local.lr_drops": [[4, 0.1], [6, 0.1]],
                "eval.every": 2,
            },
            cells=("E2to5",),
            entries=("FedAvg, vanilla", "FedNova, vanilla", "FedNova, momentum + VR", "FedNova, hybrid momentum"),
            seeds=(0,),
            search=None,
        ),
        "desk": Size(
            {"model": "2nn", "rounds": 10, "local.lr_drops": [[5, 0.1], [8, 0.1]], "eval.every": 1},
            cells=("E2to5",),
            entries=(
                *(entry.name for entry in pairs_of(0.001)),
                "FedNova, server momentum",
                "FedNova, hybrid momentum",
            ),
            search={"rounds": 5, "local.lr_drops": [[3, 0.1], [4, 0.1]]},
        ),
        "paper": Size({"engine.device": "auto"}, search=None, seeds=range(5)),
    },
    published={SCORE.name: {(cell, entry): mean for cell, rows in TABLE.items() for entry, (mean, _) in rows.items()}},
    silent="At the paper's size step sizes and mu are those that the paper chose: 0.05, with momentum 0.02; mu 0.005 "
    "for E = 2, 0.001 for U(2, 5). Released code: weight decay 1e-4, 100 rounds, the factor 10 at 50 and 75 %, the "
    "partition of numpy's seed 2020, momentum buffers fresh each round, the server's buffer in gradients, classifier "
    "with two more layers of 512, whose dropout is left out here as are crops and flips: accuracies may lie below the "
    "printed ones. The paper has three seeds, size paper five. The server's momentum is not "
    "stated (0.9), nor whether it stands alone under FedNova's rule: the released FedAvg ignores it. The printed "
    "FedNova with proximal SGD has tau_eff = sum p_i tau_i.",
    headline=Headline(
        SCORE.name,
        "E2to5",
        ("FedNova, vanilla", "FedAvg, vanilla", "FedNova, momentum", "FedNova, hybrid momentum"),
    ),
)

RECIPES = (FIG2, LEMMA1, FIG4, FIG5, TABLE1)
