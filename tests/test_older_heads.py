"""``average_heads``, the flag that ``heads`` was before: it is still read, everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedgradnorm as fgn
from experiments.small_config import small_config
from fedgradnorm._stored.groups import group
from fedgradnorm._stored.reader import collect
from fedgradnorm.experiments._config.config_file import load_config
from fedgradnorm.experiments._entries import read_entry
from fedgradnorm.experiments._sweep import felt_by
from shared_heads import assert_same, train


def test_the_old_flag_works_and_warns() -> None:
    for old, new in ((True, "all"), (False, "own")):
        with pytest.warns(DeprecationWarning, match=f"is now heads='{new}'"):
            run = train("own", average_heads=old)
        assert_same(run, train(new))


def test_the_old_flag_is_refused_where_it_cannot_be_meant() -> None:
    with pytest.raises(fgn.ConfigError, match="both given"):
        train("task", average_heads=True)
    with pytest.raises(fgn.ConfigError, match="average_heads must be True or False, not 'yes'"):
        train("own", average_heads="yes")


def made_old(folder: Path, flag: bool) -> None:
    """Turn a run folder into one of a version that had the flag."""
    about = json.loads((folder / "run.json").read_text())
    del about["settings"]["heads"]
    about["settings"]["average_heads"] = flag
    (folder / "run.json").write_text(json.dumps(about))


@pytest.mark.parametrize(("heads", "flag"), [("all", True), ("own", False)])
def test_a_run_folder_with_the_flag_goes_on(tmp_path: Path, heads: str, flag: bool) -> None:
    whole = train(heads)

    def stop(event) -> None:
        if event.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(heads, folder=tmp_path / "part", progress=stop)
    made_old(tmp_path / "part", flag)
    with pytest.raises(fgn.RunFolderError, match="other settings"):
        train("task", folder=tmp_path / "part", resume=True)
    assert_same(train(heads, folder=tmp_path / "part", resume=True), whole)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return small_config(tmp_path)


@pytest.mark.parametrize(("flag", "heads"), [("true", "all"), ("false", "own")])
def test_configs_with_the_flag_are_read(file: Path, flag: str, heads: str) -> None:
    assert load_config(file, [f"training.average_heads={flag}"]).settings.heads == heads
    text = file.read_text().replace("[training]", f"[training]\naverage_heads = {flag}")
    file.write_text(text)
    config = load_config(file)
    assert config.settings.heads == heads
    assert config.table()["training"]["heads"] == heads
    assert load_config(file, ["training.heads=task"]).settings.heads == "task"
    assert load_config(file, ["method=fedavg"]).settings.heads == "all"
    changed = config.variant("fedrep", 0, {"training.average_heads": True})
    assert changed.settings.heads == "all"


def test_a_config_says_it_once_and_in_words_that_exist(file: Path) -> None:
    text = file.read_text()
    file.write_text(text.replace("[training]", "[training]\naverage_heads = true\nheads = 'all'"))
    with pytest.raises(fgn.ConfigError, match=r"old name of training\.heads: give one"):
        load_config(file)
    file.write_text(text)
    for word in ("training.heads=tasks", "training.average_heads=1", "training.heads=true"):
        with pytest.raises(
            fgn.ConfigError, match=r"training\.heads = .* should be 'own', 'task' or"
        ):
            load_config(file, [word])


def test_what_a_method_fixes_is_fixed_under_the_old_name_too() -> None:
    with pytest.raises(fgn.ConfigError, match="fedavg is heads = 'all'"):
        read_entry("fedavg training.average_heads=false")
    assert felt_by({"training.average_heads": True}, "fedavg") == {}


def test_stored_runs_of_both_kinds_are_one_arm(tmp_path: Path) -> None:
    for name, seed in (("new", 0), ("old", 1)):
        train("own", folder=tmp_path / name, seed=seed)
    made_old(tmp_path / "old", False)
    groups, _ = group(collect([tmp_path])[0])
    assert [sorted(one.seeds) for one in groups] == [[0, 1]]
