"""An executor by name: who runs the clients of a round, and what it cannot run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedgradnorm._checks import one_of
from fedgradnorm._errors import ConfigError
from fedgradnorm._registry import Registry, calling_module

if TYPE_CHECKING:
    from fedgradnorm._engines.engine import Engine, Problem

AUTO = "auto"


@dataclass(frozen=True)
class Executor:
    """A way to run the clients of a round, for ``executor="name"``.

    The base class of engines, ``fedgradnorm._engines.Engine``, is not part of the stable interface.

    Args:
        name: what the executor is called.
        engine: makes the engine of a problem (network, clients, settings).
        why_not: says why it cannot run a problem, or returns None; the only place where its limits
            are listed.
        auto: whether ``"auto"`` may choose it. The first that has no objection is taken, in the
            order of registration, and the built-in ones come first.
    """

    name: str
    engine: Callable[[Problem], Engine]
    why_not: Callable[[Problem], str | None] = lambda _: None
    auto: bool = False

    def register(self) -> Executor:
        """Make the name known to ``executor=...``, and return the executor."""
        if self.name == AUTO:
            raise ConfigError("executor 'auto' chooses among the others; choose another name")
        if not callable(self.engine) or not callable(self.why_not):
            raise ConfigError(f"executor {self.name!r} needs functions for engine and why_not")
        return EXECUTORS.register(self.name, self, calling_module())


EXECUTORS = Registry[Executor]("executor", ["fedgradnorm._engines.choice"])
"""Every executor, fastest first; what each cannot run is in its ``why_not``."""


def checked_executor(name: str, value: Any) -> str:
    """A registered name, or "auto"."""
    return AUTO if value == AUTO else one_of(name, value, (AUTO, *EXECUTORS))
