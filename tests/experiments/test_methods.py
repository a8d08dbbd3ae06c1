"""The table of methods."""

from dataclasses import fields

import pytest

import fedgradnorm as fgn
from experiments.small_config import small_config
from fedgradnorm._errors import ConfigError
from fedgradnorm._methods import METHODS, find_method
from fedgradnorm._round.settings import Settings
from fedgradnorm.experiments import load_config, run
from fedgradnorm.weighting import Equal, GradNorm, Needs

NAMES = [
    "fedgradnorm", "fedgradnorm-direct", "equal-norms", "fedgradnorm-steady", "fedrep",
    "fedper", "local", "central",
]  # fmt: skip


def test_names():
    assert list(METHODS)[: len(NAMES)] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_method_builds_and_fixes_only_settings_that_exist(name):
    method = find_method(name)
    assert method.name == name
    assert method.summary
    assert method.source
    assert set(method.settings) <= {field.name for field in fields(Settings)}
    Settings(**method.settings)
    assert method.build().needs in method.needs


def test_what_the_methods_are():
    assert METHODS["fedgradnorm"].build().rule == "absolute"
    assert METHODS["fedgradnorm-direct"].build({"gamma": 0.5}).rule == "direct"
    assert isinstance(METHODS["central"].build(), GradNorm)
    assert all(isinstance(METHODS[name].build(), Equal) for name in ("fedrep", "fedper", "local"))
    assert METHODS["fedrep"].needs == Needs.NOTHING
    assert METHODS["fedgradnorm"].needs == Needs.LOSS | Needs.NORM
    assert METHODS["fedavg"].needs == Needs.SIZE  # it averages by size


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("fedgradnorm", {"gama": 1}, "did you mean 'gamma'"),
        ("fedgradnorm", {"gamma": "much"}, "must be a number, not 'much'"),
        ("fedgradnorm", {"gamma": True}, "must be a number, not True"),
        ("fedgradnorm", {"gamma": -1}, "gamma must be >= 0"),
        ("fedgradnorm", {"rule": "dircet"}, "did you mean 'direct'"),
        ("fedgradnorm-direct", {"rule": "absolute"}, "unknown option"),
        ("fedrep", {"gamma": 1}, "takes no options"),
    ],
)
def test_wrong_options(name, options, says):
    with pytest.raises(ConfigError, match=says):
        find_method(name).build(options)


def test_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'fedrep'"):
        find_method("fedreq")


def test_none_in_a_config_is_none_where_an_option_may_be(tmp_path):
    assert METHODS["fedgradnorm"].build({"floor": "none"}).floor is None
    with pytest.raises(ConfigError, match=r"'gamma'.* must be a number, not 'none'"):
        METHODS["fedgradnorm"].build({"gamma": "none"})
    path = small_config(tmp_path)
    path.write_text(path.read_text().replace("[weighting]\n", '[weighting]\nfloor = "none"\n'))
    trained = run(load_config(path), tmp_path / "run")
    assert trained.manifest["weighting"]["floor"] is None
    assert fgn.load(tmp_path / "run").manifest["weighting"] == trained.manifest["weighting"]
