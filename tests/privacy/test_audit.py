"""An empirical audit: hundreds of tiny runs with and without a canary, and what they prove.

Whoever tells "with" from "without" at false positive rate a and true positive rate b has shown that
epsilon >= log((b - delta) / a). With the exact (Clopper-Pearson) bounds of both rates this holds
with 98% confidence. Thresholds are fixed beforehand. The noise is fresh in every test: with these
runs, bounds and thresholds, either conclusion fails by chance less than once in 10,000 tests.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats
from torch import nn

pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

import fedgradnorm as fgn
import toys
from fedgradnorm._federation.federation import Federation
from fedgradnorm._privacy.noise import Noise
from fedgradnorm._privacy.plan import Plan
from fedgradnorm._round.private.private_plan import planned
from fedgradnorm._round.settings import Settings
from fedgradnorm._training.accounts import Accounts
from fedgradnorm.data import client_from_arrays

EPSILON, DELTA, ROUNDS, RUNS = 2.0, 0.02, 2, 1200
CONSTANTS = {"mean": [1.0, 1.0], "std": [2.0, 2.0]}
"""Public ones: inputs of 1 become 0."""


def client(name: str, canary: bool, **terms: float) -> fgn.Client:
    """Twenty examples, the first of them a canary: only it moves the second weight."""
    x, y = np.tile([3.0, 1.0], (20, 1)), np.ones((20, 1))
    if canary:
        x, y = np.vstack([[1.0, 3.0], x]), np.vstack([[1e6], y])
    task, head = fgn.regression(1), nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(head.weight)
    made = client_from_arrays(name, task, (x, y), standardize=CONSTANTS)
    privacy = fgn.Privacy(EPSILON, DELTA, loss_share=0.0) if terms else None
    return fgn.Client(
        name, task, train=made.train, head=head, scaling=made.scaling, privacy=privacy
    )


def clients(level: str, canary: bool) -> Sequence[fgn.Client]:
    if level == "example":
        return [client("a", canary, private=1.0)]
    others = [client(f"other{k}", canary=False) for k in range(2)]
    return [client("canary", canary=True), *others] if canary else others


def moves(level: str, canary: bool, runs: int) -> np.ndarray:
    """How far the second weight moves in each of some runs, in units of the clip.

    The clients, their noise and the server are those of ``fgn.train``; only what surrounds the
    rounds (evaluations, history) is left out, because it takes most of the time.
    """
    own = clients(level, canary)
    network = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(network.weight)
    privacy = fgn.ClientPrivacy(EPSILON, DELTA) if level == "client" else None
    settings = Settings(
        rounds=ROUNDS, batch_size=None, head_steps=0, executor="loop", privacy=privacy,
        server_optimizer={"name": "sgd", "lr": 1.0},
    )  # fmt: skip
    own = planned(own, settings)
    federation = Federation(network, own, fgn.Equal(), settings, toys.CPU)
    Accounts(own, settings, ROUNDS).govern(federation)
    names, start = [client.name for client in own], federation.state_dict()
    start = copy.deepcopy(start)
    count, found = len(own) if level == "client" else own[0].size, []
    for _ in range(runs):
        federation.load_state_dict(copy.deepcopy(start))
        for k in range(ROUNDS):
            federation.rounds(k, [names])
        found.append(float(federation.server.shared[1]) * count)
    return np.array(found)


def shown(level: str, threshold: float) -> float:
    """The lower bound of epsilon that the runs prove."""
    hits, alarms = (int((moves(level, canary, RUNS) > threshold).sum()) for canary in (True, False))
    true = stats.beta.ppf(0.01, hits, RUNS - hits + 1) if hits else 0.0
    false = stats.beta.ppf(0.99, alarms + 1, RUNS - alarms)
    return math.log(max(true - DELTA, 1e-9) / false)


def deviation() -> float:
    """That of the sum over all rounds with the noise that was promised, in units of the clip."""
    return Plan(1.0, 1, ROUNDS).noise(fgn.Privacy(EPSILON, DELTA)) * math.sqrt(ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["example", "client"])
def test_no_attack_shows_more_than_the_claimed_epsilon(level: str) -> None:
    assert shown(level, 1.95 * deviation()) < EPSILON


@pytest.mark.slow
@pytest.mark.parametrize("level", ["example", "client"])
def test_with_half_of_the_noise_the_same_audit_fails(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Noise.normal
    monkeypatch.setattr(Noise, "normal", lambda self, count, *_: plain(self, count) / 2)
    assert shown(level, 1.95 * deviation() / 2) > EPSILON


@pytest.mark.parametrize("level", ["example", "client"])
def test_the_canary_moves_the_statistic_by_the_clip_in_every_round(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the audit would have no power."""
    monkeypatch.setattr(Noise, "normal", lambda _, count, *__: np.zeros(count))
    assert moves(level, canary=True, runs=2) == pytest.approx(ROUNDS, rel=1e-6)
    assert moves(level, canary=False, runs=2) == pytest.approx(0.0)
