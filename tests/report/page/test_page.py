"""The page on its bytes: what it says, what it must not, how large it is. What a browser makes of it is in
`test_browser.py`."""

import json
import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

from fedworth.colours import DARK, LIGHT
from fedworth.completion.completion import Caveat
from fedworth.errors import UsageError
from fedworth.findings import HARM, LOW_VALUE, OF_ANSWERS, SAME_MODEL, Finding, Kind
from fedworth.report.page.figures import axis_over, nice_ticks, packed
from fedworth.report.report import Report
from fedworth.report.settings import PageSettings
from fedworth.report.tables import findings_lines, markdown
from fedworth.valuation.marginals import Marginals
from fedworth.valuation.uncertainty import uncertainty
from fedworth.valuation.valuation import Valuation
from tests.support.browser import chromium
from tests.support.reports import EVIDENCE, HOSTILE, hospitals

LEAST = {"ink": 7, "soft": 4.5, "link": 4.5, "good": 4.5, "care": 4.5, "bad": 4.5, "plus": 3, "minus": 3, "edge": 3}
HOSPITAL = PageSettings("Sepsis model", "hospital", "hospitals", "16 November 2026")


def text_of(html: str) -> str:
    """What a reader sees, without tags, style and script."""
    bare = re.sub(r"<(style|script)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", bare)).split())


def plain(method: str, values: list[float], **more) -> Report:
    made = Valuation(method, tuple("abc"), np.array(values), **more)
    return Report("t", made.clients, (made,))


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("role", LEAST)
def test_every_colour_can_be_read_on_both_grounds(theme, role):
    for ground in ("page", "panel"):
        low, high = sorted((luminance(theme[role]), luminance(theme[ground])))
        assert (high + 0.05) / (low + 0.05) >= LEAST[role]


def test_the_same_report_gives_the_same_bytes():
    assert hospitals().page_html(HOSPITAL) == Report.from_document(hospitals().document()).page_html(HOSPITAL)


def test_three_tiles_answer_in_ten_seconds():
    text = text_of(hospitals().page_html(HOSPITAL))
    assert "What each hospital is worth to the shared model" in text
    assert "9 clearly helped, 2 unclear, 1 harmed" in text
    assert "▲ 2 things to act on" in text
    assert "✓ Good to use" in text
    assert "client" not in text


def test_values_that_failed_come_with_their_verdict_first():
    text = text_of(hospitals(error=3.0).page_html(HOSPITAL))
    assert text.index("✕ Do not use") < text.index("What they are worth")
    above = text.split("What is each hospital worth?")[1].split("Skip")[0]
    assert above.index("✕ Do not use.") < above.index("A value says")


def test_every_row_has_its_range_rank_and_findings():
    report = hospitals()
    html = report.page_html(HOSPITAL)
    row = re.search(r"<tr role=\"row\" data-k=\"1\">.*?</tr>", html)
    assert row is not None
    text = text_of(row.group())
    line = report["St. Brigid's Hospital"]
    assert line.ranks is not None
    assert f"+{line.value:.2f}" in text
    assert f"+{line.low:.2f} to +{line.high:.2f}" in text
    assert f"{line.ranks[0]}–{line.ranks[1]}" in text
    assert "Same model" in text


def test_the_wording_follows_the_method_and_what_its_range_covers():
    values, errors, completion = np.array([1.0, 2.0, -1.0]), np.eye(3) / 100, {"kind": "factors"}

    def page(method, known=None, **more):
        return text_of(plain(method, values.tolist(), uncertainty=known, **more).page_html())

    measured = page("fedsv", uncertainty(values, 0 * errors, test_set=errors, degrees=31))
    exact = page("fedsv", uncertainty(values, 0 * errors))
    unknown = page("comfedsv", completion=completion)
    narrow = page("comfedsv", uncertainty(values, errors, caveats=(Caveat((), "too narrow"),)), completion=completion)
    assert "in the rounds it took part in" in measured
    assert "All values are measured; none is estimated; the line through each bar shows how far off" in measured
    assert "the estimates of what no round has shown" not in measured
    assert "had it taken part in every one" not in measured
    assert "on data like the test data. The range covers the choice of the test samples." in measured
    assert "It says nothing about another training." in measured
    assert "There is none: every group of clients that the values rest on was measured." in exact
    assert "nothing about other test data, or another training" in exact
    assert "it is not known how far off they may be" in unknown
    assert "made the model worse" not in unknown
    assert "on exactly these test data. The range covers the estimates of what no round has shown" in narrow
    assert "Note: too narrow." in narrow
    assert "had it taken part in every one" in narrow


def test_bare_numbers_are_called_by_the_noun():
    numbered = replace(plain("fedsv", [1.0, -2.0, 3.0]), clients=("0", "1", "2"), valuations=())
    values = np.array([1.0, -2.0, 3.0])
    known = uncertainty(values, np.eye(3) / 100)
    rests_on = Marginals(values, ((), (), ()))
    valuation = Valuation("fedsv", numbered.clients, values, uncertainty=known, marginals=rests_on)
    made = replace(numbered, valuations=(valuation,))
    assert "Client 1 made the model worse" in text_of(made.page_html())
    assert "Most valuable: client 2" in text_of(made.page_html())


def test_a_client_never_heard_has_no_value_and_no_zero():
    text = text_of(plain("fedsv", [1.0, np.nan, 2.0]).page_html())
    assert "b – – – – –" in text


def test_a_page_says_what_was_not_looked_for():
    text = text_of(replace(hospitals(findings=()), looked_for=()).page_html())
    assert "No ledger was read for this page" in text
    assert "Same model" not in text


def test_checks_that_could_not_be_made_are_listed_with_what_they_need_and_not_counted():
    report = replace(hospitals(4, findings=()), looked_for=(SAME_MODEL,))
    text = text_of(report.page_html(HOSPITAL))
    assert "Same model: none that sent the same model" in text
    assert "Follower: none that" not in text
    assert f"{len(report.not_looked_for)} not looked for" in text
    assert "Follower: this needs five hospitals with three rounds each" in text
    assert "Low value: this needs five hospitals" in text
    assert "Not looked for:" in markdown(report)
    unmade = {one["kind"]: one["needs"] for one in report.document()["not_looked_for"]}
    assert unmade["replay"] == "two rounds"
    assert "harm" not in unmade
    assert Report.from_document(report.document()) == report


def test_checks_that_found_nothing_are_counted_and_told():
    text = text_of(hospitals(findings=()).page_html(HOSPITAL))
    assert "Same model: none that sent the same model" in text
    assert "15 checks found nothing" in text


@pytest.mark.parametrize("kind", OF_ANSWERS, ids=lambda kind: kind.name)
def test_every_finding_says_what_was_seen_why_it_matters_and_what_to_do(kind: Kind):
    found = Finding(kind, ("Lakeside Clinic", "Westbrook Day Surgery"), (1,), 2, EVIDENCE, 0.97)
    text = text_of(hospitals(findings=(found,)).page_html(HOSPITAL))
    assert found.sentence in text
    assert HOSPITAL.fill(kind.why) in text
    assert HOSPITAL.fill(kind.action) in text


def low_and_harming() -> Report:
    """Eight alike, one far below zero."""
    names, values = tuple("abcdefghi"), np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.0, -2.0])
    known, rests_on = uncertainty(values, np.eye(9) / 100), Marginals(values, ((),) * 9)
    return Report("t", names, (Valuation("comfedsv", names, values, {}, (), known, marginals=rests_on),))


def test_what_values_show_has_the_same_words_in_text_json_markdown_and_on_the_page():
    report = low_and_harming()
    assert {found.kind for found in report.all_findings} == {LOW_VALUE, HARM}
    assert "Where all hospitals have data of the same kind" in text_of(report.page_html(HOSPITAL))
    for found in report.all_findings:
        assert found.clients == ("i",)
        for shown in (text_of(report.page_html()), markdown(report), json.dumps(report.document(), ensure_ascii=False)):
            assert found.sentence in shown
        assert f"- {found.sentence}" in findings_lines(report.all_findings)
        assert found.kind.action in text_of(report.page_html())
    assert Report.from_document(report.document()) == report
    assert "Your data made the model worse" in report.statement_html("i")


def test_who_helps_whom_is_told_in_numbers_with_shares_ranges_and_what_is_not_clear():
    report = hospitals(n_groups=4)
    html = report.page_html(HOSPITAL)
    table = html.split('<table class="groups"')[1].split("</table>")[0]
    found, line = report.chosen.groups, report.chosen.clients.index("Lakeside Clinic")
    assert found is not None
    row = text_of(re.findall(r"<tr data-k=.*?</tr>", table, flags=re.DOTALL)[-1])
    assert row.startswith("Lakeside Clinic")
    for value in found.values[line, :3]:
        assert f"{value:+.2f}".replace("-", "−") in row
    assert "ward 0 ward 1 ward 2 <ward> Value" in text_of(table)
    assert text_of(table).count("25 %") == 4
    assert len(re.findall(r'class="r num unclear"', table)) == 12
    low, high = found.values[line, 0] - found.half_widths[line, 0], found.values[line, 0] + found.half_widths[line, 0]
    assert f"({low:+.2f} to {high:+.2f})".replace("-", "−") in row  # for those who hear the page, and under the pointer
    assert "Clearly helped by nobody: ward <ward>." in text_of(html)
    assert "Who helps whom" not in text_of(hospitals().page_html(HOSPITAL))
    assert Report.from_document(report.document()) == report


def test_many_groups_of_many_clients_fit_the_page():
    html = hospitals(100, 20, n_groups=50).page_html(HOSPITAL)
    assert len(html.encode()) <= 1_000_000
    assert "more hospitals are in report-by-group.csv" in text_of(html)


def test_the_page_says_where_the_uncertainty_comes_from():
    report = hospitals()
    values = report.chosen.values
    known = uncertainty(values, np.eye(12) * 0.01, test_set=np.eye(12) * 0.04, degrees=31, n_test_samples=200)
    text = text_of(replace(report, valuations=(replace(report.chosen, uncertainty=known),)).page_html(HOSPITAL))
    assert known.advice in text
    told = text.split("Where the uncertainty of each value comes from")[1]
    assert "Hospital Standard error Estimates Test set Northfield General 0.2236 0.1000 0.2000" in told


def test_a_report_without_values_says_why():
    text = text_of(Report("t", ("a",), (), refusals=(("comfedsv", "nobody was heard"),)).page_html())
    assert "No client could be valued" in text
    assert "nobody was heard" in text


def test_hostile_names_are_escaped_everywhere():
    html = hospitals(names=HOSTILE).page_html(HOSPITAL)
    assert "<img src=x" not in html
    assert "window.hacked=1</script>" not in html.replace("&lt;/script&gt;", "")
    assert "49" not in text_of(html).split("Values Findings")[0]
    data = json.loads(re.findall(r'id="data">(.*?)</script>', html, flags=re.DOTALL)[0])
    assert data["clients"][: len(HOSTILE)] == list(HOSTILE)


def test_the_policy_lets_nothing_in_and_there_is_nothing_to_fetch():
    html = hospitals().page_html(HOSPITAL)
    assert "default-src 'none'" in unescape(html)
    assert re.findall(r"(?:src|href)=\"(?!data:image/png|#)[^\"]*\"", html) == []
    assert " style=" not in html


def test_a_hundred_clients_and_a_thousand_rounds_fit_a_megabyte():
    assert len(hospitals(100, 1000).page_html(HOSPITAL).encode()) <= 1_000_000


def test_rewards_stand_on_the_page_if_asked_for():
    report = hospitals()
    made = report.rewards("1000", unit="EUR")
    assert "What each would get of 1,000.00 EUR" in text_of(report.page_html(rewards=made))
    assert "would get" not in text_of(report.page_html())


def test_a_noun_must_be_a_word():
    with pytest.raises(UsageError, match="--noun"):
        PageSettings(noun=" ")


def test_without_a_browser_its_tests_say_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    for name in ("FEDWORTH_CHROMIUM", "FEDWORTH_BROWSER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"), chromium():
        pass
    monkeypatch.setenv("FEDWORTH_BROWSER", "require")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"), chromium():
        pass


def test_ticks_are_round_and_packed_numbers_are_the_rounded_ones():
    assert nice_ticks(-0.21, 0.84) == (-0.2, 0.0, 0.2, 0.4, 0.6, 0.8)
    assert axis_over(np.array([0.0, 0.0])).ticks[0] == 0
    numbers = np.array([[0.12345, -2.5, np.nan]])
    text, decimals = packed(numbers)
    assert decimals == 4
    assert text == "0gRYngCA"


def test_a_completion_that_has_not_converged_is_said():
    report = hospitals()
    for is_converged, answer in ((True, "✓ Yes"), (False, "◐ Partly")):
        summary = {"kind": "factors", "status": "stopped at max_sweeps", "is_converged": is_converged}
        made = replace(report.chosen, method="comfedsv", completion=summary)
        page = replace(report, valuations=(made,)).page_html()
        before, after = page.split("Is the calculation finished?", 1)
        assert answer in before[-300:] + after[:300]
        assert "The solver says: stopped at max_sweeps." in page
