"""The page's switches: which methods, points and tasks are shown; every figure's legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fedgradnorm._report.colours import key, looks
from fedgradnorm._report.comparison import Comparison
from fedgradnorm._report.ranking import MANY, standouts
from fedgradnorm._stored.groups import Group
from fedgradnorm.experiments._sweep import point_name


@dataclass(frozen=True)
class Switch:
    """A button: its name, its piece of line, and the methods or the task that go with it."""

    name: str
    mark: str
    numbers: tuple[int, ...]


def switches_html(
    groups: Sequence[Group], tasks: Sequence[str], comparison: Comparison | None
) -> str:
    """Rows of switches; in a sweep, methods and points apart."""
    if comparison is not None and comparison.points:
        colours = looks(comparison.lines)
        by_line = [
            Switch(line, key(colours[line]), _having(groups, line=line))
            for line in comparison.lines
        ]
        points = [point_name(point) for point in comparison.points]
        by_point = [Switch(point, "", _having(groups, point=point)) for point in points]
        made = _row("Methods", "method", by_line) + _row("Points", "point", by_point)
    else:
        shown = looks([one.label for one in groups])
        buttons = [Switch(name, key(look), (i,)) for i, (name, look) in enumerate(shown.items())]
        made = _row("Methods", "method", buttons)
    return made + _row("Tasks", "task", [Switch(task, "", (i,)) for i, task in enumerate(tasks)])


def started_off(groups: Sequence[Group], comparison: Comparison | None) -> list[int]:
    """The methods that are not drawn at first: of many, all but the baseline, ours and the best."""
    if comparison is None or comparison.points or len(groups) <= MANY:
        return []
    chosen = standouts(comparison)
    first = {arm.name for arm in comparison.arms if arm.label in chosen}
    return [i for i, one in enumerate(groups) if one.label not in first]


def _having(groups: Sequence[Group], *, line: str = "", point: str = "") -> tuple[int, ...]:
    return tuple(
        i
        for i, one in enumerate(groups)
        if (line and one.line == line) or (point and point_name(one.point) == point)
    )


def _row(title: str, kind: str, buttons: Sequence[Switch]) -> str:
    if not buttons:
        return ""
    many = len(buttons) > MANY
    tools = ""
    if many:
        tools = (
            f'<input type="search" placeholder="search {len(buttons)}" aria-label="Search {title}">'
            '<button type="button" class="tool" data-all>all</button>'
            '<button type="button" class="tool" data-none>none</button>'
        )
    body = "".join(_button(kind, number, one, many) for number, one in enumerate(buttons))
    return (
        f'<div class="toggles{" many" if many else ""}" role="group" aria-label="{title}">'
        f"<b>{title}</b>{tools}{body}</div>"
    )


def _button(kind: str, number: int, one: Switch, many: bool) -> str:
    which = " ".join(map(str, one.numbers))
    name = escape(one.name)
    only = ""
    if many:
        only = f'<button type="button" class="only" aria-label="only {name}">only</button>'
    return (
        f'<span class="pill"><button type="button" aria-pressed="true" title="{name}" '
        f'data-{kind}="{number}" data-which="{which}">{one.mark}{name}</button>{only}</span>'
    )
