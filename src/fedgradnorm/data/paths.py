"""Paths as users give them: ``~`` for a home, and texts that are no path at all."""

from __future__ import annotations

from pathlib import Path

from fedgradnorm.errors import ConfigError


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
