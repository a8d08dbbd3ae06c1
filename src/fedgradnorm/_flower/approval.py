"""Which runs a client's owner has approved: no order of any other run is answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from fedgradnorm._errors import ConfigError, listed
from fedgradnorm._flower.audit import Audit
from fedgradnorm._flower.wire.messages import Refused
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.layout import LOCK
from fedgradnorm._runs.locking import alone
from fedgradnorm._runs.manifest import now

APPROVALS = "approvals.json"
How = Literal["first", "ask", "all"]
HOWS = ("first", "ask", "all")
"""Whose runs are approved without asking: the first one of the agreed settings, none, or all."""

NOT_YET = "its owner has not approved this run"


class Approvals:
    """The runs of one client, in its state folder; the command and ``join`` share the file."""

    def __init__(self, state: Path, how: str = "first") -> None:
        self.path, self.how, self.audit = state / APPROVALS, how, Audit(state)

    @contextmanager
    def _open(self) -> Iterator[dict[str, Any]]:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with alone(self.path.with_suffix(LOCK), waiting=True):
            table = self._read()
            yield table
            checkpoint.write_atomically(self.path, json.dumps(table, indent=1).encode())
            self.path.chmod(0o600)

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {"approved": {}, "waiting": {}}
        try:
            table: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            return {"approved": dict(table["approved"]), "waiting": dict(table["waiting"])}
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.path} is damaged ({error}); remove it, and approve each run again"
            ) from error

    def check(self, run: str, settings: str) -> bool:
        """Refused unless the run is approved; whether it is new. ``settings`` is their digest."""
        table = self._read()
        if run in table["approved"]:
            return False
        known = [one["settings"] for one in table["approved"].values()]
        if self.how == "all" or (self.how == "first" and settings not in known):
            self._approve(run, settings, f'approve = "{self.how}"')
            return True
        if run not in table["waiting"]:
            with self._open() as now_:
                now_["waiting"][run] = settings
            self.audit.add("asked for approval", run=run, settings=settings)
            raise Waiting(NOT_YET)
        raise Refused(NOT_YET)

    def waiting(self) -> dict[str, str]:
        """The runs that ask for approval, with the digest of their settings."""
        return dict(self._read()["waiting"])

    def approve(self, run: str) -> None:
        waiting = self.waiting()
        if run in self._read()["approved"]:
            return
        if run not in waiting:
            known = listed(list(waiting)) if waiting else "none"
            raise ConfigError(f"no run {run!r} asks for approval; waiting: {known}")
        self._approve(run, waiting[run], "federation approve")

    def _approve(self, run: str, settings: str, by: str) -> None:
        with self._open() as table:
            table["waiting"].pop(run, None)
            table["approved"][run] = {"settings": settings, "time": now(), "by": by}
        self.audit.add("approved", run=run, settings=settings, by=by)


class Waiting(Refused):
    """A run asks for the first time."""
