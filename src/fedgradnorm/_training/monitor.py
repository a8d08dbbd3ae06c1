"""Client warnings: which clients fail, have a frozen weight or diverge, with one line for each."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._round.settings import Settings
from fedgradnorm._training.callbacks import Callback, TrainingState

log = logging.getLogger("fedgradnorm")

FOLD = 1e4
"""A client diverges when its loss is this many times its first one."""
SOLVED = 1e-30
"""A first loss below this is zero but for rounding, so no loss can be compared with it."""


class ClientWarnings:
    """Counts the rounds in which one kind of problem affects each client, and logs the first.

    ``begins`` is the line, with the client's ``{name}`` and the ``{why}``; ``was`` what is counted.
    """

    def __init__(self, names: Iterable[str], begins: str, was: str) -> None:
        self.begins, self.was, self.times = begins, was, dict.fromkeys(names, 0)

    def note(self, round_number: int, problems: Mapping[str, str]) -> None:
        """Count a round for the clients affected, each with the reason."""
        for name, why in problems.items():
            if not self.times[name]:
                line = self.begins.format(name=name, why=why)
                log.warning("round %d: %s", round_number, line)
            self.times[name] += 1

    def sum_up(self, rounds: int) -> None:
        for name, times in self.times.items():
            if times:
                log.warning("client %r was %s in %d of %d rounds", name, self.was, times, rounds)

    def state_dict(self) -> dict[str, Any]:
        return {"times": packed_counts(self.times)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.times = unpacked_counts(state["times"], list(self.times), "monitor")


class Monitor(Callback):
    """Monitors the clients of a run round by round; it changes nothing but the log."""

    def __init__(self, names: Sequence[str], settings: Settings) -> None:
        self.rates = rates(settings)
        failing = f"its loss or gradient is not finite; lower {self.rates} or look at its data"
        growing = f"its loss is {{why}} times its first one; lower {self.rates}"
        vanishing = "client {name!r} has a vanishing gradient; its weight is frozen"
        self.failing = ClientWarnings(names, f"client {{name!r}} left out: {failing}", "left out")
        self.frozen = ClientWarnings(names, vanishing, "frozen")
        self.growing = ClientWarnings(names, f"client {{name!r}} diverges: {growing}", "diverging")
        self.diverging = set[str]()  # in their last round

    def on_round(self, state: TrainingState) -> None:
        """Note which of a round's clients failed, whose weight was frozen and who diverges."""
        record = state.record
        assert record is not None
        columns = (record[key] for key in ("weight_frozen", "loss", "loss_ratio"))
        self.note(state.round, record.failed, *columns)

    def note(
        self,
        round_number: int,
        failed: Sequence[str],
        frozen: Mapping[str, float],
        losses: Mapping[str, float],
        ratios: Mapping[str, float],
    ) -> None:
        """Note the clients that failed in a round, and of the others weights, losses and ratios."""
        grown = {
            name: f"{ratio:.2g}"
            for name, ratio in ratios.items()
            if ratio > FOLD and losses.get(name, math.inf) >= ratio * SOLVED
        }
        self.failing.note(round_number, dict.fromkeys(failed, ""))
        self.frozen.note(round_number, {name: "" for name, found in frozen.items() if found})
        self.growing.note(round_number, grown)
        self.diverging = (self.diverging - ratios.keys()) | {*failed, *grown}

    def on_end(self, state: TrainingState) -> None:
        self.failing.sum_up(state.round)
        self.frozen.sum_up(state.round)

    def counts(self) -> dict[str, dict[str, int]]:
        """In how many rounds each client was left out, and its weight frozen: for run.json."""
        return {"left_out": dict(self.failing.times), "weight_frozen": dict(self.frozen.times)}

    def diverged(self, evaluation: Iterable[Mapping[str, Any]], *, restored: bool) -> list[str]:
        """The clients that a run ends with in divergence.

        Their loss is not finite in the last evaluation, or it was not, or far above the first one,
        in their last round. A run that returned to its best round is judged by the evaluation.
        """
        lost = {row["client"] for row in evaluation if not math.isfinite(row["loss"])}
        lost |= set() if restored else self.diverging
        return [name for name in self.failing.times if name in lost]

    def state_dict(self) -> dict[str, Any]:
        kinds = {key: getattr(self, key).state_dict() for key in ("failing", "frozen", "growing")}
        return {**kinds, "diverging": sorted(self.diverging)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for key in ("failing", "frozen", "growing"):
            getattr(self, key).load_state_dict(state[key])
        self.diverging = set(state["diverging"])


def rates(settings: Settings) -> str:
    """The learning rates that move networks and heads, by the settings that they come from."""
    local = settings.local()
    tables = {
        "head_optimizer": local.head_optimizer,
        "server_optimizer": optimizers.resolve(settings.server_optimizer, settings.lr),
    }
    if local.steps_locally:
        tables["local_optimizer"] = local.local_optimizer
    if all(table["lr"] == settings.lr for table in tables.values()):
        return f"lr (now {settings.lr:g})"
    return "lr of " + ", ".join(f"{key} (now {table['lr']:g})" for key, table in tables.items())


def packed_counts(counts: Mapping[str, int]) -> Tensor:
    """Counts of all clients as one tensor, in their order: a checkpoint has them as few bytes."""
    return torch.tensor(list(counts.values()), dtype=torch.int64)


def unpacked_counts(packed: Tensor, names: Sequence[str], what: str) -> dict[str, int]:
    """Counts by name; a ValueError if they cannot be such."""
    counts = packed.tolist()
    if len(counts) != len(names):
        raise ValueError(f"{what} has {len(counts)} counts for {len(names)} clients")
    if bad := [count for count in counts if type(count) is not int or count < 0]:
        raise ValueError(f"{what} has a count of {bad[0]!r:.40}")
    return dict(zip(names, counts, strict=True))
