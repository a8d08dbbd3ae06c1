"""A client's part of a round, against plain autograd."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._federation.federation import Federation
from fedgradnorm._round.reports import Reports

SGD = {"head_optimizer": "sgd", "local_optimizer": "sgd", "server_optimizer": "sgd"}


def one_client(name: str = "corner", net: nn.Module | None = None, **settings: Any) -> Federation:
    network = toys.network() if net is None else net
    return toys.federation(network, [toys.client(name, 24)], **settings)


def report(federation: Federation, round_number: int = 0) -> Reports:
    """What the only client reports; the server does nothing with it."""
    return federation.engine.run_clients(federation.server.shared, round_number, federation.names)


def examples(federation: Federation, name: str = "corner", split: str = "train") -> Any:
    """A client's examples, as the network takes them."""
    return federation.engine.examples.split(name, split)


def batch(federation: Federation, step: int, name: str = "corner") -> tuple[Tensor, Tensor]:
    return toys.batch(federation.engine, name, step)


class ByHand:
    """The client's round written out: deep copies and autograd, nothing shared with the library."""

    def __init__(self, federation: Federation, name: str = "corner") -> None:
        self.task = federation.engine.clients[name].task
        self.network = federation.shared_network(federation.server.shared)
        self.head = toys.head(federation, name)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.task.loss(self.head(self.network(x)), y)

    def gradients(self, module: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(self.loss(x, y), list(module.parameters())))

    def step(self, module: nn.Module, gradients: list[Tensor], lr: float = 0.05) -> None:
        with torch.no_grad():
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                parameter -= lr * gradient


def joined(gradients: list[Tensor]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients])


@pytest.mark.parametrize(("head_steps", "shared_steps"), [(1, 1), (3, 1), (1, 5), (0, 2)])
def test_a_round_is_head_steps_then_shared_gradients(head_steps: int, shared_steps: int) -> None:
    federation = one_client(head_steps=head_steps, shared_steps=shared_steps, **SGD)
    hand = ByHand(federation)
    said = report(federation)
    for step in range(head_steps):
        hand.step(hand.head, hand.gradients(hand.head, *batch(federation, step)))
    total, losses = torch.zeros_like(said.gradients()[0]), []
    for step in range(shared_steps):
        here = batch(federation, step)
        losses.append(float(hand.loss(*here).detach()))
        gradients = hand.gradients(hand.network, *here)
        total += joined(gradients) / shared_steps
        hand.step(hand.network, gradients)
    torch.testing.assert_close(said.gradients()[0], total, rtol=1e-12, atol=1e-14)
    assert float(said.loss) == pytest.approx(sum(losses) / shared_steps, rel=1e-12)
    head = toys.head(federation, "corner")
    torch.testing.assert_close(toys.parameters(head), toys.parameters(hand.head))


def test_the_grad_norm_is_the_norm_of_the_mean_gradient_on_the_norm_layer() -> None:
    federation = one_client(shared_steps=4)
    assert federation.norm_layer == ("2.weight", "2.bias")
    said = report(federation)
    norm_layer = said.gradients()[0][-(8 * 5 + 5) :]
    assert float(said.grad_norm) == pytest.approx(float(norm_layer.norm()), rel=1e-12)


def test_a_named_norm_layer_is_measured_instead() -> None:
    federation = one_client(norm_layer="0.weight")
    said = report(federation)
    assert float(said.grad_norm) == pytest.approx(float(said.gradients()[0][:48].norm()), rel=1e-12)


@pytest.mark.parametrize("shared_steps", [1, 4])
def test_delta_equals_gradient_for_local_sgd(shared_steps: int) -> None:
    one, other = (
        report(one_client(shared_steps=shared_steps, sends=sends))
        for sends in ("gradient", "delta")
    )
    torch.testing.assert_close(one.gradients(), other.gradients(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(one.grad_norm, other.grad_norm)


def test_a_preconditioned_delta_never_reaches_the_grad_norm() -> None:
    gradient, delta = (
        report(one_client(sends=sends, local_optimizer="adam")) for sends in ("gradient", "delta")
    )
    assert not torch.allclose(gradient.gradients(), delta.gradients())
    torch.testing.assert_close(gradient.grad_norm, delta.grad_norm, rtol=1e-12, atol=0)


def test_the_loss_is_reported_before_or_after_the_local_step() -> None:
    before, after = (
        one_client(head_steps=0, report_loss=when, **SGD) for when in ("before", "after")
    )
    hand, here = ByHand(before), batch(before, 0)
    assert float(report(before).loss) == pytest.approx(float(hand.loss(*here).detach()))
    hand.step(hand.network, hand.gradients(hand.network, *here))
    assert float(report(after).loss) == pytest.approx(float(hand.loss(*here).detach()))


def test_reporting_after_the_step_changes_no_update() -> None:
    one, other = (report(one_client(report_loss=when)) for when in ("before", "after"))
    assert torch.equal(one.gradients(), other.gradients())


def test_together_is_one_backward_pass_for_head_and_network() -> None:
    federation = one_client(phases="joint", shared_steps=3, head_steps=7, **SGD)
    hand = ByHand(federation)
    said = report(federation)
    total = torch.zeros_like(said.gradients()[0])
    for step in range(3):
        here = batch(federation, step)
        body = hand.gradients(hand.network, *here)
        head = hand.gradients(hand.head, *here)
        hand.step(hand.network, body)
        hand.step(hand.head, head)
        total += joined(body) / 3
    torch.testing.assert_close(said.gradients()[0], total, rtol=1e-12, atol=1e-14)
    head = toys.head(federation, "corner")
    torch.testing.assert_close(toys.parameters(head), toys.parameters(hand.head))


def test_the_first_loss_is_that_of_all_training_rows_before_any_update() -> None:
    federation = one_client(head_steps=5)
    hand = ByHand(federation)
    expected = float(hand.loss(*examples(federation)).detach())
    said = report(federation)
    assert toys.first_loss(federation, "corner") == pytest.approx(expected, rel=1e-12)
    assert float(said.loss_ratio) == pytest.approx(float(said.loss) / expected, rel=1e-12)


def test_the_first_loss_may_be_the_first_rounds() -> None:
    federation = one_client(first_loss="first_round")
    said = report(federation)
    assert toys.first_loss(federation, "corner") == float(said.loss)
    assert float(said.loss_ratio) == 1


@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_the_first_loss_may_be_that_of_guessing(scale: float) -> None:
    clients = [toys.client("corner", 24, loss_scale=scale)]
    federation = toys.federation(toys.network(), clients, first_loss="log_classes")
    report(federation)
    assert toys.first_loss(federation, "corner") == pytest.approx(scale * math.log(3))


def test_guessing_has_no_meaning_for_a_regression() -> None:
    with pytest.raises(fgn.ConfigError, match="client 'place' does regression"):
        flat.train(toys.network(), toys.clients(), rounds=1, first_loss="log_classes")


@pytest.mark.parametrize("kind", ["dataset", "first_round"])
def test_the_first_loss_is_set_once(kind: str) -> None:
    federation = one_client(first_loss=kind)
    report(federation)
    first = toys.first_loss(federation, "corner")
    for round_number in range(1, 4):
        report(federation, round_number)
    assert toys.first_loss(federation, "corner") == first


def test_the_heads_optimizer_is_kept_across_rounds() -> None:
    federation = one_client(head_optimizer="adam", head_steps=2)
    for round_number in range(3):
        report(federation, round_number)
    assert float(toys.row(federation, "corner")["optimizer.step"]) == 6


def test_each_step_of_a_round_reads_the_next_batch() -> None:
    federation = one_client(head_steps=2, shared_steps=3, batch_size=4)
    of_round = federation.engine.examples.batches.of_round(5)["corner"]
    assert of_round.shape == (3, 4)
    singles = [federation.engine.examples.batches.rows("corner", step) for step in (15, 16, 17)]
    assert of_round.tolist() == [rows.tolist() for rows in singles]


def test_running_statistics_stay_with_the_client() -> None:
    network = toys.noisy_network(torch.float64)
    start = dict(copy.deepcopy(list(network.named_buffers())))
    federation = toys.federation(network, toys.clients())
    for round_number in range(3):
        federation.round(round_number, ["corner", "place"])
    own = {name: toys.buffers(federation, name) for name in federation.names}
    assert toys.same(own["side"], start)
    assert not torch.allclose(own["corner"]["1.running_mean"], own["place"]["1.running_mean"])
    assert toys.same(
        dict(federation.shared_network(federation.server.shared).named_buffers()), start
    )
    assert toys.same(dict(network.named_buffers()), start)


def test_running_statistics_are_those_of_the_clients_own_batches() -> None:
    network = toys.noisy_network(torch.float64)
    network[3].p = 0.0
    federation = toys.federation(network, toys.clients(), head_steps=0)
    layers = copy.deepcopy(network[:2]).train()
    federation.round(0, list(toys.NAMES))
    layers(batch(federation, 0, "place")[0])
    assert toys.same(dict(layers.named_buffers()), toys.buffers(federation, "place"))


def test_evaluating_changes_nothing() -> None:
    federation = toys.federation(toys.noisy_network(), toys.clients())
    federation.round(0, list(toys.NAMES))
    before = federation.state_dict()
    first = federation.evaluate("train")
    assert federation.evaluate("train") == first
    assert set(federation.evaluate("validation")) == set()
    assert toys.same(before, federation.state_dict())


def test_a_client_evaluates_with_its_own_running_statistics() -> None:
    federation = toys.federation(toys.noisy_network(), toys.clients())
    for round_number in range(3):
        federation.round(round_number, list(toys.NAMES))
    network = federation.shared_network(federation.server.shared).eval()
    for name, values in federation.evaluate("test").items():
        network.load_state_dict(toys.buffers(federation, name), strict=False)
        x, y = examples(federation, name, "test")
        with torch.no_grad():
            output = toys.head(federation, name).eval()(network(x))
        expected = federation.engine.clients[name].task.loss(output, y)
        assert values["loss"] == pytest.approx(float(expected), rel=1e-6)


def test_dropout_is_decided_by_seed_client_and_round() -> None:
    def losses(seed: int, names: list[str]) -> dict[str, float]:
        federation = toys.federation(toys.noisy_network(), toys.clients(), seed=seed)
        torch.rand(7)  # whatever else draws from the global generator does not matter
        said, _ = federation.round(0, names)
        return dict(zip(names, said.loss.tolist(), strict=True))

    everybody = losses(0, list(toys.NAMES))
    assert everybody == losses(0, list(toys.NAMES))
    assert everybody["place"] == losses(0, ["place"])["place"]
    assert everybody != losses(1, list(toys.NAMES))


def test_a_saved_and_loaded_client_goes_on_identically() -> None:
    one, other = (toys.federation(toys.noisy_network(), toys.clients()) for _ in range(2))
    one.round(0, list(toys.NAMES))
    other.load_state_dict(one.state_dict())
    for federation in (one, other):
        federation.round(1, ["side", "place"])
    assert toys.same(one.state_dict(), other.state_dict())


def test_a_state_is_a_copy() -> None:
    federation = toys.federation(toys.network(), toys.clients())
    federation.round(0, list(toys.NAMES))
    state = federation.state_dict()
    kept = copy.deepcopy(state)
    federation.round(1, list(toys.NAMES))
    assert toys.same(state, kept)
