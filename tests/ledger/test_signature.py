"""A signature of a head: only its owner's key makes it, and no byte of what was signed can change."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as to
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

from fedworth.errors import ArtefactError, LedgerError, UsageError
from fedworth.ledger.heads import LedgerHead
from fedworth.ledger.signature import sign_head, signed_head
from tests.support.keys import write_keys

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
