"""Whatever a config says about data: clients, or our own error in one line."""

from __future__ import annotations

import math
import os
import random
import traceback

import numpy as np
import pytest

from beijing_files import beijing_files, write_beijing
from cell_files import write_landmine, write_school
from data.small_tables import HOUSES, write
from data.test_real_sets import write_har, write_reviews, write_sarcos
from fedgradnorm._errors import ConfigError, FedGradNormError
from fedgradnorm._options import options_of
from fedgradnorm.data._partition import PARTITIONERS
from fedgradnorm.data._source import SOURCES
from fedgradnorm.data._sources import anchored, load_clients
from mtfl_archive import mtfl_files, write_zip

CASES = int(os.environ.get("FEDGRADNORM_FUZZ", "30"))
ODD = [
    *(None, True, False, -1, 0, 1, 2, 7, 2**31, 10**12, 2**63 - 1, 10**400, -(2**63)),
    *(0.0, 0.3, 1.0, -0.5, 1e-320, 1e300, math.nan, math.inf, -math.inf),
    *(
        "",
        " ",
        ".",
        "..",
        "~",
        "~nobody-here",
        "x",
        "gender",
        "drop",
        "error",
        "balanced",
        "shared",
    ),
    *("a\0b", "a" * 5000, "1", "\n", "classification", "regression", "rgb", "boxes", "inputs"),
    *([], [[]], [1], ["x"], [None], [True, 2], ["area", "area"], [[1, 2], [3]], [0.5, "x"]),
    *({}, {"x": 1}, {"": None}, {"name": "iid"}, {"landmark": 3}, {"snr": -1}, {"pose": "x"}),
    *([{}], [{"name": "a"}], [{"name": 3, "task": 4}], {1: 2}, {"landmark": [1]}, {"snr": {}}),
]


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """Options that work, by source."""
    folder = tmp_path_factory.mktemp("valid")
    write(folder / "houses.csv", HOUSES)
    np.savez(folder / "a.npz", x=np.arange(12.0).reshape(6, 2), y=[0, 1] * 3)
    air = write_beijing(folder / "air.zip", beijing_files("Dongsi", "Shunyi"))
    source = write_zip(folder / "MTFL.zip", mtfl_files(train=15, test=4))
    table = {"name": "houses", "task": "regression", "train": "houses.csv", "targets": "price"}
    table["inputs"] = ["area", "rooms"]
    archive = {"name": "a", "task": "classification", "train": "a.npz"}
    return {
        "radcom": {"samples": 90, "tasks": ["modulation", "signal", "anomaly", "snr"]},
        "faces": {"samples": 50, "test_samples": 5},
        "mtfl": {"path": str(source), "crop": "whole", "allocation": [3] * 5},
        "school": {"path": str(write_school(folder / "school.mat")), "schools": [1, 3]},
        "landmine": {"path": str(write_landmine(folder / "mines.mat")), "fields": [2]},
        "sarcos": {"path": str(write_sarcos(folder / "arm.mat")), "joints": ["joint-2"]},
        "har": {"path": str(write_har(folder / "har.npz")), "people": [1, 3]},
        "fdu_mtl": {"path": str(write_reviews(folder / "reviews.zip")), "domains": ["dvd"]},
        "beijing": {"path": str(air), "tasks": ["co", "rain"], "rows": 60},
        "files": {"base": str(folder), "clients": [table, archive]},
    }


def only_our_error(name, options, folder):
    """Load the clients as a config does; anything but them or our own error fails."""
    try:
        clients = load_clients(name, anchored(name, options, folder), seed=0)
        assert all(client.size >= 1 for client in clients)
    except FedGradNormError as error:
        assert "\n" not in str(error).strip(), options  # noqa: PT017
        assert str(error)  # noqa: PT017
    except Exception as error:
        trace = "".join(traceback.format_exception(error)[-3:])
        pytest.fail(f"{name} {options}: {trace}")


def options_by_source(name):
    function = SOURCES[name].function
    found = options_of(function, without=("progress",), renamed={"source": "path"})
    return [*found, "partition"]


@pytest.mark.parametrize("name", SOURCES)
def test_any_option_of_a_source(name, valid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGRADNORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDGRADNORM_DATA", str(tmp_path))
    monkeypatch.setattr(
        "fedgradnorm.data.faces._BATCH", 50
    )  # drawing 500 faces for 50 takes most of the time
    draw = random.Random(name)
    only_our_error(name, valid.get(name, {}), tmp_path)
    for _ in range(CASES):
        options = dict(valid.get(name, {}))
        for key in draw.choices(options_by_source(name), k=draw.choice((1, 1, 2, 3))):
            options[key] = draw.choice(ODD)
        if name == "files" and draw.random() < 0.7:
            table = dict(draw.choice(valid[name]["clients"]))
            for key in draw.choices(options_by_source(name)[:-1], k=draw.choice((1, 1, 2))):
                table[key] = draw.choice(ODD)
            options["clients"] = [table]
        only_our_error(name, options, tmp_path)


def test_any_option_of_a_partitioner(valid, tmp_path):
    draw = random.Random(0)
    for _ in range(CASES):
        kind = draw.choice(list(PARTITIONERS))
        keys = list(options_of(PARTITIONERS[kind]))
        plan = {"name": kind, "parts": 2, "alpha": 1.0, "sizes": [3, 4], "classes_per_part": 1}
        plan = {key: value for key, value in plan.items() if key in (*keys, "name")}
        plan[draw.choice([*keys, "name", "x"])] = draw.choice(ODD)
        client = draw.choice(["a", "houses", "nobody"])
        only_our_error("files", {**valid["files"], "partition": {client: plan}}, tmp_path)


@pytest.mark.parametrize("base", [1, None, True, ["."], {}])
def test_the_base_folder_is_a_path(base, tmp_path):
    with pytest.raises(ConfigError, match=r"data\.base must be a path, not"):
        anchored("files", {"base": base}, tmp_path)
