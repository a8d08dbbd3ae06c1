"""Clients of which some share a task, and runs of them to compare."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import flat
import toys

TASKS = {"a": "north", "b": "south", "c": "north", "d": "south", "e": "alone", "f": "north"}
SIZES = (48, 30, 24, 20, 36, 17)
HOW: dict[str, Any] = {"rounds": 6, "batch_size": 8, "lr": 0.05, "eval_every": 3, "device": "cpu"}


def client(name: str, task: str | None, size: int, kind: str = "corner", **more: Any) -> fgn.Client:
    named = toys.task(kind, name=task) if task else toys.task(kind)
    return fgn.Client(name, named, train=toys.rows(kind, size), test=toys.rows(kind, 20), **more)


def clients(tasks: dict[str, str] = TASKS) -> list[fgn.Client]:
    """Six clients of one shape: three of the north, two of the south and one alone."""
    sizes = zip(tasks.items(), SIZES, strict=True)
    return [client(name, task, size) for (name, task), size in sizes]


def train(heads: str = "task", given: list[fgn.Client] | None = None, **how: Any) -> fgn.Run:
    how = {**HOW, "executor": "loop", **how}
    weighting = how.pop("weighting", fgn.GradNorm)()
    network = how.pop("network", toys.network())
    return flat.train(network, given or clients(), weighting=weighting, heads=heads, **how)


def vectors(heads: dict[str, nn.Module]) -> dict[str, Tensor]:
    return {name: toys.parameters(head) for name, head in heads.items()}


def same_heads(left: fgn.Run, right: fgn.Run) -> bool:
    return toys.same(vectors(left.heads), vectors(right.heads))


def assert_same(left: fgn.Run, right: fgn.Run) -> None:
    assert torch.equal(toys.parameters(left.network), toys.parameters(right.network))
    assert same_heads(left, right)
    assert left.history.equals(right.history)
