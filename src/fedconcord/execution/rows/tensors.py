"""safetensors files with a checksum: a flipped byte anywhere in the file is noticed.

The checksum is CRC-32 (zlib), of the whole file with the checksum's own digits as zeros. It finds every error within 32
neighbouring bits for certain and any other but for a chance of 2^-32, at 4 GB/s where BLAKE2b does 0.9 and SHA-256 1.8;
it is against accidents, not against forgers.
"""

from __future__ import annotations

import itertools
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedconcord.method.contract.trees import raw
from fedconcord.support import files
from fedconcord.support.errors import reason
from fedconcord.support.sums import DamagedError as DamagedError

NAMES = {  # of number types in the file
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
OPENING = b'{"__metadata__": {"checksum": "'  # of the header of every file that `write` made
ZEROS = b"0" * 8
PIECE = 2**24  # bytes that are read, or copied, at once


class Picked(NamedTuple):
    """Some rows of an array in an order of their own, of which `write` copies a few at a time."""

    rows: Tensor  # [capacity, ...]
    places: Tensor  # [R] int64

    def whole(self) -> Tensor:
        """The rows [R, ...], in memory of their own."""
        return self.rows[self.places].cpu()

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.places), *self.rows.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype


def write(
    path: Path, tensors: Mapping[str, Tensor | Picked], metadata: Mapping[str, str] | None = None, *, mode: int = 0o666
) -> None:
    """Write tensors and metadata atomically, from the tensors' own memory; `safetensors.save` holds all twice more.

    The widest numbers come first, so that all are aligned; `mode` is that of `files.write_bytes`.
    """
    header: dict[str, Any] = {"__metadata__": {"checksum": ZEROS.decode(), **(metadata or {})}}
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    end = 0
    for name, leaf in ordered:
        begin, end = end, end + math.prod(leaf.shape) * leaf.dtype.itemsize
        header[name] = {"dtype": NAMES[leaf.dtype], "shape": list(leaf.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    length = len(text).to_bytes(8, "little")
    crc = zlib.crc32(text, zlib.crc32(length))
    for piece in _pieces(ordered):
        crc = zlib.crc32(piece, crc)
    opening = length, OPENING, b"%08x" % crc, text[len(OPENING) + len(ZEROS) :]
    files.write_bytes(path, itertools.chain(opening, _pieces(ordered)), mode=mode)


def _pieces(tensors: Iterable[tuple[str, Tensor | Picked]]) -> Iterator[memoryview]:
    """The bytes of tensors, one after the other."""
    for _, leaf in tensors:
        if isinstance(leaf, Tensor):
            yield raw(leaf).numpy().data
            continue
        row = math.prod(leaf.shape[1:]) * leaf.dtype.itemsize
        for some in torch.split(leaf.places, max(1, PIECE // max(1, row))):
            yield raw(leaf.rows[some]).numpy().data


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata that were written.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedError: the file has no checksum or another one, or cannot be read.
    """
    try:
        _verify(path)
        with safe_open(path, framework="pt") as file:
            metadata = {name: text for name, text in file.metadata().items() if name != "checksum"}
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError) as broken:
        raise DamagedError(reason(broken)) from broken


def _verify(path: Path) -> None:
    start = 8 + len(OPENING)
    with open(path, "rb") as file:
        head = file.read(start + len(ZEROS))
        if head[8:start] != OPENING:
            raise DamagedError("it has no checksum, so it is damaged or of an older version")
        crc = zlib.crc32(head[:start] + ZEROS)
        while piece := file.read(PIECE):
            crc = zlib.crc32(piece, crc)
    if head[start:] != b"%08x" % crc:
        raise DamagedError("its checksum differs")
