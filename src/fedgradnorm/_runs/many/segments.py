"""Rows of many clients on disk: each checkpoint adds those that changed, in a file of their own.

A checkpoint names its files in order; later rows replace earlier ones. A file is whole on disk
before a checkpoint names it, and is removed only when no checkpoint does. So a kill at any moment
leaves a checkpoint with all of its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedgradnorm._engines import Journal
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.layout import ROWS

FULL = 2.0
"""When files hold so many times the rows that there are, they are written anew as one."""


class Segments:
    """The files of one run, in the folder ``rows``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / ROWS
        self.names: list[str] = []
        self._rows = 0

    def add(self, journal: Journal) -> list[str]:
        """Write what changed; the files that a checkpoint has to name now."""
        new, alive = journal.count(), journal.count(everything=True)
        if not new:
            return self.names
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{self._next():06d}.safetensors"
        whole = self._rows + new > FULL * alive
        checkpoint.save(journal.changed(everything=whole), path)
        self.names = [path.name] if whole else [*self.names, path.name]
        self._rows = alive if whole else self._rows + new
        return self.names

    def _next(self) -> int:
        """A number that no file has, also none that a kill has left."""
        taken = [int(path.stem) for path in self._folder.glob("[0-9]*.safetensors")]
        return max(taken, default=0) + 1

    def settle(self, journal: Journal) -> None:
        """A checkpoint names the files now: forget what changed, and remove files of before."""
        journal.settle()
        for path in self._folder.glob("[0-9]*.safetensors"):
            if path.name not in self.names:
                path.unlink()

    def restore(self, names: Sequence[str], journal: Journal) -> None:
        """Let a journal take the rows of all files that a checkpoint names."""
        self.names = [str(name) for name in names]
        for name in self.names:
            if Path(name).name != name:
                raise ValueError(f"a file of rows called {name!r:.40}")
            found = checkpoint.load(self._folder / name)
            self._rows += sum(len(part["names"]) for part in found["parts"])
            journal.take(found)
        journal.settle()
