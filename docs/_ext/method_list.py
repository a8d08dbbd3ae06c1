"""The methods on their page, from their entries in the registry."""

from __future__ import annotations

from fedgradnorm._methods import METHODS, Method
from fedgradnorm._round.settings import key_of
from fedgradnorm.weighting import Needs


def methods(module: str) -> str:
    """The methods that a module of ``fedgradnorm._methods`` declares, one paragraph each."""
    names = [name for name in METHODS if METHODS.module_of(name).endswith(f".{module}")]
    return "\n".join(_entry(METHODS[name]) for name in names)


def _entry(method: Method) -> str:
    fixed = {key_of(name): value for name, value in method.settings.items()}
    fixed |= {f"weighting.{name}": value for name, value in method.fixed.items()}
    sets = ", ".join(f"`{key} = {value!r}`" for key, value in fixed.items())
    return "\n".join(
        [
            f"`{method.name}`",
            f": {method.summary[:1].upper()}{method.summary[1:]}.",
            "",
            f"  $${method.equation}$$",
            "",
            f"  Source: {method.source}. The server sees {_sees(method.needs)}; "
            f"cost: {method.cost}.{f' Sets {sets}.' if sets else ''}",
            "",
        ]
    )


def _sees(needs: Needs) -> str:
    return ", ".join(str(need.name).lower() for need in needs) or "nothing"
