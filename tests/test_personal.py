"""Ways to personalise: FedProx's pull, averaged models and heads, FedBABU's late heads, Ditto."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import fedgradnorm as fgn
import flat
import toys

SGD = {"name": "sgd", "lr": 0.05}
AVERAGED = {"sends": "model", "server_optimizer": {"name": "sgd", "lr": 1.0}}


def played(federation, rounds: int = 3):
    for k in range(rounds):
        federation.round(k, federation.names)
    return federation.server.shared.data.clone()


def reports(twins: bool = False, **settings):
    clients = toys.clients() + [toys.client("corner2", 48, "corner")] * twins
    federation = toys.federation(toys.network(), clients, **settings)
    return federation.engine.run_clients(federation.server.shared.data, 0, federation.names)


# ------------------------------------------------------------------------------------- FedProx


def test_the_pull_is_in_gradient_and_delta_alike_and_not_in_the_norm_layer() -> None:
    common = {"shared_steps": 4, "head_steps": 0, "proximal": 0.7}
    gradient, delta = reports(sends="gradient", **common), reports(sends="delta", **common)
    torch.testing.assert_close(gradient.gradients(), delta.gradients())
    plain = reports(shared_steps=4, head_steps=0)
    assert not torch.allclose(plain.gradients(), gradient.gradients())
    raw = gradient.gradients()[:, -45:].norm(dim=1)  # the last layer: 8 x 5 weights, 5 biases
    assert not torch.allclose(raw, gradient.grad_norm)


def test_a_local_step_with_the_pull_by_hand() -> None:
    found = reports(shared_steps=2, head_steps=0, proximal=0.7, sends="model")
    federation = toys.federation(toys.network(), toys.clients(), head_steps=0)
    engine, shared = federation.engine, federation.server.shared.data
    network, head = toys.network(), engine.exported("side").head
    start = [p.detach().clone() for p in network.parameters()]
    for step in range(2):
        x, y = toys.batch(engine, "side", step)
        loss = engine.clients["side"].task.loss(head(network(x)), y)
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        with torch.no_grad():
            for p, g, p0 in zip(network.parameters(), gradients, start, strict=True):
                p -= 0.05 * (g + 0.7 * (p - p0))
    torch.testing.assert_close(found.gradients()[1], shared - toys.parameters(network))


def test_one_local_step_knows_no_pull() -> None:
    assert torch.equal(reports(proximal=5.0).gradients(), reports().gradients())


def test_a_joint_pass_has_no_local_steps_to_pull() -> None:
    def chosen(**settings) -> str:
        return toys.federation(toys.network(), toys.clients(), **settings).engine.name

    assert chosen(executor="auto", proximal=0.1) == "joint"
    with pytest.raises(fgn.ConfigError, match="shared_steps = 3"):
        chosen(executor="joint", proximal=0.1, shared_steps=3)


def test_every_executor_has_the_loops_pull() -> None:
    how = {"shared_steps": 3, "proximal": 0.7}
    loop, vmap = (
        reports(executor=executor, **how, twins=True).gradients() for executor in ("loop", "vmap")
    )
    torch.testing.assert_close(loop, vmap, rtol=0, atol=1e-10)


# ------------------------------------------------------------------------------- averaged models


def test_models_and_a_server_rate_of_one_average_the_models() -> None:
    federation = toys.federation(toys.network(), toys.clients(), shared_steps=3, **AVERAGED)
    shared = federation.server.shared.data.clone()
    sent = reports(shared_steps=3, **AVERAGED).gradients()
    torch.testing.assert_close(played(federation, 1), (shared - sent).mean(dim=0))


def test_averaging_models_is_the_delta_form_at_the_matching_rate() -> None:
    rate = {"name": "sgd", "lr": 3 * 0.05}
    models = toys.federation(toys.network(), toys.clients(), shared_steps=3, **AVERAGED)
    deltas = toys.federation(
        toys.network(), toys.clients(), shared_steps=3, sends="delta", server_optimizer=rate
    )
    torch.testing.assert_close(played(models), played(deltas))


def alike() -> list[fgn.Client]:
    return [toys.client(name, size, kind="corner") for name, size in (("a", 48), ("b", 24))]


FEDAVG = {
    **AVERAGED, "phases": "joint", "head_optimizer": SGD, "aggregate": "by_size",
    "heads": "all", "shared_steps": 2,
}  # fmt: skip


def test_fedavg_is_fedavg() -> None:
    federation = toys.federation(toys.network(), alike(), **FEDAVG)
    heads = toys.heads(federation.engine)
    assert torch.equal(*(toys.parameters(head) for head in heads.values()))
    model = nn.Sequential(toys.network(), copy.deepcopy(heads["a"]))
    for k in range(3):
        parts = {}
        for name in federation.names:
            local = copy.deepcopy(model)
            for step in range(2):
                x, y = toys.batch(federation.engine, name, 2 * k + step)
                local.zero_grad()
                federation.engine.clients[name].task.loss(local(x), y).backward()
                with torch.no_grad():
                    for p in local.parameters():
                        p -= 0.05 * p.grad
            parts[name] = toys.parameters(local)
        nn.utils.vector_to_parameters((48 * parts["a"] + 24 * parts["b"]) / 72, model.parameters())
    played(federation)
    torch.testing.assert_close(federation.server.shared.data, toys.parameters(model[0]))
    for head in toys.heads(federation.engine).values():
        torch.testing.assert_close(toys.parameters(head), toys.parameters(model[1]))


def test_heads_that_differ_cannot_be_averaged() -> None:
    with pytest.raises(fgn.ConfigError, match="heads of one shape"):
        toys.federation(toys.network(), toys.clients(), heads="all")
    toys.federation(toys.network(), alike(), heads="all")


def test_averaged_heads_are_counted_as_traffic() -> None:
    with_heads = toys.federation(toys.network(), alike(), **FEDAVG).bytes_per_round("a")
    without = toys.federation(toys.network(), alike()).bytes_per_round("a")
    assert with_heads - without == 2 * 8 * (5 * 3 + 3)


# --------------------------------------------------------------------------------------- FedBABU


def train(folder=None, **settings) -> fgn.Run:
    settings = {"rounds": 4, "batch_size": 8, "lr": 0.05, "executor": "loop", **settings}
    return flat.train(
        toys.network(), toys.clients(), weighting=fgn.Equal(), folder=folder, **settings
    )


def test_fedbabus_heads_move_at_the_end_only() -> None:
    frozen = train(head_steps=0)
    tuned = train(head_steps=0, final_head_steps=50)
    start = toys.heads(toys.federation(toys.network(), toys.clients()).engine)
    for name in toys.NAMES:
        assert torch.equal(toys.parameters(frozen.heads[name]), toys.parameters(start[name]))
        assert not torch.equal(toys.parameters(tuned.heads[name]), toys.parameters(start[name]))
    assert torch.equal(toys.parameters(frozen.network), toys.parameters(tuned.network))
    before, after = (run.summary().last_loss for run in (frozen, tuned))
    assert (after < before).all()


def wards(kinds: dict[str, str]) -> list[fgn.Client]:
    """Clients by name whose tasks are named after their kind."""
    return [
        fgn.Client(name, toys.task(kind, name=kind), train=toys.rows(kind, 20 + 4 * place))
        for place, (name, kind) in enumerate(kinds.items())
    ]


def fedbabu(clients: list[fgn.Client], rounds: int, steps: int) -> fgn.Run:
    """The method, or with no steps at the end what it does until then."""
    name: dict[str, Any] = {"method": "fedbabu", "personalization": {"final_head_steps": steps}}
    until_then: dict[str, Any] = {"method": "fedrep", "sharing": {"heads": "task"}}
    local = {"batch_size": None, "head_optimizer": SGD}
    return fgn.train(
        toys.network(),
        clients,
        rounds=rounds,
        lr=0.05,
        local=local if steps else {**local, "head_steps": 0},
        server={"server_optimizer": SGD},
        compute={"device": "cpu"},
        **(name if steps else until_then),
    )


def test_fedbabu_is_its_papers_algorithm() -> None:
    """Oh et al. 2022, algorithm 1: all bodies learn for one random head, each client then tunes it.

    With full batches and one local step, the mean of models is one step on the mean gradient. There
    is one such head for each task here.
    """
    clients = wards({"a": "corner", "b": "side", "c": "corner", "d": "corner", "e": "side"})
    of = {client.name: client.task.name for client in clients}
    first = fedbabu(clients, 1, 0).heads
    for one in of:
        for other in of:
            alike = of[one] == of[other]
            pair = toys.parameters(first[one]), toys.parameters(first[other])
            assert pair[0].shape != pair[1].shape or torch.equal(*pair) == alike
    body, lr = toys.network(), 0.05
    for _ in range(3):
        losses = [c.task.loss(first[c.name](body(c.train[0].double())), c.train[1])
                  for c in clients]  # fmt: skip
        gradients = torch.autograd.grad(sum(losses) / len(losses), list(body.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(body.parameters(), gradients, strict=True):
                parameter -= lr * gradient
    fixed, tuned = fedbabu(clients, 3, 0), fedbabu(clients, 3, 4)
    for run in (fixed, tuned):
        torch.testing.assert_close(toys.parameters(run.network), toys.parameters(body))
    for client in clients:
        before, head = first[client.name], copy.deepcopy(first[client.name])
        assert torch.equal(toys.parameters(fixed.heads[client.name]), toys.parameters(before))
        features = body(client.train[0].double()).detach()
        for _ in range(4):
            loss = client.task.loss(head(features), client.train[1])
            gradients = torch.autograd.grad(loss, list(head.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(head.parameters(), gradients, strict=True):
                    parameter -= lr * gradient
        torch.testing.assert_close(toys.parameters(tuned.heads[client.name]), toys.parameters(head))


def test_a_new_client_tunes_the_head_that_fedbabu_trained_with() -> None:
    clients = wards({"b": "corner", "a": "corner", "c": "side"})
    first = fedbabu(clients, 2, 0).heads
    run = fedbabu(clients, 2, 5)
    assert not torch.equal(*(toys.parameters(run.heads[name]) for name in "ab"))
    rows = {"train": toys.rows("corner", 30), "validation": toys.rows("corner", 40)}
    late = fgn.Client("late", toys.task("corner", name="corner"), **rows)
    begun = run.personalize(late, steps=1, lr=1e9, what="head")  # worse, so it keeps the first
    assert begun.manifest["personal"]["late"]["step"] == 0
    assert torch.equal(toys.parameters(begun.heads["late"]), toys.parameters(first["a"]))
    own = run.personalize(clients[1], steps=1, what="network")  # nor do those tuned before it
    more = run.personalize(replace(late, name="Anna"), steps=1, what="head")
    for before in (own, more):
        begun = before.personalize(late, steps=1, lr=1e9, what="head")
        assert torch.equal(toys.parameters(begun.heads["late"]), toys.parameters(first["a"]))


def test_a_new_client_begins_with_fedbabus_head_and_a_bias_of_its_own() -> None:
    clients = wards({"a": "corner", "b": "corner"})
    rows = {"train": toys.rows("corner", 30), "validation": toys.rows("corner", 40)}
    late = fgn.Client("late", toys.task("corner", name="corner"), **rows)
    how = {"method": "fedbabu", "sharing": fgn.Sharing(heads="task", head_own="bias"), "rounds": 1}
    tuned, plain = (fgn.Personalization(final_head_steps=steps) for steps in (5, 0))
    run = fgn.train(toys.network(), clients, personalization=tuned, **how)
    first = fgn.train(toys.network(), [*clients, late], personalization=plain, **how)
    begun = run.personalize(late, steps=1, lr=1e9, what="head")  # worse, so it keeps the first
    for own, wanted in zip(
        begun.heads["late"].parameters(), first.heads["late"].parameters(), strict=True
    ):
        assert torch.equal(own, wanted)
    assert not torch.equal(begun.heads["late"].bias, first.heads["a"].bias)


def test_a_new_client_begins_with_a_trained_head_also_where_heads_were_tuned_in_the_end() -> None:
    clients = wards({"a": "corner", "b": "corner"})
    run = fgn.train(
        toys.network(), clients, method="fedavg", rounds=3,
        personalization=fgn.Personalization(final_head_steps=2),
    )  # fmt: skip
    rows = {"train": toys.rows("corner", 30), "validation": toys.rows("corner", 40)}
    late = fgn.Client("late", toys.task("corner", name="corner"), **rows)
    begun = run.personalize(late, steps=1, lr=1e9, what="head")  # worse, so it keeps the first
    assert torch.equal(toys.parameters(begun.heads["late"]), toys.parameters(run.heads["a"]))


def test_a_new_client_begins_with_the_shared_head_and_not_with_one_that_was_tuned_since() -> None:
    clients = wards({"a": "corner", "b": "corner"})
    run = fgn.train(toys.network(), clients, method="fedavg", rounds=3)
    tuned = run.personalize(clients[0], steps=3, what="head")
    assert not torch.equal(*(toys.parameters(tuned.heads[name]) for name in "ab"))
    rows = {"train": toys.rows("corner", 30), "validation": toys.rows("corner", 40)}
    late = fgn.Client("late", toys.task("corner", name="corner"), **rows)
    begun = tuned.personalize(late, steps=1, lr=1e9, what="head")  # worse, so it keeps the first
    assert torch.equal(toys.parameters(begun.heads["late"]), toys.parameters(run.heads["a"]))


def test_fedbabus_heads_cost_no_traffic_and_tasks_may_have_one_client_each() -> None:
    apart = fedbabu(wards({"a": "corner", "b": "side"}), 2, 3)
    assert apart.manifest["settings"]["heads"] == "task"
    given = [toys.client(name, size, kind="corner") for name, size in (("a", 48), ("b", 24))]
    frozen, moving = (
        toys.federation(toys.network(), given, heads="task", head_steps=steps) for steps in (0, 1)
    )
    down_and_up = 2 * 8 * toys.parameters(toys.head(moving, "a")).numel()
    assert moving.bytes_per_round("a") - frozen.bytes_per_round("a") == down_and_up


@pytest.mark.parametrize("executor", ["loop", "joint"])
def test_tuning_leaves_running_statistics_and_chance_alone(executor: str) -> None:
    network = toys.noisy_network() if executor == "loop" else toys.network()
    federation = toys.federation(network, toys.clients(), executor=executor, final_head_steps=3)

    def statistics() -> dict[str, dict[str, torch.Tensor]]:
        states = {name: federation.engine.client_state(name) for name in federation.names}
        return {
            name: {key: value for key, value in state.items() if key.startswith("buffer.")}
            for name, state in states.items()
        }

    played(federation)
    before = statistics()
    chance = torch.get_rng_state()
    federation.finish(3)
    assert toys.same(before, statistics())
    assert torch.equal(chance, torch.get_rng_state())


# ----------------------------------------------------------------------------------------- Ditto


def test_dittos_shared_network_is_the_federations() -> None:
    plain, ditto = train(), train(ditto=0.3)
    assert torch.equal(toys.parameters(plain.network), toys.parameters(ditto.network))
    batches = [run.history[run.history.split == "batch"] for run in (plain, ditto)]
    assert batches[0].equals(batches[1])


def test_dittos_personal_step_by_hand() -> None:
    settings = {"rounds": 2, "server_optimizer": SGD, "head_steps": 0}
    run = train(ditto=0.3, **settings)
    alone = toys.federation(toys.network(), [toys.client("side", 30)], head_steps=0)
    v = toys.parameters(toys.network())
    shared = [v, toys.parameters(train(**{**settings, "rounds": 1}).network)]
    for k, omega in enumerate(shared):
        gradient = alone.engine.run_clients(v, k, ["side"]).gradients()[0]
        v = v - 0.05 * (gradient + 0.3 * (v - omega))
    torch.testing.assert_close(toys.parameters(run.networks["side"]), v)


def test_dittos_lambda_goes_from_local_to_shared() -> None:
    settings = {"rounds": 30, "server_optimizer": SGD}
    shared = toys.parameters(train(**settings).network)
    far = [
        (toys.parameters(train(ditto=pull, **settings).networks["side"]) - shared).norm()
        for pull in (1e-6, 1.0, 10.0)
    ]
    assert far[0] > far[1] > far[2]
    local = train(share="none", **settings)
    nearly = train(ditto=1e-9, **settings)
    torch.testing.assert_close(
        toys.parameters(nearly.networks["side"]), toys.parameters(local.networks["side"])
    )


@pytest.mark.parametrize("settings", [{"ditto": 0.3}, {"head_steps": 0, "final_head_steps": 5}])
def test_a_saved_personal_run_predicts_the_same_and_resumes(tmp_path, settings) -> None:
    whole = train(tmp_path / "whole", **settings)
    loaded = fgn.load(tmp_path / "whole")
    x = toys.rows("side", 10)[0]
    assert (whole.predict("side", x, outputs=True) == loaded.predict("side", x, outputs=True)).all()

    def stop(event) -> None:
        if event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "part", progress=stop, **settings)
    again = train(tmp_path / "part", resume=True, **settings)
    for name in toys.NAMES:
        assert torch.equal(
            toys.parameters(again.networks[name]), toys.parameters(whole.networks[name])
        )
        assert torch.equal(toys.parameters(again.heads[name]), toys.parameters(whole.heads[name]))
    assert again.history.equals(whole.history)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"proximal": -1.0}, "proximal must be >= 0"),
        ({"ditto": -1.0}, "ditto must be >= 0"),
        ({"ditto": 0.1, "share": "none"}, "share='none'"),
        ({"final_head_steps": -1}, "final_head_steps"),
    ],
)
def test_settings_out_of_range_are_named(settings, says) -> None:
    with pytest.raises(fgn.ConfigError, match=says):
        train(**settings)
