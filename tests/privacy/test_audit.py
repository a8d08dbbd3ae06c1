"""An empirical audit: hundreds of runs with and without a canary, and what they prove of epsilon.

Whoever tells "with" from "without" at false positive rate a and true positive rate b has shown that
epsilon >= log((b - delta) / a). With the exact (Clopper-Pearson) bounds of both rates this holds
with 95% confidence. Thresholds are fixed beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats
from torch import nn

pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

import fedgradnorm as fgn
from fedgradnorm._privacy.noise import Noise
from fedgradnorm._privacy.plan import Plan
from fedgradnorm.data import client_from_arrays
from privacy.hostile import train

EPSILON, DELTA, ROUNDS, RUNS = 2.0, 0.02, 2, 600
CONSTANTS = {"mean": [1.0, 1.0], "std": [2.0, 2.0]}
"""Public ones: inputs of 1 become 0."""


def client(name: str, canary: bool, **terms: float) -> fgn.Client:
    """Twenty examples, the first of them a canary: only it moves the second weight."""
    x, y = np.tile([3.0, 1.0], (20, 1)), np.ones((20, 1))
    if canary:
        x, y = np.vstack([[1.0, 3.0], x]), np.vstack([[1e6], y])
    task, head = fgn.regression(1), nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(head.weight)
    made = client_from_arrays(name, task, (x, y), standardize=CONSTANTS).client
    privacy = fgn.Privacy(EPSILON, DELTA, loss_share=0.0) if terms else None
    return fgn.Client(
        name, task, train=made.train, head=head, scaling=made.scaling, privacy=privacy
    )


def clients(level: str, canary: bool) -> Sequence[fgn.Client]:
    if level == "example":
        return [client("a", canary, private=1.0)]
    others = [client(f"other{k}", canary=False) for k in range(2)]
    return [client("canary", canary=True), *others] if canary else others


def moved(level: str, canary: bool) -> float:
    """How far the second weight moves in a run, in units of the clip."""
    own = clients(level, canary)
    network = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(network.weight)
    options = {}
    if level == "client":
        options["privacy"] = fgn.ClientPrivacy(EPSILON, DELTA)
    server = fgn.Server(server_optimizer={"name": "sgd", "lr": 1.0}, **options)
    run = train(own, lambda: network, rounds=ROUNDS, server=server, compute={"executor": "loop"})
    count = len(own) if level == "client" else len(own[0].train[0])
    assert run.shared is not None
    return float(run.shared.weight[0, 1].detach()) * count


def shown(level: str, threshold: float) -> float:
    """The lower bound of epsilon that the runs prove."""
    with_canary, without = (
        np.array([moved(level, canary) for _ in range(RUNS)]) for canary in (True, False)
    )
    hits = [int((found > threshold).sum()) for found in (with_canary, without)]
    true = stats.beta.ppf(0.025, hits[0], RUNS - hits[0] + 1) if hits[0] else 0.0
    false = stats.beta.ppf(0.975, hits[1] + 1, RUNS - hits[1])
    return math.log(max(true - DELTA, 1e-9) / false)


def deviation() -> float:
    """That of the sum over all rounds with the noise that was promised, in units of the clip."""
    return Plan(1.0, 1, ROUNDS).noise(fgn.Privacy(EPSILON, DELTA)) * math.sqrt(ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["example", "client"])
def test_no_attack_shows_more_than_the_claimed_epsilon(level: str) -> None:
    assert shown(level, 2.33 * deviation()) < EPSILON


@pytest.mark.slow
@pytest.mark.parametrize("level", ["example", "client"])
def test_with_half_of_the_noise_the_same_audit_fails(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Noise.normal
    monkeypatch.setattr(Noise, "normal", lambda self, count, *_: plain(self, count) / 2)
    assert shown(level, 2.33 * deviation() / 2) > EPSILON


@pytest.mark.parametrize("level", ["example", "client"])
def test_the_canary_moves_the_statistic_by_the_clip_in_every_round(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the audit would have no power."""
    monkeypatch.setattr(Noise, "normal", lambda _, count, *__: np.zeros(count))
    assert moved(level, canary=True) == pytest.approx(ROUNDS, rel=1e-6)
    assert moved(level, canary=False) == 0.0
