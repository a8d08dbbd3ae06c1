"""``federation status``: how a run is doing, in a file that the server replaces every round."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from fedgradnorm._errors import ConfigError
from fedgradnorm._flower.coordinator import Coordinator
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.layout import STATUS
from fedgradnorm._runs.manifest import now


def write_status(
    federation: Path, run: Path, coordinator: Coordinator, connected: list[str], stage: str
) -> None:
    """What the server knows now; of single clients in a private federation only that they came."""
    rounds = coordinator.agreement.rounds
    table = {
        "time": now(),
        "seconds_since_1970": time.time(),
        "stage": stage,
        "folder": str(run.resolve()),
        "run": coordinator.run,
        "round": coordinator.round,
        "rounds": rounds,
        "epsilon": coordinator.epsilon_spent,
        "clients": coordinator.board(connected),
    }
    text = json.dumps(table, indent=1, allow_nan=False).encode()
    checkpoint.write_atomically(federation / STATUS, text)


def read_status(federation: Path) -> dict[str, Any]:
    """The last status of the federation in a folder."""
    path = federation / STATUS
    if not path.exists():
        raise ConfigError(f"{federation}: no run has been served yet (there is no {STATUS})")
    try:
        table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}); the next round replaces it") from error
    return table
