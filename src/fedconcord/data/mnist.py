"""MNIST (LeCun, Cortes, Burges 1998) from its published IDX files."""

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
from pydantic import Field

from fedconcord.data.dataset import Dataset
from fedconcord.data.folder import damaged, missing

PAGE = "https://yann.lecun.com/exdb/mnist/"
SPLITS = {"train": "train", "test": "t10k"}
MEAN, STD = 0.1307, 0.3081
COUNTS = {"train": 60_000, "t10k": 10_000}  # published samples
CONTENTS = {  # SHA-256 of the files unpacked: an archive may be packed anew, by a distribution for one
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
CLASSES = 10
PIECE = 2**20  # bytes
MAX_DEFLATE = 1032  # no gzip stream holds more than this many bytes per byte


def mnist(
    folder: Path,
    seed: int,
    /,
    pixels: Annotated[
        Literal["normal", "unit"],
        Field(description="normal: of mean 0 and deviation 1 over the training samples; unit: from 0 to 1"),
    ] = "normal",
) -> Dataset:
    """MNIST handwritten digits, 28x28 grey, 10 classes, 60,000 + 10,000 samples; four files in mnist/.

    Samples are [1, 28, 28], pixels divided by 255, then (x - 0.1307) / 0.3081 where they are normal. The files are read
    from folder/mnist, gzipped (name ending in .gz, as published) or not; `seed` is not used.

    Raises:
        UserError: a file is missing, truncated or not in the IDX format.
    """
    mean, std = {"normal": (MEAN, STD), "unit": (0.0, 1.0)}[pixels]
    return images("mnist", [folder / "mnist"], PAGE, CONTENTS, mean, std)


def images(
    name: str,
    places: Sequence[Path],
    page: str,
    contents: Mapping[str, str],
    mean: float,
    std: float,
    output_names: list[str] | None = None,
) -> Dataset:
    """The data set of MNIST's four files, in the first of some folders that has one of them: pixels divided by 255,
    then (x - mean) / std. Files with as many samples as the published ones must be those, by what they hold.

    Raises:
        UserError: a file is missing (to be had at `page`), truncated, not in the IDX format or not as published.
    """
    folder = next((place for place in places if any(_find(place, file) for file in contents)), places[0])
    names = list(contents)
    paths = {file: _find(folder, file) for file in names}
    absent = [f"{file}.gz" for file, path in paths.items() if path is None]
    if absent:
        raise missing(name, folder, [f"{file}.gz" for file in names], absent, page)
    found = {file: path for file, path in paths.items() if path is not None}
    train_x, train_y = _pair(found, "train", contents)
    test_x, test_y = _pair(found, "test", contents)
    scale = {"kind": "scale", "divide": 255.0, "mean": [mean], "std": [std]}
    return Dataset(name, train_x, train_y, test_x, test_y, CLASSES, output_names=output_names, preprocessing=scale)


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)


def check(path: Path, contents: Mapping[str, str]) -> None:
    """Refuse a file that is not as published.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
    name = path.name.removesuffix(".gz")
    _check(path, read_idx(path, 3 if "images" in name else 1), contents)


def _check(path: Path, array: np.ndarray, contents: Mapping[str, str]) -> None:
    name = path.name.removesuffix(".gz")
    found = hashlib.sha256(bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape))
    found.update(np.ascontiguousarray(array).data)
    if found.hexdigest() != contents[name]:
        raise damaged(path, f"it unpacks to SHA-256 {found.hexdigest()}, the published {name} is {contents[name]}")


def _pair(paths: Mapping[str, Path], split: str, contents: Mapping[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 1, 28, 28] uint8 and labels [n] of one split."""
    image_path = paths[f"{SPLITS[split]}-images-idx3-ubyte"]
    label_path = paths[f"{SPLITS[split]}-labels-idx1-ubyte"]
    pixels, labels = read_idx(image_path, 3), read_idx(label_path, 1)
    if pixels.shape[1:] != (28, 28):
        raise damaged(image_path, f"its images are {pixels.shape[1]}x{pixels.shape[2]}, the published are 28x28")
    if len(pixels) != len(labels):
        raise damaged(label_path, f"it has {len(labels)} labels for the {len(pixels)} images of {image_path.name}")
    if labels.max() >= CLASSES:
        raise damaged(label_path, f"it holds the label {labels.max()}, the published are 0 to 9")
    if len(pixels) == COUNTS[SPLITS[split]]:
        _check(image_path, pixels, contents)
        _check(label_path, labels, contents)
    return pixels[:, None], labels.astype(np.int64)


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
            held = 0  # read in pieces: in one, gzip would hold it twice
            while piece := file.read(min(PIECE, expected + 1 - held)):
                if held + len(piece) > expected:
                    raise damaged(path, f"its header says {expected} bytes of data and it has more")
                body[held : held + len(piece)] = np.frombuffer(piece, np.uint8)
                held += len(piece)
    except (EOFError, OSError, zlib.error) as error:
        raise damaged(path, str(error).rstrip(".") or type(error).__name__) from error
    if held < expected:
        raise damaged(path, f"its header says {expected} bytes of data and it has {held}")
    return body.reshape(sizes)
