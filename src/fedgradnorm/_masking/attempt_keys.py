"""The keys of one attempt, and shares sealed for one reader.

X25519 agrees on secrets, HKDF makes keys of them, ChaCha20-Poly1305 seals. A mask's seed is made
for one pair, one attempt, one set of clients and one thing that is summed: clients that were told
different things have different masks, and their sum is chance.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedgradnorm._masking.roster import Table, Unsafe, digest, from_text, to_text

SEED = 32  # bytes of every secret here
PARTS = ("masks", "letters", "own")


@dataclass(frozen=True)
class AttemptKeys:
    """A client's secrets of one attempt: for masks with others, for letters, and its own mask."""

    masks: bytes
    letters: bytes
    own: bytes

    @classmethod
    def new(cls) -> AttemptKeys:
        """Fresh ones."""
        return cls(*(secrets.token_bytes(SEED) for _ in range(3)))

    def public(self) -> dict[str, str]:
        """What the others may know; ``own`` is only pinned down."""
        return {
            "masks": to_text(_public(self.masks)),
            "letters": to_text(_public(self.letters)),
            "own": digest(to_text(self.own)),
        }

    def seal(self, reader: Table, about: Mapping[str, str], shares: Mapping[str, str]) -> str:
        """Shares that only the reader with these public keys can open."""
        nonce, label = secrets.token_bytes(12), _label(about)
        key = ChaCha20Poly1305(agreed(self.letters, reader["letters"], "letter", label))
        return to_text(nonce + key.encrypt(nonce, json.dumps(dict(shares)).encode(), label))

    def unseal(self, writer: Table, about: Mapping[str, str], letter: Any) -> dict[str, str]:
        """The shares; Unsafe if they are not from this writer to this reader in this attempt."""
        label = _label(about)
        try:
            data = from_text(letter)
            key = ChaCha20Poly1305(agreed(self.letters, writer["letters"], "letter", label))
            table = json.loads(key.decrypt(data[:12], data[12:], label))
            return {"masks": str(table["masks"]), "own": str(table["own"])}
        except (InvalidTag, ValueError, KeyError, TypeError) as error:
            raise Unsafe(f"the shares of {about['writer']!r} cannot be opened") from error


def agreed(private: bytes, public: Any, purpose: str, label: bytes) -> bytes:
    """A key that both owners of a pair come to, for one purpose."""
    other = X25519PublicKey.from_public_bytes(from_text(public))
    shared = X25519PrivateKey.from_private_bytes(private).exchange(other)
    return derived(shared, purpose, label)


def derived(secret: bytes, purpose: str, label: bytes) -> bytes:
    """A key of 32 bytes for one purpose."""
    info = b"fedgradnorm masking 2 " + purpose.encode() + b" " + label
    return HKDF(algorithm=hashes.SHA256(), length=SEED, salt=None, info=info).derive(secret)


def fits(private: bytes, public: Any) -> bool:
    """Whether a private key belongs to a public one."""
    return bool(to_text(_public(private)) == public)


def check_public(said: Table) -> dict[str, str]:
    """The three public parts of a client's keys; Unsafe unless others can use them."""
    try:
        found = {part: said[part] for part in PARTS}
        for part in ("masks", "letters"):
            agreed(bytes(range(SEED)), found[part], "check", b"")  # a point of small order raises
        if len(found["own"]) != 2 * SEED or not bytes.fromhex(found["own"]):
            raise ValueError("no digest")
    except (KeyError, TypeError, ValueError) as error:
        raise Unsafe("keys: a public key that cannot be used") from error
    return found


def share_digests(shares: Mapping[str, str]) -> dict[str, str]:
    """What pins a client's shares down before they are shown: whoever changes one is named."""
    return {kind: digest(shares[kind]) for kind in ("masks", "own")}


def _label(about: Mapping[str, str]) -> bytes:
    return digest(dict(about)).encode()


def _public(private: bytes) -> bytes:
    key = X25519PrivateKey.from_private_bytes(private).public_key()
    return key.public_bytes(form.Encoding.Raw, form.PublicFormat.Raw)
