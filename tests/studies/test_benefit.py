"""The benefit: the tables and the figure, against pandas on the runs' own files."""

from __future__ import annotations

import json
import tarfile
import tomllib
from pathlib import Path

import pandas as pd
import pytest
import scipy.stats
from typer.testing import CliRunner

from fedgradnorm._cli.app import app
from fedgradnorm._report.frame import read_report
from fedgradnorm._report.grid import to_csv
from studies import benefit
from studies.benefit import ENDS, Gains, _gain, all_gains, benefit_grid, by_task_grid

METHODS = ["local", "fedrep", "fedgradnorm-steady sharing.heads=task"]
SMALL = [
    'data={source="faces",samples=200,test_samples=30,clients_per_task=2,rows=16,validation_share=0.25}',
    'network={name="mlp",widths=[4]}', "rounds=4", "evaluation.every=2",
    "local.batch_size=8", "personalization.personalize.steps=3", "lr=0.01",
    f"compare.methods={json.dumps(METHODS)}",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("benefit") / "runs"
    words = ["reproduce", "benefit-mtfl-50", "--seeds", "2", "--device", "cpu", "--out", str(out)]
    result = CliRunner().invoke(app, [*words, *SMALL])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(benefit.app, [str(out)])
    assert result.exit_code == 0, result.output
    assert "Benefit over training alone" in result.output
    return out


@pytest.fixture(scope="module")
def found(folder: Path) -> list[Gains]:
    return all_gains({"runs": read_report([folder], "local")})


def last_values(folder: Path) -> pd.DataFrame:
    """A row per run, client and split: the last evaluation."""
    frames = []
    for path in folder.glob("*/metrics.csv"):
        config = tomllib.loads((path.parent / "config.toml").read_text())
        frame = pd.read_csv(path)
        frame = frame[frame.split != "batch"].groupby(["client", "split"], as_index=False).last()
        frames.append(frame.assign(method=config["method"], seed=config["seed"]))
    return pd.concat(frames)


def gain(value: float, base: float, metric: str) -> float:
    return 100 * (value - base) if metric == "accuracy" else 100 * (base - value) / base


def expected(values: pd.DataFrame, method: str, end: str, client: str, seed: int) -> float:
    table = values[(values.client == client) & (values.seed == seed)].set_index(["method", "split"])
    metric = "nme" if client.startswith("landmark") else "accuracy"
    split = {"shared": "untuned-test", "tuned": "test"}
    place = (method, split.get(end, ""))
    if end == "chosen":
        candidates = [(method, "untuned-"), (method, ""), ("local", "")]
        losses = [table.loss[who, f"{before}validation"] for who, before in candidates]
        who, before = candidates[losses.index(min(losses))]
        place = who, f"{before}test"
    return gain(table[metric][place], table[metric]["local", "test"], metric)


def test_every_clients_gain_is_that_of_its_files(folder: Path, found: list[Gains]) -> None:
    values = last_values(folder)
    assert {(one.method, one.end) for one in found} == {
        (method, end) for method in ("fedrep", "fedgradnorm-steady") for end in ENDS
    }
    for one in found:
        assert len(one.table.columns) == {"%": 2, "points": 8}[one.unit]  # landmark; the others
        for client, gains in one.table.items():
            wanted = [expected(values, one.method, one.end, client, s) for s in (0, 1)]
            assert list(gains) == pytest.approx(wanted, abs=1e-9), (one.variant, one.end, client)


def test_means_intervals_and_shares(found: list[Gains]) -> None:
    for one in found:
        table = one.table
        seeds = table.mean(axis=1)
        assert one.mean.mean == pytest.approx(seeds.mean())
        assert one.mean.half == pytest.approx(scipy.stats.t.ppf(0.975, 1) * seeds.sem(), abs=1e-12)
        low, high = (table.mean() + sign * 12.7062 * table.sem() for sign in (-1, 1))
        assert (one.share(+1), one.share(-1)) == ((low > 0).mean(), (high < 0).mean())
        tasks = table.T.groupby(lambda name: name.rpartition("-")[0]).mean().T.mean()
        assert {t: e.mean for t, e in one.by_task().items()} == pytest.approx(tasks.to_dict())


def test_p_values_are_corrected_over_the_whole_table(found: list[Gains]) -> None:
    raw = [scipy.stats.ttest_1samp(one.table.mean(axis=1), 0).pvalue for one in found]
    order = sorted(range(len(raw)), key=raw.__getitem__)
    steps = [raw[i] * (len(raw) - place) for place, i in enumerate(order)]
    wanted = [min(1, max(steps[: place + 1])) for place in range(len(raw))]
    assert [found[i].p for i in order] == pytest.approx(wanted)


def test_a_client_whose_score_alone_is_zero_counts() -> None:
    assert _gain({("test", "accuracy"): 0.3}, {("test", "accuracy"): 0.0}, "shared") == (
        "points", 30,
    )  # fmt: skip


def test_chosen_is_never_worse_than_alone_by_its_own_validation_rows(folder: Path) -> None:
    values = last_values(folder).set_index(["method", "seed", "client", "split"]).loss
    for (method, seed, client, split), loss in values.items():
        if split == "untuned-validation":
            assert values[method, seed, client, "validation"] <= loss


def test_tables_and_figure_are_written(folder: Path, found: list[Gains]) -> None:
    tables = folder / "tables"
    assert (tables / "benefit.csv").read_text() == to_csv(benefit_grid(found))
    assert (tables / "benefit-tasks.csv").read_text() == to_csv(by_task_grid(found))
    assert len(benefit_grid(found).rows) == 12  # two variants, three ends, two units
    for ending in ("png", "pdf"):
        assert (folder / "figures" / f"benefit.{ending}").stat().st_size > 10_000


@pytest.mark.slow
def test_the_published_tables_are_those_of_their_runs(tmp_path: Path) -> None:
    place = Path(__file__).parents[2] / "docs" / "results" / "benefit"
    with tarfile.open(place / "benefit.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    names = list(dict.fromkeys(pd.read_csv(place / "benefit.csv").data))
    found = all_gains(
        {n: read_report([tmp_path / "benefit" / f"benefit-{n}"], "local") for n in names}
    )
    assert (place / "benefit.csv").read_text() == to_csv(benefit_grid(found))
    assert (place / "benefit-tasks.csv").read_text() == to_csv(by_task_grid(found))
