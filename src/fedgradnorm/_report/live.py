"""Runs as they are being trained: what is new in their folders, as messages for ``watch``.

Files are only read, and each byte once. The memory needed does not grow with a run: a table is
sent in parts, which the page thins, and nothing is kept once it is sent.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fedgradnorm._errors import ConfigError, FedGradNormError, RunFolderError
from fedgradnorm._flower.status import read_status
from fedgradnorm._runs.csv_table import Row, salvaged
from fedgradnorm._runs.files import opened
from fedgradnorm._runs.layout import CONFIG, LOCK, MANIFEST, METRICS, SPREAD, STATUS
from fedgradnorm._runs.manifest import read_manifest
from fedgradnorm._runs.reader import NOT_JUDGED, UNKNOWN_SEED, pooled, stored_run
from fedgradnorm._runs.spread import MANY
from fedgradnorm._toml import read_toml
from fedgradnorm.tasks._named_metrics import higher_is_better

LISTED = 200
"""Runs that are listed at most, the newest ones."""

SHOWN = 8
"""Runs whose points are sent at most."""

QUIET = 15.0
"""Seconds without new points after which a run that no process holds has stopped."""

CHUNK = 1 << 22
"""Bytes of a table that are read at a time."""

Message = tuple[str, Any]

_OF_ROUND = ("loss", "weight", "loss_ratio", "grad_norm", "epsilon")
_HELD_OUT = ("test", "validation")
_KEYS = {"round", "client", "split"}
_TAIL = 4096


class Live:
    """The runs in ``place`` as they are now, and the points of those that are ``shown``.

    Each call of :meth:`news` yields what has changed since the last one: ``runs``, the list of all
    runs; ``boards``, the status of federations; and ``points`` of the runs shown.
    """

    def __init__(self, place: Path, shown: Sequence[str] = ()) -> None:
        self.place, self.shown = place, list(dict.fromkeys(shown))[:SHOWN]
        self._runs: dict[str, _Run] = {}
        self._told: dict[str, Any] = {}

    def news(self) -> Iterator[Message]:
        boards = _boards(self.place)
        folders = _run_folders(self.place)
        known = {path.resolve() for path in folders.values()}
        for board in boards.values():
            served = Path(board["folder"])
            if _is_run(served) and served.resolve() not in known:
                folders[str(served)] = served
        self._runs = {key: self._runs.get(key) or _Run(path) for key, path in folders.items()}
        held = _locked_files()
        entries = [{"id": key, **run.entry(held)} for key, run in self._runs.items()]
        names = Counter(entry["name"] for entry in entries)
        for entry in entries:
            if names[entry["name"]] > 1:
                entry["name"] = entry["id"]
        entries.sort(key=lambda entry: (-entry["started"], entry["id"]))
        listing = {"place": str(self.place), "runs": entries[:LISTED], "all": len(entries)}
        for name, content in (("runs", listing), ("boards", {"boards": list(boards.values())})):
            if self._told.get(name) != content:
                self._told[name] = content
                yield name, {"now": time.time(), **content}
        for run_id in self.shown:
            if run_id in self._runs:
                for message in self._runs[run_id].points():
                    yield "points", {"run": run_id, **message}


class _Run:
    """One run folder; its files are read again only where they have changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about = stored_run(path, {}, {}, [])
        self.round = 0
        self.problem = ""
        self._stamps: dict[str, tuple[float, int]] = {}
        self._table = _Table(path / METRICS)
        self._clients: dict[str, str] = {}

    def entry(self, held: set[int]) -> dict[str, Any]:
        if self._changed(MANIFEST, CONFIG):
            self._read_about()
        table = self.path / SPREAD if (self.path / SPREAD).is_file() else self.path / METRICS
        if self._changed(table.name):
            self.round = _last_round(table) or self.round
        changed = max(
            self._stamps.get(name, (0.0, 0))[0] for name in (MANIFEST, METRICS, table.name)
        )
        return {
            "name": self.about.name,
            "method": self.about.method,
            "seed": None if self.about.seed == UNKNOWN_SEED else self.about.seed,
            "started": _seconds(self.about.manifest.get("started")),
            "seconds": _finite(self.about.manifest.get("seconds")),
            "changed": changed,
            "rounds": self.about.planned,
            "clients": len(self.about.names),
            "state": self._state(changed, held),
            "problem": self.problem,
            "round": self.round,
        }

    def _state(self, changed: float, held: set[int]) -> str:
        manifest = self.about.manifest
        if self.about.finished:
            if manifest.get("diverged"):
                return "diverged"
            return "stopped early" if self.about.stopped_early else "finished"
        with suppress(OSError):
            if (self.path / LOCK).stat().st_ino in held:
                return "running"
        return "running" if time.time() - changed < QUIET else "stopped"

    def _changed(self, *names: str) -> bool:
        before = [self._stamps.get(name) for name in names]
        for name in names:
            with suppress(OSError):
                found = (self.path / name).stat()
                self._stamps[name] = found.st_mtime, found.st_size
        return before != [self._stamps.get(name) for name in names]

    def _read_about(self) -> None:
        manifest, config, self.problem = dict[str, Any](), dict[str, Any](), ""
        try:
            manifest = read_manifest(self.path)
            config = read_toml(self.path / CONFIG) if (self.path / CONFIG).is_file() else {}
        except (RunFolderError, ConfigError) as error:
            self.problem = str(error)
        self.about = stored_run(self.path, manifest, config, [])

    def points(self) -> Iterator[dict[str, Any]]:
        """The new points of its curves; of many clients, those of their quantiles."""
        spread = self.path / SPREAD
        if self._table.path != spread and spread.is_file():
            self._table = _Table(spread)
        reset, more = False, True
        while more:
            new, rows, more = self._table.read()
            reset |= new
            self._clients = {} if new else self._clients
            if self._table.path == spread:
                rows = pooled(replace(self.about, spread=rows)).rows if rows else []
            else:  # losses without their scale
                rows = replace(self.about, rows=list(filter(_KEYS.issubset, rows))).rows
            if reset or rows:
                yield {"reset": reset, **self._curves(rows)}
                reset = False
        self.problem = self._table.damage or self.problem

    def _curves(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The numbers of these rows by client and quantity, and how new clients are judged."""
        found = defaultdict[tuple[str, str], tuple[list[int], list[float | None]]](lambda: ([], []))
        clients = {}
        for row in rows:
            client, split = row["client"], row["split"]
            if client not in self._clients and len(self._clients) >= MANY:
                continue  # they have quantiles, too, unless the run was told to keep all rows
            metric = self._clients.setdefault(client, "")
            quantities = {name: name for name in _OF_ROUND} if split == "batch" else {}
            if split == "train":
                quantities = {"train": "loss"}
            elif split in _HELD_OUT:
                judged = self.about.judged.get(client, NOT_JUDGED)
                if not metric:
                    self._clients[client] = metric = judged.choose(row)
                    clients[client] = {
                        "metric": metric,
                        "higher": higher_is_better(metric),
                        "constant": _finite(judged.constant.get(metric)),
                    }
                quantities = {f"held {split}": "loss"}
                quantities |= {f"score {split}": metric} if metric != "loss" else {}
            for quantity, name in quantities.items():
                if name in row:
                    x, y = found[client, quantity]
                    x.append(row["round"])
                    y.append(_finite(row[name]))
        return {"clients": clients, "curves": [[*key, x, y] for key, (x, y) in found.items()]}


class _Table:
    """A CSV file that grows: each call of :meth:`read` returns the whole lines that are new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage = ""
        self._header, self._before, self._at = b"", b"", 0

    def read(self) -> tuple[bool, list[Row], bool]:
        """Whether the file has begun anew, its new rows, and whether there are more to read."""
        try:
            with opened(self.path) as file:
                return self._read(file)
        except RunFolderError:
            return False, [], False  # not there yet, or no longer

    def _read(self, file: Any) -> tuple[bool, list[Row], bool]:
        new = False
        if self._at:  # a resumed run cuts what came after its checkpoint
            file.seek(self._at - len(self._before))
            if file.read(len(self._before)) != self._before:
                self._header, self._before, self._at, new = b"", b"", 0, True
        file.seek(self._at)
        data = file.read(CHUNK)
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return new, [], False
        self._at += len(whole)
        self._before = whole[-64:]
        if not self._header:
            self._header, _, whole = whole.partition(b"\n")
        rows, damage = salvaged(self.path, self._header + b"\n" + whole)
        self.damage = self.damage or damage
        return new, rows, len(data) == CHUNK


def _run_folders(place: Path) -> dict[str, Path]:
    """The run folder itself, or the runs in it and in the folders in it, such as comparisons."""
    if _is_run(place):
        return {".": place}
    found = {}
    for path in _inside(place):
        for run in [path] if _is_run(path) else filter(_is_run, _inside(path)):
            found[run.relative_to(place).as_posix()] = run
    return found


def _inside(folder: Path) -> list[Path]:
    """What is in a folder; nothing where it cannot be read."""
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def _is_run(folder: Path) -> bool:
    with suppress(OSError):  # of a folder that only others may read
        return any((folder / name).is_file() for name in (MANIFEST, METRICS))
    return False


def _boards(place: Path) -> dict[str, dict[str, Any]]:
    """The status of each federation in a folder: what ``federation status`` shows, and no more."""
    found = {}
    with suppress(OSError):
        for pattern in (STATUS, f"*/{STATUS}", f"*/*/{STATUS}"):
            for path in sorted(place.glob(pattern)):
                with suppress(FedGradNormError, OSError):
                    name = path.parent.relative_to(place).as_posix()
                    found[name] = {**read_status(path.parent), "federation": name}
    return found


def _last_round(table: Path) -> int:
    """The round of the last whole line of a table, which begins with it; 0 if there is none."""
    try:
        with opened(table) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read().split(b"\n")
        return int(lines[-2].partition(b",")[0])
    except (RunFolderError, ValueError, IndexError):
        return 0


def _locked_files() -> set[int]:
    """The inodes of files that some process has locked, where the system reports them."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/locks").read_text().splitlines()
        return {int(line.split()[5].rpartition(":")[2]) for line in lines if "->" not in line}
    return set()


def _seconds(when: object) -> float:
    """A time of run.json in seconds since 1970; 0 where there is none."""
    with suppress(TypeError, ValueError):
        return datetime.fromisoformat(str(when)).timestamp()
    return 0.0


def _finite(value: Any) -> float | None:
    """Six digits of a number; None where JSON has none for it."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
