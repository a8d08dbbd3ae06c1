"""The server's log names a client's problem when it begins, and counts it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engines.flower.direct import OPTIONS, Together
from fedgradnorm._flower.attendance import Patience, Rules

LAST_BAD, ROUNDS = 5, OPTIONS["rounds"]
NEVER_SUSPENDED = Patience(minimum=1, rules=Rules(misses=0, refusals=0))


def poisoned(name, order, content):
    if name == "place" and order.round < LAST_BAD:
        content["update"] = np.full(101, np.nan, dtype=np.float64)
    return content


def silent(name, order, content):
    return "no answer" if name == "place" and order.round < LAST_BAD else content


def lines(caplog, words):
    return [r.getMessage() for r in caplog.records if words in r.getMessage()]


@pytest.mark.parametrize(
    ("tamper", "counter", "begins", "counts"),
    [
        (
            poisoned,
            "refused",
            "round 1: answer of 'place' refused: update: holds numbers that are not finite",
            f"0 orders were not answered, and {LAST_BAD} answers refused",
        ),
        (
            silent,
            "missed",
            "round 1: client 'place' left out: no answer",
            f"{LAST_BAD} orders were not answered, and 0 answers refused",
        ),
    ],
    ids=["refused", "silent"],
)
def test_a_trouble_of_five_rounds_is_one_line_and_a_count(
    tamper, counter, begins, counts, tmp_path: Path, caplog
):
    together = Together(tmp_path, patience=NEVER_SUSPENDED)
    together.exchange.tamper = tamper
    together.run()
    together.server.sum_up()
    assert together.server.round == ROUNDS
    assert getattr(together.server, counter)["place"] == LAST_BAD
    ends = f"client 'place' participated in {ROUNDS - LAST_BAD} of {ROUNDS} rounds: {counts}"
    assert lines(caplog, "'place'") == [begins, ends]


def test_a_restarted_server_goes_on_with_its_log(tmp_path: Path, caplog):
    together = Together(tmp_path, patience=NEVER_SUSPENDED)
    together.exchange.tamper = silent
    together.run(3)
    state = together.server.state_dict()
    after = Together(tmp_path, patience=NEVER_SUSPENDED)
    after.exchange.tamper = silent
    after.server.load_state_dict(state)
    after.run()
    after.server.sum_up()
    assert len(lines(caplog, "'place' left out")) == 1
    assert lines(caplog, f": {LAST_BAD} orders were not answered")
