"""``serve``: the SuperLink, the rounds, the ordinary run folder; resumed where it was stopped."""

from __future__ import annotations

import logging
import platform
import re
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._errors import ConfigError, RunFolderError, TrainingError
from fedgradnorm._flower.agreement import Agreement, agree
from fedgradnorm._flower.attendance import Patience, Rules
from fedgradnorm._flower.audit import Audit
from fedgradnorm._flower.coordinator import Coordinator
from fedgradnorm._flower.federation_file import FederationFile, read_federation
from fedgradnorm._flower.group_heads import GroupHeads
from fedgradnorm._flower.private.private_rounds import PrivateCoordinator
from fedgradnorm._flower.private.private_terms import PrivateTerms, read_terms
from fedgradnorm._flower.setup import registered, revoked, roster_fingerprint
from fedgradnorm._flower.status import write_status
from fedgradnorm._flower.wire.flower import FlowerServer
from fedgradnorm._flower.wire.keys import public_key_pem
from fedgradnorm._flower.wire.messages import largest_answer
from fedgradnorm._flower.wire.process import SuperLink
from fedgradnorm._flower.wire.sum_messages import SumOrder
from fedgradnorm._flower.wire.transport import Exchange
from fedgradnorm._round.server import ServerState
from fedgradnorm._runs.blueprint import blueprints
from fedgradnorm._runs.folder import RunFolder
from fedgradnorm._runs.layout import (
    CA,
    FEDERATION,
    LINK_DATABASE,
    LINK_LOG,
    MANIFEST,
    ROSTER,
)
from fedgradnorm._runs.locking import FolderLock
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

FINISHED = 30.0  # seconds that a resumed run without rounds left waits for clients
INPUTS = {"network1": (1, 40, 40), "network2": (256,)}
Show = Callable[[Progress], None] | None


def serve(
    config: Config,
    federation: Path,
    folder: Path,
    *,
    resume: bool = False,
    show: Show = None,
    waiting: Callable[[list[str], float], None] | None = None,
) -> Coordinator:
    """Run all rounds with the clients of ``federation``; everything is kept in ``folder``.

    ``waiting`` is told who is not connected yet, and how many seconds are left to connect.
    ``resume`` continues a run that was stopped.
    """
    terms = read_federation(federation)
    agreement = agree(config, _private(federation, terms))
    network, _, weighting, settings = build(config, [])
    network = divided(network, settings.shared, settings.frozen)
    weighting.run_seed = config.seed
    weighting.bind(terms.clients)
    heads = _heads(network, config, terms)
    files = (federation / LINK_DATABASE, folder / LINK_LOG)
    size = _answer_size(FlatNetwork(network).vector, heads, agreement)
    link = SuperLink(federation, terms.listen, terms.port, *files, size)
    link.check_files()
    server = FlowerServer(terms.address, (federation / CA).read_bytes(), link)
    check_registered(federation, terms)
    audit = Audit(federation)
    audit.lines()  # a log that was changed is not continued
    with FolderLock(folder, config.text()) as folder_lock:
        link.check_free()
        coordinator = _coordinator(network, weighting, config, terms, agreement, server, heads)
        manifest = _manifest(network, weighting, agreement, terms)
        # A refusal starts no process. Clients answer a round once: a server does not go back.
        saved = RunFolder(folder_lock, coordinator, manifest, resume, go_back=False)
        serving = _Serving(federation, folder, terms, coordinator, server, audit)
        with closing(saved), link:
            try:
                if not resume:
                    saved.save_checkpoint()  # the run's name must be known before anybody hears it
                serving.check_keys()
                server.start()
                serving.begin(agreement, resume)
                serving.meet(waiting)
                serving.rounds(saved, show)
                coordinator.sum_up()
                names = coordinator.finish()
                log.info("finished; clients that received the network: %s", ", ".join(names))
                network_now = _trained(network, coordinator)
                frozen = coordinator.monitor.frozen.times
                manifest = {**saved.manifest, "weight_frozen": frozen}
                saved.finish(Run({}, manifest, coordinator.history, network_now))
                serving.end("finished", network_taken_by=names)
            except BaseException as error:
                serving.end("stopped", why=f"{error or type(error).__name__}"[:200])
                raise
            finally:
                server.stop()
    return coordinator


def check_registered(federation: Path, terms: FederationFile) -> None:
    """A ConfigError unless every client has handed in its public keys, or was revoked."""
    known = {*registered(federation), *(one.name for one in revoked(federation))}
    never = [name for name in terms.clients if name not in known]
    if never:
        raise ConfigError(
            f"{federation}: no public key of {', '.join(never)}; on each client run `fedgradnorm "
            "federation key NAME`, then here `fedgradnorm federation roster` with the files that "
            "it made"
        )


class _Serving:
    """What happens around the rounds: who is let in, who is there, the status, the audit log."""

    def __init__(
        self,
        federation: Path,
        folder: Path,
        terms: FederationFile,
        coordinator: Coordinator,
        server: FlowerServer,
        audit: Audit,
    ) -> None:
        self.federation, self.folder, self.terms = federation, folder, terms
        self.coordinator, self.server, self.audit = coordinator, server, audit
        self.keys: dict[str, str] = {}
        self.known: dict[str, str] = {}  # the last state of each client that the audit log has

    def check_keys(self) -> None:
        """Let in exactly the clients whose keys are registered now; the others count as revoked."""
        keys = {name: one.key for name, one in registered(self.federation).items()}
        if keys == self.keys:
            return
        missing = [n for n in self.terms.clients if n not in keys]
        wanted = {n: public_key_pem(keys[n].encode()) for n in self.terms.clients if n in keys}
        self.server.register(wanted)
        self.coordinator.attendance.revoked = frozenset(missing)
        self.keys = keys

    def begin(self, agreement: Agreement, resume: bool) -> None:
        about = {"run": self.coordinator.run, "settings": agreement.digest}
        keys = roster_fingerprint(registered(self.federation))
        self.audit.add("resumed" if resume else "started", **about, roster=keys)

    def end(self, event: str, **facts: Any) -> None:
        run, number = self.coordinator.run, self.coordinator.round
        self.audit.add(event, run=run, round=number, **facts)
        with suppress(TrainingError):
            self.status([], event)

    def status(self, connected: list[str], stage: str) -> None:
        """Write what ``federation status`` shows, and a client's new state to the audit log."""
        write_status(self.federation, self.folder, self.coordinator, connected, stage)
        coordinator = self.coordinator
        for name in coordinator.names:
            state = coordinator.attendance.state_of(name, coordinator.round)
            if state != self.known.get(name, ""):
                about = {"run": coordinator.run, "round": coordinator.round}
                self.audit.add(state or "participates again", client=name, **about)
                self.known[name] = state

    def rounds(self, saved: RunFolder, show: Show) -> None:
        """All rounds, with a checkpoint after each."""
        while not self.coordinator.done:
            try:
                self.check_keys()
                event = self.coordinator.advance()
                saved.save_checkpoint()
                self.status(self.server.connected(), "training")
            except TrainingError as error:
                saved.save_checkpoint()
                raise TrainingError(f"{error}; checkpoint kept, continue with --resume") from error
            if show is not None:
                show(event)

    def meet(self, waiting: Callable[[list[str], float], None] | None) -> None:
        """Wait for all participants; after ``wait`` seconds the least number will do.

        A run whose rounds are over waits only for those who may want its network.
        """
        attendance, number = self.coordinator.attendance, self.coordinator.round
        wanted = [name for name in self.terms.clients if attendance.takes_part(name, number)]
        seconds = min(self.terms.wait, FINISHED) if self.coordinator.done else self.terms.wait
        end, missing = time.monotonic() + seconds, [""]
        while missing and time.monotonic() < end:
            here = self.server.connected()
            absent = [name for name in wanted if name not in here]
            if absent != missing:
                self.status(here, "waiting" if absent else "training")
                if absent and waiting is not None:
                    waiting(absent, end - time.monotonic())
            missing = absent
            time.sleep(0.2 if missing else 0)
        if not missing or self.coordinator.done:
            return
        log.warning("not connected after %.0f s: %s", seconds, ", ".join(missing))
        here = self.server.connected()
        least = max(1, self.terms.minimum)
        if len(here) < least:
            raise TrainingError(
                f"{len(here)} of {len(wanted)} clients connected in {seconds:.0f} s (wait, in "
                f"{FEDERATION}), {least} are needed; missing: {', '.join(missing)}; start them "
                "(fedgradnorm join), then --resume"
            )


def _private(federation: Path, terms: FederationFile) -> PrivateTerms | None:
    """What is agreed in a private federation; the roster must be of the clients that are named."""
    if not terms.private:
        return None
    found = read_terms(federation / ROSTER)
    if set(found.clients) != set(terms.clients):
        raise ConfigError(f"{federation / ROSTER} and {FEDERATION} name different clients")
    return found


def _answer_size(vector: Tensor, heads: GroupHeads, agreement: Agreement) -> int:
    """Bytes of the largest answer."""
    if agreement.private is None:
        return largest_answer(vector.nbytes, heads.largest)
    count = len(agreement.private.clients)
    return SumOrder("", "", 0, 0, {}, None, len(vector), count).room()


def run_folder(config: Config, resume: bool) -> Path:
    """A new run folder, or with ``resume`` the newest one of this config."""
    parent = output_folder(config)
    name = f"{config.name}-{config.method}-seed{config.seed}"
    if not resume:
        return free_folder(parent, name)
    own = re.compile(re.escape(name) + r"(-\d+)?")  # seed1, seed1-2, not seed10
    found = [p.parent for p in parent.glob(f"*/{MANIFEST}") if own.fullmatch(p.parent.name)]
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
    heads: GroupHeads,
) -> Coordinator:
    settings = agreement.settings
    server = ServerState(
        FlatNetwork(network).vector, weighting, bounds=terms.bounds, **settings.server()
    )
    rules = Rules(terms.misses, terms.refusals, terms.pause)
    patience = Patience(terms.deadline, terms.minimum, terms.attempts, terms.longest, rules)
    norm_layer = _norm_layer(network, config)
    exchange = Exchange(transport)
    given = (server, list(terms.clients), agreement, exchange, patience, heads, norm_layer)
    return Coordinator(*given) if agreement.private is None else PrivateCoordinator(*given)


def _heads(network: nn.Module, config: Config, terms: FederationFile) -> GroupHeads:
    """The heads that clients share, made before anything is started."""
    shape, like, features = _inputs(config), FlatNetwork(network).vector, None
    if shape is not None and config.settings.heads != "own":
        features = representation_size(network, like.new_zeros(2, *shape), "server")
    given = (terms.clients, terms.tasks, config.settings, features, like.dtype)
    return GroupHeads(*given, terms.bounds)


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
