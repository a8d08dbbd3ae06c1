"""One pass for all clients: with one shared step, FedGradNorm costs what joint training costs.

At the start of a round all clients hold the same shared network, so one forward pass serves them
all. The gradient at the last layer comes first in a backward pass: each client's gradient norm is
measured there, the weights are moved, each client's part of the output gradient is scaled by its
weight, and one backward pass gives the aggregate. Nobody's full gradient is ever formed.

A layer's gradient is a sum over the examples of the batch. Call the layer's inputs A and the
gradient at its outputs D. Client k's gradient of a linear layer is D_k^T A_k. Its squared length is
sum((A_k A_k^T) * (D_k D_k^T)): two small products instead of a matrix as large as the layer.
Other layers go through vmap over the client axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from fedgradnorm._engines.examples import Batch, Block, Plan, SharedExamples
from fedgradnorm._engines.gradients import head_gradient
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.local_update import LocalSpec, step_own
from fedgradnorm._round.reports import Reports
from fedgradnorm._state.table import Layout, Row
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._input_rows import call, concatenated

Layers = dict[str, tuple[Tensor, Tensor]]
"""Inputs and output gradients of layers, by name."""
Features = Callable[[Block, Batch, range], Callable[[int], Tensor]]
"""What the network, as it is, makes of a block's batches, by step."""


class NormTap:
    """Remembers inputs and outputs of the measured layers in a forward pass."""

    def __init__(self, network: nn.Module, measured: Sequence[str]) -> None:
        self.layers: dict[str, list[str]] = {}
        for name in measured:
            owner, _, parameter = name.rpartition(".")
            self.layers.setdefault(owner, []).append(parameter)
        self.modules = {owner: network.get_submodule(owner) for owner in self.layers}
        own = {network.get_parameter(name) for name in measured}
        users = [p for m in network.modules() for p in m.parameters(recurse=False) if p in own]
        self.tied = len(users) > len(own)
        self.seen: list[tuple[str, Tensor, Tensor]] = []
        self.on = True  # other passes than the joint one are not remembered

        def remember(owner: str, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if self.on and torch.is_grad_enabled():
                first: Any = inputs[0] if inputs else None  # called by keyword: not to be measured
                self.seen.append((owner, first, output))

        for owner, module in self.modules.items():
            module.register_forward_hook(partial(remember, owner))

    def problem(self) -> str | None:
        """Why the layers seen in the last forward pass cannot be measured, if they cannot."""
        if self.tied:
            return "a parameter of the measured layer belongs to several layers"
        owners = [owner for owner, _, _ in self.seen]
        if sorted(owners) != sorted(self.layers):
            return "a measured layer is not called exactly once in a forward pass"
        if not all(isinstance(part, Tensor) for seen in self.seen for part in seen[1:]):
            return "a measured layer does not map one tensor to one tensor"
        if any(output._version for _, _, output in self.seen):  # then the gradient is another's
            return "the output of a measured layer is changed in place"
        return None

    def taken(self, output: Tensor, gradient: Tensor, once: SharedExamples | None) -> Layers:
        """What the layers saw, for every example of the joint batch, in their own precision.

        Tasks that share an example have different gradients there, so each goes back by itself.
        """
        outputs = [out for _, _, out in self.seen]
        back = partial(torch.autograd.grad, output, outputs, retain_graph=True)
        gradients = back(gradient) if once is None else once.each_task(gradient, back)
        found = Layers()
        for (owner, inputs, _), d in zip(self.seen, gradients, strict=True):
            own: Tensor = getattr(self.modules[owner], self.layers[owner][0])
            a = inputs.detach() if once is None else inputs.detach()[once.back]
            a = a.to(own.dtype) if a.is_floating_point() else a  # else indices of an embedding
            found[owner] = a, d.detach().to(own.dtype)
        self.seen.clear()
        return found

    def squared(self, layers: Layers, rows: slice, batch: int) -> Tensor:
        """|gradient on the measured layers|^2 of each client in ``rows``, ``batch`` each."""
        found = list[Tensor]()
        for owner, (inputs, gradient) in layers.items():
            module, wanted = self.modules[owner], self.layers[owner]
            a = inputs[rows].unflatten(0, (-1, batch))
            d = gradient[rows].unflatten(0, (-1, batch))
            if type(module) is nn.Linear and a.ndim == 3:
                found.append(linear_squared(a, d, wanted))
                continue
            own = {name: getattr(module, name).detach() for name in wanted}

            def one(a: Tensor, d: Tensor, module: nn.Module = module, own: Row = own) -> Tensor:
                pull = vjp(lambda p: functional_call(module, p, (a,)), own)[1]
                return torch.stack([g.square().sum() for g in pull(d)[0].values()]).sum()

            found.append(vmap(one)(a, d))
        return sum(found[1:], start=found[0])


def linear_squared(a: Tensor, d: Tensor, wanted: Sequence[str]) -> Tensor:
    """Squared length of each client's gradient of a linear layer: inputs, output gradients.

    Both are [client, example, ...]. The bias is a weight whose input is always 1, so together with
    the weight it adds 1 to each A_k A_k^T.
    """
    if wanted == ["bias"]:
        return d.sum(dim=1).square().sum(dim=1)
    bias = "bias" in wanted
    if a.shape[1] ** 2 <= a.shape[2] * d.shape[2]:
        inputs = torch.bmm(a, a.transpose(1, 2))
        if bias:
            inputs += 1
        pairs = inputs.mul_(torch.bmm(d, d.transpose(1, 2)))
        return pairs.sum(dim=(1, 2)).clamp_min_(0)
    total = torch.bmm(d.transpose(1, 2), a).square_().sum(dim=(1, 2))
    return total + d.sum(dim=1).square_().sum(dim=1) if bias else total


class JointPass:
    """A forward pass for everybody, the norms of gradients, and the weighted backward pass."""

    def __init__(self, network: FlatNetwork, norm_layer: Sequence[str]) -> None:
        self.network = network
        shapes = {name: network.module.get_parameter(name).shape for name in network.slices}
        self._layout, self._sum = Layout(shapes), network.vector.new_empty(1, len(network.vector))
        self._tap = NormTap(network.module, norm_layer)
        self._tap.on = False
        self._output = self._gradient = self.owner = torch.empty(0)
        self._once: SharedExamples | None = None

    def run(
        self,
        shared: Tensor,
        plan: Plan,
        rows: Sequence[Row],
        batches: Sequence[Batch],
        spec: LocalSpec,
        options: Mapping[str, Any] | None,
        later: Features,
    ) -> tuple[Tensor, Tensor]:
        """The clients' part of a round: losses and gradient norms, group after group.

        ``later`` gives the features of head steps after the first.
        """
        network, once = self.network, plan.once
        self._once, self.owner = once, plan.owner
        x = concatenated([batch.x(0) for batch in batches])
        network.use(shared)
        network.module.train()
        self._output = self._gradient = torch.empty(0)  # the last round's graph must be gone
        self._tap.on = True
        self._output = call(network.module, x if once is None else x[once.first])
        self._tap.on = False
        features = self._output.detach() if once is None else self._output.detach()[once.back]
        stretches = list[tuple[int, int, int]]()  # of examples, of clients of one batch size
        pieces = list[Callable[[], tuple[Tensor, Tensor]]]()
        start = 0
        for group, row, batch in zip(plan.groups, rows, batches, strict=True):
            end, size = start + group.part.batch * len(group.names), group.part.batch
            z = features[start:end]
            pieces.append(partial(_heads, group, row, batch, z, spec, options, later))
            if stretches and stretches[-1][2] == size:
                stretches[-1] = stretches[-1][0], end, size
            else:
                stretches.append((start, end, size))
            start = end
        losses, gradients = zip(*in_branches(pieces, features.device), strict=True)
        self._gradient = torch.cat(gradients)
        seen = self._tap.taken(self._output, self._gradient, once)
        norms = torch.cat([self._tap.squared(seen, slice(a, b), n) for a, b, n in stretches])
        return torch.cat(losses).double(), norms.double().sqrt()

    def backward(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i grad F_i, by one backward pass; one coefficient per client of the pass.

        The vector is written over by the next call.
        """
        each = coefficients[self.owner].to(self._gradient.dtype)
        gradient = self._gradient * each.reshape(-1, *[1] * (self._gradient.ndim - 1))
        gradient = gradient if self._once is None else self._once.summed(gradient)
        leaves = [self.network.module.get_parameter(name) for name in self.network.slices]
        found = torch.autograd.grad(self._output, leaves, gradient, allow_unused=True)
        return self._layout.rows(found, 1, self._sum, self._sum)[0]


def _heads(
    group: Block,
    row: Row,
    batch: Batch,
    features: Tensor,
    spec: LocalSpec,
    options: Mapping[str, Any] | None,
    later: Features,
) -> tuple[Tensor, Tensor]:
    """The head steps of a part's clients; losses, and d loss / d features."""
    part, steps = group.part, 0 if spec.joint_phases else spec.head_steps
    more = later(group, batch, range(1, steps)) if steps > 1 else None
    for k in range(steps):
        z = more(k) if more and k else features
        gradient = head_gradient(part, row, z, batch.y(k), own=True)[2]
        step_own(part.head_optimizer, spec, row, gradient, options)
    losses, back, gradient = head_gradient(
        part, row, features, batch.y(0), own=spec.joint_phases, inputs=True
    )
    assert back is not None
    if gradient is not None:
        step_own(part.head_optimizer, spec, row, gradient, options)
    return losses, back


@dataclass(frozen=True)
class JointReports(Reports):
    """Reports that hold one forward pass instead of N gradients."""

    joint: JointPass
    turns: Tensor  # where the clients of the pass are among those that were asked

    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i, by one backward pass."""
        return self.joint.backward(coefficients[self.turns])

    def gradients(self) -> Tensor:
        """Refused: a joint pass forms no single client's update."""
        raise ConfigError(
            "executor 'joint' forms no single gradients; use executor='vmap' or 'loop'"
        )


T = TypeVar("T")

_STREAMS: dict[torch.device, list[torch.cuda.Stream]] = {}


def in_branches(pieces: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """The results of independent pieces of work, which become branches of a captured CUDA graph.

    One part's work alone leaves most of a GPU idle. While a graph is captured, every piece but the
    first has a stream of its own, which waits for everything launched before and is joined at the
    end. Otherwise they run one after another.
    """
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if not capturing or len(pieces) < 2:
        return [piece() for piece in pieces]
    streams = _STREAMS.setdefault(device, [])
    while len(streams) < len(pieces) - 1:
        streams.append(torch.cuda.Stream(device))
    here, others = torch.cuda.current_stream(device), streams[: len(pieces) - 1]
    for stream in others:
        stream.wait_stream(here)
    found = [pieces[0]()]
    for stream, piece in zip(others, pieces[1:], strict=True):
        with torch.cuda.stream(stream):
            found.append(piece())
    for stream in others:
        here.wait_stream(stream)
    return found
