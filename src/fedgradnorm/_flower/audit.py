"""An append-only audit log: one line of JSON per event, each with the hash of the line before.

A changed, removed or inserted line breaks the chain. Lines missing at the end do not, so the
server and its clients each keep a log of their own: compare them.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from fedgradnorm._errors import RunFolderError
from fedgradnorm._runs.layout import LOCK
from fedgradnorm._runs.locking import alone
from fedgradnorm._runs.manifest import now

AUDIT = "audit.jsonl"


class Audit:
    """The log in a folder; several processes may append to it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / AUDIT

    def add(self, event: str, **facts: Any) -> None:
        """Append an event; it is on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with alone(self.path.with_suffix(LOCK), waiting=True):
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            with os.fdopen(handle, "r+b") as file:
                previous = _last(file)
                line = {"time": now(), "event": event, **facts, "previous": previous}
                file.write(json.dumps(line, sort_keys=True).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())

    def lines(self) -> list[dict[str, Any]]:
        """All events; a RunFolderError that names the first line that breaks the chain."""
        found, previous = [], ""
        raw = self.path.read_bytes() if self.path.exists() else b""
        for number, text in enumerate(raw.split(b"\n")[:-1], start=1):
            try:
                line = json.loads(text)
                whole = line["previous"] == previous and bool(line["event"])
            except (ValueError, KeyError, TypeError):
                whole = False
            if not whole:
                raise RunFolderError(
                    f"{self.path}: line {number} does not continue the log: it, or a line before "
                    "it, was changed, removed or added"
                )
            found.append(line)
            previous = hashlib.sha256(text).hexdigest()
        return found


def _last(file: Any) -> str:
    """The hash of the last line; the file is left at its end, without half a line of a kill."""
    size = end = file.seek(0, os.SEEK_END)
    tail = b""
    while end and tail.count(b"\n") < 2:
        start = max(0, end - 65536)
        file.seek(start)
        tail, end = file.read(end - start) + tail, start
    whole = tail[: tail.rfind(b"\n") + 1]
    file.truncate(size - len(tail) + len(whole))
    file.seek(0, os.SEEK_END)
    lines = whole.splitlines()
    return hashlib.sha256(lines[-1]).hexdigest() if lines else ""
