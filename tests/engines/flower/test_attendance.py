"""Who is asked: a client that does not answer is left alone for a while, and let in again."""

from __future__ import annotations

import copy
import logging
import time

import pytest
import torch

import fedgradnorm as fgn
import flat
import toys
from engines.flower.direct import Together
from fedgradnorm._flower import coordinator
from fedgradnorm._flower.attendance import Attendance, Patience, Rules
from fedgradnorm._flower.wire.messages import Refused


def asked_in(attendance: Attendance, rounds: int) -> list[int]:
    """The rounds that ask a client which never gives a usable answer."""
    found = []
    for round in range(rounds):
        if "b" in attendance.asked(["a", "b"], round, 1):
            attendance.missed("b", round, refused=False)
            found.append(round)
    return found


def test_a_suspended_client_is_asked_once_after_each_pause():
    rounds = asked_in(Attendance(["a", "b"], Rules(misses=3, pause=4)), 20)
    assert rounds == [0, 1, 2, 7, 12, 17]


def test_zero_never_suspends_and_never_shuts_out():
    attendance = Attendance(["a", "b"], Rules(misses=0, refusals=0))
    for round in range(50):
        attendance.missed("b", round, refused=True)
        assert attendance.takes_part("b", round + 1)


def test_refusals_shut_out_and_only_a_usable_answer_forgives():
    """A liar that says nothing in between is still one."""
    attendance = Attendance(["a", "b", "c"], Rules(misses=0, refusals=3))
    for refused in (True, False, True, False):
        for name in ("b", "c"):
            attendance.missed(name, 0, refused)
    attendance.good("b")
    attendance.missed("c", 0, refused=True)
    assert attendance.shut_out("c")
    for _ in range(2):
        attendance.missed("b", 0, refused=True)
    assert attendance.takes_part("b", 0)
    attendance.missed("b", 0, refused=True)
    assert not attendance.takes_part("b", 10**6)


def test_suspended_clients_are_asked_where_the_others_are_too_few():
    attendance = Attendance(["a", "b"], Rules(misses=1))
    attendance.missed("b", 0, refused=False)
    assert attendance.asked(["a", "b"], 1, 1) == ["a"]
    assert attendance.asked(["a", "b"], 1, 2) == ["a", "b"]
    assert attendance.asked(["b"], 1, 1) == ["b"]


@pytest.mark.parametrize("said", ["no answer in 600 s", Refused("it cannot be read")])
def test_one_client_does_not_end_a_run_in_which_all_are_needed(said, tmp_path, caplog):
    """It counts as absent: the run is that of the others."""
    plan = [["corner", "place"]] * 6
    alone = flat.train(
        toys.network(), toys.clients(), participation=plan, eval_every=0, executor="loop",
        rounds=6, batch_size=8, lr=0.02, seed=3, device="cpu", weighting=fgn.GradNorm(),
    )  # fmt: skip
    together = Together(tmp_path, patience=Patience(minimum=0, attempts=3))
    together.exchange.tamper = lambda name, _, content: said if name == "side" else content
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        shared = together.run()
    assert torch.equal(shared, toys.parameters(alone.network))
    assert caplog.text.count("'side' is suspended") == 1


def test_suspension_and_shutting_out_survive_a_resume(tmp_path):
    together = Together(tmp_path, patience=Patience(minimum=1, rules=Rules(misses=2, refusals=2)))
    together.exchange.tamper = lambda name, _, content: {
        "side": "late",
        "place": Refused("no"),
    }.get(name, content)
    together.run(2)
    state = copy.deepcopy(together.server.state_dict())
    again = Together(tmp_path / "again", patience=together.server.patience)
    again.server.load_state_dict(state)
    attendance = again.server.attendance
    assert not attendance.takes_part("side", 2)
    assert attendance.takes_part("side", 3 + Rules().pause - 1)
    assert attendance.shut_out("place")
    assert [row["client"] for row in together.server.history.rows if row["round"] == 2]
    together.run(1)
    assert [r["client"] for r in together.server.history.rows if r["round"] == 3] == ["corner"]


def test_a_round_waits_for_a_client_that_went_away(tmp_path, monkeypatch):
    """It is back in seconds: the attempts at the round are not used up before."""
    monkeypatch.setattr(coordinator, "AWAY", 0.01)
    together = Together(tmp_path, patience=Patience(minimum=3, attempts=2, deadline=20.0))
    looks = iter([["corner", "place"]] * 3)
    gone = True

    def online():
        nonlocal gone
        found = next(looks, None)
        gone = found is not None
        return found or list(together.names)

    together.exchange.online = online
    together.exchange.tamper = lambda name, _, content: (
        "not connected" if gone and name == "side" else content
    )
    together.run(1)
    assert together.server.missed["side"] == 1
    assert together.server.round == 1


def test_a_round_does_not_wait_longer_than_its_deadline(tmp_path):
    together = Together(tmp_path, patience=Patience(minimum=3, attempts=2, deadline=0.2))
    together.exchange.online = lambda: ["corner"]
    together.exchange.tamper = lambda *_: "not connected"
    began = time.monotonic()
    with pytest.raises(fgn.TrainingError, match="0 good answers, 3 are needed"):
        together.run()
    assert time.monotonic() - began < 10


def test_nobody_waits_for_clients_that_are_shut_out(tmp_path, monkeypatch):
    together = Together(tmp_path, patience=Patience(rules=Rules(misses=0, refusals=1)))
    together.exchange.tamper = lambda *_: Refused("no")
    together.exchange.online = list
    monkeypatch.setattr(coordinator.time, "sleep", lambda _: pytest.fail("it waits"))
    with pytest.raises(fgn.TrainingError, match="0 good answers, 1 are needed"):
        together.run()


def test_a_run_with_nobody_left_says_so(tmp_path):
    together = Together(tmp_path, patience=Patience(rules=Rules(misses=0, refusals=1)))
    together.exchange.tamper = lambda *_: Refused("no")
    with pytest.raises(fgn.TrainingError, match="0 good answers, 1 are needed"):
        together.run()
