"""Record ``fedgradnorm demo`` as the animated picture of the README.

    python tools/record_demo.py        # writes docs/images/demo.svg, after a minute or two

The demo runs in a pseudo-terminal, so the picture shows what a terminal shows: the progress of
training, then the table and the finding. It is plain SVG text without a script. The moments
replace each other by CSS, once; readers who prefer less motion see the last one only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import termios
import time
from codecs import getincrementaldecoder
from pathlib import Path
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "demo.svg"
PROMPT = "$ make demo"
COLUMNS, WIDTH, MARGIN = 90, 760, 16
CELL, LINE, FONT = (WIDTH - 2 * MARGIN) / COLUMNS, 18, 13.5
MOMENTS, SECONDS = 9, 0.5
"""Of training, evenly spread, and how long each is shown: the table comes after 4.5 seconds."""

INK, SOFT, PAPER, EDGE = "#1f2328", "#57606a", "#f6f8fa", "#d0d7de"
COLOURS = {1: "#cf222e", 2: "#1a7f37", 5: "#8250df", 6: "#1b7c83", 8: "#8c959f"}
"""By the number that a terminal has for it; bright ones as the others."""
PARTS = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+")
CUT = re.compile(r"\x1b(\[[?0-9;]*)?$")
"""A code of which the rest has not been read yet."""
GROUPS = re.compile(r"\S+(?: \S+)*")
"""Words with single spaces between them; pictures do not keep more."""

Lines = list[str]
"""What a terminal shows, with the codes of its colours."""


def shown(text: str, lines: Lines, row: int) -> int:
    """Write ``text`` to ``lines`` as a terminal would; returns the new row.

    It knows what progress displays need, which rewrite whole lines.
    """
    for part in PARTS.findall(text):
        if part == "\n":
            row += 1
            lines.extend([""] * (row + 1 - len(lines)))
        elif part.startswith("\x1b") and part.endswith("A"):
            row = max(0, row - int(part[2:-1] or 1))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part.endswith("m") or not part.startswith(("\x1b", "\r")):
            lines[row] += part
    return row


def recorded() -> list[tuple[float, Lines]]:
    """What the terminal shows after each piece of the demo's output, with its time."""
    not_ours = ("COLUMNS", "LINES", "NO_COLOR", "COLORTERM")
    env = {key: value for key, value in os.environ.items() if key not in not_ours}
    master, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (60, COLUMNS))
    decode = getincrementaldecoder("utf-8")().decode
    moments: list[tuple[float, Lines]] = []
    lines, row, rest = [""], 0, ""
    with tempfile.TemporaryDirectory() as folder:
        demo = subprocess.Popen(
            [sys.executable, "-m", "fedgradnorm", "demo"],
            cwd=folder, env={**env, "TERM": "xterm"}, stdout=terminal, stderr=terminal,
        )  # fmt: skip
        os.close(terminal)
        while piece := _piece(master):
            rest += decode(piece)
            cut = CUT.search(rest)
            whole = rest[: cut.start()] if cut else rest
            rest = rest[len(whole) :]
            row = shown(whole, lines, row)
            moments.append((time.monotonic(), list(lines)))
        if demo.wait():
            raise SystemExit("the demo failed:\n" + "\n".join(lines))
    return moments


def _piece(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # how Linux reports that the program has ended
        return b""


def chosen(moments: list[tuple[float, Lines]]) -> list[Lines]:
    """Moments of training, evenly spread, and the end."""
    training = [(at, lines) for at, lines in moments if not any("─" in line for line in lines)]
    first, last = training[0][0], training[-1][0]
    found = []
    for number in range(1, MOMENTS + 1):
        until = first + (last - first) * number / MOMENTS
        found.append([lines for at, lines in training if at <= until][-1])
    end = moments[-1][1]
    plain = [Text.from_ansi(line).plain for line in end]
    return [*found, end[next(i for i, line in enumerate(plain) if line.startswith("Every task")) :]]


def drawn(screens: list[Lines]) -> str:
    """The picture: one group of lines per moment, of which the last one stays."""
    rows = max(len(lines) for lines in screens) + 1
    height = rows * LINE + 2 * MARGIN
    training = [
        f'<g class="moment" style="animation-delay:{number * SECONDS:g}s">{_text(lines)}</g>'
        for number, lines in enumerate(screens[:-1])
    ]
    moments, over = "\n".join(training), SECONDS * len(training)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" \
viewBox="0 0 {WIDTH} {height}" font-size="{FONT}" fill="{INK}" \
role="img" aria-labelledby="title">
<title id="title">fedgradnorm demo in a terminal</title>
<style>
svg {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
.moment {{ visibility: hidden; animation: show {SECONDS:g}s; }}
.end {{ animation: hide {over:g}s; }}
@keyframes show {{ from, to {{ visibility: visible; }} }}
@keyframes hide {{ from, to {{ visibility: hidden; }} }}
@media (prefers-reduced-motion: reduce) {{ .moment, .end {{ animation: none; }} }}
</style>
<rect x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="6" fill="{PAPER}" \
stroke="{EDGE}"/>
{_text([PROMPT])}
{moments}
<g class="end">{_text(screens[-1])}</g>
</svg>
"""


def _text(lines: Lines) -> str:
    """The lines below the prompt, or the prompt; every word group at its column, and as wide."""
    console, parts = Console(), []
    for row, line in enumerate(lines, start=lines != [PROMPT]):
        y, column = MARGIN + (row + 0.75) * LINE, 0
        for text, style, _ in Text.from_ansi(line).render(console, end=""):
            colour = SOFT if style and style.dim else None
            if style and style.color and (number := style.color.number) is not None:
                colour = COLOURS.get(number) or COLOURS.get(number - 8)
            looks = f' fill="{colour}"' if colour else ""
            looks += ' font-weight="bold"' if style and style.bold else ""
            for group in GROUPS.finditer(text):
                x = MARGIN + (column + cell_len(text[: group.start()])) * CELL
                wide = cell_len(group[0]) * CELL
                place = f'x="{x:.1f}" y="{y:g}" textLength="{wide:.1f}"'
                parts.append(f"<text {place}{looks}>{escape(group[0])}</text>")
            column += cell_len(text)
    return "\n".join(parts)


if __name__ == "__main__":
    PICTURE.write_text(drawn(chosen(recorded())), encoding="utf-8")
    print(PICTURE)
