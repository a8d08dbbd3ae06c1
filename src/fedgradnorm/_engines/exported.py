"""What a client has learned as modules, and a client's row made from them."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import Tensor, nn

from fedgradnorm._engines.parts import ClientPart
from fedgradnorm._state.table import BUFFER, OWN, Row


@dataclass(frozen=True)
class Exported:
    """What a client has learned: its head, its own parts of the network, its stem and network."""

    head: nn.Module
    parts: dict[str, Tensor]
    stem: nn.Module | None = None
    network: Tensor | None = None


def exported(part: ClientPart, number: int, network: Tensor | None) -> Exported:
    """Copies of a row of a part, as modules on the CPU; ``network`` is the client's own, if any."""
    row = {key: part.rows[key][number].detach().cpu().clone() for key in [OWN, *part.buffers]}
    own = part.own.views(row[OWN]) | {k.removeprefix(BUFFER): row[k] for k in part.buffers}

    def named(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in own.items() if k.startswith(prefix)}

    def module(template: nn.Module, prefix: str) -> nn.Module:
        copied, mine = copy.deepcopy(template).cpu(), named(prefix)
        for key, tensor in (*copied.named_parameters(), *copied.named_buffers()):
            tensor.data = mine[key].clone()
        return copied

    stem = None if part.stem is None else module(part.stem, "stem.")
    own_network = None if network is None else network.cpu().clone()
    return Exported(module(part.head, "head."), named("network."), stem, own_network)


def row_of(part: ClientPart, client: Exported) -> Row:
    """The parameters and buffers of a row ``[1, ...]`` that :func:`exported` would give back."""
    named = {f"network.{k}": v for k, v in client.parts.items()}
    for prefix, module in (("head", client.head), ("stem", client.stem)):
        if module is not None:
            tensors = (*module.named_parameters(), *module.named_buffers())
            named |= {f"{prefix}.{key}": tensor for key, tensor in tensors}
    row = {OWN: part.own.flat(named)[None].to(part.rows.fresh[OWN])}
    for key in part.buffers:
        row[key] = named[key.removeprefix(BUFFER)].detach()[None].to(part.rows.fresh[key])
    return row
