"""Options given by name, from a config or the command line, checked against a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fedgradnorm._errors import ConfigError, did_you_mean

_SCALARS: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
}


def options_of(
    function: Callable[..., Any],
    *,
    without: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> dict[str, inspect.Parameter]:
    """What can be given to ``function`` by name, less ``without``, ``renamed`` where said."""
    return {
        (renamed or {}).get(name, name): parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in without
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


OF_RUN = ("imports", "method", "seed", "rounds", "epochs", "lr")
"""Keys above the tables of a config, which below one are taken for options of it."""


def check_options(
    what: str,
    options: Mapping[str, Any],
    allowed: Mapping[str, inspect.Parameter],
    above: Collection[str] = (),
) -> None:
    """A ConfigError unless every option is ``allowed`` and of its type, and none is missing.

    A key of the whole run, one of ``above``, is an error that names its place in a file.

    Only plain numbers, texts and booleans are looked at here; anything richer is the function's
    own business, which knows more about it than an annotation says.
    """
    for name, value in options.items():
        if name in above and name not in allowed:
            raise ConfigError(
                f"{what} takes no {name!r}, which is a key of the whole run: in a file, it belongs "
                "above the first [table]"
            )
        if not allowed:
            raise ConfigError(f"{what} takes no options, but {name!r} was given")
        if name not in allowed:
            known = list(allowed)
            raise ConfigError(
                f"unknown option {name!r} of {what}{did_you_mean(name, known)} "
                f"(one of: {', '.join(known)})"
            )
        annotation = allowed[name].annotation
        kind = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        types = _SCALARS.get(kind)
        if types is None:
            continue
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ConfigError(f"option {name!r} of {what} must be {_WORDS[kind]}, not {value!r}")
    for name, parameter in allowed.items():
        if parameter.default is parameter.empty and name not in options:
            raise ConfigError(f"{what} needs the option {name!r}")


_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
}
