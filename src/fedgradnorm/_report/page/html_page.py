"""The report as one HTML file that needs nothing else: no network, no server, no other file.

plotly.js travels inside it, compressed, and is unpacked by the browser; tables, sentences and
intervals are plain HTML and are there without scripts too. A content policy in the file forbids
every request and every script but its own two, whatever a client or method may be named.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedgradnorm._errors import ConfigError
from fedgradnorm._report.colours import STROKES, Look, looks, stylesheet
from fedgradnorm._report.comparison import Comparison
from fedgradnorm._report.grid import Grid
from fedgradnorm._report.group_benefit import Measured, group_benefits, read_measured
from fedgradnorm._report.page import sentences as words
from fedgradnorm._report.page.benefit_section import benefit_html
from fedgradnorm._report.page.conflict_map import maps_html
from fedgradnorm._report.page.curve_points import curves_of
from fedgradnorm._report.page.main_table import comparison
from fedgradnorm._report.page.more_tables import LONG, compared, crowd_html, grids_html
from fedgradnorm._report.page.panels import CONFLICT, Section, sections
from fedgradnorm._report.page.provenance import made_when, runs_table, settings
from fedgradnorm._report.page.ranking_table import is_many as many_arms
from fedgradnorm._report.page.ranking_table import ranking_html
from fedgradnorm._report.page.sweep_story import SWEEP, by_point, points_of, sweep_section
from fedgradnorm._report.page.sweep_story import headline as sweep_headline
from fedgradnorm._report.page.switches import started_off, switches_html
from fedgradnorm._report.record import records_of
from fedgradnorm._report.tables.benefit_grids import TITLE
from fedgradnorm._report.tables.crowd_grid import crowd_grid
from fedgradnorm._report.tables.summaries import TaskRow, task_rows
from fedgradnorm._runs.checkpoint import write_atomically
from fedgradnorm._stored.generated import SYNTHETIC, synthetic
from fedgradnorm._stored.groups import Group, group
from fedgradnorm._stored.reader import StoredRun, collect
from fedgradnorm._stored.task_lines import around, is_many, pooled_groups, pooled_runs
from fedgradnorm._version import __version__

ENDINGS = (".html", ".htm")
MOST_NAMED = 8  # methods that a sentence names one by one
_MANY = 3  # with more methods than this, training curves start switched off


@dataclass(frozen=True)
class Page:
    """The page's text, the numbers of its table, and what it has to say about the runs."""

    html: str
    rows: list[TaskRow]
    notes: list[str]
    crowd: Grid | None = None


def write_page(places: Sequence[Path], path: str | Path, refresh: int = 0) -> Page:
    """Write the page on the runs at ``places`` to ``path``.

    An open page loads itself again every ``refresh`` seconds; never by default.
    """
    made = make_page(places)
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _refreshing(made.html, refresh).encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
    return made


def _refreshing(html: str, seconds: int) -> str:
    again = f'<meta http-equiv="refresh" content="{seconds}">'
    return html.replace("<title>", f"{again}\n<title>", 1) if seconds else html


def make_page(places: Sequence[Path]) -> Page:
    """The page on the runs at ``places``, whatever state they are in."""
    runs, nowhere = collect(places)
    measured, problems = read_measured(places)
    return page_of(runs, [*nowhere, *problems], measured)


def page_of(
    runs: Sequence[StoredRun], nowhere: Sequence[str] = (), measured: Measured | None = None
) -> Page:
    """The page on these runs; ``nowhere`` is what was looked for in vain."""
    everybody, mixture = group(runs)
    benefits = group_benefits(everybody, measured or {})
    groups = pooled_groups(everybody)
    compare = compared(pooled_runs(runs))
    crowd = crowd_grid(everybody, benefits)
    points = points_of(compare)
    labels = [one.label for one in groups]
    records = records_of(groups)
    tasks = list(dict.fromkeys(name for record in records for name in record.clients))
    rows = task_rows(records)
    judged = words.verdicts(rows, records, points)
    notes = [*nowhere, *words.missing(runs, groups), *mixture]
    common, told = _common_gamma(groups)
    curves = [curves_of(one, one.gamma if one.gamma is not None else common) for one in groups]
    drawn = sections(curves, labels, tasks, by_loss=len(labels) == 1)
    made = synthetic(runs)
    medians = {name for one in groups for run in one.whole for name in around(run)}
    main = [one for one in judged if not medians or one.task in medians]
    top, story = _top(rows, main, compare)
    shown = list(looks(labels).values())
    if compare is not None and points:
        colours = list(looks(compare.lines).values())
        swept = [sweep_section(compare, groups, tasks, colours)]
    else:
        swept = []
    parts = {
        "ranking": ranking_html(compare, groups, shown) if compare and many_arms(compare) else "",
        "benefit": benefit_html(benefits, everybody, tasks, shown),
        "crowd": crowd_html(crowd, groups, tasks, shown),
        "grids": grids_html(compare, groups, tasks, shown),
    }
    script = _file("page.js").replace("/* saving.js */", _file("saving.js").strip())
    html = Template(_file("page.html")).substitute(
        title=escape(_title(runs)),
        policy=escape(_policy(script)),
        css=stylesheet() + _file("page.css"),
        eyebrow=escape(f"{_title(runs)} · {_size(runs, groups, tasks, compare)}"),
        headline=escape(top),
        story=story,
        contents=_contents(parts, [*swept, *drawn]),
        made=escape(made_when(runs)),
        basis=escape(words.basis(rows, main)),
        synthetic=f'<p id="synthetic">{escape(made)}</p>' if made else "",
        notes=_notes(notes),
        toggles=switches_html(groups, tasks, compare),
        comparison=comparison(rows, records, judged, labels, shown, points) if rows else "",
        comparison_open=" open" if len(rows) <= LONG and not many_arms(compare) else "",
        **parts,
        sweep="".join(_section(one, tasks, told, "") for one in swept),
        sections=_folded(
            "".join(_section(one, tasks, told, maps_html(groups, tasks, shown)) for one in drawn),
            bool(points),
        ),
        runs=runs_table(runs),
        settings=settings(groups),
        version=escape(__version__),
        data=_json(
            _data(labels, shown, tasks, [*swept, *drawn], made)
            | {"hidden": started_off(groups, compare)}
        ),
        plotly=_plotly()[0],
        script=script,
    )
    return Page(html, rows, notes, crowd)


def _top(
    rows: Sequence[TaskRow], judged: Sequence[words.Verdict], compare: Comparison | None
) -> tuple[str, str]:
    """The headline and, of a sweep, the headline of each point."""
    if compare is None or not compare.points:
        return words.headline(rows, judged), ""
    return sweep_headline(judged, compare), by_point(judged, compare)


def _folded(sections: str, fold: bool) -> str:
    """The curves of a sweep's every arm are many, and not its story."""
    if not fold or not sections:
        return sections
    summary = "Learning curves, weights and norms of every arm"
    return f'<details class="all-arms"><summary>{summary}</summary>{sections}</details>'


def _contents(parts: Mapping[str, str], drawn: Sequence[Section]) -> str:
    """Links to the parts of the page."""
    names = {"ranking": ("ranking", "Ranking"), "table": ("table", "Comparison"),
             "crowd": ("crowd", "Many clients"),
             "benefit": ("benefit", TITLE)}  # fmt: skip
    swept = [(one.id, one.title) for one in drawn if one.id == SWEEP]
    there = swept + [names[k] for k in names if parts.get(k, "-")]
    there += [(one.id, one.title) for one in drawn if one.id != SWEEP]
    there += [("tests", "Tests, gains and cost")] if parts["grids"] else []
    there.append(("provenance", "Runs and settings"))
    links = "".join(f'<a href="#{escape(i)}">{escape(title)}</a>' for i, title in there)
    return f'<nav class="contents" aria-label="Contents">{links}</nav>'


def _common_gamma(groups: Sequence[Group]) -> tuple[float | None, str]:
    """The gamma that methods without one are measured by, and the sentence that says so."""
    found = {one.gamma for one in groups if one.gamma is not None}
    lacking = (one.whole[0].method for one in groups if one.gamma is None and one.shared)
    without = list(dict.fromkeys(lacking))
    if len(found) != 1:
        return None, ""
    gamma = found.pop()
    if not without:
        return gamma, ""
    have = "has" if len(without) == 1 else "have"
    who = words.listed(without) if len(without) <= MOST_NAMED else f"{len(without)} methods"
    return gamma, f"{who} {have} no target: measured by the others' gamma, {gamma:g}."


def _title(runs: Sequence[StoredRun]) -> str:
    names = dict.fromkeys(str(run.config.get("name") or run.name) for run in runs)
    return words.listed(list(names)[:3]) + (" and more" if len(names) > 3 else "")


def _size(
    runs: Sequence[StoredRun],
    groups: Sequence[Group],
    tasks: Sequence[str],
    compare: Comparison | None,
) -> str:
    many = [run for run in runs if is_many(run)]
    named = {task for run in many for task in run.groups.values()} if many else tasks
    counts = [(len(groups), "method"), (len(named), "task"), (len(runs), "run")]
    if many:
        counts.insert(2, (max(len(run.names) for run in many), "client"))
    if compare is not None and compare.points:
        counts[:1] = [(len(compare.lines), "method"), (len(compare.points), "point")]
    return ", ".join(f"{number:,} {what}{'s' * (number != 1)}" for number, what in counts)


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<aside id="notes"><h2>Read this first</h2><ul>{items}</ul></aside>'


def _section(section: Section, tasks: Sequence[str], told: str, maps: str) -> str:
    about = section.about
    if section.id == "norms":
        about = f"{about} {told}"
    if section.missing:
        about = f"{about} Not recorded for {words.listed(section.missing)}."
    views = "".join(
        f'<button type="button" data-view="{escape(name)}" aria-pressed="{_yes(i == 0)}">'
        f"{escape(name)}</button>"
        for i, name in enumerate(section.views)
    )
    roles = "".join(
        f'<button type="button" data-role="{role}" aria-pressed="true">'
        f'<span class="line {role}"></span>{name}</button>'
        for role, name in section.roles.items()
    )
    switches = f'<div class="switch views">{views}</div>' if len(section.views) > 1 else ""
    switches += f'<div class="switch roles">{roles}</div>' if len(section.roles) > 1 else ""
    shown = dict.fromkeys(panel["task"] for panel in section.panels)
    figures = "".join(
        f'<figure data-task="{task}"><figcaption>{escape(tasks[task])}<small></small></figcaption>'
        f'<div class="plot" role="img" aria-label="{escape(f"{section.title}: {tasks[task]}")}">'
        "</div></figure>"
        for task in shown
    )
    return (
        f'<section id="{escape(section.id)}" data-section="{escape(section.id)}">'
        f"<h2>{section.title}</h2>"
        f'<div class="about"><p>{escape(about)}</p>{switches}</div>'
        f'<div class="panels">{figures}</div>{maps if section.id == CONFLICT else ""}</section>'
    )


def _yes(flag: bool) -> str:
    return "true" if flag else "false"


def _data(
    labels: Sequence[str],
    shown: Sequence[Look],
    tasks: Sequence[str],
    drawn: Sequence[Section],
    made: str,
) -> dict[str, Any]:
    off = ["train"] if len(labels) > _MANY else []
    return {
        "methods": list(labels),
        "colours": [look.colour for look in shown],
        "dashes": [_dashes(look.stroke) for look in shown],
        "strokes": [_dashes(number) for number in range(len(STROKES))],
        "tasks": list(tasks),
        "off": off,
        "synthetic": SYNTHETIC if made else "",
        "sections": {one.id: one.panels for one in drawn},
    }


def _dashes(stroke: int) -> str:
    return ",".join(f"{part}px" for part in STROKES[stroke])


def _json(value: Any) -> str:
    """JSON that can stand inside a script element: no name can end it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _file(name: str) -> str:
    return (files("fedgradnorm._report.page") / name).read_text(encoding="utf-8")


@cache
def _plotly() -> tuple[str, str]:
    """plotly.js, compressed for the page, and the hash by which the browser knows it."""
    from plotly.offline import get_plotlyjs

    code = get_plotlyjs().encode()
    return base64.b64encode(gzip.compress(code, mtime=0)).decode(), _hash(code)


def _policy(script: str) -> str:
    """Nothing from anywhere; only the page's own script, and plotly's."""
    scripts = f"script-src {_hash(script.encode())} {_plotly()[1]}"
    rest = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; {scripts}; {rest}"


def _hash(code: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(code).digest()).decode()}'"
