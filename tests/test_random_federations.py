"""Any federation: every engine trains as the loop does, and a run comes back as it was."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings

import fedgradnorm as fgn
import flat
import random_federations as drawing
import toys
from fedgradnorm._round import settings as declared

EXAMPLES = int(os.environ.get("RANDOM_FEDERATIONS", "6"))


def train(drawn: drawing.Drawn, **options: Any) -> fgn.Run:
    given = {**drawing.options(drawn), **options}
    arguments = drawing.network(drawn), drawing.clients(drawn)
    with patch.object(declared, "MANY", 1 if drawn.registered == "many" else declared.MANY):
        return flat.train(*arguments, weighting=drawing.weighting(drawn), **given)


def check_engines(drawn: drawing.Drawn, looped: fgn.Run) -> None:
    if drawn.body == "dropping":  # executors draw in different orders
        return
    for executor in ("joint", "vmap"):
        try:
            run = train(drawn, executor=executor)
        except fgn.ConfigError as error:
            if "cannot run this" not in str(error):
                raise
            continue
        numbers = run.history.select_dtypes("number").columns
        left, right = (one.history[numbers].to_numpy(float) for one in (run, looped))
        np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-10)
        for name, network in run.networks.items():
            pair = toys.parameters(network), toys.parameters(looped.networks[name])
            torch.testing.assert_close(*pair, rtol=0, atol=1e-10)


def check_way_back(drawn: drawing.Drawn, looped: fgn.Run) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"

        def start(**options: Any) -> fgn.Run:
            return train(drawn, executor="loop", checkpoint_every=1, **options)

        toys.interrupted(start, at=drawn.seed % (drawing.ROUNDS - 1) + 1, folder=folder)
        resumed = start(folder=folder, resume=True)
        assert resumed.table.text() == looped.table.text()
        for name, network in looped.networks.items():
            assert toys.same(toys.parameters(resumed.networks[name]), toys.parameters(network))
        loaded = fgn.load(folder, drawing.network(drawn))
        x = drawing.inputs(drawn, 5, 0)
        for name in looped.clients:
            np.testing.assert_array_equal(loaded.predict(name, x), looped.predict(name, x))


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES < 20,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(drawn=drawing.DRAWN)
def test_any_federation_is_trained_alike_by_every_engine_and_comes_back(
    drawn: drawing.Drawn,
) -> None:
    looped = train(drawn, executor="loop")
    check_engines(drawn, looped)
    check_way_back(drawn, looped)
