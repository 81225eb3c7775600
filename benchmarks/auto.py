"""What each part of `auto` gives: rounds to a target beside twelve tuned methods, on the federations of federations.py.

    python benchmarks/auto.py     # writes the table of docs/auto.md

A target is what tuned FedAvg ends at (the mean over the last third of its rounds), or half of the way from there to the
best tuned method's. The tuned methods' curves are those of federations.json, seeds 1 and 2; `auto`, and `auto` with one
part taken out, run the same jobs. `auto`'s constants were chosen on these that are not held out and on the arena's.
"""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from federations import FEDERATIONS, FRESH, RESULTS, ROOT, every_of, filled, followed, job_of, metrics_of
from torch import Tensor

from fedconcord.execution.engines.stacked import Stacked
from fedconcord.method.contract import Algorithm, Client, Local
from fedconcord.method.step.sizes import Normed, record_size
from fedconcord.support import files

PAGE = ROOT / "docs" / "auto.md"


def module() -> ModuleType:
    """`auto`'s, whose name the factory has in the package of methods."""
    return importlib.import_module("fedconcord.method.algorithms.auto")


def with_constants(**constants: float) -> Callable[[], Algorithm]:
    """`auto` with other constants; its functions look them up as they run."""

    def made() -> Algorithm:
        own, Normed.measured = module(), MEASURED  # type: ignore[method-assign]
        for name, value in {**DEFAULTS, **constants}.items():
            setattr(own, name, value)
        return own.auto()

    return made


def first_step(size: float) -> Callable[[], Algorithm]:
    """`auto` with a first step size that no gradient decides."""

    def made() -> Algorithm:
        plain = with_constants()()

        def start(down: Any, row: Any, client: Client) -> Local:
            local = plain.start(down, row, client)
            return Local(local.x, *local.pieces, first=size)

        return replace(plain, start=start)

    return made


def by_the_step_before() -> Algorithm:
    """The cap on a step from the length of the one before: a step is one pass over the model then."""

    def measured(self: Normed, k: int, norm: Tensor) -> Tensor:
        whole = norm.clamp(min=torch.finfo(torch.float32).tiny)
        self.opening.copy_(torch.where(self.opening > 0, self.opening, self.length / whole))
        eta = torch.where(self.now > 0, self.now, self.opening)
        self.now.copy_(torch.minimum(self.opening, self.bound * self.length / whole))
        self.squares.add_(norm.square())
        return record_size(self.etas, k, self.lr * eta)

    algorithm = with_constants()()
    Normed.measured = measured  # type: ignore[method-assign]
    return algorithm


def without_own_duals() -> Algorithm:
    """Clients keep nothing: what is left is a damped heavy ball over normalised steps."""
    with_constants()()
    return module().auto(duals="common")


MEASURED = Normed.measured
DEFAULTS = {name: getattr(module(), name) for name in ("LENGTH", "LONGEST", "EPS", "C", "R", "KEPT", "GROW", "SHRINK")}
VARIANTS: dict[str, Callable[[], Algorithm]] = {
    "auto": with_constants(),
    "no cap on a step's length": with_constants(LONGEST=1e9),
    "a cap by the length of the step before": by_the_step_before,
    "first step size 0.3 for all": first_step(0.3),
    "first step size 0.1 for all": first_step(0.1),
    "no sum in G": with_constants(EPS=0.0),
    "no hypergradient": with_constants(GROW=0.0, SHRINK=0.0),
    "no floor r under long rounds": with_constants(R=0.0),
    "duals common": without_own_duals,
    "no extrapolation": with_constants(C=1e3),
    "answer is the last mean": with_constants(KEPT=0.0),
}


class Reached(NamedTuple):
    """Ratios of rounds to those of the best tuned method, for both targets; inf: never."""

    fedavg: float
    half: float
    lead: float  # of the final value over tuned FedAvg's, in points of accuracy; NaN for numbers


def curve_of(given: dict[str, Any], made: Callable[[], Algorithm], seed: int) -> list[float]:
    """The test metric at every evaluation, higher is better; the worst there is from where it is not finite."""
    job = job_of(given, "auto", seed)
    assert isinstance(job.engine, Stacked)
    job = replace(job, algorithm=made(), engine=replace(job.engine, kernel="torch"))  # which the variants change
    _, _, sign = metrics_of(given)
    found = [sign * value for value in followed(given, job).curve]
    rounds, every = given["rounds"], every_of(given["rounds"])
    return found + [-math.inf] * (1 + -(-rounds // every) - len(found))


def rounds_to(curve: np.ndarray, target: float, every: int) -> float:
    """Rounds to the first evaluation at or above the target."""
    reached = np.flatnonzero(curve[1:] >= target)
    return float((reached[0] + 1) * every) if len(reached) else math.inf


def measure(name: str, one: dict[str, Any], made: Callable[[], Algorithm]) -> Reached:
    """One variant on one federation."""
    sign, every = (-1 if one["metric"] == "test_rmse" else 1), one["every"]
    rivals = {}
    for method, found in one["methods"].items():
        if found.get("score") is not None:
            shortest = min(map(len, found["curves"]))
            rivals[method] = sign * np.mean([curve[:shortest] for curve in found["curves"]], 0)
    ours = np.mean([curve_of(FEDERATIONS[name].settings, made, seed) for seed in FRESH], 0)
    late = {method: curve[len(curve) * 2 // 3 :].mean() for method, curve in rivals.items()}
    ratios = []
    for target in (late["fedavg"], (late["fedavg"] + max(late.values())) / 2):
        best = min(rounds_to(curve, target, every) for curve in rivals.values())
        ratios.append(rounds_to(ours, target, every) / best)
    lead = 100 * (ours[len(ours) * 2 // 3 :].mean() - late["fedavg"]) if sign > 0 else math.nan
    return Reached(*ratios, lead)


def row(label: str, found: dict[str, Reached], held_out: bool) -> str:
    """A line of the table: shares within 1.25, the worst, the geometric mean with `never` as 9, for both targets."""
    mine = [reached for name, reached in found.items() if FEDERATIONS[name].held_out == held_out]
    cells = []
    for values in zip(*[(one.fedavg, one.half) for one in mine], strict=True):
        worst = max(values)
        mean = math.exp(sum(math.log(min(value, 9.0)) for value in values) / len(values))
        near = sum(value <= 1.25 for value in values)
        cells += [f"{near} of {len(values)}", "never" if math.isinf(worst) else f"{worst:.2f}", f"{mean:.2f}"]
    lowest = min(one.lead for one in mine if not math.isnan(one.lead))
    return f"| {label} | {' | '.join(cells)} | {lowest:+.1f} |"


def main() -> None:
    os.chdir(ROOT)
    torch.set_num_threads(1)
    done = json.loads(RESULTS.read_text())
    head = [
        "| | FedAvg's end: within 1.25 | worst | mean | half way: within 1.25 | worst | mean | lowest lead |",
        "|---|---|---|---|---|---|---|---|",
    ]
    parts = {"chosen": list(head), "held": list(head)}
    detail = [
        "| federation | rounds to FedAvg's end over the best tuned method's | half way | lead |",
        "|---|---|---|---|",
    ]
    for label, made in VARIANTS.items():
        found = {name: measure(name, one, made) for name, one in done.items()}
        parts["chosen"].append(row(label, found, False))
        parts["held"].append(row(label, found, True))
        print(parts["chosen"][-1], flush=True)
        if label == "auto":
            for name, one in found.items():
                held = " (held out)" * FEDERATIONS[name].held_out
                lead = "" if math.isnan(one.lead) else f"{one.lead:+.1f}"
                ratios = " | ".join("never" if math.isinf(v) else f"{v:.2f}" for v in (one.fedavg, one.half))
                detail.append(f"| {name}{held} | {ratios} | {lead} |")
    tables = {place: "\n".join(lines) for place, lines in {**parts, "federations": detail}.items()}
    files.write_text(PAGE, filled(PAGE.read_text(), tables))


if __name__ == "__main__":
    main()
