"""A client's own first part: from its rows, of whatever form, to what the shared network takes."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import Tensor, nn

from fedgradnorm._checks import shown
from fedgradnorm._errors import ModelError
from fedgradnorm.models._fitting import check_sized


class Stemmed(nn.Module):
    """A client's first part and the shared network behind it; both are the very modules given.

    What the first part gives the network is called with; a dict is its keyword arguments.
    """

    def __init__(self, stem: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.stem, self.network = stem, network

    def forward(self, *positional: Tensor, **named: Tensor) -> Tensor:
        """One after the other."""
        between = self.stem(*positional, **named)
        keywords = isinstance(between, Mapping)
        output: Tensor = self.network(**between) if keywords else self.network(between)
        return output


def in_front(stem: nn.Module | None, network: nn.Module) -> nn.Module:
    """The network with a client's first part in front of it, where the client has one."""
    return network if stem is None else Stemmed(stem, network)


def own_stem(stem: object, client: str, like: Tensor) -> nn.Module | None:
    """A copy of the first part that a client brings; a ModelError if it is no module."""
    if stem is None:
        return None
    if not isinstance(stem, nn.Module):
        raise ModelError(
            f"client {client!r}: its stem must be a torch.nn.Module, not {shown(stem)}"
        )
    check_sized(stem, f"the stem of client {client!r}")
    return copy.deepcopy(stem).to(like.device, like.dtype)
