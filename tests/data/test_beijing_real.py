"""The published archive, recomputed with pandas. Runs where FEDGRADNORM_DATA names its folder."""

from __future__ import annotations

import zipfile

import numpy as np
import pandas as pd
import pytest

from fedgradnorm._errors import DataError
from fedgradnorm.data import beijing
from fedgradnorm.data._paths import find_data
from fedgradnorm.data.beijing import POLLUTANTS

pytestmark = pytest.mark.real_data

WEATHER = ["TEMP", "PRES", "DEWP", "WSPM"]


@pytest.fixture(scope="module")
def source():
    try:
        return find_data(None, beijing.FILES, "beijing")
    except DataError as error:
        pytest.skip(f"needs the real archive: {error}")


def frame(source, station):
    with zipfile.ZipFile(source) as archive:
        entry = next(each for each in archive.namelist() if f"_{station}_" in each)
        return pd.read_csv(archive.open(entry), na_values=[" "])


@pytest.mark.parametrize(
    ("station", "task"), [("Aotizhongxin", "so2"), ("Guanyuan", "co"), ("Huairou", "wind")]
)
def test_rows_are_those_that_pandas_finds(source, station, task):
    """Aotizhongxin's SO2 has the one blank cell of the set."""
    (client,) = beijing.clients(tasks={station: task}, scaling="none")
    table = frame(source, station)
    column = "wd" if task == "wind" else POLLUTANTS[task]
    good = table[[*WEATHER, column]].notna().all(axis=1)
    cut = round(0.8 * len(table))
    for (x, y), part in ((client.train, slice(cut)), (client.test, slice(cut, None))):
        rows = table[part][good[part]]
        assert np.array_equal(x[:, :4].numpy(), rows[WEATHER].to_numpy(np.float32))
        values = y.flatten().numpy()
        if task == "wind":
            assert [client.labels[code] for code in values] == rows["wd"].tolist()
        else:
            assert np.array_equal(values, rows[column].to_numpy(np.float32))
        moment = pd.to_datetime(rows[["year", "month", "day", "hour"]])
        assert np.allclose(x[:, 4].numpy(), np.sin(2 * np.pi * moment.dt.hour / 24), atol=1e-6)
        turn = 2 * np.pi * (moment.dt.day_of_year - 1) / 365.25
        assert np.allclose(x[:, 7].numpy(), np.cos(turn), atol=1e-6)


@pytest.mark.slow
def test_twelve_stations_and_eight_tasks(source):
    clients = beijing.clients(rows=1000)
    assert tuple(client.name for client in clients) == beijing.STATIONS
    assert [c.task_name for c in clients] == [*beijing.TASKS, *beijing.TASKS[:4]]
    assert {(c.size, len(c.test[0])) for c in clients} == {(800, 200)}
    loud = clients[beijing.TASKS.index("co")].train[1].square().mean()
    assert loud > 100 * clients[0].train[1].square().mean()
    assert np.allclose(np.concatenate([c.train[0] for c in clients]).mean(0), 0, atol=1e-4)
