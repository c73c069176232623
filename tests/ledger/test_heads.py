"""A head kept elsewhere tells a ledger that has grown from one that was rolled back or written anew."""

import shutil

import pytest

from fedworth.errors import LedgerError, UsageError
from fedworth.ledger.heads import LedgerHead, head_of, heads, passed_through
from fedworth.ledger.ledger import open_ledger, verify_ledger
from fedworth.ledger.writer import resume_ledger
from tests.support.ledgers import record_rest, write_ledger


def test_a_ledger_has_a_head_after_every_line(tmp_path):
    write_ledger(tmp_path / "l")
    passed = heads(tmp_path / "l")
    assert [head.n_rounds for head in passed] == [0, 1, 2, 3, 3]  # the last by the line that closes it
    assert passed[-1].chain == open_ledger(tmp_path / "l").chain
    assert len({head.chain for head in passed}) == 5


def test_a_ledger_that_has_grown_has_passed_through_its_old_head(tmp_path):
    write_ledger(tmp_path / "l", n_rounds=2, is_closed=False)
    old = open_ledger(tmp_path / "l").chain
    record_rest(resume_ledger(tmp_path / "l"))
    assert passed_through(tmp_path / "l", old) == LedgerHead(old, 2)


def test_a_ledger_rolled_back_is_whole_and_found_out_by_its_head(tmp_path):
    write_ledger(tmp_path / "l", n_rounds=2, is_closed=False)
    shutil.copytree(tmp_path / "l", tmp_path / "before")
    writer_head = _with_a_round_more(tmp_path / "l")
    assert verify_ledger(tmp_path / "before").n_rounds == 2
    with pytest.raises(LedgerError, match=r"never had the head .* Rounds were removed from its end"):
        passed_through(tmp_path / "before", writer_head)


def _with_a_round_more(folder):
    record_rest(resume_ledger(folder), n_rounds=3, is_closed=False)
    return open_ledger(folder).chain


def test_a_head_is_read_in_either_case_and_nothing_else_is_one():
    assert head_of(f" {'AB' * 32}\n") == "ab" * 32
    with pytest.raises(UsageError, match="expected the 64 hexadecimal digits"):
        head_of("ab" * 31)
