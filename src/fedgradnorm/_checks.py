"""Values of settings, checked one by one: the kind first, so that nothing raises a raw error."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from fedgradnorm._errors import ConfigError, choose

MOST = 2**63 - 1
LINE = 1000
"""Characters of a whole message that are shown; values in it may be longer."""


F = TypeVar("F", bound=Callable[..., Any])


def explained(why: Callable[[str], Exception]) -> Callable[[F], F]:
    """Let a function raise ``why(name)`` for a keyword that it does not take."""

    def decorated(function: F) -> F:
        taken = inspect.signature(function).parameters

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for name in given:
                if name not in taken:
                    raise why(name)
            return function(*args, **given)

        return cast(F, call)

    return decorated


def shown(value: object, most: int = 80) -> str:
    """A value as a message shows it: as Python writes it, in one line, and not for ever."""
    return shortened(repr(value), most)


def shortened(text: str, most: int = LINE) -> str:
    """The text on one line, without its middle where it is longer than ``most``.

    >>> shortened("0123456789" * 9, 20)
    '0123456789 ... 56789'
    """
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most // 2]} ... {line[-most // 4 :]}"


def whole(name: str, value: object, least: int) -> int:
    """A whole number that is not below ``least``.

    >>> whole("rounds", 5.0, 1)
    5
    """
    given = _own(value)
    if given is None or not least <= given < math.inf or given != int(given):
        raise ConfigError(f"{name} must be a whole number >= {least}, not {shown(value)}")
    if given > MOST:
        raise ConfigError(f"{name} must be at most {MOST}, not {shown(value)}")
    return int(given)


def number(name: str, value: object) -> float:
    """A number, finite or not; whether it is in range is for others to say."""
    given = _own(value)
    if given is None or (isinstance(given, int) and abs(given) > MOST):
        raise ConfigError(f"{name} must be a number, not {shown(value)}")
    return given


def finite(name: str, value: object) -> float:
    """A finite number."""
    if not math.isfinite(given := number(name, value)):
        raise ConfigError(f"{name} must be a finite number, not {shown(value)}")
    return given


def bounded(
    name: str, value: object, low: float = 0.0, high: float = math.inf, *, above: bool = False
) -> float:
    """A finite number from ``low`` to ``high``; with ``above`` it must be more than ``low``.

    >>> bounded("gamma", 0.9)
    0.9
    """
    given = number(name, value)
    if not low <= given <= high or given == math.inf or (above and given == low):
        top = "" if high == math.inf else f" and <= {high:g}"
        sign = ">" if above else ">="
        raise ConfigError(f"{name} must be {sign} {low:g}{top}, not {shown(value)}")
    return given


def _own(value: object) -> int | float | None:
    """A number as Python's own, whoever made it; None if it is none, and a bool is none."""
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.floating):
        return float(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def flag(name: str, value: object) -> bool:
    """True or False, and nothing that merely counts as such."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{name} must be True or False, not {shown(value)}")
    return bool(value)


def one_of(name: str, value: object, allowed: Sequence[str]) -> str:
    if not isinstance(value, str):
        names = ", ".join(allowed)
        raise ConfigError(f"{name} must be a text, not {shown(value)} (one of: {names})")
    return choose(value, allowed, name)


def names(name: str, value: object) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
        raise ConfigError(f"{name} must be a list of names, not {shown(value)}")
    if not value:
        raise ConfigError(f"{name} is an empty list: name at least one")
    return list(value)


def plain(name: str, value: object) -> Any:
    """What a run folder can hold: None, texts, numbers, and lists and tables of them."""
    if isinstance(value, np.generic):
        return plain(name, value.item())
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return type(value)([plain(name, part) for part in value])
    if isinstance(value, Mapping):
        return {str(key): plain(f"{name}.{key}", part) for key, part in value.items()}
    raise ConfigError(f"{name} must be made of plain numbers and texts, not {shown(value)}")
