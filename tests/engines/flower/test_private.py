"""A private federation over the real messages: the plain one, with a server that sees sums."""

from __future__ import annotations

import copy
import json
import logging
import os

import numpy as np
import pytest
import torch

import fedgradnorm as fgn
from engines.flower.direct import Together
from engines.flower.secret import Secret, five
from fedgradnorm._flower.agreement import agree
from fedgradnorm._flower.attendance import Patience
from fedgradnorm._flower.private.private_terms import PrivateTerms
from fedgradnorm._flower.wire.messages import Refused
from fedgradnorm._flower.wire.sum_messages import SumOrder
from fedgradnorm._masking.ring import LIMBS, unpack_numbers
from fedgradnorm._masking.roster import Phase
from fedgradnorm._runs.layout import OWN_HISTORY
from fedgradnorm.experiments._config.config_file import make_config
from fedgradnorm.weighting._steady import Steady
from masking.crowd import public_keys

NAMES = [client.name for client in five()]
ABSENT = [NAMES[:4], NAMES[1:], NAMES]
CASES = {
    "absolute": fgn.GradNorm,
    "squared": lambda: fgn.GradNorm(rule="squared", lr=0.02),
    "relative": lambda: fgn.GradNorm(rule="relative"),
    "direct": lambda: fgn.GradNorm(rule="direct"),
    "steady": Steady,
    "static": lambda: fgn.weighting.Static(dict(zip(NAMES, (0.5, 2, 0.1, 1, 1), strict=True))),
}
ALL_FIVE = Patience(minimum=5, attempts=3)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """A process that is killed loses nothing that it wrote; only a power cut asks for more."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> torch.Tensor:
    return Secret(tmp_path_factory.mktemp("undisturbed"), rounds=2).run().clone()


@pytest.mark.parametrize("name", CASES)
def test_it_differs_from_the_plain_federation_by_rounding_alone(
    name, tmp_path, record_testsuite_property
):
    """With part of the clients missing in rounds; each client's weights are those of the plain."""
    given = {"rounds": 3, "clients": five}
    plain = Together(tmp_path / "plain", CASES[name](), participation=ABSENT, **given)
    secret = Secret(tmp_path / "secret", CASES[name](), **given)
    secret.before = lambda name, order: None if name in [*ABSENT, NAMES][order.round] else "gone"
    apart = float((plain.run() - secret.run()).abs().max())
    record_testsuite_property(f"a private federation, {name}: apart by", f"{apart:.1e}")
    assert apart < 1e-10
    expected = {(r["round"], r["client"]): r for r in plain.server.history.rows}
    for client, run in secret.results().items():
        rows = [row for row in run.table.rows if row["split"] == "batch"]
        assert [row["round"] for row in rows] == [
            k for k, names in enumerate(ABSENT, 1) if client in names
        ]
        for row in rows:
            wanted = expected[row["round"], client]
            assert row["weight"] == pytest.approx(wanted["weight"], rel=1e-8)
            assert row["weight_frozen"] == wanted["weight_frozen"]
            assert row["loss"] > 0


@pytest.mark.parametrize(
    ("make", "exchanges"), [(CASES["direct"], 2), (CASES["static"], 2), (CASES["absolute"], 4)]
)
def test_exchanges_of_a_round(make, exchanges, tmp_path):
    """After the first round: keys and letters of the next sum travel with this one's messages."""
    secret = Secret(tmp_path, make(), rounds=3)
    secret.run(1)  # whose own exchanges are two more, or four
    before = secret.server.summing.exchanges
    secret.run(1)
    assert secret.server.summing.exchanges - before == exchanges


def step_of(order) -> str:
    """What an order is about: the step that its client would be lost in."""
    asks = order.asks
    if "input" in asks:
        return asks["input"]["part"]
    return next((step for step in ("agree", "reveal", "letters", "keys") if step in asks), "end")


@pytest.mark.parametrize("step", ["keys", "letters", "signals", "update", "reveal"])
def test_a_client_lost_at_any_step_is_left_out_and_the_run_goes_on(step, tmp_path):
    secret = Secret(tmp_path, rounds=2, patience=Patience(minimum=4, attempts=2))
    secret.before = lambda name, order: (
        "gone" if name == "side2" and order.round == 0 and step_of(order) == step else None
    )
    secret.run()
    assert secret.server.round == 2
    assert secret.server.states["corner"] == 2
    assert (secret.server.states["side2"] == 2) == (step == "reveal")  # it was in the sum by then


@pytest.mark.parametrize("step", ["keys", "letters", "signals", "update", "reveal"])
def test_lost_once_at_any_step_where_all_are_needed_the_network_is_the_same(
    step, tmp_path, undisturbed
):
    secret = Secret(tmp_path, rounds=2, patience=ALL_FIVE)
    lost = iter(["gone"])
    secret.before = lambda name, order: (
        next(lost, None)
        if name == "side2" and order.round == (0 if step in ("keys", "letters") else 1)
        and step_of(order) == step
        else None
    )  # fmt: skip
    assert torch.equal(secret.run(), undisturbed)


@pytest.mark.parametrize("step", ["signals", "update"])
def test_a_sum_that_lacks_shares_is_repeated_over_the_same_clients(step, tmp_path):
    """One is lost before its input and comes back, another before its shares: no list but the
    first one has shares of those who showed some.
    """
    secret = Secret(tmp_path, rounds=2, patience=Patience(minimum=4, attempts=2))
    lost = iter([("side2", step), ("side", "reveal")])
    waiting = [next(lost)]

    def before(name, order):
        if (name, step_of(order)) != waiting[0]:
            return None
        waiting[0] = next(lost, None)
        return "gone"

    secret.before = before
    secret.run()
    assert secret.server.round == 2
    assert {name: secret.server.states[name] for name in NAMES} == {
        **dict.fromkeys(NAMES, 2), "side2": 1,
    }  # fmt: skip


def test_clients_that_start_anew_before_every_message_go_on_from_their_files(tmp_path, undisturbed):
    secret = Secret(tmp_path, rounds=2, patience=ALL_FIVE)
    secret.before = lambda name, _: secret.restart(name)
    assert torch.equal(secret.run(), undisturbed)


def test_a_server_put_back_by_a_round_repeats_it_with_new_masks(tmp_path, undisturbed):
    secret = Secret(tmp_path, rounds=2, patience=ALL_FIVE)
    secret.run(1)
    before = copy.deepcopy(secret.server.state_dict())
    secret.run(1)
    secret.server.load_state_dict(before)
    secret.server.summing._next = None  # another process: what was prepared is gone
    assert torch.equal(secret.run(), undisturbed)


def test_below_the_threshold_the_run_ends_and_says_so(tmp_path):
    secret = Secret(tmp_path, rounds=2, patience=Patience(minimum=3, attempts=2))
    secret.before = lambda name, _: "gone" if name in NAMES[:2] else None
    with pytest.raises(fgn.TrainingError, match=r"are needed"):
        secret.run()


def test_suspended_clients_are_asked_where_a_sum_needs_them(tmp_path):
    secret = Secret(tmp_path, rounds=2, patience=Patience(attempts=3))
    secret.before = lambda name, _: "gone" if name in NAMES[:2] else None
    with pytest.raises(fgn.TrainingError, match=r"are needed"):
        secret.run()
    assert not secret.server.attendance.takes_part(NAMES[0], 0)
    secret.before = lambda *_: None  # they are back, and the server goes on with --resume
    secret.run()
    assert secret.server.round == 2


def test_the_server_holds_sums_only(tmp_path):
    secret = Secret(tmp_path, rounds=2)
    secret.run()
    rows = secret.server.history.rows
    assert {row["client"] for row in rows} == {"all"}
    assert secret.server.weights() == {}
    told = {key for _, answer in secret.exchange.sent for key in answer}
    assert told == {"run", "round", "state_round", "gives", "masked"}
    masked = [r["masked"] for _, r in secret.exchange.sent if "masked" in r]
    assert len(masked) == 2 * 5
    assert np.abs(np.concatenate(masked).view(np.int64) / 2.0**63).mean() == pytest.approx(
        0.5, abs=0.05
    )
    state = json.dumps(secret.server.state_dict(), default=lambda _: None)
    for name in NAMES:
        (mine,) = (secret.folder / name).glob(f"*/{OWN_HISTORY}")
        rows = [
            row
            for line in mine.read_text().splitlines()
            for row in json.loads(line).get("rows", ())
        ]
        measured = [str(value) for row in rows for value in row.values()]
        assert len(measured) > 20
        assert not [text for text in measured if len(text) >= 8 and text in state]


def asked(secret: Secret, **changes) -> SumOrder:
    """An order of the present round to its first client, changed; the client answers itself."""
    found: list[SumOrder] = []

    def stopped(_: str, order: SumOrder) -> str:
        found.append(order)
        return "stopped"

    secret.before = stopped
    with pytest.raises(fgn.TrainingError):
        secret.server.advance()
    secret.before = lambda *_: None
    order = next(one for one in found if "keys" in one.asks)
    return SumOrder(**{**vars(order), **changes})


def test_a_private_client_answers_no_server_that_is_not(tmp_path):
    secret, plain = Secret(tmp_path / "secret"), Together(tmp_path / "plain", clients=five)
    with pytest.raises(Refused, match="it would see this client's own update"):
        secret.exchange.participants["side"].respond(plain.server._order("train", "side").encoded())
    with pytest.raises(Refused, match="missing or not agreed on"):
        plain.exchange.participants["side"].respond(asked(secret).encoded())


def test_other_terms_are_another_agreement():
    table = {
        "name": "terms",
        "method": "fedgradnorm",
        "data": {"source": "files"},
        "network": {"name": "mlp", "inputs": 3},
        "rounds": 3,
    }
    keys = public_keys("abc")
    one, other = (PrivateTerms(keys, longest=x) for x in (1.0, 2.0))
    config = make_config(table)
    assert len({agree(config, terms).digest for terms in (None, one, other)}) == 3
    for method in ("mgda", "graddrop", "afl", "famo"):
        with pytest.raises(fgn.ConfigError, match="cannot be run in a private federation: its ser"):
            agree(make_config({**table, "method": method}), one)
    shared = {"heads": "all"}
    with pytest.raises(fgn.ConfigError, match="heads = 'all' cannot be run in a private"):
        agree(make_config({**table, "sharing": shared}), one)
    with pytest.raises(fgn.ConfigError, match="needs at least 3 clients"):
        PrivateTerms(public_keys("ab"))
    for longest in (1e12, float("inf")):
        with pytest.raises(fgn.ConfigError, match="fewer than 24 bits behind the point"):
            PrivateTerms(public_keys("abc"), longest=longest)


def test_a_client_with_several_tasks_is_refused(tmp_path):
    x = torch.randn(20, 6, dtype=torch.float64)
    tasks = {"one": fgn.regression(1), "two": fgn.regression(1)}
    several = fgn.Client("several", tasks=tasks, train=(x, {"one": x[:, :1], "two": x[:, 1:2]}))
    with pytest.raises(fgn.ConfigError, match="'several' has 2 tasks; a client of a federation"):
        Secret(tmp_path, clients=lambda: [*five()[:3], several])


def lying(secret: Secret, change) -> None:
    """A server that changes what it asks its first client for."""
    plain = secret.server._sum_order

    def changed(name, asks):
        asks = copy.deepcopy(dict(asks))
        if name == NAMES[0] and "input" in asks:
            change(asks["input"])
        return plain(name, asks)

    secret.server._sum_order = changed


@pytest.mark.parametrize("make", [CASES["absolute"], CASES["direct"]])
def test_a_client_lost_between_the_sums_of_a_round_shows_none_of_its_signals(make, tmp_path):
    """The first sums are over five, the second over four: nothing may be in both."""
    secret = Secret(tmp_path, make(), rounds=2, patience=Patience(minimum=4, attempts=2))
    found, plain = [], secret.server.summing.sum

    def summed(wanted):
        at, words = plain(wanted)
        found.append((wanted.key, len(at.inputs), words))
        return at, words

    secret.server.summing.sum = summed
    secret.before = lambda name, order: (
        "gone" if name == "side2" and order.round == 0 and step_of(order) == "update" else None
    )
    secret.run()
    (first, count, _), (second, fewer, words) = found[:2]
    assert (first, count, second, fewer) == ((0, Phase.SIGNALS), 5, (0, Phase.UPDATE), 4)
    kinds = secret.server.kinds[Phase.UPDATE]
    numbers = unpack_numbers(words[: LIMBS * sum(kinds.values())])
    assert numbers[-kinds["first"] :] == [4.0, *[0.0] * (kinds["first"] - 1)]
    assert secret.server.round == 2


@pytest.mark.parametrize("where", ["told", "signals"])
def test_sums_that_a_server_made_up_are_not_believed(where, tmp_path, caplog):
    secret = Secret(tmp_path, rounds=2, patience=Patience(minimum=5, attempts=1))
    secret.run(1)

    def lie(ask):
        found = ask.get(where) or {}
        for one in found.values() if where == "told" else [found] if found else []:
            one["inputs"][0]["body"]["numbers"] = one["inputs"][1]["body"]["numbers"]

    lying(secret, lie)
    with caplog.at_level(logging.WARNING, "fedgradnorm"), pytest.raises(fgn.TrainingError):
        secret.run(1)
    assert "the signature is not that of" in caplog.text


def test_an_update_that_is_not_finite_or_too_long_never_reaches_the_sum(tmp_path, caplog):
    secret = Secret(tmp_path, rounds=1)
    client = secret.exchange.participants["place"]
    with pytest.raises(fgn.FedGradNormError, match="not finite"):
        client._vector(1.0, torch.tensor([1.0, float("nan")]))
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        words = client._vector(1.0, torch.tensor([3e7, 4e7]))
    assert "it is cut to the 1e+06 agreed on" in caplog.text
    assert words.view(np.int64).tolist() == [int(x * 2**client.terms.bits) for x in (6e5, 8e5)]
