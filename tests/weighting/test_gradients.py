"""Gradient-driven weightings: TorchJD's own aggregators, from nothing but the Gram matrix."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torchjd import aggregation

from fedgradnorm import ConfigError
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.server import ServerState, server_step
from fedgradnorm.weighting import Signals, Weighting
from fedgradnorm.weighting._base import draw as own_generator
from fedgradnorm.weighting._directions import ConFIG, GradDrop, TrimmedMean
from fedgradnorm.weighting._products import (
    IMTLG,
    MGDA,
    AlignedMTL,
    CAGrad,
    DualProj,
    FairGrad,
    FedCMOO,
    FedMGDA,
    GradVac,
    Krum,
    NashMTL,
    PCGrad,
    UPGrad,
    bargain,
    unit,
)
from weighting.laws import NAMES, bound, draw, everybody, played

Make = Callable[[], Weighting]

PAIRS: dict[str, tuple[Make, Callable[[], aggregation.Aggregator]]] = {
    "upgrad": (UPGrad, aggregation.UPGrad),
    "dualproj": (DualProj, aggregation.DualProj),
    "mgda": (MGDA, aggregation.MGDA),
    "pcgrad": (PCGrad, aggregation.PCGrad),
    "cagrad": (CAGrad, lambda: aggregation.CAGrad(c=0.5)),
    "imtl-g": (IMTLG, aggregation.IMTLG),
    "aligned-mtl": (AlignedMTL, aggregation.AlignedMTL),
    "fairgrad": (FairGrad, lambda: aggregation.FairGrad(alpha=1.0)),
    "gradvac": (GradVac, aggregation.GradVac),
}
"""Ours and theirs."""

EXACT = 1e-11

DIRECTIONS: dict[str, tuple[Make, Callable[[], aggregation.Aggregator], int]] = {
    "config": (ConFIG, aggregation.ConFIG, 5),
    "graddrop": (GradDrop, aggregation.GradDrop, 5),
    "trimmed-mean": (TrimmedMean, lambda: aggregation.TrimmedMean(1), 1),
}
"""Ours, theirs, and what theirs is divided by to have the size of a mean."""


def rounds(seed: int, count: int = 1) -> list[Signals]:
    """Rounds of five updates with lengths between 1/3 and 3; about half of the pairs conflict."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for ordinary in draw(seed, rounds=count):
        updates = torch.randn(5, 7, generator=generator, dtype=torch.float64)
        length = 3 ** (2 * torch.rand(5, 1, generator=generator, dtype=torch.float64) - 1)
        updates = length * updates / updates.norm(dim=1, keepdim=True)
        found.append(replace(everybody(ordinary), gram=updates @ updates.T, gradients=updates))
    return found


def of(updates: Tensor, active: Tensor | None = None) -> Signals:
    """Signals of these updates."""
    (ordinary,) = rounds(0)
    present = torch.ones(len(updates), dtype=torch.bool) if active is None else active
    return replace(ordinary, active=present, gram=updates @ updates.T, gradients=updates)


def seeded(turn: int) -> None:
    """Put torch's generator where ours is in this round of a run with seed 0."""
    torch.manual_seed(own_generator(0, turn).getrandbits(63))


@pytest.mark.filterwarnings("ignore")  # what TorchJD's solvers say when they are called bare
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", range(3))
def test_p_times_updates_points_where_torchjds_aggregator_does(name: str, seed: int) -> None:
    make, aggregator = PAIRS[name]
    weighting, theirs = bound(make), aggregator()
    for turn, drawn in enumerate(rounds(seed, 4), start=1):
        # In units in which ours solves it too: solvers stop at an absolute tolerance.
        signals = of(drawn.gradients / unit(drawn.gram) ** 0.5)
        p = weighting.update(signals)
        seeded(turn)
        expected = theirs(signals.gradients)
        ours = p @ signals.gradients
        torch.testing.assert_close(
            ours / ours.norm(), expected / expected.norm(), rtol=0, atol=EXACT
        )


@pytest.mark.parametrize("name", DIRECTIONS)
def test_directions_are_torchjds(name: str) -> None:
    make, aggregator, divisor = DIRECTIONS[name]
    weighting, theirs = bound(make), aggregator()
    for turn, signals in enumerate(rounds(1, 3), start=1):
        assert weighting.update(signals).tolist() == [1.0] * 5
        seeded(turn)
        expected = theirs(signals.gradients) / divisor
        torch.testing.assert_close(weighting.direction(signals), expected)


@pytest.mark.parametrize("name", ["graddrop", "trimmed-mean"])
@pytest.mark.parametrize("clients", [2, 5, 20])
def test_directions_over_many_parameters_are_torchjds(name: str, clients: int) -> None:
    names = [f"client {i:02d}" for i in range(clients)]
    generator = torch.Generator().manual_seed(3)
    updates = torch.randn(clients, 150_000, generator=generator)
    updates[:, ::7] = 0
    updates[0, ::3] *= 1e6  # a loud client: what is trimmed must leave no trace
    ones = torch.ones(clients)
    signals = Signals(ones > 0, ones, ones, ones, ones, gradients=updates)
    make, aggregator, _ = DIRECTIONS[name]
    weighting = bound(make, names)
    weighting.update(signals)
    found = weighting.direction(signals)
    seeded(1)
    theirs = aggregation.TrimmedMean(0) if clients == 2 and name == "trimmed-mean" else aggregator()
    divisor = clients if name == "graddrop" else 1
    torch.testing.assert_close(found, theirs(updates) / divisor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", DIRECTIONS)
def test_the_server_steps_along_a_direction(name: str) -> None:
    weighting = bound(DIRECTIONS[name][0])
    (signals,) = rounds(2)
    assert signals.gradients is not None
    reports = Reports(
        signals.active, signals.size, signals.loss, signals.loss_ratio, signals.grad_norm, (),
        updates=signals.gradients,
    )  # fmt: skip
    start = torch.zeros(7, dtype=torch.float64)
    server = ServerState(start, weighting, {"name": "sgd", "lr": 1.0})
    server_step(server, reports)
    torch.testing.assert_close(server.shared.data, -weighting.direction(signals))


@pytest.mark.parametrize("name", [*PAIRS, "krum", "fedmgda", "fedcmoo"])
def test_a_client_without_a_gradient_is_left_out_and_spoils_nothing(name: str) -> None:
    own: dict[str, Make] = {"krum": Krum, "fedmgda": FedMGDA, "fedcmoo": FedCMOO}
    make = own.get(name) or PAIRS[name][0]
    (signals,) = rounds(4)
    assert signals.gradients is not None
    updates = signals.gradients.clone()
    updates[2] = 0
    weighting = bound(make)
    p = weighting.update(of(updates))
    assert weighting.frozen.tolist() == [False, False, True, False, False]
    assert float(p[2]) == pytest.approx(1)
    others = [0, 1, 3, 4]
    without = bound(make, [NAMES[i] for i in others]).update(of(updates[others]))
    torch.testing.assert_close(p[others], without)


@pytest.mark.parametrize("make", [MGDA, Krum, CAGrad, IMTLG, GradVac], ids=lambda m: m.__name__)
def test_when_nobody_has_a_gradient_everybody_weighs_the_same(make: Make) -> None:
    assert bound(make).update(of(torch.zeros(5, 7).double())).tolist() == [1.0] * 5


@pytest.mark.parametrize("make", [PCGrad, GradVac, GradDrop], ids=lambda m: m.__name__)
def test_chance_belongs_to_the_run_and_leaves_torchs_generator_alone(make: Make) -> None:
    def run(seed: int) -> list[Tensor]:
        weighting = bound(make)
        weighting.run_seed = seed
        found = []
        for signals in rounds(5, 4):
            p = weighting.update(signals).clone()
            step = weighting.direction(signals)
            found.append(p if step is None else step)
        return found

    before = torch.get_rng_state()
    first, again, other = run(0), run(0), run(1)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_direction_resumes_with_the_next_draw() -> None:
    signals = rounds(6, 4)
    whole, stopped, resumed = bound(GradDrop), bound(GradDrop), bound(GradDrop)
    played(whole, signals)
    played(stopped, signals[:2])
    resumed.load_state_dict(stopped.state_dict())
    played(resumed, signals[2:])
    assert torch.equal(whole.direction(signals[3]), resumed.direction(signals[3]))


def test_gradvac_remembers_cosines_by_name() -> None:
    signals = rounds(7, 2)
    weighting = bound(GradVac)
    played(weighting, signals[:1])
    cosines = weighting.state_dict()["cosines"]
    weighting.bind(NAMES[:3])
    assert weighting.state_dict()["cosines"] == cosines
    assert cosines["a"]["b"] != 0


def test_nash_solves_the_bargaining_condition() -> None:
    """(G p)_i p_i is the same for all i: 1, before weights are rescaled to sum to N."""
    for signals in rounds(8, 50):
        p = bound(NashMTL).update(signals)
        products = p * (signals.gram @ p)
        torch.testing.assert_close(
            products / products.mean(), torch.ones_like(p), atol=1e-9, rtol=0
        )


@pytest.mark.filterwarnings("ignore")  # what TorchJD's solver says
def test_nash_agrees_with_torchjd_wherever_torchjd_solves_the_condition() -> None:
    solved = 0
    for signals in rounds(11, 12):
        updates = signals.gradients
        expected = aggregation.NashMTL(n_tasks=5, max_norm=0.0)(updates)
        theirs = torch.linalg.lstsq(updates.T, expected).solution
        products = theirs * (signals.gram @ theirs)
        if (products / products.mean() - 1).abs().max() < 1e-5 and (theirs > 0).all():
            ours = bound(NashMTL).update(signals) @ updates
            close = {"rtol": 0, "atol": 1e-5}
            torch.testing.assert_close(ours / ours.norm(), expected / expected.norm(), **close)
            solved += 1
    assert solved >= 6


def test_nash_cancels_opposite_gradients() -> None:
    """No finite solution exists there; the weights still balance what cancels."""
    updates = torch.tensor([[1.0, 0.0], [-4.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    p = bargain(updates @ updates.T)
    assert (p > 0).all()
    assert float(p[0] / p[1]) == pytest.approx(4.0, rel=1e-3)


@pytest.mark.parametrize(("byzantine", "selected"), [(0, 1), (1, 1), (1, 3), (2, 2)])
def test_krum_is_its_papers_score(byzantine: int, selected: int) -> None:
    """Blanchard et al. 2017: s(i), the sum of squared distances to the N - f - 2 closest others."""
    for signals in rounds(12, 20):
        updates = signals.gradients
        scores = []
        for i, mine in enumerate(updates):
            far = sorted(float((mine - other).norm()) for j, other in enumerate(updates) if j != i)
            scores.append(sum(distance**2 for distance in far[: len(updates) - byzantine - 2]))
        best = sorted(range(5), key=scores.__getitem__)[:selected]
        p = bound(lambda: Krum(byzantine=byzantine, selected=selected)).update(signals)
        assert p.tolist() == pytest.approx([5 / selected * (i in best) for i in range(5)])


def test_krum_squares_distances() -> None:
    """The middle of 11, 12, 13 has squares 1 + 1; that of 1, 1.1, 2.85 the smaller distances."""
    updates = torch.tensor([[1.0], [1.1], [2.85], [11.0], [12.0], [13.0]], dtype=torch.float64)
    ones = torch.ones(6, dtype=torch.float64)
    signals = Signals(ones > 0, ones, ones, ones, ones, gram=updates @ updates.T)
    p = bound(lambda: Krum(byzantine=2), list("abcdef")).update(signals)
    assert p.tolist() == [0, 0, 0, 0, 6, 0]


def test_few_clients_are_enough_for_krum_and_the_trimmed_mean() -> None:
    updates = torch.eye(5, 7).double()
    two = torch.tensor([True, True, False, False, False])
    assert bound(lambda: Krum(byzantine=3)).update(of(updates, two))[two].tolist() == [1, 1]
    weighting = bound(lambda: TrimmedMean(trim=2))
    weighting.update(of(updates, two))
    torch.testing.assert_close(weighting.direction(of(updates, two)), updates[:2].mean(dim=0))


def test_fedmgda_is_mgda_on_unit_updates_and_bounded_by_its_box() -> None:
    (signals,) = rounds(9)
    assert signals.gradients is not None
    units = signals.gradients / signals.gradients.norm(dim=1, keepdim=True)
    free = bound(lambda: FedMGDA(box=1)).update(of(units))
    exact = aggregation.MGDA(epsilon=1e-9, max_iters=20000)(units)
    torch.testing.assert_close(free @ units / 5, exact, rtol=0, atol=2e-3)
    boxed = bound(lambda: FedMGDA(box=0.1)).update(of(units)) / 5
    assert (boxed - 0.2).abs().max() <= 0.1 + 1e-12
    assert (boxed @ units).norm() >= (free @ units / 5).norm() - 1e-9
    mean = bound(lambda: FedMGDA(box=0)).update(signals) @ signals.gradients
    torch.testing.assert_close(mean / mean.norm(), units.sum(0) / units.sum(0).norm())


def test_fedcmoo_goes_where_mgda_is() -> None:
    (signals,) = rounds(10)
    assert signals.gradients is not None
    units = signals.gradients / signals.gradients.norm(dim=1, keepdim=True)
    last = played(bound(lambda: FedCMOO(mixture_lr=0.02)), [of(units)] * 15)[-1]
    shortest = bound(lambda: FedMGDA(box=1)).update(of(units))
    torch.testing.assert_close(last, shortest, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [lambda: FedMGDA(2), lambda: FedCMOO(mixture_lr=0), lambda: FedCMOO(steps=0),
     lambda: FairGrad(-1), lambda: CAGrad(-1), lambda: MGDA(max_iters=0), lambda: GradVac(2),
     lambda: TrimmedMean(-1), lambda: Krum(byzantine=-1)],
)  # fmt: skip
def test_settings_out_of_range_are_named(make: Make) -> None:
    with pytest.raises(ConfigError):
        make()


def test_without_torchjd_the_error_says_what_to_install() -> None:
    code = (
        "import sys\n"
        "import fedgradnorm as fgn\n"
        "assert not {'torchjd', 'cvxpy', 'qpsolvers'} & set(sys.modules)\n"
        "sys.modules['torchjd'] = None\n"
        "try:\n"
        "    fgn.methods()['mgda'].build()\n"
        "except fgn.ConfigError as error:\n"
        "    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'fedgradnorm[methods]'" in said.stdout


def test_what_a_missing_solver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchjd._mixins.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"fedgradnorm\[methods\]"):
        CAGrad()
