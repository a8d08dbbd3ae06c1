"""Who participates, by public keys that nobody can add to, and messages signed by them.

A signature is over the run, the attempt, the step and everything that is said in it, so no message
can be used for another attempt, step or sender.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedgradnorm._errors import ConfigError, FedGradNormError

FEWEST = 3  # clients of a sum: of two, each knows the other by the sum
Table = Mapping[str, Any]
Said = tuple[str, Table]
MESSAGE = {"from", "body", "signature"}
BODIES = {
    "keys": {"masks", "letters", "own"},
    "letters": {"sealed", "shares", "own"},
    "input": {"numbers", "rest", "keys", "roster", "givers", "subject", "unreadable"},
    "survivors": {"survivors"},
    "reveal": {"survivors", "own", "masks"},
}
"""The entries of each step's message. The server forwards messages, so nothing else may be in one:
a single entry that cannot be written again would end the server."""


class Unsafe(FedGradNormError):
    """A client will not do it: it could show more than a sum, or to somebody else."""


class Phase(StrEnum):
    """Which sum of a round: of the signals that weights are made of, or of the updates."""

    SIGNALS = "signals"
    UPDATE = "update"


@dataclass(frozen=True)
class Attempt:
    """One attempt at one sum: agreement, run, round and phase, and a random name.

    Every signature covers all five, so no message can be used for anything else.
    """

    agreement: str
    run: str
    round: int
    phase: Phase
    name: str

    @classmethod
    def new(cls, agreement: str, run: str, round_number: int, phase: Phase) -> Attempt:
        """A new name: no clock and no counter that could be put back."""
        return cls(agreement, run, round_number, phase, secrets.token_hex(16))

    @property
    def facts(self) -> list[Any]:
        """As it is signed."""
        return [self.agreement, self.run, self.round, str(self.phase), self.name]


@dataclass(frozen=True)
class Subject:
    """What a sum is of: part of every mask, and signed with every input.

    The digest of the network; that of the sums a client settled its weight by and moves by.
    ``ahead``: whether an update's sum carries the round's signals, too.
    """

    network: str
    sums: str = ""
    ahead: bool = False

    def facts(self) -> dict[str, Any]:
        """As it is signed."""
        return {"network": self.network, "sums": self.sums, "ahead": self.ahead}


@dataclass(frozen=True)
class PublicKey:
    """The public half of a client's signing key, as text, and a fingerprint to read aloud."""

    text: str

    @property
    def fingerprint(self) -> str:
        """Changes with the key; compare it over another channel (by telephone, say)."""
        return fingerprint(from_text(self.text))


def make_key(folder: Path, file: str) -> PublicKey:
    """Write a new private signing key into ``folder``, with mode 0600, and return its public half.

    Only the client runs this, on the machine that uses the key: nobody else ever holds it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key, path = Ed25519PrivateKey.generate(), folder / file
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{path} already exists; a signing key is never overwritten. Its public key: "
            f"{read_key(path).text}"
        ) from None
    with os.fdopen(handle, "wb") as private:
        private.write(
            key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
        )
        private.flush()
        os.fsync(private.fileno())
    return _public_half(key)


def read_key(path: Path) -> PublicKey:
    """The public half of the private key in a file."""
    return _public_half(read_signer("", path).key)


def read_signer(name: str, path: Path) -> Signer:
    """The client of that name, with its private key."""
    try:
        key = form.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: no private key can be read from it") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path}: not an Ed25519 signing key")
    return Signer(name, key)


def assemble_roster(keys: Mapping[str, str]) -> Roster:
    """The roster of all clients from the public keys they sent, by name.

    A ConfigError for fewer than three clients, for text that is not a public key, and for one key
    under two names, which would count as two clients.
    """
    found = dict[str, bytes]()
    for name, text in keys.items():
        try:
            found[name] = from_text(text)
        except ValueError:
            found[name] = b""
        if not _is_public_key(found[name]):
            raise ConfigError(
                f"the key of client {name!r} is not a public signing key ({text!r:.60}); "
                "`fedgradnorm federation key` prints it"
            )
    owners: dict[bytes, str] = {}
    for name, key in found.items():
        if owners.setdefault(key, name) != name:
            raise ConfigError(
                f"clients {owners[key]!r} and {name!r} have the same key: it would count twice; "
                "each client makes its own"
            )
    if len(found) < FEWEST:
        raise ConfigError(
            f"a private federation needs at least {FEWEST} clients, not {len(found)}: with two, "
            "the sum tells each client the other one's update"
        )
    return Roster(found)


def fingerprint(data: bytes) -> str:
    """A short name for bytes, in groups of four hexadecimal digits.

    >>> fingerprint(b"key")
    '2c70-e12b-7a06-46f9-2279-f427-c7b3-8e73'
    """
    text = hashlib.sha256(data).hexdigest()[:32]
    return "-".join(text[at : at + 4] for at in range(0, len(text), 4))


def _public_half(key: Ed25519PrivateKey) -> PublicKey:
    raw = key.public_key().public_bytes(form.Encoding.Raw, form.PublicFormat.Raw)
    return PublicKey(to_text(raw))


_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P  # of Edwards' curve -x^2 + y^2 = 1 + d x^2 y^2


def _is_public_key(raw: bytes) -> bool:
    """Whether it is a point of the curve of large order: under one of small order anybody signs.

    Doubling needs x^2 and y^2 alone: y' = (y^2 + x^2) / (1 - d x^2 y^2). A point has small order
    if 8 P is the neutral element, whose y is 1.
    """
    if len(raw) != 32:
        return False
    y = int.from_bytes(raw, "little") & (2**255 - 1)
    squares = y * y % _P
    x2 = (squares - 1) * pow(_D * squares + 1, -1, _P) % _P
    if y >= _P or pow(x2, (_P - 1) // 2, _P) not in (0, 1):
        return False
    for _ in range(3):
        squares = y * y % _P
        x2 = (squares - 1) * pow(_D * squares + 1, -1, _P) % _P
        y = (squares + x2) * pow(1 - _D * x2 * squares, -1, _P) % _P
    return y != 1


@dataclass(frozen=True)
class Roster:
    """The public keys of all clients, by name: compared out of band, never told by the server."""

    keys: Mapping[str, bytes]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def digest(self) -> str:
        """A name for all names and keys."""
        return digest({name: to_text(key) for name, key in self.keys.items()})

    def said(self, attempt: Attempt, step: str, message: Any, sender: str | None = None) -> Said:
        """Who signed it, and what it says; Unsafe unless it is signed by a client here.

        With ``sender`` it must be that client's own message.
        """
        name, body = _fields(message)
        if not isinstance(name, str) or not isinstance(body, Mapping):
            raise Unsafe(f"{step}: a message without sender or content")
        if set(message) != MESSAGE or set(body) != BODIES[step]:
            raise Unsafe(f"{step}: a message with other entries than agreed")
        if name not in self.keys:
            raise Unsafe(f"{step}: {name[:40]!r} is not on the roster")
        if sender not in (None, name):
            raise Unsafe(f"{step}: {sender!r} sent a message of {name!r}")
        try:
            signature = from_text(message.get("signature"))
            key = Ed25519PublicKey.from_public_bytes(self.keys[name])
            key.verify(signature, _signed(attempt, step, name, body))
        except (InvalidSignature, ValueError, TypeError, RecursionError) as error:
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


def least_shown(clients: int, colluders: int) -> int:
    """How many of all clients must show keys: three quarters, and enough to unmask a sum."""
    return max(-(-3 * clients // 4), threshold(clients, colluders))


def threshold(clients: int, colluders: int) -> int:
    """How many of all clients it takes to unmask a sum: t, with 2 t > n + c.

    An honest client shows shares for one list of survivors, a colluder for two. Two lists would
    need 2 t of the n + c shares there are at most. With a threshold of those that showed keys, a
    server that shows different keys to two halves of the clients could unmask a sum in each.
    """
    return max(FEWEST, (clients + colluders) // 2 + 1)


def digest(value: Any) -> str:
    """A name for anything that can be written as JSON."""
    return hashlib.sha256(_text(value)).hexdigest()


def names_digest(names: Iterable[str]) -> str:
    """A name for a set of clients."""
    return digest(sorted(names))


def to_text(data: bytes) -> str:
    """Bytes as text, for a message."""
    return base64.b64encode(data).decode()


def from_text(text: Any) -> bytes:
    """... and back; a ValueError for anything else."""
    if not isinstance(text, str):
        raise ValueError("not a text")
    return base64.b64decode(text, validate=True)


def _signed(attempt: Attempt, step: str, name: str, body: Table) -> bytes:
    return _text(["fedgradnorm masking 2", attempt.facts, step, name, body])


def _fields(message: Any) -> tuple[Any, Any]:
    if not isinstance(message, Mapping):
        return None, None
    return message.get("from"), message.get("body")


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
