"""``fgn.train`` and ``fgn.benefit`` with every setting by its own name, in whatever group it is.

Tests of what settings do share dicts of them, which is plainer without groups. Tests of the
interface itself call ``fgn.train``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fedgradnorm as fgn
from fedgradnorm._round import settings as declared
from fedgradnorm._round.settings import FIELDS, Settings
from fedgradnorm._training.inputs import divided_callbacks
from fedgradnorm._training.train import train_with


def keywords(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of ``train`` for settings by name; ``progress`` is a callback."""
    rest = {name: value for name, value in given.items() if name not in FIELDS}
    flat = declared.keywords({name: given[name] for name in given if name in FIELDS})
    callbacks = [*flat.pop("callbacks"), *rest.pop("callbacks", ())]
    if (show := rest.pop("progress", False)) is not False:
        callbacks.append(fgn.ShowProgress(None if show is True else show))
    return {**flat, **rest, "callbacks": callbacks}


def train(
    network: Any,
    clients: Any,
    *,
    start: Any = None,
    resume: bool = False,
    **given: Any,
) -> fgn.Run:
    """``fgn.train`` with settings by name; ``resume`` and ``start`` as in a config."""
    if start is None and not resume:
        return fgn.train(network, clients, **keywords(given))
    weighting = given.pop("weighting", None) or fgn.GradNorm(rule="direct")
    names = ("folder", "progress", "callbacks")
    rest = keywords({name: given.pop(name) for name in names if name in given})
    _, own = divided_callbacks(rest.pop("callbacks"))
    settings = Settings(**given)
    return train_with(
        network, clients, weighting, settings, own, start=start, resume=resume, **rest
    )


def benefit(network: Any, clients: Any, **given: Any) -> fgn.Benefit:
    """``fgn.benefit`` with settings by name."""
    return fgn.benefit(network, clients, **keywords(given))
