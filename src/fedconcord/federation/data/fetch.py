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
from collections.abc import Callable, Sequence
from pathlib import Path

from fedconcord.federation.data.pixels import CIFAR10, CIFAR100, FMNIST, MNIST, check
from fedconcord.federation.data.published import Download, Published
from fedconcord.federation.data.uci import ESR, HAR
from fedconcord.support import files
from fedconcord.support.errors import UserError, unknown

PUBLISHED: dict[str, Published] = {each.name: each for each in (MNIST, FMNIST, CIFAR10, CIFAR100, HAR, ESR)}
BLOCK = 1 << 18  # bytes read at once
TIMEOUT = 60.0  # seconds without a byte
Progress = Callable[[str, int, int | None], None]
"""(file name, bytes there, bytes in all or None)."""


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
        UserError: the name is unknown, no URL responses, or a checksum or an archive is not as published.
    """
    if name not in PUBLISHED:
        raise unknown("publisher's data set", name, PUBLISHED)
    published, every = PUBLISHED[name], list[Path]()
    for download in published.downloads:
        paths = [folder / path for path in download.files]
        every += paths
        if not again and all(path.is_file() for path in paths):
            for path in paths if published.contents else ():
                check(path, published.contents)
            continue
        if mirror is not None:
            download = download._replace(urls=(f"{mirror.rstrip('/')}/{download.name}",))
        record = paths[0].with_name(f"{download.name}.sha256")
        part = paths[0].with_name(f"{download.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        _get(download, part, progress)
        sha256 = _verify(download, part, record)
        for path, content in _contents(download, part, folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_bytes(path, content)
        part.unlink()
        if download.checksum is None:
            files.write_text(record, f"{sha256}  {download.name}\n")
            say(f"fetched {download.name}, SHA-256 {sha256}: trusted, as no checksum is known, and kept in {record}")
        else:
            say(f"fetched {download.name}, {download.checksum}: verified")
    return every


def _get(download: Download, part: Path, progress: Progress) -> None:
    """The download in `part`, from the first URL that responses; what is there of it is continued."""
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
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()  # there is nothing after what we have: it is whole, or not of this file, which the sum will say
        return
    with response, open(part, "r+b" if have else "wb") as file:
        start = have if response.status == 206 else 0
        file.seek(start)
        file.truncate()
        length = response.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        got = start
        while block := response.read(BLOCK):
            file.write(block)
            got += len(block)
            progress(got, total)
    if total is not None and got < total:
        raise OSError(f"the connection ended after {got} of {total} bytes")


def _verify(download: Download, part: Path, record: Path) -> str:
    """The SHA-256 of a download whose checksum agrees; one that does not is deleted."""
    kind, _, right = (download.checksum or "sha256:").partition(":")
    if not right and record.is_file():
        right = record.read_text().split()[0]
    sha256, actual = (_digest(part, algorithm) for algorithm in ("sha256", kind))
    if right and actual != right:
        part.unlink()
        whose = "the published" if download.checksum else f"that of the first time, in {record}, which you may delete,"
        raise UserError(
            f"{download.name} has the {kind.upper()} {actual}, {whose} is {right}; what arrived is deleted: try again "
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
        members = _members(archive, [*download.files.values()])
        return [(folder / path, members[member]) for path, member in download.files.items()]
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
    contents = {}
    source = archive.open("rb") if isinstance(archive, Path) else archive
    with source, tarfile.open(fileobj=source) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.name in names else None
            if stream is not None:
                contents[member.name] = stream.read()
    return contents
