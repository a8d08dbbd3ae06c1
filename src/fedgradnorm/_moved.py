"""Import paths that the documentation once taught. They still work, and warn."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "fedgradnorm.data.files": "fedgradnorm.data",
    "fedgradnorm.data.partition": "fedgradnorm.data",
    "fedgradnorm.experiments.config": "fedgradnorm.experiments",
    "fedgradnorm.experiments.execute": "fedgradnorm.experiments",
    "fedgradnorm.experiments.sinks": "fedgradnorm.experiments",
}
"""Where the public names of a module are now."""


class _Loader(Loader):
    """Fills a module of the old name with what is public at the new one."""

    def exec_module(self, module: ModuleType) -> None:
        now = importlib.import_module(MOVED[module.__name__])
        warnings.warn(
            f"{module.__name__} has moved: import its names from {now.__name__}",
            DeprecationWarning,
            stacklevel=2,
        )
        module.__dict__["__getattr__"] = lambda name: getattr(now, name)


class _Finder(MetaPathFinder):
    """Finds the old names; asked last, so that it costs other imports nothing."""

    def find_spec(
        self, name: str, _: Sequence[str] | None, __: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, _Loader()) if name in MOVED else None


def keep_old_paths() -> None:
    """Let the old paths be imported; once is enough."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
