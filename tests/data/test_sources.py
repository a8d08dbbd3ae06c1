"""Clients by a source's name and options, as a config gives them."""

from __future__ import annotations

import pytest
import torch

from fedgradnorm._errors import ConfigError
from fedgradnorm.data._sources import load_clients

SIGNALS = {"samples": 600, "tasks": ["modulation", "snr"]}


def test_a_clients_rows_are_shared_out_as_the_config_says():
    whole = load_clients("radcom", SIGNALS, seed=1)
    plan = {"modulation": {"name": "dirichlet", "parts": 3, "alpha": 0.5, "min_size": 6}}
    parts = load_clients("radcom", {**SIGNALS, "partition": plan}, seed=1)
    assert [c.name for c in parts] == ["modulation-0", "modulation-1", "modulation-2", "snr"]
    assert {c.task_name for c in parts[:3]} == {"modulation"}
    rows = torch.cat([torch.as_tensor(c.train[0]) for c in parts[:3]])
    everything = torch.as_tensor(whole[0].train[0])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, everything.tolist()))
    again = load_clients("radcom", {**SIGNALS, "partition": plan}, seed=1)
    assert [c.size for c in again] == [c.size for c in parts]


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"modulaton": {"name": "iid", "parts": 2}}, "did you mean 'modulation'"),
        ({"snr": {"name": "idd", "parts": 2}}, "did you mean 'iid'"),
        ({"snr": 3}, "a table for each client"),
        ({"snr": {"name": "iid", "pieces": 2}}, "pieces"),
    ],
)
def test_a_wrong_partition_says_what_is_wrong(plan, said):
    with pytest.raises(ConfigError, match=said):
        load_clients("radcom", {**SIGNALS, "partition": plan}, seed=1)
