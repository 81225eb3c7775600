"""A federation from folders of images: class/image, or client/class/image; below train/ and test/ if there are both."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconcord.data.dataset import Dataset
from fedconcord.data.inputs import Input, natural_of, refuse_too_large, split
from fedconcord.errors import UserError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


class Look(NamedTuple):
    """How every image becomes an input."""

    channels: int  # 1 grey, 3 colour
    width: int
    height: int


class Listed(NamedTuple):
    """The images of a folder."""

    files: list[Path]
    classes: list[str]  # of each
    clients: list[str] | None  # of each, where folders say so


def read_folder(path: Path, given: Input) -> Dataset:
    """The federation of a folder of images: pixels divided by 255, [channels, height, width], grey where all are.

    All images have one size, or are brought to `input.image_size` squared. Clients are the outer folders of three levels.

    Raises:
        UserError: there are no images, one cannot be read, sizes differ, there is one class, or they do not fit.
    """
    test_at = Path(given.test).expanduser() if given.test else path / "test"
    inner = path / "train" if (path / "train").is_dir() and (path / "test").is_dir() and not given.test else path
    train = listed(inner)
    other = listed(test_at) if given.test or inner != path else None
    names = sorted(set(train.classes))
    if len(names) < 2:
        raise UserError(f"{inner} has images of one class only, {names[0]!r}; there is nothing to tell apart")
    new = sorted(set(other.classes) - set(names)) if other else []
    if new:
        raise UserError(f"{test_at} has the class {new[0]!r}, which the training images do not; map or drop it")
    every = [*train.files, *(other.files if other else [])]
    how = _look(every, given.image_size)
    need = 8 * len(every) * how.channels * how.width * how.height
    refuse_too_large(need, f"{path.name}, {len(every)} images of {how.width} x {how.height},", given.memory)
    x, y = pixels(train.files, how), np.array([names.index(name) for name in train.classes])
    clients = sorted(set(train.clients)) if train.clients else [""]
    owner = np.array([clients.index(name) for name in train.clients or [""] * len(y)])
    tested = np.zeros(len(y), bool) if other else split(owner, len(clients), given.test_share)
    return Dataset(
        path.name,
        x[~tested],
        y[~tested],
        pixels(other.files, how) if other else x[tested],
        np.array([names.index(name) for name in other.classes]) if other else y[tested],
        len(names),
        natural=natural_of(owner[~tested], len(clients), clients) if train.clients else None,
        client_names=clients if train.clients else None,
        output_names=names,
        preprocessing={
            "kind": "images",
            **how._asdict(),
            "divide": 255,
            "target": {"kind": "class", "columns": ["folder"], "names": names},
            "said": [],
        },
    )


def listed(path: Path) -> Listed:
    """The images below a folder with their classes and clients.

    Raises:
        UserError: there is no such folder, no image, or images lie at different depths.
    """
    if not path.is_dir():
        raise UserError(f"there is no folder {path}")
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    depths = {len(file.relative_to(path).parts) for file in files}
    if not files or len(depths) > 1 or not depths <= {2, 3}:
        found = (
            f"images at {len(depths)} depths" if len(depths) > 1 else f"{len(files)} images, not in folders of a class"
        )
        raise UserError(
            f"{path} has {found}; put them at class/image or client/class/image ({', '.join(ENDINGS[:3])}, ...)"
        )
    parts = [file.relative_to(path).parts for file in files]
    return Listed(files, [part[-2] for part in parts], [part[0] for part in parts] if depths == {3} else None)


def has_images(path: Path) -> bool:
    """Whether a folder holds images, somewhere."""
    return any(file.suffix.lower() in ENDINGS for file in path.rglob("*"))


def _look(files: Sequence[Path], size: int | None) -> Look:
    from PIL import Image, UnidentifiedImageError

    sizes: dict[tuple[int, int], Path] = {}
    grey = True
    for file in files:
        try:
            with Image.open(file) as image:  # the header alone
                sizes.setdefault(image.size, file)
                grey = grey and image.mode in ("1", "L", "I", "I;16", "F")
        except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
            raise _broken(file, error) from None
    if size is None and len(sizes) > 1:
        (a, one), (b, two) = list(sizes.items())[:2]
        raise UserError(
            f"images differ in size: {one.name} has {a[0]} x {a[1]} pixels, {two.name} {b[0]} x {b[1]}; bring them to one "
            "with --set input.image_size=64"
        )
    width, height = next(iter(sizes)) if size is None else (size, size)
    return Look(1 if grey else 3, width, height)


def pixels(files: Sequence[Path | bytes], how: Look) -> np.ndarray:
    """Images [n, channels, height, width] float32 in [0, 1]."""
    from PIL import Image, UnidentifiedImageError

    out = np.empty((len(files), how.channels, how.height, how.width), np.float32)
    for k, file in enumerate(files):
        try:
            with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as image:
                whole = image.convert("L" if how.channels == 1 else "RGB")
                if whole.size != (how.width, how.height):
                    whole = whole.resize((how.width, how.height), Image.Resampling.BILINEAR)
        except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise _broken(file, error) from None
        out[k] = np.asarray(whole, np.float32).reshape(how.height, how.width, -1).transpose(2, 0, 1) / 255
    return out


def _broken(file: Path | bytes, error: Exception) -> UserError:
    name = "an image" if isinstance(file, bytes) else f"the image {file}"
    why = " ".join(str(error).split())[:160] or type(error).__name__
    return UserError(f"cannot read {name}: {why}; repair or remove it")


def read_images(path: Path, preprocessing: Mapping[str, Any]) -> tuple[np.ndarray, list[str]]:
    """One image, or all of a folder, as inputs of a model, and their paths."""
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.suffix.lower() in ENDINGS)
    if not files:
        raise UserError(f"there is no image at {path}; give an image or a folder of images")
    how = Look(*(int(preprocessing[key]) for key in Look._fields))
    return pixels(files, how), [str(file) for file in files]
