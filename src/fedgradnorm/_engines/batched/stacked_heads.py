"""Linear heads of many clients at once: those of one shape are one batched product."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedgradnorm._engines.batched.closed_losses import ClosedLoss, feature_signal, head_gradients
from fedgradnorm._engines.batched.head_group import Chosen, HeadGroup, Members, aligned, some
from fedgradnorm._engines.passes.kernels import built
from fedgradnorm._fusing import Fused


class StackedHeads(HeadGroup):
    """Linear heads with any loss.

    Each client's own parameters become views of ``weight[k]``, ``bias[k]``, so that its optimiser,
    its checkpoint and the other engines see the same numbers.
    """

    def __init__(self, members: Members, heads: Sequence[nn.Linear]) -> None:
        super().__init__(members)
        self.heads = list(heads)
        self.weight = torch.stack([head.weight.detach() for head in heads])
        self.bias = torch.stack([head.bias.detach() for head in heads])
        for k, head in enumerate(heads):
            head.weight.data, head.bias.data = self.weight[k], self.bias[k]
        self._room: tuple[Tensor, Tensor] | None = None
        self.taking_part = 0  # heads whose gradients lie in the room

    @property
    def room(self) -> tuple[Tensor, Tensor]:
        """Where gradients lie from the first :meth:`take_part` on, a row for each head."""
        if self._room is None:
            self._room = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
        return self._room

    def take_part(self, first: int) -> None:
        """Let the first members be those that have gradients, also in rounds to come.

        Gradients then lie in one place, which :meth:`place_gradients` fills in two calls. They stay
        until it fills it again.
        """
        weight, bias = self.room
        for k in range(first, self.taking_part):
            self.heads[k].weight.grad = self.heads[k].bias.grad = None
        for k in range(self.taking_part, first):
            self.heads[k].weight.grad, self.heads[k].bias.grad = weight[k], bias[k]
        self.taking_part = first

    def parameters(self, chosen: Chosen = None) -> list[Tensor]:
        """Stacked weights and biases."""
        both = some(self.weight, chosen), some(self.bias, chosen)
        return [part.detach().requires_grad_() for part in both]

    def outputs(self, features: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """One product for all."""
        weight, bias = parameters
        shaped = features.view(len(weight), self.batch, -1)
        return torch.baddbmm(bias[:, None], shaped, weight.transpose(1, 2)).flatten(0, 1)

    def place_gradients(self, gradients: Sequence[Tensor], members: Sequence[int]) -> None:
        """A row to each head."""
        if self._room is not None:
            for room, gradient in zip(self._room, gradients, strict=True):
                room[: len(gradient)].copy_(gradient)
            return
        weight, bias = (aligned(gradient) for gradient in gradients)
        for row, member in enumerate(members):
            head = self.heads[member]
            head.weight.grad, head.bias.grad = weight[row], bias[row]


class ClosedHeads(StackedHeads):
    """Linear heads with one of the usual losses, whose gradients have a closed form."""

    def __init__(self, members: Members, heads: Sequence[nn.Linear], form: ClosedLoss) -> None:
        super().__init__(members, heads)
        self.form = form
        # [clients, 1, 1]: what a row's signal is multiplied with
        self.factor = (self.scale * (form.factor / self.batch))[:, None, None]
        self._gradients: Callable[..., tuple[Tensor, Tensor]] = head_gradients
        self._signal: Callable[..., tuple[Tensor, Tensor, Tensor]] = feature_signal

    def retask(self, scale: Tensor, weights: Tensor | None) -> None:
        """Let the first members be other clients; what signals are multiplied with follows."""
        super().retask(scale, weights)
        self.factor[: len(scale), 0, 0] = scale * (self.form.factor / self.batch)

    def use_kernels(self) -> bool:
        """Compute with one kernel a step, on a GPU and where the heads are small."""

        def make() -> bool:
            from fedgradnorm._engines.passes.kernels import heads

            if not heads.fits(self.batch, self.bias.shape[1], self.weight):
                return False
            heads.try_out(self.form, self.batch, self.weight[:1], self.bias[:1])
            self._gradients, self._signal = heads.head_gradients, heads.feature_signal
            return True

        return self.weight.is_cuda and built("heads", make) is True

    def fuse(self) -> None:
        """Make few kernels of the many small ones: our own, or else the compiler's."""
        if not self.use_kernels():
            self._gradients, self._signal = Fused(head_gradients), Fused(feature_signal)

    def head_gradients(self, features: Tensor, targets: Tensor, chosen: Chosen) -> Sequence[Tensor]:
        """Gradients of weights and biases."""
        return self._gradients(self.form, *self._stacked(features, chosen), targets)

    def signal(
        self, features: Tensor, targets: Tensor, chosen: Chosen, with_heads: bool
    ) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
        """Each client's loss, d loss / d features and, if asked for, the heads' gradients."""
        stacked = self._stacked(features, chosen)
        means, back, at_output = self._signal(self.form, *stacked, targets)
        gradients: Sequence[Tensor] = ()
        if with_heads:
            gradients = torch.bmm(at_output.transpose(1, 2), stacked[-1]), at_output.sum(dim=1)
        return means * some(self.scale, chosen), back.flatten(0, 1), gradients

    def _stacked(self, features: Tensor, chosen: Chosen) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Factor, weights and biases of the members, and their features [clients, batch, F]."""
        parts = (self.factor, self.weight, self.bias)
        factor, weight, bias = (some(part, chosen) for part in parts)
        return factor, weight, bias, features.view(len(weight), self.batch, -1)
