"""Client-level privacy: one client moves a sum by the clip at most, and the noise is as said."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import fedgradnorm as fgn
import flat
from fedgradnorm._privacy.noise import Noise
from fedgradnorm._round.private.client_sums import ClientSums
from fedgradnorm._round.settings import Settings
from fedgradnorm.weighting import Signals
from privacy.private_clients import INPUTS, network

pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

TERMS = {"epsilon": 8.0, "delta": 1e-3, "clip": 0.5, "noise_multiplier": 2.0}
SEEDED = {**TERMS, "noise": "seeded"}
EPSILON = "epsilon: not private (seeded noise)"


def sums(names: int, weighting: fgn.Weighting | None = None, **terms: Any) -> ClientSums:
    given = fgn.ClientPrivacy(**{**TERMS, **terms})
    made = ClientSums(given, [f"c{i}" for i in range(names)], weighting or fgn.Equal(), Settings())
    made.weighting.bind([f"c{i}" for i in range(names)])
    return made


def signals(norm: Tensor, ratio: Tensor | None = None, active: Tensor | None = None) -> Signals:
    one = torch.ones_like(norm)
    present = torch.ones(len(norm), dtype=torch.bool) if active is None else active
    return Signals(present, one, one, one if ratio is None else ratio, norm)


def updates(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.logspace(-2, 2, count).double()[:, None]
    return lengths * torch.randn(count, 6, generator=generator).double()


def test_one_client_moves_the_sum_by_no_more_than_the_clip() -> None:
    """Whatever it sends, and whatever weight it gives itself."""
    made, rows = sums(8), updates(8)
    made.noise = 1e-9
    own = torch.logspace(-1, 3, 8).double()
    whole = made.direction(rows, own, 0) * 8
    for left_out in range(8):
        others = torch.where(torch.arange(8) == left_out, 0, own)
        rest = made.direction(rows, others, 0) * 8
        assert float((whole - rest).norm()) <= 0.5 * (1 + 1e-6)
    short = made.direction(rows, torch.full((8,), 1e-3).double(), 0)
    torch.testing.assert_close(short, 1e-3 * rows.mean(dim=0), rtol=1e-6, atol=1e-9)


def test_noise_is_as_said_also_where_nobody_came() -> None:
    made = sums(8)
    made.noise = 3.0
    nobody = torch.zeros(8).double()
    draws = torch.stack([made.direction(updates(8), nobody, k) for k in range(500)])
    assert float(draws.std()) == pytest.approx(3.0 * 0.5 / 8, rel=0.08)  # six standard errors
    assert float(draws.mean().abs()) < 0.02


def test_a_clients_multiplier_is_its_own_and_in_the_proportions_of_the_direct_rule() -> None:
    """With everybody there the rule's weights are these numbers, scaled."""
    generator = torch.Generator().manual_seed(2)
    rule = fgn.GradNorm(rule="direct", smoothing=0.8)
    made, plain = sums(5, fgn.GradNorm(rule="direct", smoothing=0.8)), rule
    plain.bind([f"c{i}" for i in range(5)])
    for _ in range(20):
        norm, ratio = (0.1 + torch.rand(5, generator=generator).double() for _ in range(2))
        own = made.multipliers(signals(norm, ratio))
        weights = plain.update(signals(norm, ratio))
        torch.testing.assert_close(own * (5 / own.sum()), weights)
    others = signals(torch.tensor([1.0, 7.0, 7.0, 7.0, 7.0]).double())
    one, two = (sums(5, fgn.GradNorm(rule="direct")) for _ in range(2))
    alone = one.multipliers(signals(torch.ones(5).double()))[0]
    assert two.multipliers(others)[0] == alone  # whatever the others are


def clients(count: int) -> list[fgn.Client]:
    rng = np.random.default_rng(0)
    found = []
    for i in range(count):
        x = rng.normal(size=(12, INPUTS))
        pair = x, x[:, :1]
        found.append(fgn.Client(f"c{i}", fgn.regression(1), train=pair, validation=pair))
    return found


def train(count: int = 12, **settings: Any) -> fgn.Run:
    given = {"rounds": 5, "participation": 0.5, "eval_every": 0, "privacy": dict(TERMS), **settings}
    given = {"weighting": fgn.GradNorm(rule="direct"), **given}
    return flat.train(network(), clients(count), **given)


def test_clients_are_drawn_one_by_one() -> None:
    settings = Settings(privacy=dict(TERMS), participation=0.3)
    names = [f"c{i}" for i in range(40)]
    assert settings.client_privacy is not None
    sums = ClientSums(settings.client_privacy, names, fgn.Equal(), settings)
    counts = [len(sums.drawn(k)) for k in range(1600)]
    assert np.mean(counts) == pytest.approx(12, abs=0.45)  # six standard errors, as below
    assert np.var(counts) == pytest.approx(40 * 0.3 * 0.7, rel=0.22)


def test_a_seeded_run_resumes_bit_for_bit_and_says_that_it_is_not_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(progress: Any) -> None:
        if progress.round == 2:
            raise KeyboardInterrupt

    with caplog.at_level(logging.INFO, "fedgradnorm"):
        whole = train(folder=tmp_path / "whole", privacy=SEEDED)
    assert "epsilon" not in whole.history
    spent = whole.history.groupby("round")[EPSILON].max()
    assert spent.is_monotonic_increasing
    assert 0 < spent.iloc[-1] <= 8.0
    shown = [r.message for r in caplog.records if "epsilon 8" in r.message]
    assert shown
    assert all("not private (seeded noise)" in line for line in shown)
    with pytest.raises(fgn.Interrupted):
        train(folder=tmp_path / "run", progress=stop, checkpoint_every=1, privacy=SEEDED)
    train(folder=tmp_path / "run", resume=True, checkpoint_every=1, privacy=SEEDED)
    tables = [(tmp_path / name / "metrics.csv").read_bytes() for name in ("whole", "run")]
    assert tables[0] == tables[1]


def test_the_run_ends_when_its_budget_is_spent() -> None:
    run = train(rounds=50, privacy={**TERMS, "noise_multiplier": 1.2})
    assert run.history["round"].max() < 50
    assert 7.0 < run.history["epsilon"].max() <= 8.0
    assert run.manifest["finished"]


def test_all_runs_with_one_ledger_share_one_budget(tmp_path: Path) -> None:
    terms = {**TERMS, "noise_multiplier": 1.2, "ledger": str(tmp_path)}
    first, second = (train(rounds=4, privacy=terms) for _ in range(2))
    assert second.history["epsilon"].iloc[0] >= first.history["epsilon"].max()
    assert train(rounds=50, privacy=terms).history["epsilon"].max() <= 8.0
    with pytest.raises(fgn.ConfigError, match=r"exceeds epsilon|already spent"):
        train(rounds=50, privacy=terms)


def test_without_noise_and_a_clip_that_never_binds_it_is_any_federation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Noise, "noised", lambda _self, values, *_: values)
    same = {"participation": 1.0, "weighting": fgn.Equal()}
    free, private = train(privacy=None, **same), train(privacy={**TERMS, "clip": 1e6}, **same)
    columns = ["round", "client", "loss", "weight", "grad_norm"]
    pd.testing.assert_frame_equal(free.history[columns], private.history[columns], rtol=1e-9)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"heads": "all"}, "heads"),
        ({"share": "none"}, "share"),
        ({"aggregate": "by_size"}, "aggregate"),
        ({"weighting": fgn.GradNorm()}, "knows by itself"),
        ({"participation": ["c0"]}, "a share"),
        ({"privacy": fgn.Privacy(1.0, 1e-3)}, r"fgn\.Client"),
        ({"privacy": {"epsilon": 1.0}}, "delta"),
        ({"executor": "joint"}, "every client's gradient"),
        ({"keep": "best"}, "the choice of a round"),
        ({"patience": 3}, "when the run ends"),
    ],
)
def test_what_would_tell_of_a_client_beside_the_sum_is_refused(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(fgn.ConfigError, match=words):
        train(**settings)


def test_client_level_terms_are_no_clients(tmp_path: Path) -> None:
    with pytest.raises(fgn.ConfigError, match=r"fgn\.Server\(privacy"):
        fgn.Client(
            "a", fgn.regression(1), train=(np.ones((2, 1)), np.ones(2)),
            privacy=fgn.ClientPrivacy(1.0, 1e-3),
        )  # fmt: skip


def test_ranks_do_not_draw_other_noise_for_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(fgn.ConfigError, match="2 processes would each draw other noise"):
        sums(8)
    sums(8, noise="seeded")


def test_delta_is_at_most_one_over_the_number_of_clients() -> None:
    with pytest.raises(fgn.ConfigError, match="one over the number of clients"):
        train(12, privacy={**TERMS, "delta": 0.09})
