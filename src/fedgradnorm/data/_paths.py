"""Paths as users give them: ``~`` for a home, texts that are no path, and the data folder."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedgradnorm._errors import ConfigError, DataError

ENV = "FEDGRADNORM_DATA"
"""The environment variable that names the user's folder of downloaded data sets."""


def user_path(path: object, what: str) -> Path:
    """The path with ``~`` replaced; a ConfigError where ``what`` is given something else."""
    if not isinstance(path, str | Path):
        raise ConfigError(f"{what} must be a path, not {path!r}")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{what}: the home folder of {str(path)!r} is not known; give the path in full"
        ) from error


def there(path: Path) -> bool:
    """Whether something is there; a name that no file system takes is nowhere."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_file(path: Path) -> bool:
    """Whether it is a file; a name that no file system takes is none."""
    return there(path) and path.is_file()


def find_data(source: str | Path | None, names: Sequence[str], who: str) -> Path:
    """``source``, or the first of ``names`` in the folder that FEDGRADNORM_DATA names.

    A relative ``source`` is also looked for in that folder; a ``source`` that is a folder may hold
    one of ``names``.
    """
    named = os.environ.get(ENV)
    folder = Path(named).expanduser() if named else None
    if source is None:
        if folder is None:
            raise DataError(
                f"no source of {who} given and {ENV} is not set; name {names[0]}, "
                f"or set {ENV} to the folder that holds it"
            )
        inside = _first(folder, names)
        if inside is None:
            raise DataError(
                f"{folder} ({ENV}): {' or '.join(names)} is not there; download it first"
            )
        return inside
    path = user_path(source, f"{who}: source")
    places = [path] if folder is None else [path, folder / path]
    found = next((place for place in places if there(place)), None)
    if found is None:
        looked = " or ".join(dict.fromkeys(map(str, places)))
        raise DataError(f"{looked}: no such file; give the path of {names[0]}")
    inside = _first(found, names) if found.is_dir() else found
    if inside is None:
        raise DataError(f"{found}: no {names[0]} in it; give the path of {names[0]}")
    return inside


@contextmanager
def opened_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive, of which nothing is ever extracted; a DataError where it is damaged."""
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:  # zipfile raises many kinds of error on damaged bytes
        raise DataError(
            f"{path}: not a complete zip archive ({error}); download it again"
        ) from error
    with archive:
        yield archive


def _first(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if there(folder / name)), None)
