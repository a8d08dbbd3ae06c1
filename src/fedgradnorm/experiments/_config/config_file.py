"""A run as a TOML file: read, changed from the command line, checked, written back.

Top level: ``name``, ``imports``, ``method``, ``seed``, ``rounds``, ``epochs``, ``lr``; then
``[data]`` (a source and its options), ``[network]`` (a name and its options), a table for each
group of settings (``[local]``, ``[history]``, ...), ``[weighting]`` (options of the method's
weighting), ``[privacy]`` (what clients promise) and ``[output]``. ``[compare]`` and ``[sweep]`` are
for comparisons and no part of a run. Only this module, its tables and its errors know pydantic.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
)
from torch import nn

from fedgradnorm._checks import names, shortened
from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, choose
from fedgradnorm._methods import DEFAULT, find_method
from fedgradnorm._privacy.terms import Privacy, privacy_of
from fedgradnorm._round.settings import (
    FIELDS,
    GROUP_OF,
    GROUPS,
    SWITCHES,
    TOP,
    Settings,
    grouped,
    name_of,
    ungrouped,
)
from fedgradnorm._runs.files import present
from fedgradnorm._runs.layout import CHECKPOINT, MANIFEST
from fedgradnorm._toml import check_plain, overridden, put, read_toml, to_toml
from fedgradnorm._training.trackers import Tracking
from fedgradnorm.data._sources import DataProgress, anchored, load_clients
from fedgradnorm.experiments._config.config_errors import blaming, explain, unknown_key
from fedgradnorm.experiments._config.named_networks import (
    build_network,
    check_imports,
    check_network_options,
    import_modules,
)
from fedgradnorm.experiments._config.shipped import config_file, with_real_signals
from fedgradnorm.weighting import Weighting

Parts = tuple[nn.Module, list[Client], Weighting, Settings]

PROMISING = "clients"
"""The key of ``[privacy]`` that names those who promise it; all clients by default."""

LONGEST_NAME = 80
"""Characters, of up to four bytes, of 255 that the name of a run folder may have."""


class Strict(BaseModel):
    """A table that takes no other keys, and no value of another kind."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DataTable(Strict, extra="allow"):
    """``[data]``: a source, and whatever options it takes."""

    source: str = Field(description="where the clients come from")


class NetworkTable(Strict, extra="allow"):
    """``[network]``: a name or ``package.module:factory``, and whatever options it takes."""

    name: str = Field(description="one of ours, or ``module:function`` of yours")


class OutputTable(Strict):
    """``[output]``: where run folders go, and which tracker follows the runs."""

    folder: str = Field(default="runs", min_length=1, description="where run folders are made")
    tracking: Tracking = Field(
        default="none", description="the experiment tracker that follows the run"
    )


OWN = ("weighting", *(name for name in TOP if name != "seed"), *GROUPS)
"""What ``[compare.own.METHOD]`` may hold: where one method departs from the settings of all."""


class CompareTable(Strict):
    """``[compare]``: which methods, from how many seeds, and which of them is the baseline."""

    methods: list[str] = Field(
        default=["fedrep", "fedgradnorm", "fedgradnorm-direct"],
        description="names of methods, each optionally followed by its own settings",
    )
    seeds: int = Field(
        default=1, description="number of seeds, starting with the config's ``seed``; at least 1"
    )
    baseline: str = Field(
        default="fedrep", description="the method that the others are tested against"
    )
    own: dict[str, dict[str, Any]] = Field(
        default={},
        description="settings for one method only, by its name: "
        "``[compare.own.fedprox.local]``, ``compare.own.static.lr``; any key except the data",
    )

    def changes(self, method: str) -> dict[str, Any]:
        """What is this method's own, by dotted key of the config."""
        found: dict[str, Any] = {}
        for name, value in self.own.get(method, {}).items():
            if name not in OWN:
                raise ConfigError(
                    f"unknown key 'compare.own.{method}.{name}' (one of: {', '.join(OWN)})"
                )
            several = value.items() if isinstance(value, dict) else ()
            found |= {f"{name}.{key}": one for key, one in several} or {name: value}
        return found


NULLABLE = {name for name, kind in get_type_hints(Settings).items() if NoneType in get_args(kind)}
"""Settings that may be None, which TOML writes as "none"."""


class Config(Strict):
    """One run, checked as far as it can be without its data."""

    name: str = Field(
        pattern=r"^\w[\w.-]*$", max_length=LONGEST_NAME,
        description="first part of the run folder's name; by default the file's name",
    )  # fmt: skip
    imports: list[str] = Field(
        default=[],
        description="modules to import first, which register methods, data sets, metrics, kinds of "
        "tasks, executors or history columns; the working folder is searched, too",
    )
    method: str = Field(default=DEFAULT, description="one that ``fedgradnorm methods`` lists")
    data: DataTable = Field(description="where clients come from")
    network: NetworkTable = Field(description="the shared network")
    weighting: dict[str, Any] = Field(default={}, description="options of the method's weighting")
    privacy: dict[str, Any] = Field(
        default={},
        description="differential privacy of every client's training examples: ``fgn.Privacy``",
    )
    output: OutputTable = Field(default=OutputTable(), description="where results go")
    compare: CompareTable = Field(default=CompareTable(), description="for ``fedgradnorm compare``")
    sweep: dict[str, Any] = Field(
        default={},
        description="the config again, with a list instead of a value; every combination is run",
    )
    point: dict[str, Any] = Field(
        default={}, description="written by a sweep: which point of it a run is"
    )
    own: dict[str, Any] = Field(
        default={}, description="written by a comparison: the settings of this run only"
    )
    _said: dict[str, Any] = PrivateAttr({})
    _origin: str = PrivateAttr("")
    _allow: tuple[str, ...] = PrivateAttr(())  # never from a file: who reads the config gives it

    @property
    def allowed(self) -> tuple[str, ...]:
        """The modules that ``network.name`` may name, as the reader of the config allowed."""
        return self._allow

    @property
    def seed(self) -> int:
        """What decides data, network, heads, batches and participants."""
        return self.settings.seed

    @property
    def settings(self) -> Settings:
        """The training settings, with those of the method and the seed."""
        return find_method(self.method).applied(Settings(**self.said), self.said)

    @property
    def said(self) -> dict[str, Any]:
        """The training settings that the file gives, by name."""
        return dict(self._said)

    def table(self) -> dict[str, Any]:
        """The resolved config as plain values, defaults included; what the method fixes is not."""
        method, given = find_method(self.method), self.said
        own = {name: method.settings[name] for name in method.tunable}
        unsaid = [n for n in ("point", "own", "privacy", "imports") if not getattr(self, n)]
        dumped = self.model_dump(exclude={"compare", "sweep", *unsaid})
        off = {name for name, group in GROUP_OF.items() if group in SWITCHES}  # unless given
        flat = {n: given.get(n, FIELDS[n].default) for n in FIELDS if n in given or n not in off}
        said = grouped(
            {
                name: "none" if value is None else value
                for name, value in flat.items()
                if name not in method.fixes
                and (name not in own or given.get(name, own[name]) != own[name])
                and (value is not None or FIELDS[name].default is not None)
            }
        )
        said = {name: value for name, value in said.items() if value is not False}
        options = method.options().items()
        defaults = {name: p.default for name, p in options if p.default is not p.empty}
        dumped["weighting"] = {**defaults, **dumped["weighting"]}
        order = ["name", *(["imports"] if self.imports else []), "method"]
        first = {name: dumped.pop(name) for name in order}
        parts = {name: dumped.pop(name) for name in ("data", "network")}
        return {**first, **parts, **said, **dumped}

    def text(self) -> str:
        """The resolved config as TOML."""
        return to_toml(self.table())

    def variant(
        self,
        method: str,
        seed: int,
        changes: Mapping[str, Any] | None = None,
        point: Mapping[str, Any] | None = None,
        own: Mapping[str, Any] | None = None,
    ) -> Config:
        """The same run by another method and seed, and with ``changes`` by dotted key.

        ``point`` is what a sweep calls the run, and ``own`` what an entry of a comparison has for
        itself, by dotted key too; both are kept with it.
        """
        with blaming(self._origin):
            named = {"point": dict(point or {}), "own": dict(own or {})}
            table = {**for_method(self.table(), method), "seed": seed, **named}
            changed = {**(changes or {}), **named["own"]}
            for key, value in changed.items():
                put(table, key, copy.deepcopy(value))  # of which a point may change a part
            return make_config(table, self._origin, self._allow)


def load_config(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    allow: Sequence[str] = (),
    foreign: bool = False,
) -> Config:
    """Read a TOML file, apply ``key=value`` overrides, and check everything that needs no data.

    ``path`` may also be the name of a config in the package, such as ``"table2"``. ``allow`` names
    the modules whose programs ``network.name`` may call; none by default. Modules in ``imports``
    are imported, unless the file is ``foreign``, as in a run folder, which others may have written:
    then they must be imported already, or be allowed.
    """
    name = str(path)
    path, words = config_file(path)
    foreign = foreign or any(present(path.parent / name) for name in (MANIFEST, CHECKPOINT))
    origin = f"{name} with {' '.join(overrides)}" if overrides else name
    with blaming(origin):
        raw = read_toml(path)
        stem = re.sub(r"[^\w.-]+", "-", path.stem).lstrip(".-")[:LONGEST_NAME]
        raw.setdefault("name", stem or "run")
        overrides = [*words, *overrides]
        changed = with_real_signals(overridden(raw, overrides), name)
        if foreign:
            check_imports(changed.get("imports", []), allow)
        import_modules(changed.get("imports", []))
        if changed.get("method", raw.get("method")) != raw.get("method"):
            changed = overridden(for_method(raw, changed["method"]), overrides)
        if isinstance(changed.get("data"), dict):
            changed["data"] = _anchored(changed["data"], path.parent)
        return make_config(beside(changed, path.parent), origin, allow)


def make_config(table: Mapping[str, Any], origin: str = "", allow: Sequence[str] = ()) -> Config:
    """A checked config from plain values; ``origin`` precedes errors found later."""
    check_plain(table)
    import_modules(table.get("imports", []))  # in a worker process, they are not there yet
    settings = {key: value for key, value in table.items() if key in (*TOP, *GROUPS)}
    try:
        config = Config.model_validate({k: v for k, v in table.items() if k not in settings})
    except ValidationError as error:
        raise ConfigError(explain(error, Config)) from None
    config._said = said = _said(settings)
    made = Settings(**said)
    config._said = {n: v if n == "personalize" else getattr(made, n) for n, v in said.items()}
    method = find_method(config.method)
    method.build(config.weighting)
    terms_of(config.privacy)
    _ = config.settings  # which checks them
    to_toml(config.table())
    for name in config.compare.own:
        _check_own(config, name)
    config._origin, config._allow = origin, tuple(allow)
    return config


def _said(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in a config's table, by name."""
    for group, given in table.items():
        if group in GROUPS and isinstance(given, Mapping):
            own = [one.name for one in fields(GROUPS[group])]
            for name in given:
                if name not in own:
                    raise ConfigError(unknown_key(f"{group}.{name}", name, own))
    flat = ungrouped(table).items()
    return {name: None if value == "none" and name in NULLABLE else value for name, value in flat}


def for_method(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """``table`` with another method: what that one does not take, or fixes itself, is left out.

    So is what was tuned of the method before: with FedProx's mu, FedRep would be FedProx. And a
    default that ``table`` lists is not meant for a method that presets another value.
    """
    for key in ("weighting", *GROUPS):
        if not isinstance(table.get(key, {}), (Mapping, bool) if key in SWITCHES else Mapping):
            raise ConfigError(f"{key} = {table[key]!r} should be a table")
    before = find_method(table.get("method", Config.model_fields["method"].default))
    after = find_method(name)
    weighting = dict(table.get("weighting", {}))
    before.build(weighting)  # a misspelt option must not vanish unseen
    gone = {*after.fixes, *({*before.tunable} - {*after.tunable})}
    preset = {} if before == after else {name: FIELDS[name].default for name in after.tunable}

    def stays(key: str, value: Any) -> bool:
        name = name_of(key)
        return name not in gone and (name not in preset or value != preset[name])

    kept = {
        key: {k: v for k, v in value.items() if stays(f"{key}.{k}", v)}
        if key in GROUPS and isinstance(value, Mapping)
        else value
        for key, value in table.items()
        if stays(key, value)
    }
    taken = {key: value for key, value in weighting.items() if key in after.options()}
    return {**kept, "method": name, "weighting": taken}


def build(config: Config, clients: list[Client] | None = None) -> Parts:
    """Network, clients, weighting and settings of a run; ``clients`` if they are loaded already."""
    if clients is None:
        clients = clients_of(config)
    options = config.network.model_extra or {}
    with blaming(config._origin):
        name, allow = config.network.name, config.allowed
        network = build_network(name, options, clients, config.seed, allow)
    return network, clients, find_method(config.method).build(config.weighting), config.settings


def check(config: Config) -> None:
    """Refuse a network that cannot be made, or may not, before any data is read or made."""
    with blaming(config._origin):
        options = config.network.model_extra or {}
        check_network_options(config.network.name, options, config.allowed)


def clients_of(config: Config, progress: DataProgress | None = None) -> list[Client]:
    """The clients that ``[data]`` describes; a network that cannot be made is refused first."""
    check(config)
    options = config.data.model_extra or {}
    with blaming(config._origin):
        try:
            found = load_clients(config.data.source, options, config.seed, progress)
            return promised(found, config.privacy)
        except (OSError, MemoryError, OverflowError) as error:
            reason = shortened(str(error), 200) or type(error).__name__
            raise ConfigError(f"data source {config.data.source!r}: {reason}") from error


def _anchored(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    source = data.get("source")
    if not isinstance(source, str):
        return data  # the config's own check reports it
    try:
        return anchored(source, data, folder)
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        raise ConfigError(f"data: a path of source {source!r} cannot be one ({error})") from None


def _check_own(config: Config, name: str) -> None:
    """Refuse what the method cannot take now, not when its turn comes."""
    try:
        config.variant(name, config.seed, config.compare.changes(name))
    except ConfigError as error:
        raise ConfigError(f"compare.own.{name}: {error}") from None


def terms_of(table: Mapping[str, Any]) -> Privacy | None:
    """The terms in ``[privacy]``, checked; None where it is empty."""
    given = {key: value for key, value in table.items() if key != PROMISING}
    if PROMISING in table:
        names("privacy.clients", table[PROMISING])
    found: Privacy | None = privacy_of(given) if table else None
    return found


def promised(clients: Sequence[Client], table: Mapping[str, Any]) -> list[Client]:
    """The clients with these terms; who has terms of its own, in ``[[data.clients]]``, keeps them.

    ``clients`` in the table names those that promise it, by default all.
    """
    terms, known = terms_of(table), [client.name for client in clients]
    if terms is None:
        return list(clients)
    chosen = [choose(n, known, "client in privacy.clients") for n in table.get(PROMISING, known)]
    return [
        replace(c, privacy=terms) if c.name in chosen and c.privacy is None else c for c in clients
    ]


def beside(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The config with the folder of its privacy ledgers taken as relative to ``folder``."""
    table = config.get("privacy")
    ledger = table.get("ledger") if isinstance(table, dict) else None
    if not isinstance(ledger, str) or not ledger:
        return config
    place = str(folder.absolute() / Path(ledger).expanduser())
    return {**config, "privacy": {**config["privacy"], "ledger": place}}
