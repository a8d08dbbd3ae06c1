"""Comparisons in which settings vary: from point to point of a sweep, and from method to method."""

from pathlib import Path

import pytest

from experiments.small_config import small_config
from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._round.settings import Settings
from fedgradnorm.experiments._compare import compare
from fedgradnorm.experiments._config.config_file import load_config
from fedgradnorm.experiments._execute import resume_config

METHODS = ["fedrep", "fedgradnorm"]


def test_a_sweep_runs_every_point_and_what_is_not_felt_once(tmp_path):
    words = ["sweep.weighting.gamma=[0.0,1.5]", "sweep.local.head_steps=[1,2]"]
    config = load_config(small_config(tmp_path), words)
    names = [folder.name for folder in compare(config, METHODS)]
    assert names == [
        "fedrep-head_steps=1-seed0", "fedrep-head_steps=2-seed0",
        "fedgradnorm-gamma=0-head_steps=1-seed0", "fedgradnorm-gamma=0-head_steps=2-seed0",
        "fedgradnorm-gamma=1.5-head_steps=1-seed0", "fedgradnorm-gamma=1.5-head_steps=2-seed0",
    ]  # fmt: skip
    last = resume_config(tmp_path / "runs" / "small-compare" / names[-1])
    assert last.point == {"weighting.gamma": 1.5, "local.head_steps": 2}
    assert (last.weighting["gamma"], last.settings.head_steps) == (1.5, 2)


@pytest.mark.parametrize("own", [False, True])
def test_a_sweep_may_vary_one_of_the_weights_chosen_by_hand(tmp_path, own):
    weights = "weighting.weights={class=1.0,value=1.0}"
    words = ["sweep.weighting.weights.value=[0.1,3.0]"]
    words += [f"compare.own.static.{weights}"] if own else ["method=static", weights]
    config = load_config(small_config(tmp_path), words)
    folders = compare(config, ["fedrep", "static"])
    assert [folder.name for folder in folders] == [
        "fedrep-seed0", "static-value=0.1-seed0", "static-value=3-seed0",
    ]  # fmt: skip
    for folder, weight in zip(folders[1:], (0.1, 3.0), strict=True):
        given = resume_config(folder).weighting["weights"]
        assert given == {"class": 1.0, "value": weight}
    assert load_config(small_config(tmp_path), words) == config, "a run changed its config"


def test_a_sweep_may_go_over_whole_tables(tmp_path):
    words = ["sweep.weighting=[{gamma=0.0},{gamma=1.5}]"]
    folders = compare(load_config(small_config(tmp_path), words), ["fedgradnorm"])
    assert [resume_config(folder).weighting["gamma"] for folder in folders] == [0.0, 1.5]


@pytest.mark.parametrize(
    ("word", "says"),
    [("sweep.weighting.gamma=1", "should be a list"), ("sweep.epoch=[1]", "did you mean"),
     ("sweep.local.head_steps=[]", "at least one value"),
     ("sweep.local.head_steps=[0,-1]", "head_steps")],
)  # fmt: skip
def test_a_bad_sweep_trains_nothing(tmp_path, word, says):
    with pytest.raises(ConfigError, match=says):
        compare(load_config(small_config(tmp_path), [word]), METHODS)
    assert not (tmp_path / "runs").exists()


OWN = ["compare.own.fedrep.local.shared_steps=3", "compare.own.fedrep.lr=0.01"]


def settings_of(folder: Path) -> Settings:
    return resume_config(folder).settings


def test_a_method_may_have_settings_of_its_own(tmp_path):
    config = load_config(small_config(tmp_path), OWN)
    fedrep, fedgradnorm = (settings_of(folder) for folder in compare(config, METHODS, 1))
    assert (fedrep.shared_steps, fedrep.lr) == (3, 0.01)
    assert fedgradnorm.shared_steps == config.settings.shared_steps
    assert fedgradnorm.lr == config.settings.lr
    with pytest.raises(RunFolderError, match="another config"):
        compare(load_config(small_config(tmp_path), OWN[:1]), METHODS, 1)


def test_a_sweep_goes_over_what_is_ones_own(tmp_path):
    config = load_config(small_config(tmp_path), [*OWN, "sweep.local.shared_steps=[1,2]"])
    folders = compare(config, ["fedrep"], 1)
    assert [settings_of(folder).shared_steps for folder in folders] == [1, 2]
    assert {settings_of(folder).lr for folder in folders} == {0.01}


@pytest.mark.parametrize("entry", ["fedprox", "fedprox local.proximal=0"])
def test_every_point_has_the_value_that_it_is_called_by(tmp_path, entry):
    """Also the default of what a method presets: mu = 0 was 0.01."""
    sweep = [] if "=" in entry else ["sweep.local.proximal=[0,0.1]"]
    config = load_config(small_config(tmp_path), sweep)
    found = [settings_of(folder).proximal for folder in compare(config, [entry], 1)]
    assert found == ([0, 0.1] if sweep else [0])


def test_what_was_tuned_of_one_method_is_not_given_to_others(tmp_path):
    path = small_config(tmp_path)
    config = load_config(path, ["method=fedprox", "local.proximal=0.5", "local.shared_steps=2"])
    for name, proximal in (("fedprox", 0.5), ("fedrep-classic", 0.0), ("fedrep", 0.0)):
        other = config.variant(name, 0).settings
        assert (other.proximal, other.shared_steps) == (proximal, 2)
    same = load_config(path, ["method=fedrep", "local.proximal=0.5"]).variant("fedavg", 0)
    assert same.settings.proximal == 0.5
    none = load_config(path, ["method=fedprox", "local.proximal=0"])
    for one in (none, none.variant("fedprox", 1)):
        assert one.settings.proximal == 0
    assert none.variant("fedrep", 0).variant("fedprox", 0).settings.proximal == 0.01


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "fedrp.lr=1",
            r"own\.fedrp: unknown method 'fedrp'; did you mean 'fedrep'",
        ),
        (
            "fedrep.local.head_stepz=1",
            r"own\.fedrep: unknown key 'local\.head_stepz'; did you mean",
        ),
        (
            "fedrep.data.samples=9",
            r"unknown key 'compare\.own\.fedrep\.data' .*weighting, .*local",
        ),
        ("fedprox.local.sends=delta", r"own\.fedprox: local\.sends .* conflicts"),
    ],
)
def test_settings_of_ones_own_are_checked_at_once(tmp_path, word, message):
    with pytest.raises(ConfigError, match=message):
        load_config(small_config(tmp_path), [f"compare.own.{word}"])
