"""What the experiments of FedADMM (Gong, Li, Freris, ICDE 2022) share: federations, methods, claims.

A tenth of the clients takes part in a round, uniformly; FedADMM and FedProx draw E_i from 1 to E, the others do E; rho
is 0.01 for FedADMM, learning rates are sought in 0.01, 0.1, 0.2, 0.5. The entry FedADMM is the released code's form,
which is what learns as the paper's experiments do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from fedconcord_papers.recipes import measures
from fedconcord_papers.recipes.claims import Sign, ahead, compared, judged, within
from fedconcord_papers.recipes.recipe import NOTHING, Cell, Claim, Entry, Settings, Size
from fedconcord_papers.recipes.values import Finding, Values, values

ROUNDS, ACCURACY, MODEL = measures.rounds_to_target(), measures.final(window=5), measures.parameters()
ENDED = measures.final(window=5, name="accuracy, last 5 rounds run, %")  # at its target, where it reaches that
MEASURED: Settings = {"validation": "none", "eval.clients": False, "eval.every": 1, "eval.train_samples": 1000}
SEVENTY: Settings = {  # which 2nn reaches on non-IID FMNIST in the rounds of a desk size, where 80 % is far
    "eval.target": 0.7
}
NINETY: Settings = {"eval.target": 0.9}  # likewise on non-IID MNIST, where 97 % is far
BASE: Settings = {**MEASURED, "rounds": 100, "local.lr": 0.1}
RACE: Settings = {**BASE, "eval.stop_at_target": True}  # where the rounds until then are all that is compared
NAMES = {"mnist": "MNIST", "fmnist": "FMNIST", "cifar10": "CIFAR-10"}
DATA: Mapping[str, Settings] = {  # Table II
    "mnist": {"data": "mnist", "model": "cnn1", "eval.target": 0.97},
    "fmnist": {"data": "fmnist", "model": "cnn1", "eval.target": 0.8},
    "cifar10": {"data": "cifar10", "model": "cnn2", "eval.target": 0.45},
}
SIZES = {"cnn1": 1_663_370.0, "cnn2": 1_105_098.0}  # parameters, Table II
SPLITS = {"iid": "iid", "noniid": "shards(2)"}
SAID = {"iid": "IID", "noniid": "non-IID"}
RIVALS = ("FedAvg", "FedProx", "SCAFFOLD")
LR = {"local.lr": (0.1, 0.01, 0.2, 0.5)}
MU = {"mu": (0.1, 0.001, 0.01, 1.0)}
PAPER = Size(seeds=range(5))
DIGITS: Settings = {"data": "digits", "model": "2nn", "clients": 40, "cohort": 8, "rounds": 8, "eval.target": 0.5} | {
    "local.batch_size": 10,
    "eval.train_samples": 100,
}
QUICK = Size(
    settings=DIGITS,
    seeds=(0,),
    search=None,
)
FORM = (
    "FedADMM is the released code's form: clients start from theta and send 2 (w_i - theta). Algorithm 1 with the "
    "printed server step of 1 is biased away from its start where clients are absent, and hardly learns "
    "(docs/published.md)"
)
ENDS = "Runs end at their target, as the rounds until then are all that is compared."
GRID = (
    "The learning rates that are tried are the paper's own four at every size, also where the best is the lowest or "
    "the highest of them: another grid would be another experiment."
)
PAPER_HAS = {"form of FedADMM": ("Algorithm 1, with a server step of 1", "that of the released code")}
CODE = (
    "The code's momentum of 0.5 is left out, as the paper names none. Inputs have mean 0 and deviation 1, as in the "
    "code, CIFAR-10's by channel, where the code takes 0.5 and 0.5. Clients weigh the same."
)


def federation(data: str, split: str, clients: int, epochs: int, batch: int | str) -> Settings:
    """The settings of a cell: a tenth of the clients a round."""
    shares = {"clients": clients, "cohort": clients // 10, "partition": SPLITS[split]}
    return {**DATA[data], **shares, "local.epochs": epochs, "local.batch_size": batch}


def title(data: str, split: str, clients: int) -> str:
    return f"{NAMES[data]}, {clients:,} clients, {SAID[split]}"


def drawn(epochs: int) -> str:
    """E_i of a client, anew in each round."""
    return f"local.epochs=uniform(1,{epochs})" if epochs > 1 else "local.epochs=1"


def admm(name: str, epochs: int, given: str = "", grid: Mapping[str, Sequence[float]] = NOTHING) -> Entry:
    return Entry(name, f"fedadmm({given}{',' * bool(given)}{drawn(epochs)})", grid)


def methods(
    epochs: int, of_admm: Mapping[str, Sequence[float]], of_prox: Mapping[str, Sequence[float]]
) -> tuple[Entry, ...]:
    """FedADMM and its rivals; the grid of FedAvg and SCAFFOLD is that of the step size."""
    return (
        admm("FedADMM", epochs, grid=of_admm),
        Entry("FedAvg", "fedavg", LR),
        Entry("FedProx", f"fedprox({drawn(epochs)})", of_prox),
        Entry("SCAFFOLD", "scaffold", LR),
    )


def leads(cells: Sequence[Cell], rivals: Sequence[str] = RIVALS) -> tuple[Claim, ...]:
    """A claim a cell: FedADMM needs the fewest rounds to its target."""
    return tuple(
        ahead(
            f"{cell.title}: FedADMM needs fewer rounds than {', '.join(rivals)}",
            ROUNDS.name,
            "FedADMM",
            rivals,
            [cell.name],
        )
        for cell in cells
    )


def models_of(table: Mapping[tuple[str, str], float | str]) -> dict[tuple[str, str], float | str]:
    """The printed sizes of the models in these places (Table II)."""
    return {(cell, entry): SIZES["cnn2" if cell.startswith("cifar") else "cnn1"] for cell, entry in table}


def printed(says: str, table: Mapping[tuple[str, str], float | str], tolerance: float) -> Claim:
    """Rounds are within a tolerance of the printed ones; "100+": not in 100 rounds."""
    return within(says, ROUNDS.name, [(*place, value) for place, value in table.items()], tolerance)


def lead_grows(says: str, small: str, large: str) -> Claim:
    """The rounds that FedADMM saves on the best rival are a larger part in one cell than in another, by seed."""

    def saved(table: Values, cell: str) -> Iterator[tuple[str, str, str, int, float]]:
        own = table.seeds(ROUNDS.name, cell, "FedADMM")
        others = [table.seeds(ROUNDS.name, cell, rival) for rival in RIVALS]
        for seed, mine in own.items():
            best = min((other[seed] for other in others if seed in other), default=math.nan)
            if math.isfinite(mine) or math.isfinite(best):
                yield "saved", "", cell, seed, 1 - mine / best

    def judge(table: Values) -> Finding:
        both = values([*saved(table, small), *saved(table, large)])
        sign: Sign | None = compared(both, "saved", "", large, small, higher=True)
        shown = ", ".join(f"{100 * both.interval('saved', '', cell).mean:.0f} % ({cell})" for cell in (small, large))
        return judged([(f"saved {shown}", sign)])

    return Claim(says, judge)


def best_changes(says: str, entries: Sequence[str], cells: Sequence[str]) -> Claim:
    """The entry that needs the fewest rounds is another one in the second cell of a pair than in the first.

    It is another where each is ahead of the other in its own cell, over paired seeds, and the same where one is ahead
    of all others in both. In a cell where none gets to the target there is no best one, as if it had not been run.

    Args:
        cells: first and second of each pair, one after the other.
    """

    def best(table: Values, cell: str) -> str | None:
        means = {}
        for entry in entries:
            reached = list(table.seeds(ROUNDS.name, cell, entry).values())
            if reached:
                means[entry] = sum(math.inf if math.isnan(value) else value for value in reached) / len(reached)
        return min(means, key=lambda entry: means[entry]) if any(map(math.isfinite, means.values())) else None

    def leads_all(table: Values, cell: str, entry: str) -> bool:
        rest = (compared(table, ROUNDS.name, cell, entry, one, higher=False) for one in entries if one != entry)
        return all(sign in ("ahead", None) for sign in rest)

    def judge(table: Values) -> Finding:
        signs: list[tuple[str, Sign | None]] = []
        for first, second in zip(cells[::2], cells[1::2], strict=True):
            a, b = best(table, first), best(table, second)
            if a is None or b is None:
                signs.append(("", None))
                continue
            if a != b:
                wins = [
                    compared(table, ROUNDS.name, *places, higher=False) for places in ((first, a, b), (second, b, a))
                ]
                sign: Sign = "ahead" if wins == ["ahead", "ahead"] else "even"
            else:
                sign = "behind" if leads_all(table, first, a) and leads_all(table, second, a) else "even"
            signs.append((f"{a} ({first}), {b} ({second})", sign))
        return judged(signs)

    return Claim(says, judge)
