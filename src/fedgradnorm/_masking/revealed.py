"""Which sums a client has let be seen: one for each network and phase, over one set of clients.

The file is appended to before shares are shown, and every run in the state folder reads it: a
second run, another round or another attempt with a network that was used before is the same state.
So is another agreement that begins with the same network: clients would begin with the same heads
and batches, and a server may tell them a first network that differs by what CPUs round.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from fedgradnorm._masking.roster import Phase, Unsafe

RUN, AHEAD, START = "run", "ahead", "start"


class Revealed:
    """``facts`` has the digest of what was summed, by phase and network, and each agreement's run.

    A line is written whole or is not read: it ends with a full stop.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.facts = path, dict[tuple[str, str], str]()
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                words = line.split(" ")
                if len(words) == 4 and words[3] == ".":
                    self.facts[words[0], words[1]] = words[2]

    def bind(self, agreement: str, run: str, start: str) -> None:
        """One agreement has one run, and the network that a run starts with has one agreement.

        They are the first ones for which this client gives an input.
        """
        self.check_run(agreement, run, start)
        self._add({(RUN, agreement): run, (START, start): agreement})

    def check_run(self, agreement: str, run: str, start: str) -> None:
        """Unsafe if it is another run, or another agreement, than the first one."""
        if self.facts.get((START, start), agreement) != agreement:
            raise Unsafe(
                "it participated in another agreement that began with the same network, and the "
                "difference of sums would show single clients; agree on another seed"
            )
        if self.facts.get((RUN, agreement), run) != run:
            raise Unsafe(
                "it participated in another run of this agreement, and the difference of sums "
                "would show single clients; agree on a new run.toml, with another seed"
            )

    def check_kept(self, agreement: str, run: str, count: int) -> None:
        """Unsafe if this lacks a run, or some of the ``count`` facts, known to have been here."""
        self.check_count(count if self.facts.get((RUN, agreement)) == run else math.inf)

    def check_count(self, count: float) -> None:
        """Unsafe if this has fewer than ``count`` facts."""
        if len(self.facts) < count:
            raise Unsafe(
                "its record of the sums it has let be seen was lost or put back, so it cannot "
                "continue; leave this client out, and agree on a new roster and seed"
            )

    def seen(self, network: str, phase: Phase) -> bool:
        """Whether it has let a sum with this network be seen."""
        return (str(phase), network) in self.facts

    def check(self, network: str, phase: Phase, ahead: bool, *summed: str) -> None:
        """Unsafe if a sum with this network was seen that is none of ``summed``, where it is known.

        A round's signals are in one kind of sum only: in its first sum, or in its update's.
        """
        before = self.facts.get((str(phase), network))
        if before is not None and summed and before not in summed:
            raise Unsafe(
                "a sum with this network was seen before, over other clients or of something "
                "else: the difference of the two would show single clients"
            )
        was_ahead = (AHEAD, network) in self.facts
        if (ahead and self.seen(network, Phase.SIGNALS)) or (not ahead and was_ahead):
            raise Unsafe("this round's signals were summed already, in another way")

    def add(self, network: str, phase: Phase, ahead: bool, summed: str, *instead: str) -> None:
        """Remember a sum, perhaps instead of another one, on disk before this returns."""
        self.check(network, phase, ahead, summed, *instead)
        self._add({(kind, network): summed for kind in (str(phase), *([AHEAD] if ahead else []))})

    def _add(self, facts: dict[tuple[str, str], str]) -> None:
        new = {key: value for key, value in facts.items() if self.facts.get(key) != value}
        if new and self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "ab") as file:
                lines = [f"\n{kind} {key} {value} ." for (kind, key), value in new.items()]
                file.write("".join(lines).encode())
                file.flush()
                os.fsync(file.fileno())
        self.facts |= new
