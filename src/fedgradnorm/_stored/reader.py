"""Runs as reports read them: whatever is readable, and what is wrong with the rest.

Every table, figure, page and test is made from what this module returns. Nothing here refuses a
damaged run: a page that shows nineteen runs and names the twentieth's fault is worth more than an
error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._runs.contents import read_contents
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.layout import CONFIG, MANIFEST, METRICS, SPREAD
from fedgradnorm._runs.manifest import kept_words
from fedgradnorm._runs.many.spread import SHARES, groups_of
from fedgradnorm._runs.reading import present, read_file
from fedgradnorm._stored.summary import Judged, judged
from fedgradnorm.experiments._config.toml_text import read_toml

UNKNOWN_SEED = -1
_FILES = (MANIFEST, CONFIG, METRICS)


@dataclass(frozen=True)
class StoredRun:
    """One run: its history, what is known about it, and what is not in order.

    Losses in ``rows`` are freed of the factor they were given (``loss_scale``), here and nowhere
    else, so that no reader can forget it; ``scaled`` says that there was one. ``spread`` has the
    quantiles over clients where the run recorded them. Where ``pooled`` is not empty, ``rows`` are
    those of quantiles, and it says how each is judged; see ``_stored.task_lines``.
    """

    name: str
    method: str
    seed: int
    rows: list[Row]
    manifest: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    spread: list[Row] = field(default_factory=list)
    pooled: Mapping[str, Judged] = field(default_factory=dict)
    scaled: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        scales = {name: _scale(client) for name, client in self.part("clients").items()}
        if any(scale != 1.0 for scale in scales.values()):
            object.__setattr__(self, "rows", [_freed(row, scales) for row in self.rows])
            object.__setattr__(self, "spread", freed_spread(self.spread, self.groups, scales))
            object.__setattr__(self, "scaled", True)

    @property
    def clients(self) -> list[str]:
        """The names of the clients in its history, in their order."""
        return list(dict.fromkeys(row["client"] for row in self.rows))

    @property
    def judged(self) -> dict[str, Judged]:
        """How each client is judged."""
        return dict(self.pooled) if self.pooled else judged(self.part("clients"))

    @property
    def names(self) -> list[str]:
        """The names of all clients, also of those whose rows were not kept."""
        return list(self.part("clients")) or self.clients

    @cached_property
    def prints(self) -> dict[str, str | None]:
        """The fingerprint of each client's rows, where it is known."""
        known = self.part("clients").items()
        return {n: info.get("fingerprint") for n, info in known if isinstance(info, dict)}

    @property
    def groups(self) -> dict[str, str]:
        """What each client is told apart by where clients are many: its task, or the kind of it."""
        known = self.part("clients")
        infos = {name: known.get(name) for name in self.names}
        return groups_of({n: info if isinstance(info, dict) else {} for n, info in infos.items()})

    @property
    def finished(self) -> bool:
        """Whether the run says that it came to its end."""
        return self.manifest.get("finished") is True

    @property
    def stopped_early(self) -> bool:
        """Whether it ended before its last round because its validation losses told it to."""
        return self.finished and self.manifest.get("stopped_early") is True

    @property
    def kept(self) -> str:
        """What it kept, in words, where that was a choice."""
        return kept_words(self.manifest)

    @property
    def last_round(self) -> int:
        """How far it got; -1 where nothing was recorded."""
        return int(self.rows[-1]["round"]) if self.rows else -1

    @property
    def planned(self) -> int | None:
        """How many rounds it was to take, where that is known."""
        rounds = self.manifest.get("rounds")
        return rounds if isinstance(rounds, int) else None

    def part(self, name: str) -> dict[str, Any]:
        """A section of run.json or the config; empty where there is none."""
        found = self.manifest.get(name, self.config.get(name))
        return found if isinstance(found, dict) else {}


def _scale(client: Any) -> float:
    scale = client.get("loss_scale", 1.0) if isinstance(client, dict) else 1.0
    return float(scale) if isinstance(scale, int | float) and scale > 0 else 1.0


def _freed(row: Row, scales: dict[str, float]) -> Row:
    return {**row, "loss": row["loss"] / scales.get(row["client"], 1.0)} if "loss" in row else row


def freed_spread(
    rows: list[Row], groups: Mapping[str, str], scales: Mapping[str, float]
) -> list[Row]:
    """Quantiles of losses freed of the factor of their group; of several factors, not at all."""
    factors: dict[str, set[float]] = {}
    for name, group in groups.items():
        factors.setdefault(group, set()).add(scales.get(name, 1.0))
    numbers = ("mean", *SHARES)
    found = []
    for row in rows:
        mine = factors.get(row["task"], {1.0})
        if row["quantity"] != "loss":
            found.append(row)
        elif len(mine) == 1:
            factor = next(iter(mine))
            found.append({**row, **{column: row[column] / factor for column in numbers}})
    return found


def collect(places: Sequence[Path]) -> tuple[list[StoredRun], list[str]]:
    """The runs at ``places``, in the order they were started, and what was looked for in vain."""
    folders: list[Path] = []
    missing = []
    for place in places:
        found = _folders(place)
        folders += found
        if not found:
            missing.append(f"{place} is no run folder and holds none: no {MANIFEST} there")
    if not folders:
        raise RunFolderError("; ".join(missing) or "no run folders were given")
    runs = [read_run(folder) for folder in dict.fromkeys(folders)]
    return runs, missing


def _folders(place: Path) -> list[Path]:
    """The folder itself, or the runs in it, or the runs in the folders in it."""
    if _is_run(place):
        return [place]
    for pattern in ("*", "*/*"):
        inside = [path for path in place.glob(pattern) if _is_run(path)]
        if inside:
            return sorted(inside, key=_started)
    return []


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _FILES)


def _started(folder: Path) -> tuple[str, str]:
    try:
        return str(json.loads(read_file(folder / MANIFEST))["started"]), str(folder)
    except (RunFolderError, ValueError, RecursionError, KeyError, TypeError):
        return "~", str(folder)  # after every date


def read_run(folder: Path) -> StoredRun:
    """The run in ``folder``, as far as it can be read."""
    found = read_contents(folder)
    problems = [_inside(folder, fault) for fault in found.faults]
    rows = [row for row in found.rows[METRICS] if _is_usable(row)]
    if (lost := len(found.rows[METRICS]) - len(rows)) and not problems:
        problems.append(f"{METRICS} is damaged: {lost} of its rows are incomplete")
    if rows:
        shown = f"; shown up to round {rows[-1]['round']}"
        problems = [text + shown * text.startswith(METRICS) for text in problems]
    if not rows and not any(METRICS in problem for problem in problems):
        problems.append("no round was recorded")
    config = _config(folder, problems)
    settings = found.manifest.get("settings")
    seed = config.get("seed", settings.get("seed") if isinstance(settings, dict) else None)
    return StoredRun(
        name=folder.resolve().name,
        method=str(config.get("method") or _weighting(found.manifest) or folder.resolve().name),
        seed=seed if isinstance(seed, int) else UNKNOWN_SEED,
        rows=rows,
        manifest=found.manifest,
        config=config,
        problems=tuple(problems),
        spread=found.rows[SPREAD],
    )


def _is_usable(row: Row) -> bool:
    """Whether a row has what reports show; a client's own result has no weight."""
    return row["split"] == "batch" or not {"loss", "weight"} - set(row)


def _config(folder: Path, problems: list[str]) -> dict[str, Any]:
    path = folder / CONFIG
    if not present(path):
        return {}  # a run made from Python
    try:
        return read_toml(path)
    except ConfigError as error:
        problems.append(f"{CONFIG} is damaged: {error}")
        return {}


def _inside(folder: Path, message: object) -> str:
    """A message about a file in ``folder``, without the way there: the page may travel."""
    return str(message).replace(f"{folder}/", "").replace(f"{folder}", folder.name)


def _weighting(manifest: dict[str, Any]) -> str:
    weighting = manifest.get("weighting")
    if not isinstance(weighting, dict):
        return ""
    return " ".join(str(weighting[key]) for key in ("name", "rule") if weighting.get(key))
