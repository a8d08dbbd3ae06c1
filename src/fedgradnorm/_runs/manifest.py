"""run.json: what a run is. The shape it must have is written here, and checked in one place."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from fedgradnorm._checks import shown
from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import RunFolderError, listed
from fedgradnorm._privacy.terms import privacy_table
from fedgradnorm._round.settings import completed
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.layout import MANIFEST
from fedgradnorm._runs.reading import present, read_file
from fedgradnorm.models._input_rows import row_form
from fedgradnorm.models._streamed.rows import StreamedTargets
from fedgradnorm.tasks._kind import KINDS, OWN
from fedgradnorm.weighting import Weighting

FORMAT = 1

MANY = 500
"""Clients up to which run.json is written for readers, too."""

Rule = tuple[str, Callable[[Any], bool]]
"""What a value must be, in words and as a question."""


def now() -> str:
    """The time to the microsecond: runs that are started one after another keep their order."""
    return datetime.now().astimezone().isoformat(timespec="microseconds")


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write run.json; of many clients without spaces, which takes a tenth of the time."""
    if len(manifest["clients"]) <= MANY:
        text = json.dumps(manifest, indent=2, ensure_ascii=False)
        checkpoint.write_atomically(folder / MANIFEST, f"{text}\n".encode())
    else:
        checkpoint.write_atomically(folder / MANIFEST, _parts(manifest))


def _parts(manifest: Mapping[str, Any]) -> Iterator[bytes]:
    """run.json in parts, some clients each: as one text it is as large as all of them."""
    for number, (key, value) in enumerate(manifest.items()):
        yield f"{',' if number else '{'}{_plain(key)}:".encode()
        if not isinstance(value, dict) or len(value) <= MANY:
            yield _plain(value).encode()
            continue
        items = iter(value.items())
        before = "{"
        while some := dict(itertools.islice(items, MANY)):
            yield (before + _plain(some)[1:-1]).encode()
            before = ","
        yield b"}"
    yield b"}\n"


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read run.json; a RunFolderError if there is none, or it has not the shape it must have."""
    path = folder / MANIFEST
    if not present(path):
        raise RunFolderError(f"{folder} is no run folder: it has no {MANIFEST}")
    data = read_file(path)
    try:
        manifest = json.loads(data.decode())
        json.dumps(manifest, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise RunFolderError(f"{path} has a format that this version cannot read")
    _check(path, manifest, _RUN, _NEEDED)
    _check(path, manifest["settings"], {"seed": _WHOLE}, {"seed"}, "settings.")
    _check(path, manifest["weighting"], {"name": _TEXT}, {"name"}, "weighting.")
    _check(path, manifest.get("blueprints", {}), _PLANS, set(), "blueprints.")
    for name, client in manifest["clients"].items():
        _check(path, client, _CLIENT, {"kind"}, f"clients.{name}.")
    return manifest


def identity(manifest: Mapping[str, Any]) -> str:
    """What a run is, as a hash: its settings, weighting, start, and its clients with their data.

    A resumed run has the same. Files of a folder name it, so that those of another run are refused.
    """
    digest = hashlib.blake2b(digest_size=12)
    start = manifest.get("start", {}).get("fingerprint")
    parts = [completed(manifest["settings"]), manifest["weighting"], start]
    digest.update(json.dumps(parts, sort_keys=True).encode())
    for name, client in manifest["clients"].items():
        digest.update(f"{name}\0{client.get('fingerprint')}\0".encode())
    return digest.hexdigest()


def client_info(client: Client, trivial: bool = True) -> dict[str, Any]:
    """What run.json says of a client: its task, and its rows without their values.

    What the ``trivial`` answer scores may be left out: it takes longer than all the rest.
    """
    weights = client.task.class_weights()
    return {
        "kind": client.task.kind,
        "outputs": client.task.outputs,
        "task": client.task_name,
        "loss_scale": client.task.loss_scale,
        **({"class_weights": weights} if weights else {}),
        **({"privacy": privacy_table(client.privacy)} if client.privacy else {}),
        "size": client.size,
        "labels": list(client.labels) if client.labels else None,
        "columns": list(client.columns) if client.columns else None,
        **({"given_columns": list(client.given_columns)} if client.given_columns else {}),
        **({"encoding": client.encoding.plain()} if client.encoding else {}),
        **of_task(client, trivial),
        "splits": {s: len(pair[0]) for s in SPLITS if (pair := getattr(client, s)) is not None},
        "inputs": row_form(client.train[0]),
        "fingerprint": client.fingerprint(),
    }


def describe_weighting(weighting: Weighting) -> dict[str, Any]:
    """The weighting's class and plain settings."""
    plain = (bool, int, float, str, type(None))
    settings: Mapping[str, Any] = {
        key: value
        for key, value in vars(weighting).items()
        if not key.startswith("_") and isinstance(value, plain)
    }
    weights = getattr(weighting, "weights", None)
    extra = {"weights": weights} if isinstance(weights, dict) else {}
    return {"name": type(weighting).__name__, **settings, **extra}


def of_task(client: Client, trivial: bool = True) -> dict[str, Any]:
    """What only some clients have to say of their task, and what the trivial answer scores."""
    task, found = client.task, dict[str, Any]()
    found |= {} if client.of is None else {"of": client.of}
    found |= {"shape": list(task.shape)} if task.shape else {}
    found |= {"metric": task.judged_by} if task.judged_by else {}
    if trivial and (scores := _trivial_scores(client)):
        found["trivial"] = scores
    return found


UNCOMPARED = ("metric", "trivial")
"""What is shown of a client, and makes no other run of it."""


def _trivial_scores(client: Client) -> dict[str, float]:
    """What the trivial answer scores on the rows that the client is shown on."""
    pair = client.test or client.validation or client.train
    if any(isinstance(y, StreamedTargets) for y in (client.train[1], pair[1])):
        return {}  # it would take a pass over all rows
    learned, y = torch.as_tensor(client.train[1]), torch.as_tensor(pair[1])
    return client.task.trivial_scores(learned, y, client.scaling)


def diverged_words(names: Sequence[str]) -> str:
    """What is said of a run that ended with clients in divergence.

    >>> diverged_words(["a", "b"])
    '2 clients have diverged, and what was trained for them is not usable: a, b'
    """
    if len(names) == 1:
        return f"client {names[0]!r} has diverged, and what was trained for it is not usable"
    many = f"{len(names)} clients have diverged, and what was trained for them is not usable"
    return f"{many}: {listed(names, 20)}"


def kept_words(manifest: Mapping[str, Any]) -> str:
    """What a run kept, where that was a choice, and whether it ended early; else nothing.

    >>> kept_words({"stopped_early": True, "kept": {"round": 40, "last_round": 60}})
    'stopped early at round 60, kept round 40'
    >>> kept_words({"kept": {"round": 40, "clients": {"a": {"round": 20}, "b": {"round": 40}}}})
    "kept round 40, and each client's best round: a 20, b 40"
    >>> kept_words({"stopped_early": True, "stopped": "the loss is low enough"})
    'stopped early: the loss is low enough'
    """
    kept = manifest.get("kept")
    if not isinstance(kept, Mapping):
        return f"stopped early: {why}" if (why := manifest.get("stopped")) else ""
    parts = [f"round {kept['round']}"] if "round" in kept else []
    if isinstance(clients := kept.get("clients"), Mapping):
        rounds = {n: one.get("round") for n, one in clients.items() if isinstance(one, Mapping)}
        parts.append("each client's best round: " + _each(rounds))
    what = ", and ".join(parts) or "nothing"
    at = f" at round {kept['last_round']}" if "last_round" in kept else ""
    early = f"stopped early{at}, " if manifest.get("stopped_early") is True else ""
    return f"{early}kept {what}"


def kept_round(manifest: Mapping[str, Any], name: str) -> int | None:
    """The round whose state a client ended with, where that was a choice.

    >>> own = {"b": {"round": 20}}
    >>> kept = {"kept": {"round": 40, "clients": own}}
    >>> [kept_round(kept, name) for name in "ab"], kept_round({"kept": {"clients": own}}, "a")
    ([40, 20], None)
    """
    kept = manifest.get("kept")
    if not isinstance(kept, Mapping):
        return None
    clients = kept.get("clients")
    own = clients.get(name) if isinstance(clients, Mapping) else None
    found = (own if isinstance(own, Mapping) else kept).get("round")
    return found if isinstance(found, int) else None


_NAMED = 20
"""Clients whose best rounds are named one by one."""


def _each(rounds: Mapping[str, Any]) -> str:
    """Each client's round; of many clients the first and the last."""
    whole = [number for number in rounds.values() if isinstance(number, int)]
    if len(rounds) > _NAMED and whole:
        return f"{min(whole)} to {max(whole)}"
    return ", ".join(f"{name} {number}" for name, number in rounds.items())


def _check(
    path: Path, table: Any, rules: Mapping[str, Rule], needed: set[str], inside: str = ""
) -> None:
    """Refuse a table that lacks a key, or has a value of another kind under one."""
    if not isinstance(table, dict):
        raise RunFolderError(
            f"{path} is damaged: {inside[:-1]} must be a table, not {shown(table)}"
        )
    for key in sorted(needed - set(table)):
        raise RunFolderError(f"{path} is damaged: it has no {inside}{key}")
    for key, (words, holds) in rules.items():
        if key in table and not holds(table[key]):
            raise RunFolderError(
                f"{path} is damaged: {inside}{key} must be {words}, not {shown(table[key])}"
            )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _number(value: Any) -> bool:
    return _whole(value) or (isinstance(value, float) and math.isfinite(value))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _names(value: Any) -> bool:
    """Names of classes, which nobody keeps from being numbers."""
    return isinstance(value, list) and all(isinstance(v, (str, int, float)) for v in value)


def _form(value: Any) -> bool:
    """The form of a row of one tensor, or of sequences."""
    if isinstance(value, dict):
        return set(value) == {"step"} and isinstance(value["step"], list) and _form(value["step"])
    return isinstance(value, list) and all(map(_whole, value))


_TEXT: Rule = ("a text", lambda value: isinstance(value, str))
_TEXTS: Rule = ("a list of texts", _texts)
_FLAG: Rule = ("true or false", lambda value: isinstance(value, bool))
_TABLE: Rule = ("a table", lambda value: isinstance(value, dict))
_WHOLE: Rule = ("a whole number >= 0", _whole)
_COUNTS: Rule = (
    "a table of whole numbers",
    lambda value: isinstance(value, dict) and all(map(_whole, value.values())),
)

_RUN: dict[str, Rule] = {
    "finished": _FLAG,
    "checkpoint": _FLAG,
    "stopped_early": _FLAG,
    "stopped": _TEXT,
    "diverged": _TEXTS,
    "kept": _TABLE,
    "personal": _TABLE,
    "personalized": _TABLE,
    "start": _TABLE,
    "settings": _TABLE,
    "weighting": _TABLE,
    "clients": _TABLE,
    "participants": _TEXTS,
    "sent": _TEXTS,
    "rounds": _WHOLE,
    "weights": (
        "a table of numbers",
        lambda value: isinstance(value, dict) and all(map(_number, value.values())),
    ),
    "norm_layer": _TEXTS,
    "blueprints": _TABLE,
    "command": _TEXTS,
    "started": _TEXT,
    "seconds": ("a number >= 0", lambda value: _number(value) and value >= 0),
    "versions": _TABLE,
}
_NEEDED = {"finished", "settings", "weighting", "clients"}
_PLANS: dict[str, Rule] = {
    "network": ("a table or null", lambda value: value is None or isinstance(value, dict)),
    "heads": _TABLE,
    "stems": _TABLE,
}
_CLIENT: dict[str, Rule] = {
    "kind": (
        f"one of {', '.join(filter(KINDS.is_builtin, KINDS))}",
        lambda value: isinstance(value, str) and (KINDS.is_builtin(value) or value.startswith(OWN)),
    ),
    "outputs": _WHOLE,
    "of": _TEXT,
    "shape": (
        "a list of whole numbers",
        lambda value: isinstance(value, list) and all(map(_whole, value)),
    ),
    "task": _TEXT,
    "loss_scale": ("a number", _number),
    "class_weights": _TABLE,
    "privacy": _TABLE,
    "metric": _TEXT,
    "trivial": _TABLE,
    "size": _WHOLE,
    "labels": ("a list of names or null", lambda value: value is None or _names(value)),
    "encoding": (
        "a list of tables",
        lambda value: isinstance(value, list) and all(isinstance(v, dict) for v in value),
    ),
    "given_columns": _TEXTS,
    "splits": _COUNTS,
    "inputs": (
        "a list of whole numbers, or a table of such",
        lambda value: _form(value) or (isinstance(value, dict) and all(map(_form, value.values()))),
    ),
}
