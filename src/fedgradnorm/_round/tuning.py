"""How clients fine-tune their models after the last round: the table ``personalize``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedgradnorm._checks import bounded, names, one_of, plain, shown, whole
from fedgradnorm._errors import ConfigError, choose

MEASURED = 20
"""How often the validation loss is evaluated during tuning, about."""

MEANINGS = {
    "steps": "steps at most, 1 or more",
    "lr": "learning rate, above 0; lr by default",
    "what": '"head", "network" (both), or a list of layers beside the head',
}
"""The keys of ``personalize``."""


def checked_tuning(name: str, value: object, lr: float) -> dict[str, Any]:
    """The table ``personalize`` with its defaults; a ConfigError if it is not valid."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{name} must be a table such as {{'steps': 200, 'lr': {lr:g}, 'what': 'head'}}, "
            f"not {shown(value)}"
        )
    table = {"steps": 200, "lr": lr, "what": "head"}
    for key in value:
        choose(key if isinstance(key, str) else shown(key), MEANINGS, f"key of {name}")
    table |= plain(name, value)
    what = table["what"]
    if isinstance(what, str):
        what = one_of(f"{name}.what", what, ("head", "network"))
    else:
        what = names(f"{name}.what", what)
    rate = bounded(f"{name}.lr", table["lr"], above=True)
    return {"steps": whole(f"{name}.steps", table["steps"], 1), "lr": rate, "what": what}


@dataclass(frozen=True)
class Tuning:
    """How clients tune: ``steps`` on the head and these parameters of the network.

    ``first`` is the number of the first batch, counted from the run's start.
    """

    steps: int
    optimizer: Mapping[str, Any]
    parameters: tuple[str, ...]
    first: int

    @property
    def every(self) -> int:
        """Steps between two measurements of the validation loss."""
        return max(1, self.steps // MEASURED)
