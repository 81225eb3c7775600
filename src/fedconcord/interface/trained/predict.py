"""Predictions of a run's model for a file or a folder of raw inputs: NPY, NPZ, images, and tables as CSV or Parquet."""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from fedconcord.federation.data.dataset import IGNORED
from fedconcord.federation.data.own import in_bytes
from fedconcord.federation.data.own import load as load_arrays
from fedconcord.federation.data.preprocess import Part, features
from fedconcord.interface.trained.program import DTYPE, load
from fedconcord.support import files
from fedconcord.support.errors import UserError, reason

BATCH = 1024
TOKENS = 4096  # at once; of 50,000 words 800 MB
IMAGES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"))
THRESHOLD = 0.5  # of a label that may hold with others
SHOWN = 3  # rows that a warning names


class Batch(NamedTuple):
    """Raw inputs that go through the model at once."""

    names: Sequence[object]  # [b] the number of a row, from 0, or the name of a file
    raw: np.ndarray  # [b, *shape]
    beside: Mapping[str, Sequence[str | None]] = MappingProxyType({})  # of a table: columns that are no inputs [b]
    unseen: Sequence[str] = ()  # of a table [b]: the row's texts that no training row had
    places: np.ndarray | None = None  # of tokens [b, L] bool: those that have a class to be told


def predict(
    run: str | Path,
    input: str | Path,
    out: str | Path = "predictions.csv",
    force: bool = False,
    *,
    threshold: float | None = None,
    model: object = None,
    client: str | None = None,
    trust: bool = False,
) -> Path:
    """Write what a run's model says of raw inputs, a line each, and return the file's path.

    A class: its name, and the probability of each class in a column `p_CLASS`. Numbers: one column each. Labels that
    may hold together: those with probability 0.5 or more, separated by semicolons, and a column `p_LABEL` each. Of a
    table the columns that are neither inputs nor labels, such as a patient's number, come first, and a last column
    `unseen` names texts that no training row had; the answer rests on the other columns then, and a warning says so.

    A class for each token is a line a token: its `position` in the row, itself, its class, and the probability `p` of
    it. Padding has no line, nor has what an array `y` beside `x` says to have no class (-100).

    Args:
        threshold: of two classes the second is said from this probability on, in place of the more probable one; of
            labels that may hold together those from it on, in place of 0.5.
        input: an .npy or .npz array [n, *shape], a .csv or .parquet table, or a folder of images.
        force: predict even with the model of a run that diverged, or with weights that are not finite.
        model: the model, where the run was given it as an object or by import path.
        client: whose, by name or number, where the run's answer is a model a client.
        trust: import the module that the folder names, which runs code of who made it.

    Raises:
        UserError: the folder holds no model or a lost one, the inputs are not what it takes, or `out` is there and
            holds something else than predictions.
    """
    trained = load(Path(run), force, model, client, trust)
    check_threshold(trained.card, threshold)
    batches = read(trained.card, Path(input))
    first = next(batches, None)
    if first is None:
        raise UserError(f"{input} holds nothing to predict")
    key = "file" if isinstance(first.names[0], str) else "row"
    unseen: list[str] = []

    def lines() -> Iterator[list[object]]:
        batch: Batch | None = first
        while batch is not None:
            with torch.no_grad():
                answers = trained.program(torch.from_numpy(np.array(batch.raw)).to(DTYPE[trained.card["inputs"]]))
            for k, (name, answer) in enumerate(zip(batch.names, answers.numpy(), strict=True)):
                beside = [column[k] for column in batch.beside.values()]
                last = batch.unseen[k : k + 1]
                unseen.extend(f"row {name}: {text}" for text in last if text)
                cells = (
                    [_cells(trained.card, answer, threshold)]
                    if batch.places is None
                    else _of_tokens(trained.card, batch.raw[k], answer, batch.places[k])
                )
                for mine in cells:
                    yield [name, *beside, *mine, *last]
            batch = next(batches, None)

    path = Path(out)
    ours = _header(trained.card)
    theirs = [f"{name} (input)" if name in (key, "unseen", *ours) else name for name in first.beside]
    if path.exists() and (path.samefile(input) or not _holds_predictions(path)):
        raise UserError(f"{path} is there and holds no predictions; give another file as out")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_csv(path, [key, *theirs, *ours, *(["unseen"] if first.unseen else [])], lines())
    if unseen:
        few = "; ".join(unseen[:SHOWN]) + ("; ..." if len(unseen) > SHOWN else "")
        warnings.warn(
            f"{len(unseen)} rows hold texts that no training row had, so their answers rest on the other columns "
            f"({few}); the column unseen of {path} names them",
            stacklevel=2,
        )
    return path


def _holds_predictions(path: Path) -> bool:
    """Whether the first column of a file is that of predictions."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(5).startswith((b"row,", b"file,"))


def check_threshold(card: Mapping[str, Any], threshold: float | None) -> None:
    """Refuse a threshold that means nothing.

    Raises:
        UserError: it is no probability, or the model's answers have no threshold.
    """
    if threshold is None:
        return
    if not 0 < threshold < 1:
        raise UserError(f"the threshold must be a probability between 0 and 1, given {threshold:g}")
    if card["target"] != "labels" and (card["target"], card["outputs"]) != ("class", 2):
        others = {"number": "numbers", "tokens": "a class for each token"}
        what = others.get(card["target"], f"one of {card['outputs']} classes")
        raise UserError(
            f"a threshold is for two classes or for labels that may hold together, and this model answers {what}; "
            "leave it out"
        )


def _outputs(card: Mapping[str, Any]) -> list[str]:
    """A name for every output."""
    names = card["output_names"]
    if names is not None:
        return [str(name) for name in names]
    if card["target"] == "number":
        return ["value"] if card["outputs"] == 1 else [f"value_{k}" for k in range(card["outputs"])]
    return [str(k) for k in range(card["outputs"])]


def _header(card: Mapping[str, Any]) -> list[str]:
    if card["target"] == "number":
        return _outputs(card)
    if card["target"] == "tokens":
        return ["position", "token", "label", "p"]
    return ["label" if card["target"] == "class" else "labels", *(f"p_{name}" for name in _outputs(card))]


def _cells(card: Mapping[str, Any], answer: np.ndarray, threshold: float | None) -> list[object]:
    if card["target"] == "number":
        return list(answer)
    if card["target"] == "class":
        best = int(answer.argmax()) if threshold is None else int(answer[1] >= threshold)
        return [_outputs(card)[best], *answer]
    least = THRESHOLD if threshold is None else threshold
    return [";".join(name for name, p in zip(_outputs(card), answer, strict=True) if p >= least), *answer]


def _of_tokens(
    card: Mapping[str, Any], row: np.ndarray, answer: np.ndarray, places: np.ndarray
) -> Iterator[list[object]]:
    """Where, which and what each token is of a row [L] with probabilities [L, classes or more]."""
    names, classes = _outputs(card), answer.argmax(-1)
    for t in np.flatnonzero(places):
        best = int(classes[t])
        yield [t, row[t], names[best] if best < len(names) else best, answer[t, best]]  # a vocabulary has more


# -- inputs --------------------------------------------------------------------------------------------------------


def read(card: Mapping[str, Any], path: Path) -> Iterator[Batch]:
    """The raw inputs of a file or folder, in batches.

    Raises:
        UserError: when a batch is asked for that is not what the model takes.
    """
    if not path.exists():
        raise UserError(f"there is no file or folder {path}")
    if (card["preprocessing"] or {}).get("kind") == "table" and path.suffix.lower() not in (".npy", ".npz"):
        return _numbered(features(path, card["preprocessing"]))
    if path.is_dir():
        return _images(card, path)
    kind = path.suffix.lower()
    if kind in IMAGES:
        return _images(card, path)
    if card["target"] == "tokens" and kind in (".npy", ".npz"):
        return _rows(card, _shaped(card, _array(path), path), path)
    if kind in (".npy", ".npz"):
        return _cut(_shaped(card, _array(path), path))
    if kind in (".csv", ".parquet"):
        return _cut(_shaped(card, _table(card, path), path))
    raise UserError(f"{path} is none of .npy, .npz, .csv, .parquet, an image or a folder of images; convert it")


def _rows(card: Mapping[str, Any], array: np.ndarray, path: Path) -> Iterator[Batch]:
    """Rows of tokens [n, L] a few at a time, as there is a probability for each token and class."""
    classes = load_arrays(path).get("y") if path.suffix.lower() == ".npz" else None
    if classes is not None and classes.shape != array.shape:
        raise UserError(
            f"{path}: y has shape {classes.shape}, and x has {array.shape}; give a class for each token, or leave y out"
        )
    a = 0
    for batch in _cut(array, size=max(1, TOKENS // array.shape[1])):
        places = np.ones(batch.raw.shape, bool) if card.get("pad") is None else batch.raw != card["pad"]
        if classes is not None:
            places &= classes[a : a + len(places)] != IGNORED
        a += len(places)
        yield batch._replace(places=places)


def _cut(array: np.ndarray, first: int = 0, size: int = BATCH) -> Iterator[Batch]:
    """Its rows [n, *shape] a few at a time; the first of them has this number."""
    for a in range(first, first + len(array), size):
        part = array[a - first : a - first + size]
        bad = ~np.isfinite(np.asarray(part, np.float64)).reshape(len(part), -1).all(1)
        if bad.any():
            raise UserError(f"row {a + int(bad.argmax())} holds NaN or infinite values; drop or fill them")
        yield Batch(range(a, a + len(part)), part)


def _numbered(parts: Iterator[Part]) -> Iterator[Batch]:
    """Parts of a table a few rows at a time."""
    row = 0
    for part in parts:
        a = 0
        for batch in _cut(part.x, row):
            b = a + len(batch.raw)
            beside = {name: column[a:b] for name, column in part.beside.items()}
            yield batch._replace(beside=beside, unseen=part.unseen[a:b])
            a = b
        row += len(part.x)


def _shaped(card: Mapping[str, Any], array: np.ndarray, path: Path) -> np.ndarray:
    """[n, *shape] of an array that has that shape, lacks the one channel, or is flat."""
    shape = tuple(card["shape"])
    if array.dtype.kind not in "biuf":
        raise UserError(f"{path} holds {array.dtype}, and the model takes numbers")
    if card["inputs"] == "symbols" and array.dtype.kind not in "biu":
        raise UserError(f"{path} holds {array.dtype}, and the model takes symbols, whole numbers; convert it")
    sample_shape = array.shape[1:]
    if array.ndim >= 1 and sample_shape in (shape, shape[1:] if shape[:1] == (1,) else shape, (math.prod(shape),)):
        return array.reshape(len(array), *shape)
    expected = ", ".join(map(str, ("n", *shape)))
    raise UserError(f"{path} has shape {array.shape}, and the model takes [{expected}]; reshape it")


def _array(path: Path) -> np.ndarray:
    try:
        if path.suffix.lower() == ".npy":
            return np.lib.format.open_memmap(path, mode="r")
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as archive:  # which leaves a broken one open
            names = archive.files
            name = "x" if "x" in names else names[0] if len(names) == 1 else None
            if name is None:
                raise UserError(f"{path} holds the arrays {', '.join(names)}; name the inputs x")
            return archive[name]  # type: ignore[no-any-return]
    except UserError:
        raise
    except Exception as broken:  # whatever zipfile, zlib and numpy make of damaged bytes
        raise UserError(f"cannot read {path}: {reason(broken) or type(broken).__name__}") from None


def _table(card: Mapping[str, Any], path: Path) -> np.ndarray:
    """The columns of a table of numbers; a header is skipped."""
    if path.suffix.lower() != ".csv":
        raise UserError(f"{path}: this run was not trained on a table; give its inputs as .npy, .npz, .csv or images")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as broken:
        raise UserError(f"cannot read {path} as CSV: {broken}") from None
    if rows and not all(_is_number(cell) for cell in rows[0]):
        rows = rows[1:]
    columns = math.prod(card["shape"])
    if rows and columns > 1 and rows[0] == [str(k) for k in range(columns)]:
        raise UserError(f"{path} begins with 0,1,...: leave that header out (pandas: header=False), or give it names")
    for i, row in enumerate(rows):
        if len(row) != columns:
            raise UserError(f"{path}: row {i} has {len(row)} columns, and the model takes {columns} numbers")
        wrong = next((cell for cell in row if not _is_number(cell)), None)
        if wrong is not None:
            raise UserError(f"{path}: row {i} holds {wrong!r}, which is no number; drop or fill it")
    return np.array(rows, np.float32).reshape(len(rows), columns)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _images(card: Mapping[str, Any], path: Path) -> Iterator[Batch]:
    """Image files by name, in grey or in colour as the model has channels, values 0 to 255.

    They are brought to the model's size where its training images were (`size` in its preprocessing), else refused.
    """
    from PIL import Image  # matplotlib needs it, so it is there

    shape = tuple(card["shape"])
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise UserError(f"{path}: the model takes samples of shape {shape}, which are no images; give an .npy or .csv")
    mode = {1: "L", 3: "RGB"}[shape[0]]
    resized = "size" in (card["preprocessing"] or {})
    paths = sorted(p for p in path.iterdir() if p.suffix.lower() in IMAGES) if path.is_dir() else [path]
    if not paths:
        raise UserError(f"{path} holds no image ({', '.join(sorted(IMAGES))})")
    for a in range(0, len(paths), BATCH):
        part = paths[a : a + BATCH]
        pixels = np.empty((len(part), *shape), np.float32)
        for row, file in zip(pixels, part, strict=True):
            whole = in_bytes((str(file), file), mode)
            if whole.size != (shape[2], shape[1]):
                if not resized:
                    size, expected = f"{whole.width}x{whole.height}", f"{shape[2]}x{shape[1]}"
                    raise UserError(f"the image {file} is {size} pixels, and the model takes {expected}; resize it")
                whole = whole.resize((shape[2], shape[1]), Image.Resampling.BILINEAR)
            row[:] = np.asarray(whole, np.float32).reshape(*shape[1:], -1).transpose(2, 0, 1)
        yield Batch([file.name for file in part], pixels)
