"""The page without a browser: what it says, what it computes, and what it makes of bad runs."""

import json
import math
import re
from pathlib import Path

import pytest

from fedgradnorm import ConfigError, RunFolderError
from fedgradnorm._report import curves as page_data
from fedgradnorm._report.page import make_page, write_page
from fedgradnorm._report.panels import log_ticks
from fedgradnorm._runs.reader import collect
from fedgradnorm.experiments._groups import group
from report.run_folders import write_run

NASTY = '</script><img src=x onerror=alert(1)><b>%{y}</b> & "q"'


def four(tmp_path: Path) -> Path:
    for seed in (0, 1):
        write_run(tmp_path, "fedrep", seed)
        write_run(tmp_path, "fedgradnorm", seed, shift=-0.05)
    return tmp_path


def data_of(html: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])


def headline(html: str) -> str:
    return re.search(r"<h1>(.*?)</h1>", html, re.DOTALL)[1]


def test_one_file_with_everything_and_a_headline_from_the_data(tmp_path):
    page = make_page([four(tmp_path)])
    assert headline(page.html).startswith("fedgradnorm beats fedrep on both tasks: gender +2.5")
    assert "Paired t-tests over seeds" in page.html
    assert not page.report.notes
    assert page.report.variants == ["fedrep", "fedgradnorm"]
    data = data_of(page.html)
    assert list(data["sections"]) == ["curves", "weights", "more"]
    assert all("lo" in s for p in data["sections"]["curves"] for s in p["series"])
    assert not re.search(r"(?:src|href)=[\"'](?!data:|#)", page.html)
    assert make_page([tmp_path]).html == page.html


def test_one_method_and_methods_that_share_nothing(tmp_path):
    write_run(tmp_path / "one")
    page = make_page([tmp_path / "one"])
    assert headline(page.html) == "fedrep lowers the training loss on both tasks."
    write_run(tmp_path / "two", "fedgradnorm", tasks={"other": "accuracy"})
    page = make_page([tmp_path / "one", tmp_path / "two"])
    assert "share no task" in headline(page.html)
    assert any("same clients" in note for note in page.report.notes)


def test_a_sweep_compares_point_by_point_and_never_across_points(tmp_path):
    """At every point fedgradnorm is ahead; across points its second one would lose to fedrep."""
    for seed in (0, 1):
        for place, scale in enumerate((1, 10)):
            config = f"[data]\nloss_scale = {scale}\n[point]\n'data.loss_scale' = {scale}\n"
            for method, shift in (("fedrep", 0.0), ("fedgradnorm", -0.03)):
                write_run(tmp_path / f"{place}", method, seed, shift=shift + 0.1 * place,
                          config=config)  # fmt: skip
    html = make_page([tmp_path]).html
    assert headline(html).startswith(
        "Sweep over 2 points by 2 tasks: fedgradnorm is significantly better than fedrep in 4 of 4"
    )
    data = data_of(html)
    assert next(iter(data["sections"])) == "sweep"
    assert {len(s["x"]) for panel in data["sections"]["sweep"] for s in panel["series"]} == {2}


def test_buttons_are_not_inside_what_folds(tmp_path):
    html = make_page([four(tmp_path)]).html
    for summary in re.findall(r"<summary.*?</summary>", html, re.DOTALL):
        assert "<button" not in summary
    assert "nth-child" not in html.partition('id="plotly"')[0]


def test_curves_show_first_what_the_headline_speaks_of(tmp_path):
    first = [p["view"] for p in data_of(make_page([four(tmp_path)]).html)["sections"]["curves"]]
    assert first[0] == "Accuracy or error"
    write_run(tmp_path / "one")
    page = make_page([tmp_path / "one"])
    assert "training loss" in headline(page.html)
    assert data_of(page.html)["sections"]["curves"][0]["view"] == "Loss"


def test_weights_are_on_a_logarithmic_axis_that_all_tasks_share(tmp_path):
    panels = data_of(make_page([four(tmp_path)]).html)["sections"]["weights"]
    assert all(panel["log"] for panel in panels)
    assert len({tuple(panel["range"]) for panel in panels}) == 1
    low, high = panels[0]["range"]
    assert 10**low < 1 < 1.1 < 10**high


def test_generated_data_is_called_synthetic(tmp_path):
    for number, (table, says) in enumerate((
        ('source = "faces"', "Synthetic data: drawn faces, not photographs"),
        ('source = "radcom"', "Synthetic data: generated signals"),
        ('source = "radcom"\npath = "r.h5"', ""), ('source = "mtfl"', ""),
    )):  # fmt: skip
        write_run(tmp_path / str(number), config=f"[data]\n{table}\n")
        html = make_page([tmp_path / str(number)]).html
        assert ('id="synthetic"' in html) == bool(says)
        assert says in html
        assert data_of(html)["synthetic"] == ("Synthetic data" if says else "")


def test_bands_are_thinned_and_keep_their_ends_and_gaps():
    runs = [{k: (k / 10, float(k + s)) for k in range(5000)} for s in (0, 2)]
    epochs, values = page_data.thinned(runs)
    assert values.shape == (2, page_data.POINTS)
    assert (*values[:, 0], *values[:, -1], epochs[-1]) == (0.0, 2.0, 4999.0, 5001.0, 499.9)
    assert values[1] - values[0] == pytest.approx(2.0)
    assert page_data.thinned([]) is None
    assert page_data.thinned([{1: (0.1, math.nan)}]) is None
    key, gaps = ("a", "train", "loss"), ({1: (0.1, 1.0), 2: (0.2, math.inf)}, {3: (0.3, 2.0)})
    points = page_data.Curves([{key: one} for one in gaps], {}).points(key)
    assert points["y"] == points["lo"] == points["hi"] == [1, None, 2]


def test_ticks_are_few_and_inside():
    for low, high in ((0.9, 10), (0.1, 134), (1e-9, 1e9), (3, 40), (2e-4, 3e-3)):
        ticks = log_ticks(low, high)
        assert 1 < len(ticks) < 9
        assert all(low <= tick <= high for tick in ticks)


def test_names_are_text(tmp_path):
    folder = write_run(tmp_path, "fedrep", tasks={NASTY: "accuracy"}, manifest={"command": [NASTY]})
    (folder / "config.toml").write_text(f"name = {json.dumps(NASTY)}\nmethod = {json.dumps(NASTY)}")
    write_run(tmp_path, "fedgradnorm", tasks={NASTY: "accuracy"})
    html = make_page([tmp_path]).html
    assert "<img" not in html
    assert "<b>%" not in html
    assert html.count("</script>") == 3
    assert data_of(html)["tasks"] == [NASTY]


def test_unfinished_empty_damaged_and_missing_runs(tmp_path):
    whole = write_run(tmp_path, "fedrep", 0)
    write_run(tmp_path, "fedrep", 1, rounds=5, planned=12)
    damaged = write_run(tmp_path, "fedgradnorm", 0)
    lines = (damaged / "metrics.csv").read_text().splitlines(keepends=True)
    (damaged / "metrics.csv").write_text("".join(lines[:20]) + "7,what,is,this\n" + lines[20])
    (damaged / "run.json").write_text("{")
    empty = write_run(tmp_path, "fedgradnorm", 1)
    (empty / "metrics.csv").write_text(lines[0])
    gone = write_run(tmp_path, "fedgradnorm", 2)
    (gone / "metrics.csv").unlink()
    (gone / "run.json").unlink()
    (gone / "config.toml").write_text("= 3")
    page = make_page([tmp_path, tmp_path / "nowhere"])
    told = "\n".join(page.report.notes)
    for words in ("nowhere is no run folder", "fedrep-seed1 is not finished: round 5 of 12",
                  "line 21 is damaged", "shown up to round", "run.json is damaged",
                  "fedgradnorm-seed1: no round was recorded", "metrics.csv is missing",
                  "config.toml is damaged",
                  "fedrep-seed1 ended before the others and is left out"):  # fmt: skip
        assert words in told
    assert str(tmp_path) not in told.replace(f"{tmp_path}/nowhere", "")
    assert page.report.seeds["fedrep"] == 1
    assert whole.name in page.html


def test_a_page_of_nothing_but_trouble(tmp_path):
    (write_run(tmp_path) / "metrics.csv").write_bytes(b"\xff\xfe\n")
    page = make_page([tmp_path])
    assert "Nothing to compare yet" in headline(page.html)
    assert page.report.frame.empty
    with pytest.raises(RunFolderError, match="is no run folder"):
        make_page([tmp_path / "nowhere"])
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_page([tmp_path], tmp_path / "file" / "page.html")


def test_diverged_runs(tmp_path):
    for seed in (0, 1):
        folder = write_run(tmp_path, "fedrep", seed)
        text = (folder / "metrics.csv").read_text()
        (folder / "metrics.csv").write_text(re.sub(r"(?m)^(12,.*?,test,)[^,]*", r"\1inf", text))
        write_run(tmp_path, "fedgradnorm", seed)
    assert data_of(make_page([tmp_path]).html)


def test_variants_of_a_method_are_told_apart_and_repeats_left_out(tmp_path):
    for name, gamma in (("a", 0.5), ("b", 1.5), ("c", 1.5)):
        weighting = {"name": "GradNorm", "gamma": gamma}
        write_run(tmp_path / name, "fedgradnorm", manifest={"weighting": weighting})
    groups, notes = group(collect([tmp_path])[0])
    assert [g.label for g in groups] == ["fedgradnorm gamma=0.5", "fedgradnorm gamma=1.5"]
    assert len(notes) == 1
    assert "repeats" in notes[0]


def test_a_variant_is_called_as_it_was_written_and_has_a_switch(tmp_path):
    text = "[weighting]\nlr = {lr}\n{own}"
    own = '[own]\n"weighting.lr" = 0.008\n'
    write_run(tmp_path, "fedrep")
    write_run(tmp_path, "fedgradnorm", config=text.format(lr=0.004, own=""))
    write_run(tmp_path, "fedgradnorm", shift=0.1, config=text.format(lr=0.008, own=own))
    groups, notes = group(collect([tmp_path])[0])
    variant = "fedgradnorm weighting.lr=0.008"
    assert [one.label for one in groups] == ["fedrep", "fedgradnorm", variant]
    assert not notes
    page = make_page([tmp_path]).html
    rows = re.findall(r'<tr data-group[^>]* data-methods="(\d)"[^>]*>(.*?)</tr>', page, re.DOTALL)
    assert {number for number, row in rows if f"{variant}</td>" in row} == {"2"}


def test_runs_that_are_not_alike_are_called_so(tmp_path):
    write_run(tmp_path, "fedrep", config="[data]\nsamples = 10")
    write_run(tmp_path, "fedgradnorm", config="[data]\nsamples = 20")
    assert make_page([tmp_path]).report.notes == (
        "fedgradnorm: not compared, there is no fedrep on the same data",
        "not like for like: the runs differ in data.samples (10, 20)",
    )


def test_losses_are_freed_of_their_factor(tmp_path):
    scales = {"gender": 1.0, "landmark": 1000.0}
    clients = {n: {"kind": "regression", "loss_scale": scale} for n, scale in scales.items()}
    write_run(tmp_path, manifest={"clients": clients})
    rows = make_page([tmp_path]).report.frame.set_index("task").loss
    assert rows["landmark"] == pytest.approx(rows["gender"])
