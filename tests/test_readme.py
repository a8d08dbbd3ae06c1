"""Numbers on the first pages are those of the archives, of the data, and of the program."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedgradnorm._errors import DataError
from fedgradnorm.data import mtfl
from fedgradnorm.data._paths import find_data
from fedgradnorm.data.mtfl import SIZE

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs/results/README.md").read_text(encoding="utf-8")
BASELINES = (ROOT / "docs/results/baselines.md").read_text(encoding="utf-8")
TORQUES = {
    "constant prediction": "constant",
    "boosted trees, each client alone": "boosted trees, alone",
    "the network, each client alone": "network, alone",
    "equal weights (`fedrep`)": "equal weights",
    "the paper's rule (`fedgradnorm`)": "FedGradNorm",
    "our direct rule, the default (`fedgradnorm-direct`)": "direct rule",
    "equal gradient norms (`equal-norms`)": "equal norms",
}
TASKS = {"gender": 100.0, "smile": 100.0, "glasses": 100.0, "pose": 100.0, "landmark": 1.0}
METHODS = {
    "each client alone": "local",
    "equal weights (`fedrep`)": "fedrep",
    "the paper's rule (`fedgradnorm`)": "fedgradnorm",
    "our direct rule (`fedgradnorm-direct`)": "fedgradnorm-direct",
}
CONSTANT = "best constant prediction"


def table(page: str = BASELINES, head: str = "gender, %", length: int = 5) -> dict[str, list[str]]:
    lines = [line for line in page.splitlines() if line.startswith("|")]
    start = next(i for i, line in enumerate(lines) if head in line)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start + 2 :]]
    return {row[0]: row[1:] for row in rows[:length]}


def test_the_torques_are_those_that_were_measured() -> None:
    rows = json.loads((ROOT / "benchmarks/results/units.json").read_text())["rows"]
    for title, model in TORQUES.items():
        wanted = []
        for units in ("own units", "standardized"):
            (row,) = (
                row
                for row in rows
                if row["model"] == model
                and row.get("units", units) == units
                and row.get("heads", "targets") == "targets"
            )
            wanted.append(f"{np.mean(row['scores']):.1f}")
        assert table(README, "own units", len(TORQUES))[title] == wanted


def shown(values: list[float]) -> list[str]:
    *shares, error = values
    return [*(f"{share:.1f}" for share in shares), f"{error:.2f}"]


def test_the_scores_are_those_of_the_published_runs() -> None:
    frame = pd.read_csv(ROOT / "docs/results/baselines/every-metric.csv")
    frame = frame[(frame.split == "test") & frame.metric.isin(["accuracy", "mae"])]
    assert (frame["count"] == 5).all()
    for title, method in METHODS.items():
        scores = frame[frame.variant == method].set_index("task")["mean"]
        assert table()[title] == shown([TASKS[task] * scores[task] for task in TASKS])


def test_how_many_of_the_papers_cells_our_intervals_miss() -> None:
    frame = pd.read_csv(ROOT / "docs/results/table2/tasks.csv").dropna(subset=["paper_s_loss"])
    inside = frame.paper_s_loss.between(frame.training_loss_low, frame.training_loss_high)
    outside = (~inside).sum()
    assert f"{outside} of the paper's {len(frame)} cells lie outside our intervals" in RESULTS


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> mtfl.MTFL:
    try:
        found = find_data(None, ("MTFL.zip", "MTFL"), "mtfl")
    except DataError as error:
        pytest.skip(f"needs the real MTFL archive: {error}")
    return mtfl.prepare(found, cache=tmp_path_factory.mktemp("cache"))


@pytest.mark.slow
@pytest.mark.real_data
def test_landmarks_outside_their_box(faces: mtfl.MTFL) -> None:
    marks = faces.train.landmarks
    outside = ((marks < 0) | (marks > SIZE)).any(axis=1)
    squared = ((marks - marks.mean(0)) ** 2).sum(axis=1)
    share = 100 * squared[outside].sum() / squared.sum()
    assert f"on {outside.sum()} of the {len(marks):,} training faces" in RESULTS
    assert f"carry {share:.0f} % of the variance" in RESULTS


@pytest.mark.slow
@pytest.mark.real_data
def test_the_constant_scores_are_those_of_the_test_faces(faces: mtfl.MTFL) -> None:
    """The most frequent class of the test faces, and the mean landmarks of the training faces."""
    shares = [
        100 * np.bincount(faces.test.labels[task]).max() / len(faces.test)
        for task in TASKS
        if task != "landmark"
    ]
    error = np.abs(faces.test.landmarks - faces.train.landmarks.mean(0)).mean()
    assert table()[CONSTANT] == shown([*shares, float(error)])
    for share in shares:
        assert f"{share:.1f} %" in RESULTS
    assert f"{error:.2f} pixels" in RESULTS


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_program_prints_what_the_page_shows(page: str, tmp_path: Path) -> None:
    """Words and layout are equal; numbers agree as far as machines do."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, flags=re.DOTALL)
    assert found
    printed = subprocess.run(
        [sys.executable, "-c", found[1]], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    number = re.compile(r"\d+\.\d+")
    assert number.sub("#", printed).split() == number.sub("#", found[2]).split()
    pairs = zip(number.findall(printed), number.findall(found[2]), strict=True)
    for ours, theirs in pairs:
        assert float(ours) == pytest.approx(float(theirs), rel=0.1, abs=0.02)
