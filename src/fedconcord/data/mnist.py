"""MNIST (LeCun, Cortes, Burges 1998) from its published IDX files."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedconcord.data.dataset import Dataset
from fedconcord.data.folder import damaged, missing

PAGE = "https://yann.lecun.com/exdb/mnist/"
SPLITS = {"train": "train", "test": "t10k"}
MEAN, STD = 0.1307, 0.3081
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
    return images("mnist", folder, PAGE, mean, std)


def images(
    name: str, folder: Path, page: str, mean: float, std: float, output_names: list[str] | None = None
) -> Dataset:
    """The data set of MNIST's four files in folder/name: pixels divided by 255, then (x - mean) / std.

    Raises:
        UserError: a file is missing (to be had at `page`), truncated or not in the IDX format.
    """
    folder = folder / name
    names = [f"{split}-{part}-ubyte" for split in SPLITS.values() for part in ("images-idx3", "labels-idx1")]
    paths = {file: _find(folder, file) for file in names}
    absent = [f"{file}.gz" for file, path in paths.items() if path is None]
    if absent:
        raise missing(name, folder, [f"{file}.gz" for file in names], absent, page)
    found = {file: path for file, path in paths.items() if path is not None}
    train_x, train_y = _pair(found, "train")
    test_x, test_y = _pair(found, "test")
    scale = {"kind": "scale", "divide": 255.0, "mean": [mean], "std": [std]}
    return Dataset(name, train_x, train_y, test_x, test_y, CLASSES, output_names=output_names, preprocessing=scale)


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)


def _pair(paths: dict[str, Path], split: str) -> tuple[np.ndarray, np.ndarray]:
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
