"""Targets and outputs with a shape: a mask, a sequence of tags, an image.

Inside, outputs are [rows, outputs, *shape], as torch's own losses take them. A head may also give
[rows, *shape, outputs], as a linear layer on the last axis does; for a shape with one axis that
form is looked for first.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedgradnorm._errors import ConfigError, DataError

Shape = tuple[int, ...]


def checked_shape(shape: object) -> Shape:
    given = (shape,) if isinstance(shape, int) else shape
    whole = isinstance(given, Sequence) and all(
        isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in given
    )
    if not whole or isinstance(given, str):
        raise ConfigError(
            f"shape must be the sizes of a target's axes, such as (16, 16), not {shape!r}"
        )
    assert isinstance(given, Sequence)
    return tuple(int(size) for size in given)


def forms(outputs: int, shape: Shape) -> list[Shape]:
    """The shapes that a row of outputs may have, the likelier one first."""
    first, last = (outputs, *shape), (*shape, outputs)
    if first == last:
        return [first]
    return [last, first] if len(shape) == 1 else [first, last]


def outputs_first(values: Tensor, outputs: int, shape: Shape) -> Tensor | None:
    """[rows, outputs, *shape], from either form; None where ``values`` has neither."""
    row = tuple(values.shape[1:])
    if row not in forms(outputs, shape):
        return None
    last = (*shape, outputs)
    as_last = row == last and (len(shape) == 1 or row != (outputs, *shape))
    return values.movedim(-1, 1) if as_last else values


def laid_out(where: str, y: Tensor, outputs: int, shape: Shape, counted: bool) -> Tensor:
    """Targets as the loss takes them: classes [rows, *shape], else [rows, outputs, *shape]."""
    if not shape and not counted:
        return y.reshape(len(y), -1)
    row, numbers = tuple(y.shape[1:]), 1 if counted else outputs
    if numbers == 1 and row == shape:
        return y if counted else y.unsqueeze(1)
    found = outputs_first(y, numbers, shape)
    if found is None:
        what = "one number a row" if not shape else f"of shape {shape} a row"
        kind = "class labels" if counted else f"{outputs} numbers"
        raise DataError(f"{where}: {kind} must be {what}, y has shape {tuple(y.shape)}")
    return found[:, 0] if counted else found.contiguous()
