"""Masks: words that nobody without the seed can tell from chance (AES-256 in counter mode)."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedgradnorm._masking.ring import Words

CHUNK = 1 << 20  # words made at a time: a mask is never held whole


def add_mask(words: Words, seed: bytes, sign: int) -> None:
    """Add the mask of a 32-byte seed in place, or take it off; a seed is for one mask alone."""
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    zeros = bytes(8 * min(CHUNK, len(words)))
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK]
        mask = np.frombuffer(stream.update(zeros[: part.nbytes]), dtype="<u8")
        (np.add if sign > 0 else np.subtract)(part, mask, out=part)
