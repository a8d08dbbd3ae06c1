"""The stations' config on the raw CSV files, in the archive as it was downloaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pandas as pd
import pytest

import fedgradnorm as fgn
from fedgradnorm.experiments import load_config
from fedgradnorm.experiments import run as execute

CONFIG = Path(__file__).parents[2] / "configs" / "stations.toml"
ARCHIVE = "PRSA_Data_20130301-20170228.zip"
SOME = ("Changping", "Dongsi", "Huairou")
COLUMNS = ["TEMP", "PRES", "DEWP", "WSPM", "hour", "month", "wd"]


@pytest.mark.real_data
def test_raw_files_train_by_the_config_alone(tmp_path: Path) -> None:
    folder = Path(os.environ.get("FEDGRADNORM_DATA") or tmp_path).expanduser()
    if not (folder / ARCHIVE).exists():
        pytest.skip(f"needs {ARCHIVE} in the folder named by FEDGRADNORM_DATA")
    pytest.importorskip("torchmetrics")
    (tmp_path / "some.toml").write_text(_with_clients(CONFIG.read_text(), SOME))
    config = load_config(tmp_path / "some.toml", ["data.rows=800", "rounds=3"])
    run = execute(config, tmp_path / "run")
    about = run.manifest["clients"]
    assert {name: about[name]["kind"] for name in about} == dict(
        zip(SOME, ("regression", "binary", "classification"), strict=True)
    )
    assert all(sum(about[name]["splits"].values()) in range(795, 806) for name in about)
    assert about["Dongsi"]["class_weights"]["given"] == "balanced"
    test = run.history[run.history.split == "test"]
    assert test[test.client == "Dongsi"].auroc.notna().all()
    said = (tmp_path / "run" / "log.txt").read_text()
    assert re.search(r"client 'Changping': \d+ of 80\d rows have no label", said)
    assert not (tmp_path / "run" / "dropped.txt").exists()

    raw = pd.DataFrame([[-0.7, 1023, -18.8, 4.4, 0, 3, "NNW"]] * 2, columns=COLUMNS)
    raw.loc[1, ["PRES", "wd"]] = None
    again = fgn.load(tmp_path / "run")
    for name in SOME:
        assert (again.predict(name, raw) == run.predict(name, raw)).all()
    wind = again.predict("Huairou", raw.drop(columns="wd"), kind="label")
    assert set(wind) <= set(about["Huairou"]["labels"])


def _with_clients(text: str, names: tuple[str, ...]) -> str:
    """The config with these stations alone, and the archive looked for in the data folder."""
    head, *clients = text.split("[[data.clients]]")
    last, rest = clients[-1].split("[network]")
    kept = [c for c in (*clients[:-1], last) if any(f'name = "{name}"' in c for name in names)]
    return "[[data.clients]]".join([head, *kept]) + "[network]" + rest
