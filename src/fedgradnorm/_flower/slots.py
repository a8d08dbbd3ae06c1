"""A client's own state on disk: head, moments, first loss, statistics; the last two rounds of it.

The server may have to repeat a round: it was stopped before its checkpoint, or this client's answer
came too late. It says after how many rounds it knows this client. That state is still here, because
the state after k rounds never overwrites the one after k - 1.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgradnorm._errors import RunFolderError
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.layout import SLOTS

log = logging.getLogger("fedgradnorm")


class StateLost(RunFolderError):
    """The server knows another past of this client than the client itself."""


class Slots:
    """Two files for one run; each is written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.paths = tuple(folder / name for name in SLOTS)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def held(self) -> dict[int, dict[str, Any]]:
        """The states that are here, by the number of rounds they have behind them."""
        found = {}
        for path in self.paths:
            if path.exists():
                try:
                    state = _load(path)
                except RunFolderError as error:
                    log.warning("%s; the other one is used", error)
                    continue
                found[state["rounds"]] = state
        return found

    def at(self, rounds: int, initial: Mapping[str, Any]) -> Mapping[str, Any]:
        """The state after so many rounds; StateLost if it is neither here nor the beginning."""
        held = self.held()
        if rounds in held:
            return held[rounds]
        if rounds == 0 and max(held, default=0) <= 1:
            return initial
        have = ", ".join(map(str, sorted(held))) or "none"
        raise StateLost(
            f"the server knows this client's state after {rounds} rounds; here is that after {have}"
        )

    def save(self, state: Mapping[str, Any], keep: int) -> None:
        """Write a state; the one after ``keep`` rounds stays."""
        for path in self.paths:
            if not path.exists() or self._rounds(path) != keep:
                checkpoint.save(state, path)
                path.chmod(0o600)
                return

    def _rounds(self, path: Path) -> int:
        try:
            return int(_load(path)["rounds"])
        except RunFolderError:
            return -1


def _load(path: Path) -> dict[str, Any]:
    state = checkpoint.load(path)
    if not isinstance(state.get("rounds"), int):
        raise RunFolderError(f"{path} is damaged: it does not say after how many rounds it is")
    return state
