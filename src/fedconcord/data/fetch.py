"""Publishers' files, fetched to where the data sets look for them, verified before anything of them is used.

Only files named in `PUBLISHED` are written, each at the place named there, so that no archive can choose a path. A
download goes to a file ending in .part, which a later call continues; it becomes the file in one step, after its
checksum agreed. A file whose publisher gives no checksum is trusted the first time: its SHA-256 is kept beside it, and
another one is refused later.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fedconcord.basis import files
from fedconcord.basis.errors import UserError, unknown
from fedconcord.data.cifar10 import TEST, TRAIN
from fedconcord.data.fmnist import CONTENTS as FMNIST
from fedconcord.data.har import FILES as HAR
from fedconcord.data.har import FOLDER as HAR_FOLDER
from fedconcord.data.mnist import CONTENTS as MNIST
from fedconcord.data.mnist import check

BLOCK = 1 << 18  # bytes read at once
TIMEOUT = 60.0  # seconds without a byte
Progress = Callable[[str, int, int | None], None]
"""(file name, bytes there, bytes in all or None)."""


class Download(NamedTuple):
    """One file of a publisher and what becomes of it."""

    urls: tuple[str, ...]  # tried in turn
    checksum: str | None  # "md5:<hex>" or "sha256:<hex>"; None: no sum is known
    files: Mapping[str, str]  # path below the data folder -> member of the archive ("": the download itself)
    inside: str | None = None  # the archive in the archive that the members are in
    note: str = ""  # where the checksum is from, and what else there is to know

    @property
    def name(self) -> str:
        """The download's own file name."""
        return PurePosixPath(self.urls[0]).name


def _idx(folder: str, sums: Mapping[str, str], *bases: str) -> tuple[Download, ...]:
    return tuple(
        Download(tuple(f"{base}{name}-ubyte.gz" for base in bases), f"md5:{md5}", {f"{folder}/{name}-ubyte.gz": ""})
        for name, md5 in sums.items()
    )


CONTENTS = {"mnist": MNIST, "fmnist": FMNIST}  # data sets whose files say what they hold
PUBLISHED: dict[str, tuple[Download, ...]] = {
    "mnist": _idx(
        "mnist",
        {  # as in torchvision
            "train-images-idx3": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        "https://yann.lecun.com/exdb/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    "fmnist": _idx(
        "fmnist",
        {  # from the publisher's page
            "train-images-idx3": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    "cifar10": (
        Download(
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            "md5:c32a1d4ab5d03f1284b67883e8d87530",  # from the publisher's page
            {f"cifar-10-batches-bin/{name}": f"cifar-10-batches-bin/{name}" for name in (*TRAIN, TEST)},
        ),
    ),
    "cifar100": (
        Download(
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
            "md5:03b5dce01913d631647c71ecec9e9cb8",  # from the publisher's page
            {f"cifar-100-binary/{name}": f"cifar-100-binary/{name}" for name in ("train.bin", "test.bin")},
        ),
    ),
    "har": (
        Download(
            ("https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",),
            "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
            {f"{HAR_FOLDER}/{name}": f"UCI HAR Dataset/{name}" for name in HAR},
            "UCI HAR Dataset.zip",
            "UCI gives no checksum; this one is what several public projects recorded",
        ),
    ),
    "esr": (
        Download(
            (
                "https://archive.ics.uci.edu/ml/machine-learning-databases/00388/data.csv",
                "https://web.archive.org/web/20200318000445id_/"
                "http://archive.ics.uci.edu/ml/machine-learning-databases/00388/data.csv",
            ),
            None,
            {"esr/data.csv": ""},
            note="no checksum is known; UCI may have withdrawn the file, then the Internet Archive's copy is taken",
        ),
    ),
}


def fetch(
    name: str,
    folder: Path,
    *,
    again: bool = False,
    mirror: str | None = None,
    progress: Progress = lambda name, got, total: None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Fetch what is missing of a data set into the data folder; the paths of its files, fetched or already there, which
    must be the published ones where that is known.

    Args:
        again: fetch also what is there.
        mirror: a URL to whose end a download's file name is put, in place of the publisher's; checksums stay.

    Raises:
        UserError: the name is unknown, no URL answers, or a checksum or an archive is not as published.
    """
    if name not in PUBLISHED:
        raise unknown("publisher's data set", name, PUBLISHED)
    found = []
    for download in PUBLISHED[name]:
        paths = [folder / path for path in download.files]
        found += paths
        if not again and all(path.is_file() for path in paths):
            for path in paths if name in CONTENTS else ():
                check(path, CONTENTS[name])
            continue
        if mirror is not None:
            download = download._replace(urls=(f"{mirror.rstrip('/')}/{download.name}",))
        kept = paths[0].with_name(f"{download.name}.sha256")
        part = paths[0].with_name(f"{download.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        _get(download, part, progress)
        sha256 = _verify(download, part, kept)
        for path, content in _contents(download, part, folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_bytes(path, content)
        part.unlink()
        if download.checksum is None:
            files.write_text(kept, f"{sha256}  {download.name}\n")
            say(f"fetched {download.name}, SHA-256 {sha256}: trusted, as no checksum is known, and kept in {kept}")
        else:
            say(f"fetched {download.name}, {download.checksum}: verified")
    return found


def _get(download: Download, part: Path, progress: Progress) -> None:
    """The download in `part`, from the first URL that answers; what is there of it is continued."""
    refusals = []
    for url in download.urls:
        try:
            _transfer(url, part, lambda got, total: progress(download.name, got, total))
            return
        except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: no URL at all
            why = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else str(error) or repr(error)
            refusals.append(f"{url}: {why}")
    by_hand = "it" if "" in download.files.values() else "what it unpacks to"
    raise UserError(
        f"cannot fetch {download.name} ({'; '.join(refusals)}); try again, which continues what has arrived, give a "
        f"--mirror, or copy {by_hand} into {part.parent}"
    )


def _transfer(url: str, part: Path, progress: Callable[[int, int | None], None]) -> None:
    """Append to `part` what it lacks of a URL's content; from the start where the server cannot continue."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()  # there is nothing after what we have: it is whole, or not of this file, which the sum will say
        return
    with answer, open(part, "r+b" if have else "wb") as file:
        start = have if answer.status == 206 else 0
        file.seek(start)
        file.truncate()
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        got = start
        while block := answer.read(BLOCK):
            file.write(block)
            got += len(block)
            progress(got, total)
    if total is not None and got < total:
        raise OSError(f"the connection ended after {got} of {total} bytes")


def _verify(download: Download, part: Path, kept: Path) -> str:
    """The SHA-256 of a download whose checksum agrees; one that does not is deleted."""
    kind, _, wanted = (download.checksum or "sha256:").partition(":")
    if not wanted and kept.is_file():
        wanted = kept.read_text().split()[0]
    sha256, given = (_digest(part, algorithm) for algorithm in ("sha256", kind))
    if wanted and given != wanted:
        part.unlink()
        whose = "the published" if download.checksum else f"that of the first time, in {kept}, which you may delete,"
        raise UserError(
            f"{download.name} has the {kind.upper()} {given}, {whose} is {wanted}; what arrived is deleted: try again "
            "later, or take another --mirror"
        )
    return sha256


def _digest(path: Path, algorithm: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def _contents(download: Download, part: Path, folder: Path) -> list[tuple[Path, bytes]]:
    """Each file of a download with its bytes: the download itself, or members of an archive, by their exact names."""
    if [*download.files.values()] == [""]:
        return [(folder / path, part.read_bytes()) for path in download.files]
    try:
        archive: Path | io.BytesIO = part
        if download.inside is not None:
            archive = io.BytesIO(_members(part, [download.inside])[download.inside])
        found = _members(archive, [*download.files.values()])
        return [(folder / path, found[member]) for path, member in download.files.items()]
    except (KeyError, tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error) as error:
        part.unlink()
        raise UserError(
            f"{download.name} is not the archive that was published: {' '.join(str(error).split())}; it is deleted"
        ) from error


def _members(archive: Path | io.BytesIO, names: Sequence[str]) -> dict[str, bytes]:
    """The bytes of some members of a zip archive or a tar archive, in one pass."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            return {name: opened.read(name) for name in names}
    found = {}
    source = archive.open("rb") if isinstance(archive, Path) else archive
    with source, tarfile.open(fileobj=source) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.name in names else None
            if stream is not None:
                found[member.name] = stream.read()
    return found
