"""Client warnings: which clients fail, have a frozen weight or diverge, with a line when it begins
and one when it ends."""

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

LONGEST = 1000
"""The longest wait between two lines about a client, in rounds; each is twice the one before."""
FOLD = 1e4
"""A client diverges when its loss is this many times its first one."""
SOLVED = 1e-30
"""A first loss below this is zero but for rounding, so no loss can be compared with it."""


class ClientWarnings:
    """One kind of trouble that clients can have, counted per client and logged in few lines.

    ``begins`` is the line to write when it begins, with the client's ``{name}``, the ``{why}`` and
    the ``{times}`` so far; ``ends`` what a client does when it is over; ``was`` what is counted.
    A client that has never been in trouble costs no more than a count of its rounds.
    """

    def __init__(self, names: Iterable[str], begins: str, ends: str, was: str) -> None:
        self.begins, self.ends, self.was = begins, ends, was
        self.rounds = dict.fromkeys(names, 0)
        # In trouble at the last line? lines, rounds in trouble; of the rounds since the last line:
        # those in trouble, and all.
        self.clients: dict[str, list[Any]] = {}

    def note(self, round_number: int, well: Iterable[str], troubled: Mapping[str, str]) -> None:
        """Count a round for these clients, and log whose trouble begins or ends."""
        for name, why in troubled.items():
            self.rounds[name] += 1
            self.clients.setdefault(name, [False, 0, 0, 0, 0])
            self._count(round_number, name, trouble=True, why=why)
        for name in well:
            self.rounds[name] += 1
            if name in self.clients:
                self._count(round_number, name, trouble=False)

    def _count(self, round_number: int, name: str, *, trouble: bool, why: str = "") -> None:
        was_in, lines, total, hits, seen = self.clients[name]
        total += trouble
        wait = min(LONGEST, 1 << min(lines - 1, LONGEST.bit_length())) if lines else 0
        if trouble == was_in or seen < wait:
            self.clients[name] = [was_in, lines, total, hits + trouble, seen + 1]
            return
        share = f"; {self.was} in {hits:,} of the last {seen:,} rounds" if hits else ""
        if trouble:
            line = self.begins.format(name=name, why=why, times=total)
        else:
            line = f"client {name!r} {self.ends}"
        log.warning("round %d: %s%s", round_number, line, share)
        self.clients[name] = [trouble, lines + 1, total, int(trouble), 1]

    def sum_up(self) -> None:
        """Log how often each client was in trouble."""
        for name, rounds in self.rounds.items():
            if total := self.total(name):
                log.warning(
                    "client %r was %s in %d of its %d rounds", name, self.was, total, rounds
                )

    def total(self, name: str) -> int:
        """Rounds in trouble so far of one client."""
        return int(self.clients[name][2]) if name in self.clients else 0

    @property
    def totals(self) -> dict[str, int]:
        """Rounds in trouble so far, by client."""
        return {name: self.total(name) for name in self.rounds}

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: the log continues as if there had been none."""
        return {"rounds": packed_counts(self.rounds), "clients": dict(self.clients)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        self.rounds = unpacked_counts(state["rounds"], list(self.rounds), "monitor")
        self.clients = {}
        for name, counts in state["clients"].items():
            was_in, *others = counts
            valid = type(was_in) is bool and len(others) == 4 and name in self.rounds
            if not valid or not all(type(count) is int and count >= 0 for count in others):
                raise ValueError(f"monitor.{name} is {counts!r:.40}")
            self.clients[name] = list(counts)


class Monitor(Callback):
    """Watches the clients of a run round by round; it changes nothing but the log."""

    every = 0

    def __init__(self, names: Sequence[str], settings: Settings) -> None:
        self.failing = ClientWarnings(
            names,
            "client {name!r} left out: {why} ({times} times so far); its head was put back",
            "takes part again",
            "left out",
        )
        self.frozen = ClientWarnings(
            names,
            "client {name!r} has a vanishing gradient; its weight is held",
            "has a gradient again; its weight moves",
            "held",
        )
        self.rates = rates(settings)
        self.warned: dict[str, None] = {}  # of divergence, each client once
        self.diverging: dict[str, None] = {}  # in its last round

    def on_round(self, state: TrainingState) -> None:
        """Note which of a round's clients failed, whose weight was frozen and who diverges."""
        record = state.record
        assert record is not None
        self.note_failed(state.round, record.clients, record.failed)
        self.note(state.round, record["held"], record["loss"], record["loss_ratio"])

    def note_failed(self, round_number: int, active: Sequence[str], failed: Sequence[str]) -> None:
        """Note which of a round's ``active`` clients ``failed``."""
        bad = dict.fromkeys(failed, "its loss or gradient is not finite")
        trained = {name for name in bad if self.failing.rounds[name] > self.failing.total(name)}
        self.failing.note(round_number, [name for name in active if name not in bad], bad)
        for name in failed:
            self.diverging[name] = None
            if name in trained:
                what = f"diverges: its loss or gradient is no longer finite at round {round_number}"
                self._warn(name, f"{what}; lower {self.rates} or look at its data")
            else:
                what = "cannot train: its loss or gradient is not finite in its first round"
                self._warn(name, f"{what}; look at its data or lower {self.rates}")

    def note(
        self,
        round_number: int,
        frozen: Mapping[str, float],
        losses: Mapping[str, float],
        ratios: Mapping[str, float],
    ) -> None:
        """Note whose weight was frozen in a round, and whose loss has grown beyond all measure."""
        held = {name: "" for name, is_frozen in frozen.items() if is_frozen}
        self.frozen.note(round_number, [name for name in frozen if name not in held], held)
        for name, ratio in ratios.items():
            if ratio > FOLD and losses.get(name, math.inf) >= ratio * SOLVED:
                self.diverging[name] = None
                grown = f"diverges: its loss is {ratio:.2g} times its first one"
                self._warn(name, f"{grown} at round {round_number}; lower {self.rates}")
            elif self.diverging:
                self.diverging.pop(name, None)

    def _warn(self, name: str, words: str) -> None:
        if name not in self.warned:
            self.warned[name] = None
            log.warning("client %r %s", name, words)

    def on_end(self, state: TrainingState) -> None:  # noqa: ARG002
        """Log the counts of the whole run."""
        self.failing.sum_up()
        self.frozen.sum_up()

    def counts(self) -> dict[str, dict[str, int]]:
        """In how many rounds each client was left out, and its weight frozen: for run.json."""
        return {"left_out": self.failing.totals, "held": self.frozen.totals}

    def diverged(self, evaluation: Iterable[Mapping[str, Any]], *, restored: bool) -> list[str]:
        """The clients that a run ends with in divergence.

        Their loss is not finite in the last evaluation, or it was not, or far above the first one,
        in their last round. A run that returned to its best round is judged by the evaluation.
        """
        lost = {row["client"] for row in evaluation if not math.isfinite(row["loss"])}
        lost |= set() if restored else set(self.diverging)
        return [name for name in self.failing.rounds if name in lost]

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart."""
        return {
            "failing": self.failing.state_dict(),
            "frozen": self.frozen.state_dict(),
            "warned": list(self.warned),
            "diverging": list(self.diverging),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        self.failing.load_state_dict(state["failing"])
        self.frozen.load_state_dict(state["frozen"])
        self.warned = dict.fromkeys(state["warned"])
        self.diverging = dict.fromkeys(state["diverging"])


def rates(settings: Settings) -> str:
    """The learning rates that move networks and heads, by the settings that they come from."""
    local = settings.local()
    tables = {
        "head_optimizer": local.head_optimizer or {},
        "server_optimizer": optimizers.resolve(settings.server_optimizer, settings.lr),
    }
    if local.steps_locally:
        tables["local_optimizer"] = local.local_optimizer or {}
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
