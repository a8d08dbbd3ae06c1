"""Adam's step of many networks that are rows of one matrix, on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._engines.passes.kernels import built

BEYOND = ("amsgrad", "maximize", "differentiable", "decoupled_weight_decay")
"""Options with which the step is left to torch's own optimiser."""

MOST_ROWS = 65535  # of a kernel's programs along one axis


class AdamOfRows:
    """Steps all rows of ``vectors`` [networks, P] at once, with one kernel.

    The moments are rows of matrices, too. Each network's own optimiser in ``owners`` holds its rows
    as views, so it may take a step by itself, be saved and be loaded.
    """

    def __init__(self, vectors: Tensor, owners: Sequence[torch.optim.Optimizer]) -> None:
        self._vectors, self._owners = vectors, owners
        self._mean = self._square = self._counts = torch.empty(0)  # until they are needed
        self._told: tuple[Any, ...] = ()
        self._how = torch.empty(0)

    @staticmethod
    def fits(vectors: Tensor, optimizer: torch.optim.Optimizer) -> bool:
        """Whether these are Adam's steps on a GPU, with none of the rarer options."""
        (group,) = optimizer.param_groups
        plain = optimizers.is_adam(optimizer) and not any(group.get(key) for key in BEYOND)
        few = len(vectors) <= MOST_ROWS
        return plain and few and vectors.is_cuda and vectors.dtype in (torch.float32, torch.float64)

    def try_out(self) -> None:
        """Fail now if the kernel cannot be built, and not in the middle of a round."""
        group = self._owners[0].param_groups[0]
        one = self._vectors[:1].clone()
        nothing, once = one.new_zeros(one.shape), one.new_ones(1, dtype=torch.float32)
        self._step(one, nothing, (nothing, nothing), once, group)

    def ready(self) -> bool:
        """Whether everybody has moments. Those that were loaded are put into their rows.

        To be asked before rounds are captured: what is put there then would be put there again.
        """
        kept = [next(iter(owner.state.values()), None) for owner in self._owners]
        if not all(kept):
            return False
        if not len(self._counts):
            rows, numbers = self._vectors.shape
            self._mean, self._square = (self._vectors.new_zeros(rows, numbers) for _ in range(2))
            self._counts = self._vectors.new_zeros(rows, dtype=torch.float32)
        tables = {"exp_avg": self._mean, "exp_avg_sq": self._square, "step": self._counts}
        for place, state in enumerate(kept):
            assert state is not None
            for key, table in tables.items():
                row = table[place]
                if state[key].data_ptr() != row.data_ptr():
                    state[key] = row.copy_(state[key])
        return True

    @torch.no_grad()
    def step(self, gradients: Tensor, how: Mapping[str, Any]) -> None:
        """A step along the rows of ``gradients``, with the options of an optimiser's group."""
        self._counts += 1
        self._step(self._vectors, gradients, (self._mean, self._square), self._counts, how)

    def _step(
        self,
        vectors: Tensor,
        gradients: Tensor,
        moments: tuple[Tensor, Tensor],
        counts: Tensor,
        how: Mapping[str, Any],
    ) -> None:
        from fedgradnorm._engines.passes.kernels import adam

        told = tuple(how[key] for key in ("lr", "betas", "eps", "weight_decay"))
        if told != self._told:  # kept on the device: a captured round may not copy to it
            self._told, self._how = told, adam.options(how, vectors.device)
        decays = bool(how["weight_decay"])
        adam.adam(vectors, gradients, *moments, counts, self._how, decays=decays)


def adam_of_rows(vectors: Tensor, owners: Sequence[torch.optim.Optimizer]) -> AdamOfRows | None:
    """One kernel for everybody's step, where there is one for it."""
    if not AdamOfRows.fits(vectors, owners[0]):
        return None

    def make() -> AdamOfRows:
        found = AdamOfRows(vectors, owners)
        found.try_out()
        return found

    return built("Adam", make)
