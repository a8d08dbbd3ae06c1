"""Where the numbers come from, as HTML: the runs, and the settings they were made with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedgradnorm._stored.groups import Group
from fedgradnorm._stored.reader import UNKNOWN_SEED, StoredRun
from fedgradnorm._stored.task_lines import is_many

Parts = dict[str, Any]


def runs_table(runs: Sequence[StoredRun]) -> str:
    """Every run: how far it got, when it was started, and with what."""
    titles = ("Run", "Method", "Seed", "State", "Started", "Device", "Commit", "Versions")
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _run_cells(run)) + "</tr>"
        for run in runs
    )
    table = f'<table id="runs"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    count = f"{len(runs)} run{'s' * (len(runs) != 1)}"
    return f'<details><summary>{count}</summary><div class="scroll">{table}</div></details>'


def made_when(runs: Sequence[StoredRun]) -> str:
    """When, from which commit and on which devices the runs were made."""
    days = sorted({day for run in runs if (day := str(run.manifest.get("started", ""))[:10])})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else ""
    devices = sorted({device for run in runs if (device := _device(run)) != "-"})
    commits = sorted({commit for run in runs if (commit := _commit(run)) != "-"})
    parts = [f"started {when}" if when else "", f"on {', '.join(devices)}" if devices else ""]
    parts.append(f"commit {', '.join(commits)}" if commits else "commit not recorded")
    return ", ".join(filter(None, parts))


def _device(run: StoredRun) -> str:
    """The device that a run was on, or the one it asked for where the manifest lacks it."""
    settings = run.part("settings") or run.part("training")
    return str(run.part("versions").get("device") or settings.get("device") or "-")


def _commit(run: StoredRun) -> str:
    return str(run.part("versions").get("commit") or "-")


def _run_cells(run: StoredRun) -> list[str]:
    versions = run.part("versions")
    made = ", ".join(
        f"{key} {versions[key]}" for key in ("fedgradnorm", "torch") if key in versions
    )
    reached = f"round {run.last_round}" if run.rows else "no rounds"
    short = run.planned is not None and run.last_round < run.planned
    planned = f" of {run.planned}" if short else ""
    lost = short and not run.stopped_early
    state = "damaged" if run.finished and lost else "finished" if run.finished else "unfinished"
    state = state if run.manifest else "unknown"
    return [
        run.name, run.method, "-" if run.seed == UNKNOWN_SEED else str(run.seed),
        ", ".join(filter(None, (state, f"{reached}{planned}", run.kept))),
        str(run.manifest.get("started", "-"))[:16].replace("T", " "), _device(run), _commit(run),
        made or "-",
    ]  # fmt: skip


def settings(groups: Sequence[Group]) -> str:
    """What all methods were run with, then what each has of its own; folded away."""
    if not groups:
        return ""
    every = [_parts(one.whole[0]) for one in groups]
    common = _common(every)
    first = _details("Settings of all methods" if len(groups) > 1 else groups[0].label, common)
    each = [(one.label, _without(parts, common)) for one, parts in zip(groups, every, strict=True)]
    made = "".join(_details(label, own) for label, own in each if own)
    if not made:
        return first
    return f"{first}<details><summary>Settings of each method</summary>{made}</details>"


def _parts(run: StoredRun) -> Parts:
    """A run's settings and provenance by part; what is not set is left out."""
    parts: Parts = {
        "command": run.manifest.get("command"),
        "data": run.config.get("data"),
        "network": run.config.get("network"),
        "training": run.part("settings") or run.part("training"),
        "weighting": run.part("weighting"),
        "norm_layer": run.manifest.get("norm_layer"),
        "rounds": run.manifest.get("rounds"),
        "clients": _counted(run) if is_many(run) else run.manifest.get("clients"),
        "versions": run.manifest.get("versions"),
    }
    set_ = {name: _set(part) if isinstance(part, dict) else part for name, part in parts.items()}
    return {name: part for name, part in set_.items() if part}


def _counted(run: StoredRun) -> dict[str, Any]:
    """Many clients: how many there are of each task."""
    return {task: {"clients": count} for task, count in Counter(run.groups.values()).items()}


def _set(table: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: _set(v) if isinstance(v, dict) else v for key, v in table.items() if key != "seed"}
    return {key: value for key, value in kept.items() if value not in (None, {}, [])}


def _common(every: Sequence[Parts]) -> Parts:
    """What all have alike: whole parts, or entries of parts."""
    common: Parts = {}
    for name, first in every[0].items():
        others = [parts.get(name) for parts in every]
        if isinstance(first, dict):
            tables = [part if isinstance(part, dict) else {} for part in others]
            alike = {k: v for k, v in first.items() if all(k in t and t[k] == v for t in tables)}
            if alike:
                common[name] = alike
        elif all(part == first for part in others):
            common[name] = first
    return common


def _without(parts: Parts, common: Parts) -> Parts:
    own: Parts = {}
    for name, part in parts.items():
        alike = common.get(name)
        if isinstance(part, dict):
            rest = {k: v for k, v in part.items() if not (isinstance(alike, dict) and k in alike)}
            if rest:
                own[name] = rest
        elif alike is None:
            own[name] = part
    return own


def _details(title: str, parts: Parts) -> str:
    lines = "".join(
        f"<dt>{escape(name)}</dt><dd>{_value(value)}</dd>" for name, value in parts.items()
    )
    return f"<details><summary>{escape(title)}</summary><dl>{lines}</dl></details>"


def _value(value: Any) -> str:
    """Settings as ``name value`` pairs, lists as words."""
    if isinstance(value, Mapping):
        pairs = (f"<span><b>{escape(str(k))}</b> {_inline(v)}</span>" for k, v in value.items())
        return " ".join(pairs)
    if isinstance(value, list):
        return f"<code>{escape(' '.join(map(str, value)))}</code>"
    return _inline(value)


def _inline(value: Any) -> str:
    if isinstance(value, str):
        return escape(value)
    return escape(json.dumps(value, ensure_ascii=False, default=str).replace('"', ""))
