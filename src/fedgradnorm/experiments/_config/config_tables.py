"""The tables of a config in addition to the settings: their keys, and what each means."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from fedgradnorm._errors import ConfigError
from fedgradnorm._round.settings import GROUPS, TOP
from fedgradnorm._training.trackers import Tracking


class Strict(BaseModel):
    """A table that takes no other keys, and no value of another kind."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DataTable(Strict, extra="allow"):
    """``[data]``: a source, and whatever options it takes."""

    source: str = Field(description="where the clients come from")


class NetworkTable(Strict, extra="allow"):
    """``[network]``: a name or ``package.module:factory``, and whatever options it takes."""

    name: str = Field(description="one of ours, or ``module:function`` of yours")


class OutputTable(Strict):
    """``[output]``: where run folders go, and who else is told."""

    folder: str = Field(default="runs", min_length=1, description="where run folders are made")
    tracking: Tracking = Field(default="none", description="who else is told how the run goes")


OWN = ("weighting", *(name for name in TOP if name != "seed"), *GROUPS)
"""What ``[compare.own.METHOD]`` may hold: where one method departs from the settings of all."""


class CompareTable(Strict):
    """``[compare]``: which methods, from how many seeds, and which of them is the yardstick."""

    methods: list[str] = Field(
        default=["fedrep", "fedgradnorm", "fedgradnorm-direct"],
        description="names of methods, each with settings after it if it has some of its own",
    )
    seeds: int = Field(default=1, description="how many, from the config's own on; 1 or more")
    baseline: str = Field(
        default="fedrep", description="the method that the others are tested against"
    )
    own: dict[str, dict[str, Any]] = Field(
        default={},
        description="settings of one method's runs alone, by its name: "
        "``[compare.own.fedprox.local]``, ``compare.own.static.lr``, any key of a run but its data",
    )

    def changes(self, method: str) -> dict[str, Any]:
        """What is this method's own, by dotted key of the config."""
        found: dict[str, Any] = {}
        for name, value in self.own.get(method, {}).items():
            if name not in OWN:
                raise ConfigError(
                    f"unknown key 'compare.own.{method}.{name}' (one of: {', '.join(OWN)})"
                )
            several = value.items() if isinstance(value, dict) else ()
            found |= {f"{name}.{key}": one for key, one in several} or {name: value}
        return found
