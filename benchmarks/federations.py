"""Which method is best where: federations that differ, a dozen methods on each, all tuned alike.

    python benchmarks/federations.py     # measures what benchmarks/federations.json does not hold yet, and then
                                         # writes the tables of docs/choosing.md, which the rules make too

A method is tuned over its local step size and at most one parameter (`METHODS` x `STEP_SIZES`, seed 0, a fifth of each
client's samples set apart) by its validation score; its best setting then runs with seeds 1 and 2. A score is the mean
of the first metric over the evaluations in the last third of the rounds: on the samples set apart for tuning, on the
test set for what is recorded; for numbers to predict it is -RMSE, tuned by -validation loss. Of a method that offers
several models the first is judged. A setting that diverges has no score.

The rules of `fedconcord.insight.advice` were written with the federations that are not held out; those that are were
chosen before anything was measured, and not looked at until the rules stood.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedconcord.execution.job import Job, train
from fedconcord.insight import advice
from fedconcord.insight.advice import FederationFacts, choice
from fedconcord.insight.advice.choice import cautions, methods_of, rules
from fedconcord.insight.methods import catalogue
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import files
from fedconcord.support.errors import UserError

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = Path(__file__).with_suffix(".json"), ROOT / "docs" / "choosing.md"
STEP_SIZES = (0.01, 0.03, 0.1, 0.3, 1)
METHODS = {
    "fedavg": ("fedavg",),
    "fedprox": ("fedprox(mu=0.01)", "fedprox(mu=0.1)"),
    "fedavgm": ("fedavgm(server_momentum=0.5)", "fedavgm(server_momentum=0.9)"),
    "fedadam": ("fedadam(server_lr=0.03)", "fedadam(server_lr=0.1)"),
    "fednova": ("fednova",),
    "scaffold": ("scaffold",),
    "fedcm": ("fedcm(alpha=0.1)", "fedcm(alpha=0.3)"),
    "feddyn": ("feddyn(alpha=0.01)", "feddyn(alpha=0.1)"),
    "fedspeed": ("fedspeed(alpha=0.01)", "fedspeed(alpha=0.1)"),
    "fedadmm": ("fedadmm(rho=0.01)", "fedadmm(rho=0.1)"),
    "afedpd": ("afedpd(rho=0.01)", "afedpd(rho=0.1)"),
    "fedvra": ("fedvra(a=1,d=inverse_p)", "fedvra(a=7,d=10)"),
}
TUNING, FRESH = 0, (1, 2)  # seeds
EVALUATIONS = 24


class Federation(NamedTuple):
    """A job without a method."""

    settings: dict[str, Any]
    held_out: bool = False


def digits(partition: str, clients: int, cohort: int, rounds: int, **more: Any) -> dict[str, Any]:
    engine = {"kernel": "compiled"}
    given = {"data": "digits", "partition": partition, "clients": clients, "cohort": cohort, "rounds": rounds}
    return {**given, "model": "2nn", "engine": engine, **more}


def table(name: str, label: str) -> dict[str, Any]:
    own = {"data": f"examples/{name}.csv", "input": {"label": [label], "client": "site"}}
    return {**own, "objective": "paper"}  # as the outcomes were measured


UNRELIABLE = {"availability": "markov(0.1,0.3)", "dropout": 0.2}
FEDERATIONS = {
    "easy": Federation(digits("iid", 20, 10, 12)),
    "few labels": Federation(digits("dirichlet(0.1)", 60, 9, 60)),
    "fewer labels": Federation(digits("dirichlet(0.05)", 100, 10, 80)),
    "one label": Federation(digits("shards(1)", 40, 8, 80)),
    "silos": Federation(digits("dirichlet(0.1)", 10, 10, 16, local={"epochs": 5})),
    "unequal work": Federation(digits("dirichlet(0.1)", 50, 10, 40, local={"epochs": "uniform(1,5)"})),
    "unequal sizes and work": Federation(
        digits("dirichlet_unbalanced(0.3)", 30, 10, 30, local={"epochs": "by_client(1,10)"})
    ),
    "full batch": Federation(digits("dominant(0.8,2)", 50, 10, 60, local={"steps": 5, "batch_size": "full"})),
    "hospitals": Federation({**table("cancer", "diagnosis"), "cohort": 4, "rounds": 10}),
    "seldom": Federation(digits("dirichlet(0.1)", 280, 5, 90)),
    "power law": Federation(
        {"data": "synthetic(1,1)", "model": "logreg", "cohort": 10, "rounds": 30, "engine": {"kernel": "compiled"}}
    ),
    "turned": Federation(digits("iid", 20, 5, 20, skew="rotate(90,groups=4)")),
    "two labels, linear": Federation(digits("shards(2)", 100, 10, 60, model="logreg")),
    "long work": Federation(digits("dirichlet(0.3)", 40, 4, 24, local={"epochs": 10})),
    "unreliable": Federation(digits("dirichlet(0.1)", 60, 10, 50, **UNRELIABLE, local={"epochs": "uniform(1,5)"})),
    "phones": Federation(
        digits("dirichlet(0.1)", 2000, 20, 60, data="mnist", model="logreg", eval={"train_samples": 2000})
    ),
    "regions": Federation({**table("diabetes", "progression"), "cohort": 5, "rounds": 12}, True),
    "two labels": Federation(digits("shards(2)", 80, 8, 30, local={"epochs": 3}), True),
    "few large clients": Federation(digits("power_law(1.2)", 40, 6, 30, local={"epochs": "by_client(1,5)"}), True),
    "phones, one label": Federation(digits("shards(1)", 200, 5, 60, model="logreg"), True),
}


class Found(NamedTuple):
    """A run, with its score on the samples set apart and on the test set: higher is better."""

    validation: float
    test: float
    curve: list[float]  # the test metric at every evaluation, as far as it was finite
    bytes_up: int
    gradient_steps: int


def metrics_of(given: dict[str, Any]) -> tuple[str, str, int]:
    """(the metric of the test set, of the samples set apart, 1 if higher is better or -1)."""
    number = "diabetes" in given["data"]
    return ("test_rmse", "validation_loss", -1) if number else ("test_accuracy", "validation_accuracy", 1)


def every_of(rounds: int) -> int:
    """Rounds between evaluations."""
    return max(1, rounds // EVALUATIONS)


def measure(given: dict[str, Any], method: str, seed: int) -> Found:
    """One run.

    Raises:
        UserError: the method cannot run here.
    """
    return followed(given, job_of(given, method, seed))


def job_of(given: dict[str, Any], method: str, seed: int) -> Job:
    """A federation's job, with a fifth of each client's samples set apart.

    Raises:
        UserError: the method cannot run here.
    """
    job = {**given, "method": method, "seed": seed, "validation": 0.2}
    return build(resolve_run(from_nested(job, "federations.py")))


def followed(given: dict[str, Any], job: Job) -> Found:
    """What comes of a job of this federation."""
    rounds = given["rounds"]
    tested, apart, sign = metrics_of(given)
    curve: list[float] = []
    late: list[tuple[float, float]] = []
    for row in train(job, rounds, eval_every=every_of(rounds)):
        if row.metrics is None:
            continue
        if not math.isfinite(row.metrics["test_loss"]):
            return Found(math.nan, math.nan, curve, row.bytes_up, row.gradient_steps)
        curve.append(short(row.metrics[tested]))
        if 3 * row.round > 2 * rounds:
            late.append((row.metrics[apart], row.metrics[tested]))
    validation, test = (sign * sum(values) / len(values) for values in zip(*late, strict=True))
    return Found(validation, test, curve, row.bytes_up, row.gradient_steps)


def short(value: float) -> float:
    return float(f"{value:.5g}")


def best_of(given: dict[str, Any], texts: tuple[str, ...]) -> dict[str, Any]:
    """A method tuned, and its best setting with other seeds; or why it cannot run."""
    begun = time.process_time()
    tried: dict[str, float | None] = {}
    for text in texts:
        for lr in STEP_SIZES:
            name, _, rest = text.rstrip(")").partition("(")
            full = f"{name}({rest}{',' if rest else ''}local.lr={lr:g})"
            try:
                score = measure(given, full, TUNING).validation
            except UserError as error:
                refused = str(error)
                break
            tried[full] = short(score) if math.isfinite(score) else None
    finite = {text: score for text, score in tried.items() if score is not None}
    if not finite:
        return {"refused": refused} if not tried else {"tried": tried}
    best = max(finite, key=lambda text: finite[text])
    fresh = [measure(given, best, seed) for seed in FRESH]
    score = sum(run.test for run in fresh) / len(fresh)
    return {
        "best": best,
        "score": short(score) if math.isfinite(score) else None,
        "bytes_up": fresh[0].bytes_up,
        "gradient_steps": fresh[0].gradient_steps,
        "seconds": round(time.process_time() - begun, 1),
        "tried": tried,
        "curves": [run.curve for run in fresh],
    }


def written(done: dict[str, Any]) -> str:
    """JSON with a line a method."""
    parts = []
    for name, found in done.items():
        own = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items() if k != "methods")
        methods = ",\n".join(f"      {json.dumps(k)}: {json.dumps(v)}" for k, v in found["methods"].items())
        parts.append(f'  {json.dumps(name)}: {{\n{own},\n    "methods": {{\n{methods}\n    }}\n  }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


# -- what came of it -----------------------------------------------------------------------------------------------


def facts_of(given: dict[str, Any]) -> dict[str, Any]:
    """What the rules see of a federation, tuned with seed 0."""
    job = {**given, "seed": TUNING, "validation": 0.2}
    found = advice.facts_of(advice.federation_of(from_nested(job, "federations.py")))
    return {key: short(value) if isinstance(value, float) else value for key, value in found._asdict().items()}


def area(found: dict[str, Any]) -> float:
    """The mean of a method's test metric over all evaluations and fresh seeds: high for what is good early."""
    return sum(sum(curve) / len(curve) for curve in found["curves"]) / len(found["curves"])


def values(one: dict[str, Any], by: str) -> dict[str, float]:
    """Method -> its score, or its area, tuned; higher is better. Without those that were refused or diverged."""
    sign = -1 if one["metric"] == "test_rmse" else 1
    ran = {name: found for name, found in one["methods"].items() if found.get("score") is not None}
    return {name: found["score"] if by == "score" else sign * area(found) for name, found in ran.items()}


def near(one: dict[str, Any], method: str, by: str, among: Collection[str] = METHODS) -> bool:
    """Whether a method, tuned, is within 5 % of the best tuned method of some."""
    found = {name: value for name, value in values(one, by).items() if name in among}
    best = max(found.values())
    return method in found and found[method] >= best - 0.05 * abs(best)


def first_choice(one: dict[str, Any], among: Collection[str] = METHODS) -> str:
    """The method that the rules name first, of those that ran."""
    ran = values(one, "score").keys() & set(among)
    every = rules()
    possible = {text for text in methods_of(every) if choice.name_of(text) in ran}
    return choice.name_of(choice.choose(every, FederationFacts(**one["facts"]), possible)[0][0].method)


def stateless() -> list[str]:
    """The methods whose clients keep nothing."""
    return [name for name in METHODS if catalogue.describe(name).client == 0]


def share(
    done: dict[str, Any], held_out: bool, by: str, method: str | None = None, among: Collection[str] = METHODS
) -> tuple[int, int]:
    """(how often the first choice, or one method everywhere, is near the best of some, of how many federations)."""
    chosen = [one for one in done.values() if one["held_out"] == held_out]
    return sum(near(one, method or first_choice(one, among), by, among) for one in chosen), len(chosen)


def tables(done: dict[str, Any]) -> dict[str, str]:
    """What docs/choosing.md prints: rules, cautions, outcomes and shares, by the name of their place."""
    named = ["| where | tune first | why | source |", "|---|---|---|---|"]
    for rule in rules():
        firsts = [rule.condition.words, *[""] * (len(rule.picks) - 1)]
        lasts = [rule.condition.source, *[""] * (len(rule.picks) - 1)]
        named += [f"| {a} | `{p.method}` | {p.why} | {b} |" for a, p, b in zip(firsts, rule.picks, lasts, strict=True)]
    against = dict[tuple[str, str, str], list[str]]()
    for one in cautions():
        against.setdefault((one.condition.words, one.why, one.source), []).append(f"`{one.method}`")
    warned = ["| where | rather not | why | source |", "|---|---|---|---|"]
    warned += [
        f"| {words} | {', '.join(names)} | {why} | {source} |" for (words, why, source), names in against.items()
    ]
    outcomes = ["| federation | first choice | best tuned | within 5 % | FedAvg |", "|---|---|---|---|---|"]
    for name, one in done.items():
        found, first = values(one, "score"), first_choice(one)
        best = max(found, key=lambda method: found[method])
        cells = [
            f"`{first}` {found[first]:.4g}",
            f"`{best}` {found[best]:.4g}",
            "yes" if near(one, first, "score") else "no",
        ]
        outcomes.append(f"| {name}{' (held out)' * one['held_out']} | {' | '.join(cells)} | {found['fedavg']:.4g} |")
    shares = [
        "| | score, rules made with | score, held out | area, rules made with | area, held out |",
        "|---|---|---|---|---|",
    ]
    everyone: list[tuple[str, str | None, Collection[str]]] = [
        ("first choice", None, METHODS),
        ("first choice with `--stateless`, of the best stateless", None, stateless()),
        *((f"`{method}` everywhere", method, METHODS) for method in METHODS),
    ]
    for label, method, among in everyone:
        asked = [(by, out) for by in ("score", "area") for out in (False, True)]
        cells = ["{} of {}".format(*share(done, out, by, method, among)) for by, out in asked]
        shares.append(f"| {label} | {' | '.join(cells)} |")
    parts = {"rules": named, "cautions": warned, "outcomes": outcomes, "shares": shares}
    return {place: "\n".join(part) for place, part in parts.items()}


def filled(page: str, parts: dict[str, str]) -> str:
    """A page with each table in its place."""
    for place, table in parts.items():
        page = re.sub(
            f"(<!-- {place} -->\n).*?(<!-- end -->)", lambda m, t=table: f"{m[1]}{t}\n{m[2]}", page, flags=re.S
        )
    return page


def main() -> None:
    os.chdir(ROOT)
    torch.set_num_threads(1)
    done: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, (given, held_out) in FEDERATIONS.items():
        if name in done:
            continue
        done[name] = {
            "held_out": held_out,
            "settings": given,
            "metric": metrics_of(given)[0],
            "every": every_of(given["rounds"]),
            "facts": facts_of(given),
            "methods": {method: best_of(given, texts) for method, texts in METHODS.items()},
        }
        files.write_text(RESULTS, written(done))
        print(f"{name}: {sum(found.get('seconds', 0) for found in done[name]['methods'].values()):.0f} s", flush=True)
    files.write_text(PAGE, filled(PAGE.read_text(), tables(done)))


if __name__ == "__main__":
    main()
