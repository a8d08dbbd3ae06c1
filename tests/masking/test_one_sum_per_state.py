"""Over any sequence of hostile requests, a network's sums are over one set of clients."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fedgradnorm._masking.revealed import Revealed
from fedgradnorm._masking.ring import Words
from fedgradnorm._masking.roster import Attempt, Phase, Subject, Unsafe
from fedgradnorm._masking.session import Session
from masking.crowd import people

NAMES = ["c00", "c01", "c02", "c03", "c04"]
CHEAT = "c04"  # tells the server everything, and signs whatever it likes
ROSTER, SIGNERS = people(5)
WORDS: Words = np.zeros(2, dtype=np.uint64)
names = st.sampled_from(NAMES[:4])
attempts = st.sampled_from(["1", "2", "3"])
subjects = st.builds(
    Subject, st.sampled_from(["A", "B"]), st.sampled_from(["", "sums"]), st.booleans()
)


class HostileServer(RuleBasedStateMachine):
    """It asks each client for anything at any time, in two runs, and restarts them as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.revealed = {n: Revealed() for n in NAMES}
        self.states: dict[tuple[str, str], Any] = {}
        self.keys: dict[tuple[str, str, int, Phase], dict[str, Any]] = {}
        self.letters: dict[tuple[str, str], dict[str, Any]] = {}
        self.inputs: dict[tuple[str, str, str], tuple[Any, ...]] = {}
        self.agreed: dict[tuple[str, str], list[Any]] = {}
        self.seen: dict[str, dict[tuple[str, Phase], set[tuple[Any, ...]]]] = {}

    def session(self, name: str, run: str) -> Session:
        state = self.states.get((name, run))
        return Session(
            SIGNERS[name], ROSTER, "agreed", run, colluders=1,
            state=state, revealed=self.revealed[name],
        )  # fmt: skip

    def did(self, name: str, run: str, call: Any) -> Any:
        """What a client answers; it is restarted before every request."""
        one = self.session(name, run)
        try:
            answer = call(one)
        except Unsafe:
            return None
        self.states[name, run] = one.state
        return answer

    @rule(
        run=st.sampled_from(["r", "s"]), at=attempts, number=st.integers(0, 1),
        phase=st.sampled_from(list(Phase)), some=st.sets(names, min_size=3),
    )  # fmt: skip
    def prepare(self, run: str, at: str, number: int, phase: Phase, some: set[str]) -> None:
        """Keys of some, and of the cheat; and their letters."""
        self.letters[run, at] = {}
        found = {n: self.did(n, run, lambda s: s.keys(at, number, phase)) for n in some}
        found = {n: one for n, one in found.items() if one}
        cheat = Session(
            SIGNERS[CHEAT], ROSTER, "agreed", run, colluders=1
        )  # fmt: skip
        shown = [*found.values(), cheat.keys(at, number, phase)]
        for name in found:
            answer = self.did(name, run, lambda s: s.letters(at, shown))
            if answer:
                self.letters.setdefault((run, at), {})[name] = answer["body"]
        with suppress(Unsafe):
            self.letters.setdefault((run, at), {})[CHEAT] = cheat.letters(at, shown)["body"]

    @rule(run=st.sampled_from(["r", "s"]), at=attempts, subject=subjects, some=st.sets(names))
    def ask_inputs(self, run: str, at: str, subject: Subject, some: set[str]) -> None:
        dealt = self.letters.get((run, at), {})
        for name in some:
            to = {
                n: [body["sealed"][name], body["shares"][name]]
                for n, body in dealt.items()
                if n != name and name in body["sealed"]
            }
            self.did(name, run, lambda s, to=to: s.mask(at, to, subject, WORDS, WORDS))

    @rule(
        run=st.sampled_from(["r", "s"]), at=attempts, some=st.sets(names, min_size=2),
        agree=st.booleans(),
    )  # fmt: skip
    def ask_shares(self, run: str, at: str, some: set[str], agree: bool) -> None:
        """A list of survivors, with the cheat, to whoever is on it."""
        left = sorted({*some, CHEAT})
        signed = []
        for name in some if agree else ():
            answer = self.did(name, run, lambda s: s.agree(at, left))
            signed += [answer] if answer else []
        for name in some:
            one = self.states.get((name, run), {}).get("attempts", {}).get(at, {})
            subject, about = one.get("subject"), (one.get("round"), one.get("phase"))
            attempt = Attempt("agreed", run, about[0] or 0, Phase(about[1] or "update"), at)
            body = signed[0]["body"] if signed else {}
            forged = SIGNERS[CHEAT].sign(attempt, "survivors", body)
            answer = self.did(name, run, lambda s, f=forged: s.reveal(at, left, [*signed, f]))
            if answer:
                key = (subject["network"], Phase(one["phase"]))
                facts = (run, *about, tuple(left), subject["sums"], subject["ahead"])
                self.seen.setdefault(name, {}).setdefault(key, set()).add(facts)

    @rule(
        run=st.sampled_from(["r", "s"]), at=attempts, number=st.integers(0, 1),
        phase=st.sampled_from(list(Phase)), subject=subjects, some=st.sets(names, min_size=3),
    )  # fmt: skip
    def sum_up(
        self, run: str, at: str, number: int, phase: Phase, subject: Subject, some: set[str]
    ) -> None:
        """All of it in a row, which steps drawn by themselves seldom make."""
        self.prepare(run, at, number, phase, some)
        self.ask_inputs(run, at, subject, some)
        self.ask_shares(run, at, some, agree=True)

    @rule(name=names, run=st.sampled_from(["r", "s"]))
    def lose_folder(self, name: str, run: str) -> None:
        """The client's folder of one run is gone; what it has let be seen is kept elsewhere."""
        self.states.pop((name, run), None)

    @invariant()
    def one_sum_over_one_set(self) -> None:
        for tables in self.seen.values():
            assert all(len(sums) == 1 for sums in tables.values())
            runs = {run for sums in tables.values() for run, *_ in sums}
            assert len(runs) <= 1
            ahead = {net for (net, _), sums in tables.items() if any(one[-1] for one in sums)}
            assert not any((net, Phase.SIGNALS) in tables for net in ahead)


HostileServer.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestHostileServer = HostileServer.TestCase


def test_the_machine_can_reach_a_sum() -> None:
    """Otherwise the invariant would hold of nothing."""
    machine, everybody = HostileServer(), set(NAMES[:4])
    machine.prepare("r", "1", 0, Phase.UPDATE, everybody)
    machine.ask_inputs("r", "1", Subject("A"), everybody)
    machine.ask_shares("r", "1", everybody, agree=True)
    machine.one_sum_over_one_set()
    assert set(machine.seen) == everybody
