"""A private client's round: its sums are clipped, its noise is what the account says."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._engines import Engine
from fedgradnorm._federation.federation import Federation
from fedgradnorm._privacy.noise import Noise
from fedgradnorm._privacy.per_example import RowGradients, check_rows, named, row_loss
from fedgradnorm._round.private.private_plan import expected_rounds, plan_of, planned
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.settings import Settings
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.weighting._loss_based import QFFL
from privacy.private_clients import INPUTS, ROWS, network, plain, private, rows, train

pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

CLIP = 0.5


def engine_of(client: fgn.Client, seed: int = 0, **settings: Any) -> Engine:
    """A loop for one client, with everything that the trainer would give it."""
    given = {
        "rounds": 5,
        "batch_size": 20,
        "norm_layer": "0.weight",
        "executor": "loop",
        **settings,
    }
    how = Settings(**given, seed=seed)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        head = nn.Linear(5, client.task.outputs).double()
    (client,) = planned([replace(client, head=head)], how)
    engine = Federation(network(), [client], fgn.Equal(), how, toys.CPU).engine
    assert isinstance(engine, Engine)
    if client.privacy is not None:
        plan = plan_of(client, how.local(), how.batch_size)
        engine.set_noise(client.name, plan.noise(client.privacy))
    return engine


def report_of(engine: Engine, round_number: int) -> Reports:
    """A round from the engine's first state; it leaves no trace."""
    before = {name: engine.client_state(name) for name in engine.names}
    reports = engine.run_clients(start_of(), round_number, engine.names)
    for name, row in before.items():
        engine.load_client(name, row)
    return reports


def start_of() -> torch.Tensor:
    """The network that rounds begin with."""
    return toys.parameters(network())


def plain_sum(client: fgn.Client, clip: float) -> tuple[torch.Tensor, list[float]]:
    """Clipped gradients of all rows of the shared network, one backward pass a row."""
    engine = engine_of(client)
    net, head = FlatNetwork(network()), engine.exported(client.name).head
    total, lengths = torch.zeros_like(net.vector), []
    for x, y in zip(*(torch.as_tensor(part).split(1) for part in client.train), strict=True):
        loss = client.task.loss(head(net.module(x)), y)
        found = torch.autograd.grad(loss, list(net.module.parameters()))
        gradient = torch.cat([part.flatten() for part in found])
        length = float(gradient.norm())
        lengths.append(length)
        total += gradient * min(1.0, clip / length)
    return total, lengths


@pytest.mark.parametrize("mapped", [True, False])
def test_a_sum_holds_every_row_clipped(mapped: bool) -> None:
    client = private()
    expected, lengths = plain_sum(client, CLIP)
    assert min(lengths) < CLIP < max(lengths)  # both kinds of rows are there
    engine = engine_of(client)
    net, head = FlatNetwork(network()), engine.exported("a").head
    sums = RowGradients(row_loss(client.task, net.module, head), mapped).clipped(
        named(net.module, "network"), *map(torch.as_tensor, client.train), CLIP, 1e9
    )
    torch.testing.assert_close(sums.gradient, expected, rtol=1e-12, atol=1e-12)
    whole = client.task.loss(head(net.module(client.train[0])), client.train[1])
    assert sums.loss == pytest.approx(ROWS * float(whole.detach()))


@pytest.mark.parametrize("mapped", [True, False])
def test_a_row_without_a_finite_gradient_counts_as_nothing(mapped: bool) -> None:
    """No row can make a round fail, which others would see."""
    x, y = rows()
    x[3] = float("inf")
    net, head, task = network(), nn.Linear(5, 2).double(), fgn.classification(2)
    gradients = RowGradients(row_loss(task, net, head), mapped)
    parameters = named(net, "network")
    found = gradients.clipped(parameters, x, y, CLIP, 7.0)
    others = torch.arange(ROWS) != 3
    left = gradients.clipped(parameters, x[others], y[others], CLIP, 7.0)
    torch.testing.assert_close(found.gradient, left.gradient)
    assert found.loss == pytest.approx(left.loss + 7.0)


@pytest.fixture(scope="module")
def many() -> tuple[Callable[[int], np.ndarray], Engine, Engine]:
    """Updates of many rounds for a client, and for one with a row less, on all rows."""
    terms = {"clip": CLIP, "noise_multiplier": 1.0, "epsilon": 20.0, "loss_share": 0.0}
    settings = {"batch_size": None, "head_steps": 0}
    x, y = rows()
    less = fgn.Client(
        "a", fgn.classification(2), train=(x[1:], y[1:]),
        privacy=fgn.Privacy(delta=1e-5, **terms),
    )  # fmt: skip
    one, other = engine_of(private(**terms), **settings), engine_of(less, **settings)
    return (
        lambda which: np.stack(
            [report_of((one, other)[which], k).gradients()[0].clone() for k in range(200)]
        ),
        one,
        other,
    )


def test_one_row_moves_the_update_by_at_most_the_clip_and_the_noise_is_as_said(
    many: tuple[Callable[[int], np.ndarray], Engine, Engine],
) -> None:
    """The distribution over seeds: with and without a row its mean moves by no more than C / b."""
    draw, one, _ = many
    with_row, without = draw(0) * ROWS, draw(1) * (ROWS - 1)  # sums: each has its own batch size
    expected, _ = plain_sum(private(), CLIP)
    deviation = one.private["a"].gradient_noise(0) * CLIP
    assert one.private["a"].gradient_noise(0) == 1.0
    count, size = with_row.shape
    error = deviation * math.sqrt(size / count)  # of a mean's length
    shift = np.linalg.norm(with_row.mean(axis=0) - without.mean(axis=0))
    assert shift <= CLIP + 3 * math.sqrt(2) * error
    assert np.linalg.norm(with_row.mean(axis=0) - expected.numpy()) < 2 * error
    centred = with_row - with_row.mean(axis=0)
    # The noise is fresh in every test, so bounds are six standard errors of 5,000 draws: 1%, .07.
    assert centred.std() == pytest.approx(deviation, rel=0.06)
    assert abs((centred**4).mean() / centred.var() ** 2 - 3) < 0.42  # as of a normal one


@pytest.mark.parametrize("phases", ["alternating", "joint"])
@pytest.mark.parametrize("steps", [(1, 1), (3, 1), (0, 2)])
def test_everything_taken_from_a_batch_costs_one_step(phases: str, steps: tuple[int, int]) -> None:
    head, shared = steps
    engine = engine_of(private(), phases=phases, head_steps=head, shared_steps=shared)
    one = engine.private["a"]
    for step in range(one.how.steps):
        parts = [1 / one.gradient_noise(step) ** 2] * one.uses(step)
        parts += [1 / one.loss_noise**2] if step < shared else []
        assert sum(parts) == pytest.approx(1 / one.noise**2)
        assert one.uses(step) == (1 if phases == "joint" else (step < head) + (step < shared))
    assert plan_of(one.client, one.how, 20).steps == one.how.steps


@pytest.mark.parametrize("together", [True, False])
def test_without_noise_and_bounds_a_round_is_that_of_any_client(together: bool) -> None:
    """All rows, a clip that never binds and no noise: the plain client's numbers."""
    phases = "joint" if together else "alternating"
    settings = {"batch_size": None, "phases": phases, "shared_steps": 2, "sends": "delta"}
    huge = {"clip": 1e4, "loss_clip": 1e4, "noise_multiplier": 5.0, "norm": "noised"}
    engine = engine_of(private(**huge), **settings)
    engine.private["a"]._source = Silent()
    told = report_of(engine, 0)
    free = engine_of(replace(private(), privacy=None), **settings)
    reports = free.run_clients(start_of(), 0, ["a"])
    torch.testing.assert_close(told.gradients(), reports.gradients(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(told.loss, reports.loss, rtol=1e-9, atol=0)
    torch.testing.assert_close(told.grad_norm, reports.grad_norm, rtol=1e-9, atol=0)


class Silent(Noise):
    """Takes every example and adds nothing."""

    def noised(self, values: Any, *_: object) -> Any:
        return values


def test_the_norm_is_corrected_for_the_length_of_the_noise() -> None:
    one = engine_of(private(norm="corrected")).private["a"]
    variance = (one.gradient_noise(0) * one.terms.clip / one.batch) ** 2
    generator = torch.Generator().manual_seed(0)
    signal = torch.full((400,), 0.5, dtype=torch.float64)
    noisy = signal + math.sqrt(variance) * torch.randn(400, generator=generator).double()
    raw = float(noisy.norm())
    said = one.norm_of(raw, 400)
    assert abs(said - 10.0) < 0.5 * abs(raw - 10.0)
    nothing = one.norm_of(0.0, 400)
    assert nothing == pytest.approx(math.sqrt(variance * math.sqrt(800)))  # can be told from none


def test_a_loss_that_is_not_told_has_ratio_one() -> None:
    told = report_of(engine_of(private(loss_share=0.0)), 0)
    assert (float(told.loss), float(told.loss_ratio)) == (1.0, 1.0)
    engine = engine_of(private(noise_multiplier=0.5, epsilon=99.0, large_epsilon=True))
    ratios = [float(report_of(engine, k).loss_ratio) for k in range(5)]
    assert len(set(ratios)) == 5
    assert all(0 <= ratio <= 20 for ratio in ratios)


def test_examples_come_into_a_batch_one_by_one_and_one_batch_serves_a_whole_step() -> None:
    noise, taken = Noise(), np.zeros((2000, 50))
    for row in taken:
        row[noise.chosen(50, 0.2)] = 1
    assert taken.mean() == pytest.approx(0.2, abs=0.0075)
    assert taken.sum(axis=1).var() == pytest.approx(50 * 0.2 * 0.8, rel=0.2)  # binomial sizes
    normal = noise.normal(20001)
    assert (normal.mean(), normal.std()) == (pytest.approx(0, abs=0.04), pytest.approx(1, abs=0.03))
    engine = engine_of(private())
    (group,) = engine.table.group(["a"])
    gradients = engine._noisy(group, 0, 0)
    assert all(torch.equal(gradients._batch(k)[0], gradients._batch(k)[0]) for k in range(3))


def test_epsilon_is_in_the_history_and_the_federation_goes_on_without_who_has_spent_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "fedgradnorm"):
        run = train([private(rounds=3, noise_multiplier=None), plain()])
    table = run.history
    own = table[(table["client"] == "a") & (table["split"] == "batch")]
    assert list(own["round"]) == [1, 2, 3]
    assert list(own["epsilon"]) == sorted(own["epsilon"])
    assert 2.9 < own["epsilon"].iloc[-1] <= 3.0
    other = table[table["client"] == "b"]
    assert other[other["split"] == "batch"]["round"].tolist() == list(range(1, 7))
    assert other["epsilon"].isna().all()
    said = [r.message for r in caplog.records if "no longer participates" in r.message]
    assert len(said) == 1
    assert said[0].startswith("round 3: 'a' no longer participates, its privacy budget (epsilon 3")
    assert run.manifest["clients"]["a"]["privacy"]["rounds"] == 3


def test_a_run_without_private_clients_has_no_such_column() -> None:
    assert "epsilon" not in train([plain(), plain("c")], rounds=1).history.columns


def interrupted(folder: Path, **terms: Any) -> dict[str, Any]:
    """A run that was stopped after three of its five rounds; its settings."""
    settings = {"checkpoint_every": 1, "eval_every": 2, "rounds": 5, "keep": "last"}

    def stop(progress: Any) -> None:
        if progress.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(fgn.Interrupted):
        train([private(**terms), plain()], folder=folder, progress=stop, **settings)
    return settings


def test_a_seeded_run_resumes_bit_for_bit_and_is_called_not_private(tmp_path: Path) -> None:
    terms = {"rounds": 4, "noise": "seeded"}
    settings = interrupted(tmp_path / "run", **terms)
    whole = train([private(**terms), plain()], folder=tmp_path / "whole", **settings)
    rest = train([private(**terms), plain()], folder=tmp_path / "run", resume=True, **settings)
    files = [(tmp_path / name / "metrics.csv").read_bytes() for name in ("whole", "run")]
    assert files[0] == files[1]
    assert torch.equal(whole.predict("a", rows()[0]), rest.predict("a", rows()[0]))
    other = [private(**terms, epsilon=4.0), plain()]
    with pytest.raises(fgn.RunFolderError, match=r"privacy\.epsilon = 3\.0 there, 4\.0 here"):
        train(other, folder=tmp_path / "run", resume=True, **settings)
    loaded = fgn.load(tmp_path / "run")
    assert "epsilon" not in loaded.history
    assert loaded.history["epsilon: not private (seeded noise)"].max() > 0
    assert loaded.manifest["clients"]["a"]["privacy"]["promise"] == "not private (seeded noise)"


def test_a_fresh_run_resumes_only_with_a_ledger_which_counts_repeated_rounds(
    tmp_path: Path,
) -> None:
    settings = interrupted(tmp_path / "run")
    with pytest.raises(fgn.ConfigError, match=r"cannot be resumed.*privacy\.ledger"):
        train([private(), plain()], folder=tmp_path / "run", resume=True, **settings)
    terms = {"ledger": str(tmp_path), "rounds": 4, "noise_multiplier": None}
    settings = interrupted(tmp_path / "kept", **terms)
    before = (tmp_path / "a.jsonl").read_text().splitlines()
    run = train([private(**terms), plain()], folder=tmp_path / "kept", resume=True, **settings)
    charges = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(before) == 4  # a header and three rounds
    assert charges[-1]["epsilon"] == run.history["epsilon"].max() <= 3.0
    assert len({charge["releases"][-1][0] for charge in charges[1:]}) == 1  # the noise stays


def test_runs_on_the_same_data_share_a_ledger(tmp_path: Path) -> None:
    terms = {"ledger": str(tmp_path), "noise_multiplier": 6.0}
    first, second = (train([private(**terms), plain()], rounds=2) for _ in range(2))
    assert first.history["epsilon"].max() == second.history["epsilon"].min()
    assert second.history["epsilon"].max() <= 3.0
    alone = train([private(noise_multiplier=6.0), plain()], rounds=2)
    assert alone.history["epsilon"].max() == first.history["epsilon"].max()
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(fgn.ConfigError, match="counts as spent; use data that were never used"):
        train([private(**terms), plain()], rounds=2)


def test_rounds_are_planned_for_those_a_client_is_likely_in() -> None:
    assert expected_rounds(Settings(), 100) == 100
    assert expected_rounds(Settings(participation=["a"]), 100) == 100
    assert expected_rounds(Settings(participation=0.1), 1000) == 119  # 100 + 2 sqrt(90)
    (client,) = planned([private()], Settings(epochs=2, batch_size=20))
    assert client.privacy is not None
    assert client.privacy.rounds == 2 * ROWS // 20


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"personalize": {"steps": 3}}, "personalize"),
        ({"final_head_steps": 2}, "final_head_steps"),
        ({"shared": ["!1*"]}, "shared"),
        ({"clip": 1.0}, "clips every example"),
        ({"head_schedule": "CosineAnnealingLR"}, "head_schedule"),
        ({"ditto": 0.1}, "ditto"),
        ({"head_init": "targets"}, "head_init"),
        ({"executor": "joint"}, "clips the gradient of every example"),
        ({"keep": "best"}, "chooses a round on held-out examples"),
        ({"patience": 3}, "ends the run by held-out examples"),
    ],
)
def test_what_would_tell_something_outside_the_account_is_refused(
    settings: dict[str, Any], words: str
) -> None:
    clients = [replace(client, validation=client.train) for client in (private(), plain())]
    with pytest.raises(fgn.ConfigError, match=words):
        train(clients, **settings)


def test_under_vmap_private_clients_take_turns_and_the_others_do_not() -> None:
    clients = [private(noise="seeded"), plain(), private("c", noise="seeded"), plain("d")]
    runs = [train(clients, executor=executor, shared_steps=2) for executor in ("vmap", "loop")]
    vectors = [toys.parameters(run.network) for run in runs]
    torch.testing.assert_close(*vectors, rtol=0, atol=1e-10)
    numbers = [run.history.select_dtypes("number").to_numpy(float) for run in runs]
    np.testing.assert_allclose(*numbers, rtol=1e-9, atol=1e-10)


def test_a_custom_loss_sees_one_example_at_a_time() -> None:
    """One that makes each loss of all examples would let one example move the sum by all bounds."""

    def joined(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).square().sum().expand(len(output))

    x, _ = rows()
    y = torch.zeros_like(x[:, :1])
    y[0] = 1e6
    terms = fgn.Privacy(3.0, 1e-5, noise_multiplier=2.0, loss_clip=100.0)
    client = fgn.Client("a", fgn.regression(1, loss=joined), train=(x, y), privacy=terms)
    engine = engine_of(client)
    (group,) = engine.table.group(["a"])
    with_canary, without = (engine._noisy(group, 0, 0)._losses(*part) for part in (
        (x, y), (x[1:], y[1:])
    ))  # fmt: skip
    assert with_canary - without == pytest.approx(100.0)


def test_losses_that_nobody_reports_are_refused() -> None:
    with pytest.raises(fgn.ConfigError, match="loss_share = 0"):
        fgn.train(network(), [private(loss_share=0.0)], weighting=QFFL(), rounds=1)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"delta": 2}, "delta"),
        ({"clip": -1}, "clip"),
        ({"noise_multiplier": 0}, "noise_multiplier"),
        ({"noise": "mine"}, "noise"),
        ({"rounds": 0}, "rounds"),
        ({"loss_share": 1}, "loss_share"),
        ({"norm": "none"}, "norm"),
        ({"ledger": ""}, "ledger"),
        ({"epsilon": 21}, "large_epsilon"),
        ({"delta": 0.02}, "one over the number of training examples"),
        ({"epsilon": 0.001}, "single round"),
    ],
)
def test_terms_out_of_range_are_refused(terms: dict[str, Any], words: str) -> None:
    with pytest.raises(fgn.ConfigError, match=words):
        train([private(**terms)], rounds=1)


def test_a_layer_that_mixes_rows_is_refused_by_name() -> None:
    mixing = nn.Sequential(nn.Linear(INPUTS, 5), nn.BatchNorm1d(5)).double()
    with pytest.raises(fgn.ConfigError, match=r"client 'a'.*BatchNorm1d \(network '1'\)"):
        fgn.train(mixing, [private()], rounds=1)


class Counting(nn.Module):
    """A layer that remembers what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1).double())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.sum()
        return x


class Branching(nn.Module):
    """A layer that cannot be mapped: what it does with a row depends on a number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([row if float(row.sum().detach()) > 0 else 2 * row for row in x])


def test_a_layer_that_remembers_rows_is_refused_and_one_that_cannot_be_mapped_takes_turns() -> None:
    task, (x, y) = fgn.classification(2), rows()
    head = nn.Linear(INPUTS, 2).double()
    with pytest.raises(fgn.ConfigError, match="buffer 'seen'"):
        check_rows(task, Counting(), head, x[:2], y[:2])
    assert check_rows(task, nn.Tanh(), head, x[:2], y[:2])
    assert not check_rows(task, Branching(), head, x[:2], y[:2])
    branching = nn.Sequential(nn.Linear(INPUTS, 5), Branching()).double()
    run = flat.train(branching, [private()], rounds=2, batch_size=20)
    assert np.isfinite(run.history["loss"]).all()


@pytest.mark.parametrize("share", ["all", "none"])
def test_private_clients_share_heads_or_nothing_and_take_part_now_and_then(share: str) -> None:
    clients = [private(), private("c"), plain()]
    shared = {"heads": "task", "participation": 0.7} if share == "all" else {}
    task = fgn.classification(2, name="sign")
    clients = [replace(c, task=task) if c.privacy else c for c in clients]
    run = train(clients, share=share, keep="last", **shared)
    assert run.history["epsilon"].max() <= 3.0
    assert np.isfinite(run.history["loss"]).all()


def test_a_client_with_several_tasks_makes_no_promise() -> None:
    x, y = rows()
    tasks = {"sign": fgn.classification(2), "first": fgn.regression(1)}
    targets = {"sign": y, "first": x[:, :1]}
    with pytest.raises(fgn.ConfigError, match="several"):
        fgn.Client("a", tasks=tasks, train=(x, targets), privacy=fgn.Privacy(3.0, 1e-5))
    both = fgn.Client("a", tasks=tasks, train=(x, targets))
    with pytest.raises(fgn.ConfigError, match="several tasks"):
        flat.train(network(), [both], weighting=fgn.Equal(), privacy={"epsilon": 1, "delta": 1e-3})


def test_rows_without_a_label_are_no_part_of_the_sums() -> None:
    x, y = rows()
    gaps = y.double()
    gaps[: ROWS // 2] = float("nan")
    terms = fgn.Privacy(3.0, 1e-5, noise_multiplier=2.0)
    client = fgn.Client("a", fgn.classification(2), train=(x, gaps), privacy=terms)
    one = engine_of(client).private["a"]
    assert len(one.data[0]) == ROWS // 2
    assert one.rate == 20 / (ROWS // 2)
    assert train([client]).history["epsilon"].max() > 0
