"""What of a network is shared, what each client keeps for itself, and what nobody trains.

A parameter that does not require a gradient is frozen. Others are shared where the patterns of
``shared`` match them, and private where not. A divided network carries its division: its
copies, flat vectors and norm layers then follow from that.
"""

from __future__ import annotations

import copy
import difflib
import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import Tensor, nn

from fedgradnorm._errors import ConfigError

log = logging.getLogger("fedgradnorm")

EVERYTHING = "*"
_MARK = "_fedgradnorm_private"


class Division(NamedTuple):
    """The names of a network's parameters, by whose they are."""

    shared: tuple[str, ...]
    private: tuple[str, ...]
    frozen: tuple[str, ...]


def divided(
    network: nn.Module, shared: str | Sequence[str], frozen: str | Sequence[str] | None
) -> nn.Module:
    """A copy of the network in which only ``shared`` is shared and ``frozen`` is not trained.

    A pattern matches a parameter by its name, by the name of a layer that it is in, or by such a
    layer's class: ``"encoder.0"``, ``"*lora*"``, ``"BatchNorm*"``. One that begins with ``!`` takes
    out what it matches, and the last pattern that matches decides; where the first one takes out,
    all else is in. Where everything is shared and nothing named, it is the network itself.
    """
    shared, frozen = _list(shared), _list(frozen or ())
    if not frozen and all(pattern == EVERYTHING for pattern in shared):
        return network
    network = copy.deepcopy(network)
    labels = _labels(network)
    parameters = dict(network.named_parameters())
    for name in _matched(labels, frozen, "frozen"):
        parameters[name].requires_grad_(False)
    wanted = _matched(labels, shared, "shared")
    trained = [name for name, p in parameters.items() if p.requires_grad]
    if not wanted.intersection(trained):
        raise ConfigError(
            f"nothing is shared: all {len(wanted)} parameters that shared = {shared!r} matches are "
            "frozen; set requires_grad of those that are to be trained, or use share = 'none'"
        )
    vars(network)[_MARK] = tuple(name for name in trained if name not in wanted)
    return network


def private_names(network: nn.Module) -> tuple[str, ...]:
    """The parameters of a divided network that each client has for itself."""
    names: tuple[str, ...] = vars(network).get(_MARK, ())
    return names


def division(network: nn.Module) -> Division:
    """Whose each parameter of the network is."""
    parameters, private = dict(network.named_parameters()), private_names(network)
    frozen = [name for name, p in parameters.items() if not p.requires_grad]
    taken = {*private, *frozen}
    return Division(tuple(n for n in parameters if n not in taken), private, tuple(frozen))


def division_words(network: nn.Module) -> str:
    """Whose the parameters are, with counts; nothing where everything is shared.

    >>> division_words(divided(nn.Linear(3, 2), "weight", None))
    'shared: 6 numbers (weight); private to each client: 2 (bias)'
    """
    parts = division(network)
    if not parts.private and not parts.frozen:
        return ""
    sizes = {name: p.numel() for name, p in network.named_parameters()}
    names = {"shared": parts.shared, "private to each client": parts.private}
    names["frozen"] = parts.frozen
    words = [
        f"{what}: {sum(sizes[name] for name in own):,} ({_some(own)})"
        for what, own in names.items()
        if own
    ]
    return "; ".join(words).replace(" (", " numbers (", 1)


def log_division(network: nn.Module, norm_layer: Sequence[str]) -> None:
    """Say whose the parameters are, where not all are shared, and where gradients are measured."""
    if words := division_words(network):
        log.info("%s", words)
    log.info("norm layer: %s", ", ".join(norm_layer))


def put_parts(network: nn.Module, parts: Mapping[str, Tensor]) -> None:
    """Copy a client's own statistics and private parameters into a network, as far as it has any.

    Integers stay integers; what the network does not have is left out.
    """
    own = {**dict(network.named_buffers()), **dict(network.named_parameters())}
    for name, value in parts.items():
        if name in own:
            own[name].data.copy_(value)


def _labels(network: nn.Module) -> dict[str, list[str]]:
    """What a pattern may match of each parameter: its names, its layers' names and classes."""
    modules = dict(network.named_modules())
    first = {id(p): name for name, p in network.named_parameters()}
    found: dict[str, list[str]] = {name: [] for name in first.values()}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        names = name.split(".")  # the layers that it is in, the innermost first
        layers = [".".join(names[:end]) for end in range(len(names) - 1, 0, -1)]
        kinds = [type(modules[layer]).__name__ for layer in layers if layer in modules]
        found[first[id(parameter)]] += [name, *layers, *kinds]
    return found


def _matched(labels: Mapping[str, Sequence[str]], patterns: Sequence[str], what: str) -> set[str]:
    """The parameters that the patterns choose; a ConfigError if one of them matches nothing."""
    chosen = set(labels) if patterns and patterns[0].startswith("!") else set[str]()
    for pattern in patterns:
        bare = pattern.removeprefix("!")
        hit = {name for name, own in labels.items() if any(fnmatchcase(o, bare) for o in own)}
        if not hit:
            known = list(dict.fromkeys(label for own in labels.values() for label in own))
            near = difflib.get_close_matches(bare.strip("*"), known, n=3, cutoff=0.5)
            hint = f"; near it: {', '.join(near)}" if near else ""
            raise ConfigError(
                f"{what} = {bare!r} matches no parameter of the network{hint} "
                f"(its parameters: {_some(list(labels))})"
            )
        chosen = chosen - hit if pattern.startswith("!") else chosen | hit
    return chosen


def _some(names: Sequence[str], letters: int = 120) -> str:
    """The names; of many the first and the last."""
    if len(names) < 3 or len(", ".join(names)) <= letters:
        return ", ".join(names)
    return f"{names[0]} to {names[-1]}, {len(names)} parameters"


def _list(patterns: str | Sequence[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)
