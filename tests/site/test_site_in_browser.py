"""The site opened in headless Chromium, from disk: search, a phone's width, dark, no complaints."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from accessibility import violations

pytestmark = pytest.mark.slow

PHONE, DESKTOP = (390, 844), (1400, 900)
PAGES = (
    "index", "start", "algorithm", "choose", "your-data", "faq", "methods", "deploy", "cookbook",
    "results/README", "results/methods/side-by-side", "performance", "architecture",
    "reference/config", "reference/commands", "reference/weighting", "tutorials/faces",
    "tutorials/csv-files",
)  # fmt: skip


@contextmanager
def opened(browser, site, size=DESKTOP, **options):
    """A page; whatever it may do wrong is collected, and checked at the end."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, offline=True, **options
    )
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))

    def gate(request):
        if not request.url.startswith((site.as_uri(), "data:")):
            wrong.append(f"request: {request.url}")

    page.on("request", gate)
    yield page
    context.close()
    assert wrong == []


def test_no_page_is_wider_than_a_phone(browser, site):
    with opened(browser, site, PHONE) as page:
        for name in PAGES:
            page.goto((site / f"{name}.html").as_uri())
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE[0], f"{name} is {width} pixels wide"


def test_search_finds_a_key_and_a_word(browser, site):
    with opened(browser, site) as page:
        for words, wanted in (
            ("head_init", "Config keys"),
            ("norm_layer", "algorithm"),
        ):
            page.goto((site / "index.html").as_uri())
            page.fill("input.sidebar-search", words)
            page.press("input.sidebar-search", "Enter")
            page.get_by_text("Search finished").wait_for()  # results come one after another
            titles = page.locator("#search-results li a").all_inner_texts()
            assert any(wanted in title for title in titles), titles


def test_dark_is_dark(browser, site):
    def brightness(page):
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.strip("rgba()").split(",")[:3])

    with opened(browser, site, color_scheme="dark") as page:
        page.goto((site / "start.html").as_uri())
        assert brightness(page) < 150
    with opened(browser, site, color_scheme="light") as page:
        page.goto((site / "start.html").as_uri())
        assert brightness(page) > 700


def test_every_page_is_quiet(browser, site):
    with opened(browser, site) as page:
        for name in PAGES:
            page.goto((site / f"{name}.html").as_uri())
            assert page.locator("h1").count() == 1, name


def test_what_scrolls_sideways_can_be_focused_and_captions_have_a_level(browser, site):
    """By keyboard: everything wider than its box, and nothing else, is a stop of the tab key."""
    boxes = ".highlight pre, .output, .table-wrapper, div.math"
    focusable = "found => found.map((e) => [e.scrollWidth > e.clientWidth, e.tabIndex === 0])"
    scrolling = 0
    with opened(browser, site, PHONE) as page:
        for name in PAGES:
            page.goto((site / f"{name}.html").as_uri())
            found = page.locator(boxes).evaluate_all(focusable)
            assert all(wide == reached for wide, reached in found), name
            scrolling += sum(wide for wide, _ in found)
        captions = page.locator("p.caption[role=heading]")
        assert captions.count() == page.locator("p.caption[aria-level='2']").count() > 0
    assert scrolling > 0


def test_the_overview_fits_the_screen_and_large_figures_open_on_a_click(browser, site):
    shown = "found => found.filter((e) => e.clientWidth > 0).map((e) => e.src.split('/').pop())"
    for size, scheme, wanted in (
        (PHONE, "light", "overview-narrow-light.svg"),
        (PHONE, "dark", "overview-narrow-dark.svg"),
        (DESKTOP, "light", "overview-light.svg"),
        (DESKTOP, "dark", "overview-dark.svg"),
    ):
        with opened(browser, site, size, color_scheme=scheme) as page:
            page.goto((site / "index.html").as_uri())
            assert page.locator("article img").evaluate_all(shown) == [wanted]
    with opened(browser, site, PHONE) as page:
        page.goto((site / "performance.html").as_uri())
        page.locator("a.enlarge").first.click()
        page.wait_for_url("**/*.png", wait_until="commit")


@pytest.mark.parametrize(
    ("scheme", "wanted"), [("light", "methods.svg"), ("dark", "methods-dark.svg")]
)
def test_a_figure_has_the_colours_of_its_page_and_opens_larger(browser, site, scheme, wanted):
    with opened(browser, site, color_scheme=scheme) as page:
        page.goto((site / "results/methods.html").as_uri())
        page.locator("a.enlarge:visible").click()
        page.wait_for_url(f"**/{wanted}", wait_until="commit")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser, site, scheme):
    with opened(browser, site, color_scheme=scheme, bypass_csp=True) as page:
        for name in ("index", "start", "methods", "results/table2"):
            page.goto((site / f"{name}.html").as_uri())
            assert violations(page) == [], name
