"""The ledger of one promise: everything ever released about some data, and what it costs together.

A charge is on disk before the release leaves. The file is append-only JSON lines, each with the
hash of the line before it. The hash of the last line is also written to other files, the witnesses:
one next to the ledger, one in the folder of each run that used the data. If the ledger does not
contain what a witness has seen (it is missing, older, or another client's), the budget counts as
spent.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgradnorm._errors import FedGradNormError
from fedgradnorm._privacy.accountant import Steps, epsilon_of, spent
from fedgradnorm._privacy.terms import ClientPrivacy, Privacy
from fedgradnorm._runs.checkpoint import write_atomically
from fedgradnorm._runs.layout import LOCK
from fedgradnorm._runs.locking import alone

WITNESS = ".witness"


class BudgetSpent(FedGradNormError):
    """A release that the budget does not cover, or whose cost nobody can know."""


class Ledger:
    """Charges to one budget, by any number of runs and processes; without ``path``, in memory.

    ``name`` is whose data it is: a client's, or "clients" for client-level privacy. ``witnesses``
    are files in the folders of all runs that are known to have used these data. With ``used`` it is
    known that the data were used, although no such file need be left.
    """

    def __init__(
        self,
        terms: Privacy | ClientPrivacy,
        name: str,
        path: Path | None = None,
        witnesses: Sequence[Path] = (),
        *,
        used: bool = False,
    ) -> None:
        unit = "client" if isinstance(terms, ClientPrivacy) else "example"
        self.terms, self.path, self.lost = terms, path, ""
        self.charges: list[dict[str, Any]] = []
        self._header = {"format": 1, "unit": unit, "name": name}
        self._hashes: list[str] = []
        self._released: dict[tuple[float, float], int] = {}
        self._epsilon, self._size = 0.0, 0
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._locked():
                self._open(path, witnesses, used)

    @property
    def epsilon(self) -> float:
        """What everything released so far costs together; infinite where nobody can know."""
        return float("inf") if self.lost else self._epsilon

    @property
    def head(self) -> str:
        """The hash of the last line, for a witness; empty in memory."""
        return self._hashes[-1] if self._hashes else ""

    @property
    def releases(self) -> tuple[Steps, ...]:
        return tuple(Steps(*kind, times) for kind, times in self._released.items())

    def check(self) -> None:
        """BudgetSpent if nobody can know what was released."""
        if self.lost:
            raise BudgetSpent(
                f"{self.lost}, so the privacy budget of {self._header['name']!r} counts as spent; "
                "use data that were never used, with a new ledger"
            )

    def catch_up(self) -> None:
        """Read what other processes charged; BudgetSpent if nobody can know what was released."""
        with self._locked():
            self._catch_up()
        self.check()

    def has_seen(self, witness: str) -> bool:
        """Whether the ledger contains the line that somebody else saw last."""
        return witness in self._hashes

    def charge(self, releases: Sequence[Steps], witness: Path | None = None, **about: Any) -> float:
        """Record releases before they are made; epsilon after them. BudgetSpent if it exceeds it.

        ``about`` is written with them, such as run and round; ``witness`` is a file of the run.
        """
        with self._locked():
            self._catch_up()
            self.check()
            # Epsilon after these releases: at most 1% too much, and exact where that decides.
            together = dict(self._released)
            for noise, rate, times in releases:
                together[noise, rate] = together.pop((noise, rate), 0) + times
            *others, last = (Steps(*kind, times) for kind, times in together.items())
            bound = spent(last, self.terms.delta, tuple(others))
            if bound > self.terms.epsilon:
                bound = epsilon_of((*others, last), self.terms.delta)
            after = max(bound, self._epsilon)
            if after > self.terms.epsilon:
                raise BudgetSpent(
                    f"epsilon {self._epsilon:.4g} of {self.terms.epsilon:g} is spent, and another "
                    f"round would make it {after:.4g}"
                )
            told = {"releases": [list(one) for one in releases], "epsilon": after}
            charge = {**about, **told, "delta": self.terms.delta}
            if self.path is not None:
                self._append(self.path, charge, witness)
            else:
                self._take(charge)
        return after

    def _take(self, charge: dict[str, Any]) -> None:
        """Count a charge that is already recorded."""
        steps = [Steps(float(noise), float(rate), int(n)) for noise, rate, n in charge["releases"]]
        if charge["delta"] == self.terms.delta:
            self._epsilon = max(self._epsilon, float(charge["epsilon"]))
        for noise, rate, times in steps:
            self._released[noise, rate] = self._released.pop((noise, rate), 0) + times
        self.charges.append(charge)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self.path is None:
            yield
            return
        with alone(self.path.with_name(f".{self.path.name}{LOCK}"), waiting=True):
            yield

    def _open(self, path: Path, witnesses: Sequence[Path], used: bool) -> None:
        own = path.with_name(path.name + WITNESS)
        if not path.exists():
            if own.exists() or witnesses or used:
                self.lost = f"{path} is missing, and its data were used before"
                return
            self._append(path, {**self._header, "id": secrets.token_hex(16)}, None)
            return
        # A line that a kill cut short is removed: what it charges was never released.
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        known = own.read_text("utf-8").strip() if own.is_file() else ""
        if whole != data and whole and _hash(whole.rstrip(b"\n").rpartition(b"\n")[2]) == known:
            os.truncate(path, len(whole))
        self._catch_up()
        if self.lost:
            return
        self._epsilon = max(self._epsilon, epsilon_of(self.releases, self.terms.delta))
        for file in [own, *witnesses] if self.charges or own.exists() else witnesses:
            if not file.is_file() or not self.has_seen(file.read_text("utf-8").strip()):
                self.lost = f"{path} is older than {file}, or belongs to other data"

    def _catch_up(self) -> None:
        """Read the lines that are new: at the start all, later those of other processes."""
        if self.path is None or self.lost:
            return
        try:
            with self.path.open("rb") as file:
                file.seek(self._size)
                data = file.read()
            for line in data.splitlines(keepends=True):
                entry = json.loads(line)
                if not line.endswith(b"\n") or entry.pop("previous") != self.head:
                    raise ValueError("a line does not continue the one before it")
                if not self._hashes:
                    if any(entry.get(key) != value for key, value in self._header.items()):
                        raise ValueError(f"it is not that of {self._header}")
                else:
                    self._take(entry)
                self._hashes.append(_hash(line.rstrip(b"\n")))
            self._size += len(data)
            if not self._hashes:
                raise ValueError("it is empty")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.lost = f"{self.path} is damaged or of other data ({error})"

    def _append(self, path: Path, entry: dict[str, Any], witness: Path | None) -> None:
        """Write a line, and its hash to the witnesses; all of it is on disk afterwards."""
        line = json.dumps({**entry, "previous": self.head}).encode()
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if self._hashes:
            self._take(entry)
        self._hashes.append(_hash(line))
        self._size += len(line) + 1
        for place in (path.with_name(path.name + WITNESS), *([witness] if witness else [])):
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(place, self.head.encode())


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
