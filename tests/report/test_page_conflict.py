"""Conflict between clients on the page: curves and maps where it was recorded."""

import json
import re

import pytest

from fedgradnorm._report.curves import COSINE, cosine_with, series_of
from fedgradnorm._report.page import make_page
from fedgradnorm._runs.history import pair_rows
from report.run_folders import write_run

THREE = {"gender": "accuracy", "landmark": "mae", "pose": "accuracy"}


def panels(html: str) -> list[dict]:
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])
    return data["sections"].get("conflict", [])


def test_a_clients_cosines_and_their_mean():
    series = series_of([], None, pair_rows(3, 0.5, [("a", "b", 0.4), ("a", "c", -0.2)]))
    assert series["a", "batch", cosine_with("b")] == series["b", "batch", cosine_with("a")]
    assert series["a", "batch", COSINE] == {3: (0.5, pytest.approx(0.1))}
    assert series["c", "batch", COSINE] == {3: (0.5, -0.2)}


def test_shown_where_recorded(tmp_path):
    write_run(tmp_path, "fedrep")
    for seed in (0, 1):
        write_run(tmp_path, "fedgradnorm", seed, tasks=THREE, cosine=-0.4 + 0.2 * seed)
    html = make_page([tmp_path]).html
    found = panels(html)
    assert list(dict.fromkeys(panel["view"] for panel in found)) == [
        "with all others", "with gender", "with landmark", "with pose",
    ]  # fmt: skip
    first = found[0]["series"]
    assert [one["method"] for one in first] == [1]
    assert first[0]["lo"][0] == pytest.approx(-0.3)
    assert len({tuple(panel["range"]) for panel in found[:3]}) == 1
    assert "Not recorded for fedrep." in html
    assert html.count('class="map"') == 1
    assert html.count("-0.30</td>") == 2  # both ways; mean over rounds and seeds


def test_nothing_where_nothing_was_recorded(tmp_path):
    write_run(tmp_path)
    html = make_page([tmp_path]).html
    assert not panels(html)
    assert 'class="map"' not in html


def test_recording_it_makes_no_other_method(tmp_path):
    for seed, every in ((0, 0), (1, 5)):
        settings = {"seed": seed, "share": "all", "lr": 0.1, "record_conflict": every}
        write_run(tmp_path, "fedrep", seed, manifest={"settings": settings})
    page = make_page([tmp_path])
    assert not page.report.notes
    assert set(page.report.seeds.values()) == {2}


def test_a_damaged_table_is_named_and_shown_as_far_as_it_goes(tmp_path):
    folder = write_run(tmp_path, cosine=0.5)
    with (folder / "conflict.csv").open("a") as file:
        file.write("9,what,a,b,0.1\n")
    page = make_page([tmp_path])
    assert any("conflict.csv, line 6 is damaged" in note for note in page.report.notes)
    assert panels(page.html)
    (folder / "conflict.csv").write_text("round,epoch,client,other,cosine\n1,0.2,a,,0.1\n")
    assert "conflict.csv is damaged: 1 of its rows" in make_page([tmp_path]).report.notes[0]


def test_names_are_text_and_many_tasks_get_no_map(tmp_path):
    nasty = "</td><img src=x onerror=alert(1)>"
    write_run(tmp_path / "a", tasks={nasty: "accuracy", "b": "accuracy"}, cosine=0.1)
    assert "<img" not in make_page([tmp_path / "a"]).html
    write_run(tmp_path / "b", tasks={f"t{i}": "accuracy" for i in range(20)}, cosine=0.1)
    html = make_page([tmp_path / "b"]).html
    assert {panel["view"] for panel in panels(html)} == {"with all others"}
    assert 'class="map"' not in html
