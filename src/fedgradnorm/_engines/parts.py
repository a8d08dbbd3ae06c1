"""Clients of one structure: how they compute, as functions of tensors, and their first rows."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._client import Client
from fedgradnorm._engines.stacked_layers import StackedLayers
from fedgradnorm._round.local_update import LOCAL, LocalSpec
from fedgradnorm._state.table import BUFFER, CONSTANT, OPTIMIZER, OWN, Layout, Part, Row
from fedgradnorm.models._dividing import private_names
from fedgradnorm.models._fitting import own_stem, with_stem
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._given_inputs import form_words
from fedgradnorm.models._input_rows import Inputs, call_arguments, row_form
from fedgradnorm.models._streamed import Streamed, some_targets
from fedgradnorm.tasks._measures import WeightedLoss
from fedgradnorm.tasks._targets import labelled, mean_of_labelled
from fedgradnorm.tasks._task import Task

if TYPE_CHECKING:
    from fedgradnorm._federation.heads import HeadsOnDemand

SCALE, CLASSES = f"{CONSTANT}scale", f"{CONSTANT}classes"
SHARE = f"{CONSTANT}share"  # of each example of a batch in the mean loss: 0 for padding
PLACE = f"{CONSTANT}place"  # where its inputs and targets begin in their pools, and its size
LITTLE = 0.1  # of all examples


class Whole(nn.Module):
    """A client's stem, if any, the shared network and the client's head, one after the other."""

    def __init__(self, network: nn.Module, head: nn.Module, stem: nn.Module | None) -> None:
        super().__init__()
        self.network, self.head, self.stem = network, head, stem

    def forward(self, what: str, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Tensor:
        """The head's outputs, the ``features`` in front of it, or the ``head`` alone."""
        if what == "head":
            output: Tensor = self.head(*args)
            return output
        features: Tensor = with_stem(self.stem, self.network)(*args, **kwargs)
        return features if what == "features" else self.head(features)


@dataclass(frozen=True)
class Exported:
    """What a client has learned: its head, its own parts of the network, its stem and network."""

    head: nn.Module
    parts: dict[str, Tensor]
    stem: nn.Module | None = None
    network: Tensor | None = None


class ClientPart(Part):
    """Clients that can be run in one call: heads, stems, losses and batches of one form."""

    def __init__(
        self,
        client: Client,
        network: FlatNetwork,
        head: nn.Module,
        spec: LocalSpec,
        batch: int,
        padded: bool,
        buffers: Mapping[str, Tensor],
    ) -> None:
        like, module = network.vector, network.module
        self._network_buffers = {f"network.{name}": b.clone() for name, b in buffers.items()}
        self.head = copy.deepcopy(head).to(like.device)
        self.stem = own_stem(client.stem, client.name, like)
        self.whole = Whole(module, self.head, self.stem)
        self.task, self.batch, self.padded = client.task, batch, padded
        self.private = {name: network.private[name] for name in private_names(module)}
        own = {f"head.{n}": p.shape for n, p in _trained(self.head).items()}
        own |= {f"network.{n}": p.shape for n, p in self.private.items()}
        if self.stem is not None:
            own |= {f"stem.{n}": p.shape for n, p in _trained(self.stem).items()}
        self.own = Layout(own)
        self.heads = Layout({n: p.shape for n, p in _trained(self.head).items()})
        self.reaches_in = self.own.size > self.heads.size
        self.shared = Layout({n: module.get_parameter(n).shape for n in network.slices})
        self.head_optimizer = optimizers.make(spec.head_optimizer, self.own)
        self.local_optimizer = optimizers.make(spec.local_optimizer, self.shared)
        zeros = like.new_zeros(self.own.size)
        fresh = {OWN: zeros, PLACE: zeros.new_zeros(3, dtype=torch.int64)}
        fresh |= _named(OPTIMIZER, self.head_optimizer.start(zeros))
        fresh |= _named(BUFFER, self._buffers(self.head, self.stem))
        if spec.keeps_moments and spec.steps_locally:
            fresh |= _named(LOCAL, self.local_optimizer.start(like))
        if client.task.loss_scale != 1:
            fresh[SCALE] = like.new_ones(())
        if padded:
            fresh[SHARE] = like.new_zeros(batch)
        if (table := _class_weights([client.task], like)) is not None:
            fresh[CLASSES] = table[0]
        super().__init__(client, fresh)
        self.buffers = [key for key in fresh if key.startswith(BUFFER)]
        running = ("running_mean", "running_var")
        self.statistics = [key for key in self.buffers if key.endswith(running)]
        moments = [key for key in fresh if key.startswith((OPTIMIZER, LOCAL))]
        self.moved = [OWN, *self.buffers, *moments]  # what a round changes, and what it reads
        self.read = [*self.moved, *(key for key in (SCALE, SHARE, CLASSES) if key in fresh)]
        self.tied = _tied(self.whole)
        self.known_rows = set[int]()  # of clients active so far in this process
        linear = type(self.head) is nn.Linear and self.head.bias is not None
        self.linear = linear and len(self.heads.shapes) == 2 and not client.task.shape
        self.plain = self.linear and not self.reaches_in and client.task.is_plain

    def _buffers(self, head: nn.Module, stem: nn.Module | None) -> Row:
        """Running statistics of all modules, and what of head and stem is not trained."""
        found = dict(self._network_buffers)
        for name, module in (("head", head), ("stem", stem)):
            if module is not None:
                kept = dict[str, Tensor](module.named_buffers())
                kept |= {n: p for n, p in module.named_parameters() if not p.requires_grad}
                found |= {f"{name}.{n}": t.detach().clone() for n, t in kept.items()}
        return found

    def first_rows(self, clients: Sequence[Client], heads: HeadsOnDemand) -> Row:
        like = self.fresh[OWN]
        tasks = [client.task for client in clients]
        found = Row()
        if SCALE in self.rows:
            found[SCALE] = torch.tensor([task.loss_scale for task in tasks]).to(like)
        if SHARE in self.rows:
            sizes = torch.tensor([[min(self.batch, client.drawn)] for client in clients])
            found[SHARE] = ((torch.arange(self.batch) < sizes).double() / sizes).to(like)
        if (table := _class_weights(tasks, like)) is not None:
            found[CLASSES] = table
        drawn = heads.rows(clients) if self.linear and not self.reaches_in else None
        if drawn is not None:
            return found | {OWN: drawn.to(like)}
        each = list[Row]()
        for client in clients:
            head = copy.deepcopy(heads[client.name]).to(like.device)
            stem = own_stem(client.stem, client.name, like)
            named = _named("head.", _trained(head)) | _named("network.", self.private)
            named |= {} if stem is None else _named("stem.", _trained(stem))
            buffers = _named(BUFFER, self._buffers(head, stem))
            each.append({OWN: self.own.flat(named, like), **buffers})
        return found | {key: torch.stack([row[key] for row in each]) for key in each[0]}

    def exported(self, number: int, network: Tensor | None) -> Exported:
        """Copies of a row, as modules on the CPU; ``network`` is the client's own, if any."""
        row = {key: self.rows[key][number].detach().cpu().clone() for key in [OWN, *self.buffers]}
        own = self.own.views(row[OWN]) | {k.removeprefix(BUFFER): row[k] for k in self.buffers}
        modules: dict[str, nn.Module | None] = {}
        for prefix, template in (("head.", self.head), ("stem.", self.stem)):
            modules[prefix] = copied = copy.deepcopy(template)
            if copied is not None:
                for key, tensor in (*copied.cpu().named_parameters(), *copied.named_buffers()):
                    tensor.data = own[f"{prefix}{key}"].clone()
        head, prefix = modules["head."], "network."
        assert head is not None
        parts = {k.removeprefix(prefix): v for k, v in own.items() if k.startswith(prefix)}
        return Exported(
            head, parts, modules["stem."], None if network is None else network.cpu().clone()
        )

    def load(self, row: Row) -> tuple[nn.Module, nn.Module]:
        """Let the modules hold a client's row, without copies of parameters: network and head."""
        own = self.own.views(row[OWN])
        named = dict(self.whole.named_parameters())
        for name, view in own.items():
            named[name].data = view
        rest = dict(self.whole.named_buffers()) | named
        for key in self.buffers:
            rest[key.removeprefix(BUFFER)].data.copy_(row[key])
        return with_stem(self.stem, self.whole.network), self.head

    def run(
        self,
        what: str,
        each: Mapping[str, Tensor],
        common: Mapping[str, Tensor],
        x: Inputs | Tensor,
        rows: int | None,
    ) -> Tensor:
        """Apply a stage of the model to a block's examples ``[rows x batch, ...]``.

        ``each`` are tensors with an axis of clients, ``common`` those that all share. With ``rows``
        None there is one client, called plainly.
        """
        args, kwargs = call_arguments(x)
        if rows is None:
            # squeezed, not indexed: the gradient of an index is copied into a tensor of zeros
            own = {name: value.squeeze(0) for name, value in each.items()} | dict(common)
            return self._call(own, what, args, kwargs)
        size = len(next(iter(args or kwargs.values()))) // rows
        args = tuple(leaf.unflatten(0, (rows, size)) for leaf in args)
        kwargs = {name: leaf.unflatten(0, (rows, size)) for name, leaf in kwargs.items()}

        def one(own: Row, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Tensor:
            return self._call(own | dict(common), what, args, kwargs)

        with StackedLayers(), warnings.catch_warnings():
            # some operators have no batching rule: vmap loops over clients
            warnings.filterwarnings("ignore", "There is a performance drop")
            outputs: Tensor = vmap(one, randomness="different")(dict(each), args, kwargs)
        return outputs.flatten(0, 1)

    def _call(
        self, own: Row, what: str, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]
    ) -> Tensor:
        tied = {name: own[first] for name, first in self.tied.items() if first in own}
        output: Tensor = functional_call(
            self.whole, own | tied, (what, args, kwargs), tie_weights=False
        )
        return output

    def heads_outputs(self, heads: Mapping[str, Tensor], features: Tensor, rows: int) -> Tensor:
        """Outputs of stacked heads for features ``[rows x batch, ...]``."""
        if not self.linear:  # a head may begin in place, and features are read again
            return self.run("head", heads, {}, features.clone(), rows if rows > 1 else None)
        weight, bias = heads["head.weight"], heads["head.bias"]
        shaped = features.view(rows, -1, features.shape[-1])
        return torch.baddbmm(bias[:, None], shaped, weight.transpose(1, 2)).flatten(0, 1)

    def losses(self, output: Tensor, y: Tensor, row: Row) -> Tensor:
        """The mean loss of each client of a block, for outputs ``[rows x batch, ...]``."""
        task, count, share = self.task, len(row[OWN]), row.get(SHARE)
        table = row.get(CLASSES)
        if table is not None:
            size = len(output) // count
            table = table[:, None].expand(-1, size, *table.shape[1:]).flatten(0, 1)
        losses = task.row_losses(output, y, table)
        if losses.ndim == 0:  # one number for all examples: such a client is alone in its part
            losses = losses[None]
        else:
            each = losses.view(count, -1)
            if task.gaps:
                there = labelled(y).view_as(each)
                losses = mean_of_labelled(each, there if share is None else there & (share > 0))
            elif share is not None:
                losses = (each * share).sum(dim=1)
            else:
                losses = each.mean(dim=1)
        return losses * row[SCALE] if SCALE in row else losses


def padded_batches(clients: Sequence[Client], batch_size: int | None, pure: bool) -> dict[int, int]:
    """To how many examples each size of batch is padded, so that few parts hold all clients.

    Sizes up to twice as large as each other become the largest of them. Sizes of few clients become
    the next larger of those: padding that is ``LITTLE`` of all examples costs less than a part.
    Nothing is padded where an example's loss depends on the others of its batch.
    """
    for client in clients:
        alone = client.head is not None or isinstance(client.train[0], Streamed)
        task = client.task
        alone = alone or (task.has_own_loss and task.joins_rows(some_targets(client.train[1])))
        pure = pure and not alone
    counts = Counter(min(batch_size or client.drawn, client.drawn) for client in clients)
    if not pure:
        return {size: size for size in counts}
    largest = {(size - 1).bit_length(): size for size in sorted(counts)}
    found = {size: largest[(size - 1).bit_length()] for size in counts}
    little = LITTLE * sum(size * count for size, count in counts.items())
    for width, wider in itertools.pairwise(sorted(largest.values())):
        few = [size for size in counts if found[size] == width]
        if wider * sum(counts[size] for size in few) <= little:
            found |= dict.fromkeys(few, wider)
    return found


def part_key(client: Client, heads: HeadsOnDemand, batch: int, many: bool) -> Hashable:
    if client.privacy is not None:
        return "private", client.name
    task = client.task
    loss: Any = task.loss_function
    if isinstance(loss, WeightedLoss):
        loss = type(loss)
    elif task.has_own_loss and task.joins_rows(some_targets(client.train[1])):
        loss = client.name
    shape = heads.shape(client) if many else None
    head = shape or describe(heads[client.name]) or client.name
    stem = None if client.stem is None else describe(client.stem) or client.name
    form = "" if many else form_words(row_form(client.train[0]))
    if isinstance(client.train[0], Streamed):
        form += " streamed"
    if not isinstance(loss, str | type):
        loss = id(loss)
    task_form = task.kind, task.outputs, task.shape, task.gaps, task.loss_scale == 1
    return head, stem, loss, task_form, batch, form


def describe(module: nn.Module) -> str:
    """What one of PyTorch's own modules is, in full; empty for code of others, or with hooks.

    Two modules of one description compute the same with the same tensors.
    """
    for layer in module.modules():
        hooks = (layer._forward_hooks, layer._forward_pre_hooks, *backward_hooks(layer))
        own = type(layer).__module__.startswith("torch.nn.modules") and "forward" not in vars(layer)
        if not own or any(hooks):
            return ""
    shapes = [(n, tuple(p.shape), p.requires_grad) for n, p in module.named_parameters()]
    return f"{module} {shapes}"


def backward_hooks(layer: nn.Module) -> tuple[Mapping[int, Any], Mapping[int, Any]]:
    """What is called on the way back through a layer; under vmap nobody calls it."""
    return layer._backward_hooks, layer._backward_pre_hooks


def _trained(module: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}


def _named(prefix: str, values: Mapping[str, Tensor]) -> Row:
    return {f"{prefix}{key}": value for key, value in values.items()}


def _tied(module: nn.Module) -> dict[str, str]:
    """Further names of tensors that several layers hold, and the first name of each.

    A layer that is used twice has one name here. ``functional_call(tie_weights=True)`` gives it
    two, swaps its tensors twice, and puts back the wrong ones.
    """
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for owner, layer in module.named_modules():
        for key, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            if tensor is not None:
                name = f"{owner}.{key}"
                if first.setdefault(id(tensor), name) != name:
                    found[name] = first[id(tensor)]
    return found


def _class_weights(tasks: Sequence[Task], like: Tensor) -> Tensor | None:
    """Each client's weights of classes, where the loss has some."""
    losses = [task.loss_function for task in tasks]
    tables = [loss.table(like) for loss in losses if isinstance(loss, WeightedLoss)]
    return torch.stack(tables) if tables else None
