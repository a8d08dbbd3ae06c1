"""One of each thing that users can add, declared in one module, and used everywhere."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedgradnorm as fgn
from experiments.small_config import small_config
from fedgradnorm._cli import app
from fedgradnorm._methods import METHODS
from fedgradnorm._registry import Registry
from fedgradnorm._report.page import make_page
from fedgradnorm._round.executor import EXECUTORS
from fedgradnorm._round.reports import COLUMNS
from fedgradnorm.data._source import SOURCES
from fedgradnorm.experiments import load_config, run
from fedgradnorm.experiments._compare import compare
from fedgradnorm.experiments._execute import execute, resume_config
from fedgradnorm.tasks._kind import KINDS
from fedgradnorm.tasks._named_metrics import METRICS, higher_is_better

REGISTRIES = (METHODS, SOURCES, METRICS, KINDS, COLUMNS, EXECUTORS)
MODULE = """
import numpy as np
import torch
import fedgradnorm as fgn
from fedgradnorm._engines import Engine
from fedgradnorm._round.executor import Executor


class Rooted(fgn.Weighting):
    needs = fgn.Needs.LOSS

    def __init__(self, power: float = 0.5) -> None:
        super().__init__()
        self.power = power

    def weigh(self, signals):
        return signals.loss ** self.power


fgn.Method(
    "rooted", Rooted, settings={"local.proximal": 0.01, "local.sends": "model"},
    summary="weights are roots of losses", source="a test", equation=r"p_i = F_i^q",
).register()


class Counts(fgn.tasks.Kind):
    name = "counts"

    def loss(self, output, target):
        return (output.exp() - target * output).mean(dim=1)

    def answer(self, output):
        return output.exp()


@fgn.tasks.metric("close", higher=True, kinds=["counts", "regression"])
def close(output, target):
    return ((output.exp() - target).abs() < 1).double().mean()


def crowd(*, seed: int, people: int = 2, examples: int = 24):
    made = []
    for k in range(people):
        x = np.random.default_rng([seed, k]).normal(size=(examples, 3)).astype(np.float32)
        y = np.random.default_rng(k).poisson(np.exp(x[:, :1])).astype(np.float32)
        task = fgn.tasks.of_kind("counts", 1, metrics=["close"])
        made.append(fgn.Client(f"person-{k}", task, (x, y), test=(x, y)))
    return made


fgn.data.Source("crowd", crowd, "people who count").register()
fgn.Column("force", "weight x gradient norm", lambda r, w, _: w * r.grad_norm).register()
Executor("turn", Engine).register()
"""
CONFIG = """
name = "declared"
imports = ["MODULE"]
method = "rooted"
rounds = 4

[data]
source = "crowd"
people = 3

[network]
name = "mlp"
widths = [6, 5]

[compute]
executor = "turn"

[local]
batch_size = 8

[checkpoints]
every = 2

[evaluation]
every = 2

[weighting]
power = 0.7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that declares one of each, which is not imported yet."""
    name = f"declared_{re.sub('[^0-9a-z]', '_', tmp_path.name)}_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    with ExitStack() as stack:
        for registry in REGISTRIES:
            stack.enter_context(registry.restored())
        yield name
    sys.modules.pop(name, None)


@pytest.fixture
def config(module: str, tmp_path: Path) -> Path:
    path = tmp_path / "declared.toml"
    path.write_text(CONFIG.replace("MODULE", module))
    return path


def test_each_is_used_from_python(module: str, tmp_path: Path) -> None:
    own = importlib.import_module(module)
    network = torch.nn.Linear(3, 4)
    clients = own.crowd(seed=0)
    run = fgn.train(
        network, clients, method="rooted", weighting={"power": 0.7}, rounds=3,
        compute=fgn.Compute(executor="turn"), folder=tmp_path / "run",
    )  # fmt: skip
    assert run.manifest["settings"]["proximal"] == 0.01
    assert run.manifest["weighting"] == {"name": "Rooted", "power": 0.7}
    batch = run.history[run.history.split == "batch"]
    np.testing.assert_allclose(batch.force, batch.weight * batch.grad_norm)
    assert run.history[run.history.split == "test"].close.notna().all()
    assert fgn.methods()["rooted"].equation == "p_i = F_i^q"
    assert higher_is_better("close")
    loaded = fgn.load(tmp_path / "run")  # the kind is registered, so nothing has to be given
    x = clients[0].train[0]
    assert np.allclose(loaded.predict("person-0", x), run.predict("person-0", x))
    assert loaded.history.equals(run.history)


def test_each_is_used_from_a_config_a_table_and_the_page(config: Path, tmp_path: Path) -> None:
    trained = run(load_config(config), tmp_path / "runs" / "own")
    plain = load_config(config, ["method=fedrep", "seed=1"])
    run(plain, tmp_path / "runs" / "plain")
    assert list(trained.clients) == ["person-0", "person-1", "person-2"]
    assert trained.manifest["settings"]["executor"] == "turn"
    stored = (tmp_path / "runs" / "own" / "config.toml").read_text()
    assert "imports = [" in stored
    page = make_page([tmp_path / "runs"])
    assert {"rooted", "fedrep"} == set(page.report.frame.method)
    assert "close" in set(page.report.frame.metric)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.html, re.DOTALL)[1])
    views = {panel["view"] for panel in data["sections"]["more"]}
    assert views >= {"force", "grad_norm", "loss_ratio"}
    assert "force: weight x gradient norm." in page.html


def test_a_kind_and_a_metric_are_used_in_files(module: str, tmp_path: Path) -> None:
    path = small_config(tmp_path, value=np.random.default_rng(0).poisson(2.0, size=(40, 1)))
    text = path.read_text().replace('"regression"', '"counts"\nmetrics = ["close"]')
    path.write_text(f'imports = ["{module}"]\n{text}')
    trained = run(load_config(path), tmp_path / "run")
    assert trained.history.close.notna().any()
    assert trained.manifest["clients"]["value"]["kind"] == "counts"


def test_the_command_line_knows_them(config: Path) -> None:
    load_config(config)
    for words, says in (
        (["methods", "rooted"], "weights are roots of losses"),
        (["data", "show", "crowd", "people=3"], "person-2"),
    ):
        said = CliRunner().invoke(app, words)
        assert said.exit_code == 0, said.output
        assert says in said.output


@pytest.mark.slow
def test_jobs_in_other_processes_import_them(config: Path, tmp_path: Path) -> None:
    folders = compare(load_config(config), ["rooted", "fedrep"], 1, folder=tmp_path / "c", jobs=2)
    assert [json.loads((f / "run.json").read_text())["finished"] for f in folders] == [True] * 2


def stopped(config: Path, folder: Path) -> None:
    def stop(event: fgn.Callback) -> None:
        if event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(load_config(config), folder, progress=stop)


def test_a_run_folder_imports_nothing_that_nobody_asked_for(
    config: Path, module: str, tmp_path: Path
) -> None:
    stopped(config, tmp_path / "run")
    whole = run(load_config(config), tmp_path / "whole")
    # in a new process, in which nobody imported the module
    del sys.modules[module]
    with pytest.raises(fgn.ConfigError, match=f"not allowed here; .*--allow-module {module}"):
        resume_config(tmp_path / "run")
    with pytest.raises(fgn.ConfigError, match="not allowed here"):
        load_config(tmp_path / "run" / "config.toml")
    assert module not in sys.modules
    again = execute(resume_config(tmp_path / "run", allow=[module]), tmp_path / "run", resume=True)
    assert again.history.equals(whole.history)
    resume_config(tmp_path / "run")  # it is imported now


def test_a_run_does_not_resume_with_other_columns(config: Path, tmp_path: Path) -> None:
    stopped(config, tmp_path / "run")
    fgn.Column("more", "a test", lambda r, *_: r.loss).register()
    with pytest.raises(fgn.ConfigError, match=r"other columns in its history \('more' differs\)"):
        execute(resume_config(tmp_path / "run"), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("imports", "says"),
    [
        ('["no_such_module"]', "cannot be imported: ModuleNotFoundError"),
        ('["os; import this"]', "should be a list of modules"),
        ('"os"', "should be a list of modules"),
    ],
)
def test_imports_that_cannot_be(imports: str, says: str, config: Path) -> None:
    text = re.sub(r"imports = .*", f"imports = {imports}", config.read_text())
    config.write_text(text)
    with pytest.raises(fgn.ConfigError, match=says):
        load_config(config)


def test_a_column_of_the_wrong_shape_is_named(module: str) -> None:
    own = importlib.import_module(module)
    fgn.Column("wrong", "a test", lambda r, *_: r.loss.sum()).register()
    with pytest.raises(fgn.ConfigError, match=r"'wrong' returns .* for 2 clients"):
        fgn.train(torch.nn.Linear(3, 4), own.crowd(seed=0), rounds=1)


def test_names_are_taken_once() -> None:
    registry = Registry[int]("thing")
    registry.register("one", 1, "mine")
    assert registry.register("one", 2, "mine") == 2, "a module may be loaded again"
    with pytest.raises(fgn.ConfigError, match="thing 'one' exists already, from module mine"):
        registry.register("one", 3, "yours")
    with pytest.raises(fgn.ConfigError, match="unknown thing 'on'; did you mean 'one'"):
        registry.find("on")
    for name in ("", "a,b", 3):
        with pytest.raises(fgn.ConfigError, match="must be a text"):
            registry.register(name, 1, "mine")
    with registry.restored():
        registry.register("two", 2, "mine")
        assert list(registry) == ["one", "two"]
    assert list(registry) == ["one"]
    assert "two" not in registry


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.what)
def test_a_built_in_name_cannot_be_taken(registry: Registry) -> None:
    name = next(iter(registry))
    with pytest.raises(fgn.ConfigError, match=f"{registry.what} '{name}' exists already"):
        registry.register(name, registry[name], "mine")
