"""Batches that are read while the client before them works.

The rows of a batch follow from a counter, so the next ones are known: those of the client whose
turn is next, and, where everybody takes part, of the first one in the round after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedgradnorm.models._streamed.rows import Streamed


class Batches(Protocol):
    """Which examples a round reads."""

    def drawn(self, names: Sequence[str], round_number: int) -> Mapping[str, NDArray[np.int64]]:
        """Row numbers [steps, batch] of some clients in a round."""


class ReadingAhead:
    """Tells the feeds of clients what they will be asked for, one client ahead."""

    def __init__(self, batches: Batches, inputs: Mapping[str, Any]) -> None:
        self._batches, self._everybody = batches, len(inputs)
        self._streamed = {name: x for name, x in inputs.items() if isinstance(x, Streamed)}

    def in_turn(self, active: Sequence[str], round_number: int) -> Iterator[str]:
        """The active clients, each with its batches on their way when its turn comes."""
        if not self._streamed:
            yield from active
            return
        for k, name in enumerate(active):
            self._expect(name, round_number)
            if k + 1 < len(active):
                self._expect(active[k + 1], round_number)
            elif len(active) == self._everybody:
                self._expect(active[0], round_number + 1)
            yield name
            if name in self._streamed and len(active) > 1:
                self._streamed[name].feed.rest()

    def _expect(self, name: str, round_number: int) -> None:
        if name in self._streamed:
            rows = self._batches.drawn([name], round_number)[name]
            self._streamed[name].feed.expect(list(rows))
