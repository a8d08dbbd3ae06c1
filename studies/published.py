"""``python -m studies.published``: the tables and figures in docs/results, from their archives."""

from __future__ import annotations

import re
import tarfile
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedgradnorm._cli.output import Commands, say
from fedgradnorm._report.figures import DARK, draw
from fedgradnorm._report.frame import read_report
from fedgradnorm._report.tables import write_tables
from studies.benefit import write_all
from studies.methods import methods_figure, side_by_side

RESULTS = Path(__file__).parents[1] / "docs" / "results"
ENDS = (".svg", f"{DARK}.svg")
DENSE = 200

app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def published(
    folder: Annotated[Path, typer.Argument(help="The folders with archives.")] = RESULTS,
) -> None:
    """Write every archive's tables (CSV, Markdown) and figures (SVG, for light and dark pages)."""
    with tempfile.TemporaryDirectory() as place:
        for archive in sorted(folder.glob("*/*.tar.xz")):
            runs = Path(place) / archive.parent.name
            with tarfile.open(archive) as tar:
                tar.extractall(runs, filter="data")
            if archive.parent.name == "benefit":
                write_all(runs / "benefit", archive.parent, archive.parent, ENDS)
            else:
                report = read_report([runs])
                write_tables(report, archive.parent)
                draw(report, archive.parent, ENDS)
                if archive.parent.name.startswith("methods-"):
                    for end in ENDS:
                        methods_figure(report, archive.parent / f"methods{end}")
            for path in archive.parent.glob("*.svg"):
                path.write_text(_fit_for_pages(path.read_text(encoding="utf-8")), encoding="utf-8")
            say(f"written: {archive.parent}")
        if (folder / "methods").is_dir():
            side_by_side(Path(place), folder / "methods")
    for path in folder.glob("*/*.tex"):
        path.unlink()


def _fit_for_pages(svg: str) -> str:
    """Twice as large, for pages show a figure smaller and a click shows it so; short curves."""
    svg = re.sub(
        r'\b(width|height)="([\d.]+)pt"', lambda m: f'{m[1]}="{2 * float(m[2]):g}pt"', svg, count=2
    )
    svg = re.sub(r' d="((?:[ML] \S+ \S+\s+){20,}z?\s*)"', lambda m: f' d="{_short(m[1])}"', svg)
    return re.sub(r"\n\s*", "\n", svg)


def _short(path: str) -> str:
    """The path in steps of a tenth of a point; a band of many points by every second of them."""
    parts, last, places = [], (0, 0), re.findall(r"([ML]) (\S+) (\S+)", path)
    for letter, *place in places[:: 2 if "z" in path and len(places) > DENSE else 1]:
        x, y = (round(10 * float(value)) for value in place)
        start = last if letter == "L" else (0, 0)
        step = [f"{(now - before) / 10:g}" for now, before in zip((x, y), start, strict=True)]
        parts.append(f"{'l' if letter == 'L' else 'M'}{' '.join(step)}")
        last = x, y
    text = re.sub(r"(?<![\d.])0\.", ".", "".join(parts)).replace(" -", "-")
    return text + ("z" if "z" in path else "")


if __name__ == "__main__":
    app(prog_name="python -m studies.published")
