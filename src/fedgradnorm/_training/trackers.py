"""Trackers: TensorBoard, MLflow and Weights & Biases, as ``[output] tracking`` asks.

A tracker is a progress function that is closed at the end, so ``callbacks=[tracker]`` of
``fgn.train`` works as well. Each imports its package when the first round is over. Nothing leaves
the machine: TensorBoard's event files are in the run folder, MLflow's SQLite file and the folder of
W&B next to it. ``wandb sync`` uploads a run, and ``WANDB_MODE=online`` sends it in training. The
packages' own reports about use and errors are always off.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from fedgradnorm._errors import ConfigError, TrainingError
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.history import KEYS
from fedgradnorm._runs.layout import EVENTS, LOCK, TRACKED, TRACKED_FILES, WATCHED
from fedgradnorm._runs.locking import alone
from fedgradnorm._runs.many.spread import SHARES
from fedgradnorm._training.callbacks import Progress

Tracking = Literal["none", "tensorboard", "mlflow", "wandb"]
Show = bool | Callable[[Progress], None]

SILENT_MLFLOW = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
SILENT_WANDB = {
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
}
"""Both packages report to their makers unless this is set before they are imported."""

EVERY = 5.0  # seconds between two writes to MLflow
_METRICS, _PARAMETERS, _LONGEST = 1000, 100, 250  # MLflow's limits on one write, and on a text


class Sink(Protocol):
    """A progress function that has something to close; ``status`` is how the run ended."""

    def __call__(self, event: Progress) -> None:
        """Take the rows of a round."""

    def close(self, status: str) -> None:
        """Write the rest: the run is "finished", "stopped", "failed", or was never begun ("")."""


def open_sink(kind: Tracking, folder: str | Path, config: Mapping[str, Any]) -> Sink:
    """The tracker of that name for the run in ``folder``; ``config`` is stored with the run."""
    if find_spec(kind) is None:
        extra = "wandb" if kind == "wandb" else "tracking"
        raise ConfigError(
            f"output.tracking = {kind!r} needs a package that is not here; "
            f"install it with: pip install fedgradnorm[{extra}]"
        )
    if kind == "tensorboard":
        return TensorBoard(Path(folder), config)
    return WandB(Path(folder), config) if kind == "wandb" else MLflow(Path(folder), config)


@contextmanager
def tracked(
    kind: Tracking, folder: Path, config: Mapping[str, Any], progress: Show
) -> Iterator[Show]:
    """What ``train`` takes as progress: the one given, and the tracker in addition."""
    if kind == "none":
        yield progress
        return
    sink, status = open_sink(kind, folder, config), ""
    with ExitStack() as stack:
        show = progress
        if show is True:
            from fedgradnorm._training.display import live_display

            show = stack.enter_context(live_display())

        def tell(event: Progress) -> None:
            sink(event)
            if callable(show):
                show(event)

        try:
            yield tell
            status = "finished"
        except KeyboardInterrupt:
            status = "stopped"
            raise
        except TrainingError:
            status = "failed"
            raise
        finally:
            sink.close(status)


def scalars(row: Row) -> Iterator[tuple[str, float]]:
    """A row as named numbers: ``train/loss/CLIENT``, or of quantiles ``train/loss/TASK/p90``."""
    if "quantity" in row:
        start = f"{row['split']}/{row['quantity']}/{row['task']}"
        yield from ((f"{start}/{column}", float(row[column])) for column in SHARES)
        return
    for column, value in row.items():
        if column not in (*KEYS, "active", "held") and value is not None:
            yield f"{row['split']}/{column}/{row['client']}", float(value)


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A config as texts by dotted key."""
    found: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(value)
    return found


class TensorBoard:
    """Writes every number of the history as a scalar, and the config as a text."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder, self.config = folder / EVENTS, config
        self._writer: Any = None

    def __call__(self, event: Progress) -> None:
        """Write the rows of a round."""
        if self._writer is None:
            self._writer = self._open(event)
        for row in (*event.rows, *event.spread):
            for name, value in scalars(row):
                self._writer.add_scalar(name, value, row["round"])

    def close(self, status: str) -> None:
        """Flush and close; a resumed run continues in another file."""
        if self._writer is not None:
            self._writer.add_text("status", status or "failed")
            self._writer.close()

    def _open(self, event: Progress) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        first = min((row["round"] for row in event.rows), default=event.round)
        # Steps that an interrupted run wrote after its last checkpoint are written again.
        writer: Any = SummaryWriter(str(self.folder), purge_step=first)
        lines = (f"| {key} | {value} |" for key, value in flat(self.config).items())
        writer.add_text("config", "\n".join(("| key | value |", "| --- | --- |", *lines)), first)
        return writer


class WandB:
    """Writes every number of the history, one step per round, and the config.

    The config's name is the project. A resumed run continues under the id of the run it began, in
    another file.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder, self.config = folder.resolve(), config
        self._run: Any = None

    def __call__(self, event: Progress) -> None:
        """Write the rows of a round."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # W&B's about its own libraries
            if self._run is None:
                self._run = self._begin()
            for row in (*event.rows, *event.spread):
                self._run.log(dict(scalars(row)), step=row["round"])

    def close(self, status: str) -> None:
        """Write the rest and say how the run ended."""
        if self._run is not None:
            self._run.summary["status"] = status or "failed"
            code = {"finished": 0, "stopped": 130}.get(status, 1)
            self._run.finish(exit_code=code, quiet=True)

    def _begin(self) -> Any:
        for name, value in SILENT_WANDB.items():
            os.environ.setdefault(name, value)
        import wandb

        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_machine_info=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        return wandb.init(
            project=str(self.config.get("name", "fedgradnorm")),
            name=self.folder.name,
            id=hashlib.blake2b(str(self.folder).encode(), digest_size=8).hexdigest(),
            dir=str(self.folder.parent / WATCHED),
            config=flat(self.config),
            mode=mode,
            resume="allow",
            reinit="create_new",
            settings=settings,
        )


class MLflow:
    """Writes every number of the history as a metric, and the config as parameters.

    The config's name is the experiment; a resumed run continues in the run it began. Look at it
    with ``mlflow ui --backend-store-uri sqlite:///`` and the path of the file.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder, self.config = folder.resolve(), config
        self.database = self.folder.parent / TRACKED
        self._client: Any = None
        self._run = ""
        self._waiting: list[tuple[str, float, int, int]] = []
        self._written = 0.0

    def __call__(self, event: Progress) -> None:
        """Take the rows of a round; they are written every few seconds."""
        now = int(time.time() * 1000)
        for row in (*event.rows, *event.spread):
            for name, value in scalars(row):
                self._waiting.append((_mlflow_name(name), value, now, row["round"]))
        if time.monotonic() - self._written >= EVERY:
            self._write()

    def close(self, status: str) -> None:
        """Write the rest and say how the run ended."""
        if status or self._client is not None:
            self._write()
            word = {"finished": "FINISHED", "stopped": "KILLED"}.get(status, "FAILED")
            with self._locked():
                self._client.set_terminated(self._run, word)

    def _write(self) -> None:
        with self._locked():
            if self._client is None:
                self._begin()
            from mlflow.entities import Metric

            while self._waiting:
                part, self._waiting = self._waiting[:_METRICS], self._waiting[_METRICS:]
                self._client.log_batch(self._run, metrics=[Metric(*one) for one in part])
        self._written = time.monotonic()

    def _begin(self) -> None:
        """Open the run of this folder: the one it has already, or a new one with the config."""
        for name, value in SILENT_MLFLOW.items():
            os.environ.setdefault(name, value)
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = client = MlflowClient(tracking_uri=f"sqlite:///{self.database}")
        title = str(self.config.get("name", "fedgradnorm"))
        experiment = client.get_experiment_by_name(title)
        if experiment is None:
            place = (self.database.parent / TRACKED_FILES).as_uri()
            known = client.create_experiment(title, artifact_location=place)
        else:
            known = experiment.experiment_id
        folder = _mlflow_name(str(self.folder))
        found = client.search_runs([known], f"tags.folder = '{folder}'", max_results=1)
        if found:
            self._run = str(found[0].info.run_id)
            client.update_run(self._run, status="RUNNING")
            return
        tags = {"folder": folder, "mlflow.source.name": "fedgradnorm"}
        self._run = str(client.create_run(known, tags=tags, run_name=self.folder.name).info.run_id)
        parameters = [Param(_mlflow_name(k), v[:_LONGEST]) for k, v in flat(self.config).items()]
        for start in range(0, len(parameters), _PARAMETERS):
            client.log_batch(self._run, params=parameters[start : start + _PARAMETERS])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time: SQLite gives up on a file that another is writing to."""
        with (
            alone(self.database.parent / f".{TRACKED}{LOCK}", waiting=True),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # MLflow's about its own libraries
            yield


def _mlflow_name(text: str) -> str:
    """A name as MLflow allows it."""
    return re.sub(r"[^\w./ -]", "_", text)[:_LONGEST]
