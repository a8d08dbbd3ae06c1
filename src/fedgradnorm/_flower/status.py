"""``federation status``: how a run is doing, in a file that the server replaces every round."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedgradnorm._errors import ConfigError
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.files import read_file
from fedgradnorm._runs.layout import STATUS
from fedgradnorm._runs.manifest import now

if TYPE_CHECKING:
    from fedgradnorm._flower.coordinator import Coordinator

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class ClientStatus(_Part):
    """A client, or one of its tasks."""

    client: str
    connected: bool
    seen: Number | None
    seconds: Number | None
    rounds: int
    weight: Number | None
    bytes: int
    left_out: int
    refused: int
    bounded: int
    state: str


class Status(_Part):
    """What the file holds; other keys are ignored."""

    time: str
    seconds_since_1970: Number
    stage: str
    folder: str
    run: str
    round: int
    rounds: int
    clients: list[ClientStatus]


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
        "clients": coordinator.board(connected),
    }
    text = json.dumps(table, indent=1, allow_nan=False).encode()
    checkpoint.write_atomically(federation / STATUS, text)


def read_status(federation: Path) -> dict[str, Any]:
    path = federation / STATUS
    if not path.exists():
        raise ConfigError(f"{federation}: no run has been served yet (there is no {STATUS})")
    try:
        table = Status.model_validate(json.loads(read_file(path).decode()))
    except (ValueError, RecursionError) as error:
        first = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(error)
        raise ConfigError(f"{path} is damaged ({why}); the next round replaces it") from error
    return table.model_dump()
