"""Inputs of many clients, standardised alike: what is learned comes from training rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.data._arrays import with_splits
from fedgradnorm.data._files.encoding import Encoding
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
        return [_rescaled(client, None) for client in clients]
    if how == "own":
        return [_rescaled(client, Scaling.fit(*client.train)) for client in clients]
    inputs = torch.cat([torch.as_tensor(client.train[0]) for client in clients])
    together = Scaling.fit(inputs, inputs)
    return [_rescaled(client, together) for client in clients]


def standardized_together(clients: Sequence[Client]) -> list[Client]:
    """Clients from files with inputs standardised by the training rows of all of them.

    A column that a client does not have counts for nothing, and is 0 there. Targets stay as each
    client's own scaling left them.
    """
    tables = [_plain_inputs(client) for client in clients]
    for client, x in zip(clients, tables, strict=True):
        if x.shape[1:] != tables[0].shape[1:]:
            raise DataError(
                f"client {client.name!r}: its inputs have shape {tuple(x.shape[1:])} a row, those "
                f"of {clients[0].name!r} {tuple(tables[0].shape[1:])}; standardize = 'pooled' "
                "needs the same inputs at all clients"
            )
    gone = [_absent(client, x.shape[1]) for client, x in zip(clients, tables, strict=True)]
    together = Scaling.fit(torch.cat(tables), torch.zeros(0))
    mean, deviation = together.input_mean, together.input_std
    assert mean is not None
    assert deviation is not None
    for k in torch.stack(gone).any(0).nonzero()[:, 0].tolist():
        own = [x[:, k] for x, one in zip(tables, gone, strict=True) if not one[k]]
        if own:
            column = torch.cat(own)[:, None]
            learned = Scaling.fit(column, column)
            assert learned.input_mean is not None
            assert learned.input_std is not None
            mean[k], deviation[k] = learned.input_mean[0], learned.input_std[0]
    shape = (-1, *[1] * (mean.ndim - 1))
    return [
        _rescaled(
            client,
            Scaling(
                torch.where(one.view(shape), 0.0, mean),
                torch.where(one.view(shape), 1.0, deviation),
            ),
        )
        for client, one in zip(clients, gone, strict=True)
    ]


def _plain_inputs(client: Client) -> torch.Tensor:
    x = client.train[0]
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        raise ConfigError(
            f"client {client.name!r}: standardize = 'pooled' is for one table, image or signal of "
            "numbers in memory; use standardize = true"
        )
    return x


def _absent(client: Client, width: int) -> torch.Tensor:
    """Which numbers of a row come from columns that the client does not have."""
    gone = torch.zeros(width, dtype=torch.bool)
    if isinstance(client.encoding, Encoding):
        columns = client.encoding.columns
        gone[:] = torch.tensor([column.absent for column in columns for _ in column.names()])
    return gone


def _rescaled(client: Client, inputs: Scaling | None) -> Client:
    """The client with its inputs scaled in this way, in single precision."""

    def merged(own: Any) -> Any:
        if own is None or inputs is None:
            return own or inputs
        return replace(own, input_mean=inputs.input_mean, input_std=inputs.input_std)

    splits = {}
    for split in SPLITS:
        if (pair := getattr(client, split)) is not None:
            x = torch.as_tensor(pair[0])
            x = x if inputs is None else inputs.scale_inputs(x)
            splits[split] = x.float(), pair[1]
    own: Any = client.scaling  # of several tasks, a table by task
    if client.tasks is None:
        scaling = merged(own)
    else:
        scaling = {key: merged((own or {}).get(key)) for key in client.tasks}
    return replace(with_splits(client, splits), scaling=scaling)
