"""``python -m studies.published``: the tables and figures in docs/results, from their archives."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedgradnorm._cli.output import Commands, say
from fedgradnorm._report.figures import draw
from fedgradnorm._report.frame import read_report
from fedgradnorm._report.tables import write_tables
from studies.benefit import write_all
from studies.methods import methods_figure, side_by_side

RESULTS = Path(__file__).parents[1] / "docs" / "results"

app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def published(
    folder: Annotated[Path, typer.Argument(help="The folders with archives.")] = RESULTS,
) -> None:
    """Write the tables (CSV, Markdown) and figures (PNG) of every archive again, next to it."""
    with tempfile.TemporaryDirectory() as place:
        for archive in sorted(folder.glob("*/*.tar.xz")):
            runs = Path(place) / archive.parent.name
            with tarfile.open(archive) as tar:
                tar.extractall(runs, filter="data")
            if archive.parent.name == "benefit":
                write_all(runs / "benefit", archive.parent, archive.parent)
            else:
                report = read_report([runs])
                write_tables(report, archive.parent)
                draw(report, archive.parent)
                if archive.parent.name.startswith("methods-"):
                    methods_figure(report, archive.parent / "methods.png")
            say(f"written: {archive.parent}")
        if (folder / "methods").is_dir():
            side_by_side(Path(place), folder / "methods")
    for ending in ("tex", "pdf"):
        for path in folder.glob(f"*/*.{ending}"):
            path.unlink()


if __name__ == "__main__":
    app(prog_name="python -m studies.published")
