"""Detached signatures of models and reports: who approved which bytes, of which job, and when.

A statement is a line of canonical JSON beside what it is about, its signature (Ed25519, RFC 8032) a file of 64 bytes,
so that `openssl pkeyutl -verify -rawin` needs nothing of this package. Keys are PEM files; whoever verifies got the
public one from its approver by another way than the folder.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

import fedconcord
from fedconcord.support.errors import UserError, reason
from fedconcord.support.files import private_folder, write_bytes

KIND = "fedconcord statement 1"  # in what is signed, so that a signature of anything else says nothing here
STATEMENT, SIGNATURE = "statement.json", "statement.sig"  # in a folder; beside a file, after its name and a dot
MAKES = "`fedconcord flower keys approver`"
PEM = serialization.Encoding.PEM


class Statement(NamedTuple):
    """What an approver signs."""

    approver: str
    files: dict[str, str]  # name below the folder -> SHA-256
    job: str  # digest of its settings, as a site's policy approves it
    package: str  # version of fedconcord
    time: str  # UTC, ISO 8601
    kind: str = KIND

    def canonical(self) -> bytes:
        """The bytes that are signed."""
        text = json.dumps(self._asdict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return f"{text}\n".encode()


def write_approver(folder: Path, name: str) -> tuple[Path, Path]:
    """An approver's key NAME.approver.key, and NAME.approver.pem, which is for who verifies.

    Raises:
        UserError: the key is there already.
    """
    private_folder(folder)
    secret, public = (folder / f"{name}.approver.{end}" for end in ("key", "pem"))
    if secret.exists():
        raise UserError(f"{secret} is there already; who verifies knows {name} by it: delete it to make another")
    key, form = ed25519.Ed25519PrivateKey.generate(), serialization.PublicFormat.SubjectPublicKeyInfo
    pkcs8 = serialization.PrivateFormat.PKCS8
    write_bytes(secret, key.private_bytes(PEM, pkcs8, serialization.NoEncryption()), mode=0o600)
    write_bytes(public, key.public_key().public_bytes(PEM, form))
    return secret, public


def places(path: Path) -> tuple[Path, Path]:
    """Where the statement and the signature of a folder or of a file are."""
    first, second = (path / name if path.is_dir() else Path(f"{path}.{name}") for name in (STATEMENT, SIGNATURE))
    return first, second


def digests(path: Path) -> dict[str, str]:
    """The SHA-256 of a file, or of every file in a folder and below but for the statement, by name.

    Raises:
        UserError: there is nothing, or a file cannot be read.
    """
    inside = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    base = path.parent if path.is_file() else path
    names = {one.relative_to(base).as_posix(): one for one in inside if one not in places(path)}
    if not names:
        raise UserError(f"{path} has no file; name a model, a report, or a folder of results")
    return {name: hashlib.sha256(_read(one)).hexdigest() for name, one in names.items()}


def sign(path: Path, key: Path, approver: str, job: str) -> Statement:
    """Write the statement of a file or folder, and its signature.

    Args:
        key: of `write_approver`.
        job: the digest of its settings.

    Raises:
        UserError: the key is no approver's, or there is nothing to sign.
    """
    content = _read(key, MAKES)
    try:
        secret = serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        secret = None
    if not isinstance(secret, ed25519.Ed25519PrivateKey):
        raise UserError(f"{key} is no approver's key; it is the .approver.key file that {MAKES} writes")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    statement = Statement(approver, digests(path), job, fedconcord.__version__, now)
    words, signature = places(path)
    write_bytes(words, statement.canonical())
    write_bytes(signature, secret.sign(statement.canonical()))
    return statement


def verify(path: Path, key: Path, job: str | None = None) -> Statement:
    """What an approver said of a file or folder, which is as it was then.

    Args:
        key: the approver's public key.
        job: the digest that it must be of; any if none.

    Raises:
        UserError: there is no signature, it is another's or of other words, it is of another job, or a file was
            changed, is missing or was added, in a sentence.
    """
    content = _read(key, MAKES)
    try:
        public = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        public = None
    if not isinstance(public, ed25519.Ed25519PublicKey):
        raise UserError(f"{key} is no approver's public key; it is the .approver.pem file that {MAKES} writes")
    first, second = places(path)
    content, signature = _read(first), _read(second)
    try:
        public.verify(signature, content)
        statement = Statement(**json.loads(content))
        if statement.kind != KIND or statement.canonical() != content:
            raise ValueError
    except InvalidSignature:
        raise UserError(f"{first} was changed, or not signed with the key of {key}; do not use {path}") from None
    except (ValueError, TypeError):
        raise UserError(f"{first} is signed and is no statement of this version; ask its approver for one") from None
    if job is not None and statement.job != job:
        raise UserError(f"{path} was signed for job {statement.job}, and not for {job}; do not use it for this one")
    _compare(path, statement)
    return statement


def _compare(path: Path, statement: Statement) -> None:
    now, then = digests(path), statement.files
    changes = {
        "was changed": [name for name in then if name in now and now[name] != then[name]],
        "is missing": [name for name in then if name not in now],
        "was added": [name for name in now if name not in then],
    }
    words = [f"{name} {what}" for what, names in changes.items() for name in names]
    if words:
        since = f"since {statement.approver} signed it at {statement.time}"
        raise UserError(f"{path}: {'; '.join(words)} {since}; restore it, or have it signed again")


def _read(path: Path, makes: str = "`fedconcord flower sign`") -> bytes:
    """The bytes of a file, by the command that makes it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({reason(error)}); {makes} writes such files") from None
