"""A table on a narrow terminal: no digit is lost.

Labels are shortened in the middle. Columns that do not fit go into further tables below, each with
the labels again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.table import Column, Table
from rich.text import Text

GAP = 3  # the most that stands between two columns
_SHORTEST = 10  # a label is not shortened below this


def fitted(table: Table, width: int) -> list[Table]:
    """``table`` itself where it fits into ``width``; else tables that do, one below the other.

    A table without numbers wraps its words and stays as it is.
    """
    columns = table.columns
    widths = [_width(column) for column in columns]
    numbers = [column.justify == "right" for column in columns]
    if not any(numbers) or sum(widths) + GAP * len(widths) <= width:
        return [table]
    labels = list(range(numbers.index(True)))
    room = max(_SHORTEST, (width // 2 - GAP * len(labels)) // max(len(labels), 1))
    for place in labels:
        widths[place] = min(widths[place], room)
    blocks = _blocks(widths, labels, width)
    return [
        _part(table, [*labels, *block], room, first=block is blocks[0], last=block is blocks[-1])
        for block in blocks
    ]


def _blocks(widths: Sequence[int], labels: Sequence[int], width: int) -> list[list[int]]:
    """The columns beside the labels, as many at a time as fit."""
    left = width - sum(widths[place] + GAP for place in labels)
    blocks: list[list[int]] = [[]]
    used = 0
    for place in range(len(labels), len(widths)):
        need = widths[place] + GAP
        if blocks[-1] and used + need > left:
            blocks.append([])
            used = 0
        blocks[-1].append(place)
        used += need
    return blocks


def _part(table: Table, places: Sequence[int], room: int, *, first: bool, last: bool) -> Table:
    part = Table(
        title=table.title if first else None, title_justify="left", box=table.box,
        pad_edge=table.pad_edge, caption=table.caption if last else None, caption_justify="left",
    )  # fmt: skip
    numbers = [table.columns[place].justify == "right" for place in places]
    for place, number in zip(places, numbers, strict=True):
        column = table.columns[place]
        least = _width(column) if number else 0
        part.add_column(column.header, justify=column.justify, min_width=least)
    labels = next(p for p, column in enumerate(table.columns) if column.justify == "right")
    cells = [list(table.columns[place].cells) for place in places]
    for at, row in enumerate(table.rows):
        texts = [
            column[at] if right or place > labels else _short(column[at], room)
            for column, place, right in zip(cells, places, numbers, strict=True)
        ]
        part.add_row(*texts, end_section=row.end_section)
    return part


def _short(cell: Any, room: int) -> Any:
    """A label with its middle left out where it is too long: both ends tell it from its like."""
    text = cell.plain if isinstance(cell, Text) else str(cell)
    if cell_len(text) <= room or "\n" in text:
        return cell
    end = (room - 1) // 2
    style = cell.style if isinstance(cell, Text) else ""
    return Text(f"{text[: room - 1 - end]}…{text[len(text) - end :]}", style=style)


def _width(column: Column) -> int:
    """What a column must have: its longest cell if it holds numbers, and its heading's words."""
    number = column.justify == "right"
    longest = max((max(map(cell_len, _lines(cell))) for cell in column.cells), default=0)
    heading = max((cell_len(word) for word in _plain(column.header).split()), default=0)
    return max(longest, heading) if number else max(min(longest, 2 * _SHORTEST), heading)


def _lines(cell: Any) -> list[str]:
    return _plain(cell).split("\n")


def _plain(cell: Any) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
