"""Targets of tokens in arrays: a class for each, or the token after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconcord.federation.data.dataset import IGNORED, Target
from fedconcord.federation.data.labels import Targets
from fedconcord.support.errors import UserError

GUESS = "rows as long as the samples, taken as a class a token; --target-kind says otherwise"
PAD = 0  # the token that fills rows up, where nobody says another


def next_tokens(tokens: np.ndarray, pad: int = PAD) -> np.ndarray:
    """Targets [n, L] int64 of rows of tokens [n, L]: the token after each, `IGNORED` where either is padding."""
    targets = np.full(tokens.shape, IGNORED, np.int64)
    before, after = tokens[:, :-1], tokens[:, 1:]
    targets[:, :-1] = np.where((before == pad) | (after == pad), IGNORED, after)
    return targets


def with_next(arrays: Mapping[str, Any], label: str, kind: Target | None) -> Mapping[str, Any]:
    """The arrays, and where tokens are to be learnt and have no targets, those of `next_tokens`."""
    pairs = {"x": label, "test_x": "test_y"} if kind == "tokens" else {}
    rows = {y: np.asarray(arrays[x]) for x, y in pairs.items() if x in arrays and y not in arrays}
    return {**arrays, **{y: next_tokens(x) for y, x in rows.items() if _are_rows(x)}}


def _are_rows(tokens: np.ndarray) -> bool:
    return tokens.ndim == 2 and np.issubdtype(tokens.dtype, np.integer) and tokens.dtype != np.uint8


def token_targets(
    arrays: Mapping[str, Any], x: str, y: str, classes: int | None, kind: Target | None, where: str
) -> Targets | None:
    """The targets of tokens among some arrays; None where others are learnt, or none is said and they are not rows of
    whole numbers as long as the samples.

    Args:
        x: key of the samples.
        y: key of the targets.
        classes: how many there are; as many as the targets have, those of a test among them, if none.

    Raises:
        UserError: tokens are wanted, and the arrays are no such rows; or a class is negative.
    """
    samples, targets = np.asarray(arrays[x]), np.asarray(arrays[y])
    fits = _are_rows(samples) and targets.shape == samples.shape and np.issubdtype(targets.dtype, np.integer)
    if kind not in ("tokens", None) or (kind is None and not fits):
        return None
    if not fits:
        raise UserError(
            f"{where}: tokens need rows of whole numbers and as long targets, given {x} {samples.shape} of "
            f"{samples.dtype} and {y} {targets.shape} of {targets.dtype}; give int64 arrays [n, L], {IGNORED} in {y} "
            "where a token has no class"
        )
    wrong = targets[(targets < 0) & (targets != IGNORED)]
    if len(wrong):
        raise UserError(f"{where}: {y} has the class {wrong[0]}; write 0, 1, ..., and {IGNORED} where there is none")
    every = [targets, *([np.asarray(arrays["test_y"])] if "test_y" in arrays else [])]
    names = [str(k) for k in range(classes or max(2, *(int(one.max(initial=0)) + 1 for one in every)))]
    note = None if kind else f"{y}: {GUESS}"
    return Targets("tokens", targets.astype(np.int64), names, note)
