"""Known variants and mistakes of robust rules, which are judged as FedAvg with the rule in place of its mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import tree_map
from fedconcord.method.wrappers.robust import Rule, with_aggregate
from fedconcord_referee.known import Change, Known
from fedconcord_referee.reference import Setting

Reduce = Callable[[Tensor, Any], Tensor]  # (moves [S, d], the rule's parameters) -> [d]


def ruled(reduce: Reduce) -> Change:
    """FedAvg with another rule."""

    def changed(setting: Setting) -> Setting:
        rule = Rule(lambda rows, centre: reduce(rows, setting.spec.parameters))
        return setting._replace(algorithm=with_aggregate(METHODS["fedavg"](), rule))

    return changed


def krum(neighbours: Callable[[int, int], int], take: Callable[[int, int, Any], int], power: int = 2) -> Reduce:
    """Krum with so many neighbours, and the mean of so many vectors: (S, f) -> number, (S, f, keep) -> number."""

    def reduce(rows: Tensor, parameters: Any) -> Tensor:
        s, f = len(rows), parameters["hostile"]
        order = ranked(rows, neighbours(s, f), power)
        return rows[order[: max(1, take(s, f, parameters.get("keep")))]].mean(0)

    return reduce


def ranked(rows: Tensor, count: int, power: int = 2) -> Tensor:
    """Krum's order [S] of vectors [S, d], by so many neighbours."""
    apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist") ** power
    order: Tensor = apart.sort(1).values[:, 1 : 1 + max(1, count)].sum(1).argsort(stable=True)
    return order


def by_size(setting: Setting) -> Setting:
    """Multi-Krum whose vectors count by their clients' size."""
    sizes, keep, f = (
        torch.as_tensor(setting.spec.sizes),
        setting.spec.parameters["keep"],
        setting.spec.parameters["hostile"],
    )

    def combine(server: Any, rows: Tensor, senders: Any, cohort: Any) -> Tensor:
        order = ranked(rows, _paper(len(rows), f))[: _several(len(rows), f, keep)]
        weights = sizes[senders.id.reshape(-1)[order]]
        return (weights / weights.sum()) @ rows[order]

    phases = setting.algorithm.phases._replace(combine=combine)
    return setting._replace(algorithm=replace(setting.algorithm, phases=phases))


def _one(s: int, f: int, keep: Any) -> int:
    return 1


def _several(s: int, f: int, keep: Any) -> int:
    return int(keep or s - f - 2)


def neighbours(take: Callable[[int, int, Any], int]) -> tuple[Known, ...]:
    """What is known of Krum's neighbours."""
    counts = {"S - f - 1": 1, "S - f": 0, "S - f - 3": 3, "S - 1": None}
    return (
        *(
            Known(
                f"{words} neighbours",
                "mistake",
                f"sums the distances to {words} neighbours, where the paper has S - f - 2",
                ruled(krum(lambda s, f, less=less: s - 1 if less is None else s - f - less, take)),  # type: ignore[misc]
            )
            for words, less in counts.items()
        ),
        _known("lengths not squared", "sums distances, where the paper sums their squares", krum(_paper, take, 1)),
    )


def _paper(s: int, f: int) -> int:
    return s - f - 2


def _known(name: str, says: str, reduce: Reduce, kind: Literal["variant", "mistake"] = "mistake") -> Known:
    return Known(name, kind, says, ruled(reduce))


def _ranked(place: Callable[[int], int]) -> Reduce:
    def reduce(rows: Tensor, parameters: Any) -> Tensor:
        value: Tensor = rows.sort(0).values[place(len(rows))]
        return value

    return reduce


def _trimmed(count: Callable[[float], float]) -> Reduce:
    def reduce(rows: Tensor, parameters: Any) -> Tensor:
        cut = int(count(parameters["share"] * len(rows)))
        return rows.sort(0).values[cut : len(rows) - cut].mean(0)

    return reduce


def _length(rows: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return length


def _again(factor: Callable[[float], float]) -> Change:
    """The rule's value times a factor of S."""

    def changed(setting: Setting) -> Setting:
        inner = setting.algorithm.phases.combine

        def combine(server: Any, rows: Any, senders: Any, cohort: Any) -> Any:
            assert inner is not None
            return tree_map(lambda leaf: factor(cohort.size) * leaf, inner(server, rows, senders, cohort))

        phases = setting.algorithm.phases._replace(combine=combine)
        return setting._replace(algorithm=replace(setting.algorithm, phases=phases))

    return changed


COMMON = (
    Known(
        "divided by S again", "mistake", "divides what the rule gives by the cohort's number", _again(lambda s: 1 / s)
    ),
    Known("times S", "mistake", "multiplies what the rule gives by the cohort's number", _again(lambda s: s)),
)
RULES: dict[str, tuple[Known, ...]] = {
    "krum": neighbours(_one),
    "multi_krum": (
        Known("the chosen by size", "variant", "weighs the vectors that it keeps by their clients' size", by_size),
        *neighbours(_several),
        _known(
            "S - f averaged",
            "averages the S - f nearest, not S - f - 2",
            krum(_paper, lambda s, f, keep: s - f),
            "variant",
        ),
        _known("the nearest alone", "takes the nearest alone: this is Krum", krum(_paper, _one)),
    ),
    "median": (
        _known(
            "the lower middle",
            "takes the lower of two middle values, as torch.median",
            _ranked(lambda s: (s - 1) // 2),
            "variant",
        ),
        _known("the upper middle", "takes the upper of two middle values", _ranked(lambda s: s // 2), "variant"),
    ),
    "trimmed_mean": (
        _known(
            "the share of both ends",
            "leaves out the share at both ends together, half at each",
            _trimmed(lambda c: c / 2),
        ),
        _known("rounded up", "rounds the number of values that are left out up", _trimmed(math.ceil), "variant"),
        _known("rounded", "rounds the number of values that are left out to the nearest", _trimmed(round), "variant"),
    ),
    "norm_clip": (
        _known(
            "all of one length",
            "scales short vectors up to the radius too",
            lambda rows, p: (rows * p["radius"] / _length(rows)).mean(0),
        ),
        _known(
            "coordinates clipped",
            "cuts each coordinate, where the rule cuts the length",
            lambda rows, p: rows.clamp(-p["radius"], p["radius"]).mean(0),
        ),
        _known(
            "the mean clipped",
            "cuts the mean, where the rule cuts each vector",
            lambda rows, p: rows.mean(0) * (p["radius"] / _length(rows.mean(0)).clamp(min=p["radius"])),
        ),
    ),
}
