"""``serve``: the SuperLink, the rounds, the ordinary run folder; resumed where it was stopped."""

from __future__ import annotations

import logging
import platform
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._errors import ConfigError, RunFolderError, TrainingError
from fedgradnorm._flower.agreement import Agreement, agree
from fedgradnorm._flower.attendance import Patience, Rules
from fedgradnorm._flower.coordinator import Coordinator, rows_of
from fedgradnorm._flower.federation_file import FederationFile, read_federation
from fedgradnorm._flower.group_heads import GroupHeads, group_heads
from fedgradnorm._flower.private.noisy_rounds import NoisyCoordinator
from fedgradnorm._flower.private.private_rounds import PrivateCoordinator
from fedgradnorm._flower.private.private_terms import PrivateTerms, read_terms
from fedgradnorm._flower.wire.keys import public_key_pem
from fedgradnorm._flower.wire.flower import FlowerServer
from fedgradnorm._flower.wire.messages import largest_answer
from fedgradnorm._flower.wire.process import SuperLink
from fedgradnorm._flower.wire.sum_messages import SumOrder
from fedgradnorm._flower.wire.transport import Exchange
from fedgradnorm._round.server import ServerState
from fedgradnorm._runs.blueprint import blueprints
from fedgradnorm._runs.folder import RunFolder
from fedgradnorm._runs.folder_lock import FolderLock
from fedgradnorm._runs.layout import (
    CA,
    FEDERATION,
    LINK_DATABASE,
    LINK_LOG,
    MANIFEST,
    ROSTER,
    public_key,
)
from fedgradnorm._runs.manifest import FORMAT, describe_weighting, now, read_manifest
from fedgradnorm._runs.run import Run
from fedgradnorm._training.callbacks import Progress
from fedgradnorm._version import __version__
from fedgradnorm.experiments._config.config_file import Config, build, check
from fedgradnorm.experiments._execute import free_folder, output_folder
from fedgradnorm.models._dividing import divided
from fedgradnorm.models._fitting import representation_size
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._norm_layer import find_norm_layer
from fedgradnorm.weighting import Weighting

log = logging.getLogger("fedgradnorm")

INPUTS = {"network1": (1, 40, 40), "network2": (256,)}
Show = Callable[[Progress], None] | None


def serve(
    config: Config,
    federation: Path,
    folder: Path,
    *,
    resume: bool = False,
    show: Show = None,
    waiting: Callable[[list[str]], None] | None = None,
) -> Coordinator:
    """Run all rounds with the clients of ``federation``; everything is kept in ``folder``.

    ``waiting`` is told who is not connected yet. A run that was stopped goes on with ``resume``.
    """
    terms = read_federation(federation)
    agreement = agree(config, _private(federation, terms))
    network, _, weighting, settings = build(config, [])
    network = divided(network, settings.shared, settings.frozen)
    weighting.run_seed = config.seed
    weighting.bind(list(rows_of(terms.clients, terms.several)))
    if terms.several and agreement.settings.heads != "own":
        raise ConfigError(
            f"heads = {agreement.settings.heads!r} cannot be run over the network with clients of "
            "several tasks; leave it at 'own'"
        )
    heads = _heads(network, config, terms, agreement)
    files = (federation / LINK_DATABASE, folder / LINK_LOG)
    size = _answer_size(FlatNetwork(network).vector, heads, agreement, terms)
    link = SuperLink(federation, terms.listen, terms.port, *files, size)
    server = FlowerServer(terms.address, (federation / CA).read_bytes(), link)
    with FolderLock(folder, config.text()) as folder_lock:
        link.check_free()
        coordinator = _coordinator(network, weighting, config, terms, agreement, server, heads)
        manifest = _manifest(network, weighting, agreement, terms)
        # A refusal starts no process. Clients answer a round once: a server does not go back.
        keeper = RunFolder(folder_lock, coordinator, manifest, resume, go_back=False)
        with closing(keeper), link:
            try:
                if not resume:
                    keeper.save_checkpoint()  # the run's name must be known before anybody hears it
                keys = {n: public_key_pem(public_key(federation, n)) for n in terms.clients}
                server.register(keys)
                server.start()
                _meet(server, terms, coordinator, waiting)
                _rounds(coordinator, keeper, show)
                coordinator.notices.sum_up(coordinator.round)
                log.info("finished; the network was taken by: %s", ", ".join(coordinator.finish()))
                network_now = _trained(network, coordinator)
                manifest = {
                    **keeper.manifest,
                    "weight_frozen": coordinator.notices.monitor.frozen.times,
                }
                keeper.finish(Run({}, manifest, coordinator.history, network_now))
            finally:
                server.stop()
    return coordinator


def _private(federation: Path, terms: FederationFile) -> PrivateTerms | None:
    """What is agreed in a private federation; the roster must be of the clients that are named."""
    if not terms.private:
        return None
    found = read_terms(federation / ROSTER)
    if set(found.clients) != set(terms.clients):
        raise ConfigError(f"{federation / ROSTER} and {FEDERATION} name different clients")
    return found


def _answer_size(
    vector: Tensor, heads: GroupHeads | None, agreement: Agreement, terms: FederationFile
) -> int:
    """Bytes of the largest answer."""
    if agreement.private is None:
        most = max(map(len, terms.several.values()), default=1)  # updates in one message
        return largest_answer(most * vector.nbytes, heads.largest if heads else 0, most)
    count = len(agreement.private.clients)
    return SumOrder("", "", 0, 0, {}, None, len(vector) + 1, count).room()


def _rounds(coordinator: Coordinator, keeper: RunFolder, show: Show) -> None:
    while not coordinator.done:
        try:
            event = coordinator.advance()
        except TrainingError as error:
            keeper.save_checkpoint()
            raise TrainingError(f"{error}; checkpoint kept, go on with --resume") from error
        keeper.save_checkpoint()
        if show is not None:
            show(event)


def _meet(
    server: FlowerServer,
    terms: FederationFile,
    coordinator: Coordinator,
    waiting: Callable[[list[str]], None] | None,
) -> None:
    """Wait for all who take part; after ``wait`` seconds the least number will do."""
    attendance, now = coordinator.attendance, coordinator.round
    wanted = [name for name in terms.clients if attendance.takes_part(name, now)]
    end, missing = time.monotonic() + terms.wait, [""]
    while missing and time.monotonic() < end:
        here = server.connected()
        absent = [name for name in wanted if name not in here]
        if absent != missing and absent and waiting is not None:
            waiting(absent)
        missing = absent
        time.sleep(0.2 if missing else 0)
    if missing:
        log.warning("not connected after %.0f s: %s", terms.wait, ", ".join(missing))
    here = server.connected()
    if len(here) < max(1, terms.minimum):
        raise TrainingError(
            f"only {len(here)} of {len(terms.clients)} clients connected "
            f"in {terms.wait:.0f} s; start the others (fedgradnorm join), then --resume"
        )


def run_folder(config: Config, resume: bool) -> Path:
    """A new run folder, or with ``resume`` the newest one of this config."""
    parent = output_folder(config)
    name = f"{config.name}-{config.method}-seed{config.seed}"
    if not resume:
        return free_folder(parent, name)
    found = [p.parent for p in parent.glob(f"{name}*/{MANIFEST}")]
    open_ones = [p for p in found if not read_manifest(p)["finished"]]
    if not open_ones:
        raise RunFolderError(f"{parent} holds no unfinished run {name}: nothing to resume")
    return max(open_ones, key=lambda p: read_manifest(p).get("started", ""))


def _coordinator(
    network: nn.Module,
    weighting: Weighting,
    config: Config,
    terms: FederationFile,
    agreement: Agreement,
    transport: FlowerServer,
    heads: GroupHeads | None,
) -> Coordinator:
    settings = agreement.settings
    server = ServerState(
        FlatNetwork(network).vector,
        weighting,
        optimizers.resolve(settings.server_optimizer, settings.lr),
        aggregate=settings.aggregate,
        step_with=settings.step_with,
        bounds=terms.bounds,
        rates=settings.server_rates(),
    )
    rules = Rules(terms.misses, terms.refusals, terms.pause)
    patience = Patience(terms.deadline, terms.minimum, terms.attempts, terms.longest, rules)
    norm_layer = _norm_layer(network, config)
    given = (
        server,
        list(terms.clients),
        agreement,
        Exchange(transport),
        patience,
        norm_layer,
        heads,
    )
    if agreement.private is not None:
        noisy = settings.privacy is not None
        return NoisyCoordinator(*given) if noisy else PrivateCoordinator(*given)
    return Coordinator(*given, tasks=terms.several)


def _heads(
    network: nn.Module, config: Config, terms: FederationFile, agreement: Agreement
) -> GroupHeads | None:
    """The heads that clients share, made before anything is started; None: each has its own."""
    shape, like = _inputs(config), FlatNetwork(network).vector
    features = None
    if shape is not None and agreement.settings.heads != "own":
        features = representation_size(network, like.new_zeros(2, *shape), "server")
    tasks, settings = terms.tasks, agreement.settings
    return group_heads(terms.clients, tasks, settings, features, like, terms.bounds)


def _inputs(config: Config) -> tuple[int, ...] | None:
    """The shape of the network's inputs, where it follows from the network's name and options."""
    options = config.network.model_extra or {}
    shapes: dict[str, tuple[int, ...]] = {**INPUTS, "mlp": (options.get("inputs", 1),)}
    return shapes.get(config.network.name)


def _norm_layer(network: nn.Module, config: Config) -> Tensor | None:
    """Where to measure a gradient norm again; None where an update is no plain gradient."""
    settings, shape = config.settings, _inputs(config)
    if settings.sends != "gradient" or settings.proximal:
        return None
    if shape is None and settings.norm_layer is None:  # without data the last layer cannot be found
        return None
    names = find_norm_layer(network, torch.zeros(2, *(shape or ())), settings.norm_layer)
    slices = FlatNetwork(network).slices
    return torch.cat([torch.arange(slices[n].start, slices[n].stop) for n in names])


def _trained(network: nn.Module, coordinator: Coordinator) -> nn.Module:
    flat = FlatNetwork(network)
    flat.vector.copy_(coordinator.server.shared.data)
    return flat.module


def _manifest(
    network: nn.Module, weighting: Weighting, agreement: Agreement, terms: FederationFile
) -> dict[str, Any]:
    """What is stored with the run. The server knows only the names of the clients."""
    return {
        "format": FORMAT,
        "finished": False,
        "settings": asdict(agreement.settings),
        "weighting": describe_weighting(weighting),
        "clients": {},
        "participants": list(terms.clients),
        "sent": list(agreement.sent),
        **({"private": True} if agreement.private else {}),
        "rounds": agreement.rounds,
        "blueprints": blueprints(network, {}),
        "command": sys.argv,
        "started": now(),
        "versions": {
            "fedgradnorm": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }


def check_config(config: Config, federation: Path) -> None:
    """What can be known to be wrong before anything is started."""
    agree(config, _private(federation, read_federation(federation)))
    check(config)
    try:
        build(config, [])
    except ConfigError as error:
        raise ConfigError(
            f"{error} (a server has no data to take the network's size from: name it)"
        ) from None
