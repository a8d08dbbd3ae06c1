"""Conflict between clients on the page: who pulls against whom, as curves and as a map."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from fedgradnorm._report.colours import Look, key
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._stored.groups import Group

MEAN = "cosine"
MOST = 8  # more tasks than this get no view for each, twice as many no map

Points = dict[int, tuple[float, float]]


def with_task(task: str) -> str:
    """The column of a client's cosine with the client ``task``."""
    return f"{MEAN} with {task}"


def cosine_series(pairs: Sequence[Row]) -> dict[tuple[str, str, str], Points]:
    """(client, "batch", column) -> round -> (epoch, cosine): with each other, and their mean."""
    found: dict[tuple[str, str, str], Points] = {}
    together: dict[tuple[str, int], list[float]] = {}
    epochs: dict[int, float] = {}
    for row in pairs:
        number, cosine = row["round"], row["cosine"]
        epochs[number] = row["epoch"]
        for one, other in _both_ways(row):
            found.setdefault((one, "batch", with_task(other)), {})[number] = row["epoch"], cosine
            together.setdefault((one, number), []).append(cosine)
    for (client, number), values in together.items():
        mean = math.fsum(values) / len(values)
        found.setdefault((client, "batch", MEAN), {})[number] = epochs[number], mean
    return found


def _both_ways(row: Row) -> tuple[tuple[str, str], tuple[str, str]]:
    return (row["client"], row["other"]), (row["other"], row["client"])


def maps_html(groups: Sequence[Group], tasks: Sequence[str], looks: Sequence[Look]) -> str:
    """A map per method that has recorded anything: a line and a column per task.

    Cosines of many parameters are small: the deepest colour is the largest of all maps.
    """
    means = {number: found for number, one in enumerate(groups) if (found := _means(one))}
    if not means or len(tasks) > 2 * MOST:
        return ""
    top = max(abs(value) for found in means.values() for value in found.values()) or 1.0
    made = "".join(
        _map(number, groups[number].label, _Map(tasks, found, top), looks[number])
        for number, found in means.items()
    )
    scale = (
        f'<p class="scale"><span class="against" style="--depth: 1">{_text(-top, top)}</span> '
        f'against each other, <span class="along" style="--depth: 1">{_text(top, top)}</span> '
        "along with each other; means over the rounds recorded and over seeds.</p>"
    )
    return f'<div class="maps">{made}</div>{scale}'


def _means(group: Group) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], list[float]] = {}
    for row in (row for run in group.whole for row in run.pairs):
        for pair in _both_ways(row):
            found.setdefault(pair, []).append(row["cosine"])
    return {pair: math.fsum(values) / len(values) for pair, values in found.items()}


def _map(method: int, label: str, cells: _Map, look: Look) -> str:
    return (
        f'<figure class="map" data-methods="{method}"><figcaption>{key(look)} {escape(label)}'
        f'</figcaption><div class="scroll"><table>{cells.html()}</table></div></figure>'
    )


@dataclass(frozen=True)
class _Map:
    """The cells of a map; ``top`` is the cosine with the deepest colour."""

    tasks: Sequence[str]
    means: Mapping[tuple[str, str], float]
    top: float

    def html(self) -> str:
        have = {one for one, _ in self.means}
        there = [(i, task) for i, task in enumerate(self.tasks) if task in have]
        head = "".join(f'<th scope="col" data-tasks="{j}">{escape(task)}</th>' for j, task in there)
        body = "".join(
            f'<tr data-tasks="{i}"><th scope="row">{escape(one)}</th>'
            + "".join(self._cell(one, other, j) for j, other in there)
            + "</tr>"
            for i, one in there
        )
        return f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody>"

    def _cell(self, one: str, other: str, column: int) -> str:
        value = self.means.get((one, other))
        if value is None:
            return f'<td data-tasks="{column}" class="self"></td>'
        kind = "against" if value < 0 else "along"
        look = f'class="{kind}" style="--depth: {abs(value) / self.top:.2f}"'
        return f'<td data-tasks="{column}" {look}>{_text(value, self.top)}</td>'


def _text(value: float, top: float) -> str:
    """A cosine with as many digits as the largest needs.

    >>> _text(-0.0449, 0.31), _text(-0.0449, 0.05), _text(-0.0001, 0.5)
    ('-0.04', '-0.045', '0.00')
    """
    digits = 2 if top >= 0.1 else 3 if top >= 0.01 else 4
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]
