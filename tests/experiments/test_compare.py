"""Comparisons: ordinary run folders, reused, resumed, and summed up over seeds."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import scipy.stats

from experiments.small_config import small_config
from fedgradnorm._errors import ConfigError, DataError, RunFolderError, TrainingError
from fedgradnorm._report.frame import overlap, read_report
from fedgradnorm._runs.history import averaged_weights
from fedgradnorm._runs.loading import load
from fedgradnorm._runs.manifest import read_manifest
from fedgradnorm._runs.reader import collect, read_run
from fedgradnorm.experiments import _compare as module
from fedgradnorm.experiments._compare import compare
from fedgradnorm.experiments._config.config_file import load_config
from fedgradnorm.experiments._execute import execute, load_data, new_folder, resume_config
from fedgradnorm.experiments._statistics import estimate

METHODS = ["fedrep", "fedgradnorm"]


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("run.json", "log.txt", "checkpoint.safetensors")
    }


@pytest.fixture
def config(tmp_path):
    return load_config(small_config(tmp_path))


def test_runs_lie_where_they_should_and_are_ordinary(config, tmp_path):
    folders = compare(config, METHODS, 2)
    place = tmp_path / "runs" / "small-compare"
    names = ["fedrep-seed0", "fedrep-seed1", "fedgradnorm-seed0", "fedgradnorm-seed1"]
    assert folders == [place / name for name in names]
    for folder in folders:
        run = load(folder)
        assert run.finished
        assert set(run.heads) == {"class", "value"}
    alone = tmp_path / "alone"
    execute(config.variant("fedgradnorm", 1), alone)
    assert files(alone).keys() == files(folders[3]).keys()
    assert files(alone)["metrics.csv"] == files(folders[3])["metrics.csv"]


def test_finished_runs_are_kept_and_data_is_loaded_once_a_seed(config, monkeypatch):
    loads, trained = [], []
    real_load, real_execute = load_data, execute

    def counted_load(config, progress=None):
        loads.append(config.seed)
        return real_load(config, progress)

    def counted_execute(config, folder, **rest):
        trained.append(folder.name)
        return real_execute(config, folder, **rest)

    monkeypatch.setattr(module, "load_data", counted_load)
    monkeypatch.setattr(module, "execute", counted_execute)
    compare(config, ["fedrep"], 1)
    compare(config, METHODS, 2)
    assert loads == [0, 0, 1]
    assert trained == ["fedrep-seed0", "fedgradnorm-seed0", "fedrep-seed1", "fedgradnorm-seed1"]


def test_a_stopped_run_is_resumed_to_the_same_numbers(config, tmp_path):
    whole = compare(config, ["fedgradnorm"], folder=tmp_path / "whole")[0]

    class Stop(BaseException):
        pass

    def stop(event):
        if event.round == 3:
            raise Stop

    part = tmp_path / "part" / "fedgradnorm-seed0"
    with pytest.raises(Stop):
        execute(config, part, progress=stop)
    assert not read_manifest(part)["finished"]
    assert compare(config, ["fedgradnorm"], folder=tmp_path / "part") == [part]
    assert files(part) == files(whole)


def test_a_run_that_wrote_only_its_config_starts(config, tmp_path):
    folder = tmp_path / "begun"
    folder.mkdir()
    (folder / "config.toml").write_text(config.text())
    assert execute(resume_config(folder), folder, resume=True).finished


def test_another_config_in_the_folder_is_refused(config, tmp_path):
    compare(config, ["fedrep"])
    other = load_config(tmp_path / "small.toml", ["rounds=7"])
    with pytest.raises(RunFolderError, match="another config"):
        compare(other, ["fedrep"])


@pytest.mark.parametrize(
    ("methods", "seeds", "says"),
    [([], 1, "no methods"), (["fedrep"], 0, "at least 1"), (["fedrep", "fedrep"], 1, "twice"),
     (["fedrep", "fedgrad"], 1, "did you mean")],
)  # fmt: skip
def test_bad_requests_train_nothing(config, tmp_path, methods, seeds, says):
    with pytest.raises(ConfigError, match=says):
        compare(config, methods, seeds)
    assert not (tmp_path / "runs").exists()


def test_frozen_weights_are_those_of_the_run_of_their_seed(config, tmp_path):
    methods = ["fedgradnorm-static", "fedgradnorm"]
    folders = compare(config, methods, 2)
    for seed in (0, 1):
        weights = averaged_weights(folders[2 + seed])
        assert read_manifest(folders[seed])["weighting"]["weights"] == pytest.approx(weights)
    assert compare(config, methods, 2) == folders
    with pytest.raises(ConfigError, match="takes the weights of fedgradnorm: compare both"):
        compare(config, ["fedgradnorm-static"])


@pytest.mark.slow
def test_several_processes_give_the_same_numbers(config, tmp_path):
    news = []
    one = compare(config, METHODS, 2, folder=tmp_path / "one")
    two = compare(config, METHODS, 2, folder=tmp_path / "two", jobs=2, watch=news.extend)
    assert [folder.name for folder in one] == [folder.name for folder in two]
    for a, b in zip(one, two, strict=True):
        assert files(a) == files(b)
    assert sum(item.done for item in news) == 4


def test_what_fails_does_not_stop_the_others(tmp_path):
    words = ["local.head_optimizer=sgd", "server.server_optimizer=sgd",
             "sweep.lr=[1e30,0.01]"]  # fmt: skip
    config = load_config(small_config(tmp_path), words)
    with pytest.raises(TrainingError, match=r"1 of 2 runs failed .*lr=1e\+30 seed 0"):
        compare(config, ["fedrep"])
    place = tmp_path / "runs" / "small-compare"
    assert read_manifest(place / "fedrep-lr=0.01-seed0")["finished"]
    assert not read_manifest(place / "fedrep-lr=1e+30-seed0")["finished"]


def test_bad_data_stops_all_processes_before_they_start(config, tmp_path):
    (tmp_path / "class.npz").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"class\.npz"):
        compare(config, METHODS, 2, jobs=2)
    assert not (tmp_path / "runs").exists()


LONG = ["rounds=1200", "checkpoints.every=100", "evaluation.every=600",
        "history.every=50"]  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The files of long runs that nobody stopped."""
    folder = tmp_path_factory.mktemp("undisturbed")
    config = load_config(small_config(folder), LONG)
    return [wherever(files(run), folder) for run in compare(config, METHODS)]


def wherever(found: dict[str, bytes], home: Path) -> dict[str, bytes]:
    """The same files without the folder that the config names."""
    return {name: content.replace(bytes(home), b"HOME") for name, content in found.items()}


def comparing(path: Path) -> subprocess.Popen[str]:
    """A comparison in two worker processes, both of which have written a checkpoint."""
    words = [str(path), *LONG, "-m", ",".join(METHODS), "-j", "2"]
    command = [sys.executable, "-W", "error", "-m", "fedgradnorm", "compare", *words]
    process = subprocess.Popen(
        command, cwd=path.parent, start_new_session=True, text=True, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    place = path.parent / "runs" / "small-compare"
    waiting = [place / f"{name}-seed0" / "checkpoint.safetensors" for name in METHODS]
    deadline = time.monotonic() + 300
    while not all(p.exists() for p in waiting) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="lists a process's children in /proc")
def test_worker_processes_end_with_a_killed_parent(tmp_path):
    process = comparing(small_config(tmp_path))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) >= 2
    process.kill()
    process.communicate(timeout=300)
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "a worker process outlives its parent"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("reaches", ["the group", "one", "one and the group"])
def test_ctrl_c_stops_all_processes_and_the_same_command_ends_the_same(
    tmp_path, undisturbed, reaches
):
    path, place = small_config(tmp_path), tmp_path / "runs" / "small-compare"
    process = comparing(path)
    if reaches.startswith("one"):
        os.kill(process.pid, signal.SIGINT)
    if reaches == "one and the group":
        time.sleep(0.1)  # signals that wait together are one to the kernel
    if reaches.endswith("group"):
        os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1].endswith("continue with: the same command")
    assert "Traceback" not in errors
    assert not all(read_manifest(place / f"{name}-seed0")["finished"] for name in METHODS)
    ended = compare(load_config(path, LONG), METHODS)
    assert [wherever(files(folder), tmp_path) for folder in ended] == undisturbed


def test_bad_input_leaves_no_folder(config, tmp_path):
    bad = load_config(tmp_path / "small.toml", ["sharing.norm_layer=nowhere"])
    with pytest.raises(Exception, match="norm layer 'nowhere'"):
        execute(bad, new_folder(bad))
    assert not (tmp_path / "runs").exists()


def test_bad_input_spares_what_was_there(config, tmp_path):
    bad = load_config(tmp_path / "small.toml", ["sharing.norm_layer=nowhere"])
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("keep")
    with pytest.raises(Exception, match="norm layer 'nowhere'"):
        execute(bad, folder)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_run_is_never_overwritten(config, tmp_path):
    first = new_folder(config)
    execute(config, first)
    assert new_folder(config).name == f"{first.name}-2"
    with pytest.raises(RunFolderError, match="already holds a run"):
        execute(config, first)


def test_failed_training_names_its_checkpoint(tmp_path):
    path = small_config(tmp_path)
    words = ["lr=1e30", "local.head_optimizer=sgd", "server.server_optimizer=sgd"]
    config = load_config(path, words)
    with pytest.raises(TrainingError, match=r"checkpoint: .*checkpoint\.safetensors"):
        execute(config, tmp_path / "out")
    assert (tmp_path / "out" / "checkpoint.safetensors").exists()


def test_what_was_logged_about_the_data_is_in_the_run(tmp_path):
    path = small_config(tmp_path)
    text = path.read_text().replace('source = "files"', 'source = "radcom"\nsamples = 200')
    lines = [line for line in text.splitlines() if not line.startswith(("task", "train =", "test"))]
    path.write_text("\n".join(lines).replace("[[data.clients]]", "").replace('name = "class"', "")
                    .replace('name = "value"', ""))  # fmt: skip
    execute(load_config(path, ["rounds=1"]), tmp_path / "out")
    assert "SYNTHETIC" in (tmp_path / "out" / "log.txt").read_text()


def test_rows_and_intervals(config):
    folders = compare(config, METHODS, 3)
    frame = read_report(folders).frame
    assert list(dict.fromkeys(frame.variant)) == ["fedrep", "fedgradnorm"]
    assert (frame.groupby(["variant", "task"]).seed.nunique() == 3).all()
    assert set(frame.split) == {"test"}
    metrics = frame.drop_duplicates("task").set_index("task").metric.to_dict()
    assert metrics == {"class": "accuracy", "value": "mae"}
    values = [load(folder).summary().loc["value"] for folder in folders[:3]]
    expected = scipy.stats.t.interval(
        0.95,
        2,
        sum(v.last_loss for v in values) / 3,
        scipy.stats.sem([v.last_loss for v in values]),
    )
    mine = frame[(frame.variant == "fedrep") & (frame.task == "value")]
    last = estimate(list(mine.loss))
    assert (last.low, last.high) == pytest.approx(expected)
    assert mine.score.mean() == pytest.approx(sum(v.mae for v in values) / 3)


def test_records_of_folders_and_of_runs_agree(config, tmp_path):
    run = execute(config, tmp_path / "out")
    (stored,), missing = collect([tmp_path, tmp_path / "runs"])
    assert stored == read_run(tmp_path / "out")
    assert stored.rows == run.table.rows
    assert (stored.method, stored.seed, stored.finished) == ("fedgradnorm", 0, True)
    assert missing == [f"{tmp_path / 'runs'} is no run folder and holds none: no run.json there"]
    run.save(tmp_path / "saved" / "python")
    assert collect([tmp_path / "saved"])[0][0].method == "GradNorm absolute"
    with pytest.raises(RunFolderError, match=r"no run\.json"):
        collect([tmp_path / "runs"])


@pytest.mark.parametrize(("words", "wanted"), [([], 10 / 30), (["data.seed=0"], 0.0)], ids=str)
def test_intervals_allow_for_test_rows_that_every_seed_draws_again(tmp_path, words, wanted):
    """Nadeau and Bengio's n_test / n_train; nothing where all seeds have the same rows."""
    config = load_config(small_config(tmp_path), ["rounds=2", *words])
    compare(config, ["fedrep", "local"], 2, folder=tmp_path / "runs")
    report = read_report([tmp_path / "runs"])
    assert [overlap(one) for one in report.groups.values()] == pytest.approx([wanted] * 2)
    table = report.effects["score"].set_index("task").loc["value"]
    both = report.frame[report.frame.task == "value"].pivot(
        index="seed", columns="variant", values="score"
    )
    change = 100 * (both.fedrep - both.local) / both.fedrep
    half = scipy.stats.t.ppf(0.975, 1) * change.std() * (1 / 2 + wanted) ** 0.5
    assert table.high - table.low == pytest.approx(2 * half)
