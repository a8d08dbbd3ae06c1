"""``fgn.Balancer``: an ordinary loop, held to the paper, to TorchJD and to ``central``."""

from __future__ import annotations

import ast
import copy
import io
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
from test_gradnorm_toy import STEPS, toy_module

TASKS = ("depth", "edges", "normals")
HERE = Path(__file__).parent
BY_LOSS = ("uw", "imtl-l", "geometric-mean", "dwa", "famo", "q-ffl", "afl", "inverse-first-loss")
BY_NORM = ("fedgradnorm", "fedgradnorm-direct", "fedgradnorm-steady", "central")


class Network(nn.Module):
    """A trunk and three heads whose losses differ in scale by a factor of 1000, unless told."""

    scales: tuple[float, ...] = (1, 30, 1000)

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
        self.heads = nn.ModuleDict({task: nn.Linear(5, 2) for task in TASKS})

    def losses(self, x: Tensor) -> dict[str, Tensor]:
        features = self.trunk(x)
        scales = dict(zip(TASKS, self.scales, strict=True))
        target = x[:, :2]
        return {
            task: scales[task] * (head(features) - target).square().mean()
            for task, head in self.heads.items()
        }


def network(dtype: torch.dtype = torch.float64) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network().to(dtype)


def batches(count: int, dtype: torch.dtype = torch.float64) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(16, 6, generator=generator, dtype=dtype)


def train(
    net: Network, balance: fgn.Balancer, data: Iterator[Tensor], lr: float = 1e-3
) -> list[dict[str, float]]:
    """The weights after every step."""
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    history = []
    for x in data:
        optimizer.zero_grad()
        balance(net.losses(x)).backward()
        optimizer.step()
        history.append(balance.weights)
    return history


def numbers(history: list[dict[str, float]]) -> np.ndarray:
    return np.array([list(weights.values()) for weights in history])


def test_importing_it_loads_the_weightings_and_nothing_of_federations() -> None:
    code = "import sys\nfrom fedgradnorm import Balancer\nprint(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    ours = {name for name in loaded if name.partition(".")[0] == "fedgradnorm"}
    beside = {"", "_balancer", "_checks", "_errors", "_lazy", "_version", "weighting"}
    assert {f"{name}..".split(".")[1] for name in ours} == beside
    assert not {"pandas", "pyarrow", "flwr", "torchjd", "scipy"} & set(loaded)


@pytest.mark.parametrize("method", BY_LOSS + BY_NORM + ("rlw", "fedrep"))
def test_weights_sum_to_the_number_of_tasks_and_no_gradient_flows_through_them(method: str) -> None:
    net = network()
    balance = fgn.Balancer(TASKS, method=method, shared=net.trunk[-1])
    for x in batches(4):
        before = balance.weights
        losses = net.losses(x)
        loss = balance(losses)
        assert all(p.grad is None for p in net.parameters())  # measuring leaves no trace
        used = before if method == "central" else balance.weights
        plain = sum(used[task] * losses[task] for task in TASKS)
        wanted = torch.autograd.grad(plain, list(net.parameters()), retain_graph=True)
        loss.backward()
        for parameter, gradient in zip(net.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-12, atol=1e-12)
            parameter.grad = None
        assert sum(balance.weights.values()) == pytest.approx(len(TASKS), abs=1e-9)


def test_the_norm_is_that_of_the_gradient_on_the_layer() -> None:
    net = network()
    balance = fgn.Balancer(TASKS, shared=net.trunk[-1])
    (x,) = batches(1)
    losses = net.losses(x)
    balance(losses)
    for task, loss in losses.items():
        parts = torch.autograd.grad(loss, list(net.trunk[-1].parameters()), retain_graph=True)
        length = torch.cat([part.flatten() for part in parts]).norm()
        assert balance.norms[task] == pytest.approx(float(length), rel=1e-12)
    norms = balance.norms  # the direct rule's first step: p_i ~ 1 / G_i
    inverse = {task: 1 / norms[task] for task in TASKS}
    wanted = {task: 3 * value / sum(inverse.values()) for task, value in inverse.items()}
    assert balance.weights == pytest.approx(wanted, rel=1e-12)


def by_the_paper(
    net: Network, data: Iterator[Tensor], gamma: float, lr: float
) -> Iterator[list[float]]:
    """Chen et al. 2018, algorithm 1, with autograd for the weights' own gradient."""
    weights = torch.ones(3, dtype=torch.float64, requires_grad=True)
    steps_weights = torch.optim.Adam([weights], lr=lr)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    layer, first = list(net.trunk[-1].parameters()), None
    for x in data:
        losses = torch.stack(list(net.losses(x).values()))
        first = losses.detach() if first is None else first
        norms = []
        for i in range(3):
            gradient = torch.autograd.grad(
                weights[i] * losses[i], layer, retain_graph=True, create_graph=True
            )
            norms.append(torch.cat([g.flatten() for g in gradient]).norm())
        length, ratio = torch.stack(norms), losses.detach() / first
        target = (length.mean() * (ratio / ratio.mean()) ** gamma).detach()
        (slope,) = torch.autograd.grad((length - target).abs().sum(), weights, retain_graph=True)
        optimizer.zero_grad()
        (weights.detach() * losses).sum().backward()
        optimizer.step()
        weights.grad = slope
        steps_weights.step()
        with torch.no_grad():
            weights *= 3 / weights.sum()
        yield weights.tolist()


@pytest.mark.parametrize(("gamma", "scales"), [(0.12, (1, 30, 1000)), (1.5, (1, 1.2, 1.5))])
def test_it_is_the_papers_algorithm_1(gamma: float, scales: tuple[float, ...]) -> None:
    """With losses of one scale, the weights follow the pace, and so the sign of its exponent."""
    rule = fgn.GradNorm(gamma=gamma, lr=0.025, floor=None)
    net, other = network(), network()
    net.scales = other.scales = scales
    balance = fgn.Balancer(TASKS, weighting=rule, shared=net.trunk[-1], step_with="previous")
    ours = numbers(train(net, balance, batches(30)))
    paper = np.array(list(by_the_paper(other, batches(30), gamma, 0.025)))
    np.testing.assert_allclose(ours, paper, rtol=0, atol=1e-10)


def test_losses_are_compared_with_the_first_ones() -> None:
    """The direct rule without smoothing: p_i ~ (F_i / F_i0)^gamma / G_i, at every step."""
    net, first = network(), None
    rule = fgn.GradNorm(gamma=0.9, rule="direct", smoothing=0)
    balance = fgn.Balancer(TASKS, weighting=rule, shared=net.trunk[-1])
    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
    for x in batches(12):
        losses = net.losses(x)
        now = np.array([loss.item() for loss in losses.values()])
        first = now if first is None else first
        optimizer.zero_grad()
        balance(losses).backward()
        optimizer.step()
        wanted = (now / first) ** 0.9 / np.array(list(balance.norms.values()))
        found = np.array(list(balance.weights.values()))
        np.testing.assert_allclose(found, 3 * wanted / wanted.sum(), rtol=1e-9)
    assert (now < 0.9 * first).any()


def test_it_is_the_method_central_on_the_same_data() -> None:
    """It steps the network with the mean of weighted gradients, and heads with plain ones."""
    net = network()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 6))
    targets = {task: (3.0**i) * x[:, i : i + 2] for i, task in enumerate(TASKS)}
    clients = [
        fgn.Client(t, fgn.regression(2), train=(x, y), head=copy.deepcopy(net.heads[t]))
        for t, y in targets.items()
    ]
    run = fgn.train(
        copy.deepcopy(net.trunk), clients,
        method="central", rounds=20, lr=1e-2, local=fgn.Local(batch_size=None),
        callbacks=[fgn.Evaluation(every=0)],
    )  # fmt: skip
    balance = fgn.Balancer(TASKS, method="central", shared=net.trunk[-1])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    inputs = torch.tensor(x)
    for _ in range(20):
        used = balance.weights
        features = net.trunk(inputs)
        losses = {
            task: nn.functional.mse_loss(net.heads[task](features), torch.tensor(y))
            for task, y in targets.items()
        }
        optimizer.zero_grad()
        balance(losses).backward()
        for parameter in net.trunk.parameters():
            parameter.grad /= len(TASKS)
        for task, head in net.heads.items():
            for parameter in head.parameters():
                parameter.grad /= used[task]
        optimizer.step()
    last = run.history[run.history["round"] == 20].dropna(subset=["weight"])
    central = dict(zip(last.client, last.weight, strict=True))
    assert balance.weights == pytest.approx(central, abs=1e-10)
    for mine, theirs in zip(net.trunk.parameters(), run.network.parameters(), strict=True):
        torch.testing.assert_close(mine.detach(), theirs.detach().double(), rtol=0, atol=1e-10)


def torchjd_gradient(scalarizer: Callable[[Tensor], Tensor], values: Tensor) -> np.ndarray:
    """What a scalarizer multiplies each task's gradient by, scaled to sum to their number."""
    values = values.clone().requires_grad_()
    (slope,) = torch.autograd.grad(scalarizer(values), values)
    return (len(values) * slope / slope.sum()).numpy()


LOSSES = torch.tensor(
    [[1.0, 50.0, 0.02], [0.8, 60.0, 0.019], [0.9, 20.0, 0.01], [0.3, 22.0, 0.011]] * 3,
    dtype=torch.float64,
)


@pytest.mark.parametrize("name", ["uw", "imtl-l", "geometric-mean", "dwa", "famo"])
def test_it_agrees_with_the_scalarizer_of_torchjd(name: str) -> None:
    theirs = pytest.importorskip("torchjd.scalarization")
    made = {"uw": theirs.UW, "imtl-l": theirs.IMTLL, "famo": theirs.FAMO}
    other = (
        made[name](3) if name in made else theirs.DWA() if name == "dwa" else theirs.GeometricMean()
    )
    other = other.double() if isinstance(other, nn.Module) else other
    chosen = {"method": name, "weighting": {"every": 1} if name == "dwa" else None}
    balance = fgn.Balancer(TASKS, **chosen)
    adam = torch.optim.Adam(other.parameters(), lr=0.01) if name in ("uw", "imtl-l") else None
    for step, values in enumerate(LOSSES):
        if adam is not None:  # they step after the network; ours before
            adam.zero_grad()
            other(values).backward()
            adam.step()
        if name == "famo" and step:
            other.update(values)
        wanted = torchjd_gradient(other, values)
        if name == "dwa":
            other.step()
        leaves = values.clone().requires_grad_()
        balance(dict(zip(TASKS, leaves, strict=True))).backward()
        np.testing.assert_allclose(leaves.grad.numpy(), wanted, rtol=1e-7, atol=1e-10)


@pytest.mark.slow
def test_it_frees_the_minor_task_of_the_papers_toy() -> None:
    seed = 0
    toy: ModuleType = toy_module()
    sigmas = toy.LOUDNESS[2]
    clients = toy.tasks(sigmas, seed, STEPS * 48)

    def losses(trunk: nn.Module, heads: nn.ModuleList, split: str, rows: slice) -> list[Tensor]:
        data = [[torch.as_tensor(a[rows]).float() for a in getattr(c, split)] for c in clients]
        return [
            nn.functional.mse_loss(head(trunk(x)), y)
            for head, (x, y) in zip(heads, data, strict=True)
        ]

    def train(weighting: fgn.Weighting) -> tuple[float, list[float]]:
        trunk = toy.trunk(seed)
        heads = nn.ModuleList(nn.Linear(toy.WIDTH, toy.OUTPUTS) for _ in sigmas)
        names = [client.name for client in clients]
        balance = fgn.Balancer(names, weighting=weighting, shared=trunk[-2], step_with="previous")
        optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], lr=1e-3)
        with torch.no_grad():
            first = losses(trunk, heads, "test", slice(None))
        for step in range(STEPS):
            found = losses(trunk, heads, "train", slice(48 * step, 48 * step + 48))
            optimizer.zero_grad()
            balance(dict(zip(names, found, strict=True))).backward()
            optimizer.step()
        with torch.no_grad():
            last = losses(trunk, heads, "test", slice(None))
        left = sum(float(a / b) for a, b in zip(last, first, strict=True))
        return left, list(balance.weights.values())

    equal, _ = train(fgn.Equal())
    balanced, (minor, dominant) = train(fgn.GradNorm(gamma=0.12, lr=0.025))
    assert dominant < 0.1 < minor
    assert balanced < 0.9 * equal


def ranks(folder: Path, count: int) -> list[dict[str, dict[str, object]]]:
    one = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = str(HERE / "balancer_ranks.py")
    started = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(count), str(folder)],
            env=one, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    for process in started:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    return [torch.load(folder / f"{rank} of {count}.pt") for rank in range(count)]


@pytest.mark.slow
def test_two_ranks_weigh_as_one_process_does(tmp_path: Path) -> None:
    (alone,), (first, second) = ranks(tmp_path, 1), ranks(tmp_path, 2)
    for case in first:
        for mine, theirs in zip(first[case]["history"], second[case]["history"], strict=True):
            assert mine[0] == theirs[0], case  # the same weights, bit for bit
        for name, value in first[case]["parameters"].items():
            assert torch.equal(value, second[case]["parameters"][name]), case
    for case in ("all present", "NaN"):
        for (weights, norms, _), (whole, lengths, _) in zip(
            first[case]["history"], alone[case]["history"], strict=True
        ):
            assert weights == pytest.approx(whole, abs=1e-10)
            assert norms == pytest.approx(lengths, rel=1e-10)
        for name, value in alone[case]["parameters"].items():
            torch.testing.assert_close(first[case]["parameters"][name], value, rtol=0, atol=1e-10)
    steps = second["NaN"]["history"]
    assert [finite for _, _, finite in steps].count(False) == 1
    assert steps[3][0] == steps[2][0] != steps[4][0]


def test_a_task_may_be_missing_and_keeps_its_last_measurement() -> None:
    net = network()
    balance = fgn.Balancer(TASKS, shared=net.trunk[-1])
    for step, x in enumerate(batches(9)):  # one task after the other, as with alternating loaders
        task = TASKS[step % 3]
        loss = balance({task: net.losses(x)[task]})
        assert loss.item() == pytest.approx(balance.weights[task] * net.losses(x)[task].item())
    assert sum(balance.weights.values()) == pytest.approx(3, abs=1e-9)
    shares = [balance.weights[task] * balance.norms[task] for task in TASKS]
    assert max(shares) < 5 * min(shares)  # the losses' scales differ by a factor of 1000
    empty = balance({})
    empty.backward()
    assert empty.item() == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_passed_on_and_changes_no_weight(bad: float) -> None:
    net, plain = network(), network()
    balance = fgn.Balancer(TASKS, shared=net.trunk[-1])
    reference = fgn.Balancer(TASKS, shared=plain.trunk[-1])
    x = next(batches(1))
    balance(net.losses(x))
    reference(plain.losses(x))
    broken = net.losses(x)
    broken["edges"] = broken["edges"] * bad
    assert not balance(broken).isfinite()
    assert balance.weights == reference.weights
    balance(net.losses(x / 2))
    reference(plain.losses(x / 2))
    assert balance.weights == reference.weights  # no trace of it later, either


def test_only_training_moves_the_weights() -> None:
    net = network()
    balance = fgn.Balancer(TASKS, shared=net.trunk[-1])
    for x in batches(2):
        balance(net.losses(x))
    state, x = copy.deepcopy(balance.state_dict()), next(batches(1))
    with torch.no_grad():
        loss = balance(net.losses(x))
    balance.eval()
    assert balance(net.losses(x)).item() == loss.item()
    assert str(balance.state_dict()) == str(state)


def test_every_measures_in_some_steps_and_warmup_begins_with_equal_weights() -> None:
    net = network()
    balance = fgn.Balancer(TASKS, shared=net.trunk[-1], every=3, warmup=2)
    history = numbers(train(net, balance, batches(9)))
    changed = [i for i in range(1, 9) if not np.array_equal(history[i], history[i - 1])]
    assert np.array_equal(history[:2], np.ones((2, 3)))
    assert changed == [2, 5, 8]


def test_gradients_accumulate_with_the_weights_of_one_measurement() -> None:
    net = network()
    balance = fgn.Balancer(TASKS, shared=net.trunk[-1], every=4)
    wanted = [torch.zeros_like(p) for p in net.parameters()]
    for x in batches(4):
        (balance(net.losses(x)) / 4).backward()
        plain = sum(balance.weights[task] * loss for task, loss in net.losses(x).items()) / 4
        for total, part in zip(wanted, torch.autograd.grad(plain, net.parameters()), strict=True):
            total += part
    for parameter, total in zip(net.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, total)


@pytest.mark.parametrize("method", [*BY_LOSS, *BY_NORM, "rlw"])
def test_a_restored_balancer_goes_on_as_the_saved_one(method: str) -> None:
    def made(net: Network) -> fgn.Balancer:
        return fgn.Balancer(TASKS, method=method, shared=net.trunk[-1], every=2, warmup=1)

    whole = network()
    balance = made(whole)
    for x in batches(5):
        balance(whole.losses(x))
    file = io.BytesIO()
    torch.save({"network": whole.state_dict(), "balance": balance.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = network()
    restored = made(other)
    other.load_state_dict(saved["network"])
    restored.load_state_dict(saved["balance"])
    assert restored.weights == balance.weights
    for x in batches(4):
        assert restored(other.losses(x)).item() == balance(whole.losses(x)).item()
    assert restored.weights == balance.weights


def test_it_is_saved_with_the_model_that_it_belongs_to_and_adds_no_parameter() -> None:
    net = network()
    names = list(net.state_dict())
    net.balance = fgn.Balancer(TASKS, shared=net.trunk[-1])
    assert [name for name, _ in net.named_parameters()] == names
    assert set(net.state_dict()) - set(names) == {"balance._extra_state"}
    twin = copy.deepcopy(net)
    (x,) = batches(1)
    twin.balance(twin.losses(x))  # which measures its own layer, not the first one's
    assert twin.balance.weights != net.balance.weights


def test_mixed_precision_measures_unscaled_losses_and_skips_bad_steps() -> None:
    net, plain = network(torch.float32), network(torch.float32)
    balance = fgn.Balancer(TASKS, shared=net.trunk[-1])
    reference = fgn.Balancer(TASKS, shared=plain.trunk[-1])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    for step, x in enumerate(batches(4, torch.float32)):
        with torch.autocast("cpu", torch.bfloat16):
            losses, others = net.losses(x), plain.losses(x)
        if step == 2:
            losses["depth"] = losses["depth"] * math.inf
        before = copy.deepcopy(net.state_dict())
        optimizer.zero_grad()
        scaler.scale(balance(losses)).backward()
        scaler.step(optimizer)
        scaler.update()
        if step == 2:  # skipped, by the scaler and by the balancer
            assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
        else:
            reference(others)
        plain.load_state_dict(net.state_dict())
        assert balance.weights == reference.weights


def test_a_scaler_keeps_small_float16_gradients_from_vanishing() -> None:
    def norm(scaler: torch.amp.GradScaler | None, kind: torch.dtype) -> float:
        net = network(torch.float32)
        balance = fgn.Balancer(TASKS, shared=net.trunk[-1], scaler=scaler)
        (x,) = batches(1, torch.float32)
        with torch.autocast("cpu", kind, enabled=kind is not torch.float32):
            out = net.heads["depth"](net.trunk(x))
        losses = {"depth": 1e-7 * (out.float() - x[:, :2]).square().mean()}
        balance(losses)
        return balance.norms["depth"]

    exact = norm(None, torch.float32)
    assert norm(None, torch.float16) < 0.5 * exact
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    assert norm(scaler, torch.float16) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("method", ["fedgradnorm-direct", "uw"])
def test_a_step_waits_once_for_the_device(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are float64 and on the host; what is float32 would be on a GPU."""
    waits: list[str] = []

    def counted(name: str) -> Callable[..., object]:
        read = getattr(Tensor, name)

        def call(self: Tensor, *args: object) -> object:
            if self.dtype == torch.float32:
                waits.append(name)
            return read(self, *args)

        return call

    for name in ("tolist", "item", "cpu", "numpy", "__bool__", "__float__"):
        monkeypatch.setattr(Tensor, name, counted(name))
    net = network(torch.float32)
    scaler = torch.amp.GradScaler("cpu")
    balance = fgn.Balancer(TASKS, method=method, shared=net.trunk[-1], scaler=scaler)
    for count, x in enumerate(batches(3, torch.float32)):
        balance(net.losses(x))
        assert waits == ["tolist"] * (count + 1)


def test_a_compiled_model_is_weighed_as_the_plain_one() -> None:
    plain, net = network(), network()
    net.trunk.compile(backend="aot_eager")  # the compiler's graphs, without its code
    for one in (plain, net):
        one.balance = fgn.Balancer(TASKS, shared=one.trunk[-1])
    for x in batches(2):
        for one in (plain, net):
            one.zero_grad()
            one.balance(one.losses(x)).backward()
        assert net.balance.weights == pytest.approx(plain.balance.weights, abs=1e-10)
        for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)


WRONG = {
    "a misspelt rule": (
        {"method": "fedgradnorm", "weighting": {"rule": "dircet"}},
        "did you mean 'direct'",
    ),
    "no layer": ({"weighting": {"gamma": 0.5}}, "pass shared="),
    "a layer without weights": ({"shared": nn.ReLU()}, "none that require a gradient"),
    "a name for a layer": ({"shared": "backbone"}, "shared must be a layer or its parameters"),
    "two choices": (
        {"method": "uw", "weighting": fgn.GradNorm()},
        "'uw' weighs clients",
    ),
    "inner products": ({"method": "mgda"}, "MGDA compares the whole gradients of all tasks"),
    "gradients": ({"method": "config"}, "ConFIG compares the whole gradients"),
    "sizes": ({"method": "by-size"}, "BySize needs numbers of examples"),
    "a federated method": ({"method": "fedprox"}, "'fedprox' sets"),
    "no weighting": ({"weighting": "gradnorm"}, "weighting must be options of the method"),
    "an option of the weighting": ({"rule": "direct"}, r'weighting=\{"gamma": 0.5'),
    "a scaler that is none": ({"method": "uw", "scaler": True}, "scaler must be a torch.amp"),
    "other weights": ({"method": "uw", "step_with": "old"}, "unknown step_with 'old'"),
    "every = 0": ({"method": "uw", "every": 0}, "a balancer's every must be a whole number >= 1"),
    "two tasks of one name": ({"tasks": ["a", "a"]}, "tasks must differ"),
    "a text for tasks": ({"tasks": "ab"}, "a balancer's tasks must be a list of names"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused(what: str) -> None:
    options, message = WRONG[what]
    options = {"tasks": TASKS, **options}
    with pytest.raises(fgn.FedGradNormError, match=message):
        fgn.Balancer(**options)


def test_losses_that_do_not_fit_are_refused() -> None:
    net = network()
    balance = fgn.Balancer(TASKS, shared=net.trunk[-1])
    one = torch.ones((), requires_grad=True)
    for losses, message in (
        ({"dept": one}, "did you mean 'depth'"),
        ({"depth": 1.0}, r"'depth' must be a tensor, without \.item\(\), not 1\.0"),
        ({"depth": one.expand(3)}, r"shape \(3,\).*\.mean\(\)"),
        ({"depth": one}, "does not depend on the parameters"),
        ({"depth": one.detach()}, "does not depend on the parameters"),
        ([one], "one loss per task"),
    ):
        with pytest.raises(fgn.FedGradNormError, match=message):
            balance(losses)
    used = net.losses(next(batches(1)))
    used["depth"].backward()
    with pytest.raises(fgn.ModelError, match=r"task 'depth' .* before backward\(\)"):
        balance(used)


def test_a_state_that_does_not_fit_is_refused() -> None:
    balance = fgn.Balancer(TASKS, shared=network().trunk[-1])
    for other, message in (
        (fgn.Balancer(("a", "b"), method="uw"), "same tasks in the same order"),
        (fgn.Balancer(TASKS, method="uw"), r"another weighting than GradNorm\(rule='direct'\)"),
    ):
        with pytest.raises(fgn.ConfigError, match=message):
            balance.load_state_dict(other.state_dict())


@pytest.mark.parametrize(("method", "said"), [("fedgradnorm-direct", 1), ("equal-norms", 0)])
def test_a_negative_loss_is_pointed_out_once_where_it_is_compared(
    method: str, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    net = network()
    balance = fgn.Balancer(TASKS, method=method, shared=net.trunk[-1])
    for x in batches(2):
        losses = net.losses(x)
        losses["edges"] = losses["edges"] - 1000
        balance(losses)
    assert caplog.text.count("the loss of task 'edges' is negative") == said


def test_the_example_for_an_unknown_keyword_works() -> None:
    with pytest.raises(fgn.ConfigError, match="takes no 'gamma'") as caught:
        fgn.Balancer(TASKS, shared=nn.Linear(2, 2), gamma=0.5)
    options = ast.literal_eval(str(caught.value).rpartition("weighting=")[2])
    assert fgn.Balancer(TASKS, shared=nn.Linear(2, 2), weighting=options).weighting.gamma == 0.5
