"""Masks: words that nobody without the seed can tell from chance (AES-256 in counter mode).

A mask is made for all that an input depends on. Two clients that were told different things make
different ones, which do not cancel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedgradnorm._masking.attempt_keys import agreed, derived
from fedgradnorm._masking.ring import Words
from fedgradnorm._masking.roster import Attempt, digest

CHUNK = 1 << 20  # words made at a time: a mask is never held whole


def mask_label(attempt: Attempt, keys: str, roster: str, givers: str, subject: Any) -> bytes:
    """What masks are made for: attempt, all keys, roster, who masks, and the subject."""
    about = dict(subject) if isinstance(subject, Mapping) else subject
    return digest([attempt.facts, keys, roster, givers, about]).encode()


def add_own(words: Words, own: bytes, label: bytes, sign: int = +1) -> None:
    """Add a client's own mask in place, or take it off."""
    add_mask(words, derived(own, "own", label), sign)


def add_pair(words: Words, private: bytes, public: Any, label: bytes, me: str, other: str) -> None:
    """Add what ``me`` adds for its pair with ``other``, which adds the opposite.

    The names are part of the seed: a client that shows another's public key as its own would have
    the same mask with everybody, and the two would cancel.
    """
    pair = label + b" " + digest(sorted((me, other))).encode()
    add_mask(words, agreed(private, public, "mask", pair), +1 if me < other else -1)


def add_mask(words: Words, seed: bytes, sign: int) -> None:
    """Add the mask of a 32-byte seed in place, or take it off; a seed is for one mask alone."""
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    zeros = bytes(8 * min(CHUNK, len(words)))
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK]
        mask = np.frombuffer(stream.update(zeros[: part.nbytes]), dtype="<u8")
        (np.add if sign > 0 else np.subtract)(part, mask, out=part)
