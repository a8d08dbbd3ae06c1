"""``federation.toml``, the server's, and ``client.toml``, a client's: read and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, choose
from fedgradnorm._options import check_options, options_of
from fedgradnorm._round.bounds import Bounds
from fedgradnorm._runs.layout import CA, CLIENT, FEDERATION, KEY, ROSTER, SIGNING, STATE
from fedgradnorm._toml import read_toml
from fedgradnorm.data._sources import anchored
from fedgradnorm.experiments._config.config_file import (
    Config,
    beside,
    clients_of,
    load_config,
    make_config,
)

Kind = TypeVar("Kind")
LONGEST_NAME = 200  # letters of a task's name; it travels with the head
HOWS = ("first", "ask", "all")  # whose runs are approved without asking the owner


@dataclass(frozen=True)
class TaskTerms:
    """A task whose clients may share a head.

    Args:
        outputs: how many numbers the task's head gives, 1 or more.
        clients: who has this task.
        features: how many numbers the network makes of a row. It is needed only where the server
            cannot find that out by itself (0: it can).
    """

    outputs: int
    clients: list[str]
    features: int = 0

    def __post_init__(self) -> None:
        if self.outputs < 1 or self.features < 0:
            raise ConfigError(f"outputs must be >= 1, not {self.outputs!r}, and features >= 0")


@dataclass(frozen=True)
class FederationFile:
    """``federation.toml``: who participates, where the server listens, how long it waits.

    Args:
        clients: the names of all clients, none twice.
        host: the name or address by which clients reach the server.
        port: where the server listens.
        listen: the address that the server listens at; "0.0.0.0" is all of the machine's.
        deadline: seconds that a round waits for answers, above 0.
        minimum: how many good answers a round needs; 0 is those of all participants.
        attempts: how often a round with fewer good answers is tried in all, above 0.
        wait: seconds that ``serve`` waits for clients to connect before it gives up, above 0.
        longest: the largest length of an update that is used, above 0.
        largest_share: the largest share of a step that one client may have, in medians of the
            round's shares, 1 or more; a share is weight times length of the update. 0 is the
            method's own bound.
        largest_weight: the largest part of a round's weights that one client may have, from 0.5
            to 1.
        largest_ratio: the largest loss ratio that counts in full, 1 or more.
        misses: orders in a row without a usable answer after which a client is suspended; 0 is
            never.
        refusals: refused answers since the last usable one after which a client is shut out; 0 is
            never.
        pause: rounds for which a client is suspended, 1 or more.
        tasks: who has which task, a table each. The server must know it where heads are shared.
        private: whether the server sees only sums; ``roster.toml`` next to the file has what is
            agreed for that.
    """

    clients: list[str]
    host: str
    port: int = 9092
    listen: str = "0.0.0.0"
    deadline: float = 600.0
    minimum: int = 0
    attempts: int = 3
    wait: float = 3600.0
    longest: float = 1e6
    largest_share: float = Bounds.share
    largest_weight: float = Bounds.weight
    largest_ratio: float = Bounds.ratio
    misses: int = 3
    refusals: int = 5
    pause: int = 8
    tasks: dict[str, Any] = field(default_factory=dict)
    private: bool = False

    def __post_init__(self) -> None:
        _check_names(self.clients)
        _check_port(self.port)
        if not self.clients or len(set(self.clients)) != len(self.clients):
            raise ConfigError("clients: give at least one name, and none twice")
        if not 0 <= self.minimum <= len(self.clients):
            raise ConfigError(f"minimum = {self.minimum} is more than there are clients")
        for name in ("deadline", "attempts", "wait", "longest"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be > 0, not {getattr(self, name)!r}")
        for name, least in (("misses", 0), ("refusals", 0), ("pause", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be >= {least}, not {getattr(self, name)!r}")
        _ = self.bounds  # checks its numbers
        object.__setattr__(self, "tasks", _tasks(self.tasks, self.clients))

    @property
    def bounds(self) -> Bounds:
        """How far one client may move the shared network in a round."""
        return Bounds(self.largest_share, self.largest_weight, self.largest_ratio)

    @property
    def address(self) -> str:
        """Where clients reach the server."""
        return f"{self.host}:{self.port}"


def _tasks(given: Any, clients: Sequence[str]) -> dict[str, TaskTerms]:
    """The tasks, checked: every client is known, and has one task at most."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"tasks must be a table, not {given!r:.40}")
    found, taken = dict[str, TaskTerms](), dict[str, str]()
    for task, table in given.items():
        if not isinstance(table, Mapping) or not isinstance(table.get("clients", []), list):
            raise ConfigError(f"tasks.{task} must be a table with outputs and a list of clients")
        check_options(f"task {task!r}", table, options_of(TaskTerms))
        if not 0 < len(task) <= LONGEST_NAME:
            raise ConfigError(f"a task's name has 1 to {LONGEST_NAME} letters, not {len(task)}")
        found[task] = TaskTerms(**table)
        for name in found[task].clients:
            choose(name, clients, f"client in tasks.{task}")
            if taken.setdefault(name, task) != task:
                raise ConfigError(f"client {name!r} is in tasks {taken[name]!r} and {task!r}")
    return found


def _check_names(clients: Any) -> None:
    if not isinstance(clients, list) or not all(isinstance(name, str) for name in clients):
        example = '["north", "south"]'
        raise ConfigError(
            f"clients must be a list of names, such as {example}, not {clients!r:.40}"
        )


def _check_port(port: int) -> None:
    if not 0 < port < 65536:
        raise ConfigError(f"port must be from 1 to 65535, not {port}")


@dataclass(frozen=True)
class ClientFile:
    """``client.toml``: which client this is, of which server, with which data.

    Args:
        name: of this client, as in ``federation.toml``.
        server: host and port of the server, such as "fed.example.org:9092".
        config: the run that was agreed on, a TOML file like that of a run on one machine.
        state: folder of the client's own state: head, moments, results.
        ca: certificate of the federation's authority.
        key: this client's private key.
        private: whether the client answers only a server that sees nothing but sums.
        roster: the clients' public signing keys, for a private federation.
        signing: this client's own signing key, for a private federation.
        approve: which runs are approved without asking the owner: "first" (the first run of the
            agreed settings; any other must be approved), "ask" (none) or "all". The command
            ``fedgradnorm federation approve`` approves one.
        data: the client's data, a table like [data] of a config.
        privacy: what the client promises its rows, a table like [privacy] of a config.
    """

    name: str
    server: str
    config: str
    state: str = STATE
    ca: str = CA
    key: str = KEY
    private: bool = False
    roster: str = ROSTER
    signing: str = SIGNING
    approve: str = "first"
    data: dict[str, Any] = field(default_factory=dict)
    privacy: dict[str, Any] = field(default_factory=dict)
    folder: Path = Path()

    def __post_init__(self) -> None:
        choose(self.approve, HOWS, "approve")
        host, _, port = self.server.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(
                "server must be a host and a port, such as fed.example.org:9092, not "
                f"{self.server!r}"
            )
        _check_port(int(port))

    def path(self, name: str) -> Path:
        return self.folder / Path(str(getattr(self, name))).expanduser()

    def run_config(self, allow: Sequence[str] = ()) -> Config:
        """The run that this client has agreed to, with its own data in it."""
        config = load_config(self.path("config"), allow=allow, foreign=True)
        source = self.data.get("source")
        if not isinstance(source, str):
            raise ConfigError(f"{CLIENT}: [data] needs a source")
        table = {**config.table(), "data": anchored(source, self.data, self.folder)}
        if self.privacy:
            table |= beside({"privacy": self.privacy}, self.folder)
        return make_config(table, str(self.path("config")), allow)

    def load(self, config: Config) -> Client:
        found = {client.name: client for client in clients_of(config)}
        several = [c.name for c in found.values() if c.of == self.name]
        if several:
            raise ConfigError(several_tasks(self.name, len(several)))
        return found[choose(self.name, found, f"client in the [data] of {CLIENT}")]


def several_tasks(name: str, tasks: int) -> str:
    """Why a client with several tasks cannot participate, and the way out."""
    return (
        f"client {name!r} has {tasks} tasks; a client of a federation has one: give each task to a "
        "client of its own"
    )


def read_federation(folder: Path) -> FederationFile:
    if not (folder / FEDERATION).exists():
        raise ConfigError(
            f"{folder} holds no {FEDERATION}: give the folder that fedgradnorm federation init made"
        )
    return made_from(folder / FEDERATION, FederationFile)


def read_client(path: Path) -> ClientFile:
    """A client's file; paths in it hold from where it lies."""
    return made_from(path, ClientFile, folder=path.parent.resolve())


def made_from(path: Path, kind: Callable[..., Kind], **own: Any) -> Kind:
    """A dataclass from a TOML file; errors name the file."""
    if not path.exists():
        raise ConfigError(f"{path}: no such file")
    try:
        table = read_toml(path)
        check_options("this file", table, options_of(kind, without=tuple(own)))
        return kind(**table, **own)
    except (ConfigError, TypeError, OverflowError) as error:
        raise ConfigError(f"{path}: {error}") from None
