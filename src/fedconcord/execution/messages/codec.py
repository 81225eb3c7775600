"""Frames: how a message travels. A header of JSON, the tensors' own bytes after it, a checksum over both; no pickle.

    magic 4 | length of the header 4 | crc32 of header and tensors 4 | header | tensors

The header has the protocol's version, the method's identity (a digest), kind, round, client, small fields, and name,
shape and number type of every tensor. The bytes of the tensors are the payload, everything else is framing.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.contract import Tree, tree_leaves, tree_unflatten
from fedconcord.method.contract.identity import Identity
from fedconcord.method.contract.trees import raw

MAGIC, VERSION = b"FCW1", 1
HEAD = 12  # bytes before the header
DEEPEST = 64  # lists and tables in one another among the fields of a frame: 3 for each tier of edge servers
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


class FrameError(ValueError):
    """Bytes that are no frame, or not the frame that was expected; the text is a few words for a count of refusals."""


class Frame(NamedTuple):
    """One message."""

    kind: str
    method: str  # `digest` of the method's identity
    round: int
    client: int
    fields: Mapping[str, Any] = {}  # small JSON values
    tensors: Mapping[str, Tensor] = {}

    @property
    def payload(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


def digest(identity: Identity) -> str:
    """A method's identity in 16 characters."""
    return hashlib.blake2b(str(identity).encode(), digest_size=8).hexdigest()


def fingerprint(tensors: Mapping[str, Tensor]) -> int:
    """63 bits that stand for a reply's content."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(raw(tensor).numpy().data)
    return int.from_bytes(digest.digest(), "little") >> 1


def write(frame: Frame) -> bytes:
    """The frame as bytes."""
    forms = [[name, list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in frame.tensors.items()]
    header = {
        "version": VERSION,
        "method": frame.method,
        "kind": frame.kind,
        "round": frame.round,
        "client": frame.client,
        "fields": dict(frame.fields),
        "tensors": forms,
    }
    body = json.dumps(header, separators=(",", ":")).encode()
    length = len(body).to_bytes(4, "little")
    body = b"".join([body, *(raw(tensor).numpy().tobytes() for tensor in frame.tensors.values())])
    return MAGIC + length + zlib.crc32(body, zlib.crc32(length)).to_bytes(4, "little") + body


def read(data: bytes, limit: int = 2**31, deepest: int = DEEPEST) -> Frame:
    """The inverse of `write`; tensors are copies on the CPU.

    Raises:
        FrameError: the bytes are no frame of this version, are damaged, or are more or nested deeper than the limits.
    """
    if len(data) > limit:
        raise FrameError("oversized")
    if len(data) < HEAD or data[:4] != MAGIC:
        raise FrameError("not a frame")
    length, check = int.from_bytes(data[4:8], "little"), int.from_bytes(data[8:12], "little")
    if zlib.crc32(data[HEAD:], zlib.crc32(data[4:8])) != check:
        raise FrameError("damaged")
    try:
        header = json.loads(data[HEAD : HEAD + length])
        if header["version"] != VERSION:
            raise FrameError("another version")
        if _is_deeper(header["fields"], deepest):
            raise FrameError("nested too deep")
        tensors, at = {}, HEAD + length
        for name, shape, kind in header["tensors"]:
            dtype, count = DTYPES[kind], math.prod(shape)
            end = at + count * dtype.itemsize
            if count < 0 or end > len(data):
                raise FrameError("shorter than its header says")
            raw = torch.frombuffer(bytearray(data[at:end]), dtype=dtype) if count else torch.empty(0, dtype=dtype)
            tensors[str(name)], at = raw.reshape(shape), end
        if at != len(data):
            raise FrameError("longer than its header says")
        head = (str(header["kind"]), str(header["method"]), int(header["round"]), int(header["client"]))
        return Frame(*head, dict(header["fields"]), tensors)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as broken:
        if isinstance(broken, FrameError):
            raise
        raise FrameError("not decodable") from broken


def _is_deeper(value: Any, most: int) -> bool:
    """Whether more than so many lists and tables are in one another, this one among them."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inside is not None and (most == 0 or any(_is_deeper(one, most - 1) for one in inside))


def pack(name: str, tree: Tree) -> dict[str, Tensor]:
    """A tree's leaves as named tensors on the CPU; a Python number becomes one of 8 bytes."""
    return {f"{name}/{leaf}": _tensor(value) for leaf, value in tree_leaves(tree).items()}


def unpack(name: str, frame: Frame, like: Tree, device: torch.device) -> Tree:
    """The tree again, in the form of `like`, whose own values do not matter.

    Raises:
        FrameError: a leaf is missing, or has another shape or number type.
    """
    leaves = {}
    for leaf, value in tree_leaves(like).items():
        tensor = frame.tensors.get(f"{name}/{leaf}")
        form = value if isinstance(value, Tensor) else _tensor(value)
        if tensor is None:
            raise FrameError("a field is missing")
        if tensor.dtype != form.dtype:
            raise FrameError("another number type")
        if tensor.shape != form.shape:
            raise FrameError("another shape")
        leaves[leaf] = tensor.to(device) if isinstance(value, Tensor) else tensor.item()
    return tree_unflatten(like, leaves)


def whole(value: Any, most: float = math.inf) -> int:
    """A field that must be a whole number from 0 to `most`.

    Raises:
        FrameError: it is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise FrameError("a field that is no whole number" + f" from 0 to {most}" * (most < math.inf))
    return value


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)
