"""pydantic's findings as one line: the key, the value, what is allowed, the nearest name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fedgradnorm._checks import shortened, shown
from fedgradnorm._errors import ConfigError, did_you_mean
from fedgradnorm._methods import METHODS
from fedgradnorm._round.settings import ELSEWHERE, FIELDS, SWITCHES, key_of


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first finding; alternatives for the same key are put together."""
    findings = error.errors(include_url=False)
    first = findings[0]
    place = first["loc"][:2]
    key = ".".join(map(str, place))
    if first["type"] == "extra_forbidden":
        *tables, name = first["loc"]
        within = [] if tables else _tables_with(str(name), model)
        if within:
            return f"unknown key {name!r}; did you mean {within[0]!r}?"
        return _unknown(".".join(map(str, first["loc"])), str(name), _names(model, tables))
    if first["type"] == "missing":
        return f"{key} is missing; give it one"
    here = [f for f in findings if f["loc"][:2] == place]
    wishes = list(dict.fromkeys(_wish(finding) for finding in here))
    if key in SWITCHES:
        wishes = ["true, false or a table of its settings"]
    value = first["input"]
    near = did_you_mean(value, re.findall(r"'([^']*)'", " ".join(wishes)))
    return f"{key} = {shown(value, 200)} should be {' or '.join(wishes)}{near}"


def _unknown(key: str, name: str, names: list[str]) -> str:
    return f"unknown key {key!r}{did_you_mean(name, names)} (one of: {', '.join(names)})"


def _tables_with(name: str, model: type[BaseModel]) -> list[str]:
    """The dotted keys that end in ``name``: somebody left the table out."""
    setting = ELSEWHERE.get(name, name)
    if setting in FIELDS:
        return [key_of(setting)]
    tables = {
        table: kind.model_fields
        for table, field in model.model_fields.items()
        if isinstance(kind := _table(field.annotation), type) and issubclass(kind, BaseModel)
    }
    options = {key for method in METHODS.values() for key in method.options()}
    found = [f"{table}.{name}" for table, names in tables.items() if name in names]
    return found + ([f"weighting.{name}"] if name in options else [])


def _names(model: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """The keys of the table at ``place``."""
    kind: Any = model
    for part in place:
        any_name = get_origin(kind) is dict
        kind = get_args(kind)[1] if any_name else _table(kind.model_fields[str(part)].annotation)
    return list(kind.model_fields)


def _table(annotation: Any) -> Any:
    """The model of a table that may be left out, or the annotation itself."""
    if get_origin(annotation) is dict:
        return annotation
    models = [kind for kind in get_args(annotation) if kind is not NoneType]
    return models[0] if len(models) == 1 else annotation


def _wish(finding: Mapping[str, Any]) -> str:
    text = re.sub(r"^Input should be ", "", finding["msg"])
    text = re.sub(r"^String should match pattern", "a text like", text)
    text = text.replace("a valid dictionary", "a table")
    return re.sub(r" or (an? )?(object to extract|instance of).*", "", text)


@contextmanager
def blaming(where: str) -> Iterator[None]:
    """Put the file in front of an error about it."""
    try:
        yield
    except ConfigError as error:
        text = f"{shortened(where, 300)}: {error}" if where else str(error)
        raise ConfigError(shortened(text)) from None
