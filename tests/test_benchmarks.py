"""The benchmarks still run: every script with tiny sizes, its table and its JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

FOLDER = Path(__file__).parents[1] / "benchmarks"
QUICK = ["--quick", "--repeats", "1", "--threads", "1"]


def start(script: str, *options: str) -> str:
    words = [sys.executable, str(FOLDER / f"{script}.py"), *options]
    one = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=one)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(script: str, out: Path, *options: str) -> dict[str, object]:
    start(script, *QUICK, "--out", str(out), *options)
    assert (out / f"{script}.md").read_text().startswith("| ")
    return json.loads((out / f"{script}.json").read_text())


@pytest.mark.slow
def test_speed_compares_losses_and_keeps_the_rows_it_does_not_measure_again(tmp_path):
    few = ["--pairs", "1", "--rivals"]
    first = run("speed", tmp_path, *few, "--only", "3 clients", "1 head")
    again = run("speed", tmp_path, *few, "--only", "1 head")
    assert first["threads"] == 1
    assert "torch" in first["versions"]
    assert again["rows"][0] == first["rows"][0]
    assert again["rows"][1]["work"] == first["rows"][1]["work"]
    assert again["rows"][1]["plain_loss_gap"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("rival", "module"), [("pfl", "pfl"), ("flower", "ray")])
def test_a_rival_trains_what_we_train(tmp_path, rival, module):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{rival} is not installed: pip install -e '.[rivals]'")
    found = run("speed", tmp_path, "--pairs", "1", "--rivals", rival, "--only", "1 head")
    assert found["rows"][0][f"{rival}_loss_gap"] < 2e-3
    assert found["rows"][0][f"{rival}_s"] > 0


@pytest.mark.slow
def test_registered_clients_are_measured_and_drawn(tmp_path):
    found = run("registered", tmp_path)
    assert [row["registered"] for row in found["rows"]] == [100, 600]
    assert [row["journal"] for row in found["rows"]] == ["no", "yes"]
    assert (tmp_path / "registered.png").read_bytes().startswith(b"\x89PNG")


def test_the_functions_that_a_round_visits_are_counted():
    found = re.findall(r"^(.+?) +(\d+) functions in +(\d+) files$", start("trace"), re.MULTILINE)
    counts = {part: (int(functions), int(files)) for part, functions, files in found}
    assert counts.keys() == {"set-up", "one default round"}
    assert all(files < functions for functions, files in counts.values())


@pytest.mark.slow
def test_the_cost_of_a_method_is_measured_and_written(tmp_path):
    found = "| fedgradnorm | loss, norm | joint |"
    printed = start(
        "weighting_cost", "--methods", "fedgradnorm", "--rounds", "1", "--out", str(tmp_path)
    )
    assert found in printed
    assert found in (tmp_path / "weighting-cost.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_liars_and_honest_clients_are_held_against_the_bounds(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")
    liars = run("liars", tmp_path, "--only", "direct")["rows"]
    assert [row["bounds"] for row in liars] == ["none", "default", "largest_share = 1"]
    assert all(0 < row["steer to zero"] < 1 for row in liars)
    honest = run("honest", tmp_path, "--only", "demo")["rows"]
    assert [row["cut"] for row in honest] == [0, 0, 0]


@pytest.mark.slow
def test_a_private_federation_is_timed_beside_the_plain_one(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")
    rows = run("private", tmp_path)["rows"]
    assert [row["kind"] for row in rows] == ["plain", "private"] * 2
    assert [row["exchanges"] for row in rows] == [1, 2, 1, 4]
    assert all(row["client_s"] > 0 and row["server_s"] > 0 for row in rows)
    for plain, private in (rows[:2], rows[2:]):
        words = 256 * 32 + 32 + 32 * 16 + 16  # two vectors of 4 bytes; one of 4 and one of 8
        assert plain["megabytes"] == pytest.approx(8 * words / 1e6, rel=0.1)
        assert private["megabytes"] > 12 * words / 1e6


@pytest.mark.slow
def test_the_script_that_only_prints_still_does():
    assert "generate: 2000 rows" in start("radcom", "--samples", "2000")


@pytest.mark.slow
def test_data_larger_than_the_memory_trains_is_killed_and_goes_on(tmp_path):
    found = run("larger_than_memory", tmp_path, "--only", "streamed")
    whole, resumed = found["rows"]
    assert whole["outcome"] == "finished"
    assert resumed["outcome"] == "the same files"
    assert whole["data_gb"] == pytest.approx(4 * found["given_gb"], rel=0.01)


@pytest.mark.slow
def test_starts_of_heads_are_compared(tmp_path):
    rows = run("head_init", tmp_path)["rows"]
    assert [row["start"] for row in rows] == ["random", "auto"] * 2
    assert rows[1]["far"] < rows[0]["far"]


def test_heads_that_start_at_the_targets_are_several_times_nearer():
    said = "reduced the error of such a client severalfold under every rule and learning rate"
    assert said in (FOLDER.parent / "docs" / "networks.md").read_text()
    rows = json.loads((FOLDER / "results" / "head_init.json").read_text())["rows"]
    far = [row["far"] for row in rows if "far" in row]
    assert len(far) == 12
    for random, targets in zip(far[::2], far[1::2], strict=True):
        assert targets < random / 5


@pytest.mark.slow
@pytest.mark.real_data
def test_simple_models_are_compared_with_ours(tmp_path):
    if not os.environ.get("FEDGRADNORM_DATA"):
        pytest.skip("needs LandmineData.mat in the folder named by FEDGRADNORM_DATA")
    pytest.importorskip("sklearn")
    rows = run("simple_models", tmp_path, "--only", "Landmine")["rows"]
    assert rows[0]["scores"] == [0.5]  # the constant's area under the curve
    assert all(0.5 < row["scores"][0] < 1 for row in rows[1:])


@pytest.mark.slow
@pytest.mark.real_data
def test_methods_are_compared_on_torques_in_their_units(tmp_path):
    if not os.environ.get("FEDGRADNORM_DATA"):
        pytest.skip("needs sarcos_inv_test.mat in the folder named by FEDGRADNORM_DATA")
    pytest.importorskip("sklearn")
    rows = run("units", tmp_path, "--only", "standardized, targets")["rows"]
    constant, *others = rows
    assert np.mean(constant["scores"]) == pytest.approx(100, abs=2)
    assert all(np.mean(row["scores"]) < 50 for row in others)


@pytest.mark.slow
@pytest.mark.real_data
def test_methods_are_compared_at_other_scales_of_a_torques_loss(tmp_path):
    if not os.environ.get("FEDGRADNORM_DATA"):
        pytest.skip("needs sarcos_inv_test.mat in the folder named by FEDGRADNORM_DATA")
    pytest.importorskip("sklearn")
    rows = run("scales", tmp_path)["rows"]
    assert all(np.mean(row["scores"]) < 100 for row in rows)
    of = {(row["model"], row["scale"]): np.mean(row["scores"]) for row in rows}
    assert of["equal norms", 0.01] == pytest.approx(of["equal norms", 100], rel=0.02)


def test_the_page_of_units_has_the_numbers():
    found = json.loads((FOLDER / "results" / "units.json").read_text())
    page = (FOLDER.parent / "docs" / "results" / "units.md").read_text()
    tables = (FOLDER / "results" / "units.md").read_text().split("\n\n")
    assert len(tables) == 2
    assert all(table.strip() in page for table in tables)
    rows, overlap = found["rows"], found["settings"]["overlap"]
    of = {(row["model"], f"{row.get('units')}, {row.get('heads')}"): row for row in rows}
    for row in rows:
        assert len(row["scores"]) == len(found["settings"]["seeds"])
        for setting, (gain, half, p) in row.get("gains", {}).items():
            base = of["equal weights", setting]
            gains = np.mean(base["scores"], 1) - np.mean(row["scores"], 1)
            error = gains.std(ddof=1) * (1 / len(gains) + overlap) ** 0.5
            assert gain == pytest.approx(gains.mean())
            assert half == pytest.approx(scipy.stats.t.ppf(0.975, len(gains) - 1) * error)
            assert p >= 2 * scipy.stats.t.sf(abs(gain) / error, len(gains) - 1) - 1e-12  # Holm


def test_the_page_of_starts_has_the_numbers():
    found = json.loads((FOLDER / "results" / "faces.json").read_text())
    page = (FOLDER.parent / "docs" / "results" / "starts.md").read_text()
    tables = (FOLDER / "results" / "faces.md").read_text().split("\n\n")
    assert len(tables) >= 3
    assert all(table.strip() in page for table in tables)
    seeds, rows = [str(s) for s in found["settings"]["seeds"]], found["rows"]
    base = {(r["labels"], r.get("heads")): r for r in rows if r["model"] == "equal weights"}
    tasks, compared = ("gender", "smile", "glasses", "pose", "landmark"), 0
    for row in rows:
        assert set(row["scores"]) == set(seeds)
        for heads, gains in row.get("gains", {}).items():
            than = base[row["labels"], heads]
            for k, task in enumerate(tasks):
                each = np.array([row["scores"][s][k] - than["scores"][s][k] for s in seeds])
                each = -each if task == "landmark" else each
                error = each.std(ddof=1) * (1 / len(seeds) + found["settings"]["overlap"]) ** 0.5
                gain, half, p = gains[task]
                assert gain == pytest.approx(each.mean())
                assert half == pytest.approx(scipy.stats.t.ppf(0.975, len(seeds) - 1) * error)
                assert p >= 2 * scipy.stats.t.sf(abs(gain) / error, len(seeds) - 1) - 1e-12  # Holm
                compared += 1
    assert compared >= 100


def test_the_page_of_simple_models_has_the_numbers():
    rows = json.loads((FOLDER / "results" / "simple_models.json").read_text())["rows"]
    page = (FOLDER.parent / "docs" / "results" / "simple-models.md").read_text()
    tables = (FOLDER / "results" / "simple_models.md").read_text().split("\n\n")
    assert len(tables) >= 3
    assert all(table.strip() in page for table in tables)
    means = {
        line.split("|")[1].strip(): line.split("|")[2].strip() for line in tables[-1].splitlines()
    }
    best = min(float(mean) for choice, mean in means.items() if choice.startswith("always"))
    said = f"{means['the best by validation']} points away on average, against {best} for the best"
    assert said in (FOLDER.parent / "docs" / "choose.md").read_text()
    gains = {(row["data"], row["model"]): row for row in rows}
    for row in gains.values():  # the interval is that of Nadeau and Bengio
        best = gains[row["data"], row["best_alone"]]
        factor = 1 if row["metric"] == "mae" else 100
        found = factor * np.subtract(row["scores"], best["scores"])
        error = found.std(ddof=1) * (1 / len(found) + row["overlap"]) ** 0.5
        assert row["gain"] == pytest.approx(found.mean())
        quantile = scipy.stats.t.ppf(0.975, len(found) - 1)
        assert row["half"] == pytest.approx(quantile * error)


@pytest.mark.slow
def test_clients_alone_are_timed_beside_fedrep(tmp_path):
    rows = run("alone", tmp_path)["rows"]
    assert [row["work"] for row in rows] == ["139 schools, 28-32-16", "10 clients, Network 1"]
    assert all(row["fedrep"] > 0 and row["setup"] > 0 for row in rows)


@pytest.mark.slow
def test_a_balancer_is_timed_beside_the_plain_step_and_beside_simpler_remedies(tmp_path):
    rows = run("balancer", tmp_path)["rows"]
    assert {row["work"] for row in rows} == {"CNN, batch 64", "MLP, batch 128"}
    assert all(row["direct"] > 0 for row in rows)
    rows = run("balancer_use", tmp_path, "--only", "balancer")["rows"]
    assert all(0 <= row["accuracy"] <= 1 for row in rows)


def test_a_balancer_costs_and_does_what_its_page_says():
    cost, use = (
        json.loads((FOLDER / "results" / f"{name}.json").read_text(encoding="utf-8"))["rows"]
        for name in ("balancer", "balancer_use")
    )
    assert all(row["direct"] <= 1.25 for row in cost)
    gpu = json.loads((FOLDER / "results" / "balancer-gpu.json").read_text(encoding="utf-8"))["rows"]
    assert all(row["every_10"] <= 1.25 for row in gpu)
    found = {row["variant"]: row for row in use}
    plain, at_mean = found["sum of losses"], found["sum, head starts at the mean"]
    scaled, balanced = found["sum, standardized target"], found["balancer, standardized target"]
    raw = found["balancer, head starts at the mean"]
    assert max(plain["accuracy"], at_mean["accuracy"]) < 0.6  # never learns the class
    assert at_mean["error"] < 0.5 * plain["error"]
    assert balanced["early_accuracy"] > scaled["early_accuracy"] + 0.1  # sooner
    assert balanced["early_error"] > scaled["early_error"]
    assert abs(balanced["accuracy"] - scaled["accuracy"]) < 0.02  # and no better
    assert abs(raw["accuracy"] - scaled["accuracy"]) < 0.03
    assert raw["error"] < 1.1 * scaled["error"]


def test_the_page_shows_tables_as_they_were_measured():
    page = (FOLDER.parent / "docs" / "performance.md").read_text(encoding="utf-8")
    shown = re.findall(r"{include} \.\./benchmarks/results/(.+\.md)", page)
    assert {"speed.md", "executors-gpu.md", "gpu.md"} <= set(shown)
    for name in shown:
        table = (FOLDER / "results" / name).read_text(encoding="utf-8")
        assert table.startswith("| ")
        assert (FOLDER / "results" / name).with_suffix(".json").exists()
