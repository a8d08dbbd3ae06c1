"""``run`` and ``resume``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedgradnorm._cli.output import DIVERGED, data_bar, fail, resumable, say, tell
from fedgradnorm._launched import is_leader

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A TOML file, or a name that `configs` lists.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Change the config: dotted keys, TOML values, e.g. epochs=3 seed=2.",
        show_default=False,
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-module",
        metavar="MODULE",
        help="Allow the config to import MODULE, your own code. May be repeated.",
        show_default=False,
    ),
]


Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda or auto.", show_default=False)
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="RUN",
        help="Start from a finished run: its network, and the heads of clients that it knows.",
        show_default=False,
    ),
]


def run(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    device: Device = None,
    start: From = None,
    allow: Allow = None,
) -> None:
    """Train one config and keep everything in a run folder.

    The folder is OUTPUT/NAME-METHOD-seedSEED, with a number added if that exists. It contains the
    complete config, a log, metrics.csv, checkpoints, and at the end the trained network and heads.

    Examples:

    - `fedgradnorm run radcom`

    - `fedgradnorm run radcom method=fedrep seed=2 epochs=3`

    - `fedgradnorm run radcom weighting.gamma=0.5 output.folder=/tmp/runs`

    - `fedgradnorm run radcom seed=1 --from runs/radcom-fedgradnorm-seed0`
    """
    from fedgradnorm.experiments._config.config_file import load_config
    from fedgradnorm.experiments._execute import execute, new_folder

    wanted = load_config(config, changed(overrides, device), allow=allow or ())
    folder = new_folder(wanted)
    with resumable(f"fedgradnorm resume {folder}{allowing(allow)}"), data_bar("data") as bar:
        execute(wanted, folder, start=start, progress=True, data_progress=bar)
    show_run(folder)


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that stopped.")],
    *,
    allow: Allow = None,
) -> None:
    """Resume a stopped run from its last checkpoint.

    On the CPU the result is bit-for-bit identical to that of an uninterrupted run. A finished run
    is only shown.
    """
    from fedgradnorm._runs.layout import MANIFEST
    from fedgradnorm._runs.manifest import read_manifest
    from fedgradnorm.experiments._execute import execute, resume_config

    config = resume_config(run, allow=allow or ())
    if (run / MANIFEST).exists() and read_manifest(run)["finished"]:
        say(f"{run} is finished; nothing to do")
    else:
        with resumable(f"fedgradnorm resume {run}{allowing(allow)}"), data_bar("data") as bar:
            execute(config, run, resume=True, progress=True, data_progress=bar)
    show_run(run)


def changed(overrides: list[str] | None, device: str | None) -> list[str]:
    return [*([f"compute.device={device}"] if device else []), *(overrides or [])]


def allowing(modules: list[str] | None) -> str:
    return "".join(f" --allow-module {module}" for module in modules or ())


def show_run(folder: Path) -> None:
    """The table of one run, and where it is; a run that has diverged ends the command with 3."""
    if not is_leader():
        return
    from fedgradnorm._report.frame import report_of
    from fedgradnorm._report.tables import tasks_grid
    from fedgradnorm._runs.reader import read_run

    run = read_run(folder)
    report = report_of([run])
    grid = tasks_grid(report)
    if grid.rows:
        say(replace(grid, title=f"{report.variants[0]}, seed {run.seed}"))
    tell(report.notes)
    if run.kept:
        say(f"result:     {run.kept}")
    say(f"run folder: {folder}")
    say(f"report:     fedgradnorm report {folder} --open")
    if names := run.manifest.get("diverged"):
        from fedgradnorm._runs.manifest import diverged_words

        raise fail(diverged_words(names), DIVERGED)
