"""The rows of many clients that lie on several ranks, as rank 0 writes them down."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from fedgradnorm._engines.ranks import World

SETTLE = "settle"


class Journal(Protocol):
    """Rows of many clients, written down piece by piece as they change."""

    def changed(self, everything: bool = False) -> dict[str, Any]:
        """The rows that changed since :meth:`settle`, or all that ever did."""

    def count(self, everything: bool = False) -> int:
        """How many rows these are."""

    def settle(self) -> None:
        """Everything that changed so far has been saved."""

    def take(self, saved: Mapping[str, Any]) -> None:
        """Restore what :meth:`changed` returned."""


class RanksJournal:
    """One journal of all ranks: rank 0 asks, the others answer until it has settled.

    So the writer needs to know nothing of ranks, and no rank but 0 gathers rows. ``local`` are the
    rows of this rank's ``own`` clients, None where it has none; ``names`` are all clients in order.
    """

    def __init__(
        self, world: World, local: Journal | None, names: Sequence[str], own: Collection[str]
    ) -> None:
        self.world, self.local, self._own = world, local, own
        self._position = {name: i for i, name in enumerate(names)}
        self._asked = False

    def changed(self, everything: bool = False) -> dict[str, Any]:
        """The rows that changed on any rank since :meth:`settle`, or all that ever did."""
        return {"parts": [part for own in self._ask("changed", everything) for part in own]}

    def count(self, everything: bool = False) -> int:
        """How many rows these are."""
        return sum(self._ask("count", everything))

    def settle(self) -> None:
        """What changed so far is kept elsewhere; who answers need not wait any longer."""
        if self.local is not None:
            self.local.settle()
        if self._asked:
            self._asked = False
            self.world.leaders((SETTLE, False))

    def answer(self) -> None:
        """What the other ranks do while rank 0 writes a checkpoint."""
        while True:
            question, everything = self.world.leaders(None)
            if question == SETTLE:
                self.settle()
                return
            self.world.to_leader(self._say(question, everything))

    def _ask(self, question: str, everything: bool) -> list[Any]:
        self._asked = True
        self.world.leaders((question, everything))
        return self.world.to_leader(self._say(question, everything))

    def _say(self, question: str, everything: bool) -> Any:
        """This rank's part of an answer."""
        if question == "count":
            return 0 if self.local is None else self.local.count(everything)
        return [] if self.local is None else self.local.changed(everything)["parts"]

    def take(self, saved: Mapping[str, Any]) -> None:
        """Take over what :meth:`changed` returned, of this rank's own clients; others are told."""
        if self.local is None:
            return
        parts = []
        for part in saved["parts"]:
            here = [k for k, name in enumerate(part["names"]) if name in self._own]
            if here:
                names = [part["names"][k] for k in here]
                parts.append({"names": names, "tables": _picked(part["tables"], here)})
        self.local.take({"parts": parts})


def _picked(tables: Mapping[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
    return {key: table[list(rows)] for key, table in tables.items()}
