"""A ledger that everybody can write is refused; what else is open is said."""

import logging

import pytest

from fedworth.errors import LedgerError
from fedworth.ledger.exposure import exposures
from fedworth.ledger.writer import create_ledger, resume_ledger
from tests.support.ledgers import write_ledger


def test_a_folder_that_everybody_can_write_is_refused(tmp_path):
    write_ledger(tmp_path / "l", is_closed=False)
    (tmp_path / "l").chmod(0o777)
    with pytest.raises(LedgerError, match="everybody can write into this folder; close it with chmod go-w"):
        resume_ledger(tmp_path / "l")
    (tmp_path / "new").mkdir()
    (tmp_path / "new").chmod(0o777)
    with pytest.raises(LedgerError, match="everybody can write"):
        create_ledger(tmp_path / "new", aggregation="samples")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_group_that_can_write_and_an_open_parent_are_said(tmp_path, caplog):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    write_ledger(tmp_path / "open/l", is_closed=False)
    assert len(exposures(tmp_path / "open/l")) == 1
    (tmp_path / "open/l").chmod(0o770)
    with caplog.at_level(logging.WARNING, logger="fedworth"):
        resume_ledger(tmp_path / "open/l")
    assert "others can write into the ledger (mode 770)" in caplog.text
    assert "everybody can rename or replace the ledger" in caplog.text


def test_a_parent_like_tmp_is_no_exposure(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    write_ledger(tmp_path / "open/l")
    assert exposures(tmp_path / "open/l") == ()
