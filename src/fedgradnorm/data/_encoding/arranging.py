"""A table of numbers as what a network takes: named inputs, ids, sequences of steps.

It comes after the scaling, so scaling and encoding know nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError
from fedgradnorm.data._encoding.column_kinds import Column, IdColumn, StepColumn
from fedgradnorm.models._input_rows import Fields, Inputs, Sequences

Groups = dict[str | None, list[Column]]


def groups(columns: Sequence[Column]) -> Groups:
    """The input columns of each named input; of None where there is one without a name."""
    found: Groups = {}
    for column in columns:
        if not isinstance(column, StepColumn):
            found.setdefault(column.group, []).append(column)
    return found


def check_ids(columns: Sequence[Column]) -> None:
    """A ConfigError where ids and other numbers would be one tensor."""
    for name, members in groups(columns).items():
        ids = [column.name for column in members if isinstance(column, IdColumn)]
        if ids and len(ids) < len(members):
            other = next(column.name for column in members if column.name not in ids)
            inside = "" if name is None else f" of {name!r}"
            raise ConfigError(
                f"inputs{inside}: {ids[0]!r} is an id and {other!r} is none; a network takes them "
                f"as two inputs: inputs = {{ ids = [{ids[0]!r}], rest = [{other!r}] }}"
            )


def is_flat(columns: Sequence[Column]) -> bool:
    """Whether the numbers are the network's input as they are."""
    return not any(c.group or isinstance(c, IdColumn | StepColumn) for c in columns)


def divided(columns: Sequence[Column], numbers: Tensor, *, steps: bool) -> dict[str | None, Tensor]:
    """The numbers [..., features] of each named input; ids are whole numbers.

    A step that is one id has no axis for it, as networks take sequences of tokens.
    """
    every = numbers.split([len(column.names()) for column in columns], dim=-1)
    parts = {column.name: part for column, part in zip(columns, every, strict=True)}
    found = {}
    for name, members in groups(columns).items():
        whole = torch.cat([parts[column.name] for column in members], dim=-1)
        if isinstance(members[0], IdColumn):
            whole = whole.to(torch.int64)
            whole = whole[..., 0] if steps and len(members) == 1 else whole
        found[name] = whole
    return found


def arranged(columns: Sequence[Column], numbers: Tensor, codes: Tensor) -> Inputs:
    """The numbers of rows, or of steps, as the network's inputs."""
    steps = any(isinstance(column, StepColumn) for column in columns)
    parts = divided(columns, numbers, steps=steps)
    found: dict[str | None, Inputs] = dict(parts)
    if steps:
        rows = step_rows(columns, codes)
        found = {name: Sequences([part[at] for at in rows]) for name, part in parts.items()}
    return found[None] if None in found else Fields({str(k): v for k, v in found.items()})


def step_rows(columns: Sequence[Column], codes: Tensor) -> list[Tensor]:
    """Which rows are each sequence's steps, in their order; sequences as they appear."""
    places = {c.role: i for i, c in enumerate(columns) if isinstance(c, StepColumn)}
    which = codes[:, places["sequence"]].tolist()
    first = {value: place for place, value in enumerate(dict.fromkeys(which))}
    number = torch.tensor([first[value] for value in which])
    order = torch.arange(len(codes))
    if "order" in places:
        order = torch.argsort(codes[:, places["order"]], stable=True)
    order = order[torch.argsort(number[order], stable=True)]
    return list(order.split(torch.bincount(number).tolist()))
