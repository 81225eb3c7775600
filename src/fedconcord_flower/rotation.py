"""Keys and certificates that are replaced while a federation stands, and keys that are withdrawn.

In a folder of keys NAME.pub is let in and pinned; `before/NAME.pub` is let in until the key after it was there;
`revoked/` is refused for ever. A site's next key is vouched for by the one that is pinned: NAME.pub.next has its
signature. The server's next certificate is in `next/`, and ca.crt has both authorities until it takes its place.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import shutil
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedconcord.support.errors import UserError
from fedconcord.support.files import private_folder, write_bytes
from fedconcord_flower import keys
from fedconcord_sites import ring

ALGORITHM = ec.ECDSA(hashes.SHA384())
NEXT = ".next"


def rotate_site(folder: Path, site: str) -> Path:
    """Make a site's next key NAME.key.next; NAME.pub.next, with its signature by the present key, is for all others.

    Raises:
        UserError: there is no present key, or a next one already.
    """
    present, coming = folder / f"{site}.key", folder / f"{site}.key{NEXT}"
    key = ring.private_key(present)
    if coming.exists():
        raise UserError(f"{coming} is there already; `fedconcord flower site` takes it once the server knows it")
    (folder / "next" / f"{site}.key").unlink(missing_ok=True)  # of a crash
    fresh = keys.write_site(folder / "next", site)
    text = ring.as_text(ring.private_key(fresh).public_key())
    mark = base64.b64encode(key.sign(_words(site, text), ALGORITHM)).decode()
    write_bytes(folder / f"{site}.pub{NEXT}", f"{text} {mark}\n".encode())
    os.replace(fresh, coming)
    fresh.with_suffix(".pub").unlink()
    with contextlib.suppress(OSError):  # the server's next certificate may be there too
        fresh.parent.rmdir()
    return folder / f"{site}.pub{NEXT}"


def accept(folder: Path, file: Path) -> str:
    """Pin a site's next key in place of its present one, which vouches for it; the site's name.

    Raises:
        UserError: it is no such file, is not signed by the key that is pinned, or was revoked.
    """
    site = file.name.removesuffix(f".pub{NEXT}")
    if site == file.name:
        raise UserError(f"{file} is no NAME.pub{NEXT}, which `fedconcord flower keys rotate NAME` writes; give that")
    keys.check_names([site])
    pinned = folder / f"{site}.pub"
    present, coming = ring.public_key(pinned), keys.public_key(file)
    try:
        text, _, mark = file.read_text().strip().rpartition(" ")
        present.verify(base64.b64decode(mark, validate=True), _words(site, text), ALGORITHM)
    except (InvalidSignature, binascii.Error, ValueError):
        raise UserError(
            f"{file} is not signed by the key of {site} that is pinned, {ring.fingerprint(present)}; if that key was "
            f"lost or stolen revoke it, and take a new {site}.pub whose fingerprint was compared with the site"
        ) from None
    if coming in revoked(folder):
        raise UserError(f"{file} is a key that was revoked; the site has to make another")
    private_folder(folder / "before")
    write_bytes(folder / "before" / f"{site}.pub", pinned.read_bytes())
    write_bytes(pinned, f"{text}\n".encode())
    return site


def revoke(folder: Path, site: str) -> list[str]:
    """Withdraw a site's keys, the present one and the one before; their fingerprints.

    Raises:
        UserError: it has none here.
    """
    paths = [path for path in (folder / f"{site}.pub", folder / "before" / f"{site}.pub") if path.exists()]
    if not paths:
        raise UserError(
            f"{folder} has no {site}.pub; name a site whose key is there, or look into {folder / 'revoked'}"
        )
    marks = [ring.fingerprint(ring.public_key(path)) for path in paths]
    for path in paths:
        withdraw(folder, path)
    return marks


def withdraw(folder: Path, path: Path) -> None:
    """Put one public key among those that are refused."""
    private_folder(folder / "revoked")
    mark = ring.fingerprint(ring.public_key(path)).partition(":")[2].replace("/", "_").replace("+", "-")
    os.replace(path, folder / "revoked" / f"{path.stem}.{mark}.pub")


def revoked(folder: Path) -> set[bytes]:
    """The public keys (PEM) that are refused."""
    return {keys.public_key(path) for path in (folder / "revoked").glob("*.pub")}


def take_next(folder: Path, site: str) -> None:
    """Put a site's next key in place of its present one."""
    key, coming = folder / f"{site}.key", folder / f"{site}.key{NEXT}"
    write_bytes(key.with_suffix(".pub"), f"{ring.as_text(ring.private_key(coming).public_key())}\n".encode())
    os.replace(coming, key)
    (folder / f"{site}.pub{NEXT}").unlink(missing_ok=True)


def rotate_server(folder: Path, days: int = keys.DAYS) -> keys.Server:
    """Make the server's next certificate for the same hosts, by a next authority, which ca.crt then has as well.

    Raises:
        UserError: there is no present certificate, or a next one already.
    """
    files = keys.server_files(folder)
    names = keys.certificate(files.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [str(name) for kind in (x509.DNSName, x509.IPAddress) for name in names.get_values_for_type(kind)]
    coming = keys.write_server(folder / "next", hosts, days)
    write_bytes(files.authority, files.authority.read_bytes() + coming.authority.read_bytes())
    return files


def switch_server(folder: Path) -> keys.Server:
    """Put the server's next certificate in place of the present one; done again after a crash it comes to the same.

    Raises:
        UserError: there is none, or it is not as it must be.
    """
    coming, files = keys.server_files(folder / "next"), keys.server_files(folder)
    keys.check_server(coming)
    for source, target, mode in zip(coming, files, (0o666, 0o666, 0o600), strict=True):
        write_bytes(target, source.read_bytes(), mode=mode)
    shutil.rmtree(folder / "next")
    return files


def _words(site: str, text: str) -> bytes:
    """What vouches for a site's next key."""
    return f"fedconcord next key 1\n{site}\n{text}\n".encode()
