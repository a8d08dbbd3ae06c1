"""What is said of the clients while a run trains: who fails, who is held, who diverges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedgradnorm._round.settings import Settings
from fedgradnorm._training.divergence import Divergence
from fedgradnorm._training.spells import Spells

SOLVED = 1e-30
"""A first loss below this is zero but for rounding."""
NOT_FINITE = "its loss or gradient is not finite"


def holding(names: Iterable[str]) -> Spells:
    """Clients whose weight is held."""
    begins = "client {name!r} has a vanishing gradient; its weight is held"
    return Spells(names, begins, "has a gradient again; its weight moves", "held")


def failing(names: Iterable[str]) -> Spells:
    """Clients that are left out because they fail."""
    begins = "client {name!r} left out: {why} ({times} times so far); its head was put back"
    return Spells(names, begins, "takes part again", "left out")


def _comparable(row: Mapping[str, Any]) -> bool:
    """Whether a loss can be held against the first one: a task that began solved has none."""
    ratio = row.get("loss_ratio")
    return ratio is not None and row.get("loss", math.inf) >= ratio * SOLVED


class Watch:
    """The clients of one run, watched round by round. It changes nothing but the log."""

    def __init__(self, names: Sequence[str], settings: Settings) -> None:
        self.failing, self.holding = failing(names), holding(names)
        self.divergence = Divergence(settings)

    def fail(self, round_number: int, active: Sequence[str], failed: Sequence[str]) -> None:
        """Note who of a round's ``active`` clients has ``failed``."""
        bad = set(failed)
        taken = {name: self.failing.rounds[name] - self.failing.total(name) for name in failed}
        well = [name for name in active if name not in bad]
        self.failing.note(round_number, well, dict.fromkeys(failed, NOT_FINITE))
        self.divergence.note_failed(round_number, failed, taken)

    def hold(self, round_number: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Note who of a round's rows is held, and whose loss has grown."""
        rows = [row for row in rows if row["active"]]
        held = {row["client"]: "" for row in rows if row["held"]}
        well = [row["client"] for row in rows if not row["held"]]
        self.holding.note(round_number, well, held)
        ratios = {row["client"]: row["loss_ratio"] for row in rows if _comparable(row)}
        self.divergence.note(round_number, ratios)

    def sum_up(self) -> None:
        """Log the counts of the whole run."""
        self.failing.sum_up()
        self.holding.sum_up()

    def counts(self) -> dict[str, dict[str, int]]:
        """In how many rounds each client was left out, and held: kept with the run."""
        return {"left_out": self.failing.totals, "held": self.holding.totals}

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart."""
        return {
            "failing": self.failing.state_dict(),
            "holding": self.holding.state_dict(),
            "diverged": list(self.divergence.named),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.failing.load_state_dict(state["failing"])
        self.holding.load_state_dict(state["holding"])
        self.divergence.named = dict.fromkeys(state["diverged"])
