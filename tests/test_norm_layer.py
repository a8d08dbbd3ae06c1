"""The default norm layer is the layer that runs last, whatever else a module holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm.models._norm_layer import find_norm_layer

X = torch.ones(2, toys.FEATURES)


class WithTokens(nn.Module):
    """A small ViT: a token and positions at the root, layers inside, a norm at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, 4))
        self.pos_embed = nn.Parameter(torch.randn(1, 4, 4))
        self.embed = nn.Linear(2, 4)
        self.block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x.unflatten(1, (3, 2)))
        first = self.cls_token.expand(len(x), -1, -1)
        rows = torch.cat([first, patches], dim=1) + self.pos_embed
        return self.norm(self.block(rows))[:, 0]


class Attention(nn.Module):
    """Its attention owns a matrix and holds a layer whose forward pass never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.embed(x.unflatten(1, (3, 2)))
        return self.attention(rows, rows, rows)[0].mean(dim=1)


class Bare(nn.Module):
    """Nothing but parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(toys.FEATURES, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix


class Unused(nn.Module):
    """Its last layer to run has no part in the output."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(toys.FEATURES, 4)
        self.side = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        output = self.used(x)
        self.side(output)
        return output


class Tied(nn.Module):
    """The last layer's matrix is the first one's too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(toys.FEATURES, toys.FEATURES)
        self.last = nn.Linear(toys.FEATURES, toys.FEATURES)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh())


def pairs() -> list[fgn.Client]:
    """Two clients of each kind, so that some run in one call."""
    return [toys.client(f"{kind}-{k}", 24 + k, kind) for kind in toys.NAMES for k in range(2)]


def half_frozen(part: str) -> nn.Module:
    network = toys.network()
    network.get_submodule(part).requires_grad_(requires_grad=False)
    return network


@pytest.mark.parametrize(
    ("make", "norm_layer"),
    [
        (WithTokens, ("block.linear2.weight", "block.linear2.bias")),
        (Attention, ("attention.in_proj_weight", "attention.in_proj_bias")),
        (Bare, ("matrix",)),
        (Unused, ("used.weight", "used.bias")),
        (Tied, ("first.weight", "last.bias")),
    ],
)
def test_the_layer_that_runs_last_and_gets_a_gradient(
    make: Any, norm_layer: tuple[str, ...]
) -> None:
    assert find_norm_layer(make(), X) == norm_layer


def test_an_output_without_a_gradient_is_refused() -> None:
    network = nn.Sequential(nn.Linear(toys.FEATURES, 4))
    network.register_forward_hook(lambda *call: call[-1].detach())
    with pytest.raises(fgn.ModelError, match=r"nothing to learn; look for detach"):
        fgn.train(network, toys.clients(), rounds=1)


def test_the_norm_layer_is_shown_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fedgradnorm")
    for share in ("all", "none"):
        caplog.clear()
        flat.train(toys.network(), toys.clients(), rounds=1, share=share)
        lines = [r.getMessage() for r in caplog.records if "norm layer" in r.getMessage()]
        assert lines == ["norm layer: 2.weight, 2.bias"]


@pytest.mark.parametrize(
    "make",
    [WithTokens, Bare, Tied, lambda: half_frozen("0"), lambda: half_frozen("2")],
    ids=["tokens", "bare", "tied", "first frozen", "last frozen"],
)
@pytest.mark.parametrize("steps", [1, 2])
def test_engines_agree_on_such_networks(make: Any, steps: int) -> None:
    def trained(executor: str) -> fgn.Run:
        how = {"rounds": 4, "batch_size": 8, "lr": 0.01, "shared_steps": steps, "eval_every": 0}
        return flat.train(toys.seeded(make), pairs(), executor=executor, **how)

    loop = trained("loop")
    for executor in ("auto", "vmap"):
        other = trained(executor)
        for key in ("grad_norm", "loss", "weight"):
            left, right = (torch.tensor(run.history[key].dropna().values) for run in (loop, other))
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(*(toys.parameters(run.network) for run in (loop, other)))


@pytest.mark.parametrize("executor", ["loop", "joint", "vmap"])
@pytest.mark.parametrize("part", ["0", "2"])
def test_frozen_layers_never_move_and_the_others_do(part: str, executor: str) -> None:
    run = flat.train(half_frozen(part), pairs(), rounds=3, lr=0.1, executor=executor)
    for name, before in toys.network().state_dict().items():
        assert torch.equal(run.network.state_dict()[name], before) == name.startswith(part)
