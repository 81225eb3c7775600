"""Files of the user's that a job reads: which they are, and what is in them."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from fedconcord.federation.data import DATASETS
from fedconcord.federation.data.inputs import is_file
from fedconcord.federation.objectives import PROBLEMS
from fedconcord.study.settings.parts import PARTS, call_of
from fedconcord.study.settings.settings import Config, InputSettings
from fedconcord.support import imports
from fedconcord.support.grammar import flatten


def kind_of(data: str) -> str:
    """`named`, `file` or `import`, an object of Python included: what the setting `data` says."""
    name = data.partition("(")[0].strip()
    if name in DATASETS or name in PROBLEMS:
        return "named"
    if imports.is_path(name):
        return "import"
    return "file" if is_file(data) else "named"


def contents(config: Config) -> dict[str, tuple[Path, str]]:
    """Path and SHA-256 of each file or folder that settings name, by their keys."""
    texts = {key: text for key, text in flatten(config.as_dict()).items() if key in (*PARTS, "local.epochs")}
    parts = {key: Path(call_of(key, text).given["path"]) for key, text in texts.items() if "path=" in str(text)}
    paths = {**_read(config.data, config.input), **parts}
    return {key: (path, _digest(path, _stamp(path))) for key, path in paths.items() if path.exists()}


def stamp(data: str, input: InputSettings) -> str:
    """What changes when one of the files that such data are read from is written anew."""
    return "".join(map(_stamp, _read(data, input).values()))


def _read(data: str, input: InputSettings) -> dict[str, Path]:
    paths = {"data": data, "input.test": input.test, "input.statistics": input.statistics}
    is_own = kind_of(data) == "file"
    return {key: Path(path).expanduser() for key, path in paths.items() if is_own and path is not None}


def _stamp(path: Path) -> str:
    digest = hashlib.sha256()
    for file, state in ((file, file.stat()) for file in _files(path)):
        # the time of change too, for a copy may keep the time of writing
        digest.update(repr((str(file), state.st_mtime_ns, state.st_ctime_ns, state.st_size)).encode())
    return digest.hexdigest()


@functools.lru_cache(maxsize=16)
def _digest(path: Path, stamp: str) -> str:
    digest = hashlib.sha256()
    for file in _files(path):
        digest.update(f"{file.relative_to(path)} ".encode())
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def _files(path: Path) -> list[Path]:
    return [file for file in (sorted(path.rglob("*")) if path.is_dir() else [path]) if file.is_file()]
