"""A federation from images: folders class/image or client/class/image, or a column of a data set that was saved."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconcord.basis.errors import UserError
from fedconcord.data import labels
from fedconcord.data.dataset import Dataset, scaling
from fedconcord.data.inputs import Input, refuse_too_large, split
from fedconcord.data.sources import Source, column, open_table

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
Image = tuple[str, Path | bytes]
"""What an image is called, and where it is or its bytes."""


class Look(NamedTuple):
    """What every image is brought to."""

    channels: int  # 1 grey, 3 colour
    width: int
    height: int


class Listed(NamedTuple):
    """Images that can be read again and again, in order."""

    images: Iterable[Image]
    classes: list[str]  # of each
    clients: list[str] | None  # of each, where it is known


def read_folder(path: Path, settings: Input) -> Dataset:
    """The federation of a folder of images; test images are below test/ where there are train/ and test/.

    Raises:
        UserError: as `federation`, or there are no images where they should be.
    """
    both = not settings.test and (path / "train").is_dir() and (path / "test").is_dir()
    test = path / "test" if both else Path(settings.test).expanduser() if settings.test else None
    return federation(path.name, listed(path / "train" if both else path), listed(test) if test else None, settings)


def listed(path: Path) -> Listed:
    """The images below a folder with their classes and clients.

    Raises:
        UserError: there is no such folder, no image, or images lie at different depths.
    """
    if not path.is_dir():
        raise UserError(f"there is no folder {path}")
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    depths = {len(file.relative_to(path).parts) for file in files}
    if len(depths) != 1 or not depths <= {2, 3}:
        places = (
            f"images at {len(depths)} depths" if len(depths) > 1 else f"{len(files)} images, in no folder of a class"
        )
        raise UserError(
            f"{path} has {places}; put them at class/image or client/class/image ({', '.join(ENDINGS[:3])}, ...)"
        )
    parts = [file.relative_to(path).parts for file in files]
    clients = [part[0] for part in parts] if depths == {3} else None
    return Listed([(str(file), file) for file in files], [part[-2] for part in parts], clients)


def has_images(path: Path) -> bool:
    """Whether a folder holds images, somewhere."""
    return any(file.suffix.lower() in ENDINGS for file in path.rglob("*"))


def read_image_table(source: Source, settings: Input) -> Dataset:
    """The federation of a saved data set with a column of images; its label is `label` if none is named."""
    settings = settings._replace(label=settings.label or ("label",))
    (name, *more) = sorted(source.images)
    if more:
        raise UserError(f"{source.path.name} has the image columns {name}, {', '.join(more)}; keep one")
    test = None if settings.test is None else _rows(open_table(Path(settings.test)), name, settings)
    return federation(source.path.name, _rows(source, name, settings), test, settings)


def _rows(source: Source, name: str, settings: Input) -> Listed:
    column(source, name, "images")
    options = {"--label-column": settings.label[0], **({"--client-column": settings.client} if settings.client else {})}
    columns = []
    for option, key in options.items():
        chunks = [batch[key].dictionary_encode() for batch in source.batches([column(source, key, option)])]
        code, names = labels.ordered(labels.collect(key, chunks, source.path.name))
        named = source.classes.get(key)
        listed = [named[int(each)] for each in names] if named else names
        columns.append([listed[k] for k in code])

    class Rows:
        def __iter__(self) -> Iterator[Image]:
            row = 0
            for batch in source.batches([name]):
                for value in batch[name].to_pylist():
                    row += 1
                    if value is None or (value.get("bytes") is None and not value.get("path")):
                        raise UserError(f"{source.path.name}: row {row} has no image in {name!r}; drop it")
                    yield f"row {row} of {source.path.name}", value["bytes"] or Path(value["path"])

    return Listed(Rows(), columns[0], columns[1] if len(columns) > 1 else None)


def federation(name: str, train: Listed, test: Listed | None, settings: Input) -> Dataset:
    """Images as bytes [channels, height, width], grey where all are, of `input.image_size` squared if set.

    Raises:
        UserError: an image cannot be read, sizes differ, there is one class, or they do not fit in memory.
    """
    names = sorted(set(train.classes))
    if len(names) < 2:
        raise UserError(f"{name} has images of one class only, {names[0]!r}; there is nothing to tell apart")
    new = sorted(set(test.classes) - set(names)) if test else []
    if new:
        raise UserError(f"{name}: the class {new[0]!r} is not in the training data; map these images or drop them")
    how = _look([train, test] if test else [train], settings.image_size)
    count = len(train.classes) + (len(test.classes) if test else 0)
    need = 2 * count * how.channels * how.width * how.height
    refuse_too_large(need, f"{name}, {count} images of {how.width} x {how.height},", settings.memory)
    x, y = pixels(train, how), _code(train.classes, names)
    who = sorted(set(train.clients)) if train.clients else None
    owner = _code(train.clients, who) if train.clients and who else np.zeros(len(y), np.int64)
    tested = np.zeros(len(y), bool) if test else split(owner, len(who or [""]), settings.test_share)
    test_x = pixels(test, how) if test else x[tested]
    preprocessing = {
        **scaling(255.0, [0.0] * how.channels, [1.0] * how.channels),
        "size": [how.width, how.height],
        "said": [],
    }
    target = labels.Targets("class", y, names, None)
    other = target._replace(y=_code(test.classes, names)) if test else None
    return labels.federation(name, (x[~tested], test_x), target, [], owner, who, tested, preprocessing, other)


def _code(values: Sequence[str], names: Sequence[str]) -> np.ndarray:
    place = {name: k for k, name in enumerate(names)}
    return np.array([place[value] for value in values], np.int64)


def _open(image: Image) -> Any:
    from PIL import Image as Pillow
    from PIL import UnidentifiedImageError

    name, where = image
    try:
        return Pillow.open(io.BytesIO(where) if isinstance(where, bytes) else where)
    except (UnidentifiedImageError, OSError, ValueError, Pillow.DecompressionBombError) as error:
        raise _broken(name, error) from None


def _broken(name: str, error: Exception) -> UserError:
    why = " ".join(str(error).split())[:160] or type(error).__name__
    return UserError(f"cannot read the image {name}: {why}; repair or remove it")


def _look(every: Sequence[Listed], size: int | None) -> Look:
    sizes: dict[tuple[int, int], str] = {}
    grey = True
    for one in every:
        for image in one.images:
            with _open(image) as opened:  # the header alone
                sizes.setdefault(opened.size, image[0])
                grey = grey and opened.mode in ("1", "L", "I", "I;16", "F")
    if size is None and len(sizes) > 1:
        (a, first), (b, second) = list(sizes.items())[:2]
        raise UserError(
            f"images differ in size: {first} has {a[0]} x {a[1]} pixels, {second} {b[0]} x {b[1]}; bring them to one "
            "with --set input.image_size=64"
        )
    width, height = next(iter(sizes)) if size is None else (size, size)
    return Look(1 if grey else 3, width, height)


def pixels(listing: Listed, how: Look) -> np.ndarray:
    """Images [n, channels, height, width] uint8."""
    from PIL import Image as Pillow

    out = np.empty((len(listing.classes), how.channels, how.height, how.width), np.uint8)
    for k, image in enumerate(listing.images):
        with _open(image) as opened:
            try:
                whole = opened.convert("L" if how.channels == 1 else "RGB")
            except (OSError, ValueError, SyntaxError) as error:
                raise _broken(image[0], error) from None
        if whole.size != (how.width, how.height):
            whole = whole.resize((how.width, how.height), Pillow.Resampling.BILINEAR)
        out[k] = np.asarray(whole).reshape(how.height, how.width, -1).transpose(2, 0, 1)
    return out
