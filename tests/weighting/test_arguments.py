"""Every number that a weighting is made with is checked when it is given."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedgradnorm import ConfigError, methods
from fedgradnorm.weighting import GradNorm, Signals, Weighting
from fedgradnorm.weighting._products import AlignedMTL

KINDS = list(
    dict.fromkeys(one.weighting for one in methods().values() if inspect.isclass(one.weighting))
)
NUMBERS = [
    (kind, name)
    for kind in KINDS
    for name, parameter in inspect.signature(kind).parameters.items()
    if parameter.annotation in ("int", "float", int, float, "float | None")
]
OPTIONAL = [(GradNorm, "floor")]
EACH = pytest.mark.parametrize(
    ("kind", "name"), NUMBERS, ids=[f"{kind.__name__}.{name}" for kind, name in NUMBERS]
)
WRONG: list[Any] = ["x", "0.5", None, True, float("nan"), float("-inf"), [0.5], {}, 1j, 10**400]


def test_the_numbers_of_all_weightings_are_known() -> None:
    """Annotations are how this file finds them: an argument without one would not be tried."""
    assert len(KINDS) > 25
    assert {name for kind, name in NUMBERS if kind is GradNorm} == {
        "gamma", "lr", "floor", "smoothing", "guard", "warmup"
    }  # fmt: skip
    for kind in KINDS:
        for name, parameter in inspect.signature(kind).parameters.items():
            if isinstance(parameter.default, int | float):
                assert (kind, name) in NUMBERS


@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:9])
@EACH
def test_what_is_no_number_is_refused_by_name_and_value(
    kind: type[Weighting], name: str, value: Any
) -> None:
    if value is None and (kind, name) in OPTIONAL:
        assert getattr(kind(**{name: None}), name) is None
        return
    with pytest.raises(ConfigError) as error:
        kind(**{name: value})
    assert f"'s {name} must be " in str(error.value)
    assert f"not {repr(value)[:20]}" in str(error.value)


@EACH
def test_numbers_of_numpy_become_pythons_own(kind: type[Weighting], name: str) -> None:
    default = inspect.signature(kind).parameters[name].default
    made = kind(**{name: np.array([default])[0]})
    assert getattr(made, name) == default
    assert type(getattr(made, name)) is type(default)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradNorm(gamma="x"), "GradNorm's gamma must be a number, not 'x'"),
        (lambda: GradNorm(warmup=1.5), "GradNorm's warmup must be a whole number >= 0, not 1.5"),
        (lambda: GradNorm(rule=3), "GradNorm rule must be a text, not 3"),
        (lambda: AlignedMTL("mean"), "unknown Aligned-MTL's scale_mode 'mean'"),
    ],
)
def test_the_error_says_what_was_given(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert message in str(error.value)


def test_options_that_are_arrays_are_shown() -> None:
    class Mine(Weighting):
        def __init__(self, prior: object = np.zeros(2)) -> None:
            super().__init__()
            self.prior = prior

        def weigh(self, signals: Signals) -> Tensor:
            return torch.ones(len(signals.loss))

    assert repr(Mine()) == "Mine()"
    assert repr(Mine(np.ones(2))) == "Mine(prior=array([1., 1.]))"
    assert repr(Mine(torch.ones(2))) == "Mine(prior=tensor([1., 1.]))"


def test_weights_that_are_nan_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    class Lost(Weighting):
        def weigh(self, signals: Signals) -> Tensor:
            return signals.loss * torch.tensor([1.0, float("nan")])

    weighting, ones = Lost(), torch.ones(2, dtype=torch.float64)
    weighting.bind(["a", "b"])
    here = torch.tensor([True, False])
    weighting.update(Signals(here, ones, ones, ones, ones))
    assert not caplog.records  # a client that is away may have any number
    for _ in range(3):
        weighting.update(Signals(torch.tensor([True, True]), ones, ones, ones, ones))
    assert caplog.messages == [
        "weighting Lost: weigh returned nan; all weights stay as they are in such rounds"
    ]
    assert weighting.weight.tolist() == [1.0, 1.0]
