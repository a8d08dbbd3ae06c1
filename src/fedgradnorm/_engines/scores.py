"""Loss and metrics of many clients on one split, from what their heads answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError

NUMBERS_HELD = 2**22  # answers that wait on a GPU to be measured together


class HostTargets:
    """Targets of a GPU on the host, kept: they never change. Clients may hold the same ones."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, y: Tensor) -> Tensor:
        """The same targets on the host."""
        if id(y) not in self._kept:
            self._kept[id(y)] = y, y.cpu()
        return self._kept[id(y)][1]


class Scores:
    """Clients are added with their answers, and each gets its loss and metrics.

    On a GPU every number that is asked for waits for all work. So answers wait there for those of
    others, and come to the host with one copy. Losses and metrics of one's own may hold tensors of
    one device: they are measured where the answers are, and so are very many of these.
    """

    def __init__(self, split: str, targets: HostTargets) -> None:
        self._split, self._targets = split, targets
        self._found: dict[str, dict[str, float]] = {}
        self._waiting: list[tuple[Client, Tensor, Tensor]] = []
        self._held = 0

    def add(self, client: Client, output: Tensor, y: Tensor) -> None:
        """A client's answers for all rows of the split, and its targets, here or on the host."""
        alone = not is_far(output) or not client.task.measures_anywhere
        if alone or output.numel() > NUMBERS_HELD:
            self._measure(client, output, y)
            return
        self._waiting.append((client, output, y))
        self._held += output.numel()
        if self._held > NUMBERS_HELD:
            self._fetch()

    def put(self, found: Mapping[str, dict[str, float]]) -> None:
        """Loss and metrics that are known already."""
        self._found |= found

    def in_order(self, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Loss and metrics of all, by name."""
        self._fetch()
        return {name: self._found[name] for name in names}

    def _fetch(self) -> None:
        outputs = on_host([output for _, output, _ in self._waiting])
        for (client, _, y), output in zip(self._waiting, outputs, strict=True):
            self._measure(client, output, self._targets.of(y) if is_far(y) else y)
        self._waiting, self._held = [], 0

    def _measure(self, client: Client, output: Tensor, y: Tensor) -> None:
        with blaming(client.name, self._split):
            found = client.task.measure(output, y.to(output.device), client.scaling)
        self._found[client.name] = found


def is_far(output: Tensor) -> bool:
    """Whether it is not on the host."""
    return output.is_cuda


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors on the host; those of one type come with one copy."""
    found: list[Tensor] = list(tensors)
    for kind in {tensor.dtype for tensor in tensors}:
        places = [k for k, tensor in enumerate(tensors) if tensor.dtype == kind]
        flat = torch.cat([tensors[k].flatten() for k in places]).cpu()
        parts = flat.split([tensors[k].numel() for k in places])
        for k, part in zip(places, parts, strict=True):
            found[k] = part.view(tensors[k].shape)
    return found


@contextmanager
def blaming(name: str, split: str) -> Iterator[None]:
    """What is wrong with a metric names the client and the split."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"client {name!r}, {split} data: {error}") from error
