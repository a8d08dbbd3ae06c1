"""What a method says it reads of a client is what it reads: no other number need leave one."""

from __future__ import annotations

import pytest
import torch

from fedgradnorm._methods import METHODS
from fedgradnorm._round.settings import Settings
from fedgradnorm.weighting import Needs, Signals

NAMES = ("loss", "loss_ratio", "grad_norm", "size")


class Watched(Signals):
    """Signals that remember which of them were read."""

    read: set[str]

    def __getattribute__(self, name):
        if name in NAMES:
            object.__getattribute__(self, "read").add(name)
        return object.__getattribute__(self, name)


def usable(name: str) -> bool:
    return not any(p.default is p.empty for p in METHODS[name].options().values())


@pytest.mark.parametrize("name", [name for name in METHODS if usable(name)])
def test_a_method_reads_what_it_says_it_needs(name):
    try:
        weighting = METHODS[name].build()
    except Exception as error:  # an optional package is not here
        pytest.skip(str(error))
    weighting.bind(["a", "b", "c"])
    numbers = {key: torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64) for key in NAMES}
    updates = torch.eye(3, dtype=torch.float64)
    signals = Watched(
        torch.ones(3, dtype=torch.bool), **numbers, gram=updates @ updates.T, gradients=updates
    )
    object.__setattr__(signals, "read", set())
    for _ in range(2):
        weighting.update(signals)
        weighting.direction(signals)
    allowed = {"size"} if Needs.SIZE in weighting.needs else set()
    allowed |= {"grad_norm"} if Needs.NORM in weighting.needs else set()
    allowed |= set(weighting.losses) if Needs.LOSS in weighting.needs else set()
    assert signals.read <= allowed
    assert Settings().aggregate == "mean"
