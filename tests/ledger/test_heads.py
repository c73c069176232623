"""Heads and their signatures tell a ledger that has grown from one that was rolled back or rewritten."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as to
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

from fedworth.errors import ArtefactError, LedgerError, UsageError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.manifest import LedgerHead, find_head, heads, parse_head
from fedworth.ledger.signature import sign_head, signed_head
from fedworth.ledger.writer import LedgerWriter
from tests.support.keys import write_keys
from tests.support.ledgers import record_rest, write_ledger


def test_a_ledger_has_a_head_after_every_line(tmp_path):
    write_ledger(tmp_path / "l")
    passed = heads(tmp_path / "l")
    assert [head.n_rounds for head in passed] == [0, 1, 2, 3, 3]  # the last by the line that closes it
    assert passed[-1].chain == Ledger.open(tmp_path / "l").chain
    assert len({head.chain for head in passed}) == 5


def test_a_ledger_that_has_grown_has_passed_through_its_old_head(tmp_path):
    write_ledger(tmp_path / "l", n_rounds=2, is_closed=False)
    old = Ledger.open(tmp_path / "l").chain
    record_rest(LedgerWriter.resume(tmp_path / "l"))
    assert find_head(tmp_path / "l", old) == LedgerHead(old, 2)


def test_a_ledger_rolled_back_is_whole_and_found_out_by_its_head(tmp_path):
    write_ledger(tmp_path / "l", n_rounds=2, is_closed=False)
    shutil.copytree(tmp_path / "l", tmp_path / "before")
    writer_head = _with_a_round_more(tmp_path / "l")
    assert Ledger.verify(tmp_path / "before").n_rounds == 2
    with pytest.raises(LedgerError, match=r"never had the head .* Rounds were removed from its end"):
        find_head(tmp_path / "before", writer_head)


def _with_a_round_more(folder):
    record_rest(LedgerWriter.resume(folder), n_rounds=3, is_closed=False)
    return Ledger.open(folder).chain


def test_a_head_is_read_in_either_case_and_nothing_else_is_one():
    assert parse_head(f" {'AB' * 32}\n") == "ab" * 32
    with pytest.raises(UsageError, match="expected the 64 hexadecimal digits"):
        parse_head("ab" * 31)


HEAD = LedgerHead("ab" * 32, 7)


@pytest.fixture
def keys(tmp_path):
    private, public = write_keys(tmp_path, "us")
    return Path(private), Path(public)


@pytest.fixture
def signature(tmp_path, keys):
    sign_head(HEAD, keys[0], tmp_path / "head.json")
    return tmp_path / "head.json"


def test_what_was_signed_is_read_back(signature, keys):
    assert signed_head(signature, keys[1]) == HEAD


def test_equal_heads_have_equal_signatures_and_none_is_overwritten(signature, keys, tmp_path):
    sign_head(HEAD, keys[0], tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == signature.read_bytes()
    with pytest.raises(ArtefactError, match="exists already"):
        sign_head(HEAD, keys[0], signature)


@pytest.mark.parametrize("change", [{"head": "cd" * 32}, {"n_rounds": 8}, {"signature": "A" * 86 + "=="}])
def test_no_part_of_it_can_change(signature, keys, change):
    signature.write_text(json.dumps({**json.loads(signature.read_text()), **change}))
    with pytest.raises(LedgerError, match="not signed by the owner"):
        signed_head(signature, keys[1])


@pytest.mark.parametrize("n_rounds", [7.0, 7.5, "7", True, None])
def test_a_number_of_rounds_that_is_none_is_refused(signature, keys, n_rounds):
    signature.write_text(json.dumps({**json.loads(signature.read_text()), "n_rounds": n_rounds}))
    with pytest.raises(LedgerError, match="not the signature of a head"):
        signed_head(signature, keys[1])


def test_a_pipe_in_place_of_a_key_is_refused_and_not_waited_for(signature, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        signed_head(signature, tmp_path / "pipe")


@pytest.mark.parametrize("content", ["[]", "{}", '{"head": 3}', '{"head": "x", "n_rounds": 1, "signature": "!"}'])
def test_what_is_no_signature_is_refused(signature, keys, content):
    signature.write_text(content)
    with pytest.raises(LedgerError, match="not the signature of a head"):
        signed_head(signature, keys[1])


def test_other_keys_are_refused(tmp_path):
    rsa = generate_private_key(public_exponent=65537, key_size=2048)
    (tmp_path / "rsa").write_bytes(rsa.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, to.NoEncryption()))
    (tmp_path / "words").write_text("words")
    for name, found in (("rsa", "of another kind"), ("words", "not such a key"), ("nowhere", "cannot be read")):
        with pytest.raises(UsageError, match=found):
            sign_head(HEAD, tmp_path / name, tmp_path / "out.json")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_keys_of_the_documentation_work(tmp_path):
    key, public = tmp_path / "coordinator.key", tmp_path / "coordinator.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
    sign_head(HEAD, key, tmp_path / "head.json")
    assert signed_head(tmp_path / "head.json", public) == HEAD
