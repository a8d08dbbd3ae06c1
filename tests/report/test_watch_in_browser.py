"""``watch`` in headless Chromium: a run that trains, is killed, and is watched by a new server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from accessibility import violations
from fedgradnorm._report import live
from report.run_folders import write_run
from report.test_watch import BOARD, serving

pytestmark = pytest.mark.slow

NASTY = "<img src=x onerror=alert(1)>"
SLOW_RUN = """
import sys, time
import fedgradnorm as fgn
import toys

class Slow(fgn.Callback):
    def on_round(self, state):
        time.sleep(0.02)

network, clients = toys.network(), toys.clients()
fgn.train(network, clients, rounds=20_000, folder=sys.argv[1], callbacks=[Slow()])
"""


@contextmanager
def training(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    folders = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": folders}
    with subprocess.Popen([sys.executable, "-c", SLOW_RUN, folder], env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def opened(browser: Any, size: tuple[int, int] = (1400, 900), **options: Any) -> Iterator[Any]:
    """A page; what it does wrong is collected and checked at the end."""
    viewport = {"width": size[0], "height": size[1]}
    context = browser.new_context(viewport=viewport, **options)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda m: None if "ERR_" in m.text else wrong.append(m.text))
    page.on("request", lambda r: None if "//127.0.0.1:" in r.url else wrong.append(r.url))
    try:
        yield page
    finally:
        context.close()
    assert [one for one in wrong if not one.startswith("data:")] == []


def round_of(page: Any) -> int:
    return int(page.locator("#runs .round").first.inner_text().split()[1])


def wait_for(page: Any, condition: str, seconds: float = 180) -> None:
    """Until a condition in JavaScript holds; the page's own policy forbids wait_for_function."""
    until = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < until, condition
        page.wait_for_timeout(100)


def first_plot(page: Any) -> Any:
    """The first plot, in sight and drawn: before that it knows no round under the pointer."""
    wait_for(page, f"{FIRST} !== null")
    page.evaluate(f"{FIRST}.scrollIntoView({{block: 'center'}})")
    wait_for(page, f"[...plots.values()].some((one) => one.canvas === {FIRST} && one.toPixel)")
    return page.locator("canvas.plot").first


def test_a_run_is_followed_until_it_is_killed_and_by_the_next_server(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "QUIET", 3.0)
    folder = tmp_path / "runs" / f"a {NASTY}"
    with opened(browser) as page:
        with serving(tmp_path / "runs") as found:
            port = found.server_address[1]
            page.goto(found.url)
            page.get_by_text("No runs yet").wait_for()
            with training(folder) as process:
                # The run appears by itself and its rounds go on.
                page.get_by_text("running", exact=False).wait_for(timeout=180_000)
                wait_for(page, "document.querySelectorAll('canvas.plot').length >= 4")
                assert page.locator("#runs .name").inner_text() == folder.name
                assert "left" in page.locator("#runs .state").inner_text()
                before = round_of(page)
                wait_for(page, f"parseInt({ROUND}) > {before + 20}")

                # What was chosen is in the address, and survives a reload.
                page.get_by_role("button", name="by client").click()
                # A choice is drawn a moment later, and then the legend has other buttons.
                wait_for(page, "document.querySelector('#legend canvas') === null")
                page.get_by_role("button", name="log axis").click()
                page.get_by_label("Smoothing").select_option("20")
                page.get_by_role("button", name="corner", exact=True).click()
                page.get_by_role("button", name="weight").click()
                wait_for(page, f"!{TITLES}.includes('corner') && {TITLES}.length > 0")
                box = first_plot(page).bounding_box()
                page.mouse.move(box["x"] + 100, box["y"] + 50)
                page.locator("#tip", has_text="round").wait_for()
                page.mouse.down()
                page.mouse.move(box["x"] + 200, box["y"] + 50)
                page.mouse.up()
                address = page.evaluate("location.href")  # page.url lags behind
                for part in ("view=client", "log=0", "smooth=20", "off=corner", "sort=", "zoom="):
                    assert part in address
                page.reload()
                wait_for(page, "document.querySelectorAll('canvas.plot').length >= 3")
                assert page.evaluate("location.href") == address
                assert page.get_by_role("button", name="reset zoom").is_visible()
                corner = page.get_by_role("button", name="corner", exact=True)
                assert corner.get_attribute("aria-pressed") == "false"
                assert "corner" not in page.locator("#table").inner_text()
                assert page.get_by_label("Smoothing").input_value() == "20"
                page.get_by_role("button", name="reset zoom").click()
                assert "zoom" not in page.evaluate("location.href")

                process.kill()
                process.wait()
                page.get_by_text("stopped, no new points").wait_for(timeout=60_000)
        page.get_by_text("Connection lost").wait_for(timeout=60_000)
        last = round_of(page)
        with serving(tmp_path / "runs", port):  # the same port: the page comes back by itself
            page.get_by_text("connected", exact=True).wait_for(timeout=60_000)
            assert round_of(page) >= last
            assert page.locator("canvas.plot").count() >= 3


FIRST = "document.querySelector('canvas.plot')"
TITLES = "[...document.querySelectorAll('#blocks h3')].map((title) => title.textContent)"
ROUND = "document.querySelector('#runs .round').textContent.split(' ')[1]"


def test_the_page_needs_no_more_memory_for_a_longer_run(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedgradnorm._cli.watch_command.POLL", 0.05)
    folder = write_run(tmp_path, "fedrep", rounds=4, planned=100_000)
    columns = (folder / "metrics.csv").read_text().partition("\n")[0].split(",")

    def go_on(first: int, last: int) -> None:
        with (folder / "metrics.csv").open("a") as file:
            for number in range(first, last):
                for client in ("gender", "landmark"):
                    row = {
                        "round": number,
                        "epoch": number / 4,
                        "client": client,
                        "loss": 1 / number,
                    }
                    row |= {"split": "batch", "weight": 1.0, "active": 1, "weight_frozen": 0}
                    file.write(",".join(str(row.get(name, "")) for name in columns) + "\n")

    with serving(tmp_path) as found, opened(browser) as page:
        page.goto(found.url)
        page.locator("canvas.plot").first.wait_for()
        session = page.context.new_cdp_session(page)

        def heap(number: int) -> float:
            wait_for(page, f"parseInt({ROUND}) >= {number}")
            page.wait_for_timeout(500)
            session.send("HeapProfiler.collectGarbage")
            return float(session.send("Runtime.getHeapUsage")["usedSize"]) / 1e6

        sizes = []
        for step in range(8):
            for part in range(5):  # in many messages, as a run would
                go_on(5 + 2500 * step + 500 * part, 5 + 2500 * step + 500 * (part + 1))
                page.wait_for_timeout(100)
            sizes.append(heap(4 + 2500 * (step + 1)))
        print("heap in MB after each 2500 rounds:", sizes)
        assert max(sizes[4:]) < 1.25 * max(sizes[1:4]) + 0.5
        most = page.evaluate(
            "Math.max(...[...data.values()].flatMap((d) => [...d.curves.values()])"
            ".map((curve) => curve.x.length))"
        )
        assert most <= 3000


def serve_board(folder: Path, run: Path, age: float) -> None:
    """What a federation's server wrote so many seconds ago."""
    board = {**BOARD, "folder": str(run), "seconds_since_1970": time.time() - age}
    (folder / "status.json").write_text(json.dumps(board))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1400, 900), (390, 844)])
def test_axe_finds_nothing(
    browser: Any, tmp_path: Path, size: tuple[int, int], scheme: str
) -> None:
    serve_board(tmp_path, write_run(tmp_path, "fedgradnorm"), age=1)
    options = {"color_scheme": scheme, "bypass_csp": True}
    with serving(tmp_path) as found, opened(browser, size, **options) as page:
        page.goto(found.url)
        page.locator("canvas.plot").first.wait_for()
        assert violations(page) == []


def test_the_board_of_a_federation_says_when_its_server_is_silent(
    browser: Any, tmp_path: Path
) -> None:
    """The server writes after each round: nobody knows who is connected while it waits."""
    run = write_run(tmp_path, "fedgradnorm")
    with serving(tmp_path) as found, opened(browser) as page:
        for age, connected, says in (
            (-600, "yes", "training: round 3 of 9"),  # as just now, however slow the browser is
            (60, "unknown", "no news"),
        ):
            serve_board(tmp_path, run, age)
            page.goto(found.url)
            page.locator("#boards p", has_text=says).wait_for()
            row = page.locator("#boards tbody tr").first
            assert row.locator("td").first.inner_text() == connected
            assert row.locator("td").last.inner_text() == "suspended"
        page.locator("#table tbody tr").first.wait_for()  # points come after the board
        titles = page.locator("#table thead th:visible").all_inner_texts()
        assert [title.split(" ↕")[0] for title in titles] == [
            "client", "run", "held-out score", "held-out loss", "training loss", "weight",
        ]  # fmt: skip


@pytest.mark.parametrize("size", [(1400, 900), (390, 844)])
def test_the_page_fits_and_can_be_used_by_keyboard_and_finger(
    browser: Any, tmp_path: Path, size: tuple[int, int]
) -> None:
    for seed in range(3):
        write_run(
            tmp_path,
            "fedgradnorm-direct-with-a-long-name",
            seed,
            tasks={NASTY: "accuracy", "b" * 70: "mae"},
        )
    with serving(tmp_path) as found, opened(browser, size, has_touch=size[0] < 500) as page:
        page.goto(found.url)
        page.locator("canvas.plot").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        small = page.evaluate(
            "[...document.querySelectorAll('button,select,input')].filter((e) => e.offsetParent && "
            "Math.min(e.getBoundingClientRect().width, e.getBoundingClientRect().height) < 24)"
            ".map((e) => e.outerHTML)"
        )
        assert small == []
        assert NASTY in page.locator("#legend").inner_text()
        assert page.locator("img").count() == 0
        first_plot(page).focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("#tip").is_visible()
        page.keyboard.press("+")
        assert "zoom=" in page.evaluate("location.href")
        page.keyboard.press("Escape")
        assert "zoom=" not in page.evaluate("location.href")
        assert not page.locator("#tip").is_visible()
        names = page.evaluate(
            "[...document.querySelectorAll('button,canvas.plot,input,select,progress')]"
            ".filter((e) => !(e.innerText.trim() || e.ariaLabel || e.labels?.length))"
            ".map((e) => e.outerHTML)"
        )
        assert names == []
