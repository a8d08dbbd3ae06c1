"""Runs as they are being trained: what is new in their folders, as messages for ``watch``.

Files are only read, and each byte once. The memory needed does not grow with a run: of a long
history the first message has a downsampled part, and nothing is kept once it is sent.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fedgradnorm._errors import ConfigError, FedGradNormError, RunFolderError
from fedgradnorm._flower.status import read_status
from fedgradnorm._runs.csv_table import Row, salvaged
from fedgradnorm._runs.files import opened
from fedgradnorm._runs.layout import CONFIG, LOCK, MANIFEST, METRICS, SPREAD, STATUS
from fedgradnorm._runs.manifest import read_manifest
from fedgradnorm._runs.reader import NOT_JUDGED, UNKNOWN_SEED, StoredRun
from fedgradnorm._runs.spread import MANY
from fedgradnorm._runs.task_lines import is_many, pooled
from fedgradnorm._toml import read_toml
from fedgradnorm.tasks._named_metrics import higher_is_better

LISTED = 200
"""Runs that are listed at most, the newest ones."""

SHOWN = 8
"""Runs whose points are sent at most."""

POINTS = 1500
"""Points of a curve after downsampling; the page keeps up to twice as many."""

QUIET = 15.0
"""Seconds without new points after which a run that no process holds has stopped."""

CHUNK = 1 << 22
"""Bytes of a table that are read at a time."""

Message = tuple[str, Any]
Point = tuple[float, float | None]

_OF_ROUND = ("loss", "weight", "loss_ratio", "grad_norm", "epsilon")
_HELD_OUT = ("test", "validation")
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
        self.about = StoredRun(path.name, path.name, UNKNOWN_SEED, [])
        self.round = 0
        self.problem = ""
        self._stamps: dict[str, tuple[float, int]] = {}
        self._table = _Table(path / METRICS)
        self._waiting: list[Row] = []
        self._metrics: dict[str, str] = {}
        self._clients: set[str] = set()

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
        weighting = manifest.get("weighting", {})
        words = " ".join(str(weighting[key]) for key in ("name", "rule") if weighting.get(key))
        seed = config.get("seed", manifest.get("settings", {}).get("seed"))
        name = self.path.resolve().name
        method = str(config.get("method") or words or name)
        self.about = StoredRun(
            name, method, seed if isinstance(seed, int) else UNKNOWN_SEED, [], manifest, config
        )

    def points(self) -> Iterator[dict[str, Any]]:
        """The new points of its curves; of more clients than are shown one by one, quantiles."""
        spread = self.path / SPREAD
        if self._table.path != spread and spread.is_file():
            self._table = _Table(spread)
        found = _Points()
        while True:
            new, rows, more = self._table.read()
            if new:
                self._waiting, self._metrics, found = [], {}, _Points(reset=True)
            for row in self._clients_rows(rows):
                self._add(row, found)
            if not more:
                break
        if self._table.damage:
            self.problem = self._table.damage
        if found.reset or found.curves:
            yield found.message()

    def _clients_rows(self, rows: list[Row]) -> list[Row]:
        """The rows of clients, or of the lines that stand for many; losses without their scale."""
        if self._table.path.name == SPREAD:
            return pooled(replace(self.about, spread=rows)).rows if rows else []
        rows = [row for row in rows if "round" in row and "client" in row and "split" in row]
        if not is_many(self.about):
            return replace(self.about, rows=rows).rows
        # Quantiles need all rows of a round: those of the last one wait for the next.
        rows = self._waiting + rows
        done = self.about.finished or not rows
        last = math.inf if done else rows[-1]["round"]
        self._waiting = [row for row in rows if row["round"] >= last]
        rows = [row for row in rows if row["round"] < last]
        return pooled(replace(self.about, rows=rows)).rows if rows else []

    def _add(self, row: Row, found: _Points) -> None:
        """The numbers of one row, as points of its client's curves."""
        client, split = row["client"], row["split"]
        if client not in self._clients and len(self._clients) >= MANY:
            return  # only where run.json, which names all clients, is missing
        self._clients.add(client)
        if split == "batch":
            for name in _OF_ROUND:
                if name in row:
                    found.add(client, name, row["round"], row[name])
        elif split == "train":
            found.add(client, "train", row["round"], row.get("loss"))
        elif split in _HELD_OUT:
            judged = self.about.judged.get(client, NOT_JUDGED)
            if client not in self._metrics:
                self._metrics[client] = name = judged.choose(row)
                found.clients[client] = {
                    "metric": name,
                    "higher": higher_is_better(name),
                    "constant": _finite(judged.constant.get(name)),
                }
            metric = self._metrics[client]
            found.add(client, f"held {split}", row["round"], row.get("loss"))
            if metric != "loss":
                found.add(client, f"score {split}", row["round"], row.get(metric))


@dataclass
class _Points:
    """New points by client and quantity."""

    reset: bool = False
    curves: dict[tuple[str, str], list[Point]] = field(default_factory=dict)
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, client: str, quantity: str, x: float, y: float | None) -> None:
        """One more point; a curve that has become too long is downsampled."""
        if y is None:
            return
        curve = self.curves.setdefault((client, quantity), [])
        curve.append((x, _finite(y)))
        if len(curve) >= 2 * POINTS:
            curve[:] = thinned(curve)

    def message(self) -> dict[str, Any]:
        curves = [
            [client, quantity, [x for x, _ in points], [y for _, y in points]]
            for (client, quantity), points in self.curves.items()
        ]
        return {"reset": self.reset, "clients": self.clients, "curves": curves}


def thinned(points: Sequence[Point]) -> list[Point]:
    """About half of the points: of every four the lowest and the highest, and the last of all.

    >>> thinned([(1, 5.0), (2, 9.0), (3, 1.0), (4, 5.0), (5, 2.0), (6, 2.0)])
    [(2, 9.0), (3, 1.0), (5, 2.0), (6, 2.0)]
    """
    kept: list[Point] = []
    for start in range(0, len(points), 4):
        four = points[start : start + 4]
        heights = [-math.inf if y is None else y for _, y in four]
        ends = {heights.index(min(heights)), heights.index(max(heights))}
        kept += [four[place] for place in sorted(ends)]
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


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
