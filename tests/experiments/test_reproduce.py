"""The packaged experiments: each parses, is what it says, and trains on a small stand-in."""

import re
from pathlib import Path

import pytest

from fedgradnorm._errors import ConfigError
from fedgradnorm._methods import METHODS
from fedgradnorm._report.figures import draw
from fedgradnorm._report.frame import read_report
from fedgradnorm._report.grid import write_grids
from fedgradnorm._report.tables import all_grids
from fedgradnorm._runs.manifest import read_manifest
from fedgradnorm.experiments._compare import compare, plan
from fedgradnorm.experiments._config.config_file import load_config
from fedgradnorm.experiments._config.shipped import (
    BENEFIT,
    EXPERIMENTS,
    SIDE_BY_SIDE,
    experiments,
    shipped,
)
from fedgradnorm.experiments._variants import points, read_entries

CONFIGS = Path(__file__).parents[2] / "configs"
FACES = 'data={source="faces",samples=60,test_samples=10}'
SHAPES = "compare.own.static.weighting.weights.shape=1"  # where MTFL has genders
SIGNALS = ["data.samples=90", "data.cache=false", 'network={name="mlp",widths=[4]}']
SMALL = ["rounds=2", "local.batch_size=4", 'compute.device="cpu"']

RUNS = {  # per seed: what the command at the top of each file promises
    "fig2": 3, "table2": 4, "fig3": 3, "scale": 35, "gamma": 15, "alpha": 6,
    "participation": 9, "steps": 27, "baselines": 7,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch):
    monkeypatch.delenv("FEDGRADNORM_DATA", raising=False)


@pytest.mark.parametrize("name", [*EXPERIMENTS, *SIDE_BY_SIDE])
def test_every_config_is_packaged_once_and_says_how_to_run_it(name):
    beside = CONFIGS / f"{name}.toml"
    assert beside.resolve() == shipped()[name]
    opening = beside.read_text().partition("\nname =")[0]
    assert f"fedgradnorm reproduce {name} " in opening
    published = (CONFIGS.parent / "docs" / "results" / name).exists()
    assert (f"docs/results/{name}" if published else "docs/results") in opening
    assert load_config(beside).table() == load_config(name).table()


@pytest.mark.parametrize("name", BENEFIT)
def test_the_benefit_is_packaged_and_fair_to_those_alone(name):
    file, words = BENEFIT[name]
    beside = CONFIGS / f"{file}.toml"
    assert "fedgradnorm reproduce benefit " in beside.read_text().partition("\nname =")[0]
    config = load_config(name)
    assert config.table() == load_config(beside, words).table()
    assert (config.compare.baseline, config.compare.methods[0]) == ("local", "local")
    entries = read_entries(config.compare.methods, 1, swept=False)
    for entry in entries:  # the same stopping, start and tuning for everybody
        settings = config.variant(entry.method, 0, entry.own).settings
        assert (settings.keep, settings.head_init) == ("best", "targets")
        assert settings.patience is not None
        assert settings.personalize is not None


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_settings_are_the_measured_runs(name):
    config = load_config(name)
    settings = config.settings
    assert (config.name, config.compare.seeds, config.compare.baseline) == (name, 5, "fedrep")
    assert (settings.batch_size, settings.lr, settings.server_optimizer) == (64, 2e-4, "adam")
    assert (settings.head_steps, settings.shared_steps) == (1, 1)
    if name != "alpha":
        assert config.weighting["lr"] == 0.004
    if name != "gamma":
        assert config.weighting["gamma"] == 0.9
    if name == "fig3":
        assert (config.network.name, config.data.source) == ("network2", "radcom")
        return
    data = config.data.model_extra
    assert (config.network.name, config.data.source) == ("network1", "mtfl")
    assert (data["crop"], data["landmarks"]) == ("boxes", "pixels")
    assert data["allocation"] == ("balanced" if name == "fig2" else "imbalanced")
    assert settings.epochs == (60 if name in ("scale", "gamma", "steps") else 100)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_number_of_runs(name, tmp_path):
    config = load_config(name)
    entries = read_entries(config.compare.methods, 1, swept=bool(config.sweep))
    alone = [entry for entry in entries if not entry.needs_a_run]
    assert len(plan(config, alone, 1, tmp_path)) == RUNS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_trains_on_a_stand_in_and_gives_tables_and_figures(name, tmp_path):
    words = [*SMALL, *(SIGNALS if name == "fig3" else [FACES])]
    words += {
        "scale": ["sweep.data.loss_scale.landmark=[0.1,10.0]", SHAPES],
        "gamma": ["sweep.weighting.gamma=[0.0,2.0]"],
        "alpha": ["sweep.weighting.lr=[0.001,0.004]"],
        "participation": ["sweep.server.participation=[1.0,0.4]"],
        "steps": ["sweep.local.head_steps=[1,2]", "sweep.local.shared_steps=[1]"],
    }.get(name, [])
    config = load_config(name, words)
    folders = compare(config, seeds=1, folder=tmp_path)
    assert all(read_manifest(folder)["finished"] for folder in folders)
    report = read_report([tmp_path], config.compare.baseline)
    assert not [note for note in report.notes if "loss_scale" not in note]
    assert bool(report.points) == bool(config.sweep)
    assert report.synthetic
    assert all(path.stat().st_size for path in draw(report, tmp_path / "figures"))
    assert write_grids(all_grids(report), tmp_path / "tables")


def test_the_clean_protocol_is_clean_and_trains_on_a_stand_in(tmp_path):
    config = load_config("clean")
    data = config.data.model_extra
    assert (data["drop_outside"], data["validation_share"]) == (True, 0.15)
    assert (config.settings.keep, config.settings.head_init) == ("best", "targets")
    assert {"fedrep", "local", "equal-norms"} <= set(config.compare.methods) <= set(METHODS)
    faces = FACES.replace("}", ",validation_share=0.2}")
    config = load_config("clean", [*SMALL, faces, 'compare.methods=["fedrep","equal-norms"]'])
    folders = compare(config, seeds=1, folder=tmp_path)
    assert all(read_manifest(folder)["finished"] for folder in folders)


def test_a_file_of_ones_own_comes_before_a_config_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config("demo").name == "demo"
    with pytest.raises(ConfigError, match="did you mean 'demo'"):
        load_config("configs/demo.toml")
    (tmp_path / "demo").write_text(shipped()["demo"].read_text() + '\n[output]\nfolder = "mine"')
    assert load_config("demo").output.folder == "mine"


def test_names():
    assert experiments("all") == EXPERIMENTS
    assert experiments("fig2") == ("fig2",)
    assert experiments("methods") == SIDE_BY_SIDE
    assert experiments("methods-mtfl") == ("methods-mtfl",)
    with pytest.raises(ConfigError, match="did you mean 'table2'"):
        experiments("table3")


@pytest.mark.parametrize("name", SIDE_BY_SIDE)
def test_methods_that_can_run_there_are_compared(name):
    config = load_config(name)
    assert set(config.compare.methods) <= set(METHODS)
    assert not {"fedavg", "static"} & set(config.compare.methods)
    # heads must be alike, weights be chosen
    assert (config.name, config.compare.seeds, config.compare.baseline) == (name, 3, "fedrep")
    classic, prox = (config.compare.own[m] for m in ("fedrep-classic", "fedprox"))
    assert classic == prox  # what tells them apart is the proximal term alone
    assert set(config.compare.own) == {"fedrep-classic", "fedprox"}
    one, other = (load_config(n).compare.methods for n in SIDE_BY_SIDE)
    assert one == other


def test_the_scale_goes_over_six_decades():
    values = [point["data.loss_scale.landmark"] for point in points(load_config("scale").sweep)]
    assert values == [10.0**k for k in range(-3, 4)]


def test_real_signals_take_the_place_of_generated_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRADNORM_DATA", str(tmp_path))
    assert "path" not in load_config("fig3").data.model_extra
    (tmp_path / "RadComDynamic.hdf5").write_bytes(b"")
    path = load_config("fig3").data.model_extra["path"]
    assert Path(path) == tmp_path / "RadComDynamic.hdf5"
    mine = load_config("fig3", ["data.path=mine.hdf5"]).data.model_extra["path"]
    assert re.search(r"mine\.hdf5$", mine)
