"""Things by name, each declared in one place: methods, data sets, metrics, kinds, columns.

A declaration registers itself when its module is imported. What a registry lists follows from that,
so there is no second list to keep.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from fedgradnorm._errors import ConfigError, choose

Entry = TypeVar("Entry")


class Registry(Mapping[str, Entry]):
    """Entries by name, in the order in which they were registered; built-in ones come first.

    Built-in entries are in ``modules``, which are imported when the registry is first read. Where
    ``modules`` is a mapping, it has the module of each name, imported when that entry is needed.

    >>> shapes = Registry[int]("shape")
    >>> shapes.register("square", 4, "here")
    4
    >>> shapes.find("sqare")
    Traceback (most recent call last):
    fedgradnorm._errors.ConfigError: unknown shape 'sqare'; did you mean 'square'? (one of: square)
    """

    def __init__(self, what: str, modules: Sequence[str] | Mapping[str, str] = ()) -> None:
        self.what = what
        each = isinstance(modules, Mapping)
        self._places: dict[str, str] = dict(modules) if isinstance(modules, Mapping) else {}
        self._modules: list[str] = [] if each else list(modules)
        self._entries: dict[str, Entry] = {}
        self._origins: dict[str, str] = {}
        self._lock = threading.RLock()

    def register(self, name: str, entry: Entry, module: str) -> Entry:
        """Add an entry that ``module`` declares; a name that another module took is refused.

        The same module may register a name again: it was reloaded, or a notebook's cell was.
        """
        if not isinstance(name, str) or not name.strip() or set(name) & set(',"\r\n'):
            raise ConfigError(
                f"the name of a {self.what} must be a text without commas, quotes or line breaks, "
                f"not {name!r}"
            )
        ours = module.partition(".")[0] == __package__
        if not ours:
            self._import_all()
        taken = self._origins.get(name)
        if taken is None and name in self._places and not ours:
            taken = self._places[name]
        if taken is not None and (ours or taken != module):
            raise ConfigError(
                f"{self.what} {name!r} exists already, from module {taken}; choose another name"
            )
        self._entries[name], self._origins[name] = entry, module
        return entry

    def find(self, name: str) -> Entry:
        """The entry of that name; a ConfigError with the nearest valid name if there is none."""
        return self[choose(name, self, self.what)]

    def module_of(self, name: str) -> str:
        _ = self[name]
        return self._origins[name]

    def is_builtin(self, name: str) -> bool:
        return name in self and self.module_of(name).partition(".")[0] == __package__

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Leave the registry as it was: what is registered inside is forgotten afterwards."""
        self._import_all()
        before = dict(self._entries), dict(self._origins)
        try:
            yield
        finally:
            self._entries, self._origins = before

    def _import_all(self) -> None:
        with self._lock:  # another thread waits until all are there
            modules, self._modules = self._modules, []
            for module in modules:
                importlib.import_module(module)

    def __getitem__(self, name: str) -> Entry:
        if name in self._entries:
            return self._entries[name]
        self._import_all()
        if name not in self._entries and name in self._places:
            importlib.import_module(self._places[name])
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._import_all()
        return iter(dict.fromkeys([*self._places, *self._entries]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        self._import_all()
        return name in self._places or name in self._entries

    def __repr__(self) -> str:
        return f"{self.what}s({', '.join(self)})"


def calling_module(depth: int = 2) -> str:
    """The module whose code called the function that asks."""
    return str(sys._getframe(depth).f_globals.get("__name__", "__main__"))
