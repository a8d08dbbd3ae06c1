"""Which engine runs a federation: the fastest that is right, and why."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.distributed import DistributedEngine
from fedgradnorm._engines.joint import JointEngine
from fedgradnorm._engines.loop import LoopEngine
from fedgradnorm._engines.passes.gauge_tap import GaugeTap
from fedgradnorm._engines.passes.inner_products import ProductTap
from fedgradnorm._engines.protocol import Engine
from fedgradnorm._engines.ranks import world
from fedgradnorm._engines.roster import RosterEngine, roster_obstacle
from fedgradnorm._engines.stacked import StackedEngine
from fedgradnorm._engines.unshared import Unshared
from fedgradnorm._errors import ConfigError
from fedgradnorm._launched import asked_for
from fedgradnorm._round.client_round import LocalSettings
from fedgradnorm.models._dividing import private_names
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._given_inputs import form_words
from fedgradnorm.models._input_rows import (
    Inputs,
    call,
    concatenated,
    has_sequences,
    in_chunks,
    row_form,
)
from fedgradnorm.models._streamed.rows import Streamed
from fedgradnorm.weighting import Needs

log = logging.getLogger("fedgradnorm")

PROBE_ROWS = 4
NUMBERS_READ = 1 << 26  # of rows that lie elsewhere, in one round of the roster engine


def make_engine(
    name: str,
    network: nn.Module,
    clients: Sequence[Client],
    gauge: Sequence[str],
    how: LocalSettings,
    needs: Needs,
    device: torch.device,
    **settings: Any,
) -> Engine:
    """The engine of this name, or with "auto" the fastest that does this training right.

    Under torchrun "auto" spreads the clients over ranks. A client alone is not worth a message:
    every rank trains it, all with the same result.
    """

    if name != "distributed" and not (name == "auto" and asked_for() > 1 and len(clients) > 1):
        return _make_local(name, network, clients, gauge, how, needs, device, **settings)

    here, heads = world(), settings.pop("heads")

    def agreed(mine: str | None) -> str | None:
        """Rows of clients are gathered from all ranks, so all of them keep such, or none does."""
        others = [f"on rank {k}, {reason}" for k, reason in enumerate(here.gather(mine)) if reason]
        return mine or next(iter(others), None)

    def make_local(own: Sequence[Client]) -> Engine | None:
        # Inner products across ranks are taken from the gradients themselves.
        each = needs | Needs.GRADIENT if Needs.GRAM in needs else needs
        streamed = here.anyone(settings.get("streamed", False))
        if own:
            given = {**settings, "heads": heads, "agreed": agreed, "streamed": streamed}
            return _make_local("auto", network, own, gauge, how, each, device, **given)
        if settings.get("few") or streamed:
            agreed(None)
        return None

    return DistributedEngine(clients, heads, world=here, device=device, make_local=make_local)


def _make_local(
    name: str,
    network: nn.Module,
    clients: Sequence[Client],
    gauge: Sequence[str],
    how: LocalSettings,
    needs: Needs,
    device: torch.device,
    few: bool = False,
    streamed: bool = False,
    unlike_roster: str | None = None,
    agreed: Callable[[str | None], str | None] = lambda reason: reason,
    **settings: Any,
) -> Engine:
    """An engine that runs all of these clients in this process.

    ``few`` says that few of them take part in a round, ``streamed`` that somebody's rows are read
    as they are needed, and ``unlike_roster`` why the roster engine would not do for other reasons.
    ``agreed`` is told why not, and may have reasons of its own.
    """
    joint = _one_pass_obstacle(network, clients, gauge, how, needs)
    obstacles = {
        "joint": joint or _streamed(clients),
        "stacked": stacked_obstacle(network, clients, how),
        "loop": None,
    }
    if few or streamed or name == "roster":
        reason = joint or unlike_roster or roster_obstacle(clients, how, Needs.GRAM in needs)
        if not few:
            reason = reason or _gathered_obstacle(clients, how, settings["batch_size"])
        obstacles = {"roster": agreed(reason), **obstacles}
    if name == "auto":
        name = next(key for key, obstacle in obstacles.items() if obstacle is None)
        reasons = "; ".join(f"not {key}: {o}" for key, o in obstacles.items() if o is not None)
        log.info("engine %s%s", name, f" ({reasons})" if reasons else "")
    elif obstacles[name] is not None:
        raise ConfigError(f"engine {name!r} cannot run this: {obstacles[name]}; use engine='auto'")
    given = {"gauge": gauge, "how": how, "device": device, **settings}
    if name == "roster":
        return RosterEngine(network, clients, **given)
    given["heads"] = {client.name: given["heads"][client.name] for client in clients}
    if name == "joint":
        return JointEngine(network, clients, products=Needs.GRAM in needs, **given)
    return (LoopEngine if name == "loop" else StackedEngine)(network, clients, **given)


def _one_pass_obstacle(
    network: nn.Module,
    clients: Sequence[Client],
    gauge: Sequence[str],
    how: LocalSettings,
    needs: Needs,
) -> str | None:
    """Why one pass for everybody would not be the same training, or None if it is."""
    if how.shared_steps != 1:
        return f"shared_steps = {how.shared_steps}, so the clients' networks differ"
    if how.update != "gradient" or how.report_loss != "before":
        return "it sends raw gradients and losses before the step only"
    if Needs.GRADIENT in needs:
        return "the weighting needs every client's gradient"
    if how.clip is not None:
        return "clip needs the length of every client's gradient"
    return _mixing_obstacle(network, clients) or _tap_obstacle(network, clients, gauge, needs)


def stacked_obstacle(
    network: nn.Module, clients: Sequence[Client], how: LocalSettings
) -> str | None:
    """Why stacked networks would not be the same training, or None if they are."""
    return (
        _step_obstacle(how)
        or _fields_obstacle(clients)
        or _mixing_obstacle(network, clients)
        or _streamed(clients)
    )


def _streamed(clients: Sequence[Client]) -> str | None:
    """Who reads its rows as they are needed, so that they cannot be one tensor with others'."""
    if first := next((c.name for c in clients if isinstance(c.train[0], Streamed)), None):
        return f"client {first!r} reads its rows batch by batch, and others cannot join them"
    return None


def _gathered_obstacle(
    clients: Sequence[Client], how: LocalSettings, batch_size: int | None
) -> str | None:
    """Whether a round of everybody's rows is too large to be read at once."""
    numbers = sum(
        how.steps * min(batch_size or c.drawn, c.drawn) * c.train[0].numbers
        for c in clients
        if isinstance(c.train[0], Streamed)
    )
    if numbers <= NUMBERS_READ:
        return None
    return f"a round reads {numbers:,} numbers from where they lie, which is more than it holds"


def _step_obstacle(how: LocalSettings) -> str | None:
    local = how.local_optimizer or {}
    plain = {key: value for key, value in local.items() if key not in ("name", "lr") and value}
    if how.update != "gradient" or how.report_loss != "before":
        return "it sends raw gradients and losses before the step only"
    if local.get("name") != "sgd" or plain:
        return "its local steps are plain SGD"
    if how.proximal and how.shared_steps > 1:
        return "its local steps have no proximal term"
    if how.clip is not None and how.shared_steps > 1:
        return "it does not clip every local step"
    return None


def make_unshared(
    network: nn.Module,
    clients: Sequence[Client],
    heads: Mapping[str, nn.Module],
    how: LocalSettings,
    **settings: Any,
) -> Unshared | None:
    """Clients that share nothing, to be run side by side; None where that is another training."""
    reason = unshared_obstacle(network, clients, how)
    log.info("%d clients %s", len(clients), f"in turn: {reason}" if reason else "side by side")
    return None if reason else Unshared(network, clients, heads, how=how, **settings)


def unshared_obstacle(
    network: nn.Module, clients: Sequence[Client], how: LocalSettings
) -> str | None:
    """Why networks side by side would not be the same training, or None if they are."""
    if next(network.buffers(), None) is not None:
        return "the network has buffers, which each client keeps for itself"
    steps = replace(how, local_optimizer={"name": "sgd"}) if how.shared_steps == 1 else how
    return stacked_obstacle(network, clients, steps)


def _fields_obstacle(clients: Sequence[Client]) -> str | None:
    if all(isinstance(client.train[0], Tensor | Streamed) for client in clients):
        return None  # rows that are read batch by batch have an obstacle of their own
    return "its networks are called with one tensor"


def _mixing_obstacle(network: nn.Module, clients: Sequence[Client]) -> str | None:
    """Networks must be alike; rows must not see each other, nor chance.

    The last two are tried out, not guessed from layer names.
    """
    if private := private_names(network):
        return f"{len(private)} parameters of the network are private to each client"
    if first := next((client.name for client in clients if client.stem is not None), None):
        return f"client {first!r} has a first part of its own"
    if promising := next((client.name for client in clients if client.privacy is not None), None):
        return f"client {promising!r} has privacy, and clips the gradient of each of its rows"
    shapes = {form_words(row_form(client.train[0])) for client in clients}
    if len(shapes) > 1:
        return f"clients have inputs of different shapes {sorted(shapes)}"
    if any(has_sequences(_some_rows(client)) for client in clients):
        return "sequences are padded to the longest of each batch"
    for client in clients:
        if client.head is not None and _random_or_mixing(client.head, None):
            return f"the head of client {client.name!r} has dropout or batch statistics"
    if _random_or_mixing(network, _probe(network, clients)):
        return "the shared network has dropout or batch statistics"
    return None


def _some_rows(client: Client) -> Inputs:
    """A client's training rows; the first one where they are read as they are needed."""
    x: Inputs = client.train[0]
    return x.first if isinstance(x, Streamed) else x


def _probe(network: nn.Module, clients: Sequence[Client]) -> Inputs:
    """A few real rows, from the first clients."""
    rows = [_some_rows(client)[:PROBE_ROWS] for client in clients[:2]]
    return as_input(concatenated(rows), network, "cpu")


@torch.no_grad()
def _random_or_mixing(module: nn.Module, x: Inputs | None) -> bool:
    """Whether a row's output depends on chance or on the other rows of its batch."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            return True
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            return True
    if x is None:
        return False
    trial = copy.deepcopy(module).train()
    with torch.random.fork_rng(devices=[]):
        whole, again = call(trial, x), call(trial, x)
        halves = torch.cat([call(trial, half) for half in in_chunks(x, -(-len(x) // 2))])
    loose = 1e-3 * float(whole.abs().max()) + 1e-6  # far above rounding, far below statistics
    return not (
        torch.allclose(whole, again, rtol=0, atol=loose)
        and torch.allclose(whole, halves, rtol=0, atol=loose)
    )


def _tap_obstacle(
    network: nn.Module, clients: Sequence[Client], gauge: Sequence[str], needs: Needs
) -> str | None:
    trial = copy.deepcopy(network)
    tap = GaugeTap(trial, gauge)
    products = ProductTap(trial) if Needs.GRAM in needs else None
    with torch.enable_grad():
        call(trial, _probe(network, clients))
    if products is not None and (problem := products.problem()) is not None:
        return f"the weighting needs the products of all gradients, and {problem}"
    return tap.problem()
