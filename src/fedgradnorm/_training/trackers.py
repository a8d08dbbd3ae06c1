"""Trackers: TensorBoard, MLflow and Weights & Biases, as ``[output] tracking`` asks.

Each is a pair of functions: one takes the events of rounds, the other closes it. A package is
imported when the first round is over. Nothing leaves the machine: TensorBoard's event files are in
the run folder, MLflow's SQLite file and the folder of W&B next to it. ``wandb sync`` uploads a run,
and ``WANDB_MODE=online`` sends it in training. The packages' own reports about use and errors are
always off.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from fedgradnorm._checks import shortened
from fedgradnorm._errors import ConfigError, FedGradNormError, TrainingError
from fedgradnorm._round.reports import KEYS
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.layout import EVENTS, LOCK, TRACKED, TRACKED_FILES, WATCHED
from fedgradnorm._runs.locking import alone
from fedgradnorm._runs.spread import SHARES
from fedgradnorm._training.callbacks import Progress

Tracking = Literal["none", "tensorboard", "mlflow", "wandb"]
Take = Callable[[Progress], None]
Show = bool | Take
Tracker = tuple[Take, Callable[[str], None]]
"""Takes events; and closes: the run "finished", was "stopped", "failed", or never began ("")."""

SILENT_MLFLOW = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
SILENT_WANDB = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
"""Both packages report to their makers unless this is set before they are imported."""

EVERY = 5.0  # seconds between two writes to MLflow
_METRICS, _PARAMETERS, _LONGEST = 1000, 100, 250  # MLflow's limits on one write, and on a text


@contextmanager
def open_sink(kind: Tracking, folder: str | Path, config: Mapping[str, Any]) -> Iterator[Take]:
    """The tracker of that name for the run in ``folder``, as a function for ``callbacks``.

    Use it in a ``with`` block around the training. ``config`` is stored with the run, and whether
    it finished, was stopped or failed. A tracker "none" does nothing. What a tracker's package
    raises, as for a damaged file, is a TrainingError, after which the package is not called again.
    """
    if kind == "none":
        yield lambda _: None
        return
    if find_spec(kind) is None:
        extra = "wandb" if kind == "wandb" else "tracking"
        raise ConfigError(
            f"output.tracking = {kind!r} needs a package that is not here; "
            f"install it with: pip install fedgradnorm[{extra}]"
        )
    take, close = _TRACKERS[kind](Path(folder), config)
    broken, status = False, ""

    def call(function: Callable[[Any], None], given: Progress | str) -> None:
        nonlocal broken
        if broken:
            return
        try:
            function(given)
        except (FedGradNormError, ImportError):
            raise
        except Exception as error:
            broken = True
            reason = shortened(str(error), 200) or type(error).__name__
            raise TrainingError(
                f"{kind} cannot record the run ({reason}); repair or remove what it has written, "
                "or continue without it: output.tracking = 'none'"
            ) from error

    try:
        yield partial(call, take)
        status = "finished"
    except KeyboardInterrupt:
        status = "stopped"
        raise
    except TrainingError:
        status = "failed"
        raise
    finally:
        call(close, status)


def scalars(row: Row) -> Iterator[tuple[str, float]]:
    """A row as named numbers: ``train/loss/CLIENT``, or of quantiles ``train/loss/TASK/p90``."""
    if "quantity" in row:
        start = f"{row['split']}/{row['quantity']}/{row['task']}"
        yield from ((f"{start}/{column}", float(row[column])) for column in SHARES)
        return
    for column, value in row.items():
        if column not in (*KEYS, "active", "weight_frozen") and value is not None:
            yield f"{row['split']}/{column}/{row['client']}", float(value)


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in table.items():
        nested = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": str(value)}
    return found


def _tensorboard(folder: Path, config: Mapping[str, Any]) -> Tracker:
    """Every number of the history as a scalar, the config as a text; resumed in another file."""
    writer: Any = None

    def take(event: Progress) -> None:
        nonlocal writer
        if writer is None:
            from torch.utils.tensorboard import SummaryWriter

            first = min((row["round"] for row in event.rows), default=event.round)
            # Steps that an interrupted run wrote after its last checkpoint are written again.
            writer = SummaryWriter(str(folder / EVENTS), purge_step=first)
            lines = ["| key | value |", "| --- | --- |"]
            lines += [f"| {key} | {value} |" for key, value in flat(config).items()]
            writer.add_text("config", "\n".join(lines), first)
        for row in (*event.rows, *event.spread):
            for name, value in scalars(row):
                writer.add_scalar(name, value, row["round"])

    def close(status: str) -> None:
        if writer is not None:
            writer.add_text("status", status or "failed")
            writer.close()

    return take, close


def _wandb(folder: Path, config: Mapping[str, Any]) -> Tracker:
    """Every number of the history, one step per round, and the config, whose name is the project.

    A resumed run continues under the id of the run it began, in another file.
    """
    folder = folder.resolve()
    run: Any = None

    def take(event: Progress) -> None:
        nonlocal run
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # W&B's about its own libraries
            if run is None:
                os.environ.update(SILENT_WANDB | os.environ)
                import wandb

                mode: Any = os.environ.get("WANDB_MODE", "offline")
                run = wandb.init(
                    project=str(config.get("name", "fedgradnorm")), name=folder.name,
                    id=hashlib.blake2b(str(folder).encode(), digest_size=8).hexdigest(),
                    dir=str(folder.parent / WATCHED), config=flat(config),
                    mode=mode, resume="allow", reinit="create_new",
                    settings=wandb.Settings(
                        silent=True, console="off", disable_git=True, disable_code=True,
                        save_code=False, x_disable_machine_info=True, x_disable_stats=True,
                        x_save_requirements=False,
                    ),
                )  # fmt: skip
            for row in (*event.rows, *event.spread):
                run.log(dict(scalars(row)), step=row["round"])

    def close(status: str) -> None:
        if run is not None:
            run.summary["status"] = status or "failed"
            run.finish(exit_code={"finished": 0, "stopped": 130}.get(status, 1), quiet=True)

    return take, close


def _mlflow(folder: Path, config: Mapping[str, Any]) -> Tracker:
    """Every number of the history as a metric, and the config as parameters.

    The config's name is the experiment; a resumed run continues in the run it began. Look at it
    with ``mlflow ui --backend-store-uri sqlite:///`` and the path of the file.
    """
    folder = folder.resolve()
    database = folder.parent / TRACKED
    client: Any = None
    run, written = "", 0.0
    waiting: list[tuple[str, float, int, int]] = []

    def begin() -> None:
        """Open the run of this folder: the one it has already, or a new one with the config."""
        nonlocal client, run
        os.environ.update(SILENT_MLFLOW | os.environ)
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client = MlflowClient(tracking_uri=f"sqlite:///{database}")
        title = str(config.get("name", "fedgradnorm"))
        if (experiment := client.get_experiment_by_name(title)) is not None:
            known = experiment.experiment_id
        else:
            place = (folder.parent / TRACKED_FILES).as_uri()
            known = client.create_experiment(title, artifact_location=place)
        tag = _mlflow_name(str(folder))
        if found := client.search_runs([known], f"tags.folder = '{tag}'", max_results=1):
            run = str(found[0].info.run_id)
            client.update_run(run, status="RUNNING")
            return
        tags = {"folder": tag, "mlflow.source.name": "fedgradnorm"}
        run = str(client.create_run(known, tags=tags, run_name=folder.name).info.run_id)
        parameters = [Param(_mlflow_name(k), v[:_LONGEST]) for k, v in flat(config).items()]
        for start in range(0, len(parameters), _PARAMETERS):
            client.log_batch(run, params=parameters[start : start + _PARAMETERS])

    def write(status: str = "") -> None:
        """Write what is waiting; one process at a time: SQLite gives up on a file in use."""
        nonlocal written
        lock = folder.parent / f".{TRACKED}{LOCK}"
        with alone(lock, waiting=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow's about its own libraries
            if client is None:
                begin()
            from mlflow.entities import Metric

            while waiting:
                client.log_batch(run, metrics=[Metric(*one) for one in waiting[:_METRICS]])
                del waiting[:_METRICS]
            if status:
                client.set_terminated(run, status)
        written = time.monotonic()

    def take(event: Progress) -> None:
        now = int(time.time() * 1000)
        for row in (*event.rows, *event.spread):
            numbers = scalars(row)
            waiting.extend((_mlflow_name(name), v, now, row["round"]) for name, v in numbers)
        if time.monotonic() - written >= EVERY:
            write()

    def close(status: str) -> None:
        if status or client is not None:
            write({"finished": "FINISHED", "stopped": "KILLED"}.get(status, "FAILED"))

    return take, close


def _mlflow_name(text: str) -> str:
    return re.sub(r"[^\w./ -]", "_", text)[:_LONGEST]


_TRACKERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
