from __future__ import annotations

import inspect
import time
from collections import Counter
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest

from fedconcord.federation.partitions import PARTITIONS
from fedconcord.federation.partitions.mixtures import dirichlet, dirichlet_unbalanced, dominant, split_by_proportions
from fedconcord.federation.partitions.simple import (
    LABEL_FREE,
    counts,
    groups,
    iid,
    power_law,
    quantity,
    shards,
    sorted_fraction,
)
from fedconcord.method.contract.rng import Purpose, generator
from fedconcord.support.errors import UserError

CIFAR = np.repeat(np.arange(10), 5000)  # CIFAR-10's label counts
MNIST = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
EVEN = ["iid", "shards", "sorted_fraction", "dirichlet", "dominant"]  # partitions with equal client sizes


OURS = [name for name in PARTITIONS if name != "flwr_datasets"]  # which has a file of its own


def key(seed: int) -> np.random.Generator:
    return generator(seed, Purpose.PARTITION)


def shuffled(labels: np.ndarray) -> np.ndarray:
    return np.random.default_rng(5).permutation(labels)


def classes_covering(table: np.ndarray, share: float) -> np.ndarray:
    """[N] the fewest classes that hold `share` of each client's samples."""
    largest = -np.sort(-table, axis=1)
    return (largest.cumsum(axis=1) < share * table.sum(axis=1, keepdims=True)).sum(axis=1) + 1


def entropy(table: np.ndarray) -> float:
    """Mean over clients of the entropy of their labels, in nats."""
    p = table / table.sum(axis=1, keepdims=True)
    return float(-(p * np.log(np.where(p > 0, p, 1))).sum(axis=1).mean())


# -- what holds for every partition --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(("n", "clients"), [(60_000, 100), (10_007, 20), (997, 11), (400, 1)])
def test_division(name: str, n: int, clients: int) -> None:
    """Sorted, disjoint, nothing lost, nobody empty; equal sizes where stated."""
    labels = np.random.default_rng(n).integers(0, 10, n)
    options = {"share": 0.2} if (name, clients) == ("dominant", 1) else {}  # one client has no classes of its own
    parts = PARTITIONS[name](labels, clients, key(0), **options)
    assert len(parts) == clients
    assert all(part.dtype == np.int64 and len(part) and (np.diff(part) > 0).all() for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    sizes = [len(part) for part in parts]
    if name in EVEN and name != "shards":
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", OURS)
def test_same_seed_same_division(name: str) -> None:
    labels = shuffled(MNIST)
    before = labels.copy()
    a, b, other = (PARTITIONS[name](labels, 50, key(seed)) for seed in (1, 1, 2))
    assert np.array_equal(labels, before)
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert not all(np.array_equal(x, y) for x, y in zip(a, other, strict=True))


@pytest.mark.parametrize("name", OURS)
def test_label_values_do_not_matter(name: str) -> None:
    """Labels with gaps give the division that labels 0 .. C-1 give."""
    labels = shuffled(CIFAR)
    plain, gaps = (PARTITIONS[name](y, 20, key(3)) for y in (labels, 7 * labels + 100))
    assert all(np.array_equal(x, y) for x, y in zip(plain, gaps, strict=True))


@pytest.mark.parametrize("name", EVEN)
def test_a_thousand_clients_in_a_second(name: str) -> None:
    labels = shuffled(MNIST)
    start = time.perf_counter()
    parts = PARTITIONS[name](labels, 1000, key(0))
    assert time.perf_counter() - start < 1
    assert [len(part) for part in parts] == [60] * 1000


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("target", ["numbers", "labels", "one number"])
def test_targets_that_are_no_classes(name: str, target: str) -> None:
    """Partitions of sizes alone divide regression and multi-label data; the others say which do."""
    y = np.random.default_rng(0).random(100 if target == "one number" else (100, 3)).astype(np.float32)
    if name in LABEL_FREE:
        plain = PARTITIONS[name](np.zeros(100, np.int64), 5, key(0))
        assert all(np.array_equal(a, b) for a, b in zip(PARTITIONS[name](y, 5, key(0)), plain, strict=True))
    else:
        with pytest.raises(
            UserError,
            match=rf"^partition '{name}' [^\n]* float32 [^\n]*use iid, power_law, quantity, flwr_datasets or n",
        ):
            PARTITIONS[name](y, 5, key(0))


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("clients", [0, 11])
def test_too_many_or_no_clients(name: str, clients: int) -> None:
    with pytest.raises(UserError, match=rf"^cannot divide 10 samples over {clients} clients [^\n]* from 1 to 10$"):
        PARTITIONS[name](np.arange(10), clients, key(0))


@pytest.mark.parametrize("name", OURS)
def test_factory_convention(name: str) -> None:
    parameters = list(inspect.signature(PARTITIONS[name], eval_str=True).parameters.values())
    assert [p.name for p in parameters[:3]] == ["labels", "n_clients", "rng"]
    assert all(p.kind is p.POSITIONAL_ONLY for p in parameters[:3])
    for p in parameters[3:]:
        assert p.default is not p.empty
        fields = p.annotation.__metadata__
        assert any(field.description for field in fields)
        alternatives = [p.annotation, *get_args(p.annotation.__origin__)]  # a range, or that of a type that may be none
        assert any(field.metadata for one in alternatives for field in getattr(one, "__metadata__", ()))
    assert (PARTITIONS[name].__doc__ or "").splitlines()[0].endswith(".")


def test_counts() -> None:
    labels = np.array([2, 0, 2, 1, 0])
    table = counts(labels, [np.array([0, 2]), np.array([1, 3, 4])], 4)
    assert table.tolist() == [[0, 0, 2, 0], [2, 1, 0, 0]]
    assert table.dtype == np.int64


# -- each partition ------------------------------------------------------------------------------------------------


def test_iid_is_a_uniform_division() -> None:
    """Chi-square of the table of clients by classes: mean (N-1)(C-1), standard deviation sqrt(2 mean)."""
    labels = shuffled(MNIST)
    free = 99 * 9
    for seed in range(3):
        table = counts(labels, iid(labels, 100, key(seed)), 10)
        expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
        chi2 = ((table - expected) ** 2 / expected).sum()
        assert abs(chi2 - free) < 4 * np.sqrt(2 * free)


@pytest.mark.parametrize(("clients", "size"), [(100, 300), (200, 150), (500, 60), (1000, 30)])
def test_shards_sizes_of_fedadmm(clients: int, size: int) -> None:
    """MNIST in 2N shards: the paper's sizes, each client at most two runs of the label-sorted samples."""
    labels = shuffled(MNIST)
    parts = shards(labels, clients, key(0))
    place = np.empty(len(labels), np.int64)
    place[np.argsort(labels, kind="stable")] = np.arange(len(labels))
    for part in parts:
        shard = np.sort(place[part]) // size
        assert len(part) == 2 * size
        assert sorted(Counter(shard.tolist()).values()) in ([size, size], [2 * size])


def test_shards_are_dealt_at_random() -> None:
    """Two of a client's shards have the same label about as often as chance says: 19/199 with 20 shards a label."""
    same = np.mean([(counts(CIFAR, shards(CIFAR, 100, key(s)), 10) > 0).sum(axis=1) == 1 for s in range(20)])
    assert same == pytest.approx(19 / 199, abs=0.03)
    assert (counts(CIFAR, shards(CIFAR, 100, key(0), k=1), 10) > 0).sum(axis=1).tolist() == [1] * 100


def test_shards_refuses() -> None:
    with pytest.raises(UserError, match=r"^partition 'shards' [^\n]* k = 6 and 10 samples[^\n]*$"):
        shards(np.arange(10), 2, key(0), k=6)
    with pytest.raises(UserError, match="k = 0"):
        shards(np.arange(10), 2, key(0), k=0)


def dirichlet_sample_by_sample(
    y: np.ndarray, clients: int, rng: np.random.Generator, alpha: float
) -> tuple[tuple[int, ...], ...]:
    """FedDyn's loop (utils_dataset.py), for labels 0 .. C-1; the table of clients by classes."""
    left = np.bincount(y).tolist()
    room = [len(y) // clients + (i < len(y) % clients) for i in range(clients)]
    prior = rng.dirichlet([alpha] * len(left), size=clients).tolist()
    table = [[0] * len(left) for _ in range(clients)]
    while sum(room):
        i = int(rng.integers(clients))
        if not room[i]:
            continue
        room[i] -= 1
        # Drawing until an available class comes up, which may take for ever, is a draw from those available.
        weight = [prior[i][c] * (left[c] > 0) for c in range(len(left))]
        u, c = rng.random() * sum(weight), 0
        while u >= weight[c]:
            u -= weight[c]
            c += 1
        left[c] -= 1
        table[i][c] += 1
    return tuple(map(tuple, table))


@pytest.mark.parametrize("runs", [1500, pytest.param(40_000, marks=pytest.mark.slow)])
def test_dirichlet_has_the_law_of_the_loop(runs: int) -> None:
    """On a small case every division's frequency agrees with FedDyn's loop (chi-square of homogeneity).

    Few runs see a wrong prior or order of clients; classes closed in the wrong order take many.
    """
    y = np.repeat([0, 1, 2, 3], [1, 2, 4, 3])
    rng = np.random.default_rng(0)
    loop = Counter(dirichlet_sample_by_sample(y, 2, rng, 0.3) for _ in range(runs))
    ours = Counter(tuple(map(tuple, counts(y, dirichlet(y, 2, rng, 0.3), 4).tolist())) for _ in range(runs))
    tables = loop | ours
    assert len(tables) == 22  # every division that there is
    chi2 = sum((loop[t] - ours[t]) ** 2 / (loop[t] + ours[t]) for t in tables)
    assert chi2 < 46.8  # 0.1 % point at 21 degrees of freedom


def test_dirichlet_picks_samples_of_a_class_at_random() -> None:
    """Which samples of a class go together does not depend on their order, though late draws have other clients."""
    y, runs = np.repeat([0, 1], 6), 1500
    near = far = 0
    for seed in range(runs):
        held = np.isin([0, 1, 5], dirichlet(y, 2, key(seed), 0.2)[0])
        near += held[0] == held[1]
        far += held[0] == held[2]
    assert abs(near - far) < 4 * np.sqrt(runs / 2)


@pytest.mark.parametrize(("alpha", "published"), [(0.1, 2.36), (0.3, 3.44), (0.6, 4.50), (1.0, 5.21)])
def test_dirichlet_classes_covering_80_percent(alpha: float, published: float) -> None:
    """algorithms.md 7.4: N = 100, without replacement. One division scatters by about 0.1."""
    tables = [counts(CIFAR, dirichlet(CIFAR, 100, key(seed), alpha), 10) for seed in range(10)]
    assert np.mean([classes_covering(table, 0.8) for table in tables]) == pytest.approx(published, abs=0.15)


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_unbalanced"])
def test_entropy_grows_with_alpha(name: str) -> None:
    found = [entropy(counts(MNIST, PARTITIONS[name](MNIST, 30, key(0), alpha), 10)) for alpha in (0.05, 0.2, 1, 5, 100)]
    assert all(a < b - 0.02 for a, b in pairwise(found))
    assert np.log(10) - found[-1] < 0.05


@pytest.mark.parametrize("alpha", [1e-300, 1e-8, 1e-3, 1e8])
def test_dirichlet_extreme_alpha(alpha: float) -> None:
    parts = dirichlet(CIFAR, 30, key(0), alpha)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(50_000))


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_unbalanced"])
def test_dirichlet_refuses(name: str, alpha: float) -> None:
    with pytest.raises(UserError, match=rf"^partition '{name}' needs a finite alpha > 0, given alpha = [^\n]*$"):
        PARTITIONS[name](CIFAR, 10, key(0), alpha)


def test_unbalanced_gives_fednovas_split() -> None:
    """The sixteen sizes of FedNova's Table I, from numpy's legacy seed 2020 (algorithms.md 2.5)."""
    sizes = [298, 1077, 4862, 1743, 3713, 3867, 1600, 3271, 3825, 6520, 4596, 1270, 3437, 4750, 248, 4923]
    parts = split_by_proportions(shuffled(CIFAR), 16, np.random.RandomState(2020), 0.1, 10)
    assert [len(part) for part in parts] == sizes


def test_unbalanced_redraws_until_everyone_has_enough() -> None:
    def smallest(least: int) -> list[int]:
        return [min(map(len, dirichlet_unbalanced(CIFAR, 20, key(s), 0.1, least))) for s in range(8)]

    assert min(smallest(1)) < 300 <= min(smallest(300))


def test_unbalanced_refuses() -> None:
    with pytest.raises(
        UserError, match=r"^partition 'dirichlet_unbalanced' [^\n]* 100 / 20 = 5, given min_samples = 6"
    ):
        dirichlet_unbalanced(CIFAR[:100], 20, key(0), min_samples=6)
    with pytest.raises(UserError, match=r"alpha = 0.01 found no division of 500 samples over 40 clients [^\n]*$"):
        dirichlet_unbalanced(CIFAR[::100], 40, key(0), alpha=0.01)


@pytest.mark.parametrize(("share", "classes", "clients"), [(0.8, 2, 100), (0.8, 2, 1000), (0.5, 3, 40), (0.9, 1, 60)])
def test_dominant_share(share: float, classes: int, clients: int) -> None:
    """Every client has its share from its `classes` largest classes, to which the rest adds its part of (1 - share)."""
    labels = shuffled(MNIST)
    table = counts(labels, dominant(labels, clients, key(0), share, classes), 10)
    size = table.sum(axis=1)
    own = -np.sort(-table, axis=1)[:, :classes].sum(axis=1) / size
    assert (own >= np.rint(share * size) / size).all()
    by_chance = (1 - share) * classes / 10
    assert own.mean() == pytest.approx(share + by_chance, abs=0.035)
    assert set(np.argsort(-table, axis=1)[:, :classes].ravel()) == set(range(10))


def test_dominant_rest_is_from_all_classes() -> None:
    """A class that is not a client's own comes with (1 - share) of that class's proportion, on average."""
    table = counts(MNIST, dominant(MNIST, 50, key(0), 0.8, 2), 10)
    others = np.sort(table, axis=1)[:, :8] / table.sum(axis=1, keepdims=True)
    assert others.max() < 0.1  # dealt unshuffled, a client's rest would be one class: 0.2
    assert others.mean() == pytest.approx(0.02, abs=0.004)


def test_dominant_own_classes_vary() -> None:
    """Pairs of own classes spread over the 45 that there are."""
    table = counts(CIFAR, dominant(CIFAR, 300, key(0)), 10)
    pairs = Counter(tuple(sorted(row)) for row in np.argsort(-table, axis=1)[:, :2].tolist())
    assert len(pairs) >= 40
    assert max(pairs.values()) < 25


def test_dominant_refuses() -> None:
    with pytest.raises(UserError, match=r"^partition 'dominant' cannot give each of 3 clients 13334 samples [^\n]*$"):
        dominant(CIFAR, 3, key(0))
    for wrong in ({"classes": 11}, {"classes": 0}, {"share": 1.5}, {"share": 0.0}):
        with pytest.raises(
            UserError, match=r"^partition 'dominant' needs 0 < share <= 1 and classes from 1 to the 10 "
        ):
            dominant(CIFAR, 30, key(0), **wrong)


@pytest.mark.parametrize(("samples", "mean", "stdev"), [(60_000, 300, 171.03), (50_000, 250, 142.52)])
def test_groups_sizes_of_fedadmm(samples: int, mean: float, stdev: float) -> None:
    """Table VI of FedADMM: FMNIST and CIFAR-10 over 200 clients; the sample standard deviation."""
    labels = shuffled(np.repeat(np.arange(10), samples // 10))
    parts = groups(labels, 200, key(0))
    sizes = np.array([len(part) for part in parts])
    assert sizes.sum() == samples
    assert sizes.mean() == mean
    assert sizes.std(ddof=1) == pytest.approx(stdev, abs=0.01)  # printed truncated: 142.527
    a_shard = samples // 10_000
    assert sizes.tolist() == [a_shard * g for g in (*range(1, 100), 50) for _ in range(2)]
    # whole shards of the sorted samples, dealt at random: a shard has one label, and client 197's 99 shards have all
    place = np.empty(samples, np.int64)
    place[np.argsort(labels, kind="stable")] = np.arange(samples)
    for part in (parts[0], parts[9], parts[197]):
        assert set(Counter((place[part] // a_shard).tolist()).values()) == {a_shard}
    assert (counts(labels, parts, 10)[197] > 0).all()


def test_groups_of_odd_clients_and_their_refusal() -> None:
    sizes = [len(part) for part in groups(np.zeros(900, np.int64), 5, key(0), cuts=90)]
    assert sizes == [10, 10, 20, 20, 840]
    for cuts in (6, 901):
        with pytest.raises(
            UserError, match=rf"^partition 'groups' needs from 7 shards for 5 clients [^\n]* {cuts}, so"
        ):
            groups(np.zeros(900, np.int64), 5, key(0), cuts=cuts)


def test_sorted_fraction_ends() -> None:
    """c = 1: client i has the i-th block of the sorted samples; c = 0: chi-square as a uniform division."""
    labels = shuffled(CIFAR)
    table = counts(labels, sorted_fraction(labels, 100, key(0), 1.0), 10)
    assert np.array_equal(table, np.repeat(500 * np.eye(10, dtype=int), 10, axis=0))
    free, table = 99 * 9, counts(labels, sorted_fraction(labels, 100, key(0), 0.0), 10)
    assert abs(((table - 50) ** 2 / 50).sum() - free) < 4 * np.sqrt(2 * free)


@pytest.mark.parametrize("c", [0.25, 0.5, 0.8])
def test_sorted_fraction_mixture(c: float) -> None:
    """Client i of 100 has c of its samples of class i // 10 or so, and the rest in the global proportions."""
    labels = shuffled(CIFAR)
    table = np.mean([counts(labels, sorted_fraction(labels, 100, key(s), c), 10) for s in range(4)], axis=0)
    own = table.reshape(10, 10, 10)[np.arange(10), :, np.arange(10)]
    assert own[:, 1:-1].mean() == pytest.approx(500 * c + 50 * (1 - c), rel=0.02)  # ends of a class meet its neighbour
    rest = 50 * (1 - c)
    far = np.array([table[i, (i // 10 + 5) % 10] for i in range(100)])
    assert far.mean() == pytest.approx(rest, rel=0.05)
    assert far.std() < 2 * np.sqrt(rest)  # shuffled: unshuffled, a client's rest would have few classes


def test_sorted_fraction_refuses() -> None:
    for c in (-0.1, 1.1, float("nan")):
        with pytest.raises(UserError, match=r"^partition 'sorted_fraction' needs c from 0 to 1, given c = "):
            sorted_fraction(CIFAR, 10, key(0), c)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_power_law_sizes(exponent: float) -> None:
    """The k-th largest of 200 clients: 5 samples and a share ~ k^-exponent of the others, exact to rounding."""
    sizes = np.array([len(part) for part in power_law(MNIST, 200, key(0), exponent, 5)])
    share = np.arange(1, 201) ** -exponent
    expected = 5 + (60_000 - 1000) * share / share.sum()
    assert sizes.sum() == 60_000
    assert np.abs(-np.sort(-sizes) - expected).max() < 1
    if exponent:
        assert sizes.argmax() != np.array([len(p) for p in power_law(MNIST, 200, key(1), exponent, 5)]).argmax()


def test_quantity_has_the_moments_of_a_dirichlet() -> None:
    """Shares q ~ Dir(0.5) over 20 clients: mean 1/20, variance (1/20)(19/20) / (20 x 0.5 + 1)."""
    labels = np.zeros(20_020, np.int64)
    q = np.array([[len(p) - 1 for p in quantity(labels, 20, key(s))] for s in range(300)]) / 20_000
    np.testing.assert_allclose(q.sum(axis=1), 1, rtol=1e-12)
    assert q.mean(axis=0) == pytest.approx(np.full(20, 0.05), abs=0.02)
    assert q.var() == pytest.approx(0.05 * 0.95 / 11, rel=0.1)


@pytest.mark.parametrize("name", ["power_law", "quantity"])
def test_size_partitions_ignore_labels_and_are_uniform_within(name: str) -> None:
    """Given the sizes, the table of clients by classes is that of a uniform division (chi-square)."""
    labels = shuffled(MNIST)
    table = counts(labels, PARTITIONS[name](labels, 50, key(2), min_samples=200), 10)
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    free = 49 * 9
    assert abs(((table - expected) ** 2 / expected).sum() - free) < 4 * np.sqrt(2 * free)
    assert table.sum(axis=1).min() >= 200


@pytest.mark.parametrize("name", ["power_law", "quantity"])
@pytest.mark.parametrize("least", [0, 6])
def test_size_partitions_refuse(name: str, least: int) -> None:
    with pytest.raises(UserError, match=rf"^partition '{name}' [^\n]* 100 / 20 = 5, given min_samples = {least}"):
        PARTITIONS[name](CIFAR[:100], 20, key(0), min_samples=least)


@pytest.mark.parametrize("alpha", [1e-300, 1e-8, 1e8])
def test_quantity_extreme_alpha(alpha: float) -> None:
    sizes = [len(part) for part in quantity(CIFAR, 100, key(0), alpha)]
    assert sum(sizes) == 50_000
    assert min(sizes) >= 1
    assert (max(sizes) > 49_000) == (alpha < 1)
