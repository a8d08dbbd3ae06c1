"""Shared heads of which each client keeps a part: shared weights, a bias for each client."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import flat
import shared_heads
import toys
from experiments.small_config import small_config
from fedgradnorm._federation.heads import SharedHeads, baseline_of
from fedgradnorm._round.settings import Settings
from fedgradnorm.experiments import load_config
from fedgradnorm.experiments import run as execute
from shared_heads import TASKS, assert_same, client, clients

GROUPS = [["a", "c", "f"], ["b", "d"], ["e"]]


def train(heads: str = "task", given: list[fgn.Client] | None = None, **how: Any) -> fgn.Run:
    return shared_heads.train(heads, given, **{"head_own": "bias", **how})


def federation(heads: str = "task", **how: Any) -> Any:
    return toys.federation(toys.network(), clients(), heads=heads, **how)


def parts(heads: dict[str, nn.Module], what: str) -> dict[str, Tensor]:
    return {name: head.get_parameter(what).detach().clone() for name, head in heads.items()}


def assert_shared(heads: dict[str, nn.Module], groups: list[list[str]] = GROUPS) -> None:
    """Within a group weights are equal, and every bias is another one."""
    weights, biases = parts(heads, "weight"), parts(heads, "bias")
    for names in groups:
        assert all(torch.equal(weights[names[0]], weights[name]) for name in names)
    firsts = [weights[names[0]] for names in groups]
    assert not any(torch.equal(firsts[0], other) for other in firsts[1:])
    assert len({tuple(bias.tolist()) for bias in biases.values()}) == len(heads)


# ------------------------------------------------------------------------------------------ laws


@pytest.mark.parametrize("aggregate", ["mean", "by_size"])
def test_only_the_shared_part_is_averaged(aggregate: str) -> None:
    """One round from the same state: weights are the mean, biases what each client trained."""
    weighting = fgn.Static({"a": 1.0, "b": 0.5, "c": 2.0, "d": 0.1, "e": 1.0, "f": 3.0})
    how = {"aggregate": aggregate, "weighting": weighting}
    both = federation(head_own="bias", **how)
    own = federation("own", **how)
    for name in TASKS:
        own.engine.load_client(name, both.engine.client_state(name))
    start = parts(toys.heads(both.engine), "bias")
    for each in (own, both):
        each.round(0, ["a", "b", "c", "e"])
    sent, found = toys.heads(own.engine), toys.heads(both.engine)
    a, c = (1.0 * 48, 2.0 * 24) if aggregate == "by_size" else (1.0, 2.0)
    weights = parts(sent, "weight")
    mean = (a * weights["a"] + c * weights["c"]) / (a + c)
    for name in "acf":
        torch.testing.assert_close(parts(found, "weight")[name], mean)
    for name in "bd":  # b participated alone
        assert torch.equal(parts(found, "weight")[name], weights["b"])
    assert toys.same(parts(found, "bias"), parts(sent, "bias"))
    moved = {name for name, bias in parts(found, "bias").items() if not bias.equal(start[name])}
    assert moved == set("abce")


@pytest.mark.parametrize(
    ("executor", "how"), [("loop", {}), ("joint", {}), ("vmap", {"shared_steps": 2})]
)
def test_weights_are_equal_and_biases_differ_after_every_round(executor: str, how: Any) -> None:
    one = federation(head_own="bias", executor=executor, **how)
    assert_shared(toys.heads(one.engine))
    for number, active in enumerate([list(TASKS), ["a", "b", "e"], ["c", "e"], ["e", "f", "d"]]):
        before = toys.heads(one.engine)
        one.round(number, active)
        after = toys.heads(one.engine)
        assert_shared(after)
        for name, task in TASKS.items():
            came = any(TASKS[other] == task for other in active)
            assert torch.equal(before[name].weight, after[name].weight) != came, name
            assert torch.equal(before[name].bias, after[name].bias) == (name not in active), name


def test_all_composes_too() -> None:
    assert_shared(train("all").heads, [list(TASKS)])


def test_clients_with_equal_data_have_equal_biases() -> None:
    """Then nothing is personal, and it is the run with one whole head."""
    given = [client(name, "one", 30) for name in "abc"]
    how = {"batch_size": None, "head_init": "targets", "given": given}
    ours, whole = train(**how), shared_heads.train(**how)
    for name, head in shared_heads.vectors(ours.heads).items():
        twin = shared_heads.vectors(whole.heads)[name]
        torch.testing.assert_close(head, twin, rtol=0, atol=1e-12)


def test_whoever_failed_keeps_its_bias_and_gets_the_mean() -> None:
    one = federation(head_own="bias")
    one.engine.examples.split("c", "train")[0].fill_(float("inf"))
    start = toys.heads(one.engine)
    reports, _ = one.round(0, list(TASKS))
    assert list(reports.failed) == ["c"]
    assert_shared(toys.heads(one.engine))
    assert torch.equal(toys.heads(one.engine)["c"].bias, start["c"].bias)


# -------------------------------------------------------------------------------------- the start


def test_weights_begin_equal_and_biases_at_each_clients_targets() -> None:
    for start in ("auto", "targets"):
        heads = toys.heads(federation(head_own="bias", head_init=start).engine)
        drawn = toys.heads(federation("own", head_init="random").engine)
        assert_shared(heads)
        for names in GROUPS:
            assert torch.equal(heads[names[-1]].weight, drawn[names[0]].weight)
        for one in clients():
            assert torch.equal(heads[one.name].bias, baseline_of(one))


def test_at_random_each_bias_is_that_of_the_clients_own_head() -> None:
    heads = toys.heads(federation(head_own="bias", head_init="random").engine)
    drawn = toys.heads(federation("own", head_init="random").engine)
    assert toys.same(parts(heads, "bias"), parts(drawn, "bias"))
    assert_shared(heads)


def test_a_private_clients_bias_begins_at_random() -> None:
    """Its account has no place for a mean of targets."""
    promise = fgn.Privacy(epsilon=3.0, delta=1e-5, noise_multiplier=2.0, rounds=3)
    given = [client("a", "one", 40, privacy=promise), client("b", "one", 30)]
    how = {"heads": "task", "head_own": "bias"}
    one = toys.federation(toys.network(), given, **how)
    drawn = toys.federation(toys.network(), given, head_init="random")
    biases = parts(toys.heads(one.engine), "bias")
    assert torch.equal(biases["a"], toys.heads(drawn.engine)["a"].bias)
    assert torch.equal(biases["b"], baseline_of(given[1]))
    one.engine.set_noise("a", 2.0)
    one.round(0, ["a", "b"])
    assert_shared(toys.heads(one.engine), [["a", "b"]])


def deep() -> nn.Module:
    return toys.seeded(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)))


@pytest.mark.parametrize("executor", ["loop", "joint"])
def test_patterns_name_parameters_of_custom_heads(executor: str) -> None:
    given = [client(n, "one", size, head=deep()) for n, size in (("a", 48), ("b", 24))]
    run = train("task", given, head_own=["2.*", "0.bias"], executor=executor)
    a, b = (dict(run.heads[name].named_parameters()) for name in "ab")
    assert [name for name in a if torch.equal(a[name], b[name])] == ["0.weight"]


# ------------------------------------------------------------------------------------- executors

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "some": {"participation": 0.5},
    "together, by size": {"phases": "joint", "aggregate": "by_size"},
    "many head steps": {"head_steps": 3, "step_with": "previous", "weight_per": "task"},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("executor", "steps"), [("joint", 1), ("vmap", 3)])
def test_executors_give_the_loops_run(executor: str, steps: int, case: str) -> None:
    how = {"shared_steps": steps, **CASES[case]}
    loop, ours = train(**how), train(executor=executor, **how)
    for name, head in shared_heads.vectors(loop.heads).items():
        twin = shared_heads.vectors(ours.heads)[name]
        torch.testing.assert_close(twin, head, rtol=0, atol=1e-10)
    numbers = loop.history.select_dtypes("number").columns
    left, right = (run.history[numbers].to_numpy(float) for run in (loop, ours))
    np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-9)


# ------------------------------------------------------------- saved, resumed, continued, counted


@pytest.mark.parametrize("more", [{}, {"participation": 0.5, "executor": "joint"}, {"ditto": 0.3}])
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path: Path, more: Any) -> None:
    whole = train(folder=tmp_path / "whole", **more)

    def stop(event: Any) -> None:
        if event.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(folder=tmp_path / "part", progress=stop, **more)
    assert_same(whole, train(folder=tmp_path / "part", resume=True, **more))
    loaded = fgn.load(tmp_path / "part")
    assert shared_heads.same_heads(loaded, whole)
    assert loaded.manifest["settings"]["head_own"] == "bias"


def test_a_new_run_starts_with_shared_weights_and_everybodys_bias() -> None:
    known = [one for one in clients() if one.name != "a"]  # a is new, and the first of its task
    run = train("task", known)
    again = train("task", start=run, lr=1e-30)
    assert_shared(again.heads)
    for name, head in run.heads.items():
        torch.testing.assert_close(again.heads[name].weight, head.weight)
        torch.testing.assert_close(again.heads[name].bias, head.bias)
    torch.testing.assert_close(again.heads["a"].weight, run.heads["c"].weight)
    torch.testing.assert_close(again.heads["a"].bias.detach(), baseline_of(clients()[0]))


def test_a_client_that_comes_later_gets_shared_weights_and_a_bias_from_its_targets() -> None:
    late = client("late", "north", 33)
    run = train()
    more = run.personalize(late, steps=1, lr=1e-30)
    torch.testing.assert_close(more.heads["late"].weight, run.heads["a"].weight)
    torch.testing.assert_close(more.heads["late"].bias.detach(), baseline_of(late))
    same = run.personalize(clients()[2], steps=1, lr=1e-30)
    torch.testing.assert_close(same.heads["c"].bias, run.heads["c"].bias)


def test_personal_steps_after_the_run_keep_the_rest() -> None:
    plain = train()
    tuned = train(final_head_steps=2)
    assert torch.equal(toys.parameters(plain.network), toys.parameters(tuned.network))
    assert not torch.equal(tuned.heads["a"].weight, tuned.heads["c"].weight)


def test_only_what_is_shared_counts_as_traffic() -> None:
    both, own = federation(head_own="bias"), federation("own")
    for name in TASKS:
        weights = 0 if name == "e" else 2 * 8 * 5 * 3
        assert both.bytes_per_round(name) - own.bytes_per_round(name) == weights


def test_a_config_has_it_too(tmp_path: Path) -> None:
    sides = np.arange(40) % 2, np.arange(40) % 4 // 3
    path = small_config(tmp_path, **{"class": sides[0], "value": sides[1]})
    text = path.read_text().replace('"regression"', '"classification"')
    path.write_text(f'{text}\n[sharing]\nheads = "all"\nhead_own = "bias"\n')
    run = execute(load_config(path), tmp_path / "run")
    assert_shared(fgn.load(tmp_path / "run").heads, [["class", "value"]])
    assert run.manifest["settings"]["head_own"] == "bias"
    listed = load_config(path, ['sharing.head_own=["bias"]']).settings
    assert listed.head_own == ["bias"]


# -------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"heads": "own"}, ["head_own = 'bias'", "heads = 'task' or 'all'"]),
        ({"head_own": "biass"}, ["'biass'", "client 'a'", "weight, bias"]),
        ({"head_own": ["bias", "2.bias"]}, ["'2.bias'", "client 'a'", "weight, bias"]),
        ({"head_own": ["bias", "weight"]}, ["nothing to share", "client 'a'", "heads='own'"]),
        ({"head_own": "*"}, ["nothing to share", "client 'a'"]),
        ({"head_own": 3}, ["head_own"]),
        ({"head_own": []}, ["head_own"]),
    ],
)
def test_what_cannot_be_kept_is_refused_with_a_way_out(how: dict[str, Any], words: Any) -> None:
    with pytest.raises(fgn.ConfigError) as error:
        train(how.pop("heads", "task"), **how)
    for word in words:
        assert word in str(error.value)


def test_a_client_alone_has_no_shared_head() -> None:
    own = shared_heads.train("own", share="none")
    assert shared_heads.same_heads(train(share="none"), own)
    assert Settings(heads="task", head_own="bias").alone().head_own is None


def test_masks_belong_to_their_group() -> None:
    """Heads of two shapes, one for each task."""
    given = [client(n, "three", 20) for n in "ab"] + [client(n, "two", 20, "side") for n in "cd"]
    shared = SharedHeads({c.name: c.shared_task for c in given}, "task", toys.CPU, "bias")
    heads = {c.name: nn.Linear(5, c.task.outputs) for c in given}
    started = shared.begin(copy.deepcopy(heads))
    assert torch.equal(started["d"].weight, heads["c"].weight)
    assert torch.equal(started["d"].bias, heads["d"].bias)
    assert shared.sizes == {"a": 15, "b": 15, "c": 10, "d": 10}


# ---------------------------------------------------------------- what it is for: levels differ

FEATURES = 10


def unlike(kind: str, seed: int) -> list[fgn.Client]:
    """Twelve clients with one slope, few examples, and very different levels or prevalences."""
    rng = np.random.default_rng(seed)
    slope = 2 * rng.normal(size=FEATURES) / np.sqrt(FEATURES)
    few, rows, found = (8, 208, []) if kind == "level" else (16, 216, [])
    task = fgn.regression(1, name="one") if kind == "level" else fgn.binary(name="one")
    for k in range(12):
        x = rng.normal(size=(rows, FEATURES))
        if kind == "level":
            y = 4 * rng.normal() + x @ slope + 0.3 * rng.normal(size=rows)
        else:
            odds = np.exp((3 if k % 2 else -3) + 2 * x @ slope)
            y = (rng.random(rows) < odds / (1 + odds)).astype(float)
        y = y[:, None]
        held_out = (x[few:], y[few:])
        found.append(fgn.Client(f"c{k:02}", task, train=(x[:few], y[:few]), test=held_out))
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["level", "prevalence"])
def test_a_bias_for_each_client_beats_own_heads_and_one_head(kind: str, seed: int) -> None:
    """On held-out data, with the same budget."""
    ways: dict[str, dict[str, Any]] = {
        "own": {"heads": "own"},
        "task": {"heads": "task"},
        "task and own bias": {"heads": "task", "head_own": "bias"},
        "alone": {"share": "none"},
    }
    loss = {}
    for name, how in ways.items():
        network = toys.seeded(lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh()))
        budget: dict[str, Any] = {"rounds": 200, "lr": 0.01, "eval_every": 0, "log_every": 200}
        run = flat.train(
            network, unlike(kind, seed), weighting=fgn.Equal(), seed=seed, device="cpu", **budget,
            **how,
        )  # fmt: skip
        last = run.history[(run.history.split == "test") & (run.history["round"] == 200)]
        loss[name] = last.loss.mean()
    ours = loss.pop("task and own bias")
    assert all(ours < 0.8 * other for other in loss.values()), (ours, loss)
