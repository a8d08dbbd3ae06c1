"""Inputs of many clients, standardised alike: what is learned comes from training rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch

from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import choose
from fedgradnorm.data._arrays import with_splits
from fedgradnorm.data._scaling import Scaling

How = Literal["pooled", "own", "none"]

WAYS = ("pooled", "own", "none")


def scaled(clients: Sequence[Client], how: How) -> list[Client]:
    """The clients with inputs of mean 0 and deviation 1, in single precision.

    ``"pooled"`` learns means and deviations on the training rows of all of them together, so that
    a number means the same to each; ``"own"`` on each client's own; ``"none"`` changes nothing.
    """
    choose(how, WAYS, "scaling")
    if how == "none":
        return [_with_scaling(client, None) for client in clients]
    if how == "own":
        return [_with_scaling(client, Scaling.fit(*client.train)) for client in clients]
    inputs = torch.cat([torch.as_tensor(client.train[0]) for client in clients])
    together = Scaling.fit(inputs, inputs)
    return [_with_scaling(client, together) for client in clients]


def _with_scaling(client: Client, scaling: Scaling | None) -> Client:
    def inputs(x: torch.Tensor) -> torch.Tensor:
        return (x if scaling is None else scaling.scale_inputs(x)).float()

    splits = {
        split: (inputs(torch.as_tensor(pair[0])), torch.as_tensor(pair[1]))
        for split in SPLITS
        if (pair := getattr(client, split)) is not None
    }
    return replace(with_splits(client, splits), scaling=scaling)
