"""keep = "own_best": each client ends with network and head of its own best round."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedgradnorm as fgn
import flat
import shared_heads
import toys
from experiments import overfitting
from experiments.overfitting import ENDS, assert_same_networks, clients, ending, losses
from experiments.resuming import assert_equal_to_the_bit
from fedgradnorm._report.grid import to_csv
from fedgradnorm._report.page import runs_grid
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.reader import read_run

ROUNDS, EVERY = 14, 2


def train(without: str = "", **more: Any) -> fgn.Run:
    """One client's best round is that of the mean, one's is earlier, one's the last."""
    how = {"rounds": ROUNDS, "eval_every": EVERY, "seed": 3, **more}
    return overfitting.train(without, **how)


WAYS: list[dict[str, Any]] = [
    {},
    {"executor": "joint"},
    {"executor": "vmap", "shared_steps": 2},
    {"ditto": 0.1},
    {"participation": 0.7, "network": toys.noisy_network, "seed": 0},
]


def own_rounds(run: fgn.Run) -> dict[str, int]:
    return {name: one["round"] for name, one in run.manifest["kept"]["clients"].items()}


def best_rounds(plain: fgn.Run) -> dict[str, int]:
    """The round of each client's lowest validation loss, from the history alone."""
    frame = plain.history[plain.history.split == "validation"]
    return frame.pivot(index="round", columns="client", values="loss").idxmin().to_dict()


def assert_client_is_that_of(run: fgn.Run, short: fgn.Run, name: str) -> None:
    one, two = run.clients[name], short.clients[name]
    assert toys.same(dict(one.head.state_dict()), dict(two.head.state_dict()))
    assert toys.same(one.buffers, two.buffers)
    networks = (toys.parameters(r.networks[name]) for r in (run, short))
    assert torch.equal(*networks)
    x = toys.rows(name, 9)[0]
    assert (run.predict(name, x, outputs=True) == short.predict(name, x, outputs=True)).all()


@pytest.mark.parametrize("how", WAYS, ids=" ".join)
def test_each_client_ends_as_a_run_of_its_own_best_round_does(how: dict) -> None:
    run, plain, together = (train(keep=keep, **how) for keep in ("own_best", "last", "best"))
    rounds = own_rounds(run)
    assert rounds == best_rounds(plain)
    assert len(set(rounds.values())) > 1
    for number in set(rounds.values()):
        short = train(**{**how, "rounds": number})
        for name in [name for name in rounds if rounds[name] == number]:
            assert_client_is_that_of(run, short, name)
            for split in ("train", "validation", "test"):
                assert losses(run, split=split)[name] == losses(plain, number, split)[name]
    assert torch.equal(toys.parameters(run.network), toys.parameters(together.network))
    shared = {k: v for k, v in run.manifest["kept"].items() if k != "clients"}
    assert shared == together.manifest["kept"]


@pytest.mark.parametrize("executor", ["joint", "vmap"])
def test_engines_agree_on_what_each_client_keeps(executor: str) -> None:
    one, two = train(keep="own_best"), train(keep="own_best", executor=executor)
    assert own_rounds(one) == own_rounds(two)
    for name in toys.NAMES:
        pair = (toys.parameters(run.networks[name]) for run in (one, two))
        assert torch.allclose(*pair, rtol=1e-10, atol=1e-10)
        assert losses(one)[name] == pytest.approx(losses(two)[name], rel=1e-10)


def test_who_likes_the_shared_round_best_or_cannot_tell_has_the_shared_network() -> None:
    run, together = train("side", keep="own_best"), train("side", keep="best")
    rounds, shared = own_rounds(run), run.manifest["kept"]["round"]
    assert set(rounds) == {"corner", "place"}
    assert_client_is_that_of(run, together, "side")
    for name in toys.NAMES:
        assert (run.clients[name].network is None) == (rounds.get(name, shared) == shared)
    whole = train(keep="own_best")
    assert [n for n, one in whole.clients.items() if one.network is None] == ["side"]
    assert own_rounds(whole)["side"] == whole.manifest["kept"]["round"]


def test_alone_it_is_the_best() -> None:
    how = {"share": "none", "patience": 2}
    one, two = train(keep="own_best", **how), train(keep="best", **how)
    assert_same_networks(one, two)
    assert one.manifest["kept"] == two.manifest["kept"]
    assert one.history.equals(two.history)


def test_the_run_ends_when_nobody_looks_any_more() -> None:
    how = {"patience": 2, "rounds": 40, "without": "place"}
    run, together = (train(keep=keep, **how) for keep in ("own_best", "best"))
    whole, kept = train(keep="own_best", **{**how, "patience": None}), run.manifest["kept"]
    all_of_them = (kept, *kept["clients"].values())
    assert run.history["round"].max() == max(one["last_round"] for one in all_of_them) < 40
    assert run.manifest["stopped_early"] is True
    assert all(one["last_round"] == one["round"] + 2 * EVERY for one in all_of_them)
    assert len({one["round"] for one in all_of_them}) > 1
    assert torch.equal(toys.parameters(run.network), toys.parameters(together.network))
    assert own_rounds(train(keep="own_best", executor="joint", **how)) == own_rounds(run)
    for name, one in whole.manifest["kept"]["clients"].items():
        if one["round"] == own_rounds(run)[name]:
            assert_client_is_that_of(run, whole, name)


@pytest.mark.parametrize(
    "how", [{"patience": 2}, {"ditto": 0.1}, {"personalize": {"steps": 4, "what": "network"}}]
)
def test_it_resumes_to_the_bit_wherever_it_was_stopped(tmp_path: Path, how: dict) -> None:
    how = {"keep": "own_best", "network": toys.noisy_network, "participation": 0.7, **how}
    how = {**how, "checkpoint_every": 1, "rounds": 8}
    whole = train(folder=tmp_path / "whole", **how)
    last = int(whole.history["round"].max())
    for at, how_it_ends in zip((last - 1, last), itertools.cycle(ENDS), strict=False):
        folder = tmp_path / f"part{at}"
        with pytest.raises(how_it_ends):
            train(folder=folder, progress=ending(at, how_it_ends), **how)
        again = train(folder=folder, resume=True, **how)
        assert_equal_to_the_bit(folder, tmp_path / "whole")
        for key in ("kept", "stopped_early"):
            assert again.manifest[key] == whole.manifest[key] == fgn.load(folder).manifest[key]


def test_a_checkpoint_holds_a_network_for_each_round_that_somebody_likes_best(
    tmp_path: Path,
) -> None:
    """And no more: clients that like one round best have one copy of it."""
    more = [toys.client(f"again {c.name}", c.size, kind=c.name) for c in clients()]
    given = [*clients(), *(fgn.Client(m.name, m.task, m.train, m.test, m.test) for m in more)]

    def stop(event: Any) -> None:
        if event.round == ROUNDS - 1:
            raise KeyboardInterrupt

    with pytest.raises(fgn.Interrupted):
        flat.train(
            toys.network(), given, rounds=ROUNDS, eval_every=EVERY, batch_size=8, lr=0.05,
            keep="own_best", folder=tmp_path, progress=stop, device="cpu",
        )  # fmt: skip
    own = checkpoint.load(tmp_path / "checkpoint.safetensors")["trainer"]["best"]
    together = own["shared"]
    rounds = [one["round"] for one in own["clients"].values()]
    assert len(own["networks"]) == len(set(rounds)) < len(rounds)
    assert together["round"] not in rounds or any(
        torch.equal(network, together["state"]["server"]["shared"])
        for network in own["networks"].values()
    )


@pytest.mark.parametrize("what", ["head", ["2"]])
def test_tuning_begins_with_the_own_best_round_and_falls_back_to_it(what: Any) -> None:
    plain = train(keep="own_best")
    for steps, lr in ((8, 0.01), (2, 50.0)):  # the second makes everything worse
        tuning = {"steps": steps, "lr": lr, "what": what}
        run = train(keep="own_best", personalize=tuning)
        assert own_rounds(run) == own_rounds(plain)
        for name, kept in run.manifest["personal"].items():
            assert kept["before"] == losses(plain)[name]
            assert kept["after"] == losses(run)[name] <= kept["before"]
            moved = not torch.equal(*(toys.parameters(r.networks[name]) for r in (run, plain)))
            assert moved == (what != "head" and kept["step"] > 0)
            if kept["step"] == 0:
                assert_client_is_that_of(run, plain, name)


def test_heads_are_tuned_at_the_end_on_the_network_of_their_round() -> None:
    """FedBABU's steps at the end: the network of a client that has its own stays as it is."""
    plain, run = train(keep="own_best"), train(keep="own_best", final_head_steps=3)
    for name in toys.NAMES:
        assert torch.equal(*(toys.parameters(r.networks[name]) for r in (run, plain)))
        assert not torch.equal(*(toys.parameters(r.heads[name]) for r in (run, plain)))
        assert losses(run, split="train")[name] < 2 * losses(plain, split="train")[name]


def test_it_is_saved_loaded_exported_and_told(tmp_path: Path) -> None:
    run = train(keep="own_best", folder=tmp_path / "run")
    kept, rounds = run.manifest["kept"], own_rounds(run)
    each = ", ".join(f"{name} {number}" for name, number in rounds.items())
    words = f"kept round {kept['round']}, and each client's best round: {each}"
    assert words in (tmp_path / "run" / "log.txt").read_text()
    page = to_csv(runs_grid([read_run(tmp_path / "run")]))
    assert words in page
    assert run.summary().kept_round.to_dict() == rounds
    loaded = (fgn.load(tmp_path / "run"), fgn.load(run.save(tmp_path / "saved")))
    for again, name in itertools.product(loaded, toys.NAMES):
        assert_client_is_that_of(again, run, name)
        assert again.summary().kept_round.to_dict() == rounds
    x = torch.as_tensor(toys.rows("corner", 5)[0])
    program = torch.export.load(run.export("corner", tmp_path / "corner.pt2", x=x)).module()
    assert torch.allclose(program(x), run.predict("corner", x, outputs=True))


def test_clients_that_share_a_head_may_end_with_heads_of_different_rounds() -> None:
    """A head is shared while it is trained; what a client keeps of it is its own copy."""

    def go(**more: Any) -> fgn.Run:
        held = [replace(c, validation=toys.rows("corner", 20 + i)) for i, c in enumerate(given)]
        how = {"rounds": 8, "eval_every": 1, "batch_size": 8, "lr": 0.1, "seed": 1, **more}
        return flat.train(toys.network(), held, heads="task", device="cpu", **how)

    given = shared_heads.clients()
    run, plain = go(keep="own_best"), go()
    rounds = own_rounds(run)
    assert rounds == best_rounds(plain)
    groups = {client.task_name: [] for client in given}
    for client in given:
        groups[client.task_name].append(rounds[client.name])
    assert any(len(set(group)) > 1 for group in groups.values())
    for number in set(rounds.values()) - {0}:
        short = go(rounds=number)
        for name in [name for name in rounds if rounds[name] == number]:
            assert torch.equal(*(toys.parameters(r.heads[name]) for r in (run, short)))
            assert torch.equal(*(toys.parameters(r.networks[name]) for r in (run, short)))


def test_a_new_client_begins_with_a_head_that_fits_the_shared_network() -> None:
    """That of a client of its task without a network of its own, not just the first one's."""
    given = [
        replace(toys.client(name, 24, kind="corner"), validation=toys.rows("corner", 30 + i))
        for i, name in enumerate("abc")
    ]
    how = {"rounds": 10, "eval_every": 1, "batch_size": 8, "lr": 0.1, "heads": "all", "seed": 1}
    how["weighting"] = fgn.GradNorm()
    run = flat.train(toys.network(), given, keep="own_best", device="cpu", **how)
    on_shared = [name for name, one in run.clients.items() if one.network is None]
    assert on_shared
    assert run.clients["a"].network is not None
    late = toys.client("late", 24, kind="corner")
    found = run.personalize(late, steps=1, lr=1e-12).heads["late"]
    assert torch.allclose(toys.parameters(found), toys.parameters(run.heads[on_shared[0]]))


def test_no_validation_rows_at_all_are_refused_with_the_way_out() -> None:
    with pytest.raises(fgn.ConfigError, match=r"keep_best needs validation examples"):
        flat.train(toys.network(), toys.clients(), rounds=2, keep="own_best")
