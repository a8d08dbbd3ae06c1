"""A config that cannot be meant is refused in one line, at once, without a trace."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from experiments.small_config import small_config
from fedgradnorm import _memory as memory
from fedgradnorm import _optimizers as optimizers
from fedgradnorm._cli import app
from fedgradnorm._errors import ConfigError
from fedgradnorm._memory import memory_limit
from fedgradnorm._toml import LARGEST, overridden
from fedgradnorm.experiments._config.config_file import LONGEST_NAME, build, load_config
from fedgradnorm.experiments._variants import points


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return small_config(tmp_path)


def refused(*words):
    """The one line in which the command line says no; nothing is made by it."""
    before = sorted(os.scandir(), key=lambda entry: entry.name)
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert len(line) < 2000
    after = sorted(os.scandir(), key=lambda entry: entry.name)
    assert [entry.name for entry in before] == [entry.name for entry in after]
    return line


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ('local.head_optimizer={name="adam", betas=[]}', "betas"),
        ('local.head_optimizer={name="adam", betas=[0.9, 0.9, 0.9]}', "betas"),
        ('server.server_optimizer={name="sgd", lr="fast"}', "learning rate"),
        ('server.server_optimizer={name="sgd", lr=true}', "learning rate"),
        ('local.local_optimizer={name="adam", fused="yes"}', "fused"),
        ('local.local_optimizer={name="adam", differentiable=true}', "options"),
        ("lr=nan", "nan"),
        ("lr=inf", "inf"),
        ("lr={a=1}", "lr"),
        ("local=[]", "local must be fgn.Local(...) or a table of its settings, not []"),
        ("weighting=3", "weighting = 3"),
        ("network=mlp", "network = 'mlp'"),
        ("network.widths=[true]", "widths"),
        ("network.inputs=1000000000000", "GiB of parameters"),
        ("network.inputs=9223372036854775807", "network 'mlp'"),
        ("network.widths=[3000000000, 3000000000]", "network 'mlp'"),
        (f"network.widths={[1] * 2000}", "2000 widths"),
        ("seed=99999999999999999999", "64 bits"),
        ("data.base=1", "base"),
        ("data.base=~nobody-is-called-so/x", "path"),
        ('data.base="a\\u0000b"', "null character"),
        (f"data.base={'x' * 5000}", "characters, more than 4096"),
        ("data.base=\udcff", "not Unicode"),
        ("name=../up", "name = '../up'"),
        (f"name={'n' * (LONGEST_NAME + 1)}", "at most"),
        ("output.folder=small.toml", "small.toml"),
        ("output.folder=dangling/runs", "dangling"),
        ("output.folder=", "output.folder"),
        (f"output.folder={'f' * 300}", "File name too long"),
        (f"data.x={'[' * 5000}{']' * 5000}", "nested too deeply"),
        (f"data.x={'[' * 30}{']' * 30}", "nested too deeply"),
        (f"{'a.' * 500}a=1", "nested too deeply"),
    ],
)
def test_strange_values(config, word, says):
    Path("dangling").symlink_to("nowhere")
    assert says in refused("run", config, word)


def test_what_is_no_config_file(config, tmp_path):
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo("pipe.toml")
    Path("link.toml").symlink_to("nowhere")
    (tmp_path / "latin.toml").write_bytes(b"name = '\xff'")
    (tmp_path / "deep.toml").write_text(f"a = {'[' * 100_000}")
    (tmp_path / "digits.toml").write_text(f"a = {'1' * 5000}")
    with (tmp_path / "large.toml").open("wb") as file:
        file.truncate(1 << 30)
    expected = {
        "folder": "it is a folder",
        "pipe": "it is no file",
        "link": "no such file",
        "latin": "not TOML",
        "deep": "nested too deeply",
        "digits": "not TOML",
        "large": f"larger than {LARGEST >> 20} MB",
        "n" * 300: "File name too long",
    }
    for name, says in expected.items():
        assert says in refused("run", f"{name}.toml"), name
    assert "it is no file" in refused("run", "/dev/zero")
    assert "null" in refused("data", "show", "a\0b.toml")


def test_a_network_too_large_is_counted_and_not_tried(config):
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    for width in (10**9, 10**12, 2**40, 2**62):
        with pytest.raises(ConfigError):
            build(load_config(config, [f"network.inputs={width}", "network.widths=[4096]"]))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
    assert time.monotonic() - began < 60


def test_the_largest_network_is_what_training_needs_of_the_memory(config, monkeypatch):
    monkeypatch.setattr(
        "fedgradnorm.experiments._config.named_networks.memory_limit", lambda: 16 * 59
    )
    assert build(load_config(config))[0]  # 3 x 6 + 6 x 5 weights and 11 biases
    monkeypatch.setattr(
        "fedgradnorm.experiments._config.named_networks.memory_limit", lambda: 16 * 58
    )
    with pytest.raises(ConfigError, match="parameters"):
        build(load_config(config))


def test_a_container_has_as_much_memory_as_it_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_CGROUP", [tmp_path / "memory.max"])
    whole = memory_limit()
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit() == whole
    (tmp_path / "memory.max").write_text(f"{whole // 2}\n")
    assert memory_limit() == whole // 2


def test_trying_an_optimiser_leaves_chance_and_its_table_alone():
    before = torch.random.get_rng_state()
    table = optimizers.resolve({"name": "adam", "betas": [0.8, 0.9], "foreach": False}, 0.1)
    assert table == {"name": "adam", "lr": 0.1, "betas": [0.8, 0.9], "foreach": False}
    assert torch.equal(torch.random.get_rng_state(), before)


def test_overrides_stay_cheap_however_long(config):
    with pytest.raises(ConfigError):
        overridden({}, [f"{'a.' * 100_000}a=1"])


def test_a_sweep_of_too_many_points_is_counted_and_not_made(config):
    lists = {"local": {f"x{n}": list(range(100)) for n in range(6)}}
    with pytest.raises(ConfigError, match="spans 1000000000000 points"):
        points(lists)
    long = f"fedrep sharing.norm_layer={'g' * 300}"
    assert "cannot be called" in refused("compare", config, "-m", long)
