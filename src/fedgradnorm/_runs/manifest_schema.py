"""The shape that run.json must have."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedgradnorm._checks import shown

Whole = Annotated[int, Field(ge=0, lt=2**63)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Row = list[Whole] | dict[str, list[Whole]]
"""The form of a row of one tensor, or of the steps of a sequence."""

_KINDS = {
    "int": "a whole number >= 0", "less": "a whole number",
    "float": "a number", "finite": "a number", "string": "a text", "bool": "true or false",
    "dict": "a table", "model": "a table", "list": "a list",
}  # fmt: skip
"""What pydantic expected, by the beginning of what it calls a fault."""


class _Part(BaseModel):
    """A table of run.json: what readers rely on is checked, and what else is in it is kept."""

    model_config = ConfigDict(extra="allow", strict=True)


class ClientPart(_Part):
    """What run.json says of a client."""

    kind: Annotated[str, Field(min_length=1)]
    outputs: Whole = 0
    of: str = ""
    shape: list[Whole] = []
    task: str = ""
    loss_scale: Annotated[Number, Field(gt=0)] = 1.0
    class_weights: dict[str, Any] = {}
    privacy: dict[str, Any] = {}
    metric: str = ""
    baseline: dict[str, float] = {}
    size: Whole = 0
    labels: list[str | int | float] | None = None
    encoding: list[dict[str, Any]] = []
    given_columns: list[str] = []
    splits: dict[str, Whole] = {}
    inputs: Row | dict[str, Row] = []


class SettingsPart(_Part):
    """The settings; which there are, the settings themselves say."""

    seed: Whole


class WeightingPart(_Part):
    """The weighting's class, with its options."""

    name: str


class BlueprintsPart(_Part):
    """The modules as plain data."""

    network: dict[str, Any] | None = None
    heads: dict[str, Any] = {}
    stems: dict[str, Any] = {}


class Manifest(_Part):
    """run.json."""

    finished: bool
    settings: SettingsPart
    weighting: WeightingPart
    clients: dict[str, ClientPart]
    blueprints: BlueprintsPart = BlueprintsPart()
    checkpoint: bool = False
    stopped_early: bool = False
    stopped: str = ""
    diverged: list[str] = []
    kept: dict[str, Any] = {}
    personal: dict[str, Any] = {}
    personalized: dict[str, Any] = {}
    added: list[str] = []
    start: dict[str, Any] = {}
    participants: list[str] = []
    sent: list[str] = []
    rounds: Whole = 0
    weights: dict[str, Number] = {}
    norm_layer: list[str] = []
    command: list[str] = []
    started: str = ""
    seconds: Annotated[Number, Field(ge=0)] = 0.0
    versions: dict[str, Any] = {}
    tables: dict[str, str] = {}


def fault(manifest: dict[str, Any]) -> str:
    """The first thing that is wrong: the key, what it must be, and what it is; "" if nothing is."""
    try:
        Manifest.model_validate(manifest)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"][: 3 if first["loc"][0] == "clients" else 2]))
        if first["type"] == "missing":
            return f"it has no {key}"
        kind = first["type"].partition("_")[0]
        wish = re.sub(r"^(Input should be|Value error,) ", "", first["msg"])
        return f"{key} must be {_KINDS.get(kind, wish)}, not {shown(first['input'])}"
    return ""
