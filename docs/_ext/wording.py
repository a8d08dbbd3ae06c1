"""Types, defaults and entries of the reference, in words that a reader of TOML knows."""

from __future__ import annotations

import collections.abc as abc
import enum
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    dict: "table",
    Path: "path",
    type(None): "",
    Any: "value",
}
STRINGS = {"FilePath": "path", "Metric": "metric", "type[nn.Module]": "text"}


def type_words(kind: Any, names: Mapping[str, Any] | None = None) -> str:
    """A type as words; a type that is written as text is looked up in ``names``."""
    if isinstance(kind, str):
        return _of_text(kind, names or {})
    if kind in WORDS:
        return WORDS[kind]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(
            f'`"{part}"`' if isinstance(part, str) else f"`{part}`" for part in parts
        )
    if origin in (Union, types.UnionType):
        return _either([type_words(part, names) for part in parts])
    if origin in (list, tuple, abc.Sequence):
        return f"list of {_many(type_words(parts[0], names))}"
    if origin in (dict, abc.Mapping):
        return f"table of {_many(type_words(parts[1], names))}"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _either([f"`{member.value}`" for member in kind])
    return getattr(kind, "__name__", str(kind))


def _of_text(kind: str, names: Mapping[str, Any]) -> str:
    if kind in STRINGS:
        return STRINGS[kind]
    try:
        return type_words(eval(kind, dict(names)), names)
    except NameError:  # a name that only type checkers see
        return _either(
            [STRINGS.get(part, part) for part in re.split(r" \| ", kind) if part != "None"]
        )


def _either(words: list[str]) -> str:
    return " or ".join(dict.fromkeys(word for word in words if word))


def _many(word: str) -> str:
    if " or " in word or not word:
        return "values" if word != "true or false" else word
    if word.startswith("list of "):
        return word.replace("list", "lists", 1)
    return word if word.startswith("`") else f"{word}s"


def value_words(value: Any) -> str:
    """A default as TOML would have it; what TOML cannot say is "none"."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, list | tuple):
        return "`[" + ", ".join(value_words(part).strip("`") for part in value) + "]`"
    if isinstance(value, Path):
        return f"`{value}`"
    if isinstance(value, type):
        return f'`"{value.__name__.lower()}"`'
    return f"`{value!r}`" if not isinstance(value, float) else f"`{value:g}`"


def entry(key: str, facts: list[str], meaning: str, of: str = "") -> str:
    """One key: its name with an anchor, the facts about it, and what it means.

    ``of`` is whose key it is where several have one of that name; it is seen in the anchor alone.
    """
    anchor = re.sub(r"[^\w-]+", "-", f"{of}-{key}" if of else key)
    line = "; ".join(fact for fact in facts if fact)
    text = meaning[:1].upper() + meaning[1:]
    text = text if text.endswith((".", ":")) else f"{text}."
    dot = " · " if line else ""
    return f"[`{key}`]{{#{anchor}}}{dot}{line}\n: {_markdown(text)}\n"


def _markdown(text: str) -> str:
    """reST's marks as Markdown's."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text)
    return text.replace("``", "`")
