"""Runs and checkpoints of earlier versions load, resume and report as they did.

An archive holds the data of two clients, finished runs, and the same runs stopped after round 4.
``early`` is from a version without checksums and fingerprints, ``checked`` from one that has them.
"""

from __future__ import annotations

import csv
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

import fedgradnorm as fgn
from fedgradnorm._stored.groups import group
from fedgradnorm._stored.reader import collect
from fedgradnorm.experiments._execute import execute, resume_config

VERSIONS = ("early", "checked")
METHODS = ("fedgradnorm", "fedrep", "fedgradnorm-direct", "ditto", "uw", "local")


@pytest.fixture(scope="module", params=VERSIONS)
def archive(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    with tarfile.open(Path(__file__).with_name(f"{request.param}.tar.xz")) as packed:
        packed.extractall(folder, filter="data")
    here = folder / request.param
    for path in here.glob("*/*/config.toml"):
        path.write_text(path.read_text().replace("/archive", str(here)))
    return here


def numbers(folder: Path) -> list[dict[str, object]]:
    """The rows of a run's table, numbers as numbers."""

    def value(text: str) -> object:
        try:
            return float(text)
        except ValueError:
            return text

    with (folder / "metrics.csv").open() as file:
        return [{key: value(text) for key, text in row.items()} for row in csv.DictReader(file)]


@pytest.mark.parametrize("method", METHODS)
def test_a_stopped_run_goes_on_to_the_same_end(method, archive, tmp_path):
    finished, folder = archive / "finished" / f"{method}-0", tmp_path / "run"
    shutil.copytree(archive / "stopped" / f"{method}-0", folder)
    execute(resume_config(folder), folder, resume=True)
    ours, theirs = numbers(folder), numbers(finished)
    assert len(ours) == len(theirs)
    for mine, wanted in zip(ours, theirs, strict=True):
        for key, value in wanted.items():
            near = value if isinstance(value, str) else pytest.approx(value, rel=1e-4)
            assert mine[key] == near, key


@pytest.mark.parametrize("method", METHODS)
def test_a_finished_run_predicts_as_it_was_evaluated(method, archive):
    folder = archive / "finished" / f"{method}-0"
    run = fgn.load(folder)
    table = np.loadtxt(archive / "class.csv", delimiter=",", skiprows=1)
    x, y = table[:, :3].astype(np.float32), table[:, 3]
    right = (np.asarray(run.predict("class", x)) == y).mean()
    rows = [r for r in numbers(folder) if r["client"] == "class" and r["round"] == 6]
    by_split = {r["split"]: r["accuracy"] for r in rows if r["split"] != "batch"}
    assert right == pytest.approx(0.75 * by_split["train"] + 0.25 * by_split["test"])
    assert isinstance(run.heads["class"], torch.nn.Module)


def test_reports_group_and_score_them_as_their_tables_say(archive):
    """Seed 1 has another engine than seed 0 of fedgradnorm, so only fedrep's seeds are one arm."""
    runs, problems = collect([archive / "finished"])
    groups, _ = group(runs)
    seeds = {found.label: sorted(found.seeds) for found in groups}
    assert seeds["fedrep"] == [0, 1]
    assert {found.method for found in groups} == set(METHODS)
    assert not problems
    for run in runs:
        last = [r for r in run.rows if r["split"] == "test" and r["round"] == 6]
        wanted = [
            r
            for r in numbers(archive / "finished" / run.name)
            if r["split"] == "test" and r["round"] == 6
        ]
        assert [r["loss"] for r in last] == [r["loss"] for r in wanted]
