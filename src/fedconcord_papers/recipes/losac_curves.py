"""LoSAC (ACM TKDD 2023), Figs. 2 to 5: accuracy on data that are more or less heterogeneous.

Its step sizes are of losses that are sums over a client's samples; on mean losses eta becomes n_i eta: 0.024 on
MNIST over 1,000 clients (4e-4), 0.06 over 100, 0.0074 on HAR and 0.0092 on ESR (1e-4). One step size for all methods is
the paper's choice, as the one that "has shown the best performances"; entries called "tuned" have each method's best of
a grid that begins with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedconcord_papers.recipes.claims import (
    So,
    across,
    ahead,
    as_ours,
    between_cells,
    holds_where,
    loses_more,
    number,
    told,
)
from fedconcord_papers.recipes.measures import final, swing
from fedconcord_papers.recipes.recipe import NOTHING, Cell, Claim, Comparison, Entry, Headline, Recipe, Settings, Size
from fedconcord_papers.recipes.values import Values

LITERAL = "LoSAC, eq. (13)"  # the server's rule as printed
SIX = ("FedAvg", "FedCM", "FedSaga", "SCAFFOLD", "MimeSVRG", "LoSAC")
CALLS = {
    "FedAvg": "fedavg",
    "FedCM": "fedcm",
    "FedSaga": "fedsaga(blocks=5)",
    "SCAFFOLD": "scaffold",
    "MimeSVRG": "mimesvrg",
    "LoSAC": "losac(blocks=5)",
}
PRINTED = (
    *(Entry(name, call) for name, call in CALLS.items()),
    Entry(LITERAL, "losac(blocks=5,scaling=paper)"),
)
RATES = {"local.lr": (0.024, 0.006, 0.012, 0.06, 0.12, 0.24, 0.6, 1.2)}  # printed, a quarter to fifty times it
TUNED = tuple(Entry(f"{name}, tuned", call, RATES) for name, call in CALLS.items())
PLAIN: Mapping[str, Any] = {"validation": "none", "eval.clients": False, "model": "2nn"}
MNIST = {**PLAIN, "data": "mnist(pixels=unit)", "clients": 1000, "cohort": 50, "local.steps": 5, "local.batch_size": 12}
MNIST |= {"local.lr": 0.024, "rounds": 100, "eval.every": 5}
DIGITS = {"data": "digits", "clients": 20, "cohort": 5, "local.batch_size": 14, "local.lr": 0.05, "rounds": 10}
ACCURACY = final(window=3)
SILENT = (
    "Whether losses are sums or means: as sums the printed step sizes are plausible rates of mean losses, as means "
    "they could not move the model in the printed rounds, so they are taken as sums. The step size that is called "
    "printed is therefore a conversion: eta times the samples of a client, on MNIST 4e-4 x 60 = 0.024 with 1,000 "
    "clients and 1e-4 x 600 = 0.06 with 100. The paper has one step size for all methods, set for the best performance "
    "of each; what each does at its own best is judged beside it. Start, momentum of FedCM (alpha 0.1), control "
    "variates of SCAFFOLD (option II), initial tables (zero) and the number of seeds (five) are not stated. No code "
    "was released."
)
SERVER = {
    "form of LoSAC's server, eq. (13)": (
        "x by the sum of moves over N, phi by that of tables times N / S",
        "in entries of that name; x by the mean of moves, phi by the sum in the others",
    )
}
HAS = SERVER | {
    "form of FedSaga's server": ("x by the sum of moves over N", "x by their mean"),
    "form of the loss": ("sums over a client's samples", "means, and eta times the samples"),
}
SCALING = f"How features are scaled: pixels from 0 to 1 here. {SILENT}"


def c_cell(percent: int) -> Cell:
    settings = {"partition": f"sorted_fraction({percent / 100:g})"}
    return Cell(f"c{percent}", f"c = {percent} %", settings, None if percent == 100 else "c100")


def same_claims(says: str, suffix: str) -> tuple[Claim, ...]:
    """The claims of Fig. 2 for entries with this suffix."""
    avg, cm, saga, scaffold, mime, losac = (f"{name}{suffix}" for name in SIX)
    losac = losac if suffix else LITERAL

    def little(values: Values) -> list[tuple[str, So]]:
        return [
            told(
                *(values, ACCURACY.name, [("c0", entry), ("c100", entry)]),
                lambda easy, hard, entry=entry: f"{entry} loses {number(easy - hard, '.1f')} points",
                lambda easy, hard: 3 - (easy - hard),
            )
            for entry in (scaffold, mime, losac)
        ]

    return (
        loses_more(
            f"FedAvg and FedSaga suffer most as c grows{says}",
            ACCURACY.name,
            [avg, saga],
            [cm, scaffold, mime, losac],
            *("c0", "c100"),
            higher=True,
        ),
        loses_more(
            f"FedCM suffers more than SCAFFOLD, MimeSVRG and LoSAC{says}",
            ACCURACY.name,
            [cm],
            [scaffold, mime, losac],
            *("c0", "c100"),
            higher=True,
        ),
        holds_where(f"c has little impact on SCAFFOLD, MimeSVRG and LoSAC: less than 3 points{says}", little)._replace(
            ours=True
        ),  # the bound is
    )


def as_printed(cells: Sequence[str]) -> Claim:
    """Whether the server's rule as printed ends where the one of all other entries does."""
    names = ("LoSAC", LITERAL)

    def alike(values: Values) -> list[tuple[str, So]]:
        return [
            told(
                *(values, ACCURACY.name, [(cell, name) for name in names]),
                lambda a, b, cell=cell: f"{number(a, '.2f')} and {number(b, '.2f')} % ({cell})",
                lambda a, b: 1 - abs(a - b),
            )
            for cell in cells
        ]

    return as_ours(holds_where("LoSAC with the server's rule as printed, eq. (13), ends within a point of it", alike))


BEST = "LoSAC, tuned", [f"{name}, tuned" for name in SIX[:-1]]
CELLS = ("c0", "c25", "c50", "c75", "c100")
FIG2 = Recipe(
    name="losac_fig2",
    id="L1",
    source="LoSAC, Fig. 2",
    claim="growing heterogeneity c hurts FedAvg and FedSaga most, FedCM less, SCAFFOLD, MimeSVRG and LoSAC little",
    experiment=Comparison(
        MNIST,
        (*PRINTED, *TUNED),
        tuple(map(c_cell, (0, 25, 50, 75, 100))),
        (ACCURACY, final("train_loss", False, 3, "train loss")),
    ),
    claims=(
        *same_claims("", ""),
        *map(as_ours, same_claims(", each at the step that is its best at c = 100 %", ", tuned")),
        as_ours(
            ahead(
                "LoSAC is ahead, each at the step that is its best at c = 100 %",
                *(ACCURACY.name, *BEST, CELLS),
                higher=True,
            )
        ),
        as_printed(CELLS),
    ),
    sizes={
        "quick": Size(DIGITS, cells=("c0", "c100"), entries=(*SIX, LITERAL), seeds=(0,), search=None),
        "desk": Size(
            cells=("c0", "c50", "c100"),
            entries=(*SIX, LITERAL, "FedAvg, tuned", "SCAFFOLD, tuned", "LoSAC, tuned"),
        ),
        "paper": Size(seeds=range(5)),
    },
    silent=f"Which values of c were drawn cannot be read: here 0, 25, 50, 75 and 100 %. {SCALING}",
    headline=Headline(ACCURACY.name, "c100", (LITERAL, "SCAFFOLD", "FedAvg", "FedAvg, tuned")),
    paper_has=HAS,
)

# -- Figs. 3 to 5 ------------------------------------------------------------------------------------------------------

SPREAD = {"iid": ("iid", "IID"), "noniid": ("sorted_fraction(1)", "non-IID")}
SWINGS = swing(name="swing of accuracy, points")
FEW = tuple(entry for entry in (*PRINTED, *TUNED) if not entry.name.startswith("MimeSVRG"))


def swept(
    data: str,
    title: str,
    spread: str,
    cohorts: Sequence[int],
    steps: Sequence[int],
    settings: Settings = NOTHING,
    entries: Sequence[Entry] | None = None,
) -> list[Cell]:
    """S swept at T = 5, then T at the middle S; what is tuned is so at the middle of both."""
    middle = cohorts[len(cohorts) // 2]
    partition, said = SPREAD[spread]
    home = f"{data}_{spread}_S{middle}_T5"
    pairs = [(middle, 5), *((s, 5) for s in cohorts if s != middle), *((middle, t) for t in steps if t != 5)]
    return [
        Cell(
            f"{data}_{spread}_S{s}_T{t}",
            f"{title}, {said}, S = {s}, T = {t}",
            {"partition": partition, "cohort": s, "local.steps": t, **settings},
            None if (s, t) == (middle, 5) else home,
            entries,
        )
        for s, t in pairs
    ]


def small(data: str, lr: float, batch: int) -> dict[str, Any]:
    """Settings of the cells with 100 clients."""
    return {"data": data, "clients": 100, "local.lr": lr, "local.batch_size": batch, "rounds": 500, "eval.every": 10}


def other(lr: float) -> tuple[Entry, ...]:
    """Entries of HAR and ESR, on which MimeSVRG was not run."""
    grid = {"local.lr": (lr, 3 * lr, 10 * lr, 30 * lr, 100 * lr, 300 * lr)}
    return tuple(entry._replace(grid=grid) if entry.grid else entry for entry in FEW)


HAR, ESR = small("har", 1e-4 * 73.52, 14), small("esr", 1e-4 * 92, 18)
HAR_AS_DIGITS = {"data": "digits", "local.batch_size": 3, "local.lr": 1e-4 * 14.37}
ESR_AS_SYNTHETIC = {"data": "synthetic(clients=100)", "local.batch_size": 18}
NON_IID = [f"mnist_noniid_S{s}_T{t}" for s, t in ((50, 5), (10, 5), (100, 5), (50, 2), (50, 8))]

FIG3 = Recipe(
    name="losac_fig3",
    id="L2",
    source="LoSAC, Figs. 3, 4 and 5",
    claim="with more clients S and more local steps T LoSAC is faster, and ahead of the others on non-IID data",
    experiment=Comparison(
        MNIST,
        (*PRINTED, *TUNED),
        (
            *swept("mnist", "MNIST", "noniid", (10, 50, 100), (2, 5, 8)),
            *swept("mnist", "MNIST", "iid", (10, 50, 100), (2, 5, 8)),
            *swept("har", "HAR", "noniid", (5, 10, 20), (2, 5, 8), settings=HAR, entries=other(1e-4 * 73.52)),
            *swept("esr", "ESR", "noniid", (5, 10, 20), (2, 5, 8), settings=ESR, entries=other(1e-4 * 92)),
            *swept(
                *("digits", "digits in place of HAR", "noniid", (5, 10, 20), (2, 5, 8)),
                settings=HAR | HAR_AS_DIGITS,
                entries=other(1e-4 * 14.37),
            ),
            *swept(
                *("synthetic", "Synthetic(1, 1) in place of ESR", "noniid", (5, 10, 20), (2, 5, 8)),
                settings=ESR | ESR_AS_SYNTHETIC,
                entries=other(1e-4 * 92),
            ),
        ),
        (ACCURACY, final("train_loss", False, 3, "train loss"), SWINGS),
    ),
    claims=(
        ahead(
            "LoSAC is ahead of the others on non-IID MNIST, whatever S and T",
            ACCURACY.name,
            LITERAL,
            SIX[:-1],
            NON_IID,
            higher=True,
        ),
        ahead(
            "so it is with each at the step that is its best for S = 50 and T = 5",
            *(ACCURACY.name, *BEST, NON_IID),
            higher=True,
        )._replace(ours=True),
        across(
            "more clients a round and more local steps are better for LoSAC",
            ACCURACY.name,
            [
                ((f"mnist_{spread}_{more}", LITERAL), (f"mnist_{spread}_{less}", LITERAL))
                for spread in SPREAD
                for more, less in (("S100_T5", "S10_T5"), ("S50_T8", "S50_T2"))
            ],
            higher=True,
        ),
        across(
            "non-IID data degrade FedAvg and MimeSVRG",
            ACCURACY.name,
            [((cell.replace("noniid", "iid"), who), (cell, who)) for who in ("FedAvg", "MimeSVRG") for cell in NON_IID],
            higher=True,
        ),
        ahead(
            "FedSaga is worse than FedAvg: variance reduction that knows the client alone does not help",
            *(ACCURACY.name, "FedAvg", ["FedSaga"], NON_IID),
            higher=True,
        ),
        between_cells(
            "more clients a round help FedCM",
            ACCURACY.name,
            ["FedCM"],
            "mnist_noniid_S100_T5",
            "mnist_noniid_S10_T5",
            higher=True,
        ),
        between_cells(
            "more local steps degrade FedCM on non-IID data",
            ACCURACY.name,
            ["FedCM"],
            "mnist_noniid_S50_T2",
            "mnist_noniid_S50_T8",
            higher=True,
        ),
        ahead("MimeSVRG swings more than LoSAC on non-IID data", SWINGS.name, LITERAL, ["MimeSVRG"], NON_IID),
        between_cells(
            "and the more, the more local steps it takes",
            SWINGS.name,
            ["MimeSVRG"],
            "mnist_noniid_S50_T2",
            "mnist_noniid_S50_T8",
        ),
        across(
            "on HAR LoSAC with T = 2 is ahead of SCAFFOLD with T = 8",
            ACCURACY.name,
            [(("har_noniid_S10_T2", LITERAL), ("har_noniid_S10_T8", "SCAFFOLD"))],
            higher=True,
        ),
        ahead(
            "on HAR and ESR LoSAC is ahead of SCAFFOLD and FedAvg",
            ACCURACY.name,
            LITERAL,
            ["SCAFFOLD", "FedAvg"],
            [
                f"{data}_noniid_{at}"
                for data in ("har", "esr")
                for at in ("S10_T5", "S5_T5", "S20_T5", "S10_T2", "S10_T8")
            ],
            higher=True,
        ),
        as_ours(
            between_cells(
                "at the step that is its best for T = 5 more local steps degrade FedCM on non-IID data",
                *(ACCURACY.name, ["FedCM, tuned"], "mnist_noniid_S50_T2", "mnist_noniid_S50_T8"),
                higher=True,
            )
        ),
        as_printed([cell.replace("noniid", spread) for spread in ("noniid", "iid") for cell in NON_IID]),
    ),
    sizes={
        "quick": Size(
            {"rounds": 10, "eval.every": 2, "local.lr": 0.05},
            cells=("digits_noniid_S10_T2", "digits_noniid_S10_T8"),
            entries=("FedAvg", "SCAFFOLD", "LoSAC", LITERAL),
            seeds=(0,),
            search=None,
        ),
        "desk": Size(
            by_cell={cell: {"rounds": 200} for cell in ("digits_noniid_S10_T5", "synthetic_noniid_S10_T5")},
            cells=(*NON_IID, "mnist_iid_S50_T5", "digits_noniid_S10_T5", "synthetic_noniid_S10_T5"),
            entries=(*SIX, LITERAL, "FedAvg, tuned", "SCAFFOLD, tuned", "LoSAC, tuned"),
        ),
        "paper": Size(
            seeds=range(5),
            cells=[
                f"{data}_{spread}_S{s}_T{t}"
                for data, spread, cohorts in (
                    *(("mnist", "noniid", (10, 50, 100)), ("mnist", "iid", (10, 50, 100))),
                    *(("har", "noniid", (5, 10, 20)), ("esr", "noniid", (5, 10, 20))),
                )
                for s, t in (*((s, 5) for s in cohorts), (cohorts[1], 2), (cohorts[1], 8))
            ],
        ),
    },
    silent="Which values of S and T were drawn cannot be read, nor how many rounds: here S 10, 50, 100 and 5, 10, 20, "
    "T 2, "
    f"5, 8, and 100 rounds on MNIST, 500 on HAR and ESR. {SCALING}",
    headline=Headline(ACCURACY.name, "mnist_noniid_S50_T5", (LITERAL, "SCAFFOLD", "MimeSVRG", "FedAvg")),
    paper_has=HAS,
)
