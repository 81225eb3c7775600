"""Certificates of a server and keys of sites, made and looked at before anything starts with them.

The files are those that Flower's SuperLink and SuperNode take: PEM certificates, and elliptic keys (P-384) in OpenSSH's
form. `cryptography` comes with the extra `flower`.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedconcord.support.errors import UserError, reason
from fedconcord.support.files import private_folder, write_bytes

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    from fedconcord_sites import ring
except ImportError as error:
    from fedconcord_flower import INSTALL

    raise UserError(INSTALL) from error

DAYS = 365  # that new certificates are valid
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
PEM = serialization.Encoding.PEM


class Server(NamedTuple):
    """The files of a server."""

    authority: Path  # the certificate that sites trust; PEM
    certificate: Path  # the server's own; PEM
    key: Path  # of that certificate; nobody else may have it


def server_files(folder: Path) -> Server:
    return Server(folder / "ca.crt", folder / "server.crt", folder / "server.key")


def check_names(sites: Sequence[str]) -> None:
    """Raises:
    UserError: a name that is not letters, digits, dots, dashes and underscores, or one that is there twice.
    """
    for site in sites:
        if not NAME.fullmatch(site):
            raise UserError(
                f"a site's name has letters, digits, '.', '-' and '_' and at most 63 of them, given {site!r}; "
                "rename its file or site"
            )
        if sites.count(site) > 1:
            raise UserError(f"two sites are named {site!r}; every site needs a name of its own")
    if not sites:
        raise UserError("no site is named; a federation needs at least one")


def write_server(folder: Path, hosts: Sequence[str], days: int = DAYS) -> Server:
    """A certificate authority, and one server certificate for these host names and addresses, and for 127.0.0.1, where
    the server's own processes reach it.

    The authority's key is not kept: `rotation.rotate_server` makes both anew, and sites trust both for a while.

    Raises:
        UserError: files of a server are there already.
    """
    files = server_files(folder)
    if any(path.exists() for path in files):
        raise UserError(f"{folder} has a server's keys already; sites trust them: name another folder or delete them")
    private_folder(folder)
    now = datetime.datetime.now(datetime.UTC)
    authority, certificate = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))

    def begun(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        name, issuer = (
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, word)]) for word in (subject, "fedconcord authority")
        )
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))  # a site's clock may be slow
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        )

    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    root = (
        begun("fedconcord authority", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .add_extension(usage, critical=True)
        .sign(authority, hashes.SHA256())
    )
    leaf = (
        begun("fedconcord server", certificate)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys([*hosts, "127.0.0.1"])]),
            critical=False,
        )
        .sign(authority, hashes.SHA256())
    )
    write_bytes(files.authority, root.public_bytes(PEM))
    write_bytes(files.certificate, leaf.public_bytes(PEM))
    _write_secret(files.key, certificate, serialization.PrivateFormat.PKCS8)
    return files


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_secret(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    """For its owner's eyes from the first byte on."""
    write_bytes(path, key.private_bytes(PEM, form, serialization.NoEncryption()), mode=0o600)


def write_site(folder: Path, site: str) -> Path:
    """A site's key NAME.key, and NAME.pub beside it, which is for the server.

    Raises:
        UserError: the key is there already.
    """
    private_folder(folder)
    path = folder / f"{site}.key"
    if path.exists():
        raise UserError(f"{path} is there already; the server knows the site by it: delete it to make another")
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PublicFormat.OpenSSH
    _write_secret(path, key, serialization.PrivateFormat.OpenSSH)
    write_bytes(path.with_suffix(".pub"), key.public_key().public_bytes(serialization.Encoding.OpenSSH, form) + b"\n")
    return path


def public_key(path: Path) -> bytes:
    """The public key in a .pub file, as the server's list of sites has it (PEM); raises as `ring.public_key`."""
    return ring.public_key(path).public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def public_of(path: Path) -> bytes:
    """The public half (PEM) of a site's key; raises as `ring.private_key`."""
    return ring.private_key(path).public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def mark_of(key: bytes) -> str:
    """The fingerprint of a public key (PEM)."""
    loaded = serialization.load_pem_public_key(key)
    assert isinstance(loaded, ec.EllipticCurvePublicKey)
    return ring.fingerprint(loaded)


def fingerprints(folder: Path) -> dict[str, str]:
    """The fingerprint of each .pub file in a folder, by site.

    Raises:
        UserError: there is none, or a file is no key.
    """
    paths = sorted(folder.glob("*.pub"))
    if not paths:
        raise UserError(f"{folder} has no site's public key; `fedconcord flower keys site NAME` makes one")
    return {path.stem: ring.fingerprint(ring.public_key(path)) for path in paths}


def check_server(files: Server) -> None:
    """Raises:
    UserError: a file is missing, expired, not of the authority, or not of the key.
    """
    authorities, leaf = certificates(files.authority), certificate(files.certificate)
    if not any(_issued(leaf, authority) for authority in authorities):
        raise UserError(f"{files.certificate} was not issued by {files.authority}; make both anew")
    data = _read(files.key)
    try:
        key = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UserError(f"{files.key} is no private key in PEM form without a password") from None
    form = (PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        raise UserError(f"{files.key} is not the key of {files.certificate}; give the two that were made together")


def _issued(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def certificate(path: Path) -> x509.Certificate:
    """The first valid one in a file; raises as `certificates`."""
    return certificates(path)[0]


def certificates(path: Path) -> list[x509.Certificate]:
    """Those in a file that are valid today: while the server's is replaced, sites trust two authorities.

    Raises:
        UserError: the file has none, or none that is valid.
    """
    content = _read(path)
    try:
        every = x509.load_pem_x509_certificates(content)
    except ValueError:
        raise UserError(f"{path} is no certificate in PEM form") from None
    now = datetime.datetime.now(datetime.UTC)
    valid = [one for one in every if one.not_valid_before_utc <= now <= one.not_valid_after_utc]
    if not valid and now > every[0].not_valid_after_utc:
        raise UserError(
            f"{path} expired on {every[0].not_valid_after_utc:%Y-%m-%d}; `fedconcord flower keys` makes another"
        )
    if not valid:
        raise UserError(
            f"{path} is valid from {every[0].not_valid_before_utc:%Y-%m-%d %H:%M} UTC on; look at the clock"
        )
    return valid


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({reason(error)}); `fedconcord flower keys` makes such files") from None


def address_of(text: str) -> tuple[str, int]:
    """Host and port of 'host:port'.

    Raises:
        UserError: it is not of this form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"a server's address is host:port, as in server.example.org:8443, given {text!r}")
    return host.strip("[]"), int(port)


def check_reachable(address: str, authority: Path, seconds: float = 10.0) -> None:
    """A TLS handshake with the server, to say what is wrong before anything is started.

    Raises:
        UserError: nobody answers there, its certificate is not of this authority, has expired or is for another host.
    """
    host, port = address_of(address)
    certificates(authority)
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with (
            socket.create_connection((host, port), timeout=seconds) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            f"the certificate of the server at {address} is refused ({error.verify_message}); {authority} must be the "
            "ca.crt that was made with the server's certificate, for this host"
        ) from None
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"no server answers at {address} ({reason(error)}); is it started, and is the port open on the way?"
        ) from None
