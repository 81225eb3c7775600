"""The keys by which sites know each other: files of a folder that its site's owner fills, not the server.

`NAME.key` is the site's own, which `fedconcord flower keys` makes and Flower knows the site by. `NAME.pub` are the
other sites', each of which came by another way than the server, or was compared by its fingerprint. Both are elliptic
keys (P-384) in OpenSSH's form.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedconcord.execution.messages.codec import FrameError
from fedconcord.execution.messages.masks import Peer, Ring
from fedconcord.support.errors import UserError, reason
from fedconcord_sites.form import without

MAKES = "`fedconcord flower keys`"


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A site's key.

    Raises:
        UserError: the file cannot be read, or is no private key of P-384 in OpenSSH's form without a password.
    """
    data = _read(path)
    try:
        key = serialization.load_ssh_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UserError(f"{path} is no site's key; it is the .key file that {MAKES} writes")
    return key


def public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """The key in a .pub file.

    Raises:
        UserError: the file cannot be read, or is no public key of P-384 in OpenSSH's form.
    """
    data = _read(path)
    try:
        return of_text(data.decode())
    except ValueError:
        raise UserError(f"{path} is no site's public key; it is the .pub file that {MAKES} writes") from None


def of_text(text: str) -> ec.EllipticCurvePublicKey:
    """A public key.

    Raises:
        ValueError: it is none of P-384 in OpenSSH's form.
    """
    try:
        key = serialization.load_ssh_public_key(text.encode())
    except UnsupportedAlgorithm as other:
        raise ValueError(str(other)) from other
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ValueError("another kind of key")
    return key


def as_text(key: ec.EllipticCurvePublicKey) -> str:
    """The inverse of `of_text`, without a comment."""
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """What people compare, as `ssh-keygen -lf NAME.pub` prints it."""
    content = hashlib.sha256(base64.b64decode(as_text(key).split()[1])).digest()
    return f"SHA256:{base64.b64encode(content).decode().rstrip('=')}"


def known(folder: Path | None, name: str, sites: Sequence[str]) -> dict[str, str]:
    """The public keys of those of these sites that are in a site's folder, as text; its own is of its private one.

    Raises:
        UserError: a file is no key.
    """
    if folder is None:
        return {}
    paths = {one: folder / f"{one}.{'key' if one == name else 'pub'}" for one in sites if "/" not in one}
    return {
        one: as_text(private_key(path).public_key() if one == name else public_key(path))
        for one, path in paths.items()
        if path.exists()
    }


def ring(folder: Path | None, name: str, number: int, sites: Sequence[str]) -> Ring:
    """What a site takes part in secure sums with.

    Args:
        number: of the site, by the server.
        sites: all sites by number, by the server, which need not be trusted: what is not of these keys is refused.

    Raises:
        FrameError: the site is another one, or has no key of a site, in a sentence.
        UserError: a file is no key.
    """
    if not sites:
        raise FrameError("its job has secure sums, and the server's has none; give both the same job")
    if len({*sites}) < len(sites) or sites[number : number + 1] != [name]:
        raise FrameError(f"it is site {name}, and is called another one, or sites have one name")
    keys = known(folder, name, sites)
    lacking = [one for one in sites if one not in keys]
    if folder is None or lacking:
        raise FrameError(without(name, lacking))
    return Ring(
        private_key(folder / f"{name}.key"), {i: Peer(f"site {one}", of_text(keys[one])) for i, one in enumerate(sites)}
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({reason(error)}); {MAKES} makes such files") from None
