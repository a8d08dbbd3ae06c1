"""Named tensors as parts of one flat vector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


class Layout:
    """Where each named tensor is in a row of numbers.

    >>> layout = Layout({"weight": (2, 3), "bias": (2,)})
    >>> {name: tuple(part.shape) for name, part in layout.views(torch.zeros(5, 8)).items()}
    {'weight': (5, 2, 3), 'bias': (5, 2)}
    """

    def __init__(self, shapes: Mapping[str, Iterable[int]]) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.slices: dict[str, slice] = {}
        start = 0
        for name, shape in self.shapes.items():
            stop = start + int(torch.Size(shape).numel())
            self.slices[name] = slice(start, stop)
            start = stop
        self.size = start
        self._sizes = [part.stop - part.start for part in self.slices.values()]

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """The tensors in rows of numbers ``[..., size]``, as views ``[..., *shape]``."""
        parts = rows.split(self._sizes, dim=-1)
        named = zip(self.shapes.items(), parts, strict=True)
        return {
            name: part.unflatten(-1, shape) if shape else part[..., 0]
            for (name, shape), part in named
        }

    def flat(self, tensors: Mapping[str, Tensor], like: Tensor | None = None) -> Tensor:
        """One vector of the tensors, copied; their order here decides."""
        parts = [tensors[name].detach().reshape(-1) for name in self.shapes]
        if not parts:
            return torch.empty(0) if like is None else like.new_empty(0)
        return torch.cat(parts)

    def rows(
        self,
        tensors: Iterable[Tensor | None],
        count: int,
        like: Tensor,
        out: Tensor | None = None,
    ) -> Tensor:
        """Stacked tensors ``[count, *shape]``, in this order, as rows; None stands for zeros.

        They are written into ``out`` where it is given: new memory costs more than the copy.
        """
        parts = [
            like.new_zeros(count, size) if part is None else part.reshape(count, size)
            for part, size in zip(tensors, self._sizes, strict=True)
        ]
        return torch.cat(parts, dim=1, out=out) if parts else like.new_empty(count, 0)
