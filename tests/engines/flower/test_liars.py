"""Plausible lies over the real messages: the impossible is refused, the possible is bounded."""

from __future__ import annotations

import logging

import pytest
import torch

import fedgradnorm as fgn
import toys
from engines.flower.direct import Together
from fedgradnorm._flower.federation_file import FEDERATION, FederationFile, read_federation
from fedgradnorm._flower.setup import init_federation
from fedgradnorm._flower.wire.messages import Answer, Order, Refused, decode_answer, encode_answer
from fedgradnorm._round.bounds import Bounds
from fedgradnorm.weighting._fixed import BySize

SHARED = torch.arange(4, dtype=torch.float32)
ORDER = Order("train", "run1", "agreed", 7, 3, SHARED)


def decoded(**said: float) -> Answer:
    content = encode_answer(Answer("run1", 7, 4, SHARED, said))
    return decode_answer(content, ORDER, list(said), longest=10.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss_ratio", -0.1),
        ("loss_ratio", 1e300),
        ("grad_norm", -1.0),
        ("grad_norm", 1e300),
        ("loss", 1e300),
        ("loss", -1e300),
        ("size", 0.0),
        ("size", -3.0),
        ("size", 2.5),
        ("size", 1e300),
    ],
)
def test_a_number_that_no_honest_client_can_have_is_refused(name, value):
    with pytest.raises(Refused, match=f"^{name}: "):
        decoded(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("loss_ratio", 0.0), ("grad_norm", 0.0), ("loss", -2.0), ("loss", 1e14), ("size", 1.0)],
)
def test_a_number_that_an_honest_client_may_have_is_taken(name, value):
    assert decoded(**{name: value}).scalars == {name: value}


def lying(**said: float):
    """Client ``side`` says this instead, from the second round on."""

    def tamper(name, order, content):
        if name == "side" and order.round >= 1:
            content |= said
        return content

    return tamper


def test_a_size_that_changes_is_refused_also_after_a_restart(tmp_path, caplog):
    together = Together(tmp_path, BySize())
    together.exchange.tamper = lying(size=1e9)
    together.run(2)
    assert together.server.refused["side"] == 1
    together.server.load_state_dict(together.server.state_dict())
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        together.run(1)
    assert "'side' refused: its size is 1e+09, but it was 30" in caplog.text


def test_a_bounded_client_is_counted_each_round_and_logged_once(tmp_path, caplog):
    together = Together(tmp_path, fgn.GradNorm(rule="direct"))
    together.exchange.tamper = lying(loss_ratio=1e6)
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        together.run(3)
        together.server.load_state_dict(together.server.state_dict())
        together.run()
    assert together.server.bounded == {"corner": 0, "side": 5, "place": 0}
    told = [r.getMessage() for r in caplog.records if "is bounded" in r.getMessage()]
    assert len(told) == 1
    words = "client 'side' is bounded: its loss ratio is 1e+06, 3 counts (largest_ratio)"
    assert told[0].startswith(f"round 2: {words}")


@pytest.mark.parametrize("rule", ["absolute", "direct"])
def test_a_boast_gains_no_more_than_the_bound_itself(rule, tmp_path):
    """Whoever says a million is weighed as whoever says three."""

    def weight(said: float) -> float:
        together = Together(tmp_path / str(said), fgn.GradNorm(rule=rule))
        together.exchange.tamper = lying(loss_ratio=said)
        together.run()
        return float(together.server.server.weighting.weight[toys.NAMES.index("side")])

    assert weight(1e6) == weight(3.0)


def test_the_bounds_stand_in_the_federations_file(tmp_path):
    init_federation(tmp_path / "new", ["a", "b"], ["localhost"])
    assert read_federation(tmp_path / "new").bounds == Bounds()
    path = tmp_path / "new" / FEDERATION
    text = path.read_text()
    for name in ("largest_share", "largest_weight", "largest_ratio"):
        assert f"{name} = " in text
    path.write_text(text.replace("largest_share = 0.0", "largest_share = 1"))
    assert read_federation(tmp_path / "new").bounds == Bounds(share=1)
    assert FederationFile(["a"], "localhost").bounds == Bounds()
    path.write_text(text.replace("largest_ratio = 3.0", "largest_ratio = 0.5"))
    with pytest.raises(fgn.ConfigError, match=r"largest_ratio must be >= 1, not 0\.5"):
        read_federation(tmp_path / "new")
