"""How large a client's message may be; it follows from the size of the shared vector."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as CHUNK

from fedgradnorm._flower.wire.messages import SLACK

RECORDS = (
    8  # parts of an answer beside the pieces of its array: the message, its records, the array
)


@dataclass(frozen=True)
class Limits:
    """What one answer may have, for a shared vector of ``vector`` bytes.

    Flower cuts an array into pieces of at most ``CHUNK`` bytes, and sends each in a request of its
    own; all other parts of a message are small.
    """

    vector: int

    @property
    def array(self) -> int:
        """Bytes of the update as it is stored."""
        return self.vector + SLACK

    @property
    def parts(self) -> int:
        """Parts that a message may name."""
        return RECORDS + math.ceil(self.array / CHUNK)

    @property
    def small(self) -> int:
        """Bytes of a part that is no piece of an array; it may list all other parts."""
        return (16 << 10) + 160 * self.parts

    @property
    def piece(self) -> int:
        """Bytes of one part, whichever it is."""
        return max(min(self.array, CHUNK) + SLACK, self.small)

    @property
    def request(self) -> int:
        """Bytes of one request: a part, and what says whose it is."""
        return self.piece + (4 << 10)

    @property
    def total(self) -> int:
        """Bytes of all parts of a message."""
        return self.array + RECORDS * self.small
