"""FedGradNorm's weights against the paper's numbers, finite differences and torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedgradnorm import ConfigError, GradNorm, Signals
from weighting.laws import NAMES, bound, draw, everybody, played

NORM = torch.tensor([0.5, 1, 2, 4, 8], dtype=torch.float64)
RATIO = torch.tensor([0.2, 0.4, 0.6, 0.8, 1], dtype=torch.float64)
RULES = ("absolute", "squared", "relative", "direct")
every_rule = pytest.mark.parametrize("rule", RULES)


def signals(norm: Tensor | list[float], ratio: Tensor | list[float] | None = None) -> Signals:
    """Everybody active, with these norms and loss ratios."""
    norm = torch.as_tensor(norm, dtype=torch.float64)
    ones = torch.ones_like(norm)
    ratio = ones if ratio is None else torch.as_tensor(ratio, dtype=torch.float64)
    return Signals(ones > 0, ones, ratio, ratio, norm)


def gradnorm(count: int = 5, p: Tensor | None = None, **options) -> GradNorm:
    """A bound GradNorm, with weights ``p`` if given."""
    weighting = GradNorm(**options)
    weighting.bind(NAMES[:count])
    if p is not None:
        weighting.rows["level"].copy_(p)
    return weighting


def rescaled(p: Tensor) -> Tensor:
    return p * len(p) / p.sum()


def limit(norm: Tensor, ratio: Tensor, gamma: float) -> Tensor:
    """The fixed point of p: N (r^gamma / G) / sum(r^gamma / G)."""
    return rescaled((ratio / ratio.mean()) ** gamma / norm)


def f_grad(p: Tensor, norm: Tensor, target: Tensor, rule: str) -> Tensor:
    gap = p * norm - target
    return gap.abs().sum() if rule == "absolute" else gap.square().sum() / 2


def targets(p: Tensor, norm: Tensor, ratio: Tensor, gamma: float) -> Tensor:
    return (p * norm).mean() * (ratio / ratio.mean()) ** gamma


@pytest.mark.parametrize(
    ("optimizer", "rounds", "expected"),
    [
        ("adam", 1, [1.001596, 1.001596, 1.001596, 1.001596, 0.993615]),
        ("sgd", 1, [1.002401, 1.004402, 1.008403, 1.016407, 0.968387]),
        ("adam", 10, [1.025534, 1.025534, 1.025534, 0.977277, 0.94612]),
        ("sgd", 10, [1.084514, 1.105269, 1.14678, 0.931759, 0.731678]),
    ],
)
def test_the_papers_rule_gives_the_reference_numbers(
    optimizer: str, rounds: int, expected: list[float]
) -> None:
    weighting = gradnorm(gamma=0.9, lr=0.004, optimizer=optimizer, floor=1e-3)
    weights = played(weighting, [signals(NORM, RATIO)] * rounds)[-1]
    assert weights.tolist() == pytest.approx(expected, abs=6e-7, rel=0)


@pytest.mark.parametrize("rule", ["absolute", "squared"])
@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.5])
@pytest.mark.parametrize("seed", range(5))
def test_a_gradient_step_follows_finite_differences_of_f_grad(
    rule: str, gamma: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    p = rescaled(torch.from_numpy(generator.uniform(0.5, 2, 5)))
    norm = torch.from_numpy(generator.uniform(0.5, 4, 5))
    ratio = torch.from_numpy(generator.uniform(0.1, 1, 5))
    target = targets(p, norm, ratio, gamma)  # a constant: p is moved below, target is not
    h, slope = 1e-6, torch.empty(5, dtype=torch.float64)
    for i in range(5):
        up, down = p.clone(), p.clone()
        up[i] += h
        down[i] -= h
        slope[i] = (f_grad(up, norm, target, rule) - f_grad(down, norm, target, rule)) / (2 * h)
    weighting = gradnorm(p=p, gamma=gamma, rule=rule, optimizer="sgd", lr=0.01)
    expected = rescaled(p - 0.01 * slope)
    torch.testing.assert_close(weighting.update(signals(norm, ratio)), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("rule", ["absolute", "squared"])
def test_our_adam_is_torchs_adam_step_by_step(rule: str) -> None:
    weighting = gradnorm(rule=rule, lr=0.02)
    p = torch.ones(5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([p], lr=0.02)
    for one in map(everybody, draw(seed=7, rounds=60)):
        one = replace(one, grad_norm=one.grad_norm ** (1 / 3))  # none so small that it is frozen
        target = targets(p, one.grad_norm, one.loss_ratio, 0.9).detach()
        optimizer.zero_grad()
        f_grad(p, one.grad_norm, target, rule).backward()
        optimizer.step()
        with torch.no_grad():
            p.copy_(rescaled(p.clamp_min(weighting.floor)))
        torch.testing.assert_close(weighting.update(one), p.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_the_direct_rule_stands_at_the_fixed_point_at_once(gamma: float) -> None:
    weighting = gradnorm(gamma=gamma, rule="direct", smoothing=0)
    weights = weighting.update(signals(NORM, RATIO))
    torch.testing.assert_close(weights, limit(NORM, RATIO, gamma), rtol=1e-12, atol=0)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
@pytest.mark.parametrize(
    "options",
    [
        {"rule": "squared", "optimizer": "sgd", "lr": 0.05},
        {"rule": "relative", "smoothing": 0.8},
        {"rule": "direct", "smoothing": 0.9},
    ],
    ids=["squared", "relative", "direct"],
)
def test_the_smooth_rules_arrive_at_the_fixed_point(gamma: float, options: dict) -> None:
    norm = torch.tensor([0.5, 1, 2, 1.5, 3], dtype=torch.float64)
    weighting = gradnorm(gamma=gamma, **options)
    weights = played(weighting, [signals(norm, RATIO)] * 1500)[-1]
    torch.testing.assert_close(weights, limit(norm, RATIO, gamma), rtol=1e-9, atol=0)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_the_papers_rule_comes_near_the_fixed_point_with_a_decaying_step(gamma: float) -> None:
    norm = torch.tensor([0.5, 1, 2, 1.5, 3], dtype=torch.float64)
    weighting = gradnorm(gamma=gamma, lr=0.02)
    for step in range(2500):
        weighting.lr = 0.02 / (1 + step / 100)
        weights = weighting.update(signals(norm, RATIO))
    torch.testing.assert_close(weights, limit(norm, RATIO, gamma), rtol=0.02, atol=0)


def test_the_papers_rule_chatters_within_its_step() -> None:
    norm = torch.tensor([0.5, 1, 2, 1.5, 3], dtype=torch.float64)
    weighting = gradnorm(gamma=1.0, optimizer="sgd", lr=0.001)
    tail = played(weighting, [signals(norm, RATIO)] * 2000)[-100:]
    worst = max(float((w - limit(norm, RATIO, 1.0)).abs().max()) for w in tail)
    assert 0 < worst < 20 * 0.001 * float(norm.max())


def test_only_the_floor_keeps_plain_sgd_positive_beside_a_fifty_times_louder_task() -> None:
    norm, ratio = torch.tensor([1.0, 1, 1, 1, 50]).double(), torch.ones(5).double()
    p, negative = torch.ones(5, dtype=torch.float64), 0
    for _ in range(400):
        target = targets(p, norm, ratio, 0.9)
        p = rescaled(p - 0.004 * torch.sign(p * norm - target) * norm)
        negative += int((p < 0).any())
    assert negative > 0
    weighting = gradnorm(optimizer="sgd")
    assert all((w > 0).all() for w in played(weighting, [signals(norm, ratio)] * 400))


@pytest.mark.parametrize(("rule", "lr"), [("absolute", 0.004), ("squared", 1e-4)])
def test_without_a_floor_weights_are_the_papers_even_below_zero(rule: str, lr: float) -> None:
    norm = torch.tensor([1.0, 1, 1, 1, 50]).double()
    p, lowest = torch.ones(5).double(), 1.0
    weighting = gradnorm(rule=rule, optimizer="sgd", lr=lr, floor=None)
    for _ in range(50):
        gap = p * norm - targets(p, norm, RATIO, 0.9)
        p = rescaled(p - lr * (gap.sign() if rule == "absolute" else gap) * norm)
        torch.testing.assert_close(weighting.update(signals(norm, RATIO)), p, rtol=0, atol=1e-12)
        lowest = min(lowest, float(p.min()))
    assert (lowest < 0) == (rule == "absolute")
    assert not weighting.positive


def test_without_a_floor_a_step_to_a_sum_below_zero_is_skipped() -> None:
    weighting = gradnorm(3, optimizer="sgd", lr=10.0, floor=None)
    weights = played(weighting, [signals([1, 1, 9])] * 3)[-1]
    assert weights.tolist() == [1.0, 1.0, 1.0]
    assert gradnorm(floor=None, rule="relative").positive


def test_a_floor_of_zero_keeps_weights_positive() -> None:
    weighting = gradnorm(3, optimizer="sgd", lr=10.0, floor=0)
    weights = played(weighting, [signals([1, 1, 9])] * 3)[-1]
    assert (weights > 0).all()
    assert torch.isfinite(weights).all()


@every_rule
def test_a_slow_task_gets_more_weight(rule: str) -> None:
    weighting = gradnorm(3, rule=rule)
    weights = played(weighting, [signals([1, 1, 1], [0.2, 0.5, 0.9])] * 20)[-1]
    assert weights[0] < weights[2]
    assert weights[2] > 1


@every_rule
def test_a_loud_task_gets_less_weight(rule: str) -> None:
    weights = played(gradnorm(3, rule=rule), [signals([1, 1, 9])] * 20)[-1]
    assert weights[2] < 1 < weights[0]


@every_rule
def test_a_task_without_gradient_never_gains_weight_and_is_reported(rule: str) -> None:
    weighting = gradnorm(3, rule=rule)
    for weights in played(weighting, [signals([0, 1, 20], [1, 0.5, 0.5])] * 60):
        assert weights[0] <= 1 + 1e-12
        assert weighting.frozen.tolist() == [True, False, False]
    assert weights[1] > 1 > weights[2]  # the living ones still share their part


@every_rule
def test_a_task_that_fades_is_frozen_until_its_gradient_returns(rule: str) -> None:
    weighting = gradnorm(3, rule=rule)
    lively = played(weighting, [signals([1, 1, 2])] * 10)[-1]
    for weights in played(weighting, [signals([1e-6, 1, 2])] * 30):
        torch.testing.assert_close(weights[0], lively[0], rtol=1e-12, atol=0)
        assert weighting.frozen.tolist() == [True, False, False]
    weighting.update(signals([1, 1, 2]))
    assert weighting.frozen.tolist() == [False, False, False]


@every_rule
def test_when_every_gradient_is_gone_the_weights_stay(rule: str) -> None:
    weighting = gradnorm(3, rule=rule)
    before = played(weighting, [signals([1, 1, 9])] * 5)[-1]
    after = played(weighting, [signals([0, 0, 0])] * 5)[-1]
    torch.testing.assert_close(after, before, rtol=1e-12, atol=0)


@pytest.mark.parametrize("guard", [0.0, 1e-4])
def test_a_gradient_lost_in_rounding_beside_the_loudest_is_frozen(guard: float) -> None:
    weighting = gradnorm(2, rule="direct", guard=guard)
    weighting.update(signals([1e-12, 1.0]))
    assert weighting.frozen.tolist() == [True, False]


@pytest.mark.parametrize("smoothing", [0.0, 0.95])
@pytest.mark.parametrize("factor", [1e-3, 1e-1, 10, 1e3])
def test_the_direct_rule_undoes_the_scale_of_a_loss_exactly(
    smoothing: float, factor: float
) -> None:
    def scaled(one: Signals) -> Signals:
        norm = one.grad_norm.clone()
        norm[0] *= factor  # the loss ratio does not change: the first loss is scaled as well
        return replace(one, grad_norm=norm)

    rounds = [replace(one, grad_norm=one.grad_norm.sqrt()) for one in draw(3, rounds=6)]
    rounds = [everybody(one) for one in rounds]
    plain = played(gradnorm(rule="direct", smoothing=smoothing), rounds)
    louder = played(gradnorm(rule="direct", smoothing=smoothing), map(scaled, rounds))
    for p, q in zip(plain, louder, strict=True):
        torch.testing.assert_close(factor * q[0] / q[1], p[0] / p[1], rtol=1e-9, atol=0)
        torch.testing.assert_close(q[2:] / q[1], p[2:] / p[1], rtol=1e-9, atol=0)


def test_the_direct_rule_smooths_in_log_space() -> None:
    weighting = gradnorm(2, gamma=0, rule="direct", smoothing=0.75)
    weighting.update(signals([1, 1]))
    weights = weighting.update(signals([1, 16]))
    assert float(weights[0] / weights[1]) == pytest.approx(16**0.25)


def test_a_client_that_joins_late_takes_its_own_first_round() -> None:
    weighting = gradnorm(3, gamma=0, rule="direct", smoothing=0.95)
    early = replace(signals([1, 2, 1000]), active=torch.tensor([True, True, False]))
    played(weighting, [early] * 5)
    weights = weighting.update(signals([1, 2, 1000]))
    assert float(weights[0] / weights[2]) == pytest.approx(1000, rel=1e-6)


def test_moments_of_an_absent_client_wait_for_it() -> None:
    """A client that skips rounds continues its own Adam, bias correction included."""
    alone, paired = gradnorm(2), gradnorm(3)
    both = signals([1, 3, 5])
    for _ in range(4):
        alone.update(signals([1, 3]))
        paired.update(replace(both, active=torch.tensor([True, True, False])))
    torch.testing.assert_close(paired.weight[:2], alone.weight, rtol=1e-12, atol=0)
    assert paired.rows["steps"].tolist() == [4, 4, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": -0.1}, "gamma must be >= 0, not -0.1"),
        ({"gamma": float("nan")}, "gamma must be >= 0, not nan"),
        ({"gamma": float("inf")}, "gamma must be >= 0, not inf"),
        ({"lr": -1.0}, "lr must be >= 0"),
        ({"floor": -1e-3}, "floor must be >= 0 and <= 1"),
        ({"smoothing": 1.5}, "smoothing must be >= 0 and <= 1, not 1.5"),
        ({"guard": 2.0}, "guard must be >= 0 and <= 1"),
        ({"rule": "absolut"}, "unknown GradNorm rule 'absolut'; did you mean 'absolute'?"),
        ({"optimizer": "adamm"}, "unknown GradNorm optimizer 'adamm'; did you mean 'adam'?"),
    ],
)
def test_a_setting_out_of_range_is_named(options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        GradNorm(**options)
    assert message in str(error.value)


def test_gradnorm_needs_two_numbers_of_a_client() -> None:
    make: Callable[[], GradNorm] = GradNorm
    assert [need.name for need in bound(make).needs] == ["LOSS", "NORM"]


@pytest.mark.parametrize("rule", ["absolute", "squared", "relative", "direct"])
@pytest.mark.parametrize("present", [2, 3])
def test_who_else_is_there_does_not_decide_how_loud_a_client_is(rule: str, present: int) -> None:
    # Scaled weights that are moved on would let the loud one's grow in every round it is in.
    norm, ratio = torch.tensor([40.0, 1.4, 1.5, 1.0, 1.4]), torch.tensor([0.5, 0.7, 0.8, 0.8, 0.8])
    generator = np.random.default_rng(0)
    weighting, one = gradnorm(rule=rule), signals(norm, ratio)
    goal = (one.loss_ratio**0.9 / one.grad_norm)[0] / (one.loss_ratio**0.9 / one.grad_norm)[1]
    seen = []
    for number in range(3000):
        active = torch.zeros(5, dtype=torch.bool)
        active[generator.choice(5, present, replace=False)] = True
        p = weighting.update(replace(one, active=active)).clone()
        assert float(p[active].sum()) == pytest.approx(present)
        if number > 2000 and active[0] and active[1]:
            seen.append(float(p[0] / p[1]))
    assert float(weighting.rows["level"].sum()) == pytest.approx(5)
    assert np.mean(seen) == pytest.approx(float(goal), rel=0.3)


@pytest.mark.parametrize("rule", ["absolute", "squared", "relative", "direct"])
def test_few_active_rows_of_many_move_as_they_do_among_all(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(4)
    whole, some = (GradNorm(rule=rule, warmup=1) for _ in range(2))
    names = [f"c{k}" for k in range(12)]
    for weighting in (whole, some):
        weighting.bind(names)
    for _ in range(8):
        columns = torch.rand(4, 12, generator=draw, dtype=torch.float64)
        active = torch.zeros(12, dtype=torch.bool)
        active[torch.randperm(12, generator=draw)[:5]] = True
        norm = torch.where(columns[3] < 0.2, 0, columns[3])
        signals = Signals(active, *columns[:3], norm)
        monkeypatch.setattr("fedgradnorm.weighting._base.GATHER_FROM", 1000)
        whole.update(signals)
        monkeypatch.setattr("fedgradnorm.weighting._base.GATHER_FROM", 1)
        some.update(signals)
        for key, row in whole.rows.items():
            torch.testing.assert_close(some.rows[key], row, rtol=1e-14, atol=0)
