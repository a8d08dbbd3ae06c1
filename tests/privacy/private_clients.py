"""Small private clients that tests share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import fedgradnorm as fgn
import flat

ROWS, INPUTS = 60, 4


def rows(seed: int = 0, count: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, INPUTS, generator=generator, dtype=torch.float64)
    return x, (x[:, 0] > 0).long()


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh()).double()


def private(name: str = "a", **terms: Any) -> fgn.Client:
    given = {"epsilon": 3.0, "delta": 1e-5, "noise_multiplier": 2.0, **terms}
    return fgn.Client(name, fgn.classification(2), train=rows(), privacy=fgn.Privacy(**given))


def plain(name: str = "b") -> fgn.Client:
    x, _ = rows(2)
    return fgn.Client(name, fgn.regression(1), train=(x, x[:, :1]))


def train(clients: list[fgn.Client], **settings: Any) -> fgn.Run:
    given = {"rounds": 6, "batch_size": 20, "lr": 0.05, "eval_every": 0, **settings}
    return flat.train(network(), clients, weighting=fgn.GradNorm(rule="direct"), **given)
