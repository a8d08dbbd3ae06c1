"""Entries of a comparison: methods with settings of their own, next to the method as it is."""

import pytest

from experiments.small_config import small_config
from fedgradnorm._errors import ConfigError
from fedgradnorm._report.frame import read_report
from fedgradnorm.experiments._compare import compare
from fedgradnorm.experiments._config.config_file import load_config
from fedgradnorm.experiments._execute import resume_config
from fedgradnorm.experiments._variants import split_entries


def test_settings_after_a_method_make_a_variant_of_it(tmp_path):
    config = load_config(small_config(tmp_path))
    named = ["fedrep", "fedgradnorm weighting.lr=0.5 local.head_steps=2", "fedgradnorm"]
    folders = compare(config, named)
    assert [folder.name for folder in folders] == [
        "fedrep-seed0", "fedgradnorm-local.head_steps=2-weighting.lr=0.5-seed0",
        "fedgradnorm-seed0",
    ]  # fmt: skip
    plain, variant = resume_config(folders[2]), resume_config(folders[1])
    assert variant.own == {"weighting.lr": 0.5, "local.head_steps": 2}
    assert (variant.weighting["lr"], variant.settings.head_steps) == (0.5, 2)
    assert (plain.weighting["lr"], plain.settings.head_steps, plain.own) == (0.004, 1, {})
    named[1] = "fedgradnorm local.head_steps=2 weighting.lr=0.5"
    assert compare(config, named) == folders, "the order of settings makes no other run"
    assert read_report([folders[0].parent]).variants == [
        "fedrep", "fedgradnorm", "fedgradnorm local.head_steps=2 weighting.lr=0.5",
    ]  # fmt: skip


def test_an_entrys_settings_come_before_the_methods_own(tmp_path):
    words = ["compare.own.fedgradnorm.weighting={lr=0.2,gamma=0.3}"]
    config = load_config(small_config(tmp_path), words)
    plain, variant = compare(config, ["fedgradnorm", "fedgradnorm weighting.lr=0.5"])
    assert resume_config(plain).weighting["lr"] == 0.2
    assert resume_config(variant).weighting["lr"] == 0.5
    assert resume_config(variant).weighting["gamma"] == 0.3


@pytest.mark.slow
def test_processes_know_the_variants_too(tmp_path):
    config = load_config(small_config(tmp_path))
    named = ["fedgradnorm lr=0.01", "fedgradnorm weighting.lr=0.01"]
    alone = compare(config, named, folder=tmp_path / "alone")
    both = compare(config, named, folder=tmp_path / "both", jobs=2)
    for one, other in zip(alone, both, strict=True):
        assert (one / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()
    assert (alone[0] / "metrics.csv").read_bytes() != (alone[1] / "metrics.csv").read_bytes()


def test_a_variant_of_frozen_weights_takes_those_of_the_plain_run(tmp_path):
    config = load_config(small_config(tmp_path))
    folders = compare(config, ["fedgradnorm-static local.head_steps=2", "fedgradnorm"])
    assert resume_config(folders[0]).weighting["folder"] == str(folders[1])


@pytest.mark.parametrize(
    ("named", "says"),
    [(["fedgradnorm rate=0.5"], "a method's name can be followed"),
     (["fedgradnorm weighting.lr"], "a method's name can be followed"),
     (["fedgradnorm weighting.lr= 0.5"], "a method's name can be followed"),
     (["fedgradnorm data.seed=3"], "a method's name can be followed"),
     (["fedgradnorm weighting.lrr=0.5"], "lrr"),
     (["fedrep weighting.lr=0.5"], "lr"),
     (["fedgradnrom weighting.lr=0.5"], "did you mean 'fedgradnorm'"),
     (["fedgradnorm weighting.lr=1 weighting.lr=2"], "twice"),
     (["fedgradnorm weighting.lr=0.5", "fedgradnorm  weighting.lr=0.50"], "named twice"),
     (["fedgradnorm", "fedgradnorm weighting.lr=0.004"], "one and the same run"),
     (["fedgradnorm weighting.lr=0.5", "fedgradnorm-static"], "compare both"),
     (["fedgradnorm", "fedgradnorm-static local.head_stepz=2"], "did you mean"),
     (["fedgradnorm", "fedgradnorm-static weighting.folder=x"], "weights are those of"),
     (["fedper local.phases=alternating"], "phases = 'joint'"),
     ([""], "method")],
)  # fmt: skip
def test_a_bad_variant_trains_nothing(tmp_path, named, says):
    config = load_config(small_config(tmp_path))
    with pytest.raises(ConfigError, match=says):
        compare(config, ["fedbabu", *named])
    assert not (tmp_path / "runs").exists()


def test_a_variant_in_a_sweep_is_refused(tmp_path):
    config = load_config(small_config(tmp_path), ["sweep.weighting.gamma=[0.5,1.0]"])
    with pytest.raises(ConfigError, match="into the sweep"):
        compare(config, ["fedgradnorm weighting.lr=0.5"])


def test_commas_inside_brackets_separate_nothing():
    text = "fedrep, static weighting.weights={class=1,value=0.1} ,fedgradnorm local.x=[1,2]"
    assert split_entries("a x={b=1,c={d=2}},e") == ["a x={b=1,c={d=2}}", "e"]
    assert split_entries(text) == [
        "fedrep", "static weighting.weights={class=1,value=0.1}", "fedgradnorm local.x=[1,2]",
    ]  # fmt: skip
