"""Partitioners of flwr-datasets: the real package where it is installed, and what is said where it is not."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fedconcord.federation.partitions.own import flwr_datasets, from_partitioner
from fedconcord.federation.partitions.simple import counts
from fedconcord.method.contract.rng import Purpose, generator
from fedconcord.study.settings.problem import divided, problem_of
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError

LABELS = np.random.default_rng(0).integers(0, 10, 5000)
real = pytest.mark.skipif(find_spec("flwr_datasets") is None, reason="flwr-datasets is not installed")
pytestmark = [  # of what that package uses
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def key(seed: int = 0) -> np.random.Generator:
    return generator(seed, Purpose.PARTITION)


@real
@pytest.mark.parametrize(
    ("written", "all_used"),
    [
        ("IidPartitioner", True),
        ("DirichletPartitioner(alpha=0.3)", True),
        ("DirichletPartitioner(alpha=0.3, self_balancing=true, min_partition_size=5)", True),
        ("LinearPartitioner", True),
        ("PathologicalPartitioner(num_classes_per_partition=2)", True),
        ("ShardPartitioner(num_shards_per_partition=2, shard_size=100)", False),
        ("flwr_datasets.partitioner:SquarePartitioner", True),
    ],
)
def test_divisions(written: str, all_used: bool) -> None:
    parts = flwr_datasets(LABELS, 20, key(), written)
    assert len(parts) == 20
    assert all(part.dtype == np.int64 and len(part) and (np.diff(part) > 0).all() for part in parts)
    used = np.sort(np.concatenate(parts))
    assert len(np.unique(used)) == len(used)
    assert np.array_equal(used, np.arange(5000)) == all_used


@real
def test_the_object_gives_what_its_own_partitions_hold() -> None:
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    def made() -> Any:
        return DirichletPartitioner(num_partitions=8, partition_by="label", alpha=0.5, seed=3)

    theirs = made()
    theirs.dataset = Dataset.from_dict({"label": LABELS})
    held = [np.bincount(theirs.load_partition(i)["label"][:], minlength=10) for i in range(8)]
    parts = from_partitioner(made(), LABELS)
    assert np.array_equal(counts(LABELS, parts, 10), held)
    (text,) = [flwr_datasets(LABELS, 8, key(), "DirichletPartitioner(alpha=0.5, seed=3)")]
    assert all(np.array_equal(a, b) for a, b in zip(text, parts, strict=True))


@real
def test_the_seed_is_the_runs() -> None:
    one, same, other = (flwr_datasets(LABELS, 10, key(s), "DirichletPartitioner(alpha=0.5)") for s in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@real
def test_numbers_are_divided_by_those_for_numbers() -> None:
    """A regression target [n, 1]: sorted by the target where strictness is 1."""
    y = np.random.default_rng(1).random((1000, 1)).astype(np.float32)
    parts = flwr_datasets(y, 5, key(), "ContinuousPartitioner(strictness=1.0)")
    spans = sorted((float(y[part].min()), float(y[part].max())) for part in parts)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


@real
@pytest.mark.parametrize(
    ("written", "says"),
    [
        (
            "DirichletPartition(alpha=1)",
            "unknown partitioner 'DirichletPartition' (did you mean 'dirichletpartitioner'?)",
        ),
        ("DirichletPartitioner", "refuses its parameters"),
        ("DirichletPartitioner(alpha=-1)", "DirichletPartitioner"),
        ("IidPartitioner(n=3)", "refuses its parameters"),
        ("IidPartitioner(3)", "takes parameters by name"),
        ("IidPartitioner(num_partitions=3)", "makes 3 partitions for 20 clients, which must agree"),
        ("no.such.module:Mine", "no.such.module"),
        ("DirichletPartitioner(alpha=0.1, partition_by=colour)", "cannot divide these data"),
        ("ShardPartitioner(num_shards_per_partition=2, shard_size=1000)", "cannot divide these data"),
    ],
)
def test_mistakes_are_one_sentence(written: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        flwr_datasets(LABELS, 20, key(), written)
    assert says in str(error.value)


@real
def test_overlapping_and_empty_partitions_are_refused() -> None:
    from flwr_datasets.partitioner import Partitioner

    class Mine(Partitioner):  # type: ignore[misc, unused-ignore]
        def __init__(self, partitions: list[list[int]]) -> None:
            super().__init__()
            self.partitions = partitions

        @property
        def num_partitions(self) -> int:
            return len(self.partitions)

        def load_partition(self, partition_id: int) -> Any:
            return self.dataset.select(self.partitions[partition_id])

    assert [part.tolist() for part in from_partitioner(Mine([[3, 1], [0]]), LABELS)] == [[1, 3], [0]]
    with pytest.raises(UserError, match=r"^partitioner Mine gives a sample twice"):
        from_partitioner(Mine([[0, 1], [1]]), LABELS)
    with pytest.raises(UserError, match=r"^partitioner Mine leaves client 1 without samples; change its parameters"):
        from_partitioner(Mine([[0, 1], []]), LABELS)


@real
def test_in_a_run() -> None:
    settings = {"data": "digits", "clients": 10, "model": "logreg", "method": "fedavg"}
    chosen = resolve_run(
        from_nested({**settings, "partition": "flwr_datasets(DirichletPartitioner(alpha=0.2))"}, "here")
    )
    dataset, parts = divided(chosen)
    assert sum(map(len, parts)) == len(dataset.train_y) == problem_of(chosen).roster.sizes.sum()


def test_without_the_package_one_sentence_says_so() -> None:
    script = (
        "import sys; sys.modules['flwr_datasets'] = None\n"
        "from fedconcord.interface.cli.main import call\n"
        "sys.exit(call(['run', '--data', 'digits', '--partition', 'flwr_datasets(IidPartitioner)', '--rounds', '1']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "pip install flwr-datasets" in done.stderr
