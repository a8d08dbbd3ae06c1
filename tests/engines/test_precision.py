"""bf16: only the matrix products of the shared network have fewer digits; it needs a GPU."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import flat
from experiments.small_config import small_config
from fedgradnorm._engines import choice
from fedgradnorm._runs.run import Run
from fedgradnorm._training.callbacks import Progress
from fedgradnorm.experiments import load_config, run
from fedgradnorm.experiments._compare import compare
from fedgradnorm.models._flat import working_copy
from oracle import mixed_clients

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda")
REFUSED = "precision = 'bf16' needs a GPU; use 'float32'"
NETWORKS = {"network1": (1, 40, 40), "network2": (256,)}
ENGINES = {"loop": 2, "vmap": 2, "joint": 1}
"""With how many shared steps each is tried."""


def train(network: str, precision: str, executor: str, **settings: object) -> Run:
    torch.manual_seed(0)
    clients = mixed_clients(NETWORKS[network], (60, 50, 40))
    device = "cuda" if precision == "bf16" else "cpu"
    options = {"rounds": 8, "device": device, "batch_size": 16, "eval_every": 0, **settings}
    return flat.train(
        getattr(fgn.models, network)(), clients, precision=precision, executor=executor, **options
    )  # type: ignore[arg-type]


def reports(run: Run, column: str) -> Tensor:
    batch = run.history["split"] == "batch"
    return torch.tensor(run.history.loc[batch, column].to_numpy())


@gpu
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("executor", ENGINES)
def test_losses_are_nearly_those_of_float32(network: str, executor: str) -> None:
    steps = ENGINES[executor]
    exact, rough = (  # rounding grows: losses are .2 % apart after 3 rounds, up to 6 % after 8
        train(network, precision, executor, shared_steps=steps, device="cuda", rounds=3)
        for precision in ("float32", "bf16")
    )
    for column, apart in (("loss", 0.02), ("grad_norm", 0.3)):
        a, b = (reports(run, column) for run in (exact, rough))
        assert (b / a - 1).abs().max() > 1e-4  # more than rounding
        torch.testing.assert_close(a, b, rtol=apart, atol=0)
    assert all(p.dtype == torch.float32 for p in rough.network.parameters())
    assert all(p.dtype == torch.float32 for h in rough.heads.values() for p in h.parameters())


@gpu
def test_networks_stepped_in_one_call_are_those_stepped_one_by_one(monkeypatch) -> None:
    together = train("network2", "bf16", "vmap", shared_steps=2)
    monkeypatch.setitem(choice.BYTES_AT_ONCE, "cuda", 1)
    apart = train("network2", "bf16", "vmap", shared_steps=2)
    for column in ("loss", "grad_norm"):
        a, b = (reports(run, column) for run in (apart, together))
        torch.testing.assert_close(a, b, rtol=0.02, atol=0)


class Watching(nn.Linear):
    """A head that looks at what it is given."""

    seen: ClassVar[set[tuple[torch.dtype, bool]]] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add((x.dtype, torch.is_autocast_enabled("cuda")))
        return super().forward(x)


@gpu
@pytest.mark.parametrize("executor", ENGINES)
def test_heads_and_losses_have_all_their_digits(executor: str, monkeypatch) -> None:
    monkeypatch.setattr(Watching, "seen", set())
    x = torch.randn(40, 6)
    clients = [
        fgn.Client(name, fgn.regression(1), (x, x[:, :1]), head=Watching(5, 1)) for name in "ab"
    ]
    network = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
    how = {"precision": "bf16", "executor": executor, "shared_steps": ENGINES[executor]}
    flat.train(network, clients, rounds=2, batch_size=8, device="cuda", **how)  # type: ignore[arg-type]
    assert Watching.seen == {(torch.float32, False)}


@gpu
@pytest.mark.parametrize(
    "settings", [{"participation": 0.6}, {"ditto": 0.1}, {"final_head_steps": 3}], ids=str
)
def test_it_goes_with_other_settings_and_resumes_exactly(tmp_path: Path, settings: dict) -> None:
    def stop(event: Progress) -> None:
        if event.round >= 4:
            raise KeyboardInterrupt

    how = {**settings, "checkpoint_every": 2}
    whole = train("network2", "bf16", "auto", **how)
    with pytest.raises(fgn.Interrupted):
        train("network2", "bf16", "auto", folder=tmp_path / "run", progress=stop, **how)
    resumed = train("network2", "bf16", "auto", folder=tmp_path / "run", resume=True, **how)
    assert resumed.history.equals(whole.history)


@pytest.mark.parametrize(
    ("precision", "products"),
    [("float32", "highest"), ("tf32", "high"), pytest.param("bf16", "highest", marks=gpu)],
)
def test_the_processs_own_numerics_are_put_back(precision: str, products: str) -> None:
    def now() -> tuple[str, bool, bool, bool]:
        flags = torch.backends.cudnn
        return (
            torch.get_float32_matmul_precision(),
            flags.allow_tf32,
            flags.deterministic,
            flags.benchmark,
        )

    before, seen = now(), set()
    train("network2", precision, "joint", rounds=1, progress=lambda _: seen.add(now()))
    assert seen == {(products, precision == "tf32", True, False)}
    assert now() == before


@pytest.mark.parametrize("precision", ["float32", pytest.param("bf16", marks=gpu)])
@pytest.mark.parametrize("executor", ENGINES)
def test_an_autocast_around_the_call_changes_nothing(precision: str, executor: str) -> None:
    how = {"rounds": 2, "shared_steps": ENGINES[executor]}
    plain = train("network2", precision, executor, **how)
    with torch.autocast("cuda" if precision == "bf16" else "cpu", torch.bfloat16):
        inside = train("network2", precision, executor, **how)
    assert inside.history.equals(plain.history)


@gpu
def test_a_network_in_double_precision_is_refused() -> None:
    with pytest.raises(fgn.ModelError, match="in float32, this one is in float64"):
        working_copy(nn.Linear(4, 3).double(), GPU, bf16=True)


class Moody(nn.Linear):
    """Does not always work."""

    problem: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.problem is not None:
            raise self.problem
        return super().forward(x)


@gpu
@pytest.mark.parametrize("problem", [RuntimeError, KeyboardInterrupt])
def test_it_ends_with_the_forward_pass_whatever_happens(problem: type[BaseException]) -> None:
    module = working_copy(Moody(4, 3), GPU, bf16=True).module
    x = torch.randn(2, 4, device=GPU)
    assert module(x).dtype == torch.float32
    assert not torch.equal(module(x), nn.functional.linear(x, module.weight, module.bias))
    module.problem = problem()
    with pytest.raises(problem):
        module(x)
    assert not torch.is_autocast_enabled("cuda")
    module.problem = None
    assert module(x).dtype == torch.float32


@gpu
def test_a_copy_of_a_working_copy_has_weights_of_its_own() -> None:
    module = working_copy(nn.Linear(4, 3), GPU, bf16=True).module
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.weight.zero_()
        other.bias.zero_()
    x = torch.randn(2, 4, device=GPU)
    assert not other(x).any()
    assert module(x).any()


def test_bf16_on_a_cpu_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(fgn.ConfigError, match=REFUSED):
        train("network2", "bf16", "auto", device="cpu", folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bf16_on_a_cpu_is_refused_in_a_config_and_a_comparison(tmp_path: Path) -> None:
    file = small_config(tmp_path)
    config = load_config(file, ["compute.precision='bf16'", "compute.device='cpu'"])
    with pytest.raises(fgn.ConfigError, match=REFUSED):
        run(config, tmp_path / "run")
    with pytest.raises(fgn.ConfigError, match=REFUSED):
        compare(config, ["fedrep"], folder=tmp_path / "runs")
