"""Whatever is given to ``train``, it trains or raises an error of ours, before the first round."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._round.settings import Settings
from fedgradnorm.weighting import GradNorm

EXAMPLES = int(os.environ.get("FEDGRADNORM_FUZZ", "150"))
"""Values to try; a campaign asks for thousands."""

NAMES = [field.name for field in fields(Settings)]
PLAIN = [
    None, True, False, 0, 1, 2, 3, -1, 10**9, 10**19, 10**400, 0.0, 0.5, 1.0, 1.5, -0.5, 1e308,
    1e-320, float("nan"), float("inf"), "", "3", "fast", "adam", "auto", "loop", "side", "2", "\0",
    b"3", 1j, [], {}, (), set(), object(), int, GradNorm, range(3), Path("x"), len,
    np.int64(2), np.float32(0.5), np.bool_(True), np.array([1.0, 2.0]), np.array(3),
    torch.tensor(0.1), torch.ones(2), torch.device("cpu"), nn.Linear, fgn.GradNorm(),
]  # fmt: skip
TEXTS = st.text(max_size=5)
VALUES = st.one_of(
    st.sampled_from(PLAIN),
    TEXTS,
    st.floats(),
    st.recursive(st.sampled_from(PLAIN), lambda inner: st.lists(inner, max_size=3), max_leaves=4),
    st.dictionaries(
        st.sampled_from(["name", "lr", "betas", "momentum", "eps", "weight_decay", "fused", "x"]),
        st.one_of(st.sampled_from(PLAIN), st.lists(st.sampled_from(PLAIN), max_size=3)),
        max_size=3,
    ),
)


def stop_at_two(event: Any) -> None:
    if event.round >= 2:
        raise KeyboardInterrupt


def trained(**given: Any) -> None:
    """Two rounds of a tiny run, or an error of ours."""
    how = {"batch_size": 4, "eval_every": 0, "device": "cpu", "progress": stop_at_two, **given}
    if "rounds" not in given and "epochs" not in given:
        how["rounds"] = 2
    how = {"network": toys.network(torch.float32), "clients": [toys.client("side", 12)], **how}
    with suppress(fgn.FedGradNormError, fgn.Interrupted):
        flat.train(**how)


def takes_long(name: str, value: Any) -> bool:
    """Steps that are allowed, but are too many for a test."""
    return name == "final_head_steps" and isinstance(value, int | float) and value > 50


@settings(max_examples=EXAMPLES)
@given(st.sampled_from(NAMES), VALUES)
def test_any_value_of_any_setting_trains_or_is_refused_by_us(name: str, value: Any) -> None:
    if not takes_long(name, value):
        trained(**{name: value})


@settings(max_examples=max(20, EXAMPLES // 5))
@given(st.sampled_from(["network", "clients", "weighting", "folder", "resume"]), VALUES)
def test_any_other_argument_is_of_its_kind_or_refused_by_us(name: str, value: Any) -> None:
    if name == "folder" and isinstance(value, str | Path) and str(value).strip("\0"):
        return  # a folder would be made there
    trained(**{name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": "fast"}, "lr must be a number, not 'fast'"),
        ({"lr": True}, "lr must be a number, not True"),
        ({"epochs": "3"}, "epochs must be a number, not '3'"),
        ({"rounds": 0}, "rounds must be a whole number >= 1, not 0"),
        ({"batch_size": 1.5}, "batch_size must be a whole number >= 1, not 1.5"),
        ({"batch_size": True}, "batch_size must be a whole number >= 1, not True"),
        ({"seed": -1}, "seed must be a whole number >= 0, not -1"),
        ({"seed": 1.5}, "seed must be a whole number >= 0, not 1.5"),
        ({"norm_layer": []}, "norm_layer is an empty list"),
        ({"norm_layer": [3]}, "norm_layer must be a list of names"),
        ({"device": 3}, "device must be a text such as 'cpu' or 'cuda:0', not 3"),
        ({"executor": None}, "executor must be a text, not None (one of: auto, joint"),
        ({"compile": 1}, "compile must be True or False, not 1"),
        ({"participation": []}, "no client in server.participation"),
        ({"participation": "all"}, "participation must be a number, not 'all'"),
        ({"participation": [["side"], "side"]}, "participation must be a list of names"),
        ({"participation": ["nobody"]}, "unknown client in participation 'nobody'"),
        ({"head_optimizer": {"name": "adam", "betas": []}}, "optimizer 'adam': "),
        ({"head_optimizer": 3}, "local.head_optimizer must be a name such as 'sgd', or a"),
        ({"server_optimizer": {"name": "sgd", "lr": "x"}}, "must be a number, not 'x'"),
        ({"head_optimizer": {"lr": torch.ones(1)}}, "head_optimizer.lr must be made of plain"),
        ({"head_steps": 10**9}, "a round would read 4,000,000,000 examples in 1,000,000,000 steps"),
        ({"shared_steps": 10**9}, "lower head_steps, shared_steps or batch_size"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_a_config_error_that_names_it(given: Any, message: str) -> None:
    with pytest.raises(fgn.ConfigError) as error:
        flat.train(
            toys.network(), [toys.client("side", 12)], **{"rounds": 1, "batch_size": 4, **given}
        )
    assert message in str(error.value)


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(requires_grad=False)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Flatten(), "no trainable parameters: nothing to learn"),
        (frozen(toys.network()), "all 4 parameters of the shared network are frozen"),
        (nn.Linear, "the shared network is the class Linear; give an instance, Linear(...)"),
        ("network1", "must be a torch.nn.Module, not 'network1'"),
    ],
    ids=["without parameters", "frozen", "class", "text"],
)
def test_a_network_that_cannot_learn_is_a_model_error(network: Any, message: str) -> None:
    with pytest.raises(fgn.ModelError) as error:
        fgn.train(network, toys.clients(), rounds=1)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (toys.client("side"), "clients must be a list of fgn.Client, not Client"),
        (None, "clients must be a list of fgn.Client, not NoneType"),
        (np.array(3), "clients must be a list of fgn.Client: iteration over a 0-d array"),
        (["side"], "clients[0] must be an fgn.Client, not str"),
        ({"side": toys.client("side")}, "clients[0] must be an fgn.Client, not str"),
        ([], "no clients: give at least one"),
        ([toys.client("side")] * 2, "two clients are named 'side'"),
    ],
)
def test_what_is_no_list_of_clients_is_a_data_error(clients: Any, message: str) -> None:
    with pytest.raises(fgn.DataError) as error:
        fgn.train(toys.network(), clients, rounds=1)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (nn.Identity(), "its head has no trainable parameters"),
        (frozen(nn.Linear(5, 2)), "its head has no trainable parameters"),
        ("linear", "its head must be a torch.nn.Module, not 'linear'"),
    ],
    ids=str,
)
def test_a_head_that_cannot_learn_is_a_model_error(head: Any, message: str) -> None:
    client = fgn.Client("side", toys.task("side"), train=toys.rows("side", 12), head=head)
    with pytest.raises(fgn.ModelError) as error:
        fgn.train(toys.network(), [client], rounds=1)
    assert str(error.value).startswith(f"client 'side': {message}")


def test_a_weighting_that_is_none_is_a_config_error() -> None:
    with pytest.raises(
        fgn.ConfigError, match=r"the class GradNorm; give an instance, GradNorm\(\)"
    ):
        fgn.train(toys.network(), toys.clients(), weighting=GradNorm, rounds=1)
    with pytest.raises(fgn.ConfigError, match=r"such as fgn\.GradNorm\(\), .* not 'equal'"):
        fgn.train(toys.network(), toys.clients(), weighting="equal", rounds=1)


def test_steps_beyond_memory_are_refused_before_any_memory_is_taken() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(fgn.ConfigError, match="a round would read"):
        flat.train(toys.network(), toys.clients(), rounds=1, head_steps=10**9)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_numbers_of_numpy_are_numbers_and_train_the_same(tmp_path: Path) -> None:
    ours = {"rounds": 3, "lr": 0.01, "seed": 2, "head_optimizer": {"name": "sgd", "momentum": 0.5}}
    theirs = {
        "rounds": np.int64(3), "lr": np.float64(0.01), "seed": np.uint8(2),
        "head_optimizer": {"name": "sgd", "momentum": np.float64(0.5)},
    }  # fmt: skip
    runs = [
        flat.train(toys.network(), toys.clients(), folder=tmp_path / str(k), **how)
        for k, how in enumerate((ours, theirs))
    ]
    assert runs[0].table.text() == runs[1].table.text()
    assert runs[0].manifest["settings"] == runs[1].manifest["settings"]
