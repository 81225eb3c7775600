from __future__ import annotations

import gzip
import importlib
import inspect
import struct
import sys
from pathlib import Path
from typing import Literal, get_origin

import numpy as np
import pytest

from fedconcord.federation.data import DATASETS
from fedconcord.federation.data.offline import digits, synthetic
from fedconcord.federation.data.pixels import cifar10, cifar100, fmnist, mnist, read_idx, read_rows
from fedconcord.federation.data.published import data_folder
from fedconcord.support.errors import UserError

SOMEWHERE = Path("/nonexistent")
ROWS, ROW_BYTES = 10_000, 1 + 3 * 32 * 32  # of a file of CIFAR-10


def idx(array: np.ndarray, magic: bytes | None = None) -> bytes:
    head = magic or bytes((0, 0, 8, array.ndim))
    return head + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def small_mnist(tmp_path: Path) -> Path:
    """Four valid IDX files of 5 + 3 samples, two gzipped and two not."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split, n in (("train", 5), ("t10k", 3)):
        images = rng.integers(0, 256, (n, 28, 28))
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(idx(np.arange(n)))
    return tmp_path


def sentence(error: pytest.ExceptionInfo[UserError], *parts: str) -> None:
    """The error is one line that holds every part."""
    text = str(error.value)
    assert "\n" not in text
    assert not text.endswith(".")
    for part in parts:
        assert part in text


# -- the folder ----------------------------------------------------------------------------------------------------


def test_folder_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("FEDCONCORD_DATA", "/from/env")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_folder("/given") == Path("/given")
    assert data_folder("~/given") == Path("/home/me/given")
    assert data_folder(None) == Path("/from/env")
    monkeypatch.setenv("FEDCONCORD_DATA", "")
    assert data_folder(None) == Path("/cache/fedconcord/data")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folder(None) == Path("/home/me/.cache/fedconcord/data")


@pytest.mark.parametrize("name", DATASETS)
def test_factory_convention(name: str) -> None:
    """(folder, seed, /) first; every other parameter has a default, a range and a meaning; a one-line summary."""
    factory = DATASETS[name]
    parameters = list(inspect.signature(factory, eval_str=True).parameters.values())
    assert [p.name for p in parameters[:2]] == ["folder", "seed"]
    assert all(p.kind is p.POSITIONAL_ONLY for p in parameters[:2])
    for p in parameters[2:]:
        assert p.default is not p.empty
        fields = p.annotation.__metadata__
        assert any(field.description for field in fields)
        range_is_type = p.annotation.__origin__ is bool or get_origin(p.annotation.__origin__) is Literal
        assert any(field.metadata for field in fields) or range_is_type
    assert (factory.__doc__ or "").splitlines()[0].endswith((".", "/."))


# -- digits --------------------------------------------------------------------------------------------------------


def test_digits() -> None:
    data = digits(SOMEWHERE, 3)
    assert (data.train_x.shape, data.test_x.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert (data.train_x.dtype, data.train_y.dtype) == (np.float32, np.int64)
    assert (data.train_x.min(), data.train_x.max()) == (0.0, 1.0)
    assert data.shape == (1, 8, 8)
    assert set(data.train_y) == set(data.test_y) == set(range(10))
    assert data.natural is None


def test_digits_are_read_without_importing_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("fedconcord.federation.data.offline")
    with monkeypatch.context() as patch:
        patch.setattr(module, "find_spec", lambda name: None)  # a version that keeps the file elsewhere
        imported = digits(SOMEWHERE, 0)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    found = digits(SOMEWHERE, 0)
    for name in ("train_x", "train_y", "test_x", "test_y"):
        one, two = getattr(found, name), getattr(imported, name)
        assert one.dtype == two.dtype
        assert np.array_equal(one, two)


def test_digits_split_is_a_split_and_the_same_for_every_seed() -> None:
    from sklearn.datasets import load_digits

    one, two = digits(SOMEWHERE, 0), digits(SOMEWHERE, 1)
    assert np.array_equal(one.train_x, two.train_x)
    assert np.array_equal(one.test_y, two.test_y)
    bunch = load_digits()

    def rows(x: np.ndarray, y: np.ndarray) -> list[bytes]:
        return sorted(
            np.concatenate([16 * x.reshape(len(x), -1), y[:, None]], axis=1).astype(np.uint8).view("S65").ravel()
        )

    both = rows(np.concatenate([one.train_x, one.test_x]), np.concatenate([one.train_y, one.test_y]))
    assert both == rows(bunch.data / 16, bunch.target)
    assert not np.array_equal(one.train_y, bunch.target[:1437])  # shuffled


# -- MNIST ---------------------------------------------------------------------------------------------------------


def test_mnist_as_published(data_dir: Path) -> None:
    data = mnist(data_dir, 0).scaled()
    assert (data.train_x.shape, data.test_x.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert (data.train_x.dtype, data.train_y.dtype) == (np.float32, np.int64)
    # MNIST's known label counts, and the mean and deviation it is scaled by.
    assert np.bincount(data.train_y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.train_y[:5].tolist() == [5, 0, 4, 1, 9]
    assert abs(data.train_x.mean(dtype=np.float64)) < 1e-3
    assert abs(data.train_x.std(dtype=np.float64) - 1) < 1e-3


def test_mnist_reads_gzipped_and_plain_and_scales(small_mnist: Path) -> None:
    data = mnist(small_mnist, 0)
    assert data.train_x.dtype == data.test_x.dtype == np.uint8
    data = data.scaled()
    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28))
    np.testing.assert_allclose(data.train_x[:, 0], (pixels / 255 - 0.1307) / 0.3081, rtol=1e-5, atol=1e-6)
    assert data.train_y.tolist() == [0, 1, 2, 3, 4]
    assert data.test_x.shape == (3, 1, 28, 28)


def test_mnist_from_zero_to_one(small_mnist: Path) -> None:
    unit, normal = (mnist(small_mnist, 0, pixels=pixels) for pixels in ("unit", "normal"))
    assert np.allclose(unit.scaled().test_x, unit.test_x / 255, atol=1e-7)
    assert np.allclose(normal.scaled().test_x, (normal.test_x / 255 - 0.1307) / 0.3081, atol=1e-5)
    assert mnist(small_mnist, 0).preprocessing == normal.preprocessing


def test_mnist_missing(tmp_path: Path, small_mnist: Path) -> None:
    with pytest.raises(UserError) as error:
        mnist(tmp_path / "none", 0)
    names = [f"{s}-{p}-ubyte.gz" for s in ("train", "t10k") for p in ("images-idx3", "labels-idx1")]
    sentence(
        error, str(tmp_path / "none" / "mnist"), *names, "--data-dir", "FEDCONCORD_DATA", "https://", "none of them"
    )
    (small_mnist / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError) as error:
        mnist(small_mnist, 0)
    sentence(error, "missing: t10k-labels-idx1-ubyte.gz)")


IMAGES = np.zeros((4, 28, 28), np.uint8)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (idx(IMAGES)[:-1], "3136 bytes of data and it has 3135"),
        (idx(IMAGES) + b"x", "has more"),
        (idx(IMAGES)[:10], "inside its header"),
        (b"", "starts with bytes"),
        (idx(IMAGES, magic=bytes((0, 0, 8, 1))), "starts with bytes 00 00 08 01"),
        (idx(IMAGES, magic=bytes((0, 0, 13, 3))), "starts with bytes 00 00 0d 03"),
        (idx(IMAGES[:0]), "no sample"),
        (bytes((0, 0, 8, 3)) + b"\xff" * 12, "more than the file can hold"),
    ],
)
@pytest.mark.parametrize("gzipped", [True, False])
def test_idx_damaged(tmp_path: Path, content: bytes, says: str, gzipped: bool) -> None:
    path = tmp_path / ("images.gz" if gzipped else "images")
    path.write_bytes(gzip.compress(content) if gzipped else content)
    if not gzipped and content == idx(IMAGES)[:-1]:
        says = "3136 bytes"  # plain files show their length before they are read
    with pytest.raises(UserError) as error:
        read_idx(path, 3)
    sentence(error, str(path), says)


@pytest.mark.parametrize("damage", ["not gzip", "cut", "flipped"])
def test_gzip_damaged(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "images.gz"
    good = gzip.compress(idx(np.random.default_rng(0).integers(0, 256, (4, 28, 28))))
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 0xFF
    path.write_bytes(
        {"not gzip": b"<html>404</html>", "cut": good[: len(good) // 2], "flipped": bytes(flipped)}[damage]
    )
    with pytest.raises(UserError) as error:
        read_idx(path, 3)
    sentence(error, str(path))


def test_mnist_inconsistent(small_mnist: Path) -> None:
    labels = small_mnist / "mnist" / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.arange(4)))
    with pytest.raises(UserError) as error:
        mnist(small_mnist, 0)
    sentence(error, str(labels), "4 labels for the 5 images")
    labels.write_bytes(idx(np.array([0, 1, 2, 3, 10])))
    with pytest.raises(UserError) as error:
        mnist(small_mnist, 0)
    sentence(error, str(labels), "label 10")
    images = small_mnist / "mnist" / "train-images-idx3-ubyte.gz"
    images.write_bytes(gzip.compress(idx(np.zeros((5, 28, 27)))))
    with pytest.raises(UserError) as error:
        mnist(small_mnist, 0)
    sentence(error, str(images), "28x27")


# -- CIFAR-10 ------------------------------------------------------------------------------------------------------


def test_cifar10_as_published(data_dir: Path) -> None:
    if not (data_dir / "cifar-10-batches-bin").is_dir():
        pytest.skip(f"no cifar-10-batches-bin/ in {data_dir}")
    data = cifar10(data_dir, 0).scaled()
    assert (data.train_x.shape, data.test_x.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert (data.train_x.dtype, data.train_y.dtype) == (np.float32, np.int64)
    assert np.bincount(data.train_y).tolist() == [5000] * 10
    assert np.bincount(data.test_y).tolist() == [1000] * 10
    # The published mean and deviation of each channel, which wrong planes or a shifted row would miss.
    np.testing.assert_allclose(data.train_x[:10_000].mean((0, 2, 3), dtype=np.float64), 0, atol=0.02)
    np.testing.assert_allclose(data.train_x[:10_000].std((0, 2, 3), dtype=np.float64), 1, atol=0.02)
    # In photographs neighbours are alike; a wrong row length or order of axes loses this in one direction.
    x = data.train_x[:500]
    spread = x.var()
    assert np.square(np.diff(x, axis=2)).mean() < 0.3 * spread
    assert np.square(np.diff(x, axis=3)).mean() < 0.3 * spread


def cifar_file(path: Path, rows: list[bytes], size: int = ROWS * ROW_BYTES) -> Path:
    with path.open("wb") as file:
        file.write(b"".join(rows))
        file.truncate(size)  # the rest is zeros, and a hole on disk
    return path


def test_cifar10_layout(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32)).astype(np.uint8)
    y, x = read_rows(cifar_file(tmp_path / "b.bin", [b"\x07" + pixels.tobytes(), b"\x09"]), ROWS, 1)
    assert y[:3, 0].tolist() == [7, 9, 0]
    assert np.array_equal(x[0], pixels)
    assert x.shape == (10_000, 3, 32, 32)


def test_cifar10_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
        cifar_file(folder / name, [])
    path = folder / "data_batch_2.bin"
    for size in (ROWS * ROW_BYTES - 1, (ROWS - 1) * ROW_BYTES, ROWS * ROW_BYTES + 1, 0):
        cifar_file(path, [], size)
        with pytest.raises(UserError) as error:
            cifar10(tmp_path, 0)
        sentence(error, str(path), f"{size} bytes", "30730000")
    cifar_file(path, [b"\x0a"])
    with pytest.raises(UserError) as error:
        cifar10(tmp_path, 0)
    sentence(error, str(path), "label 10")


def test_cifar10_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        cifar10(tmp_path, 0)
    names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    sentence(error, str(tmp_path / "cifar-10-batches-bin"), *names, "--data-dir", "FEDCONCORD_DATA", "cs.toronto.edu")


# -- Fashion-MNIST and CIFAR-100 -----------------------------------------------------------------------------------


def test_fmnist_reads_its_own_folder_and_scales(small_mnist: Path) -> None:
    with pytest.raises(UserError) as error:
        fmnist(small_mnist, 0)
    sentence(error, str(small_mnist / "fmnist"), "data fetch fmnist", "zalandoresearch")
    (small_mnist / "mnist").rename(small_mnist / "fmnist")
    data = fmnist(small_mnist, 0).scaled()
    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28))
    np.testing.assert_allclose(data.train_x[:, 0], (pixels / 255 - 0.2860) / 0.3530, rtol=1e-5, atol=1e-6)
    assert (data.name, data.train_y.tolist()) == ("fmnist", [0, 1, 2, 3, 4])


def cifar100_folder(folder: Path, rows: list[bytes]) -> Path:
    (folder / "cifar-100-binary").mkdir()
    for name, n in (("train.bin", 50_000), ("test.bin", 10_000)):
        cifar_file(folder / "cifar-100-binary" / name, rows, n * 3074)
    return folder


def test_cifar100_layout(tmp_path: Path) -> None:
    """A row is a coarse label, a fine label and the planes of red, green and blue."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32)).astype(np.uint8)
    cifar100_folder(tmp_path, [b"\x13\x63" + pixels.tobytes(), b"\x04\x07"])
    for coarse, labels, classes in ((False, [99, 7, 0], 100), (True, [19, 4, 0], 20)):
        data = cifar100(tmp_path, 0, coarse).scaled()
        assert (data.train_x.shape, data.test_x.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
        assert (data.train_y[:3].tolist(), data.classes, data.train_y.dtype) == (labels, classes, np.int64)
        mean, std = (np.array(v)[:, None, None] for v in ([0.507, 0.487, 0.441], [0.267, 0.256, 0.276]))
        np.testing.assert_allclose(data.test_x[0], (pixels / 255 - mean) / std, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("row", [b"\x14\x00", b"\x00\x64"])
def test_cifar100_damaged(tmp_path: Path, row: bytes) -> None:
    with pytest.raises(UserError) as error:
        cifar100(cifar100_folder(tmp_path, [row]), 0)
    sentence(error, f"coarse label {row[0]} and the fine label {row[1]}", "19 and 99")
    path = tmp_path / "cifar-100-binary" / "test.bin"
    (tmp_path / "cifar-100-binary" / "train.bin").write_bytes(b"")
    with pytest.raises(UserError) as error:
        cifar100(tmp_path, 0)
    sentence(error, "0 bytes", "153700000")
    path.unlink()
    with pytest.raises(UserError) as error:
        cifar100(tmp_path, 0)
    sentence(error, "missing: test.bin", "data fetch cifar100", "cs.toronto.edu")


# -- Synthetic(alpha, beta) ----------------------------------------------------------------------------------------


def test_synthetic_shapes_and_natural_division() -> None:
    data = synthetic(SOMEWHERE, 0)
    assert data.natural is not None
    assert len(data.natural) == 30
    assert np.array_equal(np.concatenate(data.natural), np.arange(len(data.train_y)))
    sizes = np.array([len(part) for part in data.natural])
    assert sizes.min() >= 45  # 90 % of at least 50
    assert sizes.max() > 5 * sizes.min()
    assert len(data.test_y) / (len(data.test_y) + len(data.train_y)) == pytest.approx(0.1, abs=0.005)
    assert data.train_x.shape[1:] == (60,)
    assert (data.train_x.dtype, data.train_y.dtype) == (np.float32, np.int64)
    assert set(data.train_y) <= set(range(10))


def test_synthetic_is_keyed_by_seed_and_client() -> None:
    a, b, other = synthetic(SOMEWHERE, 1), synthetic(SOMEWHERE, 1), synthetic(SOMEWHERE, 2)
    assert np.array_equal(a.train_x, b.train_x)
    assert a.train_x.shape != other.train_x.shape
    few = synthetic(SOMEWHERE, 1, clients=4)
    assert a.natural is not None
    assert few.natural is not None
    assert np.array_equal(few.natural[3], a.natural[3])
    assert np.array_equal(few.train_x, a.train_x[: len(few.train_x)])
    assert not np.array_equal(a.train_x[a.natural[0][:45]], a.train_x[a.natural[1][:45]])


def test_synthetic_has_the_stated_law() -> None:
    """Sizes, covariance diag(j^-1.2), spread of means beta^2 + 1 about B, and labels linear in a client's features."""
    data = synthetic(SOMEWHERE, 0, clients=400)
    assert data.natural is not None
    sizes = np.array([len(part) for part in data.natural]) / 0.9 - 50
    logs = np.log(sizes[sizes > 3])  # lognormal(4, 2), whole numbers
    assert np.median(np.log(np.maximum(sizes, 1))) == pytest.approx(4, abs=0.35)
    assert logs.std() == pytest.approx(2, abs=0.35)

    big = [part for part in data.natural if len(part) > 200]
    variance = np.mean([data.train_x[part].var(axis=0, ddof=1) for part in big], axis=0)
    np.testing.assert_allclose(variance, np.arange(1, 61) ** -1.2, rtol=0.05)

    means = np.stack([data.train_x[part].mean(axis=0) for part in big])
    assert means.var(axis=1, ddof=1).mean() == pytest.approx(1, rel=0.05)  # v about B
    assert means.mean(axis=1).var(ddof=1) == pytest.approx(1 + 1 / 60, rel=0.3)  # B
    alike = synthetic(SOMEWHERE, 0, beta=0.0, clients=400)
    assert alike.natural is not None
    means = np.stack([alike.train_x[part].mean(axis=0) for part in alike.natural])
    assert means.mean(axis=1).var() < 0.1


def test_synthetic_options() -> None:
    for wrong in ({"alpha": -1.0}, {"beta": float("nan")}, {"clients": 0}):
        with pytest.raises(UserError) as error:
            synthetic(SOMEWHERE, 0, **wrong)
        sentence(error, *(f"{name} = {value}" for name, value in wrong.items()))
