"""Prepared arrays kept on disk, memory-mapped, under a hash of what they were made from.

An entry is a folder ``kind-hash`` with one ``.npy`` file per array and a ``manifest.json``. It is
written next to its final place and renamed there in one step, so a reader sees all of it or none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._errors import DataError

Arrays = dict[str, NDArray[Any]]
Built = tuple[Arrays, dict[str, object]]

logger = logging.getLogger(__name__)

_FORMAT = 3
_MANIFEST = "manifest.json"
_WHOLE = 8 << 20  # up to this size every byte is hashed
_EDGE = 2 << 20  # of a bigger file: this much of either end; a zip's index of CRCs is at its end
_SAMPLES, _SAMPLE = 64, 16 << 10
_STALE_SECONDS = 24 * 3600


@dataclass(frozen=True)
class Prepared:
    """Arrays (read-only, memory-mapped) and notes; ``fresh`` if they were built by this call."""

    arrays: dict[str, NDArray[Any]]
    info: dict[str, Any]
    fresh: bool
    folder: Path


def default_folder() -> Path:
    """The folder named by FEDGRADNORM_CACHE, else ``~/.cache/fedgradnorm``."""
    named = os.environ.get("FEDGRADNORM_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "fedgradnorm"


def fingerprint(path: Path) -> str:
    """A hash of a file: all of a small one; size, both ends and 64 samples of a big one.

    A big file changed in place, between the samples and without changing its size, goes unnoticed.
    In a zip archive every change shows, because the CRC of each entry is at its end.
    """
    try:
        return _digest(Path(path))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"{path}: cannot be read ({reason}); check the path") from error


def cached(
    kind: str,
    key: Mapping[str, object],
    build: Callable[[], Built],
    *,
    folder: Path | None = None,
) -> Prepared:
    """The arrays and notes kept for ``kind`` and ``key``, made with ``build`` where there are none.

    ``key`` holds everything the result depends on and ``info`` what JSON can hold. A damaged entry
    is logged and built again; of two processes that build the same entry, the first one's stays.
    """
    root = Path(folder) if folder is not None else default_folder()
    text = json.dumps([_FORMAT, kind, dict(key)], sort_keys=True, default=str)
    entry = root / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
    if (found := _existing(entry)) is not None:
        return found
    arrays, info = build()
    try:
        root.mkdir(parents=True, exist_ok=True)
        for left in root.glob(".*-*"):  # by a process that was killed while it wrote
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
        _store(root, entry, arrays, info)
        return replace(_load(entry), fresh=True)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{entry}: the cache cannot be written ({error}); "
            "free some space, or name another folder with FEDGRADNORM_CACHE"
        ) from error


def _existing(entry: Path) -> Prepared | None:
    try:
        return _load(entry) if entry.exists() else None
    except (ValueError, OSError) as error:
        logger.warning("%s: damaged cache (%s); building it again", entry, error)
        return None


def _load(entry: Path) -> Prepared:
    """The entry, every file compared with the manifest; a ValueError says what is damaged."""
    try:
        manifest = json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))
        body = manifest["body"]
        if manifest["check"] != _text_digest(body):
            raise ValueError("the manifest does not match its checksum")
        arrays = {}
        for name, check in body["arrays"].items():
            if _digest(path := entry / f"{name}.npy") != check:
                raise ValueError(f"{path.name} does not match its checksum")
            arrays[name] = _mapped(path)
        return Prepared(arrays, body["info"], False, entry)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _mapped(path: Path) -> NDArray[Any]:
    """An ordinary array over the map: a map as such would be a client's wish to read in pieces."""
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except ValueError:  # NumPy cannot map an array without elements
        return np.asarray(np.load(path, allow_pickle=False))


def _store(root: Path, entry: Path, arrays: Arrays, info: Mapping[str, object]) -> None:
    """Write a complete entry next to its place, then rename it there.

    What a power cut leaves half-written does not match its checksum, and is built again.
    """
    place = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=root))
    aside = place.with_name(f"{place.name}-old")
    try:
        checks = {}
        for name, array in arrays.items():
            np.save(place / f"{name}.npy", array, allow_pickle=False)
            checks[name] = _digest(place / f"{name}.npy")
        body = json.loads(json.dumps({"info": info, "arrays": checks}))
        text = json.dumps({"check": _text_digest(body), "body": body}, indent=1)
        (place / _MANIFEST).write_text(text, encoding="utf-8")
        for attempt in range(8):
            try:
                place.rename(entry)
                return
            except OSError:  # something has this name, or had it a moment ago
                if _existing(entry) is not None:
                    return
                if attempt == 7:
                    raise
            aside.mkdir()
            with suppress(OSError):  # another process may have moved or replaced it first
                entry.rename(aside / "entry")
            shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _text_digest(body: object) -> str:
    return hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()


def _digest(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as stream:
        if size <= _WHOLE:
            digest.update(stream.read())
            return digest.hexdigest()
        digest.update(stream.read(_EDGE))
        for index in range(_SAMPLES):
            stream.seek(_EDGE + (size - 2 * _EDGE) * index // _SAMPLES)
            digest.update(stream.read(_SAMPLE))
        stream.seek(-_EDGE, os.SEEK_END)
        digest.update(stream.read())
    return digest.hexdigest()
