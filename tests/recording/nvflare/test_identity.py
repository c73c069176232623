"""Whose answer is whose, with NVFlare's own messages: a site is known by the token that it registered with."""

import pytest
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import ServerCommandKey

from fedworth.findings import CONTESTED_NAME, look
from fedworth.ledger.ledger import Ledger
from fedworth.recording.nvflare import RoundRecorder
from tests.recording.nvflare.test_recording import START, Job, result


def answer(site, *, token=None, shift=1.0):
    """What a site's answer is when it reaches the recorder: the server has put in whose token it came with."""
    shareable = result({name: array + shift for name, array in START.items()})
    shareable.set_header(ServerCommandKey.FL_CLIENT, Client(site, token or f"token of {site}"))
    return shareable


@pytest.fixture
def job(tmp_path):
    return Job(RoundRecorder(str(tmp_path / "l")))


def ask_all(job, number):
    for site in job.sites:
        job.ask(site, number)


def kinds(ledger):
    return {finding.kind: finding for finding in look(ledger)[0]}


def test_a_site_that_answers_by_anothers_name_is_refused_and_the_others_answer_is_kept(job, tmp_path):
    ask_all(job, 0)
    job.hear("site-1", 0, answer("site-2", shift=9.0))  # site-2's token, site-1's name
    job.hear("site-1", 0, answer("site-1"))
    job.hear("site-3", 0, answer("site-3", shift=2.0))
    job.aggregate(START)
    ledger = Ledger.verify(tmp_path / "l")
    entry = ledger.entries[0]
    assert (entry.answered, entry.quarantined, entry.contested) == ((0, 2), (1,), (0,))
    assert entry.quarantine_reasons == ("it registered by this name, and answered as 'site-1'",)
    assert float(ledger.open_round(0).client_models[0]["b"][0]) == START["b"][0] + 1
    assert kinds(ledger)[CONTESTED_NAME].clients == ("site-1",)


def test_a_site_whose_name_looks_like_anothers_is_not_valued_under_it(tmp_path):
    job = Job(RoundRecorder(str(tmp_path / "l")), sites=("site-1", "Site-1", "site-3"))
    for number in (0, 1):
        ask_all(job, number)
        for shift, site in enumerate(job.sites):
            job.hear(site, number, answer(site, shift=1.0 + shift + number / 2))
        job.aggregate(START)
    ledger = Ledger.verify(tmp_path / "l")
    assert ledger.clients == ("site-1", "site-3")
    assert [entry.answered for entry in ledger.entries] == [(0, 1), (0, 1)]
    assert kinds(ledger)[CONTESTED_NAME].rounds == (0, 1)


def test_a_site_that_registers_again_has_its_name_and_the_move_is_noted_without_its_token(job, tmp_path):
    ask_all(job, 0)
    job.hear("site-1", 0, answer("site-1", token="first"))
    job.aggregate(START)
    ask_all(job, 1)
    job.hear("site-1", 1, answer("site-1", token="second", shift=2.0))
    job.aggregate(START)
    ledger = Ledger.verify(tmp_path / "l")
    assert [entry.answered for entry in ledger.entries] == [(0,), (0,)]
    assert "has moved from key-" in ledger.entries[1].notes[0]
    assert "second" not in (tmp_path / "l" / "manifest.jsonl").read_text()
