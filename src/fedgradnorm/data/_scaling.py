"""Standardization learned on training data, kept so that raw values can be used later."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.models._streamed import Streamed, pieces
from fedgradnorm.tasks._targets import positions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any] | Tensor
    _Pair = tuple[Tensor | None, Tensor | None]

log = logging.getLogger("fedgradnorm")

NUMBERS_AT_ONCE = 1 << 20  # of rows that are read in pieces


@dataclass(frozen=True, eq=False)
class Scaling:
    """Means and standard deviations of one client's training data, in float64.

    Inputs are standardized per column, or per channel where they have more axes (images
    ``[n, c, h, w]``, signals ``[n, c, length]``). A pair that is None leaves its side as it is.

    >>> x, y = np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([0.0, 4.0])
    >>> scaling = Scaling.fit(x, y, targets=True)
    >>> scaling.scale_inputs(np.array([[3.0, 6.0]])).tolist()
    [[1.0, 1.0]]
    >>> scaling.restore_targets(torch.tensor([[1.0]])).tolist()
    [[4.0]]
    """

    input_mean: Tensor | None
    input_std: Tensor | None
    target_mean: Tensor | None = None
    target_std: Tensor | None = None
    learned: bool = True  # whether the client's own data decided the numbers

    @classmethod
    def constant(cls, table: Mapping[str, Any]) -> Scaling:
        """Public constants, from a table with ``mean`` and ``std`` of the inputs, and
        ``target_mean`` and ``target_std`` of the targets; each pair may be missing.

        >>> Scaling.constant({"mean": [1.0], "std": [2.0]}).scale_inputs(np.array([[5.0]])).tolist()
        [[2.0]]
        """
        pairs = ("mean", "std"), ("target_mean", "target_std")
        for key in table:
            choose(str(key), [key for pair in pairs for key in pair], "key of standardize")
        values = {k: torch.as_tensor(np.asarray(v, dtype=np.float64)) for k, v in table.items()}
        found: list[Tensor | None] = []
        for pair in pairs:
            given = [values[key] for key in pair if key in values]
            fits = len(given) == 2 and given[0].shape == given[1].shape
            if given and not (fits and given[0].isfinite().all() and (given[1] > 0).all()):
                raise ConfigError(
                    f"standardize needs {pair[0]} and {pair[1]} together: finite numbers, as many "
                    "of each, and deviations above 0"
                )
            found += given or [None, None]
        return cls(found[0], found[1], found[2], found[3], learned=False)

    @classmethod
    def fit(cls, x: Any, y: Any, *, inputs: bool = True, targets: bool = False) -> Scaling:
        """Learn from training data only; a constant column gets a standard deviation of 1.

        ``x`` may also be rows that are read batch by batch: then it takes one pass over them.
        Targets that are NaN are missing labels, and count for nothing.
        """
        if isinstance(x, Streamed):
            of_x, of_y = _streamed_moments(x, y, inputs, targets)
        else:
            of_x = _moments(_tensor(x, "x"), "x") if inputs else (None, None)
            of_y = moments_with_gaps(_rows(_tensor(y, "y")), "y") if targets else (None, None)
        return cls(of_x[0], of_x[1], of_y[0], of_y[1])

    def scale_inputs(self, x: Array) -> Tensor:
        """Raw inputs to what the network sees; whole numbers become float32."""
        return _standardized(_tensor(x, "x"), self.input_mean, self.input_std, "inputs")

    def scale_targets(self, y: Array) -> Tensor:
        """Raw targets to what the network is trained on."""
        return _standardized(_tensor(y, "y"), self.target_mean, self.target_std, "targets")

    def restore_targets(self, output: Tensor) -> Tensor:
        """A network's output back in the targets' own units; gradients pass through."""
        if self.target_mean is None or self.target_std is None:
            return output
        _same_width(output, self.target_mean, "outputs")
        return output * self.target_std.to(output) + self.target_mean.to(output)

    def in_order(self, index: Tensor) -> Scaling:
        """The scaling of inputs whose columns are in another order."""
        if self.input_mean is None or self.input_std is None:
            return self
        return replace(self, input_mean=self.input_mean[index], input_std=self.input_std[index])

    def state_dict(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor]) -> Scaling:
        names = [field.name for field in fields(cls) if field.name != "learned"]
        unknown = sorted(set(state) - set(names))
        if unknown:
            raise ConfigError(f"a saved scaling holds {', '.join(names)}; unknown: {unknown[0]!r}")
        input_mean, input_std, target_mean, target_std = map(state.get, names)
        return cls(input_mean, input_std, target_mean, target_std)


def _tensor(values: Array, name: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise DataError(f"{name} must hold numbers, not {array.dtype}")
    return torch.from_numpy(np.ascontiguousarray(array))


def _rows(y: Tensor) -> Tensor:
    """Targets as a table; a plain vector is a table of one column."""
    return y[:, None] if y.ndim == 1 else y


def moments_with_gaps(y: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each column, of those of its numbers that are there (not NaN)."""
    if not y.is_floating_point() or not bool(y.isnan().any()):
        return _moments(y, name)
    columns = [y[:, k][~y[:, k].isnan()][:, None] for k in range(y.shape[1])]
    means, deviations = zip(*(_moments(column, name) for column in columns), strict=True)
    shape = (y.shape[1], *[1] * (y.ndim - 2))
    return torch.cat(means).reshape(shape), torch.cat(deviations).reshape(shape)


class Moments:
    """Count, mean, squared distance from it and range of each column; NaN counts for nothing.

    Pieces are merged as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
    computing sample variances" (1979), in float64:

        M = M_a + M_b + d^2 n_a n_b / (n_a + n_b),   mean = mean_a + d n_b / (n_a + n_b),

    with d the distance of the two means.
    """

    def __init__(self) -> None:
        zero = torch.zeros(1, dtype=torch.float64)
        self.count, self.mean, self.square = zero, zero, zero
        self.low, self.high = zero + torch.inf, zero - torch.inf

    def add(self, values: Tensor) -> None:
        wide = values.detach().to("cpu", torch.float64)
        there = ~wide.isnan()
        count = there.sum(dim=0).double()
        mean = wide.nansum(dim=0) / count.clamp_min(1)
        square = (wide - mean).square().nansum(dim=0)
        total = self.count + count
        apart, share = mean - self.mean, count / total.clamp_min(1)
        self.square = self.square + square + apart.square() * self.count * share
        self.mean = self.mean + apart * share
        self.count = total
        self.low = torch.minimum(self.low, wide.nan_to_num(nan=torch.inf).amin(dim=0))
        self.high = torch.maximum(self.high, wide.nan_to_num(nan=-torch.inf).amax(dim=0))

    def shaped(self, more: list[int], name: str) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, 1 for a constant column, with more axes behind these."""
        found = (self.square / self.count.clamp_min(1)).sqrt()
        constant = (self.low == self.high) | (found == 0) | (self.count == 0)
        spread = torch.where(constant, torch.ones_like(found), found)
        return _checked(self.mean.reshape(-1, *more), spread.reshape(-1, *more), name)


def _streamed_moments(x: Streamed, y: Any, inputs: bool, targets: bool) -> tuple[_Pair, _Pair]:
    """The same of rows that are read batch by batch, in one pass over them."""
    of_x, of_y, shape = Moments(), Moments(), [1] * (len(_rows(y[:1]).shape) - 2)
    if not inputs and isinstance(y, Tensor):
        return (None, None), moments_with_gaps(_rows(y), "y") if targets else (None, None)
    log.info("%s: reading all %d rows once, to standardize", x.feed.where, len(x))
    for part, labels in pieces(x, y, max(64, NUMBERS_AT_ONCE // max(1, x.numbers))):
        assert isinstance(part, Tensor)
        of_x.add(positions(part if part.ndim > 1 else part[:, None]))
        if targets:
            of_y.add(positions(_rows(labels)))
    pixels = [1] * (len(x.form()) - 1)
    return (
        of_x.shaped(pixels, "x") if inputs else (None, None),
        of_y.shaped(shape, "y") if targets else (None, None),
    )


def _moments(values: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per column or channel, shaped to broadcast over rows."""
    if values.ndim == 0 or len(values) == 0:
        raise DataError(f"{name} is empty; standardization needs at least one training row")
    wide = values.to("cpu", torch.float64)
    axes = (0, *range(2, wide.ndim))
    mean = wide.mean(dim=axes, keepdim=True)[0]
    std = (wide - mean).square().mean(dim=axes, keepdim=True)[0].sqrt()
    # Rounding can leave a constant column with a tiny spread: dividing by it would blow noise up.
    constant = wide.amax(dim=axes, keepdim=True)[0] == wide.amin(dim=axes, keepdim=True)[0]
    std = torch.where(constant | (std == 0), torch.ones_like(std), std)
    return _checked(mean, std, name)


def _checked(mean: Tensor, std: Tensor, name: str) -> tuple[Tensor, Tensor]:
    if not (torch.isfinite(mean).all() and torch.isfinite(std).all()):
        raise DataError(
            f"{name} holds values that are not finite or too large to standardize; "
            "remove them, or switch standardization off"
        )
    return mean, std


def _standardized(values: Tensor, mean: Tensor | None, std: Tensor | None, what: str) -> Tensor:
    if mean is None or std is None:
        return values
    _same_width(values, mean, what)
    dtype = values.dtype if values.is_floating_point() else torch.float32
    # In float64, because float32 would round away the spread of large values (a time stamp).
    return ((values.to("cpu", torch.float64) - mean) / std).to(values.device, dtype)


def _same_width(values: Tensor, mean: Tensor, what: str) -> None:
    # One row of a single column may come as a plain vector, so a mean of one number fits any row.
    expected = len(mean) if mean.ndim else 1
    got = values.shape[1] if values.ndim > 1 else 1
    if got != expected or values.ndim not in (mean.ndim + 1, 1):
        raise DataError(
            f"{what} of shape {tuple(values.shape)} do not fit a scaling learned on "
            f"{expected} columns or channels; give the columns it was trained with"
        )
