"""A client that joins a finished run: training goes on with all, by the settings of the run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import fedgradnorm
from fedgradnorm import weighting as weightings
from fedgradnorm._checks import shown
from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, DataError, FedGradNormError
from fedgradnorm._round.settings import OPTIONS, TOP, completed, keywords, ungrouped
from fedgradnorm._runs.manifest import describe_weighting
from fedgradnorm._runs.run import Run
from fedgradnorm.weighting import Weighting


def added(
    run: Run,
    client: Client,
    others: Sequence[Client],
    weighting: Weighting | None,
    changes: Mapping[str, Any],
) -> Run:
    """``fgn.train(run, clients)`` with this client too, and what the run was trained by."""
    if not isinstance(client, Client):
        raise DataError(f"client must be an fgn.Client, not {shown(client)}")
    if run.shared is None:
        raise ConfigError("nothing was shared in this run, so nobody can join it")
    absent = [name for name in run.clients if name not in {other.name for other in others}]
    if absent:
        raise ConfigError(
            f"a run holds no data, and client {absent[0]!r} of this one is not among those given; "
            "give all of them, or go on without it: fgn.train(run, clients)"
        )
    settings = completed(run.manifest["settings"])
    changed = ungrouped({k: v for k, v in changes.items() if k in (*TOP, *OPTIONS)})
    if "rounds" in changed or "epochs" in changed:
        settings = {**settings, "rounds": None, "epochs": None}
    if weighting is None and "method" not in changes:
        weighting = stored_weighting(run.manifest, "run.add(client, others, weighting=...)")
    how = keywords({**settings, **changed})
    given = list(changes.get("callbacks", ()))
    again = {type(one) for one in given}
    how["callbacks"] = [*(one for one in how["callbacks"] if type(one) not in again), *given]
    rest = {k: v for k, v in changes.items() if k not in (*TOP, *OPTIONS, "callbacks")}
    # The public function, since training is a room above this one.
    return fedgradnorm.train(run, [*others, client], weighting=weighting, **how, **rest)


def stored_weighting(manifest: Mapping[str, Any], again: str) -> Weighting:
    """The weighting in a manifest, made anew; ``again`` shows how to give one that cannot be."""
    stored = manifest["weighting"]
    kind = getattr(weightings, str(stored["name"]), None)
    try:
        taken = inspect.signature(kind).parameters if isinstance(kind, type) else {}
        made = kind(**{key: stored[key] for key in taken if key in stored}) if kind else None
    except (TypeError, ValueError, FedGradNormError):
        made = None
    if not isinstance(made, Weighting) or describe_weighting(made) != stored:
        raise ConfigError(
            f"the run was trained by weighting {stored['name']!r}, which cannot be made again from "
            f"what it stores; give it: {again}"
        )
    return made
