"""Beijing's air on made files: tasks, cuts in time, gaps, and files that are wrong."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from beijing_files import FIRST, HEADER, beijing_files, name, rows_of, text, write_beijing
from fedgradnorm import ConfigError, DataError
from fedgradnorm.data import beijing
from fedgradnorm.data.beijing import DIRECTIONS

PLACE = {each: place for place, each in enumerate(HEADER.replace('"', "").split(","))}


@pytest.fixture
def make(tmp_path):
    """Clients of an archive; ``spoil`` changes Dongsi's rows before they are written."""

    def made(spoil=None, stations=("Dongsi",), header=HEADER, cut=None, **options):
        files = beijing_files("Dongsi", "Shunyi", "Tiantan")
        rows = rows_of("Dongsi")
        if spoil:
            rows = spoil(rows) or rows
        files[name("Dongsi")] = text(rows, header)[:cut]
        path = write_beijing(tmp_path / "air.zip", files)
        options = {"tasks": ["co"], **options}
        return beijing.clients(source=path, stations=stations, **options)

    return made


def put(row, column, value):
    def spoil(rows):
        rows[row][PLACE[column]] = value

    return spoil


def test_tasks_are_dealt_in_turn_or_by_station(make):
    made = make(stations=None, tasks=["co", "wind"])
    assert [(c.name, c.task_name) for c in made] == [
        ("Dongsi", "co"), ("Shunyi", "wind"), ("Tiantan", "co"),
    ]  # fmt: skip
    assert [c.task.outputs for c in made] == [1, 16, 1]
    assert made[1].labels == DIRECTIONS
    assert made[0].columns == beijing.INPUTS
    (rain,) = make(stations=None, tasks={"Tiantan": "rain"}, loss_scale={"rain": 0.5})
    assert (rain.name, rain.task_name, rain.task.loss_scale) == ("Tiantan", "rain", 0.5)
    assert rain.labels == ("dry", "rain")
    assert set(rain.task.metrics) == {"accuracy", "auc"}


def test_targets_are_the_cells_in_their_own_units(make):
    rows = rows_of("Dongsi")
    for task, expected in [
        ("co", [float(row[PLACE["CO"]]) for row in rows]),
        ("pm25", [float(row[PLACE["PM2.5"]]) for row in rows]),
        ("wind", [DIRECTIONS.index(row[PLACE["wd"]].strip('"')) for row in rows]),
        ("rain", [int(float(row[PLACE["RAIN"]]) > 0) for row in rows]),
    ]:
        (client,) = make(tasks=[task], test_share=0.25)
        found = torch.cat([client.train[1], client.test[1]]).flatten()
        assert found.tolist() == pytest.approx(expected)


def test_time_is_cut_in_order_and_at_the_same_hours_everywhere(make):
    def gap(rows):
        for row in rows[5:20]:
            row[PLACE["CO"]] = "NA"

    made = make(gap, stations=None, scaling="none", test_share=0.25, validation_share=0.25)
    assert [c.size for c in made] == [48 - 15, 48, 48]
    for client in made:
        assert [len(client.validation[0]), len(client.test[0])] == [24, 24]
        # Made temperatures repeat each day; the pressure tells the hours apart together with it.
        hours = np.arange(96)
        expected = np.stack([hours % 24 - 3.5, 1020.3 - hours % 10, -20.7 + hours % 8], axis=1)
        for split, start in (("validation", 48), ("test", 72)):
            found = getattr(client, split)[0][:, :3].numpy()
            assert np.allclose(found, expected[start : start + 24], atol=1e-4)


def test_rows_are_drawn_by_seed_in_order_of_time_whoever_else_takes_part(make):
    options = {"rows": 40, "test_share": 0.25, "validation_share": 0.1, "scaling": "none"}
    first, *_ = make(stations=None, **options)
    (alone,) = make(**options)
    (other,) = make(**options, seed=1)
    assert (first.size, len(first.validation[0]), len(first.test[0])) == (26, 4, 10)
    assert all(torch.equal(a, b) for a, b in zip(first.train, alone.train, strict=True))
    assert not torch.equal(first.train[0], other.train[0])
    (whole,) = make(scaling="none", test_share=0.25, validation_share=0.1)
    place = {tuple(row): i for i, row in enumerate(whole.train[0].tolist())}
    places = [place[tuple(row)] for row in first.train[0].tolist()]
    assert places == sorted(set(places))


@pytest.mark.parametrize("cell", ["NA", "", " ", '"NA"'])
@pytest.mark.parametrize("column", ["CO", "TEMP", "WSPM"])
def test_an_hour_with_a_gap_in_input_or_target_is_left_out(make, caplog, column, cell):
    with caplog.at_level(logging.INFO):
        (client,) = make(put(3, column, cell))
    assert client.size + len(client.test[0]) == 95
    assert "station Dongsi, task co: 1 of 96 hours have a gap" in caplog.text


def test_a_gap_elsewhere_costs_nothing(make):
    (client,) = make(put(3, "O3", "NA"))
    assert client.size + len(client.test[0]) == 96
    (client,) = make(put(3, "wd", "NA"), tasks=["wind"])
    assert client.size + len(client.test[0]) == 95


def test_a_column_that_the_task_does_not_use_is_not_looked_at(make):
    (client,) = make(put(3, "O3", "abc"))
    assert client.size + len(client.test[0]) == 96
    with pytest.raises(DataError, match="column 'O3' is 'abc', not a number"):
        make(put(3, "O3", "abc"), tasks=["o3"])


def test_inputs_are_scaled_by_training_rows_and_never_see_rain_or_wind_direction(make):
    def rainy(rows):
        for row in rows:
            row[PLACE["RAIN"]], row[PLACE["wd"]] = "7", '"S"'

    raw, scaled = make(scaling="none")[0], make()[0]
    base = raw.train[0].double()
    expected = (raw.test[0].double() - base.mean(0)) / base.std(0, unbiased=False)
    kept = base.std(0, unbiased=False) > 1e-6
    assert torch.allclose(scaled.test[0].double()[:, kept], expected[:, kept], atol=1e-4)
    assert torch.equal(make(rainy)[0].train[0], scaled.train[0])
    angle = torch.arange(24) * (2 * torch.pi / 24)
    assert torch.allclose(raw.train[0][:24, 4], torch.sin(angle), atol=1e-6)
    days = (FIRST - FIRST.replace(month=1, day=1)).days
    assert raw.train[0][0, 7].item() == pytest.approx(np.cos(2 * np.pi * days / 365.25))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            put(2, "CO", "abc"),
            r"\(line 4\): column 'CO' is 'abc', not a number; correct it",
        ),
        (put(2, "TEMP", "inf"), r"\(line 4\): column 'TEMP' is 'inf', too large"),
        (put(2, "wd", "UP"), r"\(line 4\): column 'wd' is 'UP', not a wind direction"),
        (put(2, "hour", "24"), r"\(line 4\): .*'hour': 24.0\} is no hour"),
        (put(2, "day", "32"), r"\(line 4\): .* is no hour"),
        (put(2, "month", "NA"), r"\(line 4\): .*'month': nan.* is no hour"),
        (put(2, "hour", "1"), r"\(line 4\): 2013-03-01T01h does not come after 2013-03-01T01h"),
        (lambda rows: rows[2].pop(), r"\(line 4\): 17 fields where the header has 18"),
        (lambda rows: rows[:-1], r"2013-03-04T22h, its name says 2013-03-01 to 2013-03-04"),
        (lambda rows: rows[24:], r"from 2013-03-02T00h .*; the file is cut off"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(make, spoil, said):
    def keep(rows):
        found = spoil(rows)
        return found if found and isinstance(found[0], list) else rows

    task = "wind" if "wind" in said else "co"
    with pytest.raises(DataError, match=rf"air\.zip/.*PRSA_Data_Dongsi_\d+-\d+\.csv.*{said}"):
        make(keep, tasks=[task])


def test_bad_rows_are_left_out_and_told_where_that_is_asked_for(make, caplog):
    def spoil(rows):
        put(2, "CO", "abc")(rows)
        put(5, "hour", "99")(rows)
        rows[9].pop()

    (client,) = make(spoil, on_bad="drop")
    assert client.size + len(client.test[0]) == 93
    assert "3 bad rows left out" in caplog.text


def test_other_damage(make, tmp_path):
    with pytest.raises(DataError, match=r"no column 'CO'; did you mean 'COO'\?"):
        make(header=HEADER.replace('"CO"', '"COO"'))
    with pytest.raises(DataError, match=r"line 97\): \d+ fields where the header has 18|not a CSV"):
        make(cut=-40)
    with pytest.raises(DataError, match="no rows left to use; download it again"):
        make(cut=len(HEADER) + 2)
    with pytest.raises(DataError, match="the file is empty"):
        make(cut=0)
    file = tmp_path / "broken.zip"
    file.write_bytes((tmp_path / "air.zip").read_bytes()[:-50])
    with pytest.raises(DataError, match="not a complete zip archive"):
        beijing.clients(source=file)
    write_beijing(file, {"PRSA2017.zip": b""})
    with pytest.raises(DataError, match="UCI packs that archive into another one"):
        beijing.clients(source=file)
    make()
    content = bytearray((tmp_path / "air.zip").read_bytes())
    content[200] ^= 255
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"cannot be read .*; check the archive"):
        beijing.clients(source=file, stations=["Dongsi"])


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"stations": ["Dongzi"]}, ConfigError, "unknown station 'Dongzi'; did you mean 'Dongsi'"),
        ({"stations": []}, ConfigError, "stations must be a list of at least one"),
        ({"stations": ["Dongsi"] * 2}, ConfigError, "lists one twice"),
        ({"tasks": ["c0"]}, ConfigError, "unknown task 'c0'; did you mean 'co'"),
        ({"tasks": "co"}, ConfigError, "tasks must name at least one"),
        ({"tasks": {"Shunyi": "co"}}, ConfigError, "station 'Dongsi' has no task"),
        ({"rows": 0}, ConfigError, "rows must be a whole number >= 1, not 0"),
        ({"rows": 2.5}, ConfigError, "rows must be a whole number"),
        (
            {"rows": 200},
            DataError,
            r"'Dongsi', task 'co': train asks for 160 hours, 77 have no gap",
        ),
        ({"rows": 2}, DataError, "client 'Dongsi', task 'co': test gets no row; raise rows"),
        ({"test_share": 1}, ConfigError, "leave a part for training"),
        ({"test_share": 0.5, "validation_share": 0.5}, ConfigError, "leave a part for training"),
        ({"loss_scale": {"c": 1.0}}, ConfigError, "unknown task in loss_scale 'c'"),
        ({"on_bad": "ignore"}, ConfigError, "unknown on_bad"),
        ({"seed": -3}, ConfigError, "seed must be"),
    ],
)
def test_settings_are_checked(make, options, error, said):
    with pytest.raises(error, match=said):
        make(**options)


def test_a_split_without_an_hour_is_an_error(make):
    def gap(rows):
        for row in rows[-30:]:
            row[PLACE["CO"]] = "NA"

    with pytest.raises(DataError, match="'Dongsi', task 'co': test has no hour without a gap"):
        make(gap)


def test_a_file_too_large_for_memory_is_refused(make, monkeypatch):
    monkeypatch.setenv("FEDGRADNORM_MEMORY", "0.00001")
    with pytest.raises(DataError, match="FEDGRADNORM_MEMORY"):
        make()
