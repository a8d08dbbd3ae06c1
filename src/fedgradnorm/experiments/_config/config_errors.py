"""pydantic's findings as one line: the key, the value, what is allowed, the nearest name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pydantic import BaseModel, ValidationError

from fedgradnorm._checks import shortened, shown
from fedgradnorm._errors import ConfigError, did_you_mean
from fedgradnorm._methods import METHODS
from fedgradnorm._round.settings import ELSEWHERE, FIELDS, GROUPS, TOP, key_of

KEYS = (*TOP, *GROUPS)
"""Keys of a config that are settings."""


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first finding: the key, its value, what is allowed, and the nearest name.

    What is missing comes last: it may have been misspelt.
    """
    found = error.errors(include_url=False)
    first = min(found, key=lambda one: one["type"] == "missing")
    key, name = ".".join(map(str, first["loc"])), str(first["loc"][-1])
    if first["type"] == "extra_forbidden":
        table = _tables(model).get(str(first["loc"][0]))
        if within := [] if table else _tables_with(name, model):
            return f"unknown key {name!r}; did you mean {within[0]!r}?"
        return unknown_key(key, name, [*(table or model).model_fields, *([] if table else KEYS)])
    if first["type"] == "missing":
        keys = _tables(model).get(str(first["loc"][0]), model).model_fields
        what = name if name in keys else next(k for k in keys if keys[k].is_required())
        add = "" if name in keys else f"; add the table [{key}] with {what}"
        return f"{key} is missing{add}: {keys[what].description}".replace("``", "'")
    text = re.sub(r"^Input should be ", "", first["msg"])
    text = re.sub(r"^String should match pattern", "a text like", text)
    text = re.sub(r" or (an? )?(object to extract|instance of).*", "", text)
    text = text.replace("a valid dictionary", "a table")
    near = did_you_mean(first["input"], re.findall(r"'([^']*)'", text))
    return f"{key} = {shown(first['input'], 200)} should be {text}{near}"


def unknown_key(key: str, name: str, names: Sequence[str]) -> str:
    setting = ELSEWHERE.get(name, name)
    where = f"; did you mean {key_of(setting)!r}?" if setting in FIELDS else ""
    return f"unknown key {key!r}{where or did_you_mean(name, names)} (one of: {', '.join(names)})"


def _tables(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    found = {name: field.annotation for name, field in model.model_fields.items()}
    return {
        name: kind
        for name, kind in found.items()
        if isinstance(kind, type) and issubclass(kind, BaseModel)
    }


def _tables_with(name: str, model: type[BaseModel]) -> list[str]:
    """The dotted keys that end in ``name``: somebody left the table out."""
    setting = ELSEWHERE.get(name, name)
    if setting in FIELDS:
        return [key_of(setting)]
    options = {key for method in METHODS.values() for key in method.options()}
    found = [f"{key}.{name}" for key, table in _tables(model).items() if name in table.model_fields]
    return found + ([f"weighting.{name}"] if name in options else [])


@contextmanager
def blaming(where: str) -> Iterator[None]:
    """Put the file in front of an error about it."""
    try:
        yield
    except ConfigError as error:
        text = f"{shortened(where, 300)}: {error}" if where else str(error)
        raise ConfigError(shortened(text)) from None
