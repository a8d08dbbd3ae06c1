"""Loss-driven weightings: their equations, and TorchJD's scalarisers wherever there is one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torchjd import scalarization

from fedgradnorm import ConfigError
from fedgradnorm._methods import METHODS
from fedgradnorm.weighting import GradNorm, Signals, Weighting
from fedgradnorm.weighting._base import onto_simplex
from fedgradnorm.weighting._loss_based import (
    AFL,
    DWA,
    FAMO,
    IMTLL,
    QFFL,
    ExcessMTL,
    GeometricMean,
    GO4Align,
    InverseFirstLoss,
    RandomWeights,
    Tchebycheff,
    Uncertainty,
)
from weighting.laws import NAMES, bound, draw, everybody, played


def losses(*rounds: list[float]) -> list[Signals]:
    """Rounds with these losses, everybody present and a first loss of 10."""
    ordinary = everybody(draw(0)[0])
    values = [torch.tensor(r, dtype=torch.float64) for r in rounds]
    return [replace(ordinary, loss=v, loss_ratio=v / 10) for v in values]


def random_losses(count: int) -> list[Signals]:
    return losses(*(everybody(s).loss.tolist() for s in draw(7, rounds=count)))


def derivative(scalarizer: scalarization.Scalarizer, loss: Tensor) -> Tensor:
    """d scalarizer / d loss, scaled to sum to the number of clients."""
    values = loss.clone().requires_grad_()
    (p,) = torch.autograd.grad(scalarizer(values), values)
    return p * len(p) / p.sum()


def test_the_geometric_mean_is_torchjds() -> None:
    (signals,) = random_losses(1)
    p = bound(GeometricMean).update(signals)
    torch.testing.assert_close(p, derivative(scalarization.GeometricMean(), signals.loss))


@pytest.mark.parametrize(
    ("make", "scalarizer"),
    [(Uncertainty, scalarization.UW), (IMTLL, scalarization.IMTLL)],
    ids=["uncertainty", "imtl-l"],
)
def test_learned_scales_are_torchjds_under_adam(make, scalarizer) -> None:
    weighting, theirs = bound(lambda: make(scale_lr=0.1)), scalarizer(5).double()
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.1)
    for signals in random_losses(20):
        optimizer.zero_grad()
        theirs(signals.loss).backward()
        optimizer.step()
        p = weighting.update(signals)
        torch.testing.assert_close(p, derivative(theirs, signals.loss), rtol=1e-9, atol=1e-12)


def test_learned_scales_end_at_one_over_the_loss() -> None:
    signals = losses([1.0, 2.0, 0.5, 4.0, 1.5])[0]
    weighting = bound(lambda: Uncertainty(scale_lr=0.05))
    last = played(weighting, [signals] * 400)[-1]
    expected = played(bound(GeometricMean), [signals])[0]
    torch.testing.assert_close(last, expected, rtol=1e-3, atol=0)


def test_famo_is_torchjds_with_the_next_rounds_loss_as_the_loss_after() -> None:
    weighting, theirs = bound(FAMO), scalarization.FAMO(5).double()
    for turn, signals in enumerate(random_losses(20)):
        if turn:
            theirs.update(signals.loss)
        p = weighting.update(signals)
        torch.testing.assert_close(p, derivative(theirs, signals.loss), rtol=1e-9, atol=1e-12)


def test_dwa_is_torchjds_with_epochs_of_three_rounds() -> None:
    weighting, theirs = bound(lambda: DWA(every=3)), scalarization.DWA()
    for turn, signals in enumerate(random_losses(15), start=1):
        signals = replace(signals, loss=signals.loss**0.1)  # rates near one, as in training
        p = weighting.update(signals)
        torch.testing.assert_close(p, derivative(theirs, signals.loss), rtol=1e-9, atol=1e-12)
        if turn % 3 == 0:
            theirs.step()


def test_the_first_loss_decides_for_ever() -> None:
    first, later = losses([1.0, 2.0, 4.0, 8.0, 16.0], [5.0, 1.0, 1.0, 1.0, 1.0])
    first = replace(first, loss_ratio=torch.ones(5).double())
    weighting = bound(InverseFirstLoss)
    p = played(weighting, [first, later])
    torch.testing.assert_close(p[0] / p[0][0], 1 / first.loss)
    assert torch.equal(p[0], p[1])


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
def test_q_ffl_is_a_power_of_the_loss(q: float) -> None:
    (signals,) = losses([1.0, 2.0, 3.0, 4.0, 5.0])
    p = bound(lambda: QFFL(q)).update(signals)
    torch.testing.assert_close(p / p[0], signals.loss**q)


def test_the_smooth_tchebycheff_weights_are_its_gradient() -> None:
    """p_i is the derivative of mu log sum_j (F_j / F_j0)^(1 / mu) with respect to F_i."""
    first = torch.tensor([1.0, 20.0, 3.0, 0.5, 7.0], dtype=torch.float64)
    (signals,) = losses([0.5, 2.0, 3.0, 0.1, 5.0])
    loss = signals.loss.double().requires_grad_()
    (0.3 * ((loss / first).log() / 0.3).logsumexp(0)).backward()
    p = bound(lambda: Tchebycheff(0.3)).update(replace(signals, loss_ratio=signals.loss / first))
    torch.testing.assert_close(p / p.sum(), loss.grad / loss.grad.sum())


def test_the_smooth_tchebycheff_lies_between_inverse_loss_and_inverse_first_loss() -> None:
    first = torch.tensor([1.0, 20.0, 3.0, 0.5, 7.0], dtype=torch.float64)
    (signals,) = losses([0.5, 2.0, 3.0, 0.1, 5.0])
    signals = replace(signals, loss_ratio=signals.loss / first)
    one, free = (bound(lambda mu=mu: Tchebycheff(mu)).update(signals) for mu in (1.0, 1e12))
    torch.testing.assert_close(one, bound(InverseFirstLoss).update(signals))
    torch.testing.assert_close(free, bound(GeometricMean).update(signals))


def test_imtl_l_weighs_as_uncertainty_weighting_does() -> None:
    """Its objective is twice the other's, with the sign of s turned: nothing that Adam sees."""
    rounds = random_losses(30)
    ours, theirs = (played(bound(METHODS[name].build), rounds) for name in ("imtl-l", "uw"))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=0)


def test_excess_mtl_is_its_algorithm_where_a_client_has_one_parameter() -> None:
    """He et al. 2024: E = g H^-1 g with H = sqrt(sum of g^2); then p_i exp(eta E_i / E_i0)."""
    rounds = [everybody(one) for one in draw(11, rounds=12)]
    squares, first = torch.zeros(5).double(), torch.zeros(5).double()
    theirs = torch.ones(5).double()
    weighting = bound(lambda: ExcessMTL(step=0.1))
    for turn, signals in enumerate(rounds):
        gradient = signals.grad_norm ** (1 / 6)
        squares += gradient**2
        excess = gradient * (1 / squares.sqrt()) * gradient
        if turn == 0:
            first = excess
        else:
            theirs = theirs * (0.1 * excess / first).exp()
            theirs = 5 * theirs / theirs.sum()
        p = weighting.update(replace(signals, grad_norm=gradient))
        torch.testing.assert_close(p, theirs, rtol=1e-9, atol=1e-12)


def test_label_noise_gains_no_weight_by_excess_mtl() -> None:
    """A loss that stays high with a gradient that vanishes has no excess risk left."""
    (signals,) = losses([9.0, 1.0, 1.0, 1.0, 1.0])
    norms = [1 / (1 + turn) for turn in range(200)]
    rounds = [replace(signals, grad_norm=torch.tensor([n, 1.0, 1.0, 1.0, 1.0])) for n in norms]
    last = played(bound(lambda: ExcessMTL(step=0.1)), rounds)[-1]
    assert last[0] < last[1]


def test_go4align_is_its_equations() -> None:
    """Shen et al. 2024, with groups found by trying all of them."""
    weighting, shares = bound(lambda: GO4Align(groups=2, beta=0.01)), torch.ones(5).double() / 5
    for signals in random_losses(20):
        shares = shares * torch.exp(-0.01 * signals.loss)
        shares = shares / shares.sum()
        indicator = shares * signals.loss.sum() / signals.loss
        found = weighting.update(signals)
        groups = [found == value for value in found.unique()]
        assert len(groups) == 2
        expected = sum(torch.where(group, indicator[group].mean(), 0) for group in groups)
        torch.testing.assert_close(found / found.sum(), expected / expected.sum())
        nearest = torch.stack([(indicator - indicator[group].mean()).abs() for group in groups])
        assert (torch.stack(groups).double().argmax(0) == nearest.argmin(0)).all()


def test_go4align_with_a_group_per_task_is_its_indicators_and_with_one_equal_weights() -> None:
    (signals,) = losses([1.0, 2.0, 4.0, 8.0, 16.0])
    alone = bound(lambda: GO4Align(groups=5, beta=0)).update(signals)
    torch.testing.assert_close(alone, bound(GeometricMean).update(signals))
    assert bound(lambda: GO4Align(groups=1)).update(signals).tolist() == pytest.approx([1.0] * 5)


def test_equal_norms_is_the_balance_of_db_mtl() -> None:
    """DB-MTL adds the gradients of log F_i, each scaled to one norm: Lin et al. 2023, section 3."""
    generator = torch.Generator().manual_seed(3)
    gradients = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    (signals,) = losses([0.5, 2.0, 3.0, 0.1, 5.0])
    of_logs = gradients / signals.loss[:, None]
    theirs = (of_logs / of_logs.norm(dim=1, keepdim=True)).sum(0)
    weighting = bound(lambda: METHODS["equal-norms"].build({"smoothing": 0.0}))
    ours = weighting.update(replace(signals, grad_norm=gradients.norm(dim=1))) @ gradients
    torch.testing.assert_close(ours / ours.norm(), theirs / theirs.norm())


def test_afl_climbs_to_the_largest_loss() -> None:
    (signals,) = losses([1.0, 2.0, 3.0, 4.0, 5.0])
    p = played(bound(lambda: AFL(loss_lr=0.01)), [signals] * 200)
    expected = 1 + 5 * 0.01 * (signals.loss - signals.loss.mean())
    torch.testing.assert_close(p[0], expected)
    assert p[-1].tolist() == [0, 0, 0, 0, 5]


def test_the_simplex_projection_is_the_nearest_point() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5, generator=generator, dtype=torch.float64)
    active = torch.tensor([True, True, False, True, True])
    nearest = onto_simplex(values, active)
    assert nearest[2] == 0
    torch.testing.assert_close(nearest.sum(), torch.tensor(1.0).double())
    others = torch.rand(4000, 5, generator=generator, dtype=torch.float64).mul(active)
    others = others / others.sum(dim=1, keepdim=True)
    distance = (others - values)[:, active].norm(dim=1)
    assert (distance >= (nearest - values)[active].norm() - 1e-12).all()


def test_random_weights_belong_to_seed_name_and_round() -> None:
    def drawn(seed: int, names: tuple[str, ...] = NAMES) -> list[Tensor]:
        weighting = RandomWeights()
        weighting.run_seed = seed
        weighting.bind(names)
        return played(weighting, random_losses(3))

    first, again, other = drawn(0), drawn(0), drawn(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


def test_random_weights_leave_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    played(bound(RandomWeights), random_losses(2))
    assert torch.equal(before, torch.get_rng_state())


def test_random_weights_are_a_softmax_of_normals() -> None:
    weighting = bound(RandomWeights)
    logs = torch.stack([p.log() for p in played(weighting, random_losses(1) * 3000)])
    apart = logs[:, 0] - logs[:, 1]  # of two independent normals: mean 0, variance 2
    assert abs(float(apart.mean())) < 0.1
    assert float(apart.var()) == pytest.approx(2, rel=0.1)


def test_warm_up_rounds_leave_the_weights_at_one() -> None:
    rounds = [everybody(s) for s in draw(3, rounds=5)]
    cold = played(bound(lambda: GradNorm(rule="direct")), rounds[3:])
    warm = played(bound(lambda: GradNorm(rule="direct", warmup=3)), rounds)
    assert all(p.tolist() == [1.0] * 5 for p in warm[:3])
    assert not torch.equal(warm[3], warm[2])
    torch.testing.assert_close(warm[3], cold[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: QFFL(-1),
        lambda: Tchebycheff(0),
        lambda: AFL(-1),
        lambda: DWA(temperature=0),
        lambda: DWA(every=0),
        lambda: Uncertainty(float("inf")),
        lambda: FAMO(decay=-1),
        lambda: ExcessMTL(-1),
        lambda: GO4Align(groups=0),
        lambda: GradNorm(warmup=-1),
    ],
)
def test_settings_out_of_range_are_named(make) -> None:
    with pytest.raises(ConfigError, match="must be"):
        make()


def test_loss_driven_weightings_see_no_gradients() -> None:
    for kind in (InverseFirstLoss, GeometricMean, QFFL, AFL, DWA, Uncertainty, IMTLL, FAMO):
        assert issubclass(kind, Weighting)
        assert [need.name for need in kind.needs] == ["LOSS"]
