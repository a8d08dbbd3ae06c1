"""Attacks that read examples, or noise, out of version 0: none of them works any more."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
import toys
from data.small_tables import client_from_files
from fedgradnorm._flower.audit import Audit
from fedgradnorm._flower.wire.messages import Order, Refused
from fedgradnorm._privacy.noise import Noise
from fedgradnorm._privacy.per_example import RowGradients
from fedgradnorm._runs.layout import LEDGER, LEDGER_SEEN
from fedgradnorm.data import client_from_arrays
from privacy.hostile import (
    DELTA,
    Hostile,
    cosine,
    cost,
    examples,
    network,
    noise_of,
    told,
    train,
    with_terms,
)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def noiseless(folder: Path, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """The client's sum without noise, which the attacker does not have."""
    with monkeypatch.context() as silent:
        silent.setattr(Noise, "normal", lambda _, count, *__: np.zeros(count))
        update = Hostile(folder).ask().update
    assert update is not None
    return update


def test_dp1_two_runs_on_one_state_folder_share_no_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S + s1 z and S + s2 z would give S = S + s1 z - s1 (s1 z - s2 z) / (s1 - s2)."""
    client = Hostile(tmp_path / "a")
    pilot, real = client.ask("pilot").update, client.ask("real").update
    assert pilot is not None
    assert real is not None
    s1, s2 = client.noise("pilot"), client.noise("real")
    assert s2 > s1  # the second run has less of the budget
    found = pilot - s1 * (pilot - real) / (s1 - s2)
    assert abs(cosine(found, noiseless(tmp_path / "b", monkeypatch))) < 0.9


def test_dp2_runs_that_are_opened_before_others_are_finished_spend_one_budget(
    tmp_path: Path,
) -> None:
    client, answers = Hostile(tmp_path, noise_multiplier=8.0), 0
    for number in range(100):
        for run in range(8):
            with suppress(Refused):
                client.ask(f"run{run}", moved=1e-6 * number)
                answers += 1
    assert answers == len(client.charges) < 200
    assert 2.8 < cost(client.charges) <= 3.0


def test_dp3_every_first_loss_is_charged(tmp_path: Path) -> None:
    client = Hostile(tmp_path, noise_multiplier=8.0)
    for number in range(5):
        client.ask(moved=1e-6 * number)
    sigma = client.noise("run")
    assert [charge["releases"] for charge in client.charges] == [
        [[10 * sigma, 1.0, 1], [sigma, 1.0, 1]] for _ in range(5)
    ]
    client.ask(number=1, state=1)  # with a first loss that it has told
    assert client.charges[-1]["releases"] == [[sigma, 1.0, 1]]


def test_dp4_removing_an_example_and_repeating_the_order_tells_nothing_of_it(
    tmp_path: Path,
) -> None:
    """The same noise twice would leave the removed example's gradient, of length 1."""
    client = Hostile(tmp_path, noise_multiplier=8.0)
    before = client.ask()
    client.rows = slice(1, None)
    client.start()
    assert told(client.ask()) == told(before)  # the stored answer, and no charge
    assert len(client.charges) == 1
    client.ask(moved=1e-6)
    again = client.ask()  # no longer stored: drawn anew, and charged
    assert len(client.charges) == 3
    assert again.update is not None
    assert before.update is not None
    apart = (47 * again.update - 48 * before.update).double()
    assert float(apart.norm()) > 0.5 * 8.0 * np.sqrt(2 * len(apart))
    assert not np.intersect1d(noise_of(before), noise_of(again)).size


def learned(tmp_path: Path) -> dict[str, Callable[[], fgn.Client]]:
    """Clients of which something was learned on their examples, by how to say it publicly."""
    x, y = examples()
    two, words = y > 0, np.where(y > 0, "yes", "no")
    path = tmp_path / "rows.csv"
    lines = [f"{a},{'u' if a > 0 else 'v'},{b}" for a, b in zip(x[:, 0], words, strict=True)]
    path.write_text("\n".join(["a,kind,state", *lines]))
    table = {"task": "binary", "train": path, "targets": "state"}
    listed = {"labels": ["no", "yes"], "inputs": ["a"]}
    kinds = {"labels": ["no", "yes"], "categories": ["kind"]}
    gaps = {**listed, "missing": "mean"}
    return {
        r"standardize = \{ mean": lambda: client_from_arrays(
            "a", fgn.regression(1), (x, x[:, :1]), standardize=True
        ),
        "class_weights = ": lambda: fgn.Client(
            "a", fgn.classification(2, class_weights="balanced"), train=(x, two.astype(int))
        ),
        "labels = ": lambda: fgn.Client("a", fgn.classification(2), train=(x, words)),
        "classes = N": lambda: client_from_files("a", **table, inputs=["a"]).client,
        r"categories = \{": lambda: client_from_files("a", **table, **kinds).client,
        "do not fill gaps": lambda: client_from_files("a", **table, **gaps).client,
        "the scaling is": lambda: (
            client_from_files("a", **table, **listed, standardize="inputs").client
        ),
    }


@pytest.mark.parametrize("way_out", range(7))
def test_dp5_whatever_was_learned_on_examples_is_refused_with_a_way_out(
    way_out: int, tmp_path: Path
) -> None:
    words, make = list(learned(tmp_path).items())[way_out]
    with pytest.raises(fgn.ConfigError, match=words):
        train([with_terms(make())], lambda: nn.Linear(1, 2))


def test_dp5_public_constants_take_its_place(tmp_path: Path) -> None:
    x, y = examples()
    constants = {"mean": [0.5] * toys.FEATURES, "std": [2.0] * toys.FEATURES}
    given = client_from_arrays("a", fgn.classification(3), (x, y), standardize=constants)
    torch.testing.assert_close(given.train[0], torch.as_tensor((x - 0.5) / 2))
    path = tmp_path / "rows.csv"
    kinds = np.where(x[:, 0] > 0, "u", "v")
    lines = [f"{a},{k},{b}" for a, k, b in zip(x[:, 0], kinds, y, strict=True)]
    path.write_text("\n".join(["a,kind,state", *lines]))
    more = {"mean": [0.5, 0, 0], "std": [2.0, 1, 1]}
    file = client_from_files(
        "a", task="classification", train=path, targets="state", classes=3,
        categories={"kind": ["u", "v"]}, standardize=more,
    )  # fmt: skip
    weighted = fgn.classification(3, class_weights=[1.0, 2.0, 1.0])
    for client in (given, file.client, fgn.Client("a", weighted, train=(x, y))):
        width = client.train[0].shape[1]
        dtype = client.train[0].dtype
        run = train([with_terms(client)], lambda w=width, d=dtype: nn.Linear(w, 2).to(d))
        assert run.history["epsilon"].max() <= 3.0
    wrong = {"mean": [0.5], "std": [0.0]}
    with pytest.raises(fgn.ConfigError, match="deviations above 0"):
        client_from_arrays("a", fgn.regression(1), (x, y), standardize=wrong)


class Functional(nn.Module):
    """Dropout that no layer's name gives away."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, self.training)


@pytest.mark.parametrize(
    ("layer", "words"), [(nn.Dropout(0.5), r"Dropout \(network '1'\)"), (Functional(), "network")]
)
def test_dp6_dropout_from_a_public_seed_is_refused(layer: nn.Module, words: str) -> None:
    client = with_terms(fgn.Client("a", fgn.classification(3), train=examples()))
    with pytest.raises(fgn.ConfigError, match=rf"{words}.*draws at random from a public seed"):
        train([client], lambda: nn.Sequential(network(), layer))
    train([client], lambda: nn.Sequential(network(), nn.Dropout(0.0)))


class Seldom(nn.Module):
    """Doubles everything in one batch of a thousand: all examples' gradients depend on the draw."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x if torch.rand(()) < 1e-3 else x


class Centered(nn.Module):
    """Subtracts the batch's mean; with ``training`` given, in that mode alone."""

    def __init__(self, training: bool | None = None) -> None:
        super().__init__()
        self.only = training

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0) if self.only in (None, self.training) else x


def test_dp6_a_layer_that_seldom_draws_is_refused() -> None:
    client = with_terms(fgn.Client("a", fgn.classification(3), train=examples()))
    with pytest.raises(fgn.ConfigError, match="network draws at random from a public seed"):
        train([client], lambda: nn.Sequential(network(), Seldom()))


@pytest.mark.parametrize("only", [None, True, False])
@pytest.mark.parametrize("part", ["network", "head"])
def test_a_layer_that_mixes_examples_is_refused(only: bool | None, part: str) -> None:
    """One example would change all others' features and losses, which no clipping bounds."""
    head = nn.Sequential(Centered(only), nn.Linear(4, 3)) if part == "head" else None
    client = fgn.Client("a", fgn.classification(3), train=examples(), head=head)
    layers = [network(), *([Centered(only)] if part == "network" else [])]
    with pytest.raises(fgn.ConfigError, match=f"the {part} mixes the rows of a batch"):
        train([with_terms(client)], lambda: nn.Sequential(*layers))


@pytest.mark.parametrize("level", ["example", "client"])
def test_dp7_the_seed_does_not_decide_the_noise(level: str) -> None:
    """Nor batches, nor who is drawn: repeating the run does not repeat any of them."""
    client, privacy = fgn.Client("a", fgn.classification(3), train=examples()), None
    if level == "example":
        client = with_terms(client)
    else:
        privacy = fgn.ClientPrivacy(8.0, DELTA)
    options = {"server": fgn.Server(privacy=privacy, server_optimizer={"name": "sgd", "lr": 1.0})}
    ends = [toys.parameters(train([client], network, seed=5, **options).network) for _ in range(2)]
    assert not torch.isclose(*ends).any()


@pytest.mark.parametrize("scale", [1.0, 1e60, 1e150, 1e307])
@pytest.mark.parametrize("sends", ["gradient", "delta"])
def test_dp8_a_client_whose_numbers_overflow_answers_like_any_other(
    sends: str, scale: float, tmp_path: Path
) -> None:
    """Else the server would find the client's largest input by bisection, past the noise."""
    options = {"shared_steps": 2, "sends": "delta"} if sends == "delta" else {}
    client = Hostile(tmp_path, noise_multiplier=8.0, options=options)
    ordinary, vector = noise_of(client.ask()), client.together.server.server.shared.data
    vector.mul_(scale)
    answer = client.ask(number=1, state=1)
    assert answer.update is not None
    assert torch.isfinite(answer.update).all()
    assert all(np.isfinite(value) for value in answer.scalars.values())
    ratio = noise_of(answer).std() / ordinary.std()
    if sends == "delta" and scale > 1.0:  # beside such a network any step rounds to 0
        assert ratio == 0
    else:  # four numbers each: a ratio beyond 50 has a chance of about 3e-5
        assert 0.02 < ratio < 50
    assert len(client.charges) == 2


@pytest.mark.parametrize("scale", [float("inf"), float("nan")])
def test_dp8_a_network_that_is_not_finite_is_refused_whatever_the_data(
    scale: float, tmp_path: Path
) -> None:
    client = Hostile(tmp_path)
    with pytest.raises(Refused, match="not finite"):
        client.ask(moved=scale)
    assert not client.charges


class Strict(nn.Module):
    """Fails, as many a decomposition does, where the examples are beyond a bound."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x.detach().abs() > 1e6).any()):
            raise ValueError("a secret of an example")
        return x


@pytest.mark.parametrize("kind", ["train", "finish"])
@pytest.mark.parametrize("head_steps", [0, 1])
def test_dp8_a_failure_of_the_network_is_seen_by_nobody(
    kind: str, head_steps: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it would say by name whether an example is beyond the bound, at no cost."""
    client = Hostile(
        tmp_path, noise_multiplier=8.0, options={"head_steps": head_steps},
        make=lambda: nn.Sequential(nn.Linear(toys.FEATURES, 4), Strict()),
    )  # fmt: skip
    shared = client.together.server.server.shared.data * 1e9
    client.give(Order(kind, "run", "agreed", 0, 0, shared))
    assert "a secret of an example" in caplog.text
    if kind == "train":
        assert len(client.charges) == 1


def test_dp8_an_example_that_raises_counts_as_zero() -> None:
    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> Any:
        if float(y.detach()) > 0:
            raise ValueError("a secret of this example")
        return (x @ parameters["w"] - 1.0).square().sum()

    x, y = torch.ones(6, 3), torch.tensor([0.0, 1, 0, 0, 1, 0])
    parameters = {"w": torch.zeros(3)}
    for mapped in (True, False):
        found = RowGradients(loss, mapped).clipped(parameters, x, y, 1.0, 7.0)
        torch.testing.assert_close(float(found.gradient.norm()), 4.0)
        assert found.loss == pytest.approx(4 * 1.0 + 2 * 7.0)


@pytest.mark.parametrize("what", [fgn.KeepBest(), fgn.EarlyStopping(patience=2)])
@pytest.mark.parametrize("level", ["example", "client"])
def test_dp9_no_round_is_chosen_on_data_without_noise(what: Any, level: str) -> None:
    pair = examples()
    client, options = fgn.Client("a", fgn.classification(3), train=pair, validation=pair), {}
    if level == "example":
        client = with_terms(client)
    else:
        options["server"] = fgn.Server(privacy=fgn.ClientPrivacy(8.0, DELTA))
    with pytest.raises(fgn.ConfigError, match="without noise; leave it"):
        train([client], network, callbacks=[what], **options)


def deleted(state: Path) -> None:
    (state / LEDGER).unlink()


def deleted_with_witness(state: Path) -> None:
    for path in state.glob("privacy*"):
        path.unlink()


def restored(state: Path) -> None:
    lines = (state / LEDGER).read_text().splitlines(keepends=True)
    (state / LEDGER).write_text("".join(lines[:2]))


def restored_with_witness(state: Path) -> None:
    for path in state.glob("privacy*"):
        shutil.copy(state.parent / "copy" / path.name, path)


def edited(state: Path) -> None:
    text = (state / LEDGER).read_text()
    (state / LEDGER).write_text(text.replace('"round": 1', '"round": 7'))


def edited_before_the_last_line(state: Path) -> None:
    """The witness of the last line does not notice; the chain does."""
    text = (state / LEDGER).read_text()
    assert text.count('"round": 0') == 1
    (state / LEDGER).write_text(text.replace('"round": 0', '"round": 7'))


def foreign(state: Path) -> None:
    other = Hostile(state.parent / "other", noise_multiplier=8.0)
    other.ask()
    shutil.copy(state.parent / "other" / "corner" / LEDGER, state / LEDGER)


def emptied(state: Path) -> None:
    (state / LEDGER).write_bytes(b"")


def used_without_one(state: Path) -> None:
    deleted_with_witness(state)
    for path in state.glob(f"*/{LEDGER_SEEN}"):
        path.unlink()


def only_its_history(state: Path) -> None:
    used_without_one(state)
    for path in state.glob("*/state-*"):
        path.unlink()


def only_the_audit_log(state: Path) -> None:
    deleted_with_witness(state)
    shutil.rmtree(state / "run")
    Audit(state).add("answered", run="run")


@pytest.mark.parametrize(
    "change",
    [
        deleted, deleted_with_witness, only_its_history, only_the_audit_log, restored,
        restored_with_witness, edited, edited_before_the_last_line, foreign, emptied,
        used_without_one,
    ],
)  # fmt: skip
def test_dp10_a_ledger_that_is_not_the_last_one_counts_as_spent(
    change: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client, state = Hostile(tmp_path, noise_multiplier=8.0), tmp_path / "corner"
    client.ask()
    (tmp_path / "copy").mkdir()
    for path in state.glob("privacy*"):
        shutil.copy(path, tmp_path / "copy" / path.name)
    client.ask(number=1, state=1)
    change(state)
    client.start()
    with pytest.raises(Refused, match=r"budget is spent|here is that after none"):
        client.ask("run", 2, 2)
    with pytest.raises(Refused, match="budget is spent"):
        client.ask("another")
    assert "counts as spent" in caplog.text
    assert "copy" not in caplog.text  # nobody is told to put one back


def test_a_kill_in_the_middle_of_a_charge_does_no_harm(tmp_path: Path) -> None:
    """An unfinished line charges something that was never released."""
    client, state = Hostile(tmp_path, noise_multiplier=8.0), tmp_path / "corner"
    client.ask()
    with (state / LEDGER).open("ab") as file:
        file.write(b'{"run": "run", "rou')
    client.start()
    client.ask(moved=1e-6)
    assert len(client.charges) == 2


def test_a_run_on_the_same_data_is_no_start() -> None:
    """Its network and head were trained without noise."""
    plain = fgn.Client("a", fgn.classification(3), train=examples())
    before = train([plain], network)
    with pytest.raises(fgn.ConfigError, match="trained on the same data"):
        train([with_terms(plain)], lambda: before)
    with pytest.raises(fgn.ConfigError, match="trained on the same data"):
        train([plain], lambda: before, server=fgn.Server(privacy=fgn.ClientPrivacy(8.0, DELTA)))
    elsewhere = replace(with_terms(plain), name="b")
    assert train([elsewhere], lambda: before).history["epsilon"].max() <= 3.0


def test_an_answer_that_was_charged_but_never_stored_is_charged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The charge is on disk before the answer is computed."""
    client = Hostile(tmp_path, noise_multiplier=8.0)

    def killed(*_: Any) -> None:
        assert len(client.charges) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(client.client.engine, "run_clients", killed)
    with pytest.raises(KeyboardInterrupt):
        client.ask()
    client.start()
    client.ask()
    client.ask()
    assert len(client.charges) == 2


def test_seeded_noise_is_charged_to_no_ledger(tmp_path: Path) -> None:
    """A later run with fresh noise would show its cost as a part of a promise."""
    client = fgn.Client("a", fgn.classification(3), train=examples())
    with pytest.raises(fgn.ConfigError, match=r"'seeded' is not private, so .* privacy\.ledger"):
        with_terms(client, noise="seeded", ledger=str(tmp_path))


def test_delta_and_epsilon_have_limits() -> None:
    client = fgn.Client("a", fgn.classification(3), train=examples())
    with pytest.raises(fgn.ConfigError, match="above 1 / 48"):
        train([with_terms(client, delta=0.03)], network)
    with pytest.raises(fgn.ConfigError, match="large_epsilon"):
        with_terms(client, epsilon=30.0)
    assert with_terms(client, epsilon=30.0, large_epsilon=True).privacy is not None
    both = replace(with_terms(client), name="b")
    with pytest.raises(fgn.ConfigError, match="choose one"):
        train([both], network, server=fgn.Server(privacy=fgn.ClientPrivacy(8.0, DELTA)))
