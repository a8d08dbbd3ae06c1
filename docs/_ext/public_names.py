"""The public names of a package, documented from their docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import pprint
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = "fedgradnorm"
FIRST = ("train", "Client", "Run", "load", "benefit")
"""What most readers look for; other names follow in the order of the alphabet."""


def public_names(package: str) -> str:
    """All names of ``package``'s ``__all__``; one that lives in a lower package is only linked."""
    module = importlib.import_module(package)
    parts, elsewhere = [], []
    first = [name for name in FIRST if name in module.__all__]
    others = sorted({*module.__all__} - {*first}, key=str.lower)
    for name in [*first, *others]:
        value = getattr(module, name)
        home = _home(package, name, value)
        if inspect.ismodule(value):
            continue
        if home != package:
            elsewhere.append(f"{{py:obj}}`{package}.{name} <{home}.{name}>`")
        else:
            parts.append(_documented(module, package, name, value))
    if elsewhere:
        names = ", ".join(elsewhere)
        parts.insert(0, f"These names are on the pages of their subpackages: {names}.\n")
    about = f"```{{eval-rst}}\n.. py:module:: {package}\n```\n\n{_first_paragraph(module)}\n"
    return "\n".join([about, *parts])


def _first_paragraph(module: ModuleType) -> str:
    return (inspect.getdoc(module) or "").partition("\n\n")[0]


def _home(package: str, name: str, value: Any) -> str:
    """The package below this one that has the name too, if there is one."""
    if package == ROOT:
        for room in importlib.import_module(ROOT).__all__:
            below = getattr(importlib.import_module(ROOT), room)
            if inspect.ismodule(below) and getattr(below, name, None) is value:
                return below.__name__
    return package


def _documented(module: ModuleType, package: str, name: str, value: Any) -> str:
    if inspect.isclass(value):
        options = "\n   :members:" + ("\n   :undoc-members:" if _is_flag(value) else "")
        lines = f".. autoclass:: {package}.{name}{options}"
    elif callable(value):
        lines = f".. autofunction:: {package}.{name}"
    else:
        shown = pprint.pformat(value, width=76, compact=True)
        code = "\n".join(f"      {line}" for line in shown.splitlines())
        about = constant_meaning(module, name)
        lines = (
            f".. py:data:: {package}.{name}\n\n   {about}\n\n   .. code-block:: python\n\n{code}"
        )
    return f"```{{eval-rst}}\n{lines}\n```\n"


def _is_flag(value: type) -> bool:
    return hasattr(value, "__members__")


def constant_meaning(module: ModuleType, name: str) -> str:
    """The text below a constant's assignment, wherever in the package that is."""
    file = Path(str(module.__file__))
    files = file.parent.glob("*.py") if file.name == "__init__.py" else [file]
    for path in sorted(files):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for assigned, after in itertools.pairwise(body):
            targets = getattr(assigned, "targets", [getattr(assigned, "target", None)])
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if (
                name in names
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                return " ".join(str(after.value.value).split())
    return ""
