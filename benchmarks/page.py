"""Measure the report's page: seconds to write it, its size, and seconds until its figures stand.

    python benchmarks/page.py              # half a minute on 2 cores; needs Chromium

Twenty runs of the size of the paper's MTFL experiment (4 methods x 5 seeds, 5 tasks, 100 epochs of
47 rounds) are written without training. "figures" is the time from opening the file to the curves
of the first screen; "text" the first paint, with headline and table. Expect a page of 2.6 MB,
written in about 10 s, text after 0.2 s and figures after 1.3 to 2 s, 1.1 to 1.4 s of which the
browser spends on reading plotly.js.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from fedgradnorm._report.page import write_page
from fedgradnorm._runs.history import History

METHODS = {
    "fedrep": {"name": "Equal"},
    "fedgradnorm": {"name": "GradNorm", "rule": "absolute", "gamma": 0.9},
    "fedgradnorm-direct": {"name": "GradNorm", "rule": "direct", "gamma": 0.9},
    "famo": {"name": "FAMO"},
}
TASKS = ("landmark", "gender", "smile", "glasses", "pose")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


def write_run(folder: Path, method: str, seed: int, epochs: int, rounds: int) -> None:
    """A run folder of made-up numbers that look like a run's."""
    rng = np.random.default_rng((seed, len(method)))
    folder.mkdir(parents=True)
    table = History(["accuracy"])
    total = epochs * rounds
    noise = rng.normal(1, 0.1, (total + 1, len(TASKS)))
    rows = []
    for number in range(total + 1):
        left = 0.3 + 0.7 * np.exp(-3 * number / total)
        for place, task in enumerate(TASKS):
            here = {"round": number, "epoch": number / rounds, "client": task, "weight": 1.0}
            loss = float(left * noise[number, place])
            if number:
                signals = {"loss": loss, "loss_ratio": loss, "grad_norm": loss * (place + 1)}
                rows.append({**here, "split": "batch", **signals, "active": 1, "weight_frozen": 0})
            if number % rounds == 0:
                value = {"loss": loss, "accuracy": 1 - loss / 2}
                rows += [{**here, "split": split, **value} for split in ("train", "test")]
    table.append(rows)
    (folder / "metrics.csv").write_text(table.text())
    manifest = {"format": 1, "finished": True, "rounds": total, "weighting": METHODS[method]}
    manifest |= {
        "settings": {"seed": seed},
        "clients": {},
        "started": f"2026-01-01T00:00:{seed:02d}",
    }
    (folder / "run.json").write_text(json.dumps(manifest))
    (folder / "config.toml").write_text(f'name = "table2"\nmethod = "{method}"\nseed = {seed}\n')


def open_times(path: Path, times: int) -> list[tuple[float, float]]:
    """(text, figures) in seconds, each in a browser started for it."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    found = []
    with sync_playwright() as driver:
        for _ in range(times):
            browser = driver.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready]")
            text = page.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            )
            figures = page.evaluate("Number(document.documentElement.dataset.ready)")
            found.append((text / 1000, figures / 1000))
            browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=47, help="rounds in an epoch")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--times", type=int, default=5, help="how often the page is opened")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for seed in range(wanted.seeds):
            for method in METHODS:
                run = folder / "runs" / f"{method}-seed{seed}"
                write_run(run, method, seed, wanted.epochs, wanted.rounds)
        start = time.perf_counter()
        write_page([folder / "runs"], folder / "page.html")
        took = time.perf_counter() - start
        size = (folder / "page.html").stat().st_size / 1e6
        times = open_times(folder / "page.html", wanted.times)
    text, figures = (statistics.median(column) for column in zip(*times, strict=True))
    best = min(figures for _, figures in times)
    print("| runs | page, MB | written in, s | text, s | figures, s (median, best) |")
    print("|---|---|---|---|---|")
    runs = wanted.seeds * len(METHODS)
    print(f"| {runs} | {size:.2f} | {took:.1f} | {text:.2f} | {figures:.2f}, {best:.2f} |")


if __name__ == "__main__":
    main()
