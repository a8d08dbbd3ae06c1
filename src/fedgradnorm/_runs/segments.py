"""Rows of many clients on disk: each checkpoint adds those that changed, in a file of their own.

A checkpoint names its files in order; later rows replace earlier ones. A file is whole on disk
before a checkpoint names it, and is removed only when no checkpoint does. So a kill at any moment
leaves a checkpoint with all of its files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedgradnorm._engines import Journal
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.files import check_folder
from fedgradnorm._runs.layout import ROWS

JOURNAL = "journal"
"""What a checkpoint calls the rows, where it holds them itself."""

FULL = 2.0
"""When files hold so many times the rows that there are, they are written anew as one."""


class Segments:
    """The files of one run, in the folder ``rows``."""

    def __init__(self, folder: Path, run: str = "") -> None:
        self._folder, self.run = folder / ROWS, run
        self.names: list[str] = []
        self._before: list[str] = []  # of the checkpoint before the last one
        self._rows = 0

    def add(self, journal: Journal, whole: bool = False) -> dict[str, Any]:
        """Write what changed; what a checkpoint has to say of it.

        That is the names of files or, with ``whole``, all rows themselves.
        """
        check_folder(self._folder)
        new, alive = journal.count()
        anew = whole or self._rows + new > FULL * alive
        rows = journal.changed(everything=anew)
        if whole:
            self.names, self._rows = [], 0
            return {JOURNAL: rows}
        if new:
            self._folder.mkdir(exist_ok=True)
            path = self._folder / f"{self._next():06d}.safetensors"
            checkpoint.save(rows, path, self.run)
            self.names = [path.name] if anew else [*self.names, path.name]
            self._rows = alive if anew else self._rows + new
        return {ROWS: self.names}

    def _next(self) -> int:
        """A number that no file has, also none that a kill has left."""
        return max((int(path.stem) for path in self._files()), default=0) + 1

    def _files(self) -> list[Path]:
        """The files that we write; a copy that somebody made is not one of them."""
        return [path for path in self._folder.glob("*.safetensors") if path.stem.isdecimal()]

    def settle(self, journal: Journal) -> None:
        """A checkpoint names the files now: forget what changed, and remove older files."""
        journal.settle()
        self._remove_all_but({*self.names, *self._before})
        self._before = list(self.names)

    def finish(self) -> None:
        """The run has ended: only the last checkpoint is left."""
        self._remove_all_but(set(self.names))

    def _remove_all_but(self, needed: Collection[str]) -> None:
        for path in self._files():
            if path.name not in needed:
                path.unlink()
        if not needed and self._folder.is_dir():
            with suppress(OSError):  # something of somebody else's is in it
                self._folder.rmdir()

    def restore(self, state: Mapping[str, Any], journal: Journal) -> None:
        """Let a journal take all rows that a checkpoint holds or names."""
        self.names = _named(state)
        for rows in self.pieces(state):
            self._rows += sum(len(part["names"]) for part in rows["parts"]) if self.names else 0
            journal.take(rows)
        journal.settle()

    def pieces(self, state: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The rows that a checkpoint holds or names, in the order in which they are taken over."""
        check_folder(self._folder)
        if JOURNAL in state:
            yield state[JOURNAL]
        for name in _named(state):
            yield checkpoint.load(self._folder / name, self.run)


def _named(state: Mapping[str, Any]) -> list[str]:
    """The files that a checkpoint names."""
    names = [str(name) for name in state.get(ROWS, ())]
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"a file of rows called {name!r:.40}")
    return names
