"""Who takes part, by public keys that nobody can add to, and messages signed by them.

A signature is over the run, the attempt, the step and everything that is said in it, so no message
can be used for another attempt, step or sender.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedgradnorm._errors import FedGradNormError

FEWEST = 3  # clients of a sum: of two, each knows the other by the sum
Table = Mapping[str, Any]


class Unsafe(FedGradNormError):
    """A client will not do it: it could show more than a sum, or to somebody else."""


@dataclass(frozen=True)
class Attempt:
    """One try to add something up: numbered by the server, never the same twice in a run."""

    run: str
    number: int


@dataclass(frozen=True)
class Roster:
    """The public keys of all clients, by name: from the federation's start, not from the server."""

    keys: Mapping[str, bytes]

    def said(self, attempt: Attempt, step: str, message: Table) -> tuple[str, Table]:
        """Who says it, and what; Unsafe unless the signature is that of a client here."""
        name, body = message.get("from"), message.get("body")
        if not isinstance(name, str) or not isinstance(body, Mapping):
            raise Unsafe(f"{step}: a message without sender or content")
        if name not in self.keys:
            raise Unsafe(f"{step}: {name[:40]!r} is not on the roster")
        try:
            signature = from_text(message.get("signature"))
            key = Ed25519PublicKey.from_public_bytes(self.keys[name])
            key.verify(signature, _signed(attempt, step, name, body))
        except (InvalidSignature, ValueError, TypeError) as error:
            raise Unsafe(f"{step}: the signature is not that of {name!r}") from error
        return name, body


@dataclass(frozen=True)
class Signer:
    """A client's name and private key."""

    name: str
    key: Ed25519PrivateKey

    def sign(self, attempt: Attempt, step: str, body: Table) -> dict[str, Any]:
        """The message."""
        signature = self.key.sign(_signed(attempt, step, self.name, body))
        return {"from": self.name, "body": dict(body), "signature": to_text(signature)}


def threshold(count: int) -> int:
    """How many of ``count`` clients it takes: more than two thirds."""
    return 2 * count // 3 + 1


def digest(value: Any) -> str:
    """A name for anything that can be written as JSON."""
    return hashlib.sha256(_text(value)).hexdigest()


def names_digest(names: Iterable[str]) -> str:
    """A name for a set of clients."""
    return digest(sorted(names))


def to_text(data: bytes) -> str:
    """Bytes as they stand in a message."""
    return base64.b64encode(data).decode()


def from_text(text: Any) -> bytes:
    """... and back; a ValueError for anything else."""
    if not isinstance(text, str):
        raise ValueError("not a text")
    return base64.b64decode(text, validate=True)


def _signed(attempt: Attempt, step: str, name: str, body: Table) -> bytes:
    return _text(["fedgradnorm masking 1", attempt.run, attempt.number, step, name, body])


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
