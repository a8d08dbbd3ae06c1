"""What is shared, and how, in a deployment: the run of one process, and results that predict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import flat
import toys
from engines.flower.direct import OPTIONS, Together
from fedgradnorm.models._dividing import divided
from fedgradnorm.models._flat import FlatNetwork

X = toys.rows("side", 9)[0].astype(np.float32)
SETTINGS: dict[str, dict[str, Any]] = {
    "private norms": {"shared": ["!*Norm*"]},
    "frozen": {"frozen": "0"},
    "schedules": {"server_schedule": "cosine", "head_schedule": {"name": "step", "step_size": 2}},
    "clipped": {"clip": 0.1, "head_clip": 0.2, "participation": 0.67},
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
    how = {**OPTIONS, **settings, "weighting": fgn.GradNorm()}
    alone = flat.train(toys.noisy_network(), toys.clients(), executor="loop", **how)
    vector_of = FlatNetwork(make())
    assert len(shared) == len(vector_of.vector)
    (_, sent) = together.exchange.sent[0]
    size = sum(array.nbytes for array in sent.values() if isinstance(array, np.ndarray))
    assert size < 4 * len(shared) + 1000
    for name, result in together.results().items():
        one, other = (run.predict(name, X, kind="output") for run in (result, alone))
        np.testing.assert_array_equal(one, other)


class Halves(nn.Module):
    """Two named inputs; a client of one tensor has a first part that makes two of it."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.last = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.tanh(self.left(left)) + self.last(right)


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.scale(x)
        return {"left": x[:, :3], "right": x[:, 3:]}


def test_named_inputs_and_first_parts_give_the_run_of_one_process(tmp_path) -> None:
    def make() -> nn.Module:
        return toys.seeded(Halves)

    def clients() -> list[fgn.Client]:
        one, (x, y) = toys.client("side", 30), toys.rows("corner", 30)
        cut = fgn.Client("side", one.task, one.train, stem=toys.seeded(Cut))
        return [cut, fgn.Client("corner", fgn.classification(3), (halves(x), y))]

    def halves(x: np.ndarray) -> dict[str, np.ndarray]:
        return {"left": x[:, :3], "right": x[:, 3:]}

    together = Together(tmp_path, fgn.GradNorm(), make=make, clients=clients)
    together.run(2)
    together.restart("side")
    shared = together.run()
    how = {**OPTIONS, "weighting": fgn.GradNorm()}
    alone = flat.train(make(), clients(), executor="loop", **how)
    assert torch.equal(shared, toys.parameters(alone.network))
    together.server.finish()
    given = {"network": Halves(), "stems": {"side": Cut()}}
    for name, x in {"side": X, "corner": halves(X)}.items():
        result = fgn.load(tmp_path / name / together.server.run / "result", **given)
        one, other = (run.predict(name, x, kind="output") for run in (result, alone))
        np.testing.assert_array_equal(one, other)
