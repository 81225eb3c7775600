"""Data sets of small images from their published binary files.

MNIST (LeCun, Cortes, Burges 1998) and Fashion-MNIST (Xiao, Rasul, Vollgraf 2017), IDX files; CIFAR-10 and CIFAR-100
(Krizhevsky 2009), whose pickled versions are never read.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from fedconcord.federation.data.dataset import Dataset, scaling
from fedconcord.federation.data.published import Download, Published, archived, damaged
from fedconcord.support.parameters import about

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
COUNTS = (60_000, 10_000)  # published samples, to train and to test
MEAN, STD = 0.1307, 0.3081  # of MNIST
CLASSES = 10
CLOTHES = [
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
]
PIECE = 2**20  # bytes
MAX_DEFLATE = 1032  # no gzip stream holds more than this many bytes per byte


def _published(
    name: str, page: str, bases: tuple[str, ...], sums: tuple[tuple[str, str], ...], system: Path | None = None
) -> Published:
    """The record of four IDX files.

    Args:
        sums: for each file in its order the MD5 of the download and the SHA-256 of what it unpacks to: an archive may
            be packed anew, by a distribution for one.
    """
    files = tuple(f"{file}.gz" for file in FILES)
    downloads = tuple(
        Download(tuple(f"{base}{file}" for base in bases), f"md5:{md5}", {f"{name}/{file}": ""})
        for file, (md5, _) in zip(files, sums, strict=True)
    )
    contents = {file: sha256 for file, (_, sha256) in zip(FILES, sums, strict=True)}
    return Published(name, page, name, files, downloads, contents, system)


MNIST = _published(
    "mnist",
    "https://yann.lecun.com/exdb/mnist/",
    ("https://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    (  # MD5 as in torchvision
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        ("d53e105ee54ea40749a09fcbcd1e9432", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        ("9fb629c4189551a2d022fa330f9573f3", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        ("ec29112dd5afa0611ce80d1b7f02629c", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
)
FMNIST = _published(
    "fmnist",
    "https://github.com/zalandoresearch/fashion-mnist",
    (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    (  # MD5 from the publisher's page
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        ("25c81989df183df01b3e8a0aad5dffbe", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        ("bef4ecab320f06d8554ea6380940ec79", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        ("bb300cfdad3c16e7a12a480ee83cd310", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    ),
    Path("/usr/share/datasets/fashion-mnist"),  # Debian's package dataset-fashion-mnist
)
SCALES = "scale of the pixels: normal, with mean 0 and deviation 1 over the training samples; unit, from 0 to 1"
Scaled = Annotated[Literal["normal", "unit"], about(SCALES)]
Coarse = Annotated[bool, about("whether labels are the 20 superclasses in place of the 100 classes")]


def mnist(folder: Path, seed: int, /, pixels: Scaled = "normal") -> Dataset:
    """MNIST handwritten digits, 28x28 grey, 10 classes, 60,000 + 10,000 samples; four files in mnist/.

    Samples are [1, 28, 28], pixels divided by 255, then (x - 0.1307) / 0.3081 where they are normal. The files are read
    from folder/mnist, gzipped (name ending in .gz, as published) or not; `seed` is not used.

    Raises:
        UserError: a file is missing, truncated, not in the IDX format or not as published.
    """
    mean, std = {"normal": (MEAN, STD), "unit": (0.0, 1.0)}[pixels]
    return _images(MNIST, folder, mean, std)


def fmnist(folder: Path, seed: int, /) -> Dataset:
    """Fashion-MNIST clothes, 28x28 grey, 10 classes, 60,000 + 10,000 samples; four files in fmnist/.

    Samples are [1, 28, 28], pixels divided by 255, then (x - 0.2860) / 0.3530. The files are read from folder/fmnist,
    gzipped (name ending in .gz, as published) or not; where no data folder is named and the user's own has none of
    them, from Debian's package dataset-fashion-mnist. `seed` is not used.

    Raises:
        UserError: a file is missing, truncated, not in the IDX format or not as published.
    """
    return _images(FMNIST, folder, 0.2860, 0.3530, CLOTHES)


def _images(
    published: Published, folder: Path, mean: float, std: float, output_names: list[str] | None = None
) -> Dataset:
    """Pixels divided by 255, then (x - mean) / std. Files with as many samples as the published ones must be those."""
    paths = published.paths(folder)
    train, test = (_pair(paths[k], paths[k + 1], COUNTS[k // 2], published.contents) for k in (0, 2))
    scale = scaling(255.0, [mean], [std])
    return Dataset(published.name, *train, *test, CLASSES, output_names=output_names, preprocessing=scale)


def _pair(image_path: Path, label_path: Path, count: int, contents: Mapping[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 1, 28, 28] uint8 and labels [n] of one split."""
    pixels, labels = read_idx(image_path, 3), read_idx(label_path, 1)
    if pixels.shape[1:] != (28, 28):
        raise damaged(image_path, f"its images are {pixels.shape[1]}x{pixels.shape[2]}, the published are 28x28")
    if len(pixels) != len(labels):
        raise damaged(label_path, f"it has {len(labels)} labels for the {len(pixels)} images of {image_path.name}")
    if labels.max() >= CLASSES:
        raise damaged(label_path, f"it holds the label {labels.max()}, the published are 0 to 9")
    if len(pixels) == count:
        check(image_path, contents, pixels)
        check(label_path, contents, labels)
    return pixels[:, None], labels.astype(np.int64)


def check(path: Path, contents: Mapping[str, str], array: np.ndarray | None = None) -> None:
    """Refuse a file, or what was read of it, that is not as published.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
    if array is None:
        array = read_idx(path, 3 if "images" in path.name else 1)
    name = path.name.removesuffix(".gz")
    digest = hashlib.sha256(bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape))
    digest.update(np.ascontiguousarray(array).data)
    if digest.hexdigest() != contents[name]:
        raise damaged(path, f"it unpacks to SHA-256 {digest.hexdigest()}, the published {name} is {contents[name]}")


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """The uint8 array with `ndim` dimensions of one IDX file, gzipped if its name ends in .gz.

    Layout: bytes 0, 0, 8 (unsigned byte), ndim; ndim sizes as big-endian uint32; then the data in C order.

    Raises:
        UserError: the file is not gzip, not IDX of this kind, empty, truncated or too long.
    """
    gzipped = path.suffix == ".gz"
    header = 4 + 4 * ndim
    try:
        with gzip.open(path) if gzipped else path.open("rb") as file:
            head = file.read(header)
            if head[:4] != bytes((0, 0, 8, ndim)):
                raise damaged(
                    path, f"it starts with bytes {head[:4].hex(' ')}, an IDX file of its kind with 00 00 08 {ndim:02x}"
                )
            if len(head) < header:
                raise damaged(path, "it ends inside its header")
            sizes = struct.unpack(f">{ndim}I", head[4:])
            expected = math.prod(sizes)
            if expected == 0:
                raise damaged(path, "its header says that it holds no sample")
            # Asking for what the file cannot hold would reserve what a damaged header says, up to terabytes.
            if expected > path.stat().st_size * (MAX_DEFLATE if gzipped else 1):
                raise damaged(path, f"its header says {expected} bytes, more than the file can hold")
            body = np.empty(expected, np.uint8)
            filled = 0  # read in pieces: in one, gzip would hold it twice
            while piece := file.read(min(PIECE, expected + 1 - filled)):
                if filled + len(piece) > expected:
                    raise damaged(path, f"its header says {expected} bytes of data and it has more")
                body[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
                filled += len(piece)
    except (EOFError, OSError, zlib.error) as error:
        raise damaged(path, str(error).rstrip(".") or type(error).__name__) from error
    if filled < expected:
        raise damaged(path, f"its header says {expected} bytes of data and it has {filled}")
    return body.reshape(sizes)


SHAPE = (3, 32, 32)
PHOTOGRAPHS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


CIFAR10 = archived(
    "cifar10",
    "https://www.cs.toronto.edu/~kriz/cifar.html (CIFAR-10 binary version)",  # which has the checksums
    "cifar-10-batches-bin",
    (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"),
    Download(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",), "md5:c32a1d4ab5d03f1284b67883e8d87530"),
)
CIFAR100 = archived(
    "cifar100",
    "https://www.cs.toronto.edu/~kriz/cifar.html (CIFAR-100 binary version)",
    "cifar-100-binary",
    ("train.bin", "test.bin"),
    Download(("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",), "md5:03b5dce01913d631647c71ecec9e9cb8"),
)


def cifar10(folder: Path, seed: int, /) -> Dataset:
    """CIFAR-10 photographs, 32x32 colour, 10 classes, 50,000 + 10,000 samples; six files in cifar-10-batches-bin/.

    Samples are [3, 32, 32], pixels divided by 255, then scaled a channel with mean (0.491, 0.482, 0.447) and standard
    deviation (0.247, 0.243, 0.262), as FedDyn and A-FedPD do. `seed` is not used.

    Raises:
        UserError: a file is missing or not as published.
    """
    paths = CIFAR10.paths(folder)
    last = {"label": 9}
    train_x, train = _rows(paths[:-1], 10_000, "CIFAR-10", last)
    test_x, test = _rows(paths[-1:], 10_000, "CIFAR-10", last)
    scale = scaling(255.0, [0.491, 0.482, 0.447], [0.247, 0.243, 0.262])
    return Dataset(
        "cifar10", train_x, train[:, 0], test_x, test[:, 0], 10, output_names=PHOTOGRAPHS, preprocessing=scale
    )


def cifar100(folder: Path, seed: int, /, coarse: Coarse = False) -> Dataset:
    """CIFAR-100 photographs, 32x32 colour, 100 classes, 50,000 + 10,000 samples; two files in cifar-100-binary/.

    Samples are [3, 32, 32], pixels divided by 255, then scaled a channel with mean (0.507, 0.487, 0.441) and standard
    deviation (0.267, 0.256, 0.276). Each row of a file is a coarse label, a fine label and three planes. `seed` is not
    used.

    Raises:
        UserError: a file is missing or not as published.
    """
    train_path, test_path = CIFAR100.paths(folder)
    last = {"coarse label": 19, "fine label": 99}
    train_x, train = _rows([train_path], 50_000, "CIFAR-100", last)
    test_x, test = _rows([test_path], 10_000, "CIFAR-100", last)
    kind, classes = (0, 20) if coarse else (1, 100)
    scale = scaling(255.0, [0.507, 0.487, 0.441], [0.267, 0.256, 0.276])
    return Dataset("cifar100", train_x, train[:, kind], test_x, test[:, kind], classes, preprocessing=scale)


def _rows(paths: Sequence[Path], rows: int, title: str, last: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Pixels [n, 3, 32, 32] and the labels [n, k] before them, of files of so many rows each.

    `last`: the last label of each kind, by the name of the kind; `title`: the data set's, for the sentence.
    """
    pixels = np.empty((len(paths), rows, *SHAPE), np.uint8)  # once, and without the labels between them
    labels = np.empty((len(paths), rows, len(last)), np.int64)
    for k, path in enumerate(paths):
        labels[k], pixels[k] = read_rows(path, rows, len(last))
        most = labels[k].max(axis=0).tolist()
        if any(a > b for a, b in zip(most, last.values(), strict=True)):
            largest = " and ".join(f"the {kind} {value}" for kind, value in zip(last, most, strict=True))
            raise damaged(path, f"it holds {largest}, {title}'s end at {' and '.join(map(str, last.values()))}")
    return pixels.reshape(-1, *SHAPE), labels.reshape(-1, len(last))


def read_rows(path: Path, rows: int, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels [rows, label_bytes] int64 and pixels [rows, 3, 32, 32] uint8 of a file in CIFAR's binary form.

    Raises:
        UserError: the file cannot be read or has another length.
    """
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise damaged(path, str(error)) from error
    row_bytes = label_bytes + math.prod(SHAPE)
    if data.size != rows * row_bytes:
        raise damaged(path, f"it has {data.size} bytes, the published file {rows * row_bytes}")
    table = data.reshape(rows, row_bytes)
    return table[:, :label_bytes].astype(np.int64), table[:, label_bytes:].reshape(rows, *SHAPE)
