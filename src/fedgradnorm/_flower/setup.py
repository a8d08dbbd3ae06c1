"""``federation init``, ``key``, ``roster`` and ``revoke``: folders, keys, and who is let in."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedgradnorm._checks import shown
from fedgradnorm._errors import ConfigError, choose
from fedgradnorm._flower.audit import Audit
from fedgradnorm._flower.federation_file import FederationFile, made_from, read_federation
from fedgradnorm._flower.private.private_terms import PrivateTerms, read_terms
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.layout import (
    AGREED,
    CA,
    CLIENT,
    CLIENTS,
    FEDERATION,
    KEY,
    REGISTERED,
    REVOKED,
    ROSTER,
    SIGNING,
    STATE,
)
from fedgradnorm._toml import to_toml

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
    keys: bool = True,
    **options: Any,
) -> list[Path]:
    """Certificates and configs in a new ``folder``; the clients' folders.

    ``hosts`` are the names or addresses by which clients may reach the server; the first is what
    their configs say. ``options`` go to federation.toml. With ``private`` the server will see only
    sums. With ``keys`` the clients' keys are made here, for a federation on one machine; otherwise
    each client makes its own (:func:`make_keys`) and the server registers them (:func:`register`).
    Everything is written next to ``folder`` first, so a kill never leaves half a federation.
    """
    from fedgradnorm._flower.wire.keys import make_authority

    hosts = [_ascii(host) for host in hosts]
    _check(folder, clients, hosts, private)
    least = -(-len(clients) // 2)
    given = {"minimum": least, "private": private, **options}
    terms = FederationFile(list(clients), hosts[0], port, **given)
    table = {key: value for key, value in asdict(terms).items() if value not in ({}, None)}
    here = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(parents=True, mode=0o700)
    make_authority(here, hosts)
    (here / FEDERATION).write_text(to_toml(table), encoding="utf-8")
    for name in clients:
        own = here / CLIENTS / name
        own.mkdir(parents=True, mode=0o700)
        (own / CA).write_bytes((here / CA).read_bytes())
        text = _CLIENT.format(name=name, server=f"{hosts[0]}:{port}", **_FILES)
        text = text.replace("\nkey = ", "\nprivate = true\nkey = ") if private else text
        (own / CLIENT).write_text(text, encoding="utf-8")
    if keys:
        register(here, [make_keys(here / CLIENTS / name, name) for name in clients])
        for name in clients if private else ():
            shutil.copy(here / ROSTER, here / CLIENTS / name / ROSTER)
    here.replace(folder)
    return [folder / CLIENTS / name for name in clients]


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
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: remove it, or give another folder")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file: give another name for the folder")
    if not clients or len(set(clients)) != len(clients):
        raise ConfigError("give at least one client, and no name twice")
    if private and len(clients) < FEWEST:
        raise ConfigError(
            f"a private federation needs at least {FEWEST} clients, not {len(clients)}: of two, "
            "each knows the other by the sum"
        )
    for name in clients:
        _check_name(name)
    if not hosts:
        raise ConfigError("give the server's host name, as the clients will reach it")


def _check_name(name: str) -> None:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"client {name!r}: use letters, digits, '.', '-' and '_' in names")
    if len(name) > LONGEST:
        raise ConfigError(f"client {shown(name)}: use at most {LONGEST} characters in names")


def _ascii(host: str) -> str:
    """A host name as certificates and sockets have it: ä.org is xn--4ca.org."""
    try:
        return host if ":" in host else host.encode("idna").decode()
    except UnicodeError as error:
        raise ConfigError(f"host {host!r} is not a host name or address: {error}") from None


@dataclass(frozen=True)
class PublicKeys:
    """What a client hands to the server: the public halves of its two keys.

    Args:
        name: the client's name.
        key: proves to the server who connects, an OpenSSH public key.
        signing: signs what the client sends in a private federation.
    """

    name: str
    key: str
    signing: str

    @property
    def fingerprint(self) -> str:
        """Changes with either key; compare it over another channel, such as the telephone."""
        from fedgradnorm._masking.roster import fingerprint

        return fingerprint(f"{self.name}\n{self.key}\n{self.signing}".encode())


def make_keys(folder: Path, name: str, renew: bool = False) -> PublicKeys:
    """Make a client's keys in its own folder, where they stay, and NAME.public.toml next to them.

    With ``renew`` the old private keys are kept as ``*.old``.
    """
    from fedgradnorm._flower.wire.keys import make_client_key
    from fedgradnorm._masking.roster import make_key

    _check_name(name)
    for file in (KEY, SIGNING):
        if not (folder / file).exists():
            continue
        if not renew:
            raise ConfigError(f"{folder / file} already exists; --renew replaces a client's keys")
        (folder / file).replace(folder / f"{file}.old")
    found = PublicKeys(name, make_client_key(folder / KEY), make_key(folder, SIGNING).text)
    path = folder / public_file(name)
    path.write_text(to_toml(asdict(found)), encoding="utf-8")
    return found


def public_file(name: str) -> str:
    return f"{name}.public.toml"


def read_public(path: Path) -> PublicKeys:
    return made_from(path, PublicKeys)


def register(folder: Path, given: Sequence[PublicKeys]) -> Mapping[str, PublicKeys]:
    """Add clients' public keys to the federation in ``folder``, or replace them; all that it has.

    One key under two names, a key that was revoked or replaced, or a new key next to an old one of
    the same client is refused.
    """
    from fedgradnorm._flower.wire.keys import public_key_pem

    terms = read_federation(folder)
    before = registered(folder)
    found = before | {one.name: one for one in given}
    owners: dict[str, str] = {}
    never = {key for one in revoked(folder) for key in (one.key, one.signing)}
    for one in found.values():
        choose(one.name, terms.clients, f"client in {FEDERATION}")
        try:
            public_key_pem(one.key.encode())
        except ValueError as error:
            raise ConfigError(f"client {one.name!r}: its public key cannot be read") from error
        for key in (one.key, one.signing):
            if owners.setdefault(key, one.name) != one.name:
                raise ConfigError(
                    f"clients {owners[key]!r} and {one.name!r} have the same key: it would count "
                    "twice; each client makes its own (fedgradnorm federation key NAME)"
                )
        if never & {one.key, one.signing}:
            raise ConfigError(
                f"client {one.name!r}: this key was revoked or replaced; make another (--renew)"
            )
        old = before.get(one.name, one)
        if (one.key == old.key) != (one.signing == old.signing):
            raise ConfigError(
                f"client {one.name!r}: only one of its two keys is new; renew both "
                "(fedgradnorm federation key NAME --renew)"
            )
    (folder / REGISTERED).mkdir(mode=0o700, exist_ok=True)
    for one in given:
        path, text = folder / REGISTERED / public_file(one.name), to_toml(asdict(one)).encode()
        if path.exists() and read_public(path).key != one.key:
            _retire(folder, read_public(path))  # a key that was replaced does not come back
        checkpoint.write_atomically(path, text)
    if terms.private and set(found) == set(terms.clients):
        path, bounds = folder / ROSTER, (terms.longest, terms.largest_ratio, -1)
        if path.exists():  # what is agreed besides the keys stays as it is
            agreed = read_terms(path)
            bounds = (agreed.longest, agreed.largest_ratio, agreed.colluders)
        PrivateTerms({name: found[name].signing for name in terms.clients}, *bounds).write(path)
    audit = Audit(folder)
    for one in given:
        audit.add("registered", client=one.name, fingerprint=one.fingerprint)
    return found


def registered(folder: Path) -> dict[str, PublicKeys]:
    """The public keys of all clients that are registered and not revoked, by name."""
    found = [read_public(path) for path in sorted((folder / REGISTERED).glob("*.toml"))]
    return {one.name: one for one in found}


def revoke(folder: Path, name: str) -> PublicKeys:
    """Revoke a client's access; a running server notices before its next round."""
    choose(name, read_federation(folder).clients, f"client in {FEDERATION}")
    path = folder / REGISTERED / public_file(name)
    if not path.exists():
        raise ConfigError(f"client {name!r} has no registered key: there is nothing to revoke")
    one = read_public(path)
    _retire(folder, one)
    Audit(folder).add("revoked", client=name, fingerprint=one.fingerprint)
    return one


def revoked(folder: Path) -> list[PublicKeys]:
    return [read_public(path) for path in sorted((folder / REVOKED).glob("*.toml"))]


def _retire(folder: Path, one: PublicKeys) -> None:
    """Move registered keys to those that are never let in again."""
    (folder / REVOKED).mkdir(mode=0o700, exist_ok=True)
    path = folder / REGISTERED / public_file(one.name)
    path.replace(folder / REVOKED / f"{one.name}-{one.fingerprint}.toml")


def roster_fingerprint(keys: Mapping[str, PublicKeys]) -> str:
    """One name for all clients' keys."""
    from fedgradnorm._masking.roster import fingerprint

    return fingerprint("\n".join(keys[name].fingerprint for name in sorted(keys)).encode())
