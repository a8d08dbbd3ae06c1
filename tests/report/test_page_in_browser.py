"""The page opened in headless Chromium: it asks for nothing, complains of nothing, and works."""

import csv
import time
from contextlib import contextmanager

import pytest
from PIL import Image

from accessibility import violations
from fedgradnorm._methods import METHODS
from fedgradnorm._report.colours import COLOURS
from fedgradnorm._report.page import write_page
from report.run_folders import write_run
from report.test_page import NASTY

pytestmark = pytest.mark.slow

CURVES = ".plot .scatterlayer .trace path.js-line"
DESKTOP, PHONE = (1400, 900), (360, 740)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    for seed in (0, 1):
        write_run(folder / "runs", "fedrep", seed)
        write_run(folder / "runs", "fedgradnorm", seed, shift=-0.05)
    write_run(folder / "runs", "fedrep", 2, rounds=6, planned=12)
    write_page([folder / "runs"], folder / "page.html")
    return folder / "page.html"


@contextmanager
def opened(browser, file, size=DESKTOP, **options):
    """The page, with everything it may do wrong collected and checked at the end."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, offline=True, **options
    )
    page = context.new_page()
    wrong = []
    page.on("console", lambda message: wrong.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))

    def gate(route):
        url = route.request.url
        if url == file.as_uri():
            route.continue_()
        else:
            wrong.append(f"request: {url}")
            route.abort()

    page.route("**/*", gate)
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    yield page
    context.close()
    assert wrong == []


def curves(page, section, wanted=None):
    """Scroll to a section until its curves are there; they are drawn once they come into sight."""
    place = page.locator(f'section[data-section="{section}"]')
    place.scroll_into_view_if_needed()
    found = place.locator(CURVES)
    found.first.wait_for(state="attached")
    until = time.monotonic() + 30
    while wanted not in (None, found.count()) and time.monotonic() < until:
        page.wait_for_timeout(50)
    assert wanted in (None, found.count())


def test_every_section_has_its_curves(browser, page_file):
    with opened(browser, page_file) as page:
        assert page.locator("h1").inner_text().startswith("fedgradnorm beats fedrep on both")
        # Two tasks; held-out and training of two methods. Bands are areas without a line, and the
        # run that ended early is not drawn.
        curves(page, "curves", 2 * 4)
        for section in ("weights", "more"):
            curves(page, section, 2 * 2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_axe_finds_nothing(browser, page_file, size, scheme):
    with opened(browser, page_file, size, color_scheme=scheme, bypass_csp=True) as page:
        assert violations(page) == []


def test_switches(browser, page_file):
    with opened(browser, page_file) as page:
        curves(page, "curves", 8)
        page.get_by_role("button", name="training", exact=True).click()
        curves(page, "curves", 2 * 2)
        page.locator('.toggles [data-method="0"]').click()  # and the run of it that stopped early
        curves(page, "curves", 2)
        assert page.locator("#tasks-table tbody tr:visible").count() == 2
        page.locator('.toggles [data-task="0"]').click()
        assert page.locator('figure[data-task="0"]:visible').count() == 0
        assert page.locator("#tasks-table tbody tr:visible").count() == 1
        page.locator('.toggles [data-task="0"]').click()
        page.locator('.toggles [data-method="0"]').click()
        curves(page, "curves", 2 * 2)
        page.get_by_role("button", name="Loss", exact=True).click()
        page.get_by_role("button", name="Accuracy or error").click()
        units = page.locator('section[data-section="curves"] figcaption small')
        assert units.all_inner_texts() == ["accuracy", "mae"]
        curves(page, "more")
        page.get_by_role("button", name="loss_ratio").click()
        curves(page, "more", 2 * 2)


def test_switches_reach_every_table(browser, page_file):
    with opened(browser, page_file) as page:
        rows = page.locator("#tasks-table tbody tr:visible, #tests tbody tr:visible")
        # Two tasks by two methods, then two measures by two methods.
        assert rows.count() == 4 + 4
        page.locator('.toggles [data-task="0"]').click()
        assert rows.count() == 2 + 4
        page.locator('.toggles [data-method="0"]').click()
        assert rows.count() == 1 + 2
        shown = rows.evaluate_all("rows => rows.map(row => row.innerText)")
        assert all("fedgradnorm" in text for text in shown)
        assert not any("gender" in text.split("\t")[0] for text in shown)
        page.locator('.toggles [data-method="1"]').click()
        assert rows.count() == 0
        for switch in ('[data-task="0"]', '[data-method="0"]', '[data-method="1"]'):
            page.locator(f".toggles {switch}").click()
        assert rows.count() == 8


def test_switches_reach_the_points_of_a_sweep(browser, tmp_path):
    for number, gamma in enumerate((0.5, 1.5)):
        point = f"[weighting]\ngamma = {gamma}\n[point]\n'weighting.gamma' = {gamma}\n"
        write_run(tmp_path / str(number), "fedgradnorm", config=point)
    write_run(tmp_path / "2", "fedrep")
    write_page([tmp_path], tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        table = page.locator("#tests table").first
        assert table.locator("tbody tr:visible").count() == 4  # two tasks, two methods
        curves(page, "sweep", 2 * 2)  # two tasks, a line for each method
        page.get_by_role("button", name="gamma=0.5").click()
        assert table.locator("tbody tr:visible").count() == 4
        assert table.locator("td.mute").count() == 2
        page.get_by_role("button", name="gamma=1.5").click()
        assert table.locator("tbody tr:visible").count() == 2
        curves(page, "sweep", 2)


@pytest.fixture(scope="module")
def many_file(tmp_path_factory):
    """Twelve methods of two seeds, on generated data."""
    folder = tmp_path_factory.mktemp("many")
    for number, method in enumerate(list(METHODS)[:12]):
        for seed in (0, 1):
            config = '[data]\nsource = "faces"\n'
            write_run(folder / "runs", method, seed, shift=0.01 * number, config=config)
    write_page([folder / "runs"], folder / "page.html")
    return folder / "page.html"


def test_two_of_many_methods_are_two_clicks_away(browser, many_file):
    with opened(browser, many_file) as page:
        first = page.evaluate("document.querySelector('main section').id")
        assert first == "ranking"
        assert page.locator("#ranking tbody tr:visible").count() == 2 * 12
        assert page.locator("#ranking tbody tr:not(.mute)").count() == 2 * 8
        assert page.locator("main details[open]").count() == 0
        assert page.locator(".toggles").evaluate_all("e => e[0].offsetHeight") < 60
        page.locator(".picker > summary").click()
        page.get_by_role("button", name="only fedrep", exact=True).click()
        page.locator(".toggles").get_by_role("button", name="fedgradnorm", exact=True).click()
        assert page.locator("#ranking tbody tr:not(.mute)").count() == 2 * 2
        curves(page, "weights", 2 * 2)
        page.get_by_role("button", name="none", exact=True).click()
        assert page.locator("#ranking tbody tr:not(.mute)").count() == 0
        page.get_by_role("searchbox").fill("gradnorm")
        named = page.locator(".toggles [data-method]:visible").all_inner_texts()
        assert named
        assert all("gradnorm" in name for name in named)
        page.get_by_role("searchbox").press("Enter")
        assert page.locator("#ranking tbody tr:not(.mute)").count() == 2 * len(named)
        page.get_by_role("button", name="all", exact=True).click()
        assert page.locator("#ranking tbody tr:not(.mute)").count() == 2 * 12


def test_files_of_tables_and_figures_and_a_contents_list(browser, many_file):
    with opened(browser, many_file) as page:
        made = {}
        for name in ("CSV of every-method", "CSV of weights-gender",
                     "PNG of weights-gender"):  # fmt: skip
            with page.expect_download() as waiting:
                page.get_by_role("button", name=name, exact=True).click()
            made[name] = waiting.value.path().read_bytes()
        table = list(csv.DictReader(made["CSV of every-method"].decode().splitlines()))
        names = page.locator('#ranking td[data-label="method"]').all_inner_texts()
        assert [row["method"] for row in table] == names
        assert {"δm_against_fedrep_low", "δm_against_fedrep_high"} <= set(table[0])
        assert all(float(row["seconds"] or 0) == 0 for row in table if "seconds" in row)
        points = list(csv.DictReader(made["CSV of weights-gender"].decode().splitlines()))
        assert {point["method"] for point in points} == set(list(METHODS)[:12])
        assert {point["weight" if "weight" in point else "Weight"] for point in points} == {"1"}
        for name, content in made.items():
            assert content.startswith(b"\x89PNG") == name.startswith("PNG")
        shown = page.locator(".plot .xtitle").first  # below the axis, where no curve is
        assert shown.text_content() == "epoch (synthetic data)"
        links = page.locator(".contents a").evaluate_all("a => a.map(x => x.getAttribute('href'))")
        assert all(page.locator(link).count() == 1 for link in links)
        assert {"#ranking", "#comparison", "#curves", "#provenance"} <= set(links)


def test_hover_shows_the_whole_label_and_the_value(browser, page_file):
    with opened(browser, page_file) as page:
        curves(page, "curves")
        page.evaluate(
            """() => { const plot = document.querySelector('.plot');
                const at = plot.data.findIndex((t) => t.name === "fedgradnorm");
                Plotly.Fx.hover(plot, [{curveNumber: at, pointNumber: 1}]); }"""
        )
        shown = page.locator(".hoverlayer").first.text_content()
        assert "fedgradnorm" in shown
        assert "% at epoch 1" in shown


def test_a_method_has_one_colour_in_its_key_curves_and_intervals(browser, page_file):
    with opened(browser, page_file) as page:
        curves(page, "weights")
        colours = page.evaluate(
            """() => {
                const read = (where) => getComputedStyle(
                    document.querySelector(`${where} .key line`)).stroke;
                const line = (n) => document.querySelectorAll(
                    'section[data-section="weights"] .plot')[0].data.filter(
                    (trace) => trace.name === n)[0].line.color;
                return ["fedrep", "fedgradnorm"].map((name, number) => [
                    read(`.toggles [data-method="${number}"]`),
                    read(`#comparison [data-methods="${number}"]`),
                    read(`#tests [data-methods="${number}"]`),
                    line(name)]);
            }"""
        )
    for found, colour in zip(colours, COLOURS, strict=False):
        rgb = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
        assert found == [f"rgb{rgb}"] * 3 + [colour]


def test_sorting(browser, page_file):
    with opened(browser, page_file) as page:
        column = page.locator('#tasks-table td[data-label="training loss"]')
        before = column.all_inner_texts()
        heading = page.locator("#tasks-table thead th").filter(has_text="training loss")
        for direction in ("ascending", "descending"):
            heading.locator("button").click()
            assert heading.get_attribute("aria-sort") == direction
            values = [float(v) for v in column.evaluate_all("e => e.map(x => x.dataset.value)")]
            by_task = [values[:2], values[2:]]
            assert by_task == [sorted(v, reverse=direction == "descending") for v in by_task]
            tasks = page.locator('#tasks-table td[data-label="task"]').all_inner_texts()
            assert tasks == sorted(tasks, key=["gender", "landmark"].index)
        page.locator("#tasks-table thead th button").first.click()
        assert column.all_inner_texts() == before
        # Of accuracies the highest is first, of errors the lowest.
        page.locator("#tasks-table thead th").nth(2).locator("button").click()
        methods = page.locator('#tasks-table td[data-label="method"]').all_inner_texts()
        assert methods == ["fedgradnorm", "fedrep"] * 2


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_the_screen_in_both_schemes(browser, page_file, tmp_path, size, scheme):
    phone = size == PHONE
    with opened(
        browser, page_file, size, color_scheme=scheme, has_touch=phone, is_mobile=phone
    ) as page:
        curves(page, "more")
        page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") == size[0]
        sticking_out = page.evaluate(
            "[...document.querySelectorAll('main figure, h1, h2, #comparison')]"
            ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).length"
        )
        assert sticking_out == 0
        small = page.evaluate(
            "[...document.querySelectorAll('button, summary, a, input')].filter(e => e.offsetParent"
            " && e.getBoundingClientRect().height < 23.5).map(e => e.textContent)"
        )
        assert small == []
        labels = (
            page.locator("#tasks-table tbody tr")
            .first.locator("td.num:visible")
            .evaluate_all("e => e.map(x => getComputedStyle(x, '::before').content)")
        )
        assert not phone or '"training loss: "' in [text.replace('" "', "") for text in labels]
        assert phone or set(labels) == {"none"}
    with Image.open(tmp_path / "page.png") as picture:
        assert picture.width == size[0]
        corner = picture.convert("L").getpixel((2, 2))
    assert corner < 60 if scheme == "dark" else corner > 200


def test_prints_every_figure_in_light_colours(browser, page_file):
    with opened(browser, page_file, color_scheme="dark") as page:
        assert page.pdf(format="A4").startswith(b"%PDF")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        plots = page.locator(".plot")
        assert page.locator(".plot:has(.main-svg)").count() == plots.count()
        page.emulate_media(media="print")
        shown = page.locator("#tasks-table thead th:visible").all_inner_texts()
        assert {"training loss", "weight"} <= set(shown)
        assert not {"at start", "seeds"} & set(shown)
        page.set_viewport_size({"width": 703, "height": 1000})  # of A4 without its margins
        assert page.evaluate("document.documentElement.scrollWidth") <= 703
        page.emulate_media(media="screen", color_scheme="dark")
        ink = "getComputedStyle(document.documentElement).getPropertyValue('--paper')"
        assert page.evaluate(ink).strip() == "#fff"
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(ink).strip() != "#fff"


def test_names_are_never_markup(browser, tmp_path):
    for seed in (0, 1):
        folder = write_run(tmp_path / "runs", "fedrep", seed, tasks={NASTY: "accuracy"})
        text = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(text.replace('"fedrep"', f"'''{NASTY}'''"))
    write_page([tmp_path / "runs"], tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        curves(page, "curves", 2)
        assert page.locator('#tasks-table td[data-label="task"]').inner_text() == NASTY
        assert page.locator("img, h1 b, svg a").count() == 0
        page.evaluate(
            "Plotly.Fx.hover(document.querySelector('.plot'), [{curveNumber: 1, pointNumber: 2}])"
        )
        shown = page.locator(".hoverlayer").first.text_content()
        assert "<img src=x onerror=alert(1)><b>%{y}</b> &" in shown


def test_a_page_without_figures(browser, tmp_path):
    (write_run(tmp_path) / "metrics.csv").write_text("")
    write_page([tmp_path], tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        assert "no round was recorded" in page.locator("#notes").inner_text()
