"""Divergence is called by its name: the client, how far, and the rate to lower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._round.settings import Settings
from fedgradnorm._training.monitor import rates

STEEP = {"head_optimizer": "sgd", "server_optimizer": "sgd", "eval_every": 0, "batch_size": 8}


def diverging(rounds: int, folder: Path | None = None, **more: Any) -> fgn.Run:
    """A regression whose steps are far too long, next to a task that is merely shaken."""
    network = torch.nn.Linear(toys.FEATURES, 4).double()
    how = {"lr": 1.5, "rounds": rounds, "folder": folder, **STEEP, **more}
    return flat.train(network, [toys.client("place")], **how)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "diverges" in r.getMessage()]


def test_a_loss_ten_thousand_times_the_first_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = diverging(3)
    ratios = run.history.loss_ratio.dropna()
    assert ratios.iloc[-1] > 1e4
    first = run.history[run.history.loss_ratio > 1e4].iloc[0]
    (line,) = warnings(caplog)
    assert line == (
        f"round {first['round']:.0f}: client 'place' diverges: its loss is {first.loss_ratio:.2g} "
        "times its first one; lower lr (now 1.5)"
    )


def test_a_task_that_begins_solved_does_not_diverge(caplog: pytest.LogCaptureFixture) -> None:
    network, head = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    for layer in (network, head):
        torch.nn.init.ones_(layer.weight)
    x = torch.eye(2)
    solved = fgn.Client("solved", fgn.regression(1), train=(x, x.sum(1)), head=head)
    other = fgn.Client("other", fgn.regression(1), train=(x, -3 * x.sum(1)))
    run = fgn.train(network, [solved, other], rounds=2, lr=0.1)
    assert run.history.query("client == 'solved'").loss_ratio.max() > 1e4
    assert warnings(caplog) == []


def test_when_nobody_is_finite_the_error_says_divergence_client_and_rate() -> None:
    with pytest.raises(
        fgn.TrainingError, match=r"diverges: .* \(place\); lower lr \(now 1.5\)"
    ) as error:
        diverging(500)
    assert "\n" not in str(error.value)


def test_a_resumed_run_does_not_warn_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(event: Any) -> None:
        if event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(fgn.Interrupted):
        diverging(3, tmp_path / "run", progress=stop)
    diverging(3, tmp_path / "run", resume=True)
    assert len(warnings(caplog)) == 1


def test_sound_training_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    fgn.train(toys.network(), toys.clients(), rounds=20, lr=0.01)
    assert not warnings(caplog)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 0.5}, "lr (now 0.5)"),
        (
            {"lr": 0.5, "server_optimizer": {"name": "sgd", "lr": 1.0}},
            "lr of head_optimizer (now 0.5), server_optimizer (now 1)",
        ),
        (
            {"shared_steps": 3, "lr": 0.5, "local_optimizer": {"name": "sgd", "lr": 2.0}},
            "lr of head_optimizer (now 0.5), server_optimizer (now 0.5), local_optimizer (now 2)",
        ),
    ],
)
def test_the_rates_named_are_those_that_step(options: dict[str, Any], words: str) -> None:
    assert rates(Settings(**options)) == words


def drawn_of_four(bad: float, rounds: int, **more: Any) -> fgn.Run:
    """Two of four clients per round; an example above ``bad`` has an infinite loss."""

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        found = (output - target).square().mean(dim=1)
        return torch.where(target.abs().amax(dim=1) > bad, torch.inf, found)

    clients = []
    for k in range(4):
        x = torch.randn(20 + k, 6, generator=torch.Generator().manual_seed(k)).double()
        clients.append(fgn.Client(f"c{k}", fgn.regression(2, loss=loss), (x, x[:, :2].clone())))
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh()).double()
    how = {"participation": 0.5, "batch_size": 8, "eval_every": 0, "device": "cpu", "lr": 0.01}
    return flat.train(network, clients, rounds=rounds, weighting=fgn.Equal(), **how, **more)


def test_a_round_in_which_all_who_were_drawn_fail_does_not_end_the_run(tmp_path: Path) -> None:
    run = drawn_of_four(1.9, 12)
    rows = run.history[run.history.split == "batch"]
    alive = rows.groupby("round").active.sum()
    lost = alive.index[alive == 0][0]
    assert alive[alive.index > lost].sum() > 0

    def start(**more: Any) -> fgn.Run:
        return drawn_of_four(1.9, 12, checkpoint_every=1, **more)

    toys.interrupted(start, at=int(lost), folder=tmp_path / "run")
    assert start(folder=tmp_path / "run", resume=True).table.text() == run.table.text()


def test_nobody_who_is_drawn_for_ten_rounds_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(fgn.TrainingError, match=r"round 10: .*, 10 rounds in a row; lower lr"):
        drawn_of_four(0.0, 40)
    toys.interrupted(
        lambda **more: drawn_of_four(0.0, 40, checkpoint_every=1, **more),
        at=6,
        folder=tmp_path / "run",
    )
    with pytest.raises(fgn.TrainingError, match="round 10: "):
        drawn_of_four(0.0, 40, checkpoint_every=1, folder=tmp_path / "run", resume=True)
