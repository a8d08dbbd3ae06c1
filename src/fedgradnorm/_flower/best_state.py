"""A client's best state of a run, judged by its own validation rows, in a file of its own.

The server sees no validation loss. So each client looks at the network that it is sent, with its
own head, and keeps a copy of both where they do better than before. The copy is the client's
alone: others may keep another round's network. A round that the server repeats brings the same
network, so it is not judged again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgradnorm._engines import Engine
from fedgradnorm._errors import RunFolderError
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.layout import BEST
from fedgradnorm._state.table import ROUNDS
from fedgradnorm._training.best import Best
from fedgradnorm._training.callbacks import VALIDATION

log = logging.getLogger("fedgradnorm")


class Present:
    """What a client has now: its own state, and the network that it was sent."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name, self.engine = name, engine
        self.shared = engine.network.vector.detach().clone()

    def validate(self) -> dict[str, dict[str, float]]:
        return self.engine.evaluate(self.shared, VALIDATION)

    def state_dict(self) -> dict[str, Any]:
        return {"shared": self.shared.clone(), "client": self.row()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        shared: Tensor = state["shared"]
        if shared.shape != self.shared.shape:
            raise ValueError(f"a network of shape {tuple(shared.shape)}")
        self.shared = shared.to(self.engine.device)
        self.load(state["client"])

    def row(self) -> dict[str, Any]:
        """The client's row, and in how many rounds it participated."""
        row = self.engine.client_state(self.name)
        return {"rounds": int(row[ROUNDS]), "row": row}

    def load(self, state: Mapping[str, Any]) -> None:
        self.engine.load_client(self.name, state["row"])


Evaluation = dict[str, dict[str, float]]
"""Loss and metrics, under the client's name."""


class BestState:
    """The best of one run so far, and all evaluations that led to it, by round.

    The client has been left with the best state where there is one, so its own is to be loaded
    after this.
    """

    def __init__(self, folder: Path, present: Present, settings: Settings) -> None:
        self.path, self.present = folder / BEST, present
        self.settings = settings
        self.best, self.values = self._none(), dict[int, Evaluation]()
        if self.path.exists():
            self._read()

    def _none(self) -> Best:
        present = self.present
        return Best(present.state_dict, present.load_state_dict, self.settings, lenient=True)

    def _read(self) -> None:
        try:
            state = checkpoint.load(self.path)
            self.best.load_state_dict(state["best"])
            self.values = dict(state["values"])
        except (RunFolderError, KeyError, TypeError, ValueError, RuntimeError) as error:
            log.warning("%s cannot be used (%s); the best is looked for again", self.path, error)
            self.best, self.values = self._none(), {}

    def is_due(self, round_number: int, every: int) -> bool:
        """Whether there is an evaluation at this round: at the first one that the client sees, and
        then whenever ``every`` rounds are over (0: no more until the end)."""
        last = max(self.values, default=-1)
        return last < 0 or (every > 0 and round_number // every > last // every)

    def judge(self, round_number: int) -> None:
        """Evaluate what the client has now, and keep it if it is the best; written down at once."""
        if round_number in self.values:
            return
        self.values[round_number] = self.present.validate()
        self.best.judge(round_number, self.values[round_number])
        checkpoint.save({"best": self.best.state_dict(), "values": self.values}, self.path)
        self.path.chmod(0o600)

    def for_manifest(self) -> dict[str, Any]:
        """What is kept, for run.json; nothing where no evaluation could be used."""
        if not math.isfinite(self.best.value):
            return {}
        return {"stopped_early": False, "kept": self.best.for_manifest()}
