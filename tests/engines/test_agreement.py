"""Executors agree to 1e-10 in float64: the same run, whatever the settings and the weighting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._engines import choice
from fedgradnorm._engines.parts import padded_batches
from fedgradnorm._errors import ConfigError
from fedgradnorm.weighting import Needs
from fedgradnorm.weighting._fixed import BySize
from fedgradnorm.weighting._products import IMTLG, FedMGDA
from oracle import mixed_clients
from toys import seeded

BASE = {"rounds": 12, "batch_size": 8, "lr": 1e-2, "device": "cpu", "seed": 5, "eval_every": 6}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "together": {"phases": "joint"},
    "first round": {"first_loss": "first_round"},
    "by size": {"aggregate": "by_size"},
    "two of three": {"participation": 0.67},
    "full batch": {"batch_size": None},
    "smaller batches of some": {"batch_size": 35},
    "smaller batches of some of them": {"batch_size": 35, "participation": 0.34},
    "many head steps": {"head_steps": 9},
    "no head steps": {"head_steps": 0},
    "old weights": {"step_with": "previous"},
    "keyed by task": {"weight_per": "task"},
    "another norm layer": {"norm_layer": ["0", "2.weight"]},
    "clipped heads": {"head_clip": 0.1},
    "sgd heads": {"head_optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": True}},
    "adamw heads": {"head_optimizer": {"name": "adamw", "weight_decay": 0.1}},
    "rmsprop heads": {"head_optimizer": {"name": "rmsprop", "momentum": 0.5}},
    "schedules": {"server_schedule": "cosine", "head_schedule": "cosine"},
    "final heads": {"final_head_steps": 3},
    "one head for each task": {"heads": "task"},
    "own bias in shared heads": {"heads": "task", "head_own": "bias"},
    "heads at targets": {"head_init": "targets"},
    "ditto": {"ditto": 0.5},
    "tuned": {"personalize": {"steps": 4, "lr": 0.02, "what": "network"}},
}
"""What every executor can run."""
KEPT = {"name": "sgd", "lr": 0.02, "momentum": 0.9, "keep": True}
LOCAL: dict[str, dict[str, Any]] = {
    "three steps": {"shared_steps": 3},
    "three steps together": {"shared_steps": 3, "phases": "joint"},
    "model averaging": {
        "shared_steps": 3,
        "sends": "model",
        "phases": "joint",
        "server_optimizer": {"name": "sgd", "lr": 1.0},
        "aggregate": "by_size",
    },
    "delta": {"shared_steps": 2, "sends": "delta", "local_optimizer": "adam"},
    "proximal": {"shared_steps": 3, "proximal": 0.5, "sends": "model"},
    "clipped": {"clip": 0.05, "head_clip": 0.1, "shared_steps": 2},
    "loss after": {"report_loss": "after"},
    "kept moments": {"shared_steps": 2, "sends": "model", "local_optimizer": KEPT},
    "kept moments, some": {
        "shared_steps": 2,
        "sends": "delta",
        "local_optimizer": KEPT,
        "participation": 0.5,
    },
    "kept adam": {"shared_steps": 2, "local_optimizer": {**KEPT, "name": "adam", "momentum": 0.9}},
    "other optimizers": {"shared_steps": 2, "sends": "model", "local_optimizer": "adagrad"},
    "private bias": {"shared": "!*0.bias"},
    "private layer, local steps": {"shared": "!2", "shared_steps": 2, "clip": 0.5},
    "frozen": {"frozen": "0.weight", "shared_steps": 2},
    "ditto, local steps": {"ditto": 0.5, "shared_steps": 2},
    "alone": {"share": "none"},
    "alone, smaller batches of some": {"share": "none", "batch_size": 35, "shared_steps": 2},
    "one head, smaller batches of some": {"shared_steps": 2, "batch_size": 35, "clip": 0.5},
    "alone, local steps": {"share": "none", "shared_steps": 3, "sends": "model"},
    "alone, some": {"share": "none", "participation": 0.5, "server_schedule": "cosine"},
    "alone, kept moments": {"share": "none", "shared_steps": 2, "local_optimizer": KEPT},
}
"""Where clients' networks differ, so that no joint pass is possible."""
LOCAL["kept adam"]["local_optimizer"].pop("momentum")
WEIGHTINGS = {
    "absolute": fgn.GradNorm,
    "direct": lambda: fgn.GradNorm(rule="direct"),
    "squared": lambda: fgn.GradNorm(rule="squared", optimizer="sgd", lr=1e-4),
    "equal": fgn.Equal,
    "by size": BySize,
    "inner products": IMTLG,
    "inner products in a box": FedMGDA,
    "static": lambda: fgn.Static({name: 0.1 + k for k, name in enumerate(NAMES)}),
}
FAST = ("joint", "vmap")


def network() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 10), nn.ReLU()))


def with_statistics() -> nn.Module:
    return seeded(
        lambda: nn.Sequential(
            nn.Linear(12, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 10)
        )
    )


def convolutions() -> nn.Module:
    return seeded(
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 12)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten()
        )
    )


def clients(stems: bool = False) -> list[fgn.Client]:
    """Two of each of three kinds, of different sizes; one kind has large losses."""
    found = []
    for end, sizes in (("", (40, 25, 33)), (" too", (21, 38, 30))):
        for client in mixed_clients((12,), sizes):
            stem = seeded(lambda: nn.Linear(12, 12)) if stems else None
            more = {"stem": stem, "validation": client.train, "test": client.train}
            task = replace(client.task, name=client.name)
            found.append(fgn.Client(client.name + end, task, client.train, **more))
    return found


NAMES = [client.name for client in clients()]


def trained(
    executor: str,
    settings: dict[str, Any],
    weighting: Callable[[], fgn.Weighting] = fgn.GradNorm,
    net: nn.Module | None = None,
    stems: bool = False,
) -> fgn.Run:
    arguments = {**BASE, **settings, "executor": executor}
    if settings.keys() & {"share", "ditto"}:
        weighting = fgn.Equal
    net = net or network()
    return flat.train(net, clients(stems), weighting=weighting(), **arguments)


def assert_same_run(one: fgn.Run, other: fgn.Run, tolerance: float = 1e-10) -> None:
    for name, net in one.networks.items():
        twin = other.networks[name]
        pairs = [(net, twin), (one.heads[name], other.heads[name])]
        for left, right in pairs:
            torch.testing.assert_close(
                left.state_dict(), right.state_dict(), rtol=0, atol=tolerance
            )
        buffers = [run.clients[name].buffers for run in (one, other)]
        torch.testing.assert_close(*buffers, rtol=0, atol=tolerance)
    numbers = one.history.select_dtypes("number").columns
    left, right = (run.history[numbers].to_numpy(float) for run in (one, other))
    np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("case", SETTINGS)
def test_every_executor_gives_the_loops_run(case: str) -> None:
    loop = trained("loop", SETTINGS[case])
    for executor in FAST:
        assert_same_run(trained(executor, SETTINGS[case]), loop)


@pytest.mark.parametrize("case", SETTINGS)
def test_vmap_gives_the_loops_run_of_several_steps(case: str) -> None:
    settings = {**SETTINGS[case], "shared_steps": 3}
    assert_same_run(trained("vmap", settings), trained("loop", settings))


@pytest.mark.parametrize("case", LOCAL)
def test_clients_whose_networks_differ_agree_under_vmap(case: str) -> None:
    assert_same_run(trained("vmap", LOCAL[case]), trained("loop", LOCAL[case]))


@pytest.mark.parametrize("case", LOCAL)
def test_a_joint_pass_says_why_it_cannot_run_them(case: str) -> None:
    with pytest.raises(
        fgn.ConfigError, match=r"executor 'joint' cannot run this: .*executor='auto'"
    ):
        trained("joint", LOCAL[case])


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"head_steps": 3},
        {"shared_steps": 3},
        {"phases": "joint", "sends": "model", "shared_steps": 2},
        {"shared": "!*1*"},
        {"shared": "!*1*", "shared_steps": 2, "participation": 0.5},
        {"share": "none", "shared_steps": 2},
        {"ditto": 0.5},
        {"final_head_steps": 3},
    ],
    ids=str,
)
def test_running_statistics_agree(case: dict[str, Any]) -> None:
    runs = [trained(executor, case, net=with_statistics()) for executor in ("vmap", "loop")]
    assert_same_run(*runs)
    own = [runs[0].clients[name].buffers["1.running_mean"] for name in NAMES[:2]]
    assert not torch.allclose(*own)


@pytest.mark.parametrize(
    "case",
    [{}, {"shared_steps": 2, "sends": "model"}, {"share": "none"}, {"shared": "!0", "clip": 0.5}],
    ids=str,
)
def test_stems_agree(case: dict[str, Any]) -> None:
    runs = [trained(executor, case, stems=True) for executor in ("vmap", "loop")]
    assert_same_run(*runs)
    for name in NAMES:
        stems = [run.clients[name].stem.state_dict() for run in runs]
        torch.testing.assert_close(*stems, rtol=0, atol=1e-10)
        assert not torch.equal(stems[0]["weight"], seeded(lambda: nn.Linear(12, 12)).weight)


@pytest.mark.parametrize("executor", FAST)
def test_padding_is_no_missing_label(executor: str) -> None:
    """Clients of one part with fewer examples than a batch, of which some have no label."""
    found = []
    for k, client in enumerate(many_numbers()):
        y = client.train[1].clone()
        y[k::4, 1] = torch.nan
        y[::5] = torch.nan
        found.append(fgn.Client(client.name, NUMBERS, (client.train[0], y), test=client.train))
    how = {**BASE, "batch_size": 12, "weighting": fgn.GradNorm()}
    runs = [
        flat.train(network(), found, **{**how, "executor": name}) for name in (executor, "loop")
    ]
    assert_same_run(*runs)


def test_clients_of_similar_sizes_share_a_part() -> None:
    sizes = {40: 40, 38: 40, 33: 40, 30: 30, 25: 30, 21: 30}
    assert padded_batches(clients(), None, pure=True) == sizes
    assert padded_batches(clients(), 35, pure=True) == {35: 35, 33: 35, 30: 30, 25: 30, 21: 30}
    assert padded_batches(clients(), None, pure=False) == {size: size for size in sizes}


@pytest.mark.parametrize(("large", "width"), [(8, 8), (9, 16)])
def test_few_small_clients_join_the_next_larger_ones(large: int, width: int) -> None:
    """One client of 8 examples, where padding it to 16 is at most a tenth of all examples."""
    task, sizes = fgn.regression(1), [8, 12, *[16] * large]
    found = [
        fgn.Client(f"c{k}", task, (torch.ones(n, 2), torch.ones(n, 1))) for k, n in enumerate(sizes)
    ]
    assert padded_batches(found, None, pure=True) == {8: width, 12: 16, 16: 16}


@pytest.mark.parametrize("settings", [{}, {"shared_steps": 3}, {"share": "none"}], ids=str)
def test_convolutions_agree(settings: dict[str, Any]) -> None:
    loop = trained("loop", settings, net=convolutions())
    for executor in FAST if not settings else ("vmap",):
        assert_same_run(trained(executor, settings, net=convolutions()), loop)


@pytest.mark.parametrize("chunk", [1, 2, 4])
@pytest.mark.parametrize("case", [{"shared_steps": 2}, {"share": "none"}], ids=str)
def test_clients_in_portions_agree(
    chunk: int, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks that do not fit into memory together are stepped some at a time."""
    loop = trained("loop", case)
    size = 12 * 16 + 16 + 16 * 10 + 10
    monkeypatch.setitem(choice.BYTES_AT_ONCE, "cpu", chunk * choice.COPIES * 8 * size)
    alike = [fgn.Client(c.name, NUMBERS, c.train, test=c.train) for c in many_numbers()]
    runs = [
        flat.train(
            network(), alike, weighting=fgn.Equal(), **{**BASE, **case, "executor": executor}
        )
        for executor in ("vmap", "loop")
    ]
    assert_same_run(*runs)
    assert_same_run(trained("vmap", case), loop)


NUMBERS = fgn.regression(3)


def many_numbers() -> list[fgn.Client]:
    """Five clients of one kind."""
    found = []
    for k in range(5):
        x = np.random.default_rng(k).normal(size=(11 + k, 12))
        found.append(fgn.Client(f"c{k}", NUMBERS, (x, x[:, :3])))
    return found


@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS.keys())
@pytest.mark.parametrize("executor", FAST)
def test_every_weighting_gives_the_loops_run(
    executor: str, weighting: Callable[[], fgn.Weighting]
) -> None:
    if executor == "joint" and Needs.GRAM in weighting().needs:
        with pytest.raises(fgn.ConfigError, match="needs every client's gradient"):
            trained(executor, {}, weighting)
        return
    assert_same_run(trained("loop", {}, weighting), trained(executor, {}, weighting))


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("case", [{}, {"shared_steps": 2}, {"share": "none"}], ids=str)
def test_with_dropout_each_executor_repeats_itself(executor: str, case: dict[str, Any]) -> None:
    """Executors draw in different orders, so they agree only with themselves."""

    def once(seed: int) -> fgn.Run:
        net = seeded(lambda: nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.5), nn.Linear(16, 10)))
        torch.rand(3)  # what others draw does not matter
        return trained(executor, {**case, "seed": seed}, net=net)

    one, again, other = once(5), once(5), once(6)
    assert one.table.text() == again.table.text()
    for name, net in one.networks.items():
        assert toys.same(net.state_dict(), again.networks[name].state_dict())
        assert toys.same(one.heads[name].state_dict(), again.heads[name].state_dict())
        assert not toys.same(net.state_dict(), other.networks[name].state_dict())


@pytest.mark.parametrize("case", [{}, {"share": "none"}], ids=str)
def test_dropout_that_drops_nothing_agrees(case: dict[str, Any]) -> None:
    def net() -> nn.Module:
        return seeded(lambda: nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.0), nn.Linear(16, 10)))

    assert_same_run(*(trained(executor, case, net=net()) for executor in ("vmap", "loop")))


@pytest.mark.parametrize("executor", FAST)
def test_own_heads_and_own_losses_give_the_loops_run(executor: str) -> None:
    def absolute(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).abs().sum(dim=1)

    x = np.random.default_rng(0).normal(size=(40, 12))
    alike, patched, hooked = (
        seeded(lambda: nn.Sequential(nn.Linear(10, 5), nn.Tanh(), nn.Linear(5, 3)))
        for _ in range(3)
    )
    patched[1].forward = torch.sin
    hooked[1].register_full_backward_hook(lambda _, found, __: (2 * found[0],))
    classes = np.arange(40) % 3
    given = [
        fgn.Client("own loss", fgn.regression(2, loss=absolute), (x, x[:, :2])),
        fgn.Client("same loss", fgn.regression(2, loss=absolute), (x[5:], x[5:, 2:4])),
        fgn.Client("own head", fgn.classification(3), (x, classes), head=alike),
        fgn.Client("same head", fgn.classification(3), (x[9:], classes[9:]), head=alike),
        fgn.Client("patched", fgn.classification(3), (x, classes), head=patched),
        fgn.Client("hooked", fgn.classification(3), (x, classes), head=hooked),
        fgn.Client("no bias", fgn.regression(1), (x, x[:, 0]), head=nn.Linear(10, 1, bias=False)),
    ]
    runs = [flat.train(network(), given, **BASE, executor=name) for name in ("loop", executor)]
    assert_same_run(*runs)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_head_that_was_changed_is_not_taken_for_one_that_looks_the_same(executor: str) -> None:
    """Clients alone, so that each must train as it does without the others."""
    x = np.random.default_rng(0).normal(size=(40, 12))
    heads = [
        seeded(lambda: nn.Sequential(nn.Linear(10, 5), nn.Tanh(), nn.Linear(5, 3)))
        for _ in range(4)
    ]
    heads[1][1].forward = torch.sin
    heads[2][1].register_forward_hook(lambda *args: 2 * args[-1])
    heads[3][1].register_full_backward_pre_hook(lambda _, found: (2 * found[0],))
    given = [
        fgn.Client(f"c{k}", fgn.classification(3), (x, np.arange(40) % 3), head=head)
        for k, head in enumerate(heads)
    ]
    how = {**BASE, "share": "none", "weighting": fgn.Equal(), "server_optimizer": "sgd"}
    together = flat.train(network(), given, **how, executor=executor)
    for one in given:
        alone = flat.train(network(), [one], **how, executor="loop")
        for modules in ("networks", "heads"):
            pair = [toys.parameters(getattr(run, modules)[one.name]) for run in (together, alone)]
            torch.testing.assert_close(*pair, rtol=0, atol=1e-10)


@pytest.mark.parametrize("change", ["forward hook", "pre-hook", "backward hook", "patched"])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_network_that_was_changed_is_computed_by_its_owners_code(change: str, steps: int) -> None:
    def net() -> nn.Module:
        made = network()
        if change == "forward hook":
            made[1].register_forward_hook(lambda *args: 2 * args[-1])
        elif change == "pre-hook":
            made[1].register_forward_pre_hook(lambda _, given: (given[0] + 1,))
        elif change == "backward hook":
            made[1].register_full_backward_hook(lambda _, found, __: (2 * found[0],))
        else:
            made[1].forward = torch.sin
        return made

    settings = {"shared_steps": steps, "server_optimizer": "sgd"}  # Adam ignores a factor
    loop, plain = trained("loop", settings, net=net()), trained("loop", settings)
    assert_same_run(trained("auto", settings, net=net()), loop)
    assert not torch.allclose(loop.network[0].weight, plain.network[0].weight)


@pytest.mark.parametrize("executor", FAST)
@pytest.mark.parametrize("gradient", ["infinite", "finite"])
@pytest.mark.parametrize("alike", [False, True], ids=["unlike", "alike"])
def test_a_client_that_fails_is_left_out_as_in_the_loop(
    executor: str, gradient: str, alike: bool
) -> None:
    def sometimes_infinite(output: Tensor, target: Tensor) -> Tensor:
        losses, fine = (output - target).square().sum(dim=1), target.abs().sum(dim=1) > 0.05
        return losses / fine if gradient == "infinite" else torch.where(fine, losses, torch.inf)

    x = np.random.default_rng(0).normal(size=(40, 12))
    task = fgn.regression(1, loss=sometimes_infinite)
    good = (x, np.arange(40) % 2)
    given = [
        fgn.Client("good", fgn.classification(2), good)
        if not alike
        else fgn.Client("good", task, (x, 1 + x[:, 0] ** 2)),
        fgn.Client("bad", task, (x, x[:, 0])),
    ]
    runs = [flat.train(network(), given, **BASE, executor=name) for name in ("loop", executor)]
    rows = runs[0].history
    assert 0 < (rows[rows.split == "batch"].active == 0).sum() < BASE["rounds"]
    assert_same_run(*runs)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(16), nn.Dropout(0.5)], ids=str)
def test_what_would_mix_clients_is_refused_by_a_joint_pass(layer, caplog):
    net = nn.Sequential(nn.Linear(12, 16), layer, nn.ReLU()).double()
    with pytest.raises(ConfigError, match="dropout or batch statistics"):
        trained("joint", {}, net=net)
    with caplog.at_level("INFO", logger="fedgradnorm"):
        trained("auto", {"rounds": 1}, net=net)
    assert "executor vmap (not joint: the shared network has dropout" in caplog.text


def test_a_layer_whose_output_is_changed_in_place_is_left_to_other_engines(caplog):
    def net() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return nn.Sequential(nn.Linear(12, 10), nn.ReLU(inplace=True)).double()

    caplog.set_level("INFO", logger="fedgradnorm")
    assert_same_run(trained("auto", {}, net=net()), trained("loop", {}, net=net()))
    assert "changed in place" in caplog.text


def test_rows_that_see_each_other_are_found_by_trial():
    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(dim=0)

    net = nn.Sequential(nn.Linear(12, 16), Centred()).double()
    with pytest.raises(ConfigError, match="batch statistics"):
        trained("joint", {}, net=net)


@pytest.mark.parametrize("executor", FAST)
def test_a_layer_that_is_used_twice_counts_twice(executor):
    def twice() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            layer = nn.Linear(12, 12)
            return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(12, 10)).double()

    options = {"shared_steps": 2} if executor == "vmap" else {}
    runs = [trained(name, options, net=twice()) for name in ("loop", executor)]
    assert_same_run(*runs)


def test_an_embedding_can_be_the_norm_layer():
    tokens = torch.arange(48).reshape(24, 2) % 20
    clients = [
        fgn.Client(name, fgn.classification(2), (tokens, (tokens.sum(dim=1) + k) % 2))
        for k, name in enumerate(("even", "odd"))
    ]
    runs = []
    for executor in ("loop", "joint"):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Embedding(20, 3), nn.Flatten()).double()
        arguments = {**BASE, "executor": executor}
        runs.append(flat.train(net, clients, weighting=fgn.GradNorm(), **arguments))
    assert_same_run(*runs)


@pytest.mark.parametrize("executor", ["loop", "vmap", "auto"])
@pytest.mark.parametrize("size", [1, 17])
def test_a_batch_of_one_example_for_batch_statistics_names_the_client(executor, size):
    x = np.random.default_rng(0).normal(size=(17, 12))
    given = [fgn.Client(f"c{n}", NUMBERS, (x[:n], x[:n, :3])) for n in (17, size + 1, size)[1:]]
    how = {**BASE, "batch_size": 1 if size > 1 else 8, "executor": executor}
    with pytest.raises(fgn.FedGradNormError, match="more than 1 value per channel") as caught:
        flat.train(with_statistics(), given, **how)
    if size == 1:
        assert isinstance(caught.value, fgn.ModelError)
        assert "client 'c1': " in str(caught.value)
        assert "use LayerNorm or GroupNorm" in str(caught.value)


@pytest.mark.parametrize("executor", ["loop", "joint", "vmap"])
def test_an_infinite_first_loss_is_taken_from_the_first_round(executor):
    """One example whose squared error overflows: its client must not have a loss ratio of 0."""
    x = np.random.default_rng(0).normal(size=(200, 12))
    y = x[:, :3].copy()
    y[3] = 1e200
    given = [fgn.Client("far", NUMBERS, (x, y)), fgn.Client("near", NUMBERS, (x, x[:, :3]))]
    how = {**BASE, "rounds": 3, "batch_size": 4, "head_init": "random", "executor": executor}
    rows = flat.train(network(), given, weighting=fgn.GradNorm(rule="direct"), **how).history
    ratios = rows[(rows.split == "batch") & (rows.client == "far")].loss_ratio.tolist()
    assert ratios[0] == pytest.approx(1)
    assert min(ratios) > 0.1


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_running_statistics_that_overflow_are_a_client_that_fails(executor):
    """Batch normalization of an infinite variance is 0, so the loss does not tell."""
    x = np.random.default_rng(0).normal(size=(40, 12))
    far = x.copy()
    far[7] = 1e200
    given = [
        fgn.Client("far", NUMBERS, (far, x[:, :3])),
        fgn.Client("near", NUMBERS, (x, x[:, :3])),
    ]
    run = flat.train(with_statistics(), given, **{**BASE, "executor": executor})
    rows = run.history[(run.history.split == "batch") & (run.history.active == 0)]
    assert set(rows.client) == {"far"}
    for client in run.clients.values():
        assert all(buffer.isfinite().all() for buffer in client.buffers.values())


class Counting(nn.Module):
    """A layer with a buffer that every training batch changes, as in spectral normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 10)
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.batches += 1
        return self.layer(x) * (1 + 1e-5 * self.batches)


@pytest.mark.parametrize("executor", ["loop", "vmap", "auto"])
@pytest.mark.parametrize("case", [{}, {"head_steps": 3}, {"shared_steps": 2}], ids=str)
def test_buffers_that_change_in_training_agree_and_survive_a_restart(executor, case, tmp_path):
    def start(name: str = executor, **more: Any) -> fgn.Run:
        return trained(name, {**case, **more}, net=seeded(Counting))

    loop, whole = start("loop"), start()
    assert_same_run(whole, loop)
    toys.interrupted(start, at=3, folder=tmp_path / "run", checkpoint_every=1)
    resumed = start(folder=tmp_path / "run", resume=True, checkpoint_every=1)
    assert resumed.table.text() == whole.table.text()
    for name, client in whole.clients.items():
        assert toys.same(client.buffers, resumed.clients[name].buffers)
        assert client.buffers["batches"] > 0


def test_a_joint_pass_does_not_run_a_network_with_changing_buffers():
    with pytest.raises(ConfigError, match="buffers that change in training"):
        trained("joint", {}, net=seeded(Counting))


@pytest.mark.parametrize("executor", ["loop", "vmap", "joint"])
def test_a_head_that_begins_in_place_leaves_the_features_alone(executor):
    """Two tasks of one client share its features, in training and in evaluations."""
    x = np.random.default_rng(0).normal(size=(24, 12))

    def clients(inplace: bool) -> list[fgn.Client]:
        def head() -> nn.Module:
            return seeded(lambda: nn.Sequential(nn.ReLU(inplace=inplace), nn.Linear(10, 3)))

        y = {"up": x[:, :3], "down": -x[:, :3]}
        tasks = dict.fromkeys(y, NUMBERS)
        heads = {name: head() for name in y}
        two = fgn.Client("two", tasks=tasks, train=(x, y), test=(x, y), head=heads)
        one = fgn.Client("one", NUMBERS, (x, x[:, 3:6]), test=(x, x[:, 3:6]), head=head())
        return [two, one]

    def net() -> nn.Module:
        return seeded(lambda: nn.Sequential(nn.Linear(12, 10), nn.Tanh()))

    how = {**BASE, "head_steps": 2, "executor": executor}
    runs = [flat.train(net(), clients(inplace), **how) for inplace in (True, False)]
    assert_same_run(*runs)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_loss_that_raises_names_the_client(executor):
    calls = []

    def fails(output: Tensor, target: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 9:
            raise KeyError("no such class")
        return (output - target).square().sum(dim=1)

    x = np.random.default_rng(0).normal(size=(40, 12))
    given = [
        fgn.Client("good", NUMBERS, (x, x[:, :3])),
        fgn.Client("bad", fgn.regression(1, loss=fails), (x, x[:, 0])),
    ]
    with pytest.raises(fgn.ModelError, match=r"client 'bad': .*no such class"):
        flat.train(network(), given, **BASE, executor=executor)


@pytest.mark.parametrize("first", ["layer", "division"])
def test_a_network_that_changes_its_inputs_in_place_is_refused_before_it_does(first):
    class Divides(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x /= 10
            return x

    begin = nn.ReLU(inplace=True) if first == "layer" else Divides()
    given = clients()
    before = [client.train[0].clone() for client in given]
    with pytest.raises(fgn.ModelError, match="the shared network changes its inputs in place"):
        flat.train(nn.Sequential(begin, nn.Linear(12, 10)).double(), given, **BASE)
    for client, x in zip(given, before, strict=True):
        assert torch.equal(client.train[0], x)


class SometimesShallow(nn.Module):
    """Stochastic depth that skips its second layer too seldom for a trial to see it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 10), nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        if self.training and float(torch.rand(())) < 1e-3:
            return z
        return z + self.second(z).tanh()


def test_a_network_that_draws_at_random_is_found_however_seldom_that_matters():
    with pytest.raises(ConfigError, match="dropout or batch statistics"):
        trained("joint", {}, net=seeded(SometimesShallow))


class DropsFeatures(nn.Module):
    """A head whose dropout is no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 3)

    def forward(self, z: Tensor) -> Tensor:
        return self.layer(nn.functional.dropout(z, 0.5, self.training))


@pytest.mark.parametrize("executor", ["loop", *FAST])
def test_heads_that_draw_at_random_give_one_run_for_one_seed(executor):
    x = np.random.default_rng(0).normal(size=(40, 12))
    given = [
        fgn.Client(f"c{k}", NUMBERS, (x, x[:, k : k + 3]), head=seeded(DropsFeatures))
        for k in range(2)
    ]
    texts = []
    for _ in range(2):
        torch.rand(3)  # what others draw does not matter
        how = {**BASE, "rounds": 3, "executor": executor}
        texts.append(flat.train(network(), given, **how).table.text())
    assert texts[0] == texts[1]


def test_training_inside_no_grad_is_training():
    with torch.no_grad():
        inside = trained("auto", {"rounds": 2})
    assert_same_run(inside, trained("auto", {"rounds": 2}))


class Branching(nn.Module):
    """What an example becomes depends on the sum of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x if float(x.detach().sum()) > -1e3 else -x)


def test_a_network_that_branches_on_its_inputs_is_not_run_for_all_clients_at_once():
    with pytest.raises(ConfigError, match="control flow that depends on its inputs"):
        trained("joint", {}, net=seeded(Branching))
    assert_same_run(
        trained("auto", {}, net=seeded(Branching)), trained("loop", {}, net=seeded(Branching))
    )
