"""How large a client's message may be; it follows from the sizes of shared vector and head."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as CHUNK

from fedgradnorm._flower.wire.messages import SLACK

RECORDS = (
    8  # parts of an answer beside the pieces of its array: the message, its records, the array
)
MORE = 2  # parts that a head adds beside its pieces: its record, its array


@dataclass(frozen=True)
class Limits:
    """What one answer may have, for a shared vector of ``vector`` bytes and a shared head.

    ``head`` is the bytes of the largest head that is shared; 0 where none is.

    Flower cuts an array into pieces of at most ``CHUNK`` bytes, and sends each in a request of its
    own; all other parts of a message are small.
    """

    vector: int
    head: int = 0

    @property
    def array(self) -> int:
        """Bytes of the update as it is stored."""
        return self.vector + SLACK

    @property
    def parts(self) -> int:
        """Parts that a message may name."""
        more = MORE + math.ceil(self.second / CHUNK) if self.head else 0
        return RECORDS + math.ceil(self.array / CHUNK) + more

    @property
    def second(self) -> int:
        """Bytes of the head as it is stored."""
        return self.head + SLACK if self.head else 0

    @property
    def small(self) -> int:
        """Bytes of a part that is no piece of an array; it may list all other parts."""
        return (16 << 10) + 160 * self.parts

    @property
    def piece(self) -> int:
        """Bytes of one part, whichever it is."""
        return max(min(max(self.array, self.second), CHUNK) + SLACK, self.small)

    @property
    def request(self) -> int:
        """Bytes of one request: a part, and what says whose it is."""
        return self.piece + (4 << 10)

    @property
    def total(self) -> int:
        """Bytes of all parts of a message."""
        return self.array + self.second + RECORDS * self.small
