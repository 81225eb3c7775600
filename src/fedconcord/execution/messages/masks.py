"""The arithmetic of a secure sum: keys, shares of secrets, masks that cancel, numbers as integers.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, with the complete
graph; of SecAgg+ (Bell et al., CCS 2020), which draws a sparse one for cohorts of hundreds, it is the case k = n - 1.
Keys are X25519, agreed ones go through HKDF-SHA256, shares travel under ChaCha20-Poly1305, masks are ChaCha20 streams,
signatures ECDSA over P-384, all of the package `cryptography`; randomness is the operating system's. Own code is
Shamir's scheme and the arithmetic modulo 2^32 or 2^64. Nothing here is constant in time.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedconcord.support.errors import UserError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256, SHA384
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise UserError(
        "secure sums need the package cryptography; install it with: pip install 'fedconcord[secure]'"
    ) from error

KEY = 32  # bytes of a key, of a seed and of a commitment
PRIME = 2**521 - 1  # of Shamir's field; a Mersenne prime above every secret of 256 bits
SHARE = 66  # bytes of a share
SEALED = 2 * SHARE + 16  # bytes of two shares under encryption, with the tag
SIGNATURE = 96  # bytes of a signature: two numbers of P-384's order


# -- keys ------------------------------------------------------------------------------------------------------------


def new_key() -> bytes:
    """A private key [32]; also a seed."""
    return secrets.token_bytes(KEY)


def public_of(private: bytes) -> bytes:
    """The public key [32] of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """The key [32] that two have in common for one purpose.

    Raises:
        ValueError: the public key is none.
    """
    common = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    key: bytes = HKDF(SHA256(), KEY, None, b"fedconcord " + purpose).derive(common)
    return key


def usable(public: bytes) -> bool:
    """Whether anybody could agree on a key with this public one; with some points nobody can."""
    try:
        agreed(new_key(), public, b"")
    except ValueError:
        return False
    return True


def commitment(seed: bytes) -> bytes:
    """What is told of a seed beforehand [32], by which the seed is known again."""
    return hashlib.sha256(b"fedconcord seed " + seed).digest()


def seal(key: bytes, shares: bytes, about: bytes) -> bytes:
    """Shares under a key that is used once, and bound to what they are about."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), shares, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """The inverse of `seal`; None where it was made with another key or about something else."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, about)
    except InvalidTag:
        return None


# -- signatures ------------------------------------------------------------------------------------------------------


class Peer(NamedTuple):
    """A client as another one knows it, by other ways than the server."""

    name: str
    key: ec.EllipticCurvePublicKey  # of P-384, that lasts


class Ring(NamedTuple):
    """What a client signs with, and whom it knows."""

    key: ec.EllipticCurvePrivateKey  # its own, of P-384, that lasts
    peers: Mapping[int, Peer]  # all clients of its job by their numbers, itself among them


def signed(key: ec.EllipticCurvePrivateKey, digest: bytes) -> bytes:
    """The signature [96] of a digest; no other use of these keys signs what begins with the same words."""
    r, s = decode_dss_signature(key.sign(b"fedconcord secure sum " + digest, ec.ECDSA(SHA384())))
    return r.to_bytes(SIGNATURE // 2) + s.to_bytes(SIGNATURE // 2)


def is_signed(key: ec.EllipticCurvePublicKey, signature: bytes, digest: bytes) -> bool:
    """Whether this is a signature of a digest, by the owner of the key."""
    r, s = (int.from_bytes(half) for half in (signature[: SIGNATURE // 2], signature[SIGNATURE // 2 :]))
    try:
        key.verify(encode_dss_signature(r, s), b"fedconcord secure sum " + digest, ec.ECDSA(SHA384()))
    except InvalidSignature:
        return False
    return True


# -- shares ----------------------------------------------------------------------------------------------------------


def split(secret: bytes, places: int, needed: int) -> list[bytes]:
    """Shares [66] of a secret for places 1, 2, ...: any `needed` of them are the secret, fewer say nothing of it.

    Shamir, "How to share a secret", Communications of the ACM, 1979.
    """
    terms = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(needed - 1))]
    shares = []
    for x in range(1, places + 1):
        value = 0
        for term in reversed(terms):
            value = (value * x + term) % PRIME
        shares.append(value.to_bytes(SHARE))
    return shares


def joined(shares: Mapping[int, bytes]) -> bytes:
    """The secret [32] of shares by place, as many as are needed; what comes of wrong ones is another."""
    value: int = 0
    for x, share in shares.items():
        above = math.prod(y for y in shares if y != x)
        below = math.prod(y - x for y in shares if y != x)
        value += int.from_bytes(share) * above * int(pow(below, -1, PRIME))
    return (value % PRIME % (1 << 8 * KEY)).to_bytes(KEY)


# -- masks -----------------------------------------------------------------------------------------------------------


def mask(seed: bytes, length: int, kind: np.dtype[np.unsignedinteger]) -> np.ndarray:
    """Integers [length] that look uniform to who does not have the seed; a seed is used for one mask."""
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(length * kind.itemsize))
    return np.frombuffer(stream, kind.newbyteorder("<")).astype(kind)


def pairwise(
    own_id: int,
    private: bytes,
    others: Mapping[int, bytes],
    purpose: bytes,
    length: int,
    kind: np.dtype[np.unsignedinteger],
) -> np.ndarray:
    """The sum [length] of a client's masks with others, by their public keys: what it adds the other takes off."""
    total = np.zeros(length, kind)
    for other, public in others.items():
        common = mask(agreed(private, public, purpose), length, kind)
        total = total + common if own_id < other else total - common
    return total
