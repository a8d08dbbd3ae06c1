"""Every key of a config and of a federation's files, from what reads them."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from wording import entry, type_words, value_words

from fedgradnorm import Privacy
from fedgradnorm._flower.federation_file import ClientFile, FederationFile, TaskTerms
from fedgradnorm._methods import METHODS
from fedgradnorm._options import options_of
from fedgradnorm._round.settings import FIELDS, GROUPS, MEANINGS, SWITCHES, TOP, Settings
from fedgradnorm.data._partition import PARTITIONERS
from fedgradnorm.data._source import SOURCES
from fedgradnorm.data._sources import _RENAMED
from fedgradnorm.experiments._config.config_file import CompareTable, Config, OutputTable
from fedgradnorm.experiments._config.meanings import meanings
from fedgradnorm.experiments._config.named_networks import NETWORKS

FOLDER = ("folder",)
"""What the program knows of a client's file, and the file does not say."""
HINTS = get_type_hints(Settings)
FIRST = ("name", "imports", "method", *TOP)
TABLES = ("data", "network", *GROUPS, "weighting", "privacy", "output", "compare", "sweep")
OURS = ("point", "own")
KNOWN = {*Config.model_fields, *TOP, *GROUPS}
assert {*FIRST, *TABLES, *OURS} == KNOWN, "a table has no section here"


def config_keys() -> str:
    """The page's sections, one for each table of a config."""
    return "\n".join(_parts())


def federation_keys() -> str:
    """The page's sections, one for each file of a federation."""
    return "\n".join(_of_federation())


def _of_federation() -> Iterator[str]:
    yield "## `federation.toml`\n"
    yield "The server's. `fedgradnorm federation init` writes it.\n"
    yield from _arguments(FederationFile, "", "federation")
    yield "### `[tasks.TASK]`\n"
    yield from _arguments(TaskTerms, "tasks.TASK.", "federation")
    yield "## `client.toml`\n"
    yield "A client's own. Paths in it start at the file's folder.\n"
    yield from _arguments(ClientFile, "", "client", FOLDER)


def _parts() -> Iterator[str]:
    yield "## At the top\n"
    yield from _of_model(Config, "", only=("name", "imports", "method"))
    for name in TOP:
        yield _setting(name, name)
    yield "## `[data]`\n"
    yield from _sources()
    yield "## `[network]`\n"
    yield from _networks()
    for group, kind in GROUPS.items():
        yield f"## `[{group}]`\n"
        yield f"The fields of {{py:class}}`fedgradnorm.{kind.__name__}`."
        yield 'A key that may be none is set to `"none"`.\n'
        if group in SWITCHES:
            yield f"Off by default. `{group} = true` is the table with its defaults.\n"
        yield from _group(group)
    yield "## `[weighting]`\n"
    yield "Which keys there are depends on the method. `fedgradnorm methods NAME` lists them.\n"
    yield from _weightings()
    yield "## `[privacy]`\n"
    yield "[Differential privacy](../differential-privacy.md) says what it promises.\n"
    yield from _arguments(Privacy, "privacy.", "")
    yield entry("privacy.clients", ["list of texts"], "who promises it; by default all clients")
    yield "## `[output]`\n"
    yield from _of_model(OutputTable, "output.")
    yield "## `[compare]` and `[sweep]`\n"
    yield "They are for `fedgradnorm compare`; `run` does not read them.\n"
    yield from _of_model(CompareTable, "compare.")
    yield from _of_model(Config, "", only=("sweep",))
    yield "## Written by the program\n"
    yield from _of_model(Config, "", only=OURS)


def _of_model(model: type[BaseModel], prefix: str, only: tuple[str, ...] = ()) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if not only or name in only:
            given = "" if prefix + name == "name" else _default(field.default)  # the file's own
            facts = [type_words(field.annotation), *_limits(field), given]
            yield entry(prefix + name, facts, str(field.description))


def _limits(field: FieldInfo) -> list[str]:
    words = {"Ge": "{ge} or more", "MaxLen": "at most {max_length} characters"}
    return [
        words[type(rule).__name__].format(**dataclasses.asdict(rule))
        for rule in field.metadata
        if type(rule).__name__ in words
    ]


def _default(value: Any) -> str:
    if str(value) == "PydanticUndefined" or value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, BaseModel | dict) or str(value) == "<factory>":
        return ""
    return f"default {value_words(value)}"


def _setting(name: str, key: str) -> str:
    known, field = FIELDS[name].metadata, FIELDS[name]
    facts = [type_words(HINTS[name]), known["allowed"], _default(field.default)]
    return entry(key, facts, known["text"])


def _group(group: str) -> Iterator[str]:
    hints = get_type_hints(GROUPS[group])
    for field in dataclasses.fields(GROUPS[group]):
        known = field.metadata
        facts = [type_words(hints[field.name]), known["allowed"], _default(field.default)]
        yield entry(f"{group}.{field.name}", facts, known["text"])
        if field.name == "personalize":
            for key, words in MEANINGS.items():
                yield entry(f"{group}.personalize.{key}", [], words)


def _arguments(
    function: Callable[..., Any], prefix: str, of: str, without: tuple[str, ...] = ()
) -> Iterator[str]:
    meaning = meanings(function)
    names = vars(sys.modules[function.__module__])
    for name, option in options_of(function, without=without).items():
        facts = [type_words(option.annotation, names), _default(option.default)]
        yield entry(prefix + _RENAMED.get(name, name), facts, meaning[name], of)


def _sources() -> Iterator[str]:
    choices = ", ".join(f'`"{name}"`' for name in SOURCES)
    yield entry("data.source", ["text", "required"], f"where clients come from: {choices}")
    yield "Every other key belongs to the source. `data.partition` goes with all of them.\n"
    for name, source in SOURCES.items():
        yield f'### `source = "{name}"`\n\n{source.summary[:1].upper()}{source.summary[1:]}.\n'
        if name == "files":
            yield (
                "Each client is a table `[[data.clients]]`. A key that is the same for all clients "
                "can be given once in `[data]`: see "
                "[your data](../your-data.md#the-same-in-a-config).\n"
            )
        prefix = "data.clients." if name == "files" else "data."
        yield from _arguments(source.function, prefix, name, ("progress",))
    yield "### `[data.partition.CLIENT]`\n\nShares one client's training rows out to several.\n"
    names = " or ".join(f'`"{name}"`' for name in PARTITIONERS)
    yield entry("data.partition.CLIENT.name", ["text", "required"], f"how: {names}")
    for name, kind in PARTITIONERS.items():
        yield f'With `name = "{name}"`:\n'
        yield from _arguments(kind, "data.partition.CLIENT.", name)


def _networks() -> Iterator[str]:
    choices = ", ".join(f'`"{name}"`' for name in NETWORKS)
    meaning = f"one of {choices}, or a function of yours as `module:function`"
    yield entry("network.name", ["text", "required"], meaning)
    for name, make in NETWORKS.items():
        yield f'### `name = "{name}"`\n'
        yield from _arguments(make, "network.", name)


def _weightings() -> Iterator[str]:
    users: dict[Any, list[str]] = {}
    for method in METHODS.values():
        users.setdefault(method.weighting, []).append(method.name)
    for make, names in users.items():
        if options_of(make):
            fixed = _fixed(names)
            yield f"### {', '.join(f'`{name}`' for name in names)}\n\n{fixed}"
            yield from _arguments(make, "weighting.", names[0])


def _fixed(names: list[str]) -> str:
    said: Mapping[str, Mapping[str, Any]] = {name: METHODS[name].fixed for name in names}
    lines = [
        f"`{name}` fixes {', '.join(f'`{key} = {value!r}`' for key, value in fixed.items())}.\n"
        for name, fixed in said.items()
        if fixed
    ]
    return "\n".join(lines) + "\n"
