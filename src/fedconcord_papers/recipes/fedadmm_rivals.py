"""FedADMM against FedSGD, FedAvg, FedProx and SCAFFOLD (Tables III, V and VI, Figs. 3 to 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedconcord_papers.recipes import measures
from fedconcord_papers.recipes.claims import ahead, as_ours
from fedconcord_papers.recipes.fedadmm_parts import (
    ACCURACY,
    BASE,
    CODE,
    DATA,
    ENDED,
    ENDS,
    FORM,
    GRID,
    LR,
    MODEL,
    MU,
    NAMES,
    NINETY,
    PAPER,
    PAPER_HAS,
    QUICK,
    RACE,
    RIVALS,
    ROUNDS,
    SAID,
    SEVENTY,
    SPLITS,
    admm,
    best_changes,
    drawn,
    federation,
    lead_grows,
    leads,
    methods,
    models_of,
    printed,
    title,
)
from fedconcord_papers.recipes.recipe import NOTHING, Cell, Claim, Comparison, Entry, Headline, Recipe, Size
from fedconcord_papers.recipes.values import Finding, Values

# -- A1: Table III ---------------------------------------------------------------------------------------------------

COLUMNS: Mapping[tuple[str, int], tuple[int, Mapping[str, int | str]]] = {
    ("mnist", 100): (5, {"iid": 200, "noniid": 200}),
    **{(data, 1000): (20, {"iid": "full", "noniid": 10}) for data in DATA},
}  # data, clients -> epochs, batch size by split
TABLE_3: Mapping[str, tuple[float | str, ...]] = {  # FedSGD, FedADMM, FedAvg, FedProx, SCAFFOLD
    "mnist100_iid": (297, 10, 19, 29, 27),
    "mnist100_noniid": (250, 33, 77, "100+", 76),
    "mnist1000_iid": (201, 8, 61, 78, 61),
    "mnist1000_noniid": (269, 13, 73, "100+", 84),
    "fmnist1000_iid": (390, 3, 10, 14, 12),
    "fmnist1000_noniid": (530, 7, 33, 61, 40),
    "cifar1000_iid": (186, 7, 24, 32, 37),
    "cifar1000_noniid": (202, 9, 50, 68, "100+"),
}
BOTH_FORMS = (
    *methods(5, LR, LR | MU),
    admm("Algorithm 1", 5, "form=paper", LR),
    admm("FedADMM, momentum 0.5", 5, "local.momentum=0.5", LR),
    admm("FedADMM, step 0.5 from 60", 5, "server_lr=[[0,1],[60,0.5]]", LR),
)
SGD = (Entry("FedSGD", "fedsgd", LR),)


def columns() -> Iterator[Cell]:
    for (data, clients), (epochs, batches) in COLUMNS.items():
        for split, batch in batches.items():
            name, said = f"{data.removesuffix('10')}{clients}_{split}", title(data, split, clients)
            settings = federation(data, split, clients, epochs, batch)
            own = BOTH_FORMS if epochs == 5 else methods(epochs, LR, LR | MU)
            yield Cell(name, said, settings, entries=own)
            yield Cell(f"{name}_sgd", f"{said}, FedSGD", {**settings, "rounds": 600}, entries=SGD)
            if epochs == 5:
                released, unit = (
                    {**settings, "model": "cnn1(form=released)"},
                    {**settings, "data": "mnist(pixels=unit)"},
                )
                yield Cell(f"{name}_released", f"{said}, the code's network", released, entries=own)
                yield Cell(f"{name}_unit", f"{said}, pixels from 0 to 1", unit, entries=own)
                if split == "noniid":
                    fixed = tuple(entry._replace(grid=NOTHING) for entry in own)
                    yield Cell(f"{name}_fixed", f"{said}, lr 0.1 for all", settings, entries=fixed)


CELLS_3 = tuple(columns())
VARIED = ("_sgd", "_released", "_unit", "_fixed")  # cells beside the eight columns
PRINTED_3: Mapping[tuple[str, str], float | str] = {
    (f"{cell}{'_sgd' * (entry == 'FedSGD')}", entry): value
    for cell, row in TABLE_3.items()
    for entry, value in zip(("FedSGD", "FedADMM", *RIVALS), row, strict=True)
}


def with_sgd(claim: Claim) -> Claim:
    """The claim where FedSGD, which runs for longer and so in a cell of its own, stands beside the others."""

    def judge(table: Values) -> Finding:
        return claim.judge(Values(tuple(row._replace(cell=row.cell.removesuffix("_sgd")) for row in table.rows)))

    return claim._replace(judge=judge)


table3 = Recipe(
    "fedadmm_table3",
    "A1",
    "FedADMM, Table III",
    "FedADMM needs fewer rounds to a target accuracy than FedSGD, FedAvg, FedProx and SCAFFOLD in all eight columns, "
    "and saves most with 1,000 clients",
    Comparison(RACE, (*BOTH_FORMS, *SGD), CELLS_3, (ROUNDS, ENDED, MODEL)),
    (
        *map(with_sgd, leads([cell for cell in CELLS_3 if not cell.name.endswith(VARIED)], ("FedSGD", *RIVALS))),
        *map(as_ours, leads([cell for cell in CELLS_3 if cell.name.endswith(VARIED[1:])])),
        *(
            lead_grows(f"MNIST, {SAID[split]}: more is saved with 1,000 clients than with 100", *pair)
            for split, pair in (
                ("iid", ("mnist100_iid", "mnist1000_iid")),
                ("noniid", ("mnist100_noniid", "mnist1000_noniid")),
            )
        ),
        printed("rounds are within a quarter of the printed ones", PRINTED_3, 0.25),
    ),
    {
        "quick": QUICK._replace(
            cells=("mnist100_noniid", "mnist100_noniid_released", "mnist1000_iid", "mnist100_iid_sgd"),
            by_cell={"mnist100_noniid_released": {"model": "cnn1(form=released)", "rounds": 3}},
        ),
        "desk": Size(
            settings={"model": "2nn"},
            by_cell={
                **{
                    f"mnist{cell}": {"rounds": rounds, **(NINETY if "noniid" in cell else {"eval.target": 0.95})}
                    for cell, rounds in (
                        *((f"100_{split}", 60) for split in SPLITS),
                        *((f"100_{split}_sgd", 100) for split in SPLITS),
                        *((f"1000_{split}", 35) for split in SPLITS),
                    )
                },
                "fmnist1000_iid": {"rounds": 20},
            },
            cells=(
                *("mnist100_iid", "mnist100_noniid", "mnist100_iid_sgd", "mnist100_noniid_sgd"),
                *("mnist1000_iid", "mnist1000_noniid", "fmnist1000_iid"),
            ),
            entries=("FedADMM", *RIVALS, "Algorithm 1", "FedSGD"),
        ),
        "paper": PAPER,
    },
    {ROUNDS.name: PRINTED_3, MODEL.name: models_of(PRINTED_3)},
    f"{FORM}. {CODE} What the code does besides stands as entries and cells of its own: momentum 0.5; a server step "
    "of 1, then 0.5 from round 60; networks without an activation after the convolutions and with softmax taken twice. "
    "Pixels from 0 to 1 are there for contrast. FedSGD, which is printed with up to 530 rounds, has cells of 600. The "
    f"printed speedups and reductions are quotients of the rounds. {ENDS} {GRID}",
    headline=Headline(ROUNDS.name, "mnist100_iid", ("FedADMM", "FedAvg", "FedProx", "SCAFFOLD")),
    paper_has=PAPER_HAS,
)

# -- A2: Figs. 3 and 4 -----------------------------------------------------------------------------------------------

GROWING = (100, 200, 500, 1000)
GROUPS = [(data, split) for data in ("fmnist", "cifar10") for split in SPLITS]
CELLS_FIG3 = tuple(
    Cell(
        f"{data}_{split}_n{clients}",
        title(data, split, clients),
        federation(data, split, clients, 5, 200),
        None if clients == 100 else f"{data}_{split}_n100",
    )
    for data, split in GROUPS
    for clients in GROWING
)
fig3 = Recipe(
    "fedadmm_fig3",
    "A2",
    "FedADMM, Figs. 3 and 4",
    "with parameters tuned at 100 clients and then kept, FedADMM's lead grows with the number of clients",
    Comparison(RACE, methods(5, LR, LR), CELLS_FIG3, (ROUNDS, ENDED)),
    (
        *leads(CELLS_FIG3),
        *(
            lead_grows(
                f"{NAMES[data]}, {SAID[split]}: more is saved with {large:,} clients than with 100",
                *(f"{data}_{split}_n100", f"{data}_{split}_n{large}"),
            )
            for data, split in GROUPS
            for large in (500, 1000)
        ),
    ),
    {
        "quick": QUICK._replace(
            cells=("fmnist_noniid_n100", "fmnist_noniid_n200"),
            by_cell={"fmnist_noniid_n100": {"clients": 20, "cohort": 2}, "fmnist_noniid_n200": {"cohort": 4}},
        ),
        "desk": Size(
            settings={"model": "2nn"},
            cells=(
                *(f"cifar10_iid_n{clients}" for clients in (100, 500)),
                *(f"fmnist_noniid_n{clients}" for clients in (100, 500, 1000)),
            ),
            by_cell={
                **{f"cifar10_iid_n{clients}": {"rounds": 40} for clients in GROWING},
                **{f"fmnist_noniid_n{clients}": {"rounds": 60, **SEVENTY} for clients in GROWING},
            },
        ),
        "paper": PAPER,
    },
    silent="The numbers of clients are in the figures alone: 100, 200, 500 and 1,000 here. E and B are not said: 5 "
    "and 200, as with 100 clients in Table III; a client with fewer samples takes all of them. FedProx's rho is 0.1. "
    f"{FORM}. {CODE} {ENDS} {GRID}",
    headline=Headline(ROUNDS.name, "fmnist_noniid_n1000", ("FedADMM", "FedAvg", "SCAFFOLD")),
    paper_has=PAPER_HAS,
)

# -- A3: Fig. 5 ------------------------------------------------------------------------------------------------------

CELLS_FIG5 = tuple(
    Cell(f"{data}_{split}", title(data, split, 200), federation(data, split, 200, 10, 50))
    for data in ("fmnist", "cifar10")
    for split in SPLITS
)
fig5 = Recipe(
    "fedadmm_fig5",
    "A3",
    "FedADMM, Fig. 5",
    "with learning rate 0.1 and rho 0.01, untouched, FedADMM needs fewer rounds than FedAvg, FedProx and SCAFFOLD "
    "tuned",
    Comparison(RACE, methods(10, NOTHING, LR), CELLS_FIG5, (ROUNDS, ENDED)),
    leads(CELLS_FIG5),
    {
        "quick": QUICK._replace(cells=("cifar10_noniid",)),
        "desk": Size(
            settings={"model": "2nn", "rounds": 20},
            by_cell={"fmnist_noniid": SEVENTY},
            search={"rounds": 10},
        ),
        "paper": PAPER,
    },
    silent=f"FedProx's rho is 0.1, which the paper keeps outside of Table III. {FORM}. {CODE} {ENDS} {GRID}",
    headline=Headline(ROUNDS.name, "cifar10_iid", ("FedADMM", "FedAvg", "FedProx", "SCAFFOLD")),
    paper_has=PAPER_HAS,
)

# -- A7: Table V -----------------------------------------------------------------------------------------------------

PROX = {"FedProx 0.01": 0.01, "FedProx 0.1": 0.1, "FedProx 1": 1.0}
CELLS_5 = tuple(
    Cell(f"{data}{clients}_{split}", title(data, split, clients), federation(data, split, clients, 10, 50))
    for data in ("mnist", "fmnist")
    for clients in (200, 500)
    for split in SPLITS
)
TABLE_5: Mapping[str, tuple[float | str, ...]] = {  # by cell: FedADMM, FedProx 0.01, 0.1, 1
    "mnist200_iid": (3, "100+", 25, 81),
    "mnist200_noniid": (29, "100+", 83, "100+"),
    "mnist500_iid": (5, 47, 59, "100+"),
    "mnist500_noniid": (14, 82, "100+", "100+"),
    "fmnist200_iid": (2, 5, 7, 43),
    "fmnist200_noniid": (13, 34, 45, "100+"),
    "fmnist500_iid": (2, 11, 13, 44),
    "fmnist500_noniid": (9, 45, 54, "100+"),
}
PRINTED_5: Mapping[tuple[str, str], float | str] = {
    (cell, entry): value for cell, row in TABLE_5.items() for entry, value in zip(("FedADMM", *PROX), row, strict=True)
}
table5 = Recipe(
    "fedadmm_table5",
    "A7",
    "FedADMM, Table V",
    "one rho serves FedADMM everywhere and beats FedProx at every rho, whose best value changes with the data",
    Comparison(
        RACE,
        (
            admm("FedADMM", 10, grid=LR),
            *(Entry(name, f"fedprox(mu={mu:g},{drawn(10)})", LR) for name, mu in PROX.items()),
        ),
        CELLS_5,
        (ROUNDS, ENDED, MODEL),
    ),
    (
        *leads(CELLS_5, rivals=tuple(PROX)),
        best_changes(
            "FedProx's best rho changes with the data, from MNIST to FMNIST with 200 clients",
            *(tuple(PROX), [f"{data}200_{split}" for split in SPLITS for data in ("mnist", "fmnist")]),
        ),
        best_changes(
            "and with the number of clients, from 200 to 500 on MNIST",
            *(tuple(PROX), [f"mnist{clients}_{split}" for split in SPLITS for clients in (200, 500)]),
        ),
        ahead(
            "on MNIST with 200 clients rho = 0.1 needs fewer rounds than 0.01, the best on FMNIST",
            *(ROUNDS.name, "FedProx 0.1", ["FedProx 0.01"], ["mnist200_iid", "mnist200_noniid"]),
        ),
        printed("rounds are within a quarter of the printed ones", PRINTED_5, 0.25),
    ),
    {
        "quick": QUICK._replace(cells=("mnist200_noniid",)),
        "desk": Size(
            settings={"model": "2nn", "rounds": 40},
            by_cell={
                **{f"mnist{clients}_noniid": NINETY for clients in (200, 500)},
                "fmnist200_iid": {"rounds": 25},
                "fmnist200_noniid": {"rounds": 25, **SEVENTY},
            },
            cells=tuple(cell.name for cell in CELLS_5 if not cell.name.startswith("fmnist500")),
        ),
        "paper": PAPER,
    },
    {ROUNDS.name: PRINTED_5, MODEL.name: models_of(PRINTED_5)},
    "E and B are not said: 10 and 50, as with the 200 clients of Fig. 5. Which rho is best in a cell is told by the "
    f"rounds to the target, and whether it is another than in a second cell by seeds in both. {FORM}. {CODE} "
    f"{ENDS} {GRID}",
    headline=Headline(ROUNDS.name, "mnist500_noniid", ("FedADMM", "FedProx 0.01", "FedProx 0.1", "FedProx 1")),
    paper_has=PAPER_HAS,
)

# -- A9: Table VI and Fig. 10 ----------------------------------------------------------------------------------------

MEAN = measures.client_sizes(lambda sizes: float(sizes.mean()), "samples a client, mean")
DEVIATION = measures.client_sizes(lambda sizes: float(sizes.std(ddof=1)), "samples a client, deviation")
CELLS_6 = tuple(
    Cell(
        data,
        f"{NAMES[data]}, 200 clients in groups",
        {**federation(data, "iid", 200, 10, 50), "partition": "groups"},
    )
    for data in ("fmnist", "cifar10")
)
STATISTICS = {"fmnist": (300.0, 171.03), "cifar10": (250.0, 142.52)}  # cut off after two digits, not rounded: 142.527
EVERY = ("FedADMM", *RIVALS)
table6 = Recipe(
    "fedadmm_table6",
    "A9",
    "FedADMM, Table VI and Fig. 10",
    "FedADMM is best where clients hold from 1 to 99 shards of the sorted data",
    Comparison(BASE, methods(10, LR, LR), CELLS_6, (ACCURACY, ROUNDS, MEAN, DEVIATION)),
    tuple(
        ahead(f"{cell.title}: FedADMM ends highest", ACCURACY.name, "FedADMM", RIVALS, [cell.name], True)
        for cell in CELLS_6
    ),
    {
        "quick": QUICK._replace(cells=("cifar10",)),
        "desk": Size(
            settings={"model": "2nn", "rounds": 30},
            search={"rounds": 10},
        ),
        "paper": PAPER,
    },
    {
        measure.name: {(cell, entry): pair[k] for cell, pair in STATISTICS.items() for entry in EVERY}
        for k, measure in enumerate((MEAN, DEVIATION))
    },
    f"Fig. 10 prints no number. Clients weigh the same, whatever they hold. FedProx's rho is 0.1. {FORM}. {CODE} "
    f"{GRID}",
    headline=Headline(ACCURACY.name, "cifar10", ("FedADMM", "FedAvg", "FedProx", "SCAFFOLD")),
    paper_has=PAPER_HAS,
)
