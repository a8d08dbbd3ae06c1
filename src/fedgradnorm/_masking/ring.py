"""Numbers and vectors as words of 64 bits that can be added up: nothing is lost by the adding.

A vector is in fixed point, one word per coordinate. A single number is rounded to a grid of 2^-40
and takes four words of 32 bits. All clients use the same grid, which is coarser than the spacing of
small float64 numbers, so a sum does not show the last bits of a small summand next to a large one.
Float32 updates are spaced more widely than the grid: there the lowest bits of a sum can still show
that one summand is small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fedgradnorm._errors import FedGradNormError

Words = npt.NDArray[np.uint64]

LIMBS, LIMB = 4, 32  # words of a number, bits of a word that are used
FRACTION = 40  # bits behind the point
LARGEST = 2.0**60  # of a number; sums of thousands stay in range
SPARE = 62  # bits of a vector's sum: one is the sign, one is never reached


class Unfit(FedGradNormError):
    """Values that cannot be added up: not finite, or too large."""


def pack_numbers(values: Sequence[float]) -> Words:
    """Numbers as words, rounded to the grid."""
    whole = []
    for value in values:
        if not math.isfinite(value) or abs(value) > LARGEST:
            raise Unfit(f"{value!r} is no number to add up")
        scaled = round(Fraction(value) * 2**FRACTION)
        whole.append(scaled % (1 << LIMBS * LIMB))
    limbs = [(one >> LIMB * k) & ((1 << LIMB) - 1) for one in whole for k in range(LIMBS)]
    return np.array(limbs, dtype=np.uint64)


def unpack_numbers(words: Words) -> list[float]:
    """The numbers, or their sum, where words were added up."""
    modulus, found = 1 << LIMBS * LIMB, []
    for limbs in words.reshape(-1, LIMBS).tolist():
        one = sum(limb << LIMB * k for k, limb in enumerate(limbs)) % modulus
        signed = one - modulus if one >= modulus // 2 else one
        found.append(float(Fraction(signed, 2**FRACTION)))
    return found


def fraction_bits(clients: int, largest: float) -> int:
    """Bits behind the point such that so many vectors of values up to ``largest`` can be added."""
    return SPARE - math.ceil(math.log2(clients * largest))


def pack_vector(values: npt.NDArray[np.float64], bits: int) -> Words:
    """A vector as words with ``bits`` behind the point, rounded to the nearest."""
    if not np.isfinite(values).all():
        raise Unfit("the update holds numbers that are not finite")
    scaled = np.rint(np.ldexp(values, bits))
    if scaled.size and float(np.abs(scaled).max()) >= 2.0**SPARE:
        raise Unfit("the update holds numbers that are too large")
    return scaled.astype(np.int64).view(np.uint64)


def unpack_vector(words: Words, bits: int) -> npt.NDArray[np.float64]:
    """The vector, or the sum of vectors."""
    return np.ldexp(words.view(np.int64).astype(np.float64), -bits)
