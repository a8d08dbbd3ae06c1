"""A run in Weights & Biases, kept in a folder beside the run folder. Nothing leaves the machine.

``wandb sync`` uploads it, when somebody wants that; with ``WANDB_MODE=online`` in the environment
the run is sent while it goes on. Reports of errors and of the machine stay off in both cases.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgradnorm._runs.layout import WATCHED
from fedgradnorm._training.callbacks import Progress
from fedgradnorm._training.sinks import flat, scalars

SILENT = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
"""W&B reports its own errors to its makers unless told otherwise before it is imported."""

_CODES = {"finished": 0, "stopped": 130}


class WandB:
    """Writes every number of the history, a step a round, and the config.

    The config's name is the project. A resumed run goes on under the id of the run it began, in a
    file of its own.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder, self.config = folder.resolve(), config
        self._run: Any = None

    def __call__(self, event: Progress) -> None:
        """Take the rows of a round."""
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
            self._run.finish(exit_code=_CODES.get(status, 1), quiet=True)

    def _begin(self) -> Any:
        for name, value in SILENT.items():
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
        parent = self.folder.parent
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        return wandb.init(
            project=str(self.config.get("name", "fedgradnorm")),
            name=self.folder.name,
            id=hashlib.blake2b(str(self.folder).encode(), digest_size=8).hexdigest(),
            dir=str(parent / WATCHED),
            config=flat(self.config),
            mode=mode,
            resume="allow",
            reinit="create_new",
            settings=settings,
        )
