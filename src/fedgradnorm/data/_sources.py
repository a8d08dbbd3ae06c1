"""Clients by the name of a data source and its options, as a config gives them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedgradnorm._checks import shown
from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm._options import OF_RUN, check_options, options_of
from fedgradnorm.data._paths import there, user_path
from fedgradnorm.data._source import FILES, SOURCES

DataProgress = Callable[[int, int], None]
"""(done, total), called now and then while data is read or made."""

_RENAMED = {"source": "path"}  # a config calls the data source itself its source


def load_clients(
    name: str,
    options: Mapping[str, Any],
    seed: int,
    progress: DataProgress | None = None,
) -> list[Client]:
    """The clients of a source.

    ``options`` are those of the source's own function, with ``path`` for its ``source``. A ``seed``
    among them holds the data still while the run's own changes. ``partition`` names clients whose
    rows are shared out to several: ``{"gender": {"name": "dirichlet", "parts": 3, "alpha": 0.5}}``.
    """
    given = {"seed": seed, **options}
    plans = given.pop("partition", {})
    if not isinstance(plans, Mapping) or not all(isinstance(p, Mapping) for p in plans.values()):
        raise ConfigError(f"data.partition must be a table for each client, not {plans!r}")
    clients = _loaded(name, dict(given), progress, "seed" in options)
    for one in plans:
        choose(one, [client.name for client in clients], "client in data.partition")
    if not plans:
        return clients
    from fedgradnorm.data._partition import divided, partitioner

    parts = [
        divided(one, partitioner(plans[one.name]), given["seed"]) if one.name in plans else [one]
        for one in clients
    ]
    return [client for part in parts for client in part]


def _loaded(
    name: str, given: dict[str, Any], progress: DataProgress | None, own_seed: bool
) -> list[Client]:
    source = SOURCES.find(name)
    function = source.function
    if name == FILES:
        return _from_files(function, given, progress)
    what = f"data source {name!r}"
    taken = options_of(function, renamed=_RENAMED)
    told = {"progress": progress} if taken.pop("progress", None) else {}
    if "seed" not in taken and not own_seed:
        del given["seed"]
    check_options(what, given, taken, OF_RUN)
    for key in source.paths:
        if isinstance(given.get(key), str):
            given[key] = user_path(given[key], f"data.{key}")
    if "path" in given and "path" not in options_of(function):
        given["source"] = given.pop("path")
    clients = _call(what, partial(function, **given, **told))
    if not isinstance(clients, list) or not all(isinstance(one, Client) for one in clients):
        raise ConfigError(f"{what} must return a list of fgn.Client, not {shown(clients)}")
    return clients


def anchored(name: str, options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """``options`` with paths that hold wherever the run is resumed from.

    Files of your own are looked for next to the config (``base``); other relative paths there, in
    the working folder, or left alone for the source to find in the user's data folder.
    """
    result = dict(options)
    if name == FILES:
        from fedgradnorm.data._files.table import anchored_base

        result["base"] = anchored_base(result.get("base", "."), folder)
        return result
    for key in SOURCES[name].paths if name in SOURCES else ():
        value = result.get(key)
        if isinstance(value, str):
            places = (folder / value, user_path(value, f"data.{key}"))
            found = next((place for place in places if there(place)), None)
            result[key] = value if found is None else os.path.abspath(found)  # noqa: PTH100
    return result


def _from_files(
    function: Callable[..., Any], options: Mapping[str, Any], progress: DataProgress | None
) -> list[Client]:
    """One client for each table of ``[[data.clients]]``, or one for each of its tasks.

    Other options hold for all of them.
    """
    shared = {key: value for key, value in options.items() if key != "clients"}
    tables = options.get("clients")
    if not isinstance(tables, Sequence) or isinstance(tables, str) or not tables:
        raise DataError("no clients: give at least one [[data.clients]] table to source 'files'")
    made: list[Client] = []
    pooled: list[int] = []
    for number, table in enumerate(tables, start=1):
        if not isinstance(table, Mapping) or "name" not in table:
            raise ConfigError(f"[[data.clients]] number {number} needs a name")
        given = {**shared, **table}
        terms = given.pop("privacy", None)  # read by the client itself
        what = f"client {given['name']!r} of data source 'files'"
        check_options(what, given, options_of(function), OF_RUN)
        together = given.get("standardize") == "pooled"
        for client in _call(what, partial(function, **given)):
            if together:
                pooled.append(len(made))
            made.append(client if terms is None else replace(client, privacy=terms))
        if progress:
            progress(number, len(tables))
    if pooled:
        from fedgradnorm.data._arrays import standardized_together

        for place, client in zip(
            pooled, standardized_together([made[i] for i in pooled]), strict=True
        ):
            made[place] = client
    return [row for client in made for row in client.rows]


def _call(what: str, function: Callable[[], Any]) -> Any:
    """Call a reader; a value of the wrong kind deep inside an option is a ConfigError too."""
    try:
        return function()
    except (TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{what}: an option has a value of the wrong kind ({reason})") from error
