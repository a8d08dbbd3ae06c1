"""Client-level privacy under secure aggregation: the server sees no sum without enough noise."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")
pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

import fedgradnorm as fgn
from engines.flower.secret import Secret, five
from fedgradnorm._flower.agreement import agree
from fedgradnorm._flower.attendance import Patience
from fedgradnorm._flower.private.noise_shares import NoiseShares
from fedgradnorm._flower.private.noisy_rounds import NoisyCoordinator
from fedgradnorm._flower.private.noisy_sum_client import NoisySumClient
from fedgradnorm._flower.private.private_rounds import PrivateCoordinator
from fedgradnorm._flower.private.private_terms import PrivateTerms
from fedgradnorm._masking.ring import unpack_vector
from fedgradnorm._masking.roster import threshold
from fedgradnorm._privacy.accountant import epsilon_of
from fedgradnorm._privacy.noise import Noise
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.layout import OWN_HISTORY
from fedgradnorm.experiments._config.config_file import make_config
from masking.crowd import Crowd, public_keys

TERMS = {"epsilon": 8.0, "delta": 1e-3, "clip": 0.5}
WIDE = 20_000


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Noisy(Secret):
    """A private federation whose clients add noise; it remembers every sum that was unmasked."""

    def __init__(self, *given: Any, terms: dict[str, Any] | None = None, **named: Any) -> None:
        options = {"rounds": 3, "privacy": {**TERMS, **(terms or {})}, **named}
        weighting = options.pop("weighting", fgn.GradNorm(rule="direct"))
        super().__init__(*given, weighting, **options)
        self.seen: list[tuple[list[str], np.ndarray]] = []
        plain = self.server.summing.sum

        def summed(wanted: Any) -> Any:
            at, words = plain(wanted)
            self.seen.append((list(at.inputs), words))
            return at, words

        self.server.summing.sum = summed

    def coordinator(self, given: tuple[Any, ...], *_: Any) -> NoisyCoordinator:
        return NoisyCoordinator(*given)

    def participant(self, name: str) -> NoisySumClient:
        plain = super().participant(name)
        about = (self.make(), self.clients[name], self.agreement, self.folder / name)
        return NoisySumClient(*about, self.signers[name], plain.level.weighting)


def shares(clients: int, **terms: Any) -> NoiseShares:
    settings = Settings(
        rounds=10, privacy={**TERMS, "noise_multiplier": 2.0, "delta": 1e-8, **terms}
    )
    return NoiseShares(settings, 10, clients)


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_the_noise_of_the_sum_is_as_promised_whoever_is_lost(lost: int) -> None:
    """Through real masks: 10 clients, of whom 7 must be left; with all of them it is 10 / 7."""
    count, least = 10, threshold(10, 3)
    made, crowd = shares(count), Crowd(count)
    zeros = torch.zeros(WIDE)
    for name in crowd.names:
        part = made.part(zeros, 1.0, least, Noise())
        crowd.values[name] = np.concatenate([np.zeros(2, dtype=np.uint64), part])
    words = crowd.summed(lost={"input": crowd.names[:lost]})[2:]
    found = unpack_vector(words, made.bits)
    promised = 2.0 * TERMS["clip"]
    expected = promised * math.sqrt((count - lost) / least)
    assert found.std() == pytest.approx(expected, rel=0.02)  # its own error is 0.5%
    assert found.std() > 0.98 * promised
    assert abs(found.mean()) < 5 * expected / math.sqrt(WIDE)


def test_one_client_moves_the_sum_by_no_more_than_the_clip_also_after_rounding(monkeypatch) -> None:
    monkeypatch.setattr(Noise, "normal", lambda _, count, *__: np.zeros(count))
    made, generator = shares(10), torch.Generator().manual_seed(0)
    for length in (1e-3, 0.5, 1e6):
        update = torch.randn(WIDE, generator=generator, dtype=torch.float64)
        update *= length / update.norm()
        part = made.part(update, 1.0, 7, Noise()).view(np.int64).tolist()
        assert sum(number**2 for number in part) <= (TERMS["clip"] * 2**made.bits) ** 2
        found = np.array(part) / 2.0**made.bits
        kept = update.numpy() * min(1.0, TERMS["clip"] / length)
        assert np.abs(found - kept).max() < 1e-6


@pytest.mark.parametrize(
    ("size", "multiplier"), [(1e4, 1e306), (1e200, 1.0), (math.inf, 1.0), (1.0, math.inf)]
)
def test_a_part_that_overflows_is_noise_alone(size, multiplier) -> None:
    """No exception, which the server would see: it may send any network, so it could bisect."""
    update = torch.tensor([size, *[0.0] * 999], dtype=torch.float64)
    made = shares(10)
    part = unpack_vector(made.part(update, multiplier, 7, Noise()), made.bits)
    assert part.std() == pytest.approx(made.deviation / math.sqrt(7), rel=0.2)


def test_each_client_is_in_a_sum_by_a_coin_of_its_own(monkeypatch) -> None:
    monkeypatch.setattr(Noise, "normal", lambda _, count, *__: np.zeros(count))
    settings = Settings(rounds=10, participation=0.25, privacy={**TERMS, "noise_multiplier": 2.0})
    made, update = NoiseShares(settings, 10, 10), torch.ones(4)
    coins = [bool(made.part(update, 1.0, 7, Noise()).any()) for _ in range(4000)]
    assert np.mean(coins) == pytest.approx(0.25, abs=0.03)


def noiseless(secret: Noisy, names: Sequence[str]) -> np.ndarray:
    """The sum as it would be without noise, from the clients' own files."""
    total = 0.0
    for name in names:
        client = secret.exchange.participants[name]
        kept = client._kept(next((secret.folder / name).glob("*/trained.safetensors")))
        lines = (secret.folder / name / secret.server.run / OWN_HISTORY).read_text().splitlines()
        noted = [row for line in lines for row in json.loads(line).get("rows", ())]
        multiplier = [row["weight"] for row in noted if row["split"] == "batch"][-1]
        part = multiplier * kept["update"].double().numpy()
        total = total + part * min(1.0, TERMS["clip"] / np.linalg.norm(part))
    return total


@pytest.mark.parametrize("lost", [(), ("side2",)])
def test_the_server_never_unmasks_a_sum_without_noise(lost, tmp_path) -> None:
    """All that it unmasks, over all rounds, besides what the clients know."""
    patience = Patience(minimum=4, attempts=1)
    secret = Noisy(
        tmp_path, patience=patience, rounds=4, terms={"epsilon": 50.0, "large_epsilon": True}
    )
    secret.before = lambda name, order: "gone" if name in lost and "input" in order.asks else None
    noises: list[np.ndarray] = []
    for _ in range(4):
        secret.run(1)
        names, words = secret.seen[-1]
        assert set(names) == set(secret.names) - set(lost)
        noises.append(unpack_vector(words, secret.server.shares.bits) - noiseless(secret, names))
    assert len(secret.seen) == 4
    noise = np.concatenate(noises)
    least = threshold(5, 1) - 1  # 4 of 5, one of which may tell the server its share
    expected = secret.server.shares.deviation * math.sqrt((5 - len(lost)) / least)
    assert noise.std() == pytest.approx(expected, rel=5 / math.sqrt(2 * len(noise)))
    assert np.abs(noise).min() > 0
    assert all(len(message["body"]["numbers"]) == 0 for message in inputs(secret))


def test_the_noise_of_a_sum_counts_on_no_colluder(tmp_path, monkeypatch) -> None:
    """c of the t clients in a sum may tell the server their shares of its noise."""
    plain, counted = NoiseShares.part, set()

    def part(self: NoiseShares, update: Any, multiplier: float, least: int, noise: Noise) -> Any:
        counted.add(least)
        return plain(self, update, multiplier, least, noise)

    monkeypatch.setattr(NoiseShares, "part", part)
    Noisy(tmp_path, rounds=1).run()
    assert counted == {threshold(5, 1) - 1}


def inputs(secret: Noisy) -> list[Any]:
    """The signed messages with which masked vectors came."""
    tables = [r["gives"] for _, r in secret.exchange.sent]
    return [table["input"] for table in tables if "input" in table]


def test_both_sides_account_for_every_sum_as_in_one_process(tmp_path) -> None:
    secret = Noisy(tmp_path, participation=0.5)
    secret.run()
    plan, noise = secret.server.shares.plan, secret.server.shares.noise
    spent = [epsilon_of(plan.round(noise, rounds=k), TERMS["delta"]) for k in (1, 2, 3)]
    assert [row["epsilon"] for row in secret.server.history.rows] == spent
    assert spent[-1] <= TERMS["epsilon"]
    for run in secret.results().values():
        rows = [row for row in run.table.rows if row["split"] == "batch"]
        assert [row["epsilon"] for row in rows] == spent
        assert all(row["loss"] > 0 and row["weight"] > 0 for row in rows)


def test_a_round_that_a_client_could_not_train_has_a_price_and_no_loss(tmp_path) -> None:
    secret = Noisy(tmp_path)
    session = secret.exchange.participants["side"].client
    plain = session.answer

    def answer(order):
        if order.kind == "train" and order.round == 1:
            raise RuntimeError("its loss is not finite")
        return plain(order)

    session.answer = answer
    secret.run()
    rows = [row for row in secret.results()["side"].table.rows if row["split"] == "batch"]
    assert [math.isnan(row["loss"]) for row in rows] == [False, True, False]
    assert rows[0]["epsilon"] < rows[1]["epsilon"] < rows[2]["epsilon"]
    assert rows[1]["weight"] == 0


def test_with_little_noise_it_is_the_sum_of_clipped_updates_that_is_stepped_along(tmp_path) -> None:
    """The same as in one process, where every client participates."""
    terms = {"epsilon": 1000.0, "large_epsilon": True, "noise_multiplier": 0.2, "clip": 1e-4}
    secret = Noisy(tmp_path, terms=terms, rounds=1, server_optimizer="sgd", lr=0.1)
    before = secret.server.server.shared.data.clone()
    step = (before - secret.run(1)) / 0.1
    names, words = secret.seen[0]
    found = torch.from_numpy(unpack_vector(words, secret.server.shares.bits)) / len(names)
    torch.testing.assert_close(step, found.to(step), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("number", [1, 2])
def test_a_sum_that_failed_is_paid_for_and_the_run_ends_when_nothing_is_left(number, tmp_path):
    secret = Noisy(tmp_path, patience=Patience(minimum=5, attempts=2))
    lost = {"side", "side2"}  # with three of five shares nothing can be unmasked

    def before(name, order):
        if order.round == number and "reveal" in order.asks and name in lost:
            lost.remove(name)
            return "gone"
        return None

    secret.before = before
    secret.run()
    assert (secret.server.taken, secret.server.round) == (3, 2)
    assert len(secret.seen) == 2
    assert [row["epsilon"] for row in secret.server.history.rows][-1] <= TERMS["epsilon"]
    assert len(secret.server.finish()) == 5


def test_a_new_run_begins_no_new_budget(tmp_path) -> None:
    secret = Noisy(tmp_path)
    secret.run()
    releases = secret.participant("side").releases
    with pytest.raises(fgn.FedGradNormError, match="budget is spent"):
        releases.charge("another", 0)
    assert releases.epsilon <= TERMS["epsilon"]


def test_a_client_does_not_mix_the_two_promises(tmp_path) -> None:
    def private() -> Sequence[fgn.Client]:
        first, *others = five()
        return [replace(first, privacy=fgn.Privacy(3.0, 1e-3)), *others]

    with pytest.raises(fgn.ConfigError, match="accounted in different units"):
        Noisy(tmp_path, clients=private)


def test_a_client_answers_no_server_that_asks_for_sums_without_noise(tmp_path, caplog) -> None:
    secret = Noisy(tmp_path, patience=Patience(minimum=5, attempts=1))
    given = (secret.server.server, secret.names, secret.agreement, secret.exchange)
    server = PrivateCoordinator(*given, secret.server.patience)
    with pytest.raises(fgn.TrainingError):
        server.advance()
    assert "asks for a sum without noise, and the run promises noise" in caplog.text


def test_killed_clients_and_servers_go_on_with_new_noise(tmp_path) -> None:
    secret = Noisy(tmp_path)
    secret.before = lambda name, _: secret.restart(name)
    secret.run(1)
    state = secret.server.state_dict()
    secret.server.load_state_dict(state)
    secret.server.summing._next = None
    secret.run()
    assert secret.server.round == 3
    assert len({words.tobytes() for _, words in secret.seen}) == 3


def test_what_the_federation_must_be() -> None:
    table = {
        "name": "terms",
        "method": "fedgradnorm-direct",
        "data": {"source": "files"},
        "network": {"name": "mlp", "inputs": 3},
        "rounds": 3,
        "server": {"privacy": dict(TERMS)},
    }
    terms = PrivateTerms(public_keys("abc"))
    agreed = agree(make_config(table), terms)
    assert agreed.sent == ("masked update with noise",)
    with pytest.raises(fgn.ConfigError, match=r"federation init --private"):
        agree(make_config(table))
    with pytest.raises(fgn.ConfigError, match="weights that a client knows by itself"):
        agree(make_config({**table, "method": "fedgradnorm"}), terms)
    for more in ({"noise": "seeded"}, {"ledger": "spent"}):
        with pytest.raises(fgn.ConfigError, match="every client draws fresh noise"):
            agree(make_config({**table, "server": {"privacy": {**TERMS, **more}}}), terms)
    other = {"privacy": {**TERMS, "epsilon": 9.0}}
    assert agree(make_config({**table, "server": other}), terms).digest != agreed.digest


def test_as_many_clients_as_the_words_can_hold() -> None:
    made = shares(10_000_000, noise_multiplier=0.9)
    largest = TERMS["clip"] + 8.58 * made.deviation / math.sqrt(3)
    assert 10_000_000 * largest * 2.0**made.bits < 2**62
    with pytest.raises(fgn.ConfigError, match="too many for sums of 64 bits"):
        shares(2**31, delta=1e-10)
