"""What papers of 2023 to 2025 say of local optimisers and of averages, each at its best step size of a grid.

Their methods are settings of this library (docs/local-step.md). Four repositories of one group (junkangLiu0's FedAdamW,
FedMuon, FedSWA and FedNSAM) compare them with a SCAFFOLD whose correction is added to the loss as a number, which has
no gradient: it is FedAvg. Here stands a right one, with the optimisers too.
"""

from __future__ import annotations

from fedconcord_papers.recipes.claims import ahead
from fedconcord_papers.recipes.measures import final
from fedconcord_papers.recipes.recipe import Cell, Claim, Comparison, Entry, Headline, Recipe, Size

ACCURACY = final(window=3)
PLAIN = {"local.lr": (0.1, 0.03, 0.3, 0.01, 1.0)}
SHARP = {"local.lr": (0.1, 0.03, 0.3)}
RADII = (0.1, 0.03, 0.3)
LESAM = {**SHARP, "local.oracle": tuple(f"lesam({radius})" for radius in RADII)}
ADAM = {"local.lr": (0.001, 0.0003, 0.003)}
MUON = {"local.lr": (0.02, 0.005, 0.05, 0.002, 0.1)}
SHARED = "adamw(second=oracle,state=shared_second,align=0.5)"
FALLING = "local.step_schedule=linear({},floor=0.1)"  # from eta to a tenth of it within a round
STEPS = 20
CELLS = {
    "fmnist_dir01": Cell("fmnist_dir01", "FMNIST, a perceptron, 100 clients", {"data": "fmnist", "model": "2nn"}),
    "cifar10_dir01": Cell("cifar10_dir01", "CIFAR-10, LeNet, 100 clients", {"data": "cifar10", "model": "lenet"}),
}


def ends_above(who: str, *others: str) -> Claim:
    """The first ends higher than each of the others."""
    return ahead(f"{who} ends above {', '.join(others)}", ACCURACY.name, who, others, [*CELLS], True)


MODERN = Recipe(
    name="modern",
    id="N1",
    source="Papers of 2023 to 2025, FedAdamW, FedMuon, FedSWA, DiLoCo, FedLESAM",
    claim="FedAdamW, FedMuon, FedSWA, DiLoCo and FedLESAM are each ahead of what they improve on, and of SCAFFOLD",
    experiment=Comparison(
        {
            "validation": "none",
            "eval.clients": False,
            "clients": 100,
            "cohort": 10,
            "partition": "dirichlet(0.1)",
            "local.steps": STEPS,
            "local.batch_size": 50,
            "local.lr_decay": 0.998,
            "rounds": 60,
            "eval.every": 5,
            "eval.train_samples": 1000,
        },
        (
            Entry("FedAvg", "fedavg", PLAIN),
            Entry("SCAFFOLD", "scaffold", PLAIN),
            Entry("FedSWA", f"fedavg({FALLING.format(STEPS)})", {**PLAIN, "server_lr": (1.0, 1.5)}),
            Entry("Local AdamW", "fedavg(local.optimiser=adamw)", ADAM),
            Entry("FedAdamW", f"fedavg(local.optimiser={SHARED})", ADAM),
            Entry("SCAFFOLD, AdamW", "scaffold(local.optimiser=adamw)", ADAM),
            Entry("DiLoCo", "fedavg(server=nesterov(beta=0.9,lr=0.7),local.optimiser=adamw(state=kept))", ADAM),
            Entry("Local Muon", "fedavg(local.optimiser=muon)", MUON),
            Entry("FedMuon", "fedavg(local.optimiser=muon(beta=0.98,state=shared,align=0.5))", MUON),
            Entry(
                "FedMuon, corrected",
                "fedavg(local.optimiser=muon(state=corrected))",
                {**MUON, "server_lr": (1.0, 0.1)},
            ),
            Entry("SCAFFOLD, Muon", "scaffold(local.optimiser=muon)", MUON),
            Entry("FedSAM", "fedsam", {**SHARP, "radius": RADII}),
            Entry("FedLESAM", "fedavg", LESAM),
            Entry("FedLESAM-S", "scaffold", LESAM),
        ),
        tuple(CELLS.values()),
        (ACCURACY,),
    ),
    claims=(
        ends_above("FedAdamW", "Local AdamW", "FedAvg", "SCAFFOLD"),
        ends_above("FedMuon", "Local Muon", "FedAdamW", "SCAFFOLD"),
        ends_above("FedMuon, corrected", "Local Muon", "SCAFFOLD"),
        ends_above("FedSWA", "FedAvg", "SCAFFOLD"),
        ends_above("DiLoCo", "Local AdamW"),
        ends_above("SCAFFOLD", "FedAvg"),
        ends_above("SCAFFOLD, AdamW", "Local AdamW", "FedAdamW"),
        ends_above("SCAFFOLD, Muon", "Local Muon", "FedMuon"),
        ends_above("FedLESAM", "FedAvg", "FedSAM"),
        ends_above("FedLESAM-S", "SCAFFOLD", "FedSAM"),
    ),
    sizes={
        "quick": Size(
            {"data": "digits", "model": "2nn", "clients": 20, "cohort": 5, "rounds": 6, "eval.every": 1},
            cells=("fmnist_dir01",),
            seeds=(0,),
            search=None,
        ),
        "desk": Size(cells=("fmnist_dir01",), seeds=range(5)),
        "paper": Size(seeds=range(5)),
    },
    ours=True,
    silent="The papers compare ResNets and transformers on CIFAR-100, and LeNet-5 too, in 300 rounds of 50 steps. This "
    "experiment is ours, and so is its size, which tables call the paper's: 60 rounds of 20 steps, a perceptron or "
    "LeNet. Of their code it has 100 clients of Dirichlet 0.1, 10 a round, batches of 50 and step sizes times 0.998 a "
    "round. It proves nothing of their networks. "
    "FedSWA is FedAvg whose steps fall to a tenth within a round, and whose server step may be 1.5; its released code "
    "averages as FedAvg does, and its steps fall to 0 from twice the step size. FedAdamW's second moments travel "
    "whole, where the paper sends means by block, and no weights decay, where it and Liu et al.'s FedMuon decay them "
    "by 0.01. DiLoCo's workers are all clients there, a tenth a round here. "
    "FedMuon, corrected, is Takezawa et al.'s (2509.26337), whose server step is |A| / N = 0.1; the other is Liu et "
    "al.'s (2510.27403). What FedLESAM's code does is another method (docs/published.md). Claims 6 to 8 are ours.",
    headline=Headline(ACCURACY.name, "fmnist_dir01", ("FedAvg", "SCAFFOLD", "FedAdamW", "SCAFFOLD, AdamW", "FedMuon")),
)

RECIPES = (MODERN,)
