"""What importing the package costs, what it offers, and that its examples are true."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import fedgradnorm

HEAVY = [
    *("pandas", "pyarrow", "h5py", "PIL", "safetensors", "scipy"),  # data and files
    *("matplotlib", "plotly", "pydantic", "typer", "click", "rich"),  # the report and commands
    *("torchjd", "torchmetrics", "flwr", "tensorboard"),  # what is installed on request
]
SOURCE = Path(fedgradnorm.__file__).parent


def with_examples() -> list[str]:
    """Modules whose docstrings hold examples."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            parts = path.relative_to(SOURCE).with_suffix("").parts
            found.append(".".join(("fedgradnorm", *(p for p in parts if p != "__init__"))))
    return found


def test_importing_loads_torch_and_numpy_and_nothing_heavier() -> None:
    code = (
        "import sys, torch, numpy\n"
        "before = set(sys.modules)\n"
        "import fedgradnorm\n"
        "assert all(hasattr(fedgradnorm, name) for name in fedgradnorm.__all__)\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "fedgradnorm" in loaded
    assert not set(HEAVY) & set(loaded)
    known = sys.stdlib_module_names | {"fedgradnorm", "torch", "numpy"}
    assert set(loaded) <= known


@pytest.mark.parametrize(
    ("process", "modules"),
    [
        ("any command", "fedgradnorm, fedgradnorm._cli"),
        ("what restarts a client", "fedgradnorm._flower.join"),
        ("SuperLink", "fedgradnorm._flower.wire.flower, fedgradnorm._flower.wire.transport"),
    ],
)
def test_what_trains_nothing_starts_without_torch(process: str, modules: str) -> None:
    if "_flower.wire" in modules:
        pytest.importorskip("flwr", reason="Flower is not installed")
    code = f"import sys, {modules}\nprint(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "torch" not in loaded, process


def test_importing_and_training_need_none_of_the_heavy_packages() -> None:
    code = (
        f"import sys\nfor name in {HEAVY!r}:\n    sys.modules[name] = None\n"
        "import numpy as np, torch, fedgradnorm as fgn\n"
        "x = np.eye(4)\n"
        "clients = [fgn.Client(n, fgn.regression(1), train=(x, x[:, 0])) for n in 'ab']\n"
        "run = fgn.train(torch.nn.Linear(4, 3), clients, weighting=fgn.GradNorm(), rounds=2)\n"
        "assert run.predict('a', x).shape == (4, 1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("module", ["_report", "data", "experiments", "_cli"])
def test_rooms_import_what_draws_and_reads_when_it_is_used(module: str) -> None:
    code = f"import sys, fedgradnorm.{module}\nprint(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"pandas", "pyarrow", "h5py", "PIL", "matplotlib", "plotly", "flwr"} & set(loaded)


def test_every_error_is_one_of_ours() -> None:
    for name in fedgradnorm.__all__:
        value = getattr(fedgradnorm, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, fedgradnorm.FedGradNormError)
    assert issubclass(fedgradnorm.Interrupted, KeyboardInterrupt)


def test_the_package_says_that_it_is_typed() -> None:
    assert resources.files("fedgradnorm").joinpath("py.typed").is_file()


@pytest.mark.parametrize("name", with_examples())
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    module = importlib.import_module(name)
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0
