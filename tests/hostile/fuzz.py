"""Nonsense that somebody may type, data files that are damaged, messages and checkpoints that are forged.

Whatever is given, the answer is a result or one sentence that names a key, a value or the file: no other exception, no
hang and no memory beyond what data of that size may take. Examples are drawn by hypothesis.

    PYTHONPATH=src python tests/hostile/fuzz.py --n 10000 --seed 0
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import resource
import signal
import sys
import tempfile
import traceback
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import torch
from hypothesis import strategies as st
from PIL import Image

from fedconcord.execution.engines import Serial
from fedconcord.execution.job import Job, advance, checkpoint, start
from fedconcord.execution.messages import codec
from fedconcord.execution.rows import tensors
from fedconcord.federation.data.inputs import Input
from fedconcord.federation.data.own import read_own
from fedconcord.federation.data.pixels import read_idx, read_rows
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.algorithms import METHODS
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_compare, resolve_run
from fedconcord.study.settings.sources import Source, from_file, from_nested, from_options, keys, toml
from fedconcord.support import errors
from fedconcord.support.errors import UserError

SECONDS = 20  # of one example
MEMORY = 2**30  # bytes of address space that examples may take beyond what the process has
SMALL = {"clients": 4, "cohort": 2, "data": "quadratics(dim=3)"}


class HangError(Exception):
    """An example takes too long."""


@contextmanager
def patience() -> Iterator[None]:
    """`HangError` after a while."""

    def late(number: int, frame: object) -> None:
        raise HangError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def answered(call: Callable[[], object], names: set[str]) -> None:
    """The call ends, or refuses in one line in which one of the names stands."""
    with patience():
        try:
            call()
        except UserError as refused:
            said = errors.sentence(refused)
            assert any(name in said for name in names if name), f"names nothing of what was given: {said}"
            assert "Traceback" not in said


# -- settings ------------------------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.integers(-3, 30), st.integers(), st.floats(allow_nan=True, allow_infinity=True), st.floats(0.0, 1.0)
)


def _known_names() -> list[str]:
    """Every name of a method, policy or part, and what calls of them are made of."""
    found = set(METHODS)
    for schema in keys().values():
        for leaf in schema.get("anyOf", [schema]):
            found |= {str(one) for one in leaf.get("enum", ())}
        words = schema.get("wanted", "")
        found |= {word.strip(",") for word in words.split() if "(" in word}
    return sorted(
        found | {"dirichlet(0.1)", "shards(2)", "topk(0.2)", "quantise(8)", "momentum(0.9)", "lbfgs", "sam(0.1)"}
    )


NAMES = st.sampled_from(_known_names())
MARKS = st.sampled_from(
    [*list("()[]{}=,.\"' \\\n\t\x00é€;#:/-_"), "none", "true", "nan", "1e999", "0x10", "((((", "[[[["]
)
PARAMETERS = st.sampled_from(
    ["mu", "rho", "label", "local.lr", "local.steps", "upload", "server", "oracle", "local.oracle", "", "seed", "lr"]
)


@st.composite
def calls(draw: st.DrawFn, depth: int = 3) -> str:
    """A name, perhaps with arguments that are calls themselves."""
    name = draw(NAMES)
    if depth == 0 or draw(st.booleans()):
        return name
    arguments = []
    for _ in range(draw(st.integers(0, 3))):
        value = draw(st.one_of(NUMBERS.map(str), calls(depth - 1), st.text(max_size=5)))
        key = draw(st.one_of(st.just(""), PARAMETERS))
        arguments.append(f"{key}={value}" if key else value)
    return f"{name.partition('(')[0]}({','.join(arguments)})"


@st.composite
def mangled(draw: st.DrawFn, of: st.SearchStrategy[str]) -> str:
    """A text with something put in, or taken out."""
    text = draw(of)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        text = (
            text[:at] + draw(st.one_of(MARKS, st.just(""), st.text(max_size=3))) + text[at + draw(st.integers(0, 2)) :]
        )
    return text


VALUES = st.one_of(
    NUMBERS,
    st.booleans(),
    mangled(calls()),
    st.text(max_size=8),
    st.lists(st.one_of(NUMBERS, mangled(calls())), max_size=3),
    st.dictionaries(st.text(max_size=4), NUMBERS, max_size=2),
)
KEYS = st.sampled_from(sorted(set(keys()) - {"data_dir", "out"}))  # what names places is for data's fuzz
TABLES = st.dictionaries(st.one_of(KEYS, KEYS, KEYS, mangled(KEYS)), VALUES, min_size=1, max_size=4)


def resolved(source: Source) -> None:
    """Both readings of the settings, and the job where it is small."""
    for read in (resolve_run, resolve_compare):
        read(from_nested({"methods": ["fedavg"]} if read is resolve_compare else {}, "x"), source)
    config = resolve_run(from_nested(SMALL, "x"), source)
    if config.data == SMALL["data"] and config.clients == SMALL["clients"] and config.engine.name == "serial":
        build(config)


@hypothesis.given(table=TABLES, damage=mangled(st.just("x")))
def settings_files(scratch: Path, table: Mapping[str, Any], damage: str) -> None:
    """A TOML file; in some the text itself is broken."""
    lines = []
    for key, value in table.items():
        lines.append(f"{key} = {toml(value)}")
    text = "\n".join(lines)
    path = scratch / "job.toml"
    path.write_text(text if damage == "x" else text.replace("=", damage, 1), encoding="utf-8", errors="replace")
    answered(lambda: resolved(from_file(path)), {path.name, *_named(table)})


@hypothesis.given(table=TABLES)
def settings_flags(scratch: Path, table: Mapping[str, Any]) -> None:
    """--set key=value, as a shell hands it over."""
    given = [f"{key}={value if isinstance(value, str) else toml(value)}" for key, value in table.items()]
    answered(lambda: resolved(from_options({}, given)), {"--set", *_named(table)})


def _named(table: Mapping[str, Any]) -> set[str]:
    """Keys and their last parts, and the names and texts among the values."""
    found = {part for key in table for part in (key, *(word[:5] for word in key.split(".")))}  # metrics: "metric"
    for value in table.values():
        found |= {"'{\""} if isinstance(value, Mapping) else set()  # a table as a flag: quoted from its start
        for one in value if isinstance(value, list) else [value]:
            found |= {str(one)[:30], str(one).partition("(")[0], repr(str(one))[1:6]}
    return {*found, "methods", "method"}


# -- data ----------------------------------------------------------------------------------------------------------


def good_files() -> dict[str, bytes]:
    """One small file of every format."""
    draw = np.random.default_rng(0)
    x, y, who = draw.normal(size=(12, 3)), draw.integers(0, 2, 12), np.repeat(["a", "b", "c"], 4)
    table = pa.table({"age": x[:, 0], "kind": ["m", "w", None] * 4, "y": y, "site": who})
    rows = "\n".join(f"{a:.3f},{'mw'[k % 2]},{b},{c}" for k, (a, b, c) in enumerate(zip(x[:, 0], y, who, strict=True)))
    found = {"table.csv": f"age,kind,y,site\n{rows}\n".encode()}
    out = io.BytesIO()
    pyarrow.parquet.write_table(table, out)
    found["table.parquet"], out = out.getvalue(), io.BytesIO()
    pyarrow.feather.write_feather(table, out, compression="uncompressed")
    found["table.arrow"], out = out.getvalue(), io.BytesIO()
    np.savez_compressed(out, x=x, y=y, client=who)
    found["arrays.npz"] = out.getvalue()
    header = bytes((0, 0, 8, 3)) + b"".join(size.to_bytes(4, "big") for size in (5, 4, 4))
    found["images-idx3-ubyte"] = header + draw.integers(0, 256, 80, np.uint8).tobytes()
    found["images-idx3-ubyte.gz"] = gzip.compress(found["images-idx3-ubyte"])
    found["data_batch_1.bin"] = draw.integers(0, 10, 2 * 3073, np.uint8).tobytes()
    for kind in ("png", "jpeg", "gif", "bmp"):
        out = io.BytesIO()
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), np.uint8)).save(out, kind)
        found[f"image.{kind}"] = out.getvalue()
    return found


GOOD = good_files()
GIVEN = Input(label=("y",), memory=2**-6)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """(name, bytes) of a file that was cut, overwritten, filled in, doubled, re-encoded, or is another's."""
    name = draw(st.sampled_from(sorted(GOOD)))
    content = bytearray(GOOD[name])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        kind = draw(st.sampled_from(["flip", "cut", "put", "take", "double", "text", "size", "encode", "other"]))
        if kind == "flip" and at < len(content):
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            content = content[:at]
        elif kind == "put":
            content[at:at] = draw(st.binary(max_size=8))
        elif kind == "take":
            del content[at : at + draw(st.integers(1, 16))]
        elif kind == "double":
            content += content[at:]
        elif kind == "text":
            put = draw(
                st.sampled_from([b",", b"\n", b'"', b"\r", b"\0", b"nan", b"1e999", b"\xff\xfe", b"-", b";", b"inf"])
            )
            content[at : at + 1] = put
        elif kind == "size":
            content[at : at + 4] = draw(st.sampled_from([b"\xff" * 4, b"\x7f" + b"\xff" * 3, b"\0" * 4, b"\0\0\0\x80"]))
        elif kind == "encode" and name.endswith(".csv"):
            encoding = draw(st.sampled_from(["utf-16", "utf-8-sig", "utf-32", "latin-1"]))
            content = bytearray(bytes(content).decode("utf-8", "replace").encode(encoding, "replace"))
        elif kind == "other":
            content = bytearray(GOOD[draw(st.sampled_from(sorted(GOOD)))])
    return name, bytes(content)


def read_data(scratch: Path, name: str, content: bytes) -> object:
    """What the program does with such a file."""
    if name.startswith("image."):
        folder = scratch / "pictures"
        for label in ("cat", "dog"):
            (folder / label).mkdir(parents=True, exist_ok=True)
            for old in (folder / label).iterdir():
                old.unlink()
            for k, what in enumerate((GOOD[name], content if label == "dog" else GOOD[name])):
                (folder / label / f"{k}-{name}").write_bytes(what)
        return read_own(folder, GIVEN)
    path = scratch / name
    path.write_bytes(content)
    if "idx" in name:
        return read_idx(path, 3)
    if name.endswith(".bin"):
        return read_rows(path, 2, 1)
    return read_own(path, GIVEN)


@hypothesis.given(file=damaged())
def data_files(scratch: Path, file: tuple[str, bytes]) -> None:
    """A damaged file of any format."""
    name, content = file
    answered(lambda: read_data(scratch, name, content), {name, f"1-{name}", "pictures", "y", "'age'"})


def bombs() -> dict[str, bytes]:
    """Files of some kilobytes that say, or unpack to, more than the 16 MiB that they may take."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (2**36, 3)})
        archive.writestr("x.npy", head.getvalue())
        archive.writestr("y.npy", bytes(2**24))
    found = {"arrays.npz": out.getvalue()}
    header = bytes((0, 0, 8, 3)) + b"".join(size.to_bytes(4, "big") for size in (2**16, 2**10, 2**10))
    found["images-idx3-ubyte"] = header + bytes(100)
    found["images-idx3-ubyte.gz"] = gzip.compress(header + bytes(2**20))
    size = (60000).to_bytes(4, "big")
    chunk = b"IHDR" + size + size + b"\x08\x02\0\0\0"
    found["image.png"] = b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    return found


# -- messages and checkpoints ---------------------------------------------------------------------------------------


def frame() -> bytes:
    """A valid message."""
    tree = {"x/x": torch.arange(6.0).reshape(2, 3), "x/n": torch.tensor(4)}
    return codec.write(codec.Frame("reply", "m", 3, 2, {"loss": 0.5, "who": "a"}, tree))


JSONS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def forged(draw: st.DrawFn) -> bytes:
    """A message whose checksum is right and whose header, or bytes, are not."""
    whole = frame()
    length = int.from_bytes(whole[4:8], "little")
    header, body = json.loads(whole[12 : 12 + length]), bytearray(whole[12 + length :])
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.sampled_from(sorted(header)))
        if key == "tensors" and isinstance(header[key], list) and header[key] and draw(st.booleans()):
            one = draw(st.integers(0, len(header[key]) - 1))
            header[key][one] = [
                draw(st.one_of(st.just(part), JSONS, st.lists(st.integers(), max_size=3))) for part in "xyz"
            ]
        else:
            header[key] = draw(JSONS)
    body = body[: draw(st.integers(0, len(body)))] + draw(st.binary(max_size=9))
    text = json.dumps(header).encode() + draw(st.sampled_from([b"", b"", b"]", b"\0"]))
    size = draw(st.sampled_from([len(text), len(text), len(text) + 1, 0, 2**32 - 1])).to_bytes(4, "little")
    whole = text + bytes(body)
    return codec.MAGIC + size + zlib.crc32(whole, zlib.crc32(size)).to_bytes(4, "little") + whole


class Like(NamedTuple):
    """The form of the message."""

    x: torch.Tensor
    n: torch.Tensor


LIKE = Like(torch.zeros(2, 3), torch.tensor(0))


@hypothesis.given(data=st.one_of(forged(), st.binary(max_size=40).map(lambda tail: frame()[:20] + tail), st.binary()))
def messages(scratch: Path, data: bytes) -> None:
    """Bytes on the wire: a frame, or a `FrameError`."""
    with patience():
        said = "read"
        try:
            codec.unpack("x", codec.read(data), LIKE, torch.device("cpu"))
        except codec.FrameError as refused:
            said = str(refused)
        assert 0 < len(said) < 60


JOB = Job(
    quadratics(0, 4, torch.float32, torch.device("cpu"), dim=3),
    METHODS["scaffold"](),
    Schedule(0, 2, 0.1),
    engine=Serial(),
)


def _saved() -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(JOB, advance(JOB, start(JOB)), Path(folder) / "c")
        return tensors.read(Path(folder) / "c")


LEAVES, ABOUT = _saved()


@hypothesis.given(
    part=st.sampled_from(["state", "job", "leaf", "none"]),
    name=st.sampled_from(sorted(LEAVES)),
    key=st.sampled_from(sorted(json.loads(ABOUT["state"]))),
    value=JSONS,
    leaf=st.sampled_from(
        [torch.zeros(0), torch.zeros(2, 2), torch.full((4,), -1), torch.tensor([7, 7, 7, 9]), torch.ones(3)]
    ),
)
def checkpoints(scratch: Path, part: str, name: str, key: str, value: Any, leaf: torch.Tensor) -> None:
    """A checkpoint of this format whose checksum is right and whose content is not a checkpoint's."""
    leaves, about = dict(LEAVES), dict(ABOUT)
    if part == "leaf":
        leaves[name] = leaf
    elif part == "none":
        del leaves[name]
    else:
        inside = json.loads(about[part]) if part == "state" else {}
        about[part] = json.dumps({**inside, key: value} if part == "state" else value)
    path = scratch / "checkpoint.safetensors"
    tensors.write(path, leaves, about)
    answered(lambda: advance(JOB, checkpoint.load(JOB, path)), {path.name, "the checkpoint"})


KINDS: Mapping[str, Callable[[Path], None]] = {
    "settings, TOML": settings_files,
    "settings, flags": settings_flags,
    "data files": data_files,
    "wire messages": messages,
    "checkpoints": checkpoints,
}


def campaign(kind: str, number: int, seed: int, scratch: Path) -> tuple[int, dict[str, str]]:
    """(examples, what went wrong by place with an example); one fault does not hide the next."""
    done, faults, test = 0, dict[str, str](), KINDS[kind]
    inner = test.hypothesis.inner_test  # type: ignore[attr-defined]

    def collecting(scratch: Path, **given: Any) -> None:
        nonlocal done
        done += 1
        try:
            inner(scratch, **given)
        except Exception as fault:
            last = traceback.extract_tb(fault.__traceback__)
            own = [at for at in last if "/fedconcord/" in at.filename] or last
            place = f"{Path(own[-1].filename).name}:{own[-1].lineno}: {type(fault).__name__}"
            place = f"{fault}"[:60] if isinstance(fault, AssertionError) else place
            faults.setdefault(place, f"{fault} with {given}"[:500])

    test.hypothesis.inner_test = collecting  # type: ignore[attr-defined]
    try:
        hypothesis.seed(seed)(quickly(number)(test))(scratch)
    finally:
        test.hypothesis.inner_test = inner  # type: ignore[attr-defined]
    return done, faults


def quickly(number: int) -> hypothesis.settings:
    """So many examples, none kept, and no word on how long one takes."""
    return hypothesis.settings(
        max_examples=number, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )


def main() -> int:
    """Print a row a kind, and what went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=10000, help="examples of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=KINDS)
    given, bad = parser.parse_args(), 0
    here = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (here + MEMORY, here + MEMORY))
    with tempfile.TemporaryDirectory() as scratch:
        for kind in given.kind or KINDS:
            done, faults = campaign(kind, given.n, given.seed, Path(scratch))
            print(f"| {kind} | {done} | {len(faults)} |", flush=True)
            for place, said in faults.items():
                print(f"  {place}\n    {said}", flush=True)
            bad += len(faults)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
