"""The report as one HTML file that needs nothing else: no network, no server, no other file.

plotly.js is embedded, compressed; tables and sentences are plain HTML and need no scripts. A
content policy in the file forbids every request and every script but its own two, whatever a client
or method is named; Jinja escapes all names.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedgradnorm._errors import ConfigError
from fedgradnorm._extras import needed
from fedgradnorm._report.benefit import TITLE, measured_grids
from fedgradnorm._report.colours import COLOURS, ON_DARK, STROKES, Look, looks
from fedgradnorm._report.frame import MANY, Report, read_report
from fedgradnorm._report.grid import BLANK, Cell, Grid
from fedgradnorm._report.headline import basis, headline
from fedgradnorm._report.panels import Section, sections, sweep_section
from fedgradnorm._report.tables import methods_grid, shown_grids, tasks_grid
from fedgradnorm._report.words import count, listed
from fedgradnorm._runs.checkpoint import write_atomically
from fedgradnorm._runs.reader import SYNTHETIC, UNKNOWN_SEED, StoredRun, is_many
from fedgradnorm._version import __version__
from fedgradnorm.experiments._groups import facts_of, frozen
from fedgradnorm.experiments._variants import point_name

LONG = 30
"""A table of more rows than this starts folded."""

_BAR, _PAD = 132, 7  # the width of the small plots in rows and their margins, in pixels


@dataclass(frozen=True)
class Page:
    """The page's text and the report it was made from."""

    html: str
    report: Report


def write_page(places: Sequence[Path], path: str | Path, report: Report | None = None) -> Page:
    made = make_page(places, report)
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, made.html.encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
    return made


def make_page(places: Sequence[Path], report: Report | None = None) -> Page:
    """The page on the runs at ``places``, whatever state they are in, with what `benefit` wrote."""
    report = report or read_report(places)
    measured, problems = measured_grids(report, places)
    return page_of(replace(report, notes=(*report.notes, *problems)), measured)


def page_of(report: Report, measured: Sequence[Grid] = ()) -> Page:
    table = _Tables(report)
    drawn = sections(report)
    swept = [sweep_section(report)] if report.points else []
    several, there = len(report.variants) > 1, len(report.frame) > 0
    top = methods_grid(report) if report.many else None
    below = [grid for grid in shown_grids(report) if grid.name != "tasks"] if several else []
    looked = table.looks
    script = _file("page.js").replace("/* saving.js */", _file("saving.js").strip())
    html = _environment().get_template("page.html").render(
        policy=_policy(script),
        title=_title(report.runs),
        size=_size(report),
        headline=re.sub(r"\(p ([<=]) ", "(p\u00a0\\1\u00a0", headline(report.frame)),  # on one line
        basis=basis(report.frame),
        synthetic=report.synthetic,
        notes=report.notes,
        made=made_when(report.runs),
        colours=list(zip(COLOURS, ON_DARK, strict=True)),
        css=_file("page.css"),
        switches=list(_switches(report, looked)),
        ranking=table.of(top) if top else None,
        main=table.of(tasks_grid(report)) if there else None,
        main_open=not report.many,
        benefit_title=TITLE,
        benefit=[table.of(grid) for grid in measured],
        swept=swept,
        sections=drawn,
        tests=[table.of(grid) for grid in below if not (top and grid.name == top.name)],
        runs=table.of(runs_grid(report.runs)),
        run_count=count(len(report.runs), "run"),
        settings=settings(report),
        tasks=report.tasks,
        looks=looked,
        strokes=STROKES,
        listed=listed,
        version=__version__,
        data=_json(_data(report, [*swept, *drawn])),
        plotly=_plotly()[0],
        script=script,
    )  # fmt: skip
    return Page(html, report)


@cache
def _environment() -> Any:
    with needed("report", "the page"):
        import jinja2
    return jinja2.Environment(
        loader=jinja2.PackageLoader("fedgradnorm._report"), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip


class _Tables:
    """Grids as the template shows them; rows and cells know which switches hide them."""

    def __init__(self, report: Report) -> None:
        self.tasks = {task: number for number, task in enumerate(report.tasks)}
        self.looks = looks(report.variants, report.standouts())
        self.lines = looks(report.lines)
        self.methods = {name: [number] for number, name in enumerate(report.variants)}
        for number, one in enumerate(report.groups.values()):
            if report.points and one.line != one.label:
                self.methods.setdefault(one.line, []).append(number)

    def of(self, grid: Grid) -> dict[str, Any]:
        places: dict[tuple[int, str], int] = {}
        for place, row in enumerate(grid.rows):
            for number, cell in enumerate(row):
                places.setdefault((number, cell.text), place)
        columns = [
            {"title": title, "num": grid.right(number), "csv": json.dumps(grid.csv_columns[number]),
             "minor": title in grid.minor}
            for number, title in enumerate(grid.columns)
        ]  # fmt: skip
        rows = [
            self._row(grid, row, place, places)
            for place, group in enumerate(grid.groups) for row in group
        ]  # fmt: skip
        return {"name": grid.name, "title": grid.title, "columns": columns, "rows": rows,
                "notes": grid.notes, "open": len(rows) <= LONG}  # fmt: skip

    def _row(
        self, grid: Grid, row: Sequence[Cell], group: int, places: Mapping[tuple[int, str], int]
    ) -> dict[str, Any]:
        """A row is hidden with all its methods, or with its task; a cell with its own method."""
        variants = list(dict.fromkeys(cell.variant for cell in row if cell.variant))
        methods = [n for name in variants for n in self.methods.get(name, ())]
        cells = []
        for number, cell in enumerate(row):
            mark = None
            if grid.columns[number].lower() == "method":
                mark = self.looks.get(cell.text) or self.lines.get(cell.text)
                methods = methods or self.methods.get(cell.text, [])
            mine = self.methods.get(cell.variant, []) if len(variants) > 1 else []
            cells.append({
                "text": cell.text, "bold": cell.bold, "mark": mark, "methods": mine,
                "csv": json.dumps(grid.csv_cells(row, number)),
                "value": _sort_value(cell, places[number, cell.text]), "bar": _bar(cell),
            })  # fmt: skip
        look = next((c["mark"] for c in cells if c["mark"]), None)
        within = group
        if "measured on" in grid.columns:
            at = grid.columns.index("measured on")
            within = list(dict.fromkeys(r[at].text for r in grid.rows)).index(row[at].text)
        tasks = [self.tasks[cell.task] for cell in row if cell.task in self.tasks]
        return {"methods": methods, "tasks": tasks, "group": group, "within": within,
                "cells": cells, "look": look}  # fmt: skip


def _sort_value(cell: Cell, place: int) -> str:
    """What a cell sorts by, the better the smaller; a name by where it stood first, "-" last."""
    first = next(iter(cell.numbers.values()), math.nan)
    if cell.numbers or cell == BLANK:
        return f"{-first if cell.higher else first:.8g}" if math.isfinite(first) else ""
    return str(place)


def _bar(cell: Cell) -> dict[str, float] | None:
    """Where the mean and the ends of a cell's interval are in its small plot."""
    if cell.scale is None or not math.isfinite(cell.numbers.get("", math.nan)):
        return None
    factor = 100.0 if cell.text.endswith("%") else 1.0
    low, high = (factor * end for end in cell.scale)

    def place(value: float) -> float:
        inside = min(max((value - low) / ((high - low) or 1.0), 0.0), 1.0)
        return round(_PAD + inside * (_BAR - 2 * _PAD), 1)

    ends = {key: place(cell.numbers[f"_{key}"]) for key in ("low", "high")
            if math.isfinite(cell.numbers.get(f"_{key}", math.nan))}  # fmt: skip
    return {"mean": place(cell.numbers[""]), **ends}


def _switches(report: Report, looked: Mapping[str, Look]) -> Iterator[dict[str, Any]]:
    """Rows of switches: methods, the points of a sweep, and tasks."""
    groups = list(report.groups.values())

    def row(title: str, kind: str, buttons: list[tuple[str, Look | None, list[int]]]) -> Any:
        return {"title": title, "kind": kind, "buttons": buttons, "many": len(buttons) > MANY}

    if report.points:
        having = {line: [i for i, one in enumerate(groups) if one.line == line]
                  for line in report.lines}  # fmt: skip
        points = [point_name(point) for point in report.points]
        at = [[i for i, one in enumerate(groups) if point_name(one.point) == p] for p in points]
        yield row("Methods", "method", [(k, v, having[k]) for k, v in looks(report.lines).items()])
        yield row("Points", "point", [(p, None, i) for p, i in zip(points, at, strict=True)])
    else:
        yield row("Methods", "method", [(k, v, [i]) for i, (k, v) in enumerate(looked.items())])
    yield row("Tasks", "task", [(task, None, [i]) for i, task in enumerate(report.tasks)])


def _title(runs: Sequence[StoredRun]) -> str:
    names = list(dict.fromkeys(str(run.config.get("name") or run.name) for run in runs))
    return listed(names[:3]) + (" and more" if len(names) > 3 else "")


def _size(report: Report) -> str:
    many = [run for run in report.runs if is_many(run)]
    tasks = {t for run in many for t in run.groups.values()} if many else report.tasks
    counts = [(len(report.variants), "method"), (len(tasks), "task"), (len(report.runs), "run")]
    if many:
        counts.insert(2, (max(len(run.names) for run in many), "client"))
    if report.points:
        counts[:1] = [(len(report.lines), "method"), (len(report.points), "point")]
    return ", ".join(count(number, what) for number, what in counts)


def made_when(runs: Sequence[StoredRun]) -> str:
    """When, from which commit and on which devices the runs were made."""
    days = sorted({day for run in runs if (day := str(run.manifest.get("started", ""))[:10])})
    devices = sorted({device for run in runs if (device := _device(run)) != "-"})
    commits = sorted({commit for run in runs if (commit := _commit(run)) != "-"})
    parts = [f"started {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""]
    parts.append(f"on {', '.join(devices)}" if devices else "")
    parts.append(f"commit {', '.join(commits)}" if commits else "commit not recorded")
    return ", ".join(filter(None, parts))


def runs_grid(runs: Sequence[StoredRun]) -> Grid:
    """Every run: how far it got, when it was started, and with what."""
    columns = ("Run", "Method", "Seed", "State", "Started", "Device", "Commit", "Versions")
    rows = tuple(tuple(Cell(text) for text in _run_texts(run)) for run in runs)
    return Grid("runs", "Runs", columns, (rows,))


def _run_texts(run: StoredRun) -> Iterator[str]:
    reached = f"round {run.last_round}" if run.rows else "no rounds"
    short = run.planned is not None and run.last_round < run.planned
    lost = short and not run.stopped_early
    state = "damaged" if run.finished and lost else "finished" if run.finished else "unfinished"
    state = state if run.manifest else "unknown"
    made = run.part("versions").items()
    yield from (run.name, run.method, "-" if run.seed == UNKNOWN_SEED else str(run.seed))
    yield ", ".join(filter(None, (state, reached + f" of {run.planned}" * short, run.kept)))
    yield str(run.manifest.get("started", "-"))[:16].replace("T", " ")
    yield from (_device(run), _commit(run))
    yield ", ".join(f"{k} {v}" for k, v in made if k not in ("device", "commit")) or "-"


def _device(run: StoredRun) -> str:
    asked = run.part("settings") or run.part("training")
    return str(run.part("versions").get("device") or asked.get("device") or "-")


def _commit(run: StoredRun) -> str:
    return str(run.part("versions").get("commit") or "-")


def settings(report: Report) -> list[tuple[str, list[tuple[str, str]]]]:
    """The settings that all variants share, then what each has of its own."""
    tables = {}
    for name, one in report.groups.items():
        run = one.whole[0]
        facts = facts_of(run)
        clients = {k: v for k, v in facts.items() if k.startswith("data.clients.")}
        known = {k: v for k, v in facts.items() if k not in clients and v not in (None, [], {})}
        command = run.manifest.get("command")
        extra = {
            "command": " ".join(map(str, command)) if isinstance(command, list) else command,
            "rounds": run.planned, "norm layer": run.manifest.get("norm_layer"),
            "clients": len(run.names),
        }  # fmt: skip
        tables[name] = {k: v for k, v in extra.items() if v} | known
    if not tables:
        return []
    first, *others = tables.values()
    common = {
        key for key, value in first.items()
        if all(key in t and frozen(t[key]) == frozen(value) for t in others)
    }  # fmt: skip
    shared = [(key, str(first[key])) for key in first if key in common]
    own = [
        (name, [(k, str(v)) for k, v in table.items() if k not in common])
        for name, table in tables.items()
    ]
    title = "Settings of all methods" if others else next(iter(tables))
    return [(title, shared), *((name, rows) for name, rows in own if rows)]


def _data(report: Report, drawn: Sequence[Section]) -> dict[str, Any]:
    shown = looks(report.variants, report.standouts()).values()
    first = set(report.standouts())
    dashes = [",".join(f"{part}px" for part in stroke) for stroke in STROKES]
    return {
        "methods": report.variants, "colours": [look.colour for look in shown],
        "dashes": [dashes[look.stroke] for look in shown], "strokes": dashes,
        "tasks": report.tasks, "off": ["train"] if len(report.variants) > 3 else [],
        "hidden": [i for i, name in enumerate(report.variants) if name not in first],
        "synthetic": SYNTHETIC if report.synthetic else "",
        "sections": {one.id: one.panels for one in drawn},
    }  # fmt: skip


def _json(value: Any) -> str:
    """JSON that can stand inside a script element: no name can end it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _file(name: str) -> str:
    return (files("fedgradnorm._report") / "templates" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> tuple[str, str]:
    """plotly.js, compressed for the page, and the hash by which the browser knows it."""
    with needed("report", "the page"):
        from plotly.offline import get_plotlyjs
    code = get_plotlyjs().encode()
    return base64.b64encode(gzip.compress(code, mtime=0)).decode(), _hash(code)


def _policy(script: str) -> str:
    """No requests at all; only the page's own script, and plotly's."""
    scripts = f"script-src {_hash(script.encode())} {_plotly()[1]}"
    rest = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; {scripts}; {rest}"


def _hash(code: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(code).digest()).decode()}'"
