"""Places for the heads of a round's clients: other clients sit there in every round."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._client import Client
from fedgradnorm._engines.batched.grouping import group_of
from fedgradnorm._engines.batched.stacked_heads import StackedHeads
from fedgradnorm._engines.roster.adam_rows import AdamRows, Rows, steps_in_rows
from fedgradnorm._round.client_round import clip_gradients
from fedgradnorm._round.lr_schedules import Rates
from fedgradnorm.models._networks import linear_of

PARAMETERS = ("weight", "bias")
STARTED_AT_ZERO = ("adam", "adamw", "sgd", "rmsprop", "adagrad")
"""Optimisers whose moments can be there before the first step: zero, or as ``fresh`` says."""


def moments_obstacle(table: Mapping[str, Any]) -> str | None:
    """Why the moments of this optimiser cannot lie on a shelf, or None if they can."""
    if table["name"] not in STARTED_AT_ZERO:
        return f"it does not know the moments of optimizer {table['name']!r}"
    if table["name"] == "sgd" and table.get("dampening"):
        return "dampening makes the first step of SGD another one"
    return None


class Moments:
    """What the heads' optimiser keeps of each parameter: names, shapes, and what it starts with.

    ``weight`` and ``bias`` are parameters of such a head.
    """

    def __init__(self, table: Mapping[str, Any], weight: Tensor, bias: Tensor) -> None:
        self.table, self.weight, self.bias = table, weight, bias
        self.fresh: dict[str, Tensor] = {}
        self._kept: dict[str, Mapping[str, Any]] = {}
        pair = [nn.Parameter(weight.clone()), nn.Parameter(bias.clone())]
        trial = optimizers.build(pair, table)
        self._options = trial.state_dict()["param_groups"]
        for name, like in zip(PARAMETERS, pair, strict=True):
            self._kept[name] = optimizers.kept_moments(trial, like)
            for key, value in self._kept[name].items():
                if isinstance(value, Tensor):
                    shape = like.shape if value.ndim else value.shape
                    self.fresh[f"{name}.{key}"] = value.new_full(shape, self._start(key))

    def _start(self, key: str) -> float:
        grown = self.table["name"] == "adagrad" and key == "sum"
        return float(self.table.get("initial_accumulator_value", 0.0)) if grown else 0.0

    def of_row(self, tables: Mapping[str, Tensor], row: int) -> dict[str, dict[str, Any]]:
        """Each parameter's moments, as views of a row."""
        return {
            name: {
                key: tables[f"{name}.{key}"][row] if isinstance(value, Tensor) else value
                for key, value in kept.items()
            }
            for name, kept in self._kept.items()
        }

    def state_dict(self, tables: Mapping[str, Tensor], row: int) -> dict[str, Any]:
        """A row as the state of an optimiser of one head, as copies."""
        own = enumerate(self.of_row(tables, row).values())
        return {
            "state": {
                i: {k: v.clone() if isinstance(v, Tensor) else v for k, v in moments.items()}
                for i, moments in own
                if moments
            },
            "param_groups": copy.deepcopy(self._options),
        }

    def fresh_state(self) -> dict[str, Any]:
        """The state of an optimiser that has not stepped."""
        return {"state": {}, "param_groups": copy.deepcopy(self._options)}


class Seats:
    """As many heads as clients of one kind took part at once so far, and their optimiser.

    ``tables`` has what a shelf has of each client, a line a seat. The heads' parameters and the
    optimiser's moments are views of it. ``like`` is one of these clients.
    """

    def __init__(self, like: Client, batch: int, moments: Moments, count: int) -> None:
        weight, bias = moments.weight, moments.bias
        heads = [linear_of(weight.clone(), bias.clone()) for _ in range(count)]
        positions = torch.zeros(count, dtype=torch.int64, device=weight.device)
        group = group_of([like] * count, heads, positions, batch)
        assert isinstance(group, StackedHeads)
        self.group, self.count, self._heads = group, count, heads
        self.tables: dict[str, Tensor] = {"weight": group.weight, "bias": group.bias}
        for key, value in moments.fresh.items():
            self.tables[key] = value.new_empty(count, *value.shape)
        parameters = [p for head in heads for p in head.parameters()]
        self._optimizer = optimizers.build(parameters, moments.table)
        for k, head in enumerate(heads):
            own = moments.of_row(self.tables, k)
            for name, parameter in head.named_parameters():
                self._optimizer.state[parameter] = own[name]
        self._in_rows = self._adam_rows() if steps_in_rows(self._optimizer) else None

    def _adam_rows(self) -> AdamRows:
        parts = []
        for name, gradient in zip(PARAMETERS, self.group.room, strict=True):
            begin = f"{name}."
            own = {k.removeprefix(begin): v for k, v in self.tables.items() if k.startswith(begin)}
            parts.append(Rows(self.tables[name], gradient, own))
        return AdamRows(parts)

    def step(self, rates: Rates, round_number: int, clip: float | None) -> None:
        """Every head that has a gradient takes a step, along what is left of it by ``clip``."""
        rates.follow(self._optimizer, round_number)
        if clip is not None:
            for head in self._heads:
                clip_gradients(head.parameters(), clip)
        if self._in_rows is None:
            self._optimizer.step()
        else:
            self._in_rows.step(self.group.taking_part, self._optimizer.param_groups[0])
