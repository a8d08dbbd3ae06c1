"""A run in MLflow, kept in one SQLite file beside the run folder. Nothing leaves the machine.

Look at it with ``mlflow ui --backend-store-uri sqlite:///`` and the path of that file.
"""

from __future__ import annotations

import logging
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgradnorm._runs.layout import LOCK, TRACKED, TRACKED_FILES
from fedgradnorm._runs.locking import alone
from fedgradnorm._training.callbacks import Progress
from fedgradnorm._training.sinks import flat, scalars

SILENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
"""MLflow 3 reports its use to its makers unless told otherwise before it is imported."""

EVERY = 5.0  # seconds between two writes
_MOST = 1000  # metrics in one write, MLflow's own limit
_PARAMETERS = 100
_LONGEST = 250
_STATUS = {"finished": "FINISHED", "stopped": "KILLED"}


class MLflow:
    """Writes every number of the history as a metric, and the config as parameters.

    The config's name is the experiment; a resumed run goes on in the run it began.
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
                self._waiting.append((_name(name), value, now, row["round"]))
        if time.monotonic() - self._written >= EVERY:
            self._write()

    def close(self, status: str) -> None:
        """Write the rest and say how the run ended."""
        if status or self._client is not None:
            self._write()
            with self._alone():
                self._client.set_terminated(self._run, _STATUS.get(status, "FAILED"))

    def _write(self) -> None:
        with self._alone():
            if self._client is None:
                self._client = _client(self.database)
                self._run = self._begin()
            from mlflow.entities import Metric

            while self._waiting:
                part, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
                self._client.log_batch(self._run, metrics=[Metric(*one) for one in part])
        self._written = time.monotonic()

    def _begin(self) -> str:
        """The run of this folder: the one it has already, or a new one with the config."""
        from mlflow.entities import Param

        name = str(self.config.get("name", "fedgradnorm"))
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            place = (self.database.parent / TRACKED_FILES).as_uri()
            known = self._client.create_experiment(name, artifact_location=place)
        else:
            known = experiment.experiment_id
        same = f"tags.folder = '{_name(str(self.folder))}'"
        found = self._client.search_runs([known], same, max_results=1)
        if found:
            self._client.update_run(found[0].info.run_id, status="RUNNING")
            return str(found[0].info.run_id)
        tags = {"folder": _name(str(self.folder)), "mlflow.source.name": "fedgradnorm"}
        run = self._client.create_run(known, tags=tags, run_name=self.folder.name).info.run_id
        parameters = [
            Param(_name(key), value[:_LONGEST]) for key, value in flat(self.config).items()
        ]
        for start in range(0, len(parameters), _PARAMETERS):
            self._client.log_batch(run, params=parameters[start : start + _PARAMETERS])
        return str(run)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time: SQLite gives up on a file that another is writing to."""
        with (
            alone(self.database.parent / f".{TRACKED}{LOCK}", waiting=True),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # MLflow's about its own libraries
            yield


def _client(database: Path) -> Any:
    for name, value in SILENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{database}")


def _name(text: str) -> str:
    """A name as MLflow allows it."""
    return re.sub(r"[^\w./ -]", "_", text)[:_LONGEST]
