"""The attacks that read single clients' updates from version 0, through the real records.

Each worked against that version (but SA-8, which needed no attack) and is refused by this one.
"""

from __future__ import annotations

import logging
import os
import stat
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")

import numpy as np
import torch

import fedgradnorm as fgn
import toys
from engines.flower.direct import closed
from engines.flower.hostile import Hostile, Said
from engines.flower.secret import Secret, five
from fedgradnorm._flower.agreement import agree
from fedgradnorm._flower.attendance import Patience, Rules
from fedgradnorm._flower.private.network_check import NetworkBound
from fedgradnorm._flower.private.private_terms import PrivateTerms
from fedgradnorm._flower.private.summing import Summing
from fedgradnorm._flower.private.verified_sums import chained, sums_of, told, usable, verified
from fedgradnorm._flower.wire.messages import Order
from fedgradnorm._flower.wire.transport import Exchange, InMemory
from fedgradnorm._masking.ring import LIMBS
from fedgradnorm._masking.roster import Phase, Unsafe, make_key
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.layout import RESULT, REVEALED, SIGNING
from fedgradnorm.experiments._config.config_file import make_config
from fedgradnorm.weighting._loss_based import InverseFirstLoss
from masking.crowd import public_keys

NAMES = [client.name for client in five()]
VICTIM, OTHERS = NAMES[0], NAMES[1:]


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def secret(tmp_path) -> Secret:
    return Secret(tmp_path, rounds=4)


@pytest.fixture
def server(secret) -> Hostile:
    return Hostile(secret)


def many(count: int) -> Any:
    return lambda: [toys.client(f"c{k:02d}", 20, "side") for k in range(count)]


def test_sa1_two_lists_of_survivors(tmp_path):
    """Of 24, thirteen showed keys, five of them to help: 2 t = 18 = 13 + 5 was enough."""
    server = Hostile(Secret(tmp_path, rounds=1, clients=many(24)))
    assert server.terms.colluders == 8
    with pytest.raises(Said, match="13 clients of 24 showed keys in round 0: 18 must"):
        server.prepared([f"c{k:02d}" for k in range(13)])
    assert server.prepared([f"c{k:02d}" for k in range(18)]).least == 17


def test_sa2_a_cohort_that_the_server_made_up(tmp_path):
    """Two accomplices and four others: every round is over all clients of the roster."""
    server = Hostile(Secret(tmp_path, rounds=1, clients=many(20), colluders=2))
    with pytest.raises(Said, match="6 clients of 20 showed keys in round 0: 15 must"):
        server.prepared(server.secret.names[:6])
    table = {"name": "a", "method": "fedgradnorm", "rounds": 2, "data": {"source": "files"}}
    table |= {"network": {"name": "mlp", "widths": [4], "inputs": 3}}
    config = make_config({**table, "server": {"participation": 0.4}})
    with pytest.raises(fgn.ConfigError, match=r"participation = 0\.4 cannot be run in a private"):
        agree(config, server.terms)


def test_sa3_two_runs_opened_before_either_is_summed(server):
    first = server.prepared(NAMES)
    second = server.prepared(OTHERS, run="r2")
    give = {"told": {}, "since": [], "ahead": False}
    server.inputs(first, give, server.first)
    with pytest.raises(Said, match="it participated in another run of this agreement"):
        server.inputs(second, give, server.first)
    assert len(server.revealed(first))


def test_sa3_a_process_that_began_before_the_other_one_ended(secret, server):
    """``join`` loads everything before it waits for the process that was there to end."""
    waiting = {name: secret.participant(name) for name in NAMES}
    server.round(NAMES)
    secret.exchange.participants.update(waiting)
    with pytest.raises(Said, match="it participated in another run of this agreement"):
        server.prepared(OTHERS, run="r2")


def test_sa3_another_run_after_the_record_of_sums_was_lost(secret, server):
    """The run before it knows how long the record was."""
    server.round(NAMES)
    for name in NAMES:
        (secret.folder / name / REVEALED).unlink()
    with pytest.raises(Said, match="its record of the sums it has let be seen was lost"):
        server.round(OTHERS, run="r2")


def test_sa3_two_attempts_opened_before_either_is_summed(server):
    give = {"told": {}, "since": [], "ahead": False}
    first = server.prepared(NAMES)
    server.inputs(first, give, server.first)
    second = server.prepared(OTHERS)
    server.inputs(second, give, server.first)
    with pytest.raises(Said, match="is not known here, or was given up"):
        server.revealed(first)


def after_a_round(server: Hostile) -> dict[str, Any]:
    """What clients are told after a first round over all."""
    at, words = server.round(NAMES)
    front = len(words) - len(server.first)
    return {"told": {"0": told(at)}, "sums0": sums_of(at, words[:front])}


def test_sa4_the_same_network_under_the_next_rounds_number(server):
    """Also from the state that clients had before the round: then it gave the update exactly."""
    known = after_a_round(server)
    with pytest.raises(Said, match="the server leaves out sums of earlier rounds"):
        server.round(OTHERS, number=1)
    again = {"told": known["told"], "since": [known["sums0"].digest]}
    for given, state, words in (
        (again, 0, "the last round's sum has this client's part, from the state before it"),
        ({"told": known["told"]}, 1, "round 1 has the network of round 0"),
    ):
        with pytest.raises(Said, match=words):
            server.round(OTHERS, number=1, given=given, state=state)


def test_sa4_a_network_that_hardly_moved_from_the_state_before_it(secret, server):
    """The victim is lost in the second round: the difference was its update to nine digits."""
    known = after_a_round(server)
    give = {"told": known["told"], "since": [known["sums0"].digest]}
    with pytest.raises(Said, match="the last round's sum has this client's part"):
        server.round(OTHERS, number=1, shared=server.first + 1e-7, given=give)
    first = known["sums0"].digest
    give = {"told": known["told"], "chain": chained("", [first])}
    at, words = server.round(OTHERS, number=1, shared=server.first + 1e-7, given=give, state=1)
    assert len(at.inputs) == 4  # from the state after it
    second = sums_of(at, words[: len(words) - len(server.first)]).digest
    give = {"told": {"1": told(at)}, "since": [first, second], "ahead": False}
    later = server.prepared(NAMES, number=2)  # the victim was lost in the round between
    with pytest.raises(Said, match="round 2 begins from the state before round 0, whose sum was"):
        server.inputs(later, give, server.first + 2e-7)


def test_sa4_a_network_that_hardly_moved_after_a_sum_for_which_a_client_showed_no_shares(server):
    """The others' shares were enough for a sum with its part, which it had not let be seen."""
    at, words = server.round(NAMES, silent=[VICTIM])
    sums = sums_of(at, words[: len(words) - len(server.first)])
    give = {"told": {"0": told(at)}, "since": [sums.digest], "ahead": False}
    again = server.prepared(NAMES, number=1)
    with pytest.raises(Said, match="the last round's sum has this client's part"):
        server.inputs(again, give, server.first + 1e-7)


def test_sa4_another_agreement_from_the_same_network(secret, server, tmp_path):
    """Without the victim, and with a first network that differs by what CPUs round: the heads and
    the batches were the same, so the difference of the sums was the victim's update.
    """
    after_a_round(server)
    clients = [client for client in five() if client.name != VICTIM]
    second = Hostile(Secret(tmp_path, rounds=4, clients=lambda: clients, digest="other"))
    with pytest.raises(Said, match="another agreement that began with the same network"):
        second.round(OTHERS, run="r2", shared=second.first + 5e-8)


def test_sa5_an_input_of_another_sum_than_its_attempts(server):
    """Signals summed in an attempt at the update's sum counted as another sum: once with the
    victim and once without, their difference was its loss ratio and gradient norm.
    """
    give = {"told": {}, "since": [], "ahead": False}
    at = server.prepared(NAMES)
    server.inputs(at, give, server.first)
    server.revealed(at)
    other = server.prepared(OTHERS, phase=Phase.UPDATE)
    with pytest.raises(Said, match="is for another sum than this input"):
        server.inputs(other, give, server.first, part=Phase.SIGNALS)
    later = server.prepared(OTHERS, number=1)
    with pytest.raises(Said, match="is for another sum than this input"):
        server.inputs(later, give, server.first, number=0)


def test_sa5_the_same_round_over_other_clients(server):
    after_a_round(server)
    attempt = {"attempt": "a", "round": 0, "phase": "any text"}
    with pytest.raises(Said, match="failed"):
        server.ask(VICTIM, {"keys": attempt})
    at = server.prepared(OTHERS)
    server.inputs(at, {"told": {}, "since": [], "ahead": False}, server.first)
    with pytest.raises(Said, match="the difference of the two would show single clients"):
        server.revealed(at)


def test_a_run_with_the_name_of_a_file_in_the_state_folder(secret, server):
    """The server names runs, and each is a folder: "revealed" ended the client for good."""
    for run in ("revealed", "node", "privacy", "audit", "lock"):
        server.prepared(NAMES, run=run)
        secret.restart(VICTIM)
    server.round(NAMES)
    secret.restart(VICTIM)


def test_sa6_sums_that_are_told_with_one_key_more(secret, server):
    """The masks are then others', and what is left of them says "-4e37 clients"."""
    *rest, last = sorted(NAMES)
    at = server.prepared(rest)
    server.inputs(at, {"told": {}, "since": [], "ahead": False}, server.first)
    server.revealed(at)
    session = secret.exchange.participants[rest[0]]._session("r1")[0]
    assert verified(told(at), session, server.kinds).names == tuple(rest)
    late = server.ask(
        last, {"keys": {"attempt": at.attempt.name, "round": 0, "phase": "signals"}}
    ).gives["keys"]
    with pytest.raises(Unsafe, match="is for another sum: keys differ"):
        verified({**told(at), "keys": [*at.keys.values(), late]}, session, server.kinds)


def test_sa6_clients_that_were_told_different_sums_make_no_usable_one(secret):
    """S3: what a client settled its weight by is in the subject that all must have signed."""
    secret.run(1)
    plain = secret.server._told_to
    secret.server._told_to = lambda name: (
        {**plain(name), "since": ["0" * 64]} if name == VICTIM else plain(name)
    )
    secret.server.patience = Patience(minimum=5, attempts=1)
    with pytest.raises(fgn.TrainingError, match="4 inputs came, 5 are needed"):
        secret.run(1)


@pytest.mark.parametrize(
    ("numbers", "good"),
    [
        ([5, 5, 1.0, 2.0, 3.0, 4.0], True),
        ([5, 4, 1.0, 2.0, 3.0, 4.0], True),  # one could not train
        ([4, 4, 1.0, 2.0, 3.0, 4.0], False),
        ([-4e37, -4e37, 1.0, 2.0, 3.0, 4.0], False),
        ([5, 6, 1.0, 2.0, 3.0, 4.0], False),
        ([5, 0, 1.0, 2.0, 3.0, 4.0], False),
        ([5, 4.5, 1.0, 2.0, 3.0, 4.0], False),
        ([5, 5, 1e30, 2.0, 3.0, 4.0], False),
    ],
)
def test_s4_sums_that_no_honest_clients_have_are_not_used(numbers, good):
    assert bool(usable(numbers, {"present": 1, "first": 5}, 5)) == good


def test_sa7_a_crafted_network(server):
    """Scaled up so that every example's gradient has a coordinate of its own, it is refused."""
    for shared, words in [
        (server.first * 50, "the first network is not the one that the agreed seed makes"),
        (server.first + 0.01, "the first network is not"),
        (server.first * float("nan"), "not finite"),
    ]:
        with pytest.raises(Said, match=words):
            server.round(NAMES, shared=shared)
    known = after_a_round(server)
    give = {"told": known["told"], "chain": chained("", [known["sums0"].digest])}
    for shared in (server.first * 50, server.first + 0.03):  # lr is 0.02
        with pytest.raises(Said, match="not one that the agreed server optimizer can have made"):
            server.round(NAMES, number=1, shared=shared, given=give, state=1)
    server.prepared(NAMES, number=1)
    at, _ = server.round(NAMES, number=1, shared=server.first + 0.019, given=give, state=1)
    assert len(at.inputs) == 5


def test_s5_no_round_is_skipped(server):
    """Else the server could move the network by many rounds' steps at once, and nobody saw them.

    Clients that missed rounds see the last one's sums, signed by those who were in it.
    """
    known = after_a_round(server)
    first, invented = known["sums0"].digest, [64 * "1", 64 * "2"]
    for told_too, since, state in (
        (known["told"], [first, *invented], 0),
        (known["told"], invented, 1),
        ({**known["told"], "2": known["told"]["0"]}, invented, 1),
    ):
        give = {"told": told_too, "since": since, "chain": chained("", [first] if state else [])}
        with pytest.raises(Said, match=r"sums .*(cannot be read|of the last round)"):
            server.round(NAMES, number=3, shared=server.first + 0.05, given=give, state=state)


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.9, 0.95)])
def test_s5_no_gradients_move_a_coordinate_farther_than_the_bound(name, betas):
    """The bound holds for gradients made to move as far as possible, and is nearly reached."""
    from fedgradnorm import _optimizers as optimizers
    from fedgradnorm._state.table import Layout

    table = {"name": name, "lr": 0.1, "betas": betas, "eps": 1e-30}
    bound = NetworkBound(Settings(rounds=60, server_optimizer=table))
    rng, best = np.random.default_rng(0), 0.0
    rho = betas[0] / betas[1]
    for trial in range(30):
        x = torch.full((1, 3), 2.0, dtype=torch.float64)
        optimizer = optimizers.make(bound.table, Layout({"x": (3,)}))
        moments = {k: v[None] for k, v in optimizer.start(x[0]).items()}
        for step in range(60):
            before = x.clone()
            worst = rho ** (60.0 - step)  # what Cauchy and Schwarz have equality for
            g = torch.full((1, 3), worst) if trial == 0 else torch.from_numpy(
                rng.normal(size=(1, 3)) * 10.0 ** rng.uniform(-3, 3)
            )  # fmt: skip
            optimizer.step(x, g.double(), moments)
            a, b = bound.reach(step, step + 1)
            allowed = a * before.abs() + b
            assert bool(((x - before).abs() <= allowed).all())
            best = max(best, float(((x - before).abs() / allowed).max()))
        a, b = bound.reach(0, 60)
        assert bool(((x - 2.0).abs() <= a * 2.0 + b).all())
    assert best > 0.9


@pytest.mark.parametrize("name", ["sgd", "rmsprop", {"name": "adam", "amsgrad": True}])
def test_s5_an_optimizer_without_a_bound_is_refused(name):
    table = {"name": "a", "method": "fedgradnorm", "rounds": 2, "data": {"source": "files"}}
    table |= {"network": {"name": "mlp", "widths": [4], "inputs": 3}}
    config = make_config({**table, "server": {"server_optimizer": name}})
    with pytest.raises(fgn.ConfigError, match="cannot be used in a private federation"):
        agree(config, PrivateTerms(public_keys("abc")))


def test_sa8_a_key_is_only_where_it_was_made(tmp_path):
    """What leaves the client's machine is the public half."""
    key = make_key(tmp_path / "client", SIGNING)
    private = (tmp_path / "client" / "signing.key").read_bytes()
    assert stat.S_IMODE((tmp_path / "client" / "signing.key").stat().st_mode) == 0o600
    assert key.text.encode() not in private
    assert [path.name for path in tmp_path.rglob("*.key")] == ["signing.key"]


def tampered(content: dict[str, Any], change: Any) -> dict[str, Any]:
    """The answer with other entries."""
    change(content["gives"])
    return content


LIES = {
    "keys that are no table": ("keys", lambda t: t.update(keys=[])),
    "keys that are a number": ("keys", lambda t: t.update(keys=7)),
    "keys without a body": ("keys", lambda t: t["keys"].update(body=[])),
    "letters that are a list": ("letters", lambda t: t.update(letters=[])),
    "letters to nobody": ("letters", lambda t: t["letters"]["body"].update(sealed={})),
    "an input that is null": ("input", lambda t: t.update(input=None)),
    "numbers that are none": ("input", lambda t: t["input"]["body"].update(numbers="")),
    "shares that are a list": ("reveal", lambda t: t["reveal"]["body"].update(own=[])),
    "another name": ("reveal", lambda t: t["reveal"].update({"from": OTHERS[0]})),
}


@pytest.mark.parametrize("lie", LIES)
def test_sa9_malformed_input_is_named_and_ends_nothing(lie, tmp_path, caplog):
    step, change = LIES[lie]
    rules = Rules(misses=0, refusals=2)
    secret = Secret(tmp_path, rounds=3, patience=Patience(minimum=1, attempts=3, rules=rules))

    def tamper(name, order, content):
        return tampered(content, change) if name == VICTIM and step in order.asks else content

    secret.exchange.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        secret.run()
    assert secret.server.round == 3
    assert secret.server.refused[VICTIM] > 0
    assert secret.server.attendance.shut_out(VICTIM)  # a decoded answer is not a good one
    assert all(secret.server.refused[name] == 0 for name in OTHERS)
    assert f"answer of '{VICTIM}' refused: " in caplog.text


def test_sa9_whatever_a_message_raises_names_its_sender():
    """Also what no check of a message's form has foreseen."""
    refused: list[tuple[str, str]] = []
    summing = Summing(lambda _: {}, lambda _: None, lambda *why: refused.append(why))
    summing._take(VICTIM, [].index, 7)
    assert refused == [(VICTIM, "it cannot be read (ValueError)")]


@pytest.mark.parametrize("step", ["keys", "letters", "input", "reveal"])
@pytest.mark.parametrize("where", ["message", "body"])
def test_sa9_an_entry_that_cannot_be_written_again_ends_nothing(step, where, tmp_path):
    """1e999 is read as infinity, which JSON cannot write: forwarding it ended the server."""
    rules = Rules(misses=0, refusals=2)
    secret = Secret(tmp_path, rounds=2, patience=Patience(minimum=1, attempts=3, rules=rules))

    def tamper(name, order, content):
        if name != VICTIM or step not in order.asks:
            return content
        message = content["gives"][step]
        (message if where == "message" else message["body"])["more"] = "@@@@@@"
        return closed(content).replace(b'"@@@@@@"', b"1e999999")

    secret.exchange.tamper = tamper
    secret.run()
    assert secret.server.round == 2
    assert secret.server.attendance.shut_out(VICTIM)
    assert all(secret.server.refused[name] == 0 for name in OTHERS)


@pytest.mark.parametrize("more", [1, "text", {"deep": [[[[]]]]}])
def test_sa9_nothing_but_what_was_agreed_is_forwarded(more, tmp_path):
    secret = Secret(tmp_path, rounds=2)

    def tamper(name, order, content):
        if name == VICTIM and "keys" in order.asks:
            content["gives"]["keys"]["more"] = more
        return content

    secret.exchange.tamper = tamper
    secret.run()
    assert secret.server.refused[VICTIM] > 0
    assert all(secret.server.refused[name] == 0 for name in OTHERS)


def test_sa9_a_masked_vector_of_the_wrong_length_gets_nobody_else_refused(tmp_path):
    secret = Secret(tmp_path, rounds=2)

    def tamper(name, order, content):
        if name == VICTIM and "masked" in content:
            content["masked"] = np.zeros(3, dtype=np.uint64)
        return content

    secret.exchange.tamper = tamper
    secret.run()
    assert secret.server.round == 2
    assert secret.server.refused[VICTIM] > 0
    assert all(secret.server.refused[name] == 0 for name in OTHERS)


@pytest.mark.parametrize("lie", ["the sum of all others", 1e12, -1e12, 0.0])
def test_a_coefficient_that_is_a_lie_ends_nothing(lie, tmp_path):
    """With minus the others' sum, the sum of coefficients is 0: the network used to become NaN."""
    secret = Secret(tmp_path, rounds=3)
    liar, told_by_others = NAMES[-1], []

    def telling(name, plain):
        def second(*given):
            coefficient, numbers, moved = plain(*given)
            if name != liar:
                told_by_others.append(round(coefficient * 2**40) / 2**40)
                return coefficient, numbers, moved
            said = -sum(told_by_others[-4:]) if isinstance(lie, str) else lie
            return said, [1.0, said, *numbers[2:]], moved

        return second

    for name, one in secret.exchange.participants.items():
        one.level.second = telling(name, one.level.second)
    network = secret.run()
    assert secret.server.round == 3
    assert torch.isfinite(network).all()
    bound = NetworkBound(secret.settings).reach(0, 3)[1]
    first = Hostile(Secret(tmp_path / "other", rounds=3)).first
    assert float((network - first).abs().max()) < bound


@pytest.mark.parametrize("rule", ["absolute", "squared", "relative", "direct"])
def test_no_lie_in_a_sum_freezes_another_clients_weight(rule, tmp_path):
    """A sum of gradient norms of 1e14 froze small ones; what scales free weights was a lie, too.

    One weight froze, all others shrank by 1e7 in a round, and the sum was one client's update.
    """
    secret = Secret(tmp_path, fgn.GradNorm(rule=rule), rounds=3)
    liar, free = NAMES[-1], dict[str, list[float]]()

    def telling(name, plain):
        def first(*given):
            numbers = plain(*given)
            if name == liar:
                return [numbers[0], 1e14, *numbers[2:]]
            free.setdefault(name, []).append(numbers[2])
            return numbers

        return first

    for name, one in secret.exchange.participants.items():
        one.level._first = telling(name, one.level._first)
    secret.run()
    assert set(free) == set(NAMES) - {liar}
    assert all(one == 1.0 for numbers in free.values() for one in numbers)


@pytest.mark.parametrize("make", [fgn.GradNorm, fgn.Equal])
def test_not_protected_weights_under_a_colluder_unless_they_are_equal(make, tmp_path):
    """The page says so: one round without the victim, in which the liar shrinks all levels."""
    secret = Secret(tmp_path, make(), rounds=3)
    participants, liar = secret.exchange.participants, secret.exchange.participants[NAMES[-1]]
    plain, updates, steps = liar.level.second, dict[str, torch.Tensor](), list[torch.Tensor]()

    def second(*given):
        _, numbers, moved = plain(*given)
        lies = [1.0, 1e-9, *(0.0 for _ in numbers[2:])]
        if secret.server.round == 1 and make is fgn.GradNorm:
            lies[3] = 1e9  # the sum of levels after the step
        return 1e-9, lies, moved

    def noting(name, vector):
        def noted(coefficient, update):
            updates[name] = update.double().clone()
            return vector(coefficient, update)

        return noted

    liar.level.second, step = second, secret.server.server.step
    for name, one in participants.items():
        one._vector = noting(name, one._vector)
    secret.server.server.step = lambda direction: (
        steps.append(direction.double()) or step(direction)
    )
    secret.before = lambda name, order: "gone" if (name, order.round) == (VICTIM, 1) else None
    secret.run()
    alike = float(torch.nn.functional.cosine_similarity(steps[-1], updates[VICTIM], dim=0))
    assert (alike > 0.99) == (make is fgn.GradNorm)


def sums_by_kind(server: Hostile, at: Any, words: np.ndarray) -> dict[str, Any]:
    """Also what ``usable`` checks."""
    front = LIMBS * sum(server.kinds[at.attempt.phase].values())
    sums = sums_of(at, words[:front])
    return usable(sums.numbers, server.kinds[sums.phase], len(sums.names))


def test_not_protected_the_weight_of_a_client_that_is_left_out_of_the_second_sum(tmp_path):
    """As docs/privacy.md says: weights add up to the number of clients in the first sum."""
    secret = Secret(tmp_path, InverseFirstLoss(), rounds=2)
    server, give = Hostile(secret), {"told": {}, "since": [], "ahead": False}
    signals = server.prepared(NAMES)
    server.inputs(signals, give, server.first)
    first = server.revealed(signals)
    update = server.prepared(NAMES, phase=Phase.UPDATE)
    update.close_letters(OTHERS)
    give |= {"signals": told(signals), "sums": (signals, first)}
    server.inputs(update, give, server.first)
    count, _, total = sums_by_kind(server, signals, first)["first"]
    others = sums_by_kind(server, update, server.revealed(update))["coefficient"][0]
    own = secret.exchange.participants[VICTIM].level.weighting.rows["first_loss"][0]
    assert count / ((count - others) * total) == pytest.approx(float(own), rel=1e-9)


@pytest.mark.parametrize("kind", ["train", "finish"])
def test_an_order_of_a_plain_federation_gets_no_answer(kind, secret, server):
    """It would show the client's own update."""
    order = Order(kind, "r1", server.agreement, 0, 0, server.first)
    respond = secret.exchange.participants[VICTIM].respond
    reply = Exchange(InMemory({VICTIM: respond})).ask({VICTIM: order}, 60.0)[VICTIM]
    assert "asks for a plain answer: it would see this client's own update" in str(reply)
    assert not list((secret.folder / VICTIM).glob("r1/*"))


@pytest.mark.parametrize("method", [fgn.GradNorm, lambda: fgn.GradNorm(rule="direct")])
def test_sa11_a_client_that_cannot_train_is_not_told_from_others(method, tmp_path, caplog):
    """No answer says who failed, nor does the server's log; the client's own does."""
    secret = Secret(tmp_path, method(), rounds=3, clients=five)
    one = secret.exchange.participants[VICTIM].client
    plain, failing = one.answer, [True]

    def answer(order):
        if failing[0] and order.kind == "train":
            raise RuntimeError("its loss is not finite: 3.4e38 in column income")
        return plain(order)

    one.answer = answer
    with caplog.at_level(logging.INFO):
        secret.run(2)
        failing.clear()
        failing.append(False)
        secret.run(1)
    assert secret.server.round == 3
    assert secret.server.refused == dict.fromkeys(NAMES, 0)
    assert secret.server.missed == dict.fromkeys(NAMES, 0)
    assert [row["active"] for row in secret.server.history.rows] == [4, 4, 5]
    keys = {frozenset(answer) for name, answer in secret.exchange.sent if name == VICTIM}
    assert keys == {frozenset(answer) for name, answer in secret.exchange.sent if name != VICTIM}
    said = [r for r in caplog.records if "income" in r.getMessage()]
    assert {record.module for record in said} == {"secure_sum_client"}
    rows = [r for r in secret.results()[VICTIM].table.rows if r["split"] == "batch"]
    assert [row["round"] for row in rows] == [3]


def test_sa11_a_client_without_a_weight_is_not_told_from_others(tmp_path):
    """Whatever computing it raises."""
    secret = Secret(tmp_path, rounds=2)

    def failing(*_):
        raise ZeroDivisionError("a gradient norm of 0")

    secret.exchange.participants[VICTIM].level._first = failing
    secret.run()
    assert secret.server.refused == secret.server.missed == dict.fromkeys(NAMES, 0)
    assert [row["active"] for row in secret.server.history.rows] == [4, 4]


def test_sa11_a_client_whose_result_fails_is_not_told_from_others(tmp_path, caplog):
    """The last order may have any network, and can be repeated: it answers nothing about data."""
    secret = Secret(tmp_path, rounds=1)
    secret.run()

    def failing(*_):
        raise RuntimeError("a secret of column income")

    secret.exchange.participants[VICTIM].client.engine.evaluate = failing
    assert secret.server.finish() == NAMES
    assert secret.exchange.participants[VICTIM].result is not None  # without that evaluation
    assert secret.server.refused == dict.fromkeys(NAMES, 0)
    said = [r for r in caplog.records if "income" in r.getMessage()]
    assert {record.module for record in said} == {"client_session"}


def test_sa11_a_result_that_cannot_be_saved_is_not_told_and_ends_the_run(tmp_path, caplog):
    secret = Secret(tmp_path, rounds=1)
    secret.run()
    victim = secret.exchange.participants[VICTIM]
    for run in victim.client.folder.iterdir():
        if run.is_dir():
            (run / RESULT).write_text("in the way")
    assert secret.server.finish() == NAMES
    assert victim.over
    assert victim.result is None
    assert any("its result failed" in r.getMessage() for r in caplog.records)


def test_a_client_that_deals_wrong_shares_is_named_and_the_round_goes_on(tmp_path):
    """Shares were shown already when that is found out: the others see the proof, and continue."""
    from fedgradnorm._masking import shamir

    secret = Secret(tmp_path, rounds=2, patience=Patience(minimum=1, attempts=3))
    plain, split = secret.exchange.participants[VICTIM].respond, shamir.split

    def respond(content):
        shamir.split = lambda _, *given: split(bytes(32), *given)
        try:
            return plain(content)
        finally:
            shamir.split = split

    secret.exchange.participants[VICTIM].respond = respond
    secret.run()
    assert secret.server.round == 2
    assert secret.server.states[VICTIM] == 0
    assert secret.server.refused[VICTIM] > 0
    assert all(secret.server.refused[name] == 0 for name in OTHERS)
