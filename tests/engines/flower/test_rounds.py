"""A federation's rounds over the real messages: the same run, whatever is lost on the way."""

from __future__ import annotations

import copy
import logging
import shutil
from dataclasses import replace

import pandas as pd
import pytest
import torch

import fedgradnorm as fgn
import flat
import toys
from engines.flower.direct import OPTIONS, Together, answered
from fedgradnorm._federation.heads import baseline_of
from fedgradnorm._flower.agreement import sent_scalars
from fedgradnorm._flower.attendance import Patience
from fedgradnorm._flower.client_session import ClientSession
from fedgradnorm.weighting._fixed import BySize
from fedgradnorm.weighting._loss_based import InverseFirstLoss
from fedgradnorm.weighting._products import MGDA

CASES = {
    "gradnorm": {},
    "many steps": {"shared_steps": 3, "head_steps": 2},
    "statistics and absence": {"make": toys.noisy_network, "participation": 0.7},
    "by size": {"weighting": BySize, "aggregate": "by_size"},
    "gram": {"weighting": MGDA},
    "first loss": {"weighting": InverseFirstLoss, "sends": "delta"},
}


def alone(make=toys.network, weighting=fgn.GradNorm, **options):
    options = {**OPTIONS, "executor": "loop", **options}
    return flat.train(make(), toys.clients(), weighting=weighting(), eval_every=0, **options)


@pytest.mark.parametrize("name", CASES)
def test_the_same_run_as_in_one_process_to_the_bit(name, tmp_path):
    case = dict(CASES[name])
    reference = alone(**case)
    given = {**case, "weighting": case["weighting"]()} if "weighting" in case else case
    together = Together(tmp_path, **given)
    shared = together.run()
    assert torch.equal(shared, toys.parameters(reference.network))
    weights = together.server.server.weighting.weight.tolist()
    assert dict(zip(toys.NAMES, weights, strict=True)) == reference.weights
    rows = {(r["round"], r["client"]): r for r in reference.table.rows if r["split"] == "batch"}
    for row in together.server.history.rows:
        expected = rows[row["round"], row["client"]]
        for key in ("weight", "active", *(k for k in together.agreement.scalars if k != "size")):
            assert row[key] == expected[key]


def test_finish_gives_each_client_a_run_that_loads(tmp_path):
    together = Together(tmp_path)
    together.run()
    assert together.server.finish() == list(toys.NAMES)
    reference = alone()
    for name in toys.NAMES:
        run = fgn.load(tmp_path / name / together.server.run / "result")
        assert list(run.heads) == [name]
        assert torch.equal(toys.parameters(run.heads[name]), toys.parameters(reference.heads[name]))
        x = toys.rows(name, 5)[0]
        assert (run.predict(name, x) == reference.predict(name, x)).all()


class Named(Together):
    """A federation whose clients know the names of their input columns."""

    columns = tuple("abcdef")

    def participant(self, name):
        client = next(c for c in toys.clients() if c.name == name)
        named = replace(client, columns=self.columns)
        return ClientSession(self.make(), named, self.agreement, self.folder / name)


def test_a_clients_result_predicts_by_column_name(tmp_path):
    together = Named(tmp_path)
    together.run()
    together.server.finish()
    for name in toys.NAMES:
        run = fgn.load(tmp_path / name / together.server.run / "result")
        x = toys.rows(name, 5)[0]
        mixed = pd.DataFrame(x, columns=Named.columns)[[*reversed(Named.columns)]]
        assert (run.predict(name, mixed) == run.predict(name, x)).all()


def test_a_client_that_starts_anew_goes_on_from_its_files(tmp_path):
    undisturbed = Together(tmp_path / "a").run()
    together = Together(tmp_path / "b")
    together.run(3)
    for name in toys.NAMES:
        together.restart(name)
    assert torch.equal(together.run(), undisturbed)


def test_a_server_put_back_by_a_round_repeats_it_exactly(tmp_path):
    undisturbed = Together(tmp_path / "a").run()
    together = Together(tmp_path / "b")
    together.run(3)
    before = copy.deepcopy(together.server.state_dict())
    together.run(1)
    together.server.load_state_dict(before)
    for name in toys.NAMES:
        together.restart(name)
    assert torch.equal(together.run(), undisturbed)


def test_answers_lost_twice_are_asked_for_again(tmp_path):
    undisturbed = Together(tmp_path / "a").run()
    together = Together(tmp_path / "b", patience=Patience(minimum=3, attempts=3))
    lost = iter([True, True])
    together.exchange.tamper = lambda name, order, content: (
        "late" if name == "side" and order.round == 2 and next(lost, False) else content
    )
    assert torch.equal(together.run(), undisturbed)
    assert together.server.missed == {"corner": 0, "side": 2, "place": 0}


def test_a_client_left_out_keeps_its_state(tmp_path):
    """As if it had not been asked: the run equals one in which it sat out the round."""
    plan = [list(toys.NAMES)] * 6
    plan[2] = ["corner", "place"]
    reference = alone(participation=plan)
    together = Together(tmp_path)
    together.exchange.tamper = lambda name, order, content: (
        "late" if name == "side" and order.round == 2 else content
    )
    assert torch.equal(together.run(), toys.parameters(reference.network))
    assert together.server.states == {"corner": 6, "side": 5, "place": 6}


def test_lost_files_are_noticed_and_refused(tmp_path, caplog):
    together = Together(tmp_path)
    together.run(3)
    shutil.rmtree(tmp_path / "side")
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        together.run(1)
    assert "knows this client's state after 3 rounds; here is that after none" in caplog.text
    assert together.server.states["side"] == 3


def test_too_few_answers_end_the_run(tmp_path):
    together = Together(tmp_path, patience=Patience(minimum=2, attempts=2))
    together.exchange.tamper = lambda name, _, content: content if name == "side" else "late"
    with pytest.raises(fgn.TrainingError, match="1 good answers, 2 are needed"):
        together.run()
    assert together.server.round == 0
    assert together.server.missed["corner"] == 2


def test_other_settings_and_unknown_rounds_are_refused_by_the_client(tmp_path, caplog):
    together = Together(tmp_path)
    object.__setattr__(together.agreement, "digest", "agreed")
    together.run(1)
    order = together.server._order("train", "side")
    participant = together.exchange.participants["side"]
    for change, words in (({"digest": "x"}, "other settings"), ({"round": 6}, "is not one of")):
        for key, value in change.items():
            object.__setattr__(order, key, value)
        with pytest.raises(fgn.FedGradNormError, match=words):
            answered(participant, order)
        order = together.server._order("train", "side")


def test_what_is_sent_follows_from_the_method():
    from fedgradnorm._round.settings import Settings

    def sent(weighting, **options):
        return sent_scalars(weighting, Settings(**options))

    assert sent(fgn.GradNorm()) == ("loss_ratio", "grad_norm")
    assert sent(fgn.Equal()) == ()
    assert sent(BySize()) == ("size",)
    assert sent(fgn.Equal(), aggregate="by_size") == ("size",)
    assert sent(MGDA()) == ()
    assert sent(InverseFirstLoss()) == ("loss", "loss_ratio")


def test_a_client_begins_at_its_targets(tmp_path):
    own = Together(tmp_path / "own")
    for name, client in own.clients.items():
        first = toys.heads(own.exchange.participants[name].engine)[name]
        torch.testing.assert_close(first.bias.detach(), baseline_of(client))
    own.run()
    assert {run.manifest["settings"]["head_init"] for run in own.results().values()} == {"auto"}
