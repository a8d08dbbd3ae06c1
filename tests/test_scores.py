"""Loss and metrics of many clients: answers wait for each other, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import toys
from alone_clients import clients, conv, half_frozen, mlp, open_end, trainer
from fedgradnorm._engines import evaluator
from fedgradnorm._engines.evaluator import Answered, on_host
from fedgradnorm._training.trainer import Trainer

Measured = dict[str, dict[str, float]]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Answers are taken for a GPU's; how many numbers came with each copy."""
    found: list[list[int]] = []

    def counted(tensors: list[Tensor]) -> list[Tensor]:
        found.append([tensor.numel() for tensor in tensors])
        return on_host(tensors)

    monkeypatch.setattr(evaluator, "is_far", lambda _: True)
    monkeypatch.setattr(evaluator, "on_host", counted)
    return found


def measured(those: list[fgn.Client], split: str = "test") -> Measured:
    return evaluator.measured(answered(those, split), split)


def answered(those: list[fgn.Client], split: str) -> Iterator[Answered]:
    for k, client in enumerate(those):
        torch.manual_seed(k)
        y = torch.as_tensor(getattr(client, split)[1])
        yield client, torch.randn(len(y), client.task.outputs), y


def test_answers_that_wait_are_measured_as_the_others(
    fetched: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = measured(clients())
    assert len(fetched) == 1
    assert len(fetched[0]) == 2 * 6  # answers and targets
    monkeypatch.setattr(evaluator, "is_far", lambda _: False)
    assert measured(clients()) == together


def test_only_so_many_wait(fetched: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measured(clients())
    fetched.clear()
    monkeypatch.setattr(evaluator, "NUMBERS_WAITING", 50)
    assert measured(clients()) == whole
    assert max(map(sum, fetched)) < 50 + 60 + 40  # and one client's answers and targets
    assert len(fetched) > 2


def test_metrics_of_ones_own_stay_where_the_answers_are(fetched: list[list[int]]) -> None:
    rows = toys.rows("side", 12)
    own = fgn.classification(2, metrics={"mean": lambda output, _: output.mean()})
    mine = fgn.Client("mine", own, train=rows, test=rows)
    named = fgn.Client("named", fgn.classification(2, metrics=["f1"]), train=rows, test=rows)
    measured([mine, named])
    assert fetched == [[24, 12]]
    assert not own.measures_anywhere
    assert named.task.measures_anywhere


def test_a_loss_of_ones_own_does_too() -> None:
    own = fgn.regression(1, loss=lambda output, y: (output - y).abs().mean(dim=1))
    assert not own.measures_anywhere
    assert fgn.regression(1).measures_anywhere


def test_what_is_wrong_names_client_and_split() -> None:
    def fails(output: Tensor, y: Tensor) -> Tensor:
        raise ValueError("no")

    task = fgn.regression(1, metrics={"bad": fails})
    rows = torch.zeros(4, 6), torch.zeros(4, 1)
    client = fgn.Client("broken", task, train=rows, validation=rows)
    with pytest.raises(fgn.ConfigError, match=r"client 'broken', validation data: .*fails: no"):
        evaluator.measured([(client, torch.zeros(4, 1), rows[1])], "validation")


def test_tensors_of_several_types_come_back_in_their_order() -> None:
    given = [torch.arange(6.0).view(2, 3), torch.arange(4), torch.ones(1, 2), torch.zeros(0, 3)]
    for found, expected in zip(on_host(given), given, strict=True):
        assert torch.equal(found, expected)
        assert found.dtype == expected.dtype


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "dense": mlp, "open end": open_end, "any": toys.network, "frozen": half_frozen, "conv": conv,
}  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("rows", [4096, 40, 15])
def test_clients_of_one_network_are_evaluated_together_as_one_by_one(
    network: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "ROWS_AT_ONCE", rows)
    made = trainer(NETWORKS[network](), clients(), "auto", share="all", eval_every=0)
    for _ in range(3):
        made.advance()
    for split in ("train", "validation", "test"):
        together = made.federation.evaluate(split)
        assert list(together) == made.names
        assert_near(together, one_by_one(made, split))


def one_by_one(made: Trainer, split: str) -> Measured:
    return {name: made.federation.evaluate(split, [name])[name] for name in made.names}


def assert_near(found: Measured, expected: Measured) -> None:
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("share", ["all", "none"])
def test_those_who_are_asked_for_are_evaluated(share: str) -> None:
    made = trainer(mlp(), clients(), "auto", share=share, eval_every=0)
    assert list(made.federation.evaluate("test", ["side-24", "corner-5"])) == [
        "corner-5",
        "side-24",
    ]
    assert made.federation.evaluate("test", []) == {}


@pytest.mark.parametrize("share", ["all", "none"])
def test_who_has_tuned_a_network_is_evaluated_with_that(share: str) -> None:
    how: dict[str, Any] = {"personalize": {"steps": 5, "lr": 0.01, "what": "network"}, "rounds": 2}
    made = trainer(mlp(), clients(), "auto", share=share, **how)
    made.train()
    found = made.federation.evaluate("test")
    assert_near(found, one_by_one(made, "test"))
    run = made.result()
    for name, client in made.clients.items():
        x, y = client.test
        output = run.networks[name](torch.as_tensor(x).double())
        output = run.heads[name](output).detach()
        y = torch.as_tensor(y)
        y = y.double() if y.is_floating_point() else y
        assert found[name] == pytest.approx(client.task.measure(output, y), rel=1e-10)
