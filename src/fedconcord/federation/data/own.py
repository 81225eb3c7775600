"""Data of the user's own: a path, or what a function returns.

Tables are read in `tables`; here are arrays, of an NPZ file or given, and images, in folders class/image or
client/class/image or as a column of a data set that was saved.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconcord.federation.data import labels
from fedconcord.federation.data.dataset import Dataset, scaling
from fedconcord.federation.data.inputs import Input, refuse_too_large, split
from fedconcord.federation.data.sequences import PAD, token_targets, with_next
from fedconcord.federation.data.sources import Source, column, open_table
from fedconcord.federation.data.tables import read_table
from fedconcord.support.errors import UserError, closest, unknown
from fedconcord.support.objects import name_of


def read_own(path: Path, settings: Input) -> Dataset:
    """The federation at a path.

    Raises:
        UserError: there is nothing, or not what its ending says, or it cannot be a federation.
    """
    if settings.test is not None and Path(settings.test).expanduser().resolve() == path.expanduser().resolve():
        raise UserError(f"the test data are {path}, the data to train on; name others, or none: a part is set apart")
    if path.suffix.lower() == ".npz":
        return from_arrays(path.stem, load(path, settings.memory), settings, path.name)
    if not path.is_dir():
        return read_table(path, settings)
    if (path / "dataset_dict.json").is_file():
        return read_own(*_parts(path, settings))
    if (path / "state.json").is_file():
        source = open_table(path)
        return read_image_table(source, settings) if source.images else read_table(path, settings)
    has_images = any(file.suffix.lower() in ENDINGS for file in path.rglob("*"))
    return read_folder(path, settings) if has_images else read_table(path, settings)


def _parts(path: Path, settings: Input) -> tuple[Path, Input]:
    """The train and test parts of a saved DatasetDict."""
    try:
        parts = list(json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read {path / 'dataset_dict.json'} ({type(error).__name__}: {error})") from None
    if "train" not in parts:
        raise UserError(f"the saved data set {path} has the parts {', '.join(parts)} and no train; name one of them")
    test = str(path / "test") if "test" in parts and settings.test is None else settings.test
    return path / "train", settings._replace(test=test)


def checked(value: Any, settings: Input, where: str) -> Dataset:
    """What a function of the user's returned, checked: a Dataset, or a mapping of arrays.

    Raises:
        UserError: it is neither, or its arrays do not fit together.
    """
    if isinstance(value, Mapping):
        return from_arrays(name_of(where), value, settings, where)
    if not isinstance(value, Dataset):
        raise UserError(
            f"data {where} returned {type(value).__name__}; return a fedconcord.Dataset or a dict of arrays"
        )
    for part, x, y in (("train", value.train_x, value.train_y), ("test", value.test_x, value.test_y)):
        shape = {"class": (len(x),), "tokens": np.shape(x)}.get(value.target, (len(x), value.classes))
        if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray) or not len(x) or y.shape != shape:
            given_shape = getattr(y, "shape", type(y).__name__)
            raise UserError(
                f"data {where}: {part}_y is {given_shape}; for {len(x)} samples it must be an array {shape}"
            )
    if value.persons is not None and np.shape(value.persons) != (len(value.train_x),):
        raise UserError(f"data {where}: persons must be an array ({len(value.train_x)},), one a training sample")
    for i, samples in enumerate(value.natural or []):
        if not len(samples) or samples.min() < 0 or samples.max() >= len(value.train_x):
            raise UserError(f"data {where}: client {i} has no sample, or one that is not there")
    return value


# -- arrays --------------------------------------------------------------------------------------------------------

SCALED = scaling(255.0, [0.0], [1.0])  # of bytes
KEYS = "x [n, ...] and y [n] or [n, outputs], or [n, L] of tokens; also client [n], test_x and test_y"


def load(path: Path, memory: float | None = None) -> dict[str, np.ndarray]:
    """The arrays of an NPZ file, whose headers say how large they are before they are read; no pickle is.

    Raises:
        UserError: the file is missing, broken, or holds pickled objects.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    if not zipfile.is_zipfile(path):
        raise UserError(f"cannot read {path.name}: it is no archive of arrays; write it with numpy.savez")
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:  # which leaves a broken one open
            with zipfile.ZipFile(path) as archive:
                size = sum(entry.file_size for entry in archive.infolist())
            refuse_too_large(2 * size, path.name, memory)
            return {name: file[name] for name in file.files}
    except UserError:
        raise
    except Exception as error:  # whatever zipfile, zlib and numpy make of damaged bytes
        reason = " ".join(str(error).split()) or type(error).__name__
        if "allow_pickle" in reason:
            raise UserError(
                f"{path.name} holds pickled objects, which could run anything and are never read; save arrays of "
                "numbers or texts"
            ) from None
        raise UserError(f"cannot read {path.name}: {reason[:200]}; write it with numpy.savez") from None


def from_arrays(name: str, arrays: Mapping[str, Any], settings: Input, where: str) -> Dataset:
    """A federation from x, y and perhaps client, test_x and test_y.

    Bytes (uint8) are to be divided by 255; other whole numbers stay symbols, for a model that embeds; the rest is kept.

    Raises:
        UserError: an array is missing or of the wrong shape or kind.
    """
    label, client = (settings.label or ("y",))[0], settings.client or "client"
    names = {"x", "y", label, client, "test_x", "test_y", settings.person, *settings.ignore}
    if odd := next((name for name in arrays if name not in names), None):
        raise unknown(f"array in {where}", odd, filter(None, names))
    also = [*filter(None, (settings.client, settings.person)), *(["test_y"] if "test_x" in arrays else [])]
    fill, arrays = ({} if label in arrays else {"pad": PAD}), with_next(arrays, label, settings.target)
    x, y = pair_of(arrays, label, where, also)
    target = token_targets(arrays, "x", label, None, settings.target, where)
    target = target or labels.targets(labels.columns_of(y, label, where), settings.target, where)
    owner, who = np.zeros(len(x), np.int64), None
    if client in arrays:
        owner, who = labels.ordered(labels.of_rows(arrays, client, len(x), where))
    bytes_ = x.dtype == np.uint8
    x = inputs_of(x, where)
    tested, other = np.zeros(len(x), bool), None
    if "test_x" in arrays:
        test_x, test_y = np.asarray(arrays["test_x"]), np.asarray(arrays["test_y"])
        if test_x.shape[1:] != x.shape[1:] or len(test_x) != len(test_y) or not len(test_x):
            raise UserError(
                f"{where}: test_x has shape {test_x.shape} and test_y {test_y.shape}; x has {x.shape}, they need "
                f"(m, {', '.join(map(str, x.shape[1:]))}) and (m, ...)"
            )
        other = token_targets(arrays, "test_x", "test_y", len(target.names), target.kind, where) or labels.targets(
            labels.columns_of(test_y, "test_y", where), target.kind, where, known=target.names
        )
        test_x = inputs_of(test_x, where)
        if not np.isfinite(test_x).all():
            raise UserError(f"{where}: test_x holds NaN or infinite numbers; drop or fill such samples")
    else:
        tested = split(owner, len(who or [""]), settings.test_share)
        test_x = x[tested]
    how = SCALED if bytes_ else {"kind": "none", **fill}
    preprocessing = {**how, "target": {}, "said": [target.note] if target.note else []}
    return labels.federation(
        name,
        (x[~tested], test_x),
        target=target,
        columns=[label],
        owner=owner,
        who=who,
        tested=tested,
        preprocessing=preprocessing,
        other=other,
        persons=None if settings.person is None else labels.of_rows(arrays, settings.person, len(x), where).code,
    )


def pair_of(
    arrays: Mapping[str, Any], label: str, where: str, also: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """x [n, ...] and y [n] or [n, outputs] of some arrays, which must have those in `also` as well."""
    for key in ("x", label, *also):
        if key not in arrays:
            near = closest(key, arrays)
            raise UserError(
                f"{where} has no array {key!r}{near}; it has {', '.join(arrays) or 'none'}, needed are {KEYS}"
            )
    x, y = np.asarray(arrays["x"]), np.asarray(arrays[label])
    if len(x.shape) < 2 or len(x) < 2 or len(y.shape) not in (1, 2) or len(y) != len(x):
        raise UserError(f"{where}: x has shape {x.shape} and {label} {y.shape}; needed are {KEYS}")
    return x, y


def inputs_of(x: np.ndarray, where: str) -> np.ndarray:
    """Inputs as a Dataset holds them: bytes, whole numbers or float32."""
    if x.dtype == np.uint8:
        return x
    if np.issubdtype(x.dtype, np.integer):
        return x.astype(np.int64)
    if np.issubdtype(x.dtype, np.floating):
        return x.astype(np.float32)
    raise UserError(f"{where}: x is of type {x.dtype}, and numbers are needed; encode texts as numbers")


# -- images --------------------------------------------------------------------------------------------------------

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

    images: Callable[[], Iterable[Image]]
    classes: list[str]  # of each
    clients: list[str] | None  # of each, where it is known


def read_folder(path: Path, settings: Input) -> Dataset:
    """The federation of a folder of images; test images are below test/ where there are train/ and test/.

    Raises:
        UserError: as `of_images`, or there are no images where they should be.
    """
    both = not settings.test and (path / "train").is_dir() and (path / "test").is_dir()
    test = path / "test" if both else Path(settings.test).expanduser() if settings.test else None
    return of_images(path.name, listed(path / "train" if both else path), listed(test) if test else None, settings)


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
    return Listed(lambda: [(str(file), file) for file in files], [part[-2] for part in parts], clients)


def read_image_table(source: Source, settings: Input) -> Dataset:
    """The federation of a saved data set with a column of images; its label is `label` if none is named."""
    settings = settings._replace(label=settings.label or ("label",))
    (name, *more) = sorted(source.images)
    if more:
        raise UserError(f"{source.path.name} has the image columns {name}, {', '.join(more)}; keep one")
    test = None if settings.test is None else _rows(open_table(Path(settings.test)), name, settings)
    return of_images(source.path.name, _rows(source, name, settings), test, settings)


def _rows(source: Source, name: str, settings: Input) -> Listed:
    column(source, name, "images")
    options = {"--label-column": settings.label[0], **({"--client-column": settings.client} if settings.client else {})}
    columns = []
    for option, key in options.items():
        chunks = [batch[key].dictionary_encode() for batch in source.batches([column(source, key, option)])]
        code, names = labels.ordered(labels.collect(key, chunks, source.path.name))
        class_names = source.classes.get(key)
        listed = [class_names[int(each)] for each in names] if class_names else names
        columns.append([listed[k] for k in code])

    def images() -> Iterator[Image]:
        values = (value for batch in source.batches([name]) for value in batch[name].to_pylist())
        for row, value in enumerate(values, 1):
            if value is None or (value.get("bytes") is None and not value.get("path")):
                raise UserError(f"{source.path.name}: row {row} has no image in {name!r}; drop it")
            yield f"row {row} of {source.path.name}", value["bytes"] or Path(value["path"])

    return Listed(images, columns[0], columns[1] if len(columns) > 1 else None)


def of_images(name: str, train: Listed, test: Listed | None, settings: Input) -> Dataset:
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
    return labels.federation(
        name,
        (x[~tested], test_x),
        target=target,
        columns=[],
        owner=owner,
        who=who,
        tested=tested,
        preprocessing=preprocessing,
        other=other,
    )


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


def in_bytes(image: Image, mode: str) -> Any:
    """The image with 8 bits a pixel and channel, in grey ("L") or in colour ("RGB").

    Raises:
        UserError: it cannot be read, or has more bits.
    """
    with _open(image) as opened:
        if opened.mode[0] in "IF":  # 16 or 32 bits, of which Pillow would make 255 of all that is more
            raise UserError(f"the image {image[0]} has over 8 bits a pixel; save it with 8, or give numbers as an .npz")
        try:
            return opened.convert(mode)
        except (OSError, ValueError, SyntaxError) as error:
            raise _broken(image[0], error) from None


def _broken(name: str, error: Exception) -> UserError:
    why = " ".join(str(error).split())[:160] or type(error).__name__
    return UserError(f"cannot read the image {name}: {why}; repair or remove it")


def _look(every: Sequence[Listed], size: int | None) -> Look:
    sizes: dict[tuple[int, int], str] = {}
    grey = True
    for one in every:
        for image in one.images():
            with _open(image) as opened:  # the header alone
                sizes.setdefault(opened.size, image[0])
                grey = grey and opened.mode in ("1", "L")
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
    for k, image in enumerate(listing.images()):
        whole = in_bytes(image, "L" if how.channels == 1 else "RGB")
        if whole.size != (how.width, how.height):
            whole = whole.resize((how.width, how.height), Pillow.Resampling.BILINEAR)
        out[k] = np.asarray(whole).reshape(how.height, how.width, -1).transpose(2, 0, 1)
    return out
