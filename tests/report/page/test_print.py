"""The page printed to a PDF by Chromium, as a board gets it: nothing cut, nothing dark."""

import re

import numpy as np
import pypdfium2
import pytest

from fedworth.report.settings import PageSettings
from tests.support.browser import chromium, opened
from tests.support.reports import hospitals

SETTINGS = PageSettings("Sepsis model", "hospital", "hospitals")
MARGIN = 38  # points: a little less than the 14 mm of the page's own style
REPORTS = {
    "many rows": (hospitals(60, 20, n_groups=6), None),
    "many groups": (hospitals(12, 20, n_groups=50), None),
    "a statement": (hospitals(12, 20), 3),
}


@pytest.fixture(scope="module")
def browser():
    with chromium() as made:
        yield made


@pytest.fixture(params=REPORTS)
def printed(request, browser, tmp_path):
    """(the client names, the text on the screen, the PDF), printed by a reader who prefers a dark screen."""
    report, client = REPORTS[request.param]
    html = report.page_html(SETTINGS) if client is None else report.statement_html(report.clients[client], SETTINGS)
    page = opened(browser, tmp_path, html, color_scheme="dark").page
    page.pdf(path=str(tmp_path / "page.pdf"), format="A4", prefer_css_page_size=True)  # as print does, opens all folds
    page.emulate_media(media="print")
    yield report.clients, one_line(page.evaluate("document.body.innerText")), tmp_path / "page.pdf"
    page.context.close()


def one_line(text):
    return re.sub(r"\s+", " ", text)


def test_every_name_is_on_paper_as_often_as_on_the_screen(printed):
    """A row that is cut by the end of a page would be there twice; one that is hidden, not at all."""
    clients, screen, path = printed
    with pypdfium2.PdfDocument(path) as pdf:
        paper = [one_line(page.get_textpage().get_text_range()) for page in pdf]
    assert {name: sum(text.count(name) for text in paper) for name in clients} == {
        name: screen.count(name) for name in clients
    }


def test_nothing_is_outside_the_margins_or_on_a_dark_ground(printed):
    _, _, path = printed
    with pypdfium2.PdfDocument(path) as pdf:
        for page in pdf:
            text, (width, height) = page.get_textpage(), page.get_size()
            boxes = np.array([text.get_charbox(k) for k in range(text.count_chars())])
            left, bottom, right, top = boxes[boxes[:, 2] > boxes[:, 0]].T
            is_number = bottom < MARGIN  # of the page, in its corner
            assert is_number.sum() <= len("100 / 100")
            assert left.min() >= MARGIN
            assert right.max() <= width - MARGIN
            assert top.max() <= height - MARGIN
            pixels = page.render(scale=0.5, grayscale=True).to_numpy()
            assert pixels[0, 0] == pixels[-1, -1] == 255
            assert (pixels > 200).mean() > 0.6


def test_a_table_that_goes_on_has_its_headings_on_the_next_page_too(browser, tmp_path):
    report, _ = REPORTS["many rows"]
    page = opened(browser, tmp_path, report.page_html(SETTINGS)).page
    page.pdf(path=str(tmp_path / "page.pdf"), format="A4", prefer_css_page_size=True)
    page.context.close()
    with pypdfium2.PdfDocument(tmp_path / "page.pdf") as pdf:
        texts = [one_line(each.get_textpage().get_text_range()) for each in pdf]
    of_values = [text for text in texts if len(re.findall(r"\d+ of 20", text)) > 5]  # rounds of a row
    assert len(of_values) >= 2
    assert all("Likely range" in text and "Rounds" in text for text in of_values)
