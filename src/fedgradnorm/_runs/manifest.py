"""run.json: what a run is. The shape it must have is written here, and checked in one place."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from fedgradnorm import weighting as weightings
from fedgradnorm._checks import shortened
from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import ConfigError, FedGradNormError, RunFolderError, listed
from fedgradnorm._privacy.terms import privacy_table
from fedgradnorm._round.settings import completed
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.files import present, read_file
from fedgradnorm._runs.layout import MANIFEST
from fedgradnorm.models._input_rows import row_form
from fedgradnorm.models._streamed import StreamedTargets
from fedgradnorm.weighting import Weighting

FORMAT = 1

CHECKSUM = "checksum"
"""The key of run.json that says what everything else in it was when it was written."""

MANY = 500
"""Clients up to which run.json is written for readers, too."""


def now() -> str:
    """The time to the microsecond: runs that are started one after another keep their order."""
    return datetime.now().astimezone().isoformat(timespec="microseconds")


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write run.json; of many clients without spaces, which takes a tenth of the time."""
    few = len(manifest["clients"]) <= MANY
    style: dict[str, Any] = {"indent": 2} if few else {"separators": (",", ":")}
    sealed = {**manifest, CHECKSUM: _checksum(manifest)}
    text = json.dumps(sealed, ensure_ascii=False, **style)
    checkpoint.write_atomically(folder / MANIFEST, f"{text}\n".encode())


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
    from fedgradnorm._runs.manifest_schema import fault  # pydantic, which training does not need

    if wrong := fault(manifest):
        raise RunFolderError(f"{path} is damaged: {wrong}")
    known = manifest.pop(CHECKSUM, None)
    if known is not None and known != _checksum(manifest):
        raise RunFolderError(
            f"{path} is damaged: its content does not match its checksum; restore it from a copy "
            f"or, if you changed it on purpose, remove its key {CHECKSUM!r}"
        )
    return manifest


def _checksum(manifest: Mapping[str, Any]) -> str:
    """A hash of everything else in the file; published runs are older and have none."""
    return hashlib.blake2b(json.dumps(manifest).encode(), digest_size=16).hexdigest()


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


def client_info(client: Client, baseline: bool = True) -> dict[str, Any]:
    """What run.json says of a client: its task, and its rows without their values.

    What the ``baseline`` scores may be left out: it takes longer than all the rest.
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
        **of_task(client, baseline),
        "splits": {s: len(pair[0]) for s in SPLITS if (pair := getattr(client, s)) is not None},
        "inputs": row_form(client.train[0]),
        "fingerprint": client.fingerprint(),
    }


def describe_weighting(weighting: Weighting) -> dict[str, Any]:
    plain = (bool, int, float, str, type(None))
    settings: Mapping[str, Any] = {
        key: value
        for key, value in vars(weighting).items()
        if not key.startswith("_") and isinstance(value, plain)
    }
    weights = getattr(weighting, "weights", None)
    extra = {"weights": weights} if isinstance(weights, dict) else {}
    return {"name": type(weighting).__name__, **settings, **extra}


def stored_weighting(manifest: Mapping[str, Any], again: str) -> Weighting:
    """The weighting in a manifest, made anew; ``again`` shows how to give one that cannot be."""
    stored = manifest["weighting"]
    for module in pkgutil.iter_modules(weightings.__path__, f"{weightings.__name__}."):
        importlib.import_module(module.name)  # which makes its classes known
    kind = next((one for one in _ours(Weighting) if one.__name__ == stored["name"]), None)
    try:
        taken = inspect.signature(kind).parameters if kind else {}
        made = kind(**{key: stored[key] for key in taken if key in stored}) if kind else None
    except (TypeError, ValueError, FedGradNormError):
        made = None
    if not isinstance(made, Weighting) or describe_weighting(made) != stored:
        raise ConfigError(
            f"the run was trained by weighting {stored['name']!r}, which cannot be made again from "
            f"what it stores; give it: {again}"
        )
    return made


def _ours(kind: type[Any]) -> Iterator[type[Weighting]]:
    """The classes of this package that are derived from this one."""
    for one in kind.__subclasses__():
        if one.__module__.startswith(f"{weightings.__name__}."):
            yield one
        yield from _ours(one)


def of_task(client: Client, baseline: bool = True) -> dict[str, Any]:
    """What only some clients have to say of their task, and what the baseline scores."""
    task, found = client.task, dict[str, Any]()
    found |= {} if client.of is None else {"of": client.of}
    found |= {"shape": list(task.shape)} if task.shape else {}
    found |= {"metric": task.judged_by} if task.judged_by else {}
    pair = client.test or client.validation or client.train
    # Of targets that are read batch by batch it would take a pass over all rows.
    if baseline and not any(isinstance(y, StreamedTargets) for y in (client.train[1], pair[1])):
        learned, y = torch.as_tensor(client.train[1]), torch.as_tensor(pair[1])
        if scores := task.baseline_scores(learned, y, client.scaling):
            found["baseline"] = scores
    return found


UNCOMPARED = ("metric", "baseline")
"""What is shown of a client, and makes no other run of it."""


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
        whole = [number for number in rounds.values() if isinstance(number, int)]
        each = ", ".join(f"{name} {number}" for name, number in rounds.items())
        if len(rounds) > 20 and whole:
            each = f"{min(whole)} to {max(whole)}"
        parts.append(f"each client's best round: {each}")
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


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The first key in which two tables differ, with both values; "" if they are the same.

    >>> difference({"lr": 0.1, "widths": [8, 8]}, {"lr": 0.1, "widths": [8, 9]})
    'widths[1] = 8 there, 9 here'
    """
    for key in {**there, **here}:
        if there.get(key) != here.get(key):
            word = key if key.isprintable() else repr(key)
            return _unlike(word, there.get(key), here.get(key))
    return ""


def _unlike(key: str, one: Any, other: Any) -> str:
    """Where two values differ, however deep in tables and lists: shown whole, both look alike."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return f"{key}.{difference(one, other)}"
    lists = isinstance(one, list | tuple) and isinstance(other, list | tuple)
    if lists and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next(_unlike(f"{key}[{i}]", *both) for i, both in pairs if both[0] != both[1])
    if lists:
        return f"{key} has {len(one)} entries there, {len(other)} here"
    texts = repr(one), repr(other)
    same = next((i for i, both in enumerate(zip(*texts, strict=False)) if both[0] != both[1]), 0)
    begin = same - 20 if max(map(len, texts)) > 80 and same > 20 else 0
    shown_texts = [shortened(f"{'...' if begin else ''}{text[begin:]}", 80) for text in texts]
    return f"{key} = {shown_texts[0]} there, {shown_texts[1]} here"
