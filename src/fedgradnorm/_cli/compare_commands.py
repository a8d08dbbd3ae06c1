"""``compare``, ``reproduce`` and ``benefit``: many runs, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fedgradnorm._cli.board import showing_runs
from fedgradnorm._cli.output import (
    DIVERGED,
    check_report,
    data_bar,
    fail,
    resumable,
    say,
    show_page,
    show_report,
)
from fedgradnorm._cli.training_commands import Allow, ConfigFile, Device, Overrides, changed
from fedgradnorm._errors import ConfigError, RunFolderError, TrainingError, listed
from fedgradnorm._runs.layout import BENEFIT, FIGURES, REPORT, TABLES

if TYPE_CHECKING:
    from fedgradnorm._report.frame import Report
    from fedgradnorm._runs.reader import StoredRun
    from fedgradnorm.experiments._config.config_file import Config

Methods = Annotated[
    str | None,
    typer.Option(
        "--methods", "-m", help="Separated by commas: names (see `methods`), or name key=value ..."
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        "-s",
        help="Number of seeds, starting with the config's `seed`.",
        show_default=False,
    ),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", help="Runs at a time, each in its own process.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Where runs, tables and figures go.", show_default=False),
]
Baseline = Annotated[
    str | None,
    typer.Option("--baseline", "-b", help="The method to test against.", show_default=False),
]


def compare(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="As for `run`.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    *,
    methods: Methods = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    device: Device = None,
    out: Out = None,
    start: Annotated[
        list[Path] | None,
        typer.Option("--from", help="Train nothing: compare the runs in this folder."),
    ] = None,
    baseline: Baseline = None,
    allow: Allow = None,
) -> None:
    """Train several methods with several seeds and show them side by side.

    Each run has a folder in OUTPUT/NAME-compare. Repeat the command to resume stopped runs;
    finished ones are kept. By default, methods, seeds and baseline are those of the config's
    [compare] table. A [sweep] table has lists instead of values and runs every combination. To
    compare a method with a variant of it, write settings after its name. Tables (CSV, Markdown,
    LaTeX), figures and the page report.html are written next to the runs.

    Examples:

    - `fedgradnorm compare radcom --methods fedrep,fedgradnorm --seeds 3`

    - `fedgradnorm compare radcom -m "fedgradnorm, fedgradnorm weighting.lr=0.008"`

    - `fedgradnorm compare --from runs/table2 --baseline fedgradnorm`
    """
    from fedgradnorm.experiments._config.config_file import load_config
    from fedgradnorm.experiments._variants import split_entries

    check_report()
    if start:
        if config is not None:
            raise ConfigError("give a config to train, or --from a folder to compare, not both")
        show_comparison(start, baseline or "", out or start[0])
        return
    if config is None:
        raise ConfigError("no config to train; name a TOML file, or --from a folder of runs")
    wanted = load_config(config, changed(overrides, device), allow=allow or ())
    names = None if methods is None else split_entries(methods)
    refuse_diverged(run_and_show(wanted, names, seeds, jobs, out, baseline))


def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="fig2, table2, fig3 of the paper; scale, gamma, alpha, participation, steps, "
            "baselines; all of these; methods: every method on faces and on signals; or benefit: "
            "what clients gain over training alone.",
        ),
    ],
    overrides: Overrides = None,
    *,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    device: Device = None,
    out: Out = None,
    baseline: Baseline = None,
    allow: Allow = None,
) -> None:
    """Run an experiment of the paper, or one of ours, and show its table and figure.

    Everything goes to runs/NAME, or to --out (and NAME inside it, for several). Called again,
    finished runs are kept and stopped ones resumed. `fedgradnorm configs NAME` prints a config. The
    face experiments read MTFL from the folder named by FEDGRADNORM_DATA.

    Examples:

    - `fedgradnorm reproduce table2 --seeds 1`

    - `fedgradnorm reproduce scale --seeds 5 --jobs 6 --device cuda --out runs/scale`
    """
    from fedgradnorm.experiments._config.config_file import load_config
    from fedgradnorm.experiments._config.shipped import experiments

    check_report()
    names = experiments(experiment)
    folder = Path("runs") / experiment if out is None else out
    words = changed(overrides, device)
    wanted = {name: load_config(name, words, allow=allow or ()) for name in names}
    trouble: TrainingError | None = None
    runs: list[StoredRun] = []
    for name, config in wanted.items():
        if len(wanted) > 1:
            say(f"== {name}")
        place = folder / name if len(wanted) > 1 else folder
        try:
            runs += run_and_show(config, None, seeds, jobs, place, baseline)
        except TrainingError as error:  # the others are not affected
            trouble = trouble or error
    if trouble is not None:
        raise trouble
    refuse_diverged(runs)


def refuse_diverged(runs: Sequence[StoredRun]) -> None:
    """End the command with 3 where a run has diverged, after everything was shown."""
    if names := [run.name for run in runs if run.diverged]:
        raise fail(f"{len(names)} of {len(runs)} runs have diverged: {listed(names)}", DIVERGED)


def benefit(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    by: Annotated[
        str, typer.Option("--by", help="Compare classifiers by accuracy (score), or by loss.")
    ] = "score",
    try_heads: Annotated[
        bool,
        typer.Option(
            "--try-heads",
            help="Let validation pick own heads, shared ones, or shared with own bias.",
        ),
    ] = False,
    seeds: Annotated[
        int,
        typer.Option("--seeds", "-s", help="Number of seeds, starting with the config's `seed`."),
    ] = 1,
    jobs: Jobs = 1,
    device: Device = None,
    out: Out = None,
    allow: Allow = None,
) -> None:
    """Train together and alone, and show what each client gains.

    Trains the clients together with the config's method, and each client alone with the same
    settings and the same stopping, and compares both on every client's test examples. With
    --try-heads, the method is trained with own heads, with one head per task, and with one head per
    task but own biases; the one with the least validation loss is compared. The runs are in
    OUTPUT/NAME-benefit, next to benefit.csv and a report page. Repeat the command to resume
    unfinished runs.

    Examples:

    - `fedgradnorm benefit school data.validation_share=0.2 keep_best=true`

    - `fedgradnorm benefit landmine --by loss --seeds 3 --jobs 2`

    - `fedgradnorm benefit school data.validation_share=0.2 keep_best=true --try-heads`
    """
    from fedgradnorm._checks import one_of
    from fedgradnorm._report.benefit import client_grid, write_benefit
    from fedgradnorm._report.page import write_page
    from fedgradnorm.experiments._benefit_runs import benefit as run_both
    from fedgradnorm.experiments._benefit_runs import benefit_folder, variant_name
    from fedgradnorm.experiments._config.config_file import load_config

    one_of("--by", by, ("score", "loss"))
    check_report()
    wanted = load_config(config, changed(overrides, device), allow=allow or ())
    folder = benefit_folder(wanted) if out is None else out
    with resumable("the same command"), data_bar("data") as bar, showing_runs() as watch:
        found = run_both(
            wanted, seeds, folder=folder, by="loss" if by == "loss" else "score",
            try_heads=try_heads, jobs=jobs, watch=watch, data_progress=bar,
        )  # fmt: skip
    name = variant_name(wanted, found)
    many = f"mean over {seeds} seeds" if seeds > 1 else f"seed {wanted.seed}"
    say(client_grid(found, f"{name} against alone, {many}"))
    write_benefit(found, folder / BENEFIT, name, seeds)
    page = write_page([folder], folder / REPORT)
    say(f"table:   {folder / BENEFIT}")
    say(f"page:    {folder / REPORT} (opens in any browser, works offline)")
    say(Text(found.sentence))
    refuse_diverged(page.report.runs)


def run_and_show(
    config: Config,
    methods: list[str] | None,
    seeds: int | None,
    jobs: int,
    out: Path | None,
    baseline: str | None,
) -> Sequence[StoredRun]:
    """Train what is missing, then show the tables and the figure of all; the runs there."""
    from fedgradnorm._methods import find_method
    from fedgradnorm.experiments._compare import compare as train
    from fedgradnorm.experiments._compare import compare_folder
    from fedgradnorm.experiments._variants import read_entry

    if baseline is not None:
        find_method(baseline)
    folder = compare_folder(config) if out is None else out
    trouble: TrainingError | None = None
    try:
        with resumable("the same command"), data_bar("data") as bar, showing_runs() as watch:
            train(config, methods, seeds, folder=folder, jobs=jobs, watch=watch, data_progress=bar)
    except TrainingError as error:
        trouble = error
    texts = config.compare.methods if methods is None else methods
    names = {read_entry(text).method for text in texts}
    default = config.compare.baseline if config.compare.baseline in names else ""
    report = show_comparison([folder], baseline or default, folder)
    if trouble is not None:
        raise trouble
    return report.runs


def show_comparison(places: list[Path], baseline: str, out: Path) -> Report:
    """Print a table, notes and the conclusion; write all tables, figures and the page."""
    from fedgradnorm._report.figures import draw
    from fedgradnorm._report.frame import read_report
    from fedgradnorm._report.page import write_page
    from fedgradnorm._report.tables import write_tables

    report = read_report(places, baseline)
    if report.frame.empty:
        raise RunFolderError("nothing to compare: no run there holds an evaluation")
    page = write_page(places, out / REPORT, report=report)
    show_report(report)
    write_tables(report, out / TABLES)
    say(f"tables:  {out / TABLES} (CSV, Markdown, LaTeX)")
    say(f"figures: {', '.join(map(str, draw(report, out / FIGURES)))}")
    show_page(page, out / REPORT)
    return report
