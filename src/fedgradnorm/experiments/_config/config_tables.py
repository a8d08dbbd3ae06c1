"""The tables of a config in addition to the settings: their keys, and what each means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from fedgradnorm._round.settings import GROUPS, SWITCHES, TOP
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


class _Own(Strict):
    """``[compare.own.METHOD]``: where one method departs from the settings of all the others."""

    weighting: dict[str, Any] = Field(default={}, description="options of its weighting alone")

    def changes(self) -> dict[str, Any]:
        """Values by dotted key of the config."""
        found: dict[str, Any] = {}
        for name, value in self.model_dump(exclude_unset=True).items():
            if isinstance(value, dict):
                found |= {f"{name}.{key}": one for key, one in value.items()}
            else:
                found[name] = value
        return found


if TYPE_CHECKING:
    OwnTable = _Own
else:
    OwnTable = create_model(
        "OwnTable",
        __base__=_Own,
        **{
            name: (Any, Field(default=None, description=f"{name} of this method's runs alone"))
            for name in TOP
            if name != "seed"
        },
        **{
            name: (
                bool | dict[str, Any] if name in SWITCHES else dict[str, Any],
                Field(default={}, description=f"[{name}] of this method's runs alone"),
            )
            for name in GROUPS
        },
    )


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
    own: dict[str, OwnTable] = Field(
        default={}, description="what one method has for itself, by its name"
    )

    def changes(self, method: str) -> dict[str, Any]:
        """What is this method's own, by dotted key of the config."""
        return self.own[method].changes() if method in self.own else {}
