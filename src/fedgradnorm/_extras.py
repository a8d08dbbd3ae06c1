"""Optional dependencies: the error that names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedgradnorm._errors import ConfigError


@contextmanager
def needed(extra: str, what: str) -> Iterator[None]:
    """Import an optional package; where it is missing, say which extra provides ``what``.

    >>> with needed("data", "reading Parquet files"):
    ...     import pyarrow
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "a package").partition(".")[0]
        raise ConfigError(f"{what} needs {package}: pip install 'fedgradnorm[{extra}]'") from error
