"""Laws of the ledger, over any sequence of runs, restarts, repetitions and hostile orders."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fedgradnorm._flower.ledger import ClientLedger
from fedgradnorm._flower.slots import StateLost
from fedgradnorm._flower.wire.messages import Refused
from fedgradnorm._privacy.accountant import Steps, epsilon_of
from fedgradnorm._privacy.plan import Plan
from fedgradnorm._privacy.terms import Privacy
from fedgradnorm._runs.ledger import BudgetSpent, Ledger
from privacy.hostile import Hostile, cost, noise_of, told

TERMS = Privacy(2.0, 1e-3)
RUNS = st.sampled_from(["pilot", "real", "again"])


@pytest.fixture(autouse=True, scope="module")
def quick_disk() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


class Charging(RuleBasedStateMachine):
    """Two processes that charge one state folder for several runs, and are restarted."""

    @initialize()
    def begin(self) -> None:
        self.folder, self.released = Path(tempfile.mkdtemp()), list[Steps]()
        self.plans = Plan(1.0, 1, 6, first=True), Plan(1.0, 2, 9)
        self.ledgers = [self.opened(plan) for plan in self.plans]

    def opened(self, plan: Plan) -> ClientLedger:
        return ClientLedger(self.folder, "a", TERMS, lambda: plan)

    @rule(process=st.integers(0, 1), run=RUNS, first=st.booleans(), repeated=st.integers(1, 4))
    def charge(self, process: int, run: str, first: bool, repeated: int) -> None:
        for _ in range(repeated):
            ledger = self.ledgers[process]
            try:
                ledger.charge(run, 0, first)
            except Refused:
                return
            self.released += self.plans[process].round(ledger.noise(run), first)

    @rule(process=st.integers(0, 1))
    def restart(self, process: int) -> None:
        self.ledgers[process] = self.opened(self.plans[process])

    @invariant()
    def nothing_exceeds_the_budget(self) -> None:
        epsilon = epsilon_of(tuple(self.released), TERMS.delta)
        assert epsilon <= TERMS.epsilon
        fresh = self.opened(self.plans[0])._book.epsilon
        assert epsilon <= fresh + 1e-9
        assert fresh <= TERMS.epsilon


class Orders(RuleBasedStateMachine):
    """A server that asks for anything, and a client that is restarted and loses examples."""

    @initialize()
    def begin(self) -> None:
        self.client = Hostile(Path(tempfile.mkdtemp()), noise_multiplier=6.0)
        self.answers: dict[bytes, np.ndarray] = {}
        self.sigma = 6.0

    @rule(run=RUNS, number=st.integers(0, 3), state=st.integers(0, 2), other=st.integers(0, 1))
    def ask(self, run: str, number: int, state: int, other: int) -> None:
        try:
            answer = self.client.ask(run, number, state, 1e-3 * other)
        except (Refused, StateLost):
            return
        self.answers[told(answer)] = noise_of(answer)

    @rule()
    def restart(self) -> None:
        self.client.start()

    @rule(lost=st.integers(0, 3))
    def lose_examples(self, lost: int) -> None:
        self.client.rows = slice(lost, None)
        self.client.start()

    @invariant()
    def the_budget_holds_and_no_noise_is_used_twice(self) -> None:
        """Also in units of the noise's own deviation: other runs have another one."""
        every = np.concatenate([*self.answers.values(), np.zeros(0)])
        ratios = np.abs(every[:, None] / every[None, :] - 1.0)[~np.eye(len(every), dtype=bool)]
        assert not (ratios < 1e-9).any()
        assert len(self.answers) <= (len(self.client.charges) if self.answers else 0)
        if self.answers:
            assert cost(self.client.charges) <= 3.0


SMALL = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}
TestCharging = Charging.TestCase
TestCharging.settings = settings(max_examples=25, stateful_step_count=12, **SMALL)
TestOrders = Orders.TestCase
TestOrders.settings = settings(max_examples=8, stateful_step_count=10, **SMALL)


def test_the_ledger_composes_as_an_outside_accountant(tmp_path: Path) -> None:
    """Gaussian sums over sampled batches with several noises, as dp-accounting composes them."""
    accounting = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    from dp_accounting.pld import PLDAccountant

    ledger, outside = Ledger(Privacy(3.0, 1e-3), "a", tmp_path / "l.jsonl"), PLDAccountant()
    for noise, rate, times in ((4.0, 0.2, 3), (2.0, 0.1, 5), (4.0, 0.2, 2), (20.0, 1.0, 1)):
        ledger.charge([Steps(noise, rate, times)])
        sampled = accounting.PoissonSampledDpEvent(rate, accounting.GaussianDpEvent(noise))
        outside.compose(sampled if rate < 1 else accounting.GaussianDpEvent(noise), times)
        expected = outside.get_epsilon(1e-3)
        assert expected * 0.999 <= ledger.epsilon <= expected * 1.02
    again = Ledger(Privacy(3.0, 1e-3), "a", tmp_path / "l.jsonl")
    assert again.releases == ledger.releases
    assert again.epsilon == ledger.epsilon
    with pytest.raises(BudgetSpent, match="would make it"):
        again.charge([Steps(0.3, 1.0, 1)])
