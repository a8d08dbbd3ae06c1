from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from fedgradnorm import classification, regression
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._arrays import client_from_arrays

N = 20
X = np.arange(2.0 * N).reshape(N, 2)
Y = np.arange(N) % 2


def ids(split):
    return [] if split is None else (split[0][:, 0] / 2).long().tolist()


def test_shares_are_disjoint_ordered_and_cover_the_rows():
    client = client_from_arrays(
        "a", classification(2), (X, Y), validation_share=0.1, test_share=0.25
    )
    parts = [ids(client.train), ids(client.validation), ids(client.test)]
    assert [len(part) for part in parts] == [13, 2, 5]
    assert sorted(chain(*parts)) == list(range(N))
    assert all(part == sorted(part) for part in parts)
    assert client.train[1].tolist() == [i % 2 for i in parts[0]]


def test_the_seed_decides_the_share():
    def held(seed):
        loaded = client_from_arrays("a", classification(2), (X, Y), test_share=0.5, seed=seed)
        return ids(loaded.test)

    assert held(1) == held(1) != held(2)


def test_standardisation_is_learned_on_training_rows_only():
    loaded = client_from_arrays(
        "a", regression(1), (X, X[:, 0]), test=(X + 1000, X[:, 0] + 1000), test_share=0,
        validation_share=0.5, standardize=True,
    )  # fmt: skip
    x, y = loaded.train
    assert torch.allclose(x.mean(dim=0), torch.zeros(2, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(y.std(dim=0, correction=0), torch.ones(1, dtype=torch.float64))
    assert loaded.test[0].mean() > 10
    restored = loaded.scaling.restore_targets(loaded.test[1])
    assert torch.allclose(restored[:, 0], torch.tensor(X[:, 0] + 1000))


@pytest.mark.parametrize(
    ("standardize", "inputs", "targets"),
    [(False, False, False), (True, True, True), ("inputs", True, False), ("targets", False, True)],
)
def test_which_sides_are_standardised(standardize, inputs, targets):
    loaded = client_from_arrays("a", regression(1), (X, X[:, 0]), standardize=standardize)
    state = {} if loaded.scaling is None else loaded.scaling.state_dict()
    assert ("input_mean" in state, "target_mean" in state) == (inputs, targets)


def test_labels_are_never_standardised():
    loaded = client_from_arrays("a", classification(2), (X, Y), standardize=True)
    assert loaded.train[1].tolist() == Y.tolist()
    assert loaded.scaling.target_mean is None


def test_whole_number_inputs_stay_unless_standardised():
    whole = X.astype(np.int64)
    plain = client_from_arrays("a", classification(2), (whole, Y))
    scaled = client_from_arrays("a", classification(2), (whole, Y), standardize=True)
    assert plain.train[0].dtype == torch.int64
    assert scaled.train[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"test_share": 1.0}, ConfigError, "below 1"),
        ({"test_share": -0.1}, ConfigError, "at least 0"),
        ({"test_share": float("nan")}, ConfigError, "below 1"),
        ({"validation_share": True}, ConfigError, "validation_share"),
        ({"test_share": 0.5, "test": (X, Y)}, ConfigError, "both given"),
        ({"test_share": 0.01}, DataError, "selects none"),
        ({"test_share": 0.5, "validation_share": 0.5}, DataError, "leaves none"),
        ({"test": (X[:, :1], Y)}, DataError, "test x"),
        ({"test": (X[:3], Y)}, DataError, "'a', test data"),
        ({"standardize": "targets"}, ConfigError, "cannot be standardized"),
        ({"standardize": "both"}, ConfigError, "'both'"),
        ({"seed": -1}, ConfigError, "seed"),
        ({"seed": 0.5}, ConfigError, "seed"),
    ],
)
def test_bad_requests_name_the_client_and_the_value(options, error, says):
    with pytest.raises(error, match=says) as caught:
        client_from_arrays("a", classification(2), (X, Y), **options)
    assert "\n" not in str(caught.value)


def test_values_too_large_to_standardise_name_the_client():
    x = np.array([[1e300], [-1e300]])
    with pytest.raises(DataError, match=r"'a'.*too large"):
        client_from_arrays("a", regression(1), (x, np.ones(2)), standardize=True)
