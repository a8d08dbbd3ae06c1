"""A data set by name: the function that makes its clients, and which of its options are paths."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgradnorm._errors import ConfigError
from fedgradnorm._registry import Registry, calling_module

FILES = "files"
"""The source that reads the user's own files."""


@dataclass(frozen=True)
class Source:
    """A data set under a name, for ``[data] source = "name"`` in config files.

    A module that registers one needs only be imported:

    >>> with SOURCES.restored():
    ...     _ = Source("nothing", lambda seed: [], "no clients").register()
    ...     SOURCES["nothing"].summary
    'no clients'

    Args:
        name: what the data set is called.
        function: returns a list of clients. Its keyword arguments are the options of ``[data]``;
            it is given ``seed`` and ``progress`` if it takes them.
        summary: what the data is, in a few words.
        paths: names of the arguments that are paths. Relative ones are looked for next to the
            config, in the working folder and in the user's data folder.
    """

    name: str
    function: Callable[..., Any]
    summary: str = ""
    paths: tuple[str, ...] = ()

    def register(self) -> Source:
        """Make the name known to config files, and return the source."""
        if not callable(self.function):
            raise ConfigError(
                f"data source {self.name!r} needs a function that returns clients, not "
                f"{self.function!r}"
            )
        return SOURCES.register(self.name, self, calling_module())


def built_in() -> list[str]:
    """The data sets of this package: its public modules."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name for module in found if not module.name.startswith("_"))


SOURCES = Registry[Source](
    "data source",
    {name: f"{__package__}.{name}" for name in built_in()} | {FILES: f"{__package__}._files.table"},
)
"""Every data source that ``[data] source`` can name, imported when it is used."""
