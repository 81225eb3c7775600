"""The data of a run by its settings: a registered data set, a file or folder, or a factory by import path."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedconcord.basis import factories, files, grammar, imports, objects
from fedconcord.basis.errors import UserError
from fedconcord.data import DATASETS
from fedconcord.data.dataset import Dataset
from fedconcord.data.inputs import Input, is_file
from fedconcord.data.published import data_folder
from fedconcord.problems import PROBLEMS
from fedconcord.settings.settings import Config, InputSettings

LEADING = ("folder", "seed")  # what the program gives to a factory of data


def kind_of(data: str) -> str:
    """`named`, `file` or `import`, an object of Python included: what the setting `data` says."""
    name = data.partition("(")[0].strip()
    if name in DATASETS or name in PROBLEMS:
        return "named"
    if imports.is_path(name):
        return "import"
    return "file" if is_file(data) else "named"


def folder_name(data: str) -> str:
    """A short name of the data, for folders."""
    kind = kind_of(data)
    if kind == "file":
        return files.folder_name(Path(data).stem)
    return files.folder_name(objects.name_of(grammar.parse(data, "data set").name))


def absolute(config: Config) -> Config:
    """With paths that hold from wherever a run is resumed."""
    if kind_of(config.data) != "file":
        return config
    paths = {"data": config.data, "test": config.input.test, "statistics": config.input.statistics}
    full = {key: path if path is None else str(Path(path).expanduser().absolute()) for key, path in paths.items()}
    return config.model_copy(update={"data": full.pop("data"), "input": config.input.model_copy(update=full)})


def dataset_of(data: str, data_dir: str | None, seed: int, input: InputSettings) -> Dataset:
    """The data set. The last one of a file is kept: the seeds of a comparison share it.

    Raises:
        UserError: there is no such data set, or its files are missing or broken.
    """
    kind = kind_of(data)
    if kind == "named":
        dataset: Dataset = factories.build(DATASETS, "data set", data, data_folder(data_dir), seed)
        return dataset
    settings = input_of(input)
    if kind == "file":
        return _read(data, settings, stamp(data, input))
    from fedconcord.data.own import checked  # pyarrow, which other data do not need

    call = factories.check(imports.open_factories(DATASETS, "data set", LEADING), "data set", data)
    try:
        product = call(data_folder(data_dir), seed)
    except (UserError, OSError):
        raise
    except Exception as error:  # whatever somebody else's function raises
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"data {data} failed when they were made: {why}") from error
    return checked(product, settings, data)


def input_of(settings: InputSettings) -> Input:
    """How data of one's own are read, as their readers take it."""
    fields = settings.model_dump().items()
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields}
    return Input(**values)


@functools.lru_cache(maxsize=1)
def _read(data: str, settings: Input, stamp: str) -> Dataset:
    from fedconcord.data.own import read_own

    return read_own(Path(data), settings)


def stamp(data: str, input: InputSettings) -> str:
    """What changes when one of the files that such data are read from is written anew; '' where they are not files."""
    if kind_of(data) != "file":
        return ""
    digest = hashlib.sha256()
    paths = [Path(path).expanduser() for path in (data, input.test, input.statistics) if path is not None]
    for file in (file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])):
        if file.is_file():
            state = file.stat()
            # the time of change too, for a copy may keep the time of writing
            digest.update(repr((str(file), state.st_mtime_ns, state.st_ctime_ns, state.st_size)).encode())
    return digest.hexdigest()


def notes(config: Config) -> list[str]:
    """What was guessed of data of the user's own, or left out of them."""
    if kind_of(config.data) != "file":
        return []
    dataset = dataset_of(config.data, config.data_dir, config.seed or 0, config.input)
    return [f"data {dataset.name}: {note}" for note in (dataset.preprocessing or {}).get("said", [])]


def metrics_note(config: Config) -> list[str]:
    """How a table of the user's own with two classes is judged by each of them, where no metrics were chosen."""
    if kind_of(config.data) != "file" or config.metrics or config.task is not None:
        return []
    dataset = dataset_of(config.data, config.data_dir, config.seed or 0, config.input)
    if dataset.target != "class" or dataset.classes != 2:
        return []
    first, second = dataset.output_names or ("0", "1")
    return [
        f"data {dataset.name}: two classes are judged by accuracy alone; --metrics accuracy,sensitivity,specificity "
        f"also measures which shares of {second} and of {first} are recognised"
    ]


def check_unused(config: Config, keys: Iterable[str]) -> None:
    """Refuse settings of one's own data where the data are others'."""
    for key in keys:
        name = key.removeprefix("input.")
        if key != name and getattr(config.input, name) != getattr(InputSettings(), name):
            raise UserError(
                f"{key} says how data of your own are read, and data {config.data} are known; leave it out, or give a "
                "file, a folder or package.module:factory as data"
            )
