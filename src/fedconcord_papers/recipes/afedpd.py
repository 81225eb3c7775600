"""A-FedPD's experiments: the table of test accuracies with LeNet and ResNet-18, Fig. 2, and the dual drift.

NeurIPS 2024, Table 2 and Fig. 2: 100 clients, 10 a round, 50 local steps. What the slides leave out is FL-Simulator's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedconcord_papers.recipes import claims
from fedconcord_papers.recipes.measures import best, final, swing
from fedconcord_papers.recipes.recipe import Cell, Claim, Comparison, Entry, Headline, Recipe, Settings, Size

SIMULATOR: Settings = {
    "local.clip_direction": 10.0,
    "local.clip_form": "released",
    "local.weight_decay": 1e-3,
    "local.lr_decay": 0.998,
}
SETTINGS: Settings = {
    "validation": "none",
    "eval.clients": False,
    "eval.every": 5,
    "eval.train_samples": 1000,
    "clients": 100,
    "cohort": 10,
    "rounds": 800,
    "local.steps": 50,
    "local.batch_size": 50,
    "local.lr": 0.1,
    **SIMULATOR,
}
PLAIN = "local.clip_direction=none,local.clip_form=whole,local.weight_decay=0.0,local.lr_decay=1.0"
DIGITS: Settings = {
    "data": "digits",
    "model": "2nn",
    "clients": 20,
    "cohort": 4,
    "rounds": 10,
    "local.steps": 5,
    "local.batch_size": 10,
    "eval.every": 2,
}
SMALL: Settings = {"data": "mnist", "model": "2nn", "local.clip_direction": None, "local.clip_form": "whole"}
BEST, LAST = best(name="best accuracy, %"), final(window=5)
SWING, LOSS_SWING = swing(), swing("train_loss")
LR: Mapping[str, Sequence[float]] = {"local.lr": (0.1, 0.01, 0.03, 0.3)}
ALPHA: Mapping[str, Sequence[float]] = {"alpha": (0.1, 0.001, 0.01, 1.0)}
RHO: Mapping[str, Sequence[float]] = {"rho": (0.1, 0.001, 0.01, 1.0)}
FEDAVG = Entry("FedAvg", "fedavg()", LR)
SCAFFOLD = Entry("SCAFFOLD", "scaffold()", LR)
FEDDYN = Entry("FedDyn", "feddyn()", ALPHA)
AFEDPD = Entry("A-FedPD", "afedpd()", RHO)
METHODS = (
    FEDAVG,
    Entry("FedCM", "fedcm(alpha=0.1)", LR),
    SCAFFOLD,
    Entry("FedSAM", "fedsam(radius=0.1)", LR),
    FEDDYN,
    Entry("FedSpeed", "fedspeed(radius=0.1)", ALPHA),
    AFEDPD,
    Entry("A-FedPDSAM", "afedpdsam(radius=0.1)", RHO),
)
VARIANTS = (
    Entry("FedDyn plain", f"feddyn({PLAIN})", ALPHA),
    Entry("FedSpeed plain", f"fedspeed(radius=0.1,{PLAIN})", ALPHA),
    Entry("A-FedPD plain", f"afedpd({PLAIN})", RHO),
)
NAMES = tuple(entry.name for entry in METHODS)
WITHOUT_SAM = ("FedAvg", "FedCM", "SCAFFOLD", "FedDyn")
SILENT = (
    "The slides give neither the step size nor what goes with it. From FL-Simulator, with which the table was made: "
    "step size 0.1, factor 0.998 a round, weight decay 0.001, the direction clipped at 10 before decay and pull are "
    "added, batches of 50, SAM's radius 0.1, the best accuracy of all rounds. Its random flips and crops of the images "
    "are not done here, so our accuracies may lie below the printed ones. rho of A-FedPD is in no source: 0.001, 0.01, "
    "0.1 and 1 are tried, and four values of one parameter of each other method, of its step size where it has no "
    "penalty. 'plain' is without clipping and decays. 800 rounds are those of Fig. 2(c) at 50 steps; a cohort has 10 "
    "clients, as printed, where the simulator draws each by a coin of 0.1. The paper has four seeds, size paper five. "
    "A-FedPD is judged at its mean model, the output of its Algorithm 1, FedDyn at the server's, as released."
)

# -- Table 2 ---------------------------------------------------------------------------------------------------------

CASES = (("iid", "IID", "iid"), ("dir1", "Dir(1.0)", "dirichlet(1.0)"), ("dir01", "Dir(0.1)", "dirichlet(0.1)"))
CELLS = tuple(
    Cell(f"{data}_{name}", f"{title}, {case}", {"data": data, "partition": partition}, f"{data}_dir01")
    for data, title in (("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100"))
    for name, case, partition in CASES
)
CIFAR10, CIFAR100 = (tuple(cell.name for cell in CELLS[start : start + 3]) for start in (0, 3))

LENET = {
    "FedAvg": (81.87, 80.58, 75.57, 40.11, 39.65, 38.37),
    "FedCM": (80.34, 79.31, 72.89, 43.33, 42.35, 37.11),
    "SCAFFOLD": (84.25, 83.61, 78.66, 49.65, 49.11, 46.36),
    "FedSAM": (83.22, 81.94, 77.41, 43.02, 42.83, 42.29),
    "FedDyn": (84.49, 84.20, 79.51, 50.27, 49.64, 46.30),
    "FedSpeed": (86.01, 85.11, 80.86, 54.01, 53.45, 51.28),
    "A-FedPD": (85.31, 84.94, 80.28, 51.41, 51.17, 48.15),
    "A-FedPDSAM": (86.47, 85.90, 81.96, 55.56, 54.62, 53.15),
}
RESNET: Mapping[str, Sequence[float | str]] = {
    "FedAvg": (81.67, 80.94, 76.24, 44.68, 44.27, 41.64),
    "FedCM": (84.22, 82.85, 76.93, 50.04, 48.66, 44.07),
    "SCAFFOLD": (84.31, 83.70, 78.70, 50.69, 50.28, 47.12),
    "FedSAM": (83.79, 82.58, 77.83, 48.66, 48.42, 45.03),
    "FedDyn": (83.71, 82.66, 79.44, "-", "-", "-"),
    "FedSpeed": (86.90, 85.92, 81.47, 53.22, 52.75, 49.66),
    "A-FedPD": (85.11, 84.33, 81.05, 48.15, 48.02, 46.24),
    "A-FedPDSAM": (87.44, 86.46, 82.48, 55.30, 53.49, 50.31),
}


def _published(printed: Mapping[str, Sequence[float | str]]) -> dict[str, dict[tuple[str, str], float | str]]:
    """A half of the printed table as a recipe has it."""
    return {
        BEST.name: {
            (cell, name): value
            for name, row in printed.items()
            for cell, value in zip((*CIFAR10, *CIFAR100), row, strict=True)
        }
    }


def _better(says: str, winner: str, losers: Sequence[str], cells: Sequence[str]) -> Claim:
    """One method has a higher best accuracy than others in each of these cells."""
    return claims.ahead(says, BEST.name, winner, losers, cells, True)


def _table(cells: Sequence[str], data: str) -> list[Claim]:
    """What the table says of one data set, the same for both models."""
    others = tuple(name for name in NAMES if name != "A-FedPDSAM")
    return [
        _better(f"{data}: A-FedPDSAM is the most accurate in each case", "A-FedPDSAM", others, cells),
        _better(f"{data}: A-FedPD is more accurate than FedAvg and FedDyn", "A-FedPD", ("FedAvg", "FedDyn"), cells),
        _better(f"{data}: SAM helps A-FedPD", "A-FedPDSAM", ("A-FedPD",), cells),
        _better(f"{data}: SAM helps FedDyn, that is FedSpeed", "FedSpeed", ("FedDyn",), cells),
        _better(f"{data}: SCAFFOLD is more accurate than FedAvg and FedCM", "SCAFFOLD", ("FedAvg", "FedCM"), cells),
    ]


P1 = Recipe(
    "afedpd_lenet",
    "P1",
    "A-FedPD, Table 2, LeNet",
    "with LeNet A-FedPDSAM is the most accurate of eight methods, and A-FedPD of those without SAM",
    Comparison({**SETTINGS, "model": "lenet"}, (*METHODS, *VARIANTS), CELLS, (BEST, LAST, SWING)),
    (
        *_table(CIFAR10, "CIFAR-10"),
        _better("CIFAR-10: A-FedPD is the best without SAM", "A-FedPD", WITHOUT_SAM, CIFAR10),
        *_table(CIFAR100, "CIFAR-100"),
        _better("CIFAR-100: A-FedPD is the best without SAM", "A-FedPD", WITHOUT_SAM, CIFAR100),
    ),
    {
        "quick": Size(
            DIGITS,
            cells=("cifar10_dir01",),
            entries=(*NAMES, "A-FedPD plain"),
            seeds=(0,),
            search=None,
        ),
        "desk": Size(
            {"model": "2nn", "rounds": 30, "eval.every": 2},
            cells=("cifar10_dir01",),
            entries=NAMES,
            search={"rounds": 10},
        ),
        "paper": Size(seeds=range(5)),
    },
    _published(LENET),
    SILENT,
    headline=Headline(BEST.name, "cifar10_dir01", ("A-FedPDSAM", "A-FedPD", "FedAvg", "SCAFFOLD")),
)
P2 = Recipe(
    "afedpd_resnet18",
    "P2",
    "A-FedPD, Table 2, ResNet-18",
    "with ResNet-18 A-FedPDSAM is the most accurate of eight methods, and FedDyn does not converge on CIFAR-100",
    Comparison({**SETTINGS, "model": "resnet18"}, (*METHODS, *VARIANTS), CELLS, (BEST, LAST, SWING)),
    (
        *_table(CIFAR10, "CIFAR-10"),
        *_table(CIFAR100, "CIFAR-100"),
        _better("CIFAR-100: FedDyn does not converge, all others are ahead", "FedAvg", ("FedDyn",), CIFAR100),
    ),
    {
        "quick": Size(
            DIGITS,
            cells=("cifar10_dir01",),
            entries=("FedDyn", "FedSpeed", "A-FedPDSAM"),
            seeds=(0,),
            search=None,
        ),
        "desk": Size(
            {"model": "lenet", "clients": 20, "cohort": 2, "local.steps": 20, "rounds": 36, "eval.every": 4},
            cells=("cifar10_dir01",),
            entries=("FedAvg", "SCAFFOLD", "FedDyn", "A-FedPD", "A-FedPDSAM"),
            search={"rounds": 20},
        ),
        "paper": Size(seeds=range(5)),
    },
    _published(RESNET),
    f"{SILENT} The ResNet-18 has a 3x3 stem and GroupNorm; the simulator keeps the 7x7 stem with stride 2.",
    headline=Headline(BEST.name, "cifar10_dir01", ("A-FedPDSAM", "A-FedPD", "FedAvg", "SCAFFOLD")),
)

# -- Fig. 2 ----------------------------------------------------------------------------------------------------------

BASE = "base"
SHARES, INTERVALS = (5, 20, 50, 80, 100), (10, 20, 100, 200)
FIXED_WORK = 40_000  # local steps in all, K T, which the caption fixes: panels (b) and (c) are the same runs


def _interval(steps: int, total: int) -> Settings:
    return {"local.steps": steps, "rounds": total // steps}


FIG2_CELLS = (
    Cell(BASE, "base: 10 % take part, 50 local steps"),
    *(Cell(f"share{s}", f"{s} % take part", {"cohort": s}, BASE) for s in SHARES),
    *(
        Cell(f"fixed{k}", f"{k} local steps, {FIXED_WORK // k:,} rounds", _interval(k, FIXED_WORK), BASE)
        for k in INTERVALS
    ),
)
ALL_CELLS = tuple(cell.name for cell in FIG2_CELLS)
P3 = Recipe(
    "afedpd_fig2",
    "P3",
    "A-FedPD, Fig. 2",
    "A-FedPD and A-FedPDSAM keep their lead over 5 to 100 % participation and, at fixed work, 10 to 200 local steps in "
    "4,000 to 200 rounds",
    Comparison(
        {**SETTINGS, "data": "cifar10", "model": "lenet", "partition": "dirichlet(0.1)"},
        METHODS,
        FIG2_CELLS,
        (BEST, LAST, SWING),
    ),
    (
        _better("(a) A-FedPD is ahead of FedAvg, SCAFFOLD and FedDyn at every participation", "A-FedPD",
                ("FedAvg", "SCAFFOLD", "FedDyn"), (BASE, *(f"share{s}" for s in SHARES))),
        _better("(b), (c) and for every number of local steps, and so of rounds, at fixed work", "A-FedPD",
                ("FedAvg", "SCAFFOLD", "FedDyn"), (BASE, *(f"fixed{k}" for k in INTERVALS))),
        _better("A-FedPDSAM is ahead of all in every setting", "A-FedPDSAM", NAMES[:-1], ALL_CELLS),
        claims.between_cells(
            "more participation helps A-FedPD", BEST.name, ("A-FedPD",), "share20", "share5", True
        )._replace(ours=True),
        claims.between_cells(
            "at fixed work, few long rounds cost", BEST.name, ("FedAvg", AFEDPD.name), "fixed10", "fixed200", True
        )._replace(ours=True),
    ),
    {
        "quick": Size(
            DIGITS,
            by_cell={"fixed10": {"local.steps": 2, "rounds": 20}, "share5": {"cohort": 2}},
            cells=(BASE, "share5", "fixed10"),
            entries=("FedAvg", "FedDyn", "A-FedPD"),
            seeds=(0,),
            search=None,
            ),
        "desk": Size(
            {**SMALL, "rounds": 30, "eval.every": 2},
            by_cell={f"fixed{k}": _interval(k, 1500) for k in INTERVALS},
            cells=tuple(name for name in ALL_CELLS if name not in ("share50", "share80", "share100")),
            entries=("FedAvg", "SCAFFOLD", "FedDyn", "A-FedPD"),
            ),
        "paper": Size(seeds=range(5)),
    },
    silent="Data, model and division of Fig. 2 are not said: CIFAR-10, LeNet, Dir(0.1); each method keeps in all cells "
    "the values that were best at 10 %, 50 steps, 800 rounds. The caption fixes the total iterations, so the 10 to 200 "
    "steps of (b) are the 4,000 to 200 rounds of (c), and one set of runs; with other shares of clients (a) there are "
    f"800 rounds of 50 steps. The slides print curves without numbers. {SILENT}",
    headline=Headline(BEST.name, "share5", ("A-FedPD", "FedAvg", "SCAFFOLD", "FedDyn")),
)  # fmt: skip

# -- dual drift ------------------------------------------------------------------------------------------------------

COHORTS = (10, 5, 2)
DRIFT = tuple(f"cohort{s}" for s in COHORTS)
PARTIAL = Entry("FedPD, active duals", "fedconcord_papers.recipes.fedpd_partial:fedpd_partial()", RHO)
P4 = Recipe(
    "afedpd_drift",
    "P4",
    "A-FedPD, slide 'Dual drift'",
    "where few clients take part FedPD becomes unstable in train loss and accuracy, and A-FedPD does not",
    Comparison(
        {**SETTINGS, "data": "cifar10", "model": "lenet", "partition": "dirichlet(0.1)", "eval.every": 1},
        (PARTIAL, FEDDYN, AFEDPD, FEDAVG),
        tuple(Cell(name, f"{s} of 100 take part", {"cohort": s}) for name, s in zip(DRIFT, COHORTS, strict=True)),
        (LAST, SWING, LOSS_SWING, BEST),
    ),
    (
        claims.ahead("accuracy swings less with A-FedPD than FedPD", SWING.name, "A-FedPD", (PARTIAL.name,), DRIFT),
        claims.ahead("and train loss", LOSS_SWING.name, "A-FedPD", (PARTIAL.name,), DRIFT),
        claims.ahead("accuracy swings less with A-FedPD than FedDyn", SWING.name, "A-FedPD", ("FedDyn",), DRIFT),
        claims.ahead("A-FedPD ends more accurate than FedPD", LAST.name, "A-FedPD", (PARTIAL.name,), DRIFT, True),
        claims.between_cells(
            "the fewer take part, the less stable FedPD is", SWING.name, (PARTIAL.name,), DRIFT[0], DRIFT[2]
        ),
    ),
    {
        "quick": Size(
            {**DIGITS, "eval.every": 1},
            by_cell={DRIFT[2]: {"cohort": 2}},
            cells=(DRIFT[0], DRIFT[2]),
            seeds=(0, 1),
            search=None,
            ),
        "desk": Size(
            {**SMALL, "rounds": 150},
            search=None,
            ),
        "paper": Size(seeds=range(5)),
    },
    silent="The slide shows curves of unnamed methods, data, participation. FedPD is defined for full participation; "
    "here its server averages models and duals of the round's clients alone ('average in [P]' of the slides): "
    "recipes/fedpd_partial.py. FedDyn averages duals over all clients, A-FedPD moves those of absent clients too. The "
    f"swing is the deviation of changes from round to round over the second half of a run. {SILENT}",
    headline=Headline(SWING.name, "cohort5", ("FedPD, active duals", "A-FedPD", "FedDyn")),
)  # fmt: skip

RECIPES = (P1, P2, P3, P4)
