"""What the partitions share: what they refuse, and sizes and owners as arrays of samples."""

from __future__ import annotations

import numpy as np

from fedconcord.basis.errors import UserError

MAX_DRAWS = 1000  # whole redraws before a partition that leaves clients short is refused
LABEL_FREE = ("iid", "power_law", "quantity", "flwr_datasets")  # partitions of any targets; the last: by its class


def check_clients(n: int, n_clients: int) -> None:
    """Refuse to divide n samples over so many clients.

    Raises:
        UserError: there is no client, or there are more than samples.
    """
    if not 1 <= n_clients <= n:
        raise UserError(
            f"cannot divide {n} samples over {n_clients} clients with at least one each; "
            f"set the number of clients from 1 to {n}"
        )


def check_labels(partition: str, labels: np.ndarray, n_clients: int) -> None:
    """`check_clients`, and one class label a sample.

    Raises:
        UserError: as `check_clients`; or the targets are numbers or several labels a sample.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise UserError(
            f"partition {partition!r} divides by one class label a sample, and the targets here are "
            f"{labels.dtype} of shape {labels.shape}; use {', '.join(LABEL_FREE)} or natural"
        )
    check_clients(len(labels), n_clients)


def check_alpha(partition: str, alpha: float) -> None:
    """Refuse a concentration that is no number > 0."""
    if not 0 < alpha < np.inf:
        raise UserError(f"partition {partition!r} needs a finite alpha > 0, given alpha = {alpha}")


def even(total: int, parts: int) -> np.ndarray:
    """total as a sum of `parts` whole numbers that differ by at most 1, the larger ones first."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def parts_of(owner: np.ndarray, n_clients: int) -> list[np.ndarray]:
    """Owner of each sample [n] -> sorted samples of each client."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, n_clients)))


def counts(labels: np.ndarray, parts: list[np.ndarray], classes: int) -> np.ndarray:
    """How many samples of each class each client holds: [N, classes] int64, from labels in 0 .. classes-1."""
    client = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    cell = client * classes + labels[np.concatenate(parts)]
    return np.bincount(cell, minlength=len(parts) * classes).reshape(len(parts), classes)
