"""The statement: what one data owner learns, and that it learns nothing of another."""

import re
from dataclasses import replace

import pytest

from fedworth.completion.completion import Caveat
from fedworth.errors import UsageError
from fedworth.findings import OF_ANSWERS, Finding
from fedworth.records import document_of
from fedworth.report.page.statement import read_statement
from fedworth.report.settings import PageSettings
from tests.support.reports import EVIDENCE, HOSPITALS, HOSTILE, hospitals

SETTINGS = PageSettings("Sepsis model", "hospital", "hospitals")


def texts_of(number: float) -> set[str]:
    """Every way in which a page could print a number with two digits or more."""
    return {f"{abs(number):.{digits}f}" for digits in range(3, 8)} | {repr(abs(number))}


def told(html: str) -> str:
    """All of a statement but its style, whose lengths are numbers too, its hash, and the block for programs."""
    left_out = r"<style>.*?</style>|<script.*?</script>|sha256 [0-9a-f]{64}|content=\"default.*?\""
    return re.sub(left_out, "", html, flags=re.DOTALL)


@pytest.mark.parametrize("client", HOSPITALS)
def test_the_block_for_programs_has_the_clients_own_numbers_only(client, tmp_path):
    report = hospitals()
    said = document_of(read_statement(report.write_statement(client, tmp_path, SETTINGS)))
    own = report[client]
    assert report.rounds is not None
    assert [n for n in said.values() if isinstance(n, float)] == [own.value, own.low, own.high]
    assert [n for n in said.values() if isinstance(n, int)] == [len(report.rounds.numbers), -1]
    assert not any(other in str(said) for other in HOSPITALS if other != client)


@pytest.mark.parametrize("client", HOSPITALS)
def test_no_other_name_value_or_extreme_is_in_a_statement(client):
    report = hospitals()
    html = told(report.statement_html(client, SETTINGS, rewards=report.rewards("100000")))
    others = [line for line in report if line.client != client]
    assert [line.client for line in others if line.client in html or line.client.split()[0] in html] == []
    numbers = [n for line in others for n in (line.value, line.low, line.high, line.share) if n]
    assert [n for n in numbers for text in texts_of(n) if text in html] == []
    extremes = {f"{number:+.2f}".replace("-", "−") for line in others for number in (line.value, line.low, line.high)}
    own = report[client]
    mine = {f"{number:+.2f}".replace("-", "−") for number in (own.value, own.low, own.high)}
    without_axes = re.sub(r"<text .*?</text>", "", html)  # round numbers; the next test holds them
    assert set(re.findall(r"[+−]\d\.\d\d\b", without_axes)) & extremes <= mine


def test_a_statement_says_whom_the_client_helps():
    report = hospitals(n_groups=4)
    groups = report.chosen.groups
    assert groups is not None
    groups.values[:2], groups.half_widths[:] = [[2.0, 0.1, -2.0, 2.0], [0.1, 0.1, -0.1, 0.1]], 1.0
    first, second = (report.statement_html(client, SETTINGS) for client in report.clients[:2])
    assert "By ward: your data clearly help ward 0, &lt;ward&gt;, and clearly harm ward 2." in first
    assert "your data clearly help none, and clearly harm none." in second
    assert "clearly help" not in hospitals().statement_html(report.clients[0], SETTINGS)


def test_pictures_do_not_reach_to_the_others_extremes():
    """The same client in a federation whose best and worst are ten times as far out: the same picture."""
    report = hospitals()
    wild = report.chosen.values.copy()
    wild[0], wild[11] = 10 * wild[0], 10 * wild[11]
    far = replace(report, valuations=(replace(report.chosen, values=wild), *report.valuations[1:]))
    near_html, far_html = (told(r.statement_html(HOSPITALS[6], SETTINGS)) for r in (report, far))
    assert re.findall(r"<figure>.*?</figure>", near_html, re.DOTALL) == re.findall(
        r"<figure>.*?</figure>", far_html, re.DOTALL
    )


def test_a_statement_has_the_clients_own_numbers():
    report = hospitals()
    html = report.statement_html(HOSPITALS[6], SETTINGS)
    line = report[HOSPITALS[6]]
    assert f'<p class="big">+{line.value:.2f}</p>' in html
    assert f"+{line.low:.2f}" in html
    assert "The value does not punish a hospital for rounds in which it was not asked." in html
    assert "Your model was the same as another hospital’s" in html


def test_fedsv_does_not_promise_that_nothing_is_lost():
    report = hospitals()
    earned = replace(report, valuations=report.valuations[1:])
    html = earned.statement_html(HOSPITALS[6], SETTINGS)
    assert "does not punish" not in html
    assert "A hospital earns only in rounds in which it was asked" in html


def test_few_others_are_not_shown_as_a_band():
    assert "You among" in hospitals(8).statement_html(HOSPITALS[0])
    assert "You among" not in hospitals(7).statement_html(HOSPITALS[0])


@pytest.mark.parametrize("kind", OF_ANSWERS, ids=lambda kind: kind.name)
def test_a_finding_is_told_without_the_others_name(kind):
    found = Finding(kind, (HOSPITALS[0], HOSPITALS[5]), (1,), 2, EVIDENCE)
    html = hospitals(findings=(found,)).statement_html(HOSPITALS[0], SETTINGS)
    assert "Mercy" not in html
    assert "Seen in 1 of 2 rounds." in html


def test_a_hostile_name_is_text_and_names_no_other_place(tmp_path):
    report = hospitals(names=(*HOSTILE[:5], "../../=1"))
    for client in report.clients:
        path = report.write_statement(client, tmp_path)
        assert path.parent == tmp_path
        assert "<img src=x" not in path.read_text()
    assert len(list(tmp_path.iterdir())) == len(report.clients)


def test_a_client_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="did you mean 'Lakeside Clinic'"):
        hospitals().statement_html("Lakeside")


def test_a_client_whose_range_may_be_too_narrow_is_told_so():
    report = hospitals()
    known = report.chosen.uncertainty
    assert known is not None
    narrow = replace(known, caveats=(Caveat(HOSPITALS[:2], "too narrow"),))
    told_so = replace(report, valuations=(replace(report.chosen, uncertainty=narrow),))
    for client in HOSPITALS:
        assert ("This range may be too narrow" in told_so.statement_html(client)) is (client in HOSPITALS[:2])
