"""Every command with its arguments and options, from the command line itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
import typer
from wording import value_words

from fedgradnorm._cli import app


def commands() -> str:
    """A section for each command, in the order of ``fedgradnorm --help``."""
    root = typer.main.get_command(app)
    return "\n".join(_parts(root, "fedgradnorm"))


def _parts(command: click.Command, path: str) -> Iterator[str]:
    yield f"## `{path}`\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    for parameter in shown:
        yield _parameter(parameter, path)
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from _parts(one, f"{path} {name}")


def _parameter(parameter: click.Parameter, path: str) -> str:
    if isinstance(parameter, click.Option):
        value = (
            "" if parameter.is_flag else f" {(parameter.metavar or parameter.type.name).upper()}"
        )
        name = ", ".join(parameter.opts) + value
        facts = (
            "" if parameter.is_flag or parameter.default is None else value_words(parameter.default)
        )
        facts = f" · default {facts}" if facts and not callable(parameter.default) else ""
    else:
        name, facts = parameter.make_metavar(click.Context(click.Command(path))), ""
    facts += " · required" if parameter.required else ""
    anchor = re.sub(r"[^\w-]+", "-", f"{path} {parameter.opts[0]}")
    help_text = str(getattr(parameter, "help", "") or "")
    return f"[`{name}`]{{#{anchor}}}{facts}\n: {help_text}\n"
