"""The page in a browser: nothing asked, nothing said, nothing too wide; it sorts, tells numbers, and runs no name."""

import json
import re

import numpy as np
import pytest

from fedworth.report.comparison import Comparison
from fedworth.report.settings import PageSettings
from tests.support.browser import chromium, opened
from tests.support.reports import HOSPITALS, HOSTILE, hospitals

SETTINGS = PageSettings("Sepsis model", "hospital", "hospitals", "16 November 2026")
REPORT = hospitals(n_groups=5)
DOCUMENT = json.loads(json.dumps(REPORT.document()))
PAGE = REPORT.page_html(SETTINGS, rewards=REPORT.rewards("100000"))
STATEMENT = REPORT.statement_html(HOSPITALS[6], SETTINGS)
COMPARISON = Comparison.of([REPORT, hospitals(seed=8)], ["monday", "friday"]).page_html(SETTINGS)
WIDTHS = (390, 768, 1280)
DESK = {"viewport": {"width": 1280, "height": 900}}
OPEN_FOLDS = "document.querySelectorAll('details').forEach(d => { d.open = true; })"


@pytest.fixture(scope="module")
def browser():
    with chromium() as made:
        yield made


@pytest.fixture(autouse=True)
def closing(browser):
    yield
    for context in browser.contexts:
        context.close()


def outside(asked: list[str]) -> list[str]:
    return [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]


def number_in(text: str) -> float:
    (found,) = re.findall(r"[+−]\d[\d.]*", text)
    return float(found.replace("−", "-"))


def decimals_in(text: str) -> int:
    return len(re.findall(r"[+−]\d+\.?(\d*)", text)[0])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("html", [PAGE, STATEMENT, COMPARISON], ids=["page", "statement", "comparison"])
def test_it_fits_says_nothing_and_asks_for_nothing(browser, tmp_path, html, width):
    shown = opened(browser, tmp_path, html, viewport={"width": width, "height": 844})
    shown.page.evaluate(OPEN_FOLDS)
    for scheme, colour in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(17, 22, 28)")):
        shown.page.emulate_media(color_scheme=scheme)
        assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == colour
        assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert shown.said == []
    assert outside(shown.asked) == []


def test_every_heading_sorts_both_ways(browser, tmp_path):
    page = opened(browser, tmp_path, PAGE, **DESK).page
    heard = dict(zip(DOCUMENT["clients"], DOCUMENT["coverage"]["n_rounds_heard"], strict=True))
    names = lambda: page.locator(".worth tbody th").all_inner_texts()  # noqa: E731
    assert names() == [line.client for line in sorted(REPORT, reverse=True)]
    page.get_by_role("button", name="Rounds").click()
    assert [heard[name] for name in names()] == sorted(heard.values(), reverse=True)
    page.get_by_role("button", name="Rounds").click()
    assert [heard[name] for name in names()] == sorted(heard.values())
    page.locator(".worth").get_by_role("button", name="Hospital", exact=True).click()
    assert sorted(names()) == sorted(DOCUMENT["clients"])
    assert names()[0] == "Ålund Regional Hospital"
    assert page.locator(".worth thead [aria-sort]").count() == 1


def test_who_helps_whom_is_sorted_by_any_group(browser, tmp_path):
    page = opened(browser, tmp_path, PAGE, **DESK).page
    found = REPORT.chosen.groups
    assert found is not None
    page.get_by_role("button", name="ward 2").click()
    order = [HOSPITALS[k] for k in np.argsort(-found.values[:, 2])]
    assert page.locator("table.groups tbody th").all_inner_texts() == order
    assert page.locator(".worth tbody th").all_inner_texts() == [line.client for line in sorted(REPORT, reverse=True)]


def test_pointer_and_arrow_keys_show_the_numbers_of_the_json(browser, tmp_path):
    page = opened(browser, tmp_path, PAGE, **DESK).page
    cells, order = DOCUMENT["valuations"][0]["by_round"], [line.client for line in sorted(REPORT, reverse=True)]
    page.locator("#heat").scroll_into_view_if_needed()
    page.locator("#heat").hover(position={"x": 5, "y": 5})
    first = page.locator("#tip").inner_text()
    best = DOCUMENT["clients"].index(order[0])
    assert first.startswith(f"{order[0]}\nround 1:")
    assert number_in(first) == pytest.approx(cells[0][best], abs=0.51 * 10 ** -decimals_in(first))
    page.locator("#heat").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    heard = page.locator("#live").inner_text()
    second = DOCUMENT["clients"].index(order[1])
    assert heard.startswith(f"{order[1]} round 2:") or heard.startswith(f"{order[1]}\nround 2:")
    assert number_in(heard) == pytest.approx(cells[1][second], abs=0.51 * 10 ** -decimals_in(heard))
    took_part = DOCUMENT["rounds"]["participants"][1][second]
    assert heard.endswith("did not take part") is not took_part


def test_lines_and_gains_tell_their_numbers_by_arrow_keys(browser, tmp_path):
    page = opened(browser, tmp_path, PAGE, **DESK).page
    gained = DOCUMENT["rounds"]["gains"]
    page.locator("#gains").focus()
    page.keyboard.press("ArrowRight")
    assert number_in(page.locator("#live").inner_text()) == pytest.approx(gained[0], rel=1e-3)
    page.locator("#lines").focus()
    page.keyboard.press("ArrowRight")
    told = page.locator("#live").inner_text()
    best = DOCUMENT["clients"].index("Northfield General")
    summed = sum(row[best] for row in DOCUMENT["valuations"][0]["by_round"][:2])
    assert told.startswith("Northfield General")
    assert number_in(told) == pytest.approx(summed, abs=0.51 * 10 ** -decimals_in(told))


def test_the_reader_can_turn_the_light_off(browser, tmp_path):
    page = opened(browser, tmp_path, PAGE, **DESK, color_scheme="light").page
    page.get_by_role("button", name="Dark view").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 22, 28)"


def test_the_numbers_can_be_taken_to_a_spreadsheet(browser, tmp_path):
    page = opened(browser, tmp_path, hospitals(names=HOSTILE).page_html(SETTINGS), **DESK).page
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download these numbers").click()
    text = waiting.value.path().read_text()
    assert len(text.splitlines()) == 1 + len(HOSPITALS)
    assert '"\'=1+1"' in text


def test_six_hostile_names_are_text(browser, tmp_path):
    shown = opened(browser, tmp_path, hospitals(names=HOSTILE).page_html(SETTINGS), **DESK)
    shown.page.locator("#heat").hover(position={"x": 5, "y": 5})
    assert shown.page.evaluate("window.hacked") is None
    assert shown.said == []
    assert outside(shown.asked) == []
    names = shown.page.locator(".worth tbody th").all_text_contents()
    assert set(HOSTILE) <= set(names)


def test_the_policy_stops_what_escaping_would_miss(browser, tmp_path):
    planted = "<main><img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
    shown = opened(browser, tmp_path, PAGE.replace("<main>", planted, 1))
    assert shown.page.evaluate("window.hacked") is None
    assert any("Content Security Policy" in text for text in shown.said)


def test_everything_is_shown_without_a_script(browser, tmp_path):
    page = opened(browser, tmp_path, hospitals(30, 20).page_html(SETTINGS), java_script_enabled=False, **DESK).page
    assert page.locator(".worth tbody tr").count() == 30
    assert page.locator(".worth tbody tr").nth(20).is_visible()
    assert page.locator("#heat img").is_visible()
    assert not page.locator("#fold").is_visible()


def test_many_rows_are_folded_until_asked_for(browser, tmp_path):
    page = opened(browser, tmp_path, hospitals(1000, 40).page_html(SETTINGS), **DESK).page
    rows = page.locator(".worth tbody tr:visible")
    assert rows.count() == 30
    page.get_by_role("button", name="Show all 1000 hospitals").click()
    assert rows.count() == 1000


def test_printing_shows_every_row_in_black_on_white(browser, tmp_path):
    page = opened(browser, tmp_path, hospitals(30, 20).page_html(SETTINGS), color_scheme="dark", **DESK).page
    page.emulate_media(media="print")
    assert page.locator(".worth tbody tr:visible").count() == 30
    assert page.locator("nav").is_hidden()
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--page')") == "#ffffff"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("html", [PAGE, STATEMENT, COMPARISON], ids=["page", "statement", "comparison"])
def test_axe_finds_no_violation(browser, tmp_path, html, width):
    from axe_playwright_python.sync_playwright import Axe

    page = opened(browser, tmp_path, html, bypass_csp=True, viewport={"width": width, "height": 900}).page
    page.evaluate(OPEN_FOLDS)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = Axe().run(page).response["violations"]
        assert [(scheme, v["id"], [n["html"][:90] for n in v["nodes"][:3]]) for v in found] == []
