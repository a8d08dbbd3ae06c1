"""Public names of a package that are imported when they are first asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def on_demand(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's ``__getattr__`` (PEP 562): ``where`` has the full name of what each name is."""

    def __getattr__(name: str) -> Any:
        if name not in where:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[package])  # Python adds a hint
        module, _, last = where[name].rpartition(".")
        if module == package:  # a part of the package itself
            return importlib.import_module(where[name])
        found = getattr(importlib.import_module(module), last)
        setattr(sys.modules[package], name, found)
        return found

    return __getattr__
