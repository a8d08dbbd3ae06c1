"""What a client keeps at the end, on its own machine: its best round, and what it tuned."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace

import pytest
import torch

import fedgradnorm as fgn
import flat
import shared_heads
import toys
from engines.flower.direct import OPTIONS, Together
from fedgradnorm._flower.agreement import check_tuning

HOW = {"rounds": 8, "lr": 0.2, "eval_every": 2, "keep": "best"}
TUNING = {"steps": 12, "lr": 0.05, "what": "network"}


def clients() -> list[fgn.Client]:
    """Six, of which two tasks are shared; b has no validation rows."""
    given = shared_heads.clients()
    held = [replace(c, validation=toys.rows("corner", 10 + i)) for i, c in enumerate(given)]
    return [given[1] if c.name == "b" else c for c in held]


def served(folder, **how) -> Together:
    return Together(folder, fgn.GradNorm(), clients=clients, **{**HOW, **how})


def alone(**how) -> fgn.Run:
    options = {**OPTIONS, **HOW, "executor": "loop", **how}
    make = options.pop("make", toys.network)
    return flat.train(make(), clients(), weighting=fgn.GradNorm(), **options)


def rounds_alone(every: int, **how) -> dict[int, fgn.Run]:
    """The same run, ended after each round at which there is an evaluation."""
    wanted = [*range(every, HOW["rounds"], every), HOW["rounds"]]
    return {k: alone(rounds=k, keep="last", eval_every=0, **how) for k in wanted}


def validation(run: fgn.Run, name: str, which: int = -1) -> float:
    rows = [r for r in run.table.rows if (r["client"], r["split"]) == (name, "validation")]
    return rows[which]["loss"]


def best_alone(name: str, runs: dict[int, fgn.Run]) -> int:
    """The round whose network this client's validation rows like best, from runs of one process."""
    losses = {0: validation(next(iter(runs.values())), name, 0)}
    losses |= {number: validation(run, name) for number, run in runs.items()}
    return min(losses, key=losses.get)


@pytest.mark.parametrize("make", [toys.network, toys.noisy_network])
def test_each_client_keeps_its_own_best_round(make, tmp_path):
    how = {"heads": "task", "make": make}
    together = served(tmp_path, **how)
    together.run()
    results, runs = together.results(), rounds_alone(2, **how)
    found = {}
    for name, run in results.items():
        number = HOW["rounds"] if name == "b" else best_alone(name, runs)
        assert run.manifest.get("kept", {}).get("round") == (None if name == "b" else number)
        if number:
            wanted = runs[number]
            assert torch.equal(toys.parameters(run.network), toys.parameters(wanted.network))
            assert torch.equal(
                toys.parameters(run.heads[name]), toys.parameters(wanted.heads[name])
            )
            x = toys.rows("corner", 7)[0]
            assert (
                run.predict(name, x, outputs=True) == wanted.predict(name, x, outputs=True)
            ).all()
        found[name] = number
    assert len(set(found.values())) > 1  # they differ, so it is a choice


@pytest.mark.parametrize("keep", ["best", "own_best"])
def test_what_a_client_keeps_is_what_one_process_keeps_for_it(keep, tmp_path):
    """A server sees no validation loss, so there "best" is each client's own, too."""
    together = served(tmp_path, keep=keep, heads="task", personalize=TUNING)
    together.run()
    reference = alone(keep="own_best", heads="task", personalize=TUNING)
    kept = reference.manifest["kept"]["clients"]
    assert len({one["round"] for one in kept.values()}) > 1
    for name, run in together.results().items():
        if name == "b":  # has no validation rows: nobody can choose for it here
            continue
        assert run.manifest["kept"] == kept[name]
        assert run.manifest["personal"][name] == reference.manifest["personal"][name]
        for kind in ("heads", "networks"):
            one, other = (getattr(r, kind)[name] for r in (run, reference))
            assert torch.equal(toys.parameters(one), toys.parameters(other))
        assert validation(run, name) == validation(reference, name)


def test_a_clients_history_has_its_evaluations_and_ends_with_what_is_kept(tmp_path):
    together = served(tmp_path)
    together.run()
    for name, run in together.results().items():
        rows = [r for r in run.table.rows if r["split"] == "validation"]
        if name == "b":
            assert not rows
            continue
        assert [row["round"] for row in rows] == [0, 2, 4, 6, 8]
        kept = run.manifest["kept"]
        assert rows[-1]["loss"] == min([r["loss"] for r in rows])
        assert rows[-1]["loss"] == next(r["loss"] for r in rows if r["round"] == kept["round"])
        assert kept["last_round"] == 8


def test_a_client_that_sees_few_rounds_looks_when_it_can(tmp_path):
    """It is judged when it is asked for the first time after each interval."""
    plan = [["a", "c"]] + [["c"]] * 2 + [["a", "c"]] * 2 + [["c"]] + [["a"], ["c"]]
    together = served(tmp_path, participation=plan)
    together.run()
    rounds = {
        name: [r["round"] for r in run.table.rows if r["split"] == "validation"]
        for name, run in together.results().items()
    }
    assert rounds["a"] == [0, 3, 4, 6, 8]
    assert rounds["c"] == [0, 2, 4, 7, 8]


def test_kept_and_tuned_survive_whatever_starts_anew(tmp_path):
    how = {"heads": "task", "personalize": TUNING}
    whole = served(tmp_path / "whole", **dict(how))
    whole.run()
    wanted = whole.results()
    together = served(tmp_path / "again", **how)
    together.run(5)
    before = copy.deepcopy(together.server.state_dict())
    together.run(1)
    again = served(tmp_path / "again", **how)
    again.server.load_state_dict(before)
    again.run()
    again.server.finish()
    for _ in range(2):  # a server that was killed at the end asks for the end once more
        for name, run in again.results().items():
            assert run.manifest.get("kept") == wanted[name].manifest.get("kept")
            assert run.manifest["personal"] == wanted[name].manifest["personal"]
            assert run.history.equals(wanted[name].history)
            for kind in ("heads", "networks"):
                one, other = (getattr(r, kind)[name] for r in (run, wanted[name]))
                assert torch.equal(toys.parameters(one), toys.parameters(other))


@pytest.mark.parametrize("what", ["head", "network", ["2"]])
def test_tuning_is_that_of_one_process_to_the_bit(what, tmp_path):
    how = {"personalize": {**TUNING, "what": what}, "keep": "last", "heads": "task"}
    together = served(tmp_path, **how)
    together.run()
    reference = alone(**how)
    steps = set()
    for name, run in together.results().items():
        assert run.manifest["personal"] == {name: reference.manifest["personal"][name]}
        steps.add(run.manifest["personal"][name]["step"])
        for kind in ("heads", "networks"):
            one, other = (getattr(r, kind)[name] for r in (run, reference))
            assert torch.equal(toys.parameters(one), toys.parameters(other))
        assert torch.equal(toys.parameters(run.network), toys.parameters(reference.network))
    assert len(steps) > 1


def test_nothing_of_it_leaves_the_client(tmp_path):
    """An answer to the last order has three numbers and a name, whatever was kept and tuned."""
    together = served(tmp_path, heads="task", personalize=TUNING)
    together.run()
    before = len(together.exchange.sent)
    together.server.finish()
    finished = together.exchange.sent[before:]
    assert len(finished) == 6
    for _, content in finished:
        assert sorted(content) == ["round", "run", "state_round"]
    assert not any("loss" in content for _, content in together.exchange.sent)


def test_who_has_no_validation_rows_is_told_that_the_last_state_is_kept(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        served(tmp_path)
    assert caplog.text.count("no validation examples, so the last state is kept") == 1


def test_a_loss_that_nothing_compares_with_is_passed_over(tmp_path, caplog):
    together = served(tmp_path)
    participant = together.exchange.participants["a"]
    real, first = participant.engine.evaluate, iter([{"a": {"loss": float("nan")}}])
    participant.engine.evaluate = lambda shared, split: (
        (split == "validation" and next(first, None)) or real(shared, split)
    )
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        together.run()
    assert "the best round and early stopping compare validation losses" in caplog.text
    assert together.server.states["a"] == HOW["rounds"]
    assert together.results()["a"].manifest["kept"]["round"] > 0


def test_a_part_of_personalize_that_is_not_known_here_is_refused():
    check_tuning(None)
    check_tuning({**TUNING, "later": False})
    with pytest.raises(fgn.ConfigError, match=r"personalize\.later = True cannot be run over"):
        check_tuning({**TUNING, "later": True})
