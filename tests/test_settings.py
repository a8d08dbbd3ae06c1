"""The settings of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch

import fedgradnorm as fgn
from fedgradnorm import _optimizers
from fedgradnorm._round.settings import Settings, completed


def test_settings_that_a_manifest_lacks_have_their_defaults() -> None:
    assert completed({"lr": 0.5, "seed": 7}) == asdict(Settings(lr=0.5, seed=7))
    assert completed(asdict(Settings())) == asdict(Settings())


def test_defaults() -> None:
    settings = Settings()
    local = settings.local()
    assert (settings.lr, settings.server_optimizer) == (1e-3, "adam")
    assert local.head_optimizer == {"name": "adam", "lr": 1e-3}
    assert local.local_optimizer == {"name": "sgd", "lr": 1e-3}
    assert (settings.head_steps, settings.shared_steps, settings.step_with) == (1, 1, "new")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number >= 1, not 0"),
        ({"rounds": 1.5}, "rounds must be a whole number"),
        ({"batch_size": -1}, "batch_size must be a whole number >= 1"),
        ({"head_steps": -1}, "head_steps must be a whole number >= 0"),
        ({"shared_steps": 0}, "shared_steps must be a whole number >= 1"),
        ({"shared_steps": True}, "shared_steps must be a whole number"),
        ({"eval_every": -1}, "evaluation.every must be a whole number >= 0"),
        ({"checkpoint_every": 0}, "checkpoints.every must be a whole number >= 1"),
        ({"keep": "bets"}, "unknown keep_best.per_client 'bets'; did you mean 'best'?"),
        ({"patience": 0, "keep": "best"}, "patience must be a whole number >= 1, not 0"),
        ({"watch": "accuracy"}, "watch and min_rounds belong to early stopping"),
        ({"patience": 1, "min_rounds": -1}, "early_stopping.min_rounds must be a whole number"),
        ({"patience": 1, "watch": 3}, "early_stopping.watch must be 'loss' or the name of a"),
        ({"patience": 1, "eval_clients": 3}, "early_stopping compares evaluations of the same"),
        ({"epochs": 0}, "epochs must be > 0"),
        ({"epochs": float("inf")}, "epochs must be > 0"),
        ({"epochs": float("nan")}, "epochs must be > 0"),
        ({"epochs": 1, "rounds": 1}, "rounds or epochs, not both"),
        ({"participation": 0}, "participation must be in (0, 1], not 0"),
        ({"participation": 1.1}, "participation must be in (0, 1]"),
        ({"phases": "alternate"}, "did you mean 'alternating'?"),
        ({"first_loss": "data"}, "unknown local.first_loss 'data'; did you mean 'dataset'?"),
        ({"sends": "grad"}, "did you mean 'gradient'?"),
        ({"report_loss": "befor"}, "did you mean 'before'?"),
        ({"aggregate": "size"}, "did you mean 'by_size'?"),
        ({"step_with": "newest"}, "did you mean 'new'?"),
        ({"weight_per": "tasks"}, "did you mean 'task'?"),
        ({"share": "some"}, "unknown sharing.share 'some'"),
        ({"executor": "lop"}, "did you mean 'loop'?"),
    ],
)
def test_a_bad_setting_is_named_with_its_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fgn.ConfigError) as error:
        Settings(**options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0}, "lr must be > 0, not 0"),
        ({"head_optimizer": "adm"}, "unknown optimizer 'adm'; did you mean 'adam'?"),
        ({"head_optimizer": {"name": "sgd", "lr": -1}}, "must be > 0, not -1"),
        ({"local_optimizer": {"name": "sgd", "momentun": 0.9}}, "momentun"),
        ({"head_optimizer": "lbfgs"}, "unknown optimizer 'lbfgs'"),  # it needs a closure
        ({"head_optimizer": "sparseadam"}, "unknown optimizer 'sparseadam'"),
    ],
)
def test_a_bad_optimizer_is_named_with_its_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fgn.ConfigError) as error:
        Settings(**options).local()
    assert message in str(error.value)


def test_an_epoch_is_a_pass_over_the_largest_client() -> None:
    sizes = [500, 3000, 10]
    assert Settings(batch_size=100).rounds_per_epoch(sizes) == 30
    assert Settings(batch_size=100, shared_steps=3, head_steps=5).rounds_per_epoch(sizes) == 6
    assert Settings(batch_size=None).rounds_per_epoch(sizes) == 1
    assert Settings(batch_size=99999).rounds_per_epoch(sizes) == 1
    assert Settings(batch_size=100, epochs=2).total_rounds(sizes) == 60
    assert Settings(batch_size=100, epochs=0.01).total_rounds(sizes) == 1
    assert Settings(batch_size=64, epochs=100).total_rounds([2048]) == 3200
    assert Settings(batch_size=100).total_rounds(sizes) == 300  # ten epochs
    assert Settings(rounds=7).total_rounds(sizes) == 7


def test_settings_are_resolved_as_often_for_many_clients_as_for_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each time tries the optimizers, which would take longer than all else of a crowd's set-up."""
    resolve, calls = _optimizers.resolve, list[int]()

    def counted(*given: Any) -> dict[str, Any]:
        calls[-1] += 1
        return resolve(*given)

    monkeypatch.setattr(_optimizers, "resolve", counted)
    x = torch.randn(8, 3)
    for number in (2, 9):
        calls.append(0)
        clients = [
            fgn.Client(f"c{i}", fgn.regression(1), train=(x, x[:, :1])) for i in range(number)
        ]
        fgn.train(torch.nn.Linear(3, 4), clients, rounds=1)
    assert calls[0] == calls[1]
