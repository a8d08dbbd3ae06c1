"""``federation init``: the folder of a federation, and in it a folder to hand to each client."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedgradnorm._checks import shown
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.bounds import Bounds
from fedgradnorm._runs.layout import (
    AGREED,
    CA,
    CLIENT,
    CLIENTS,
    FEDERATION,
    KEY,
    ROSTER,
    SIGNING,
    STATE,
    public_key,
)
from fedgradnorm.experiments._config.toml_text import to_toml

_CLIENT = """\
# Client {name!r}. Start it where the data is:  fedgradnorm join {file}
# {config} is the run that all have agreed on: the same file that the server serves.
# Keep {key} to yourself. The folder `{state}` holds the head and must not be lost.

name = "{name}"
server = "{server}"
config = "{config}"
state = "{state}"
ca = "{ca}"
key = "{key}"

# This client's own data; it never leaves this machine. All options: docs/your-data.md.
[data]
source = "files"

[[data.clients]]
name = "{name}"
task = "classification"
train = "train.npz"
test_share = 0.2

# What leaves this machine can hide every single row of it: see docs/differential-privacy.md.
# [privacy]
# epsilon = 3.0
# delta = 1e-5
"""
LONGEST = 100  # characters of a name, which is also that of files
FEWEST = 3  # clients of a private federation
_FILES = {"file": CLIENT, "config": AGREED, "state": STATE, "ca": CA, "key": KEY}


def init_federation(
    folder: Path,
    clients: Sequence[str],
    hosts: Sequence[str],
    port: int = 9092,
    private: bool = False,
    **options: Any,
) -> list[Path]:
    """Certificates, keys and configs in a new ``folder``; the clients' folders.

    ``hosts`` are the names or addresses by which clients may reach the server; the first is what
    their configs say. ``options`` go to federation.toml. With ``private`` the server will see only
    sums, and every client gets a key to sign with and the roster of all public ones.
    """
    from fedgradnorm._flower.wire.keys import make_authority, make_client_key

    _check(folder, clients, hosts, private)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    make_authority(folder, hosts)
    table = {
        "clients": list(clients),
        "host": hosts[0],
        "port": port,
        "listen": "0.0.0.0",
        "deadline": 600.0,
        "minimum": -(-len(clients) // 2),
        "attempts": 3,
        "longest": 1e6,
        "misses": 3,
        "refusals": 5,
        "pause": 32,
        **{f"largest_{name}": value for name, value in asdict(Bounds()).items()},
        **({"private": True} if private else {}),
        **options,
    }
    (folder / FEDERATION).write_text(to_toml(table), encoding="utf-8")
    made = []
    for name in clients:
        own = folder / CLIENTS / name
        make_client_key(own / KEY, public_key(folder, name))
        (own / CA).write_bytes((folder / CA).read_bytes())
        text = _CLIENT.format(name=name, server=f"{hosts[0]}:{port}", **_FILES)
        (own / CLIENT).write_text(text, encoding="utf-8")
        made.append(own)
    if private:
        _make_private(folder, made, table["longest"], table["largest_ratio"])
    return made


def _make_private(folder: Path, homes: Sequence[Path], longest: float, ratio: float) -> None:
    """A key to sign with for every client, and the roster in all folders."""
    from fedgradnorm._flower.private.private_terms import PrivateTerms
    from fedgradnorm._masking.roster import make_key

    keys = {home.name: make_key(home, SIGNING).text for home in homes}
    terms = PrivateTerms(keys, longest, ratio)
    for place in (folder, *homes):
        terms.write(place / ROSTER)
    for home in homes:
        path = home / CLIENT
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("\nkey = ", "\nprivate = true\nkey = "), encoding="utf-8")


def fill_client(folder: Path, config: str, data: Mapping[str, Any]) -> None:
    """Give a client's folder its run and its data, in place of the template's."""
    import tomllib

    path = folder / CLIENT
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    path.write_text(to_toml({**table, "data": dict(data)}), encoding="utf-8")
    (folder / AGREED).write_text(config, encoding="utf-8")


def _check(folder: Path, clients: Sequence[str], hosts: Sequence[str], private: bool) -> None:
    if (folder / FEDERATION).exists():
        raise ConfigError(f"{folder} already holds a federation; its keys are not overwritten")
    if not clients or len(set(clients)) != len(clients):
        raise ConfigError("give at least one client, and no name twice")
    if private and len(clients) < FEWEST:
        raise ConfigError(
            f"a private federation needs at least {FEWEST} clients, not {len(clients)}: of two, "
            "each knows the other by the sum"
        )
    for name in clients:
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ConfigError(f"client {name!r}: use letters, digits, '.', '-' and '_' in names")
        if len(name) > LONGEST:
            raise ConfigError(f"client {shown(name)}: use at most {LONGEST} characters in names")
    if not hosts:
        raise ConfigError("give the server's host name, as the clients will reach it")
