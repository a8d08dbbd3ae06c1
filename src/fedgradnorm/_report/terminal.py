"""A table on a narrow terminal: no name or number is cut.

Labels are wrapped between words. Columns that do not fit go into further tables below, each with
the labels again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.table import Column, Table
from rich.text import Text

GAP = 3  # the most that stands between two columns
_SHORTEST = 12  # a label is not wrapped below this


def fitted(table: Table, width: int) -> list[Table]:
    """``table`` itself if it fits into ``width``; else tables that do, one below the other.

    A table without numbers wraps its words and stays as it is.
    """
    columns = table.columns
    numbers = [column.justify == "right" for column in columns]
    widths = [_width(column) for column in columns]
    titles = [max(map(cell_len, _lines(column.header))) for column in columns]
    if not any(numbers) or sum(map(max, widths, titles)) + GAP * len(widths) <= width:
        return [table]
    labels = range(numbers.index(True))
    for place in labels:
        room = max(_SHORTEST, _longest_word(columns[place]))
        widths[place] = min(widths[place], max(room, width // 3 - GAP))
    left = width - sum(widths[place] + GAP for place in labels)
    blocks: list[list[int]] = [[]]
    used = 0
    for place in range(len(labels), len(widths)):
        if blocks[-1] and used + widths[place] + GAP > left:
            blocks.append([])
            used = 0
        blocks[-1].append(place)
        used += widths[place] + GAP
    return [
        _part(table, [*labels, *block], widths, first=block is blocks[0], last=block is blocks[-1])
        for block in blocks
    ]


def _part(
    table: Table, places: Sequence[int], widths: Sequence[int], *, first: bool, last: bool
) -> Table:
    part = Table(
        title=table.title if first else None, title_justify="left", box=table.box,
        pad_edge=table.pad_edge, caption=table.caption if last else None, caption_justify="left",
    )  # fmt: skip
    for place in places:
        column, size = table.columns[place], widths[place]
        part.add_column(column.header, justify=column.justify, min_width=size, max_width=size)
    cells = [list(table.columns[place].cells) for place in places]
    for at, row in enumerate(table.rows):
        part.add_row(*(column[at] for column in cells), end_section=row.end_section)
    return part


def _width(column: Column) -> int:
    """What a column needs: its longest cell, or the longest word of its title."""
    longest = max((cell_len(line) for cell in column.cells for line in _lines(cell)), default=0)
    return max(longest, max((cell_len(word) for word in _plain(column.header).split()), default=0))


def _longest_word(column: Column) -> int:
    words = (word for cell in (column.header, *column.cells) for word in _plain(cell).split())
    return max(map(cell_len, words), default=0)


def _lines(cell: Any) -> list[str]:
    return _plain(cell).split("\n")


def _plain(cell: Any) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
