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
    "fedgradnorm.data.files": {"client_from_files": "fedgradnorm.data.client_from_files"},
    "fedgradnorm.data.partition": {
        "Dirichlet": "fedgradnorm.data.Dirichlet",
        "partition_client": "fedgradnorm.data.partition_client",
    },
    "fedgradnorm.experiments.config": {"load_config": "fedgradnorm.experiments.load_config"},
    "fedgradnorm.experiments.execute": {"execute": "fedgradnorm.experiments.run"},
    "fedgradnorm.experiments.sinks": {"open_sink": "fedgradnorm.experiments.open_sink"},
}
"""The names that were taught of a module, and what each is called now."""


class _Loader(Loader):
    """Fills a module of the old name with what its names mean now."""

    def exec_module(self, module: ModuleType) -> None:
        for name, place in MOVED[module.__name__].items():
            package, _, public = place.rpartition(".")
            setattr(module, name, getattr(importlib.import_module(package), public))
        now = ", ".join(MOVED[module.__name__].values())
        warnings.warn(f"{module.__name__} is now {now}", DeprecationWarning, stacklevel=2)


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
