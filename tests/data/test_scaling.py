from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._scaling import Scaling

TABLES = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8),
    elements=st.floats(-1e6, 1e6).map(lambda value: round(value, 3)),
)


@settings(deadline=None, max_examples=50)
@given(TABLES)
def test_training_columns_become_standard_and_come_back(y):
    scaling = Scaling.fit(y, y, targets=True)
    scaled = scaling.scale_targets(y)
    assert torch.allclose(
        scaled.mean(dim=0), torch.zeros(y.shape[1], dtype=torch.float64), atol=1e-5
    )
    constant = torch.tensor(np.ptp(y, axis=0) == 0)
    spread = scaled.std(dim=0, correction=0)
    assert torch.allclose(spread[~constant], torch.ones_like(spread[~constant]))
    assert (spread[constant] == 0).all()
    assert torch.allclose(scaling.restore_targets(scaled), torch.tensor(y), atol=1e-6)
    assert torch.equal(scaling.scale_inputs(y), scaled)


@pytest.mark.parametrize("shape", [(3, 4, 4), (3, 7)])
def test_images_and_signals_are_standardised_per_channel(shape):
    x = torch.randn(6, *shape) * torch.arange(1.0, 4.0).reshape(3, *[1] * (len(shape) - 1)) + 5
    scaling = Scaling.fit(x, x)
    scaled = scaling.scale_inputs(x).transpose(0, 1).flatten(1)
    assert scaling.input_mean.shape == (3, *[1] * (len(shape) - 1))
    assert torch.allclose(scaled.mean(dim=1), torch.zeros(3), atol=1e-6)
    assert torch.allclose(scaled.std(dim=1, correction=0), torch.ones(3), atol=1e-6)


def test_constant_column_gets_a_deviation_of_one():
    scaling = Scaling.fit(np.full((7, 1), 0.1, dtype=np.float32), np.zeros(7))
    assert scaling.input_std.tolist() == [1.0]


def test_types_floats_stay_whole_numbers_become_single():
    x = np.array([[1], [3]])
    scaling = Scaling.fit(x, x)
    assert scaling.scale_inputs(x).dtype == torch.float32
    assert scaling.scale_inputs(x.astype(np.float64)).dtype == torch.float64


def test_large_offsets_keep_their_spread():
    x = np.array([[1.7e9], [1.7e9 + 1], [1.7e9 + 2]])
    assert np.allclose(Scaling.fit(x, x).scale_inputs(x)[:, 0], [-1.224745, 0, 1.224745])


def test_state_goes_round(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(2, 5, 3))
    for scaling in (Scaling.fit(x, y, targets=True), Scaling.fit(x, y, inputs=False)):
        torch.save(scaling.state_dict(), tmp_path / "state.pt")
        again = Scaling.from_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert torch.equal(again.scale_inputs(x), scaling.scale_inputs(x))
        assert torch.equal(
            again.restore_targets(torch.tensor(y)), scaling.restore_targets(torch.tensor(y))
        )


def test_sides_left_out_are_left_alone():
    x, y = np.arange(6).reshape(3, 2), np.arange(3)
    scaling = Scaling.fit(x, y, inputs=False, targets=False)
    assert scaling.scale_inputs(x).tolist() == x.tolist()
    assert scaling.scale_targets(y).tolist() == y.tolist()
    assert scaling.state_dict() == {}


def test_gradients_pass_through_restored_targets():
    scaling = Scaling.fit(np.ones((2, 1)), np.array([0.0, 6.0]), targets=True)
    output = torch.zeros(2, 1, requires_grad=True)
    scaling.restore_targets(output).sum().backward()
    assert output.grad.tolist() == [[3.0], [3.0]]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda s: s.scale_inputs(np.ones((2, 3))), "2 columns"),
        (lambda s: s.scale_inputs(np.ones((2, 2, 2))), "2 columns"),
        (lambda s: s.restore_targets(torch.ones(2, 4)), "1 columns"),
        (lambda s: s.scale_inputs(np.array([["a", "b"]])), "numbers"),
        (lambda _: Scaling.fit(np.ones((0, 2)), np.ones(0)), "empty"),
        (lambda _: Scaling.fit(np.array([[np.nan]]), np.ones(1)), "not finite"),
        (lambda _: Scaling.fit(np.array([[1e300], [-1e300]]), np.ones(2)), "too large"),
    ],
)
def test_what_does_not_fit_is_refused(call, says):
    scaling = Scaling.fit(np.arange(6.0).reshape(3, 2), np.arange(3.0), targets=True)
    with pytest.raises(DataError, match=says):
        call(scaling)


def test_unknown_state_is_refused():
    with pytest.raises(ConfigError, match="scale"):
        Scaling.from_state_dict({"scale": torch.ones(1)})
