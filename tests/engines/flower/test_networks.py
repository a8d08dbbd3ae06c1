"""What is shared, and how, in a deployment: the run of one process, and results that predict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")

import fedgradnorm as fgn
import toys
from engines.flower.direct import OPTIONS, Together
from fedgradnorm.models._dividing import divided
from fedgradnorm.models._flat import FlatNetwork

X = toys.rows("side", 9)[0].astype(np.float32)
SETTINGS: dict[str, dict[str, Any]] = {
    "private norms": {"shared": ["!*Norm*"]},
    "frozen": {"frozen": "0"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_same_run_as_in_one_process_and_only_the_shared_part_on_the_wire(
    settings: dict[str, Any], tmp_path
) -> None:
    def make():
        parts = {"shared": "*", "frozen": None, **settings}
        return divided(toys.noisy_network(), parts["shared"], parts["frozen"])

    together = Together(tmp_path, fgn.GradNorm(), make=make, **settings)
    together.run(2)
    together.restart("side")
    shared = together.run()
    how = {**OPTIONS, **settings}
    alone = fgn.train(toys.noisy_network(), toys.clients(), engine="loop", **how)
    flat = FlatNetwork(make())
    assert len(shared) == len(flat.vector)
    (_, sent) = together.exchange.sent[0]
    size = sum(
        len(array.data) for arrays in sent.array_records.values() for array in arrays.values()
    )
    assert size < 4 * len(shared) + 1000
    for name, result in together.results().items():
        one, other = (run.predict(name, X, kind="output") for run in (result, alone))
        np.testing.assert_array_equal(one, other)
