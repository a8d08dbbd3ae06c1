"""TensorBoard, read back with its own reader."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

import fedgradnorm as fgn
import flat
import toys
from experiments.small_config import small_config
from fedgradnorm._errors import ConfigError
from fedgradnorm._runs.history import read_history
from fedgradnorm._training import trackers
from fedgradnorm._training.trackers import open_sink, scalars
from fedgradnorm.experiments._config.config_file import load_config
from fedgradnorm.experiments._execute import execute

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]  # the readers warn about their own libraries


def wanted(folder: Path) -> dict[tuple[str, int], float]:
    """Every number of a run's history by name and round."""
    rows = read_history(folder / "metrics.csv").rows
    return {(name, row["round"]): value for row in rows for name, value in scalars(row)}


def in_tensorboard(folder: Path) -> dict[tuple[str, int], float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        (tag, event.step): event.value
        for tag in events.Tags()["scalars"]
        for event in events.Scalars(tag)
    }


def same(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-6), key


@pytest.fixture
def config(tmp_path):
    return lambda kind, *words: load_config(
        small_config(tmp_path), [f"output.tracking={kind}", *words]
    )


def stop_after(number):
    def stop(event):
        if event.round == number:
            raise KeyboardInterrupt

    return stop


def test_tensorboard_has_every_number_of_a_run_that_was_stopped_and_resumed(config, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(fgn.Interrupted):
        execute(config("tensorboard"), folder, progress=stop_after(3))
    assert execute(config("tensorboard"), folder, resume=True).finished
    same(in_tensorboard(folder / "tensorboard"), wanted(folder))


def test_a_sink_is_a_progress_callback(tmp_path):
    with open_sink("tensorboard", tmp_path / "run", {"note": "by hand"}) as sink:
        run = flat.train(toys.network(), toys.clients(), rounds=3, batch_size=8, progress=sink)
    found = in_tensorboard(tmp_path / "run" / "tensorboard")
    expected = {(n, row["round"]): v for row in run.table.rows for n, v in scalars(row)}
    same(found, {key: value for key, value in expected.items() if not math.isnan(value)})


def test_without_the_package_nothing_is_trained_and_the_way_out_is_named(
    config, tmp_path, monkeypatch
):
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install fedgradnorm\[tracking\]"):
        execute(config("tensorboard"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_unknown_tracking(config):
    with pytest.raises(ConfigError, match="tensorboard"):
        config("tensorbord")


def test_only_the_sinks_import_them():
    code = "import sys; import fedgradnorm.experiments._execute; import fedgradnorm._cli\n"
    code += "assert not {'tensorboard'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
