"""An arena that is to be done: methods by label, what each may take, and what no federation can run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedconcord.study.runs.records import settle
from fedconcord.study.runs.training import prepare, threads
from fedconcord.study.settings.methods import read_method, single
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import files, grammar, imports
from fedconcord.support.errors import UserError
from fedconcord_papers.arena.federations import REFERENCE, Federation, chosen

METHODS = (REFERENCE, "auto", "fedprox", "fedavgm", "fedadam", "scaffold", "fednova", "feddyn", "fedadmm", "afedpd")
CONTROLS = {  # FedAvg with one number more: label -> what is looked for beside its local step size
    "fedavg + server step": "server_lr=log(0.3,5)",
    "fedavg + momentum": "local.momentum=linear(0,0.95)",
    "fedavg + decay": "local.lr_decay=linear(0.9,1)",
}
ALL_CONTROLS = "controls"  # among methods: these three
BUDGET = 8  # trials of a method in a federation
SEEDS = (0, 1, 2)  # of the results
TUNING_SEEDS = (1000, 1001)  # of the trials: no result has them
QUICK: Mapping[str, Any] = {"rounds": 8, "eval.every": 1}
QUICK_BUDGET = 2
STATED = "federation.json"


class ArenaSpec(NamedTuple):
    """What an arena is to do."""

    methods: Mapping[str, str]  # label -> the method as `compare` takes it, with that label
    federations: Sequence[Federation]
    out: Path
    budget: int = BUDGET
    seeds: Sequence[int] = SEEDS
    jobs: int = 1
    command: str = "fedconcord arena"  # that asks for it, but for its folder


def request(
    methods: Sequence[str] | None,
    federations: Sequence[str] | None,
    budget: int | None,
    seeds: Sequence[int] | None,
    jobs: int,
    out: Path,
    few: bool = False,
) -> ArenaSpec:
    """What an arena is to do; what is None is as usual.

    Args:
        few: a federation of each role, a few rounds.

    Raises:
        UserError: there is no such method or federation, or trials are tuned on one of the seeds.
    """
    some = chosen(federations or ["all"])
    usual = QUICK_BUDGET if few else BUDGET
    lists = {"methods": methods, "federations": federations, "budget": budget and [budget], "seeds": seeds}
    flags = "".join(f" --{name} {shlex.quote(','.join(map(str, one)))}" for name, one in lists.items() if one)
    return ArenaSpec(
        labelled(methods or (*METHODS, ALL_CONTROLS)),
        quick(some) if few else some,
        out,
        usual if budget is None else budget,
        fresh(seeds or SEEDS),
        jobs,
        f"fedconcord arena{flags}{' --quick' * few}",
    )


class FederationFolder(NamedTuple):
    """A federation and the folder of all that is done in it."""

    federation: Federation
    folder: Path

    @property
    def reference(self) -> Path:
        """The search of FedAvg for its final value; its runs are in `reference_runs`."""
        return self.folder / "reference" / "tuning"

    @property
    def reference_runs(self) -> Path:
        return self.folder / "reference" / "final"

    @property
    def final(self) -> Path:
        """The comparison of all methods, tuned."""
        return self.folder / "final"

    def search(self, label: str) -> Path:
        """The search of a method for few rounds to the target."""
        return self.folder / "tuning" / files.folder_name(label)


def labelled(methods: Sequence[str]) -> dict[str, str]:
    """Methods by label, FedAvg among them: the label that is given, else the text as it is written; and `controls`.

    Raises:
        UserError: there is no such method, or two have one label.
    """
    by_label: dict[str, str] = {}
    listed = [text for text in methods if text != ALL_CONTROLS]
    if len(listed) < len(methods):
        listed += [str(grammar.Spec(REFERENCE, (), {"label": label})) for label in CONTROLS]
    imports.trust(*listed)
    for text in listed:
        read_method(text)
        spec = grammar.parse(text, "method")
        label = str(spec.kwargs.get("label") or spec)
        if files.folder_name(label).casefold() in {files.folder_name(one).casefold() for one in by_label}:
            raise UserError(f"the method {label} is given twice; give one of them another label, as in label='b'")
        by_label[label] = str(grammar.Spec(spec.name, spec.args, {**spec.kwargs, "label": label}))
    if REFERENCE not in by_label:
        by_label = {REFERENCE: f"{REFERENCE}(label={REFERENCE})", **by_label}
    return by_label


def fresh(seeds: Sequence[int]) -> Sequence[int]:
    """Seeds of results.

    Raises:
        UserError: trials are tuned on one of them.
    """
    for seed in seeds:
        if seed in TUNING_SEEDS:
            raise UserError(f"seed {seed} is one that trials are tuned on; give another")
    return seeds


def quick(federations: Sequence[Federation]) -> list[Federation]:
    """The first federation of each role, and a few rounds of it: it tests the code."""
    first = {one.role: one for one in reversed(federations)}
    return [
        one._replace(settings={**from_nested(one.settings, one.name).values, **QUICK})
        for one in federations
        if first[one.role] is one
    ]


def able(federation: Federation, methods: Mapping[str, str], folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """(the methods that can run in a federation, why the others cannot), by label.

    Raises:
        UserError: a setting is wrong, or FedAvg cannot run.
    """
    config = federation.config(list(methods.values()))
    why: dict[str, str] = {}
    with threads(1):
        for label, text in methods.items():
            one = single(config, text, TUNING_SEEDS[0])
            try:
                prepare(one, folder)
            except UserError as error:
                why[label] = str(error).removeprefix(f"{label}: ")
    if REFERENCE in why:
        raise UserError(
            f"federation {federation.name}: {REFERENCE}, which the others are measured by, cannot run: {why[REFERENCE]}"
        )
    return {label: text for label, text in methods.items() if label not in why}, why


def settle_federation(place: FederationFolder, budget: int) -> None:
    """Write what the searches of a federation rest on, or see that it is unchanged.

    Raises:
        UserError: the folder holds another federation, or another budget, or what it holds is damaged.
    """
    request = {
        "settings": place.federation.nested,
        "target": str(place.federation.target),
        "budget": budget,
        "tuning_seeds": list(TUNING_SEEDS),
    }
    settle(place.folder / STATED, request, f"give another --out, or remove {place.folder}")
