"""Programs that a config names: ``imports = ["module"]`` and networks ``package.module:factory``.

A config, a run folder and a federation's file come from others too. A network is therefore not
imported before whoever reads the file has allowed its module: ``--allow-module`` on the command
line, ``FEDGRADNORM_ALLOW_MODULES`` in the environment, ``load_config(..., allow=[...])`` in Python.
``imports`` is for the config that you run; in a run folder or a federation's file it needs the same
permission, unless the module is imported already.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from fedgradnorm._errors import ConfigError, choose

VARIABLE = "FEDGRADNORM_ALLOW_MODULES"
"""Names of modules, between commas, that this user allows everywhere."""


def find_factory(name: str, allow: Collection[str]) -> Callable[..., Any]:
    """The factory that ``package.module:factory`` names, looked for in the working folder too."""
    place, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*place.split("."), attribute)):
        raise ConfigError(f"network {name!r} is not package.module:factory")
    _check_allowed(name, place, allow)
    module = _imported(f"network {name!r}", place)
    known = vars(module).items()
    factories: dict[str, Callable[..., Any]] = {k: v for k, v in known if _is_factory(v, place)}
    return factories[choose(attribute, factories, f"factory in module {place!r}")]


def import_modules(imports: Any) -> None:
    """Import the modules that ``imports`` names, so that they register what they have."""
    for place in _module_names(imports):
        _imported(f"imports = [{place!r}]", place)


def check_imports(imports: Any, allow: Collection[str]) -> None:
    """A ConfigError if a file that others may have written names a module nobody asked for."""
    for place in _module_names(imports):
        if place not in sys.modules and place not in _allowed(allow):
            raise ConfigError(
                f"imports = [{place!r}] is a program, and module {place!r} is not allowed here; if "
                f"you trust it, allow it with --allow-module {place}, with {VARIABLE}={place} in "
                f"the environment, or import it before"
            )


def _module_names(imports: Any) -> list[str]:
    fine = isinstance(imports, list | tuple) and all(
        isinstance(place, str) and all(part.isidentifier() for part in place.split("."))
        for place in imports
    )
    if not fine:
        raise ConfigError(f"imports = {imports!r} should be a list of modules, such as ['mine']")
    return list(imports)


def _allowed(allow: Collection[str]) -> set[str]:
    return {word.strip() for word in os.environ.get(VARIABLE, "").split(",")}.union(allow)


def _check_allowed(name: str, place: str, allow: Collection[str]) -> None:
    if place not in _allowed(allow):
        raise ConfigError(
            f"network {name!r} is a program, and module {place!r} is not allowed here; if you "
            f"trust it, allow it with --allow-module {place}, with {VARIABLE}={place} in the "
            f"environment, or with load_config(..., allow=[{place!r}])"
        )


def _imported(what: str, place: str) -> ModuleType:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(place)
    except Exception as error:  # the module's own code may raise anything
        raise ConfigError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(here)


def _is_factory(value: Any, place: str) -> bool:
    """Whether the module made it itself, or it is a network: ``mine:os.system`` is neither."""
    if isinstance(value, type) and issubclass(value, nn.Module):
        return True
    return callable(value) and getattr(value, "__module__", None) == place
