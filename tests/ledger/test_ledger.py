"""Reading a ledger: every change is found and reported, and no damaged file ends in a traceback."""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedworth.errors import FedworthError, LedgerError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.manifest import RoundEntry, line_bytes, read_header
from fedworth.ledger.writer import Answer, LedgerWriter
from tests.support.ledgers import content, model, write_ledger


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ledgers") / "original"
    write_ledger(folder)
    return folder


def copied(original, tmp_path):
    folder = tmp_path / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    return shutil.copytree(original, folder)


def assert_found_out(folder, round_index=None):
    with pytest.raises(FedworthError) as caught:
        Ledger.verify(folder)
    assert str(caught.value)
    if round_index is not None:
        assert f"round {round_index}" in str(caught.value)


def test_a_whole_ledger_passes(original):
    ledger = Ledger.verify(original)
    assert (ledger.n_rounds, len(ledger.missing), ledger.is_closed) == (3, 0, True)
    assert ledger.warnings() == ()
    assert [round_.entry.round_index for round_ in ledger.rounds()] == [0, 1, 2]


def flip(data, rng):
    position = rng.randrange(len(data))
    changed = bytearray(data)
    changed[position] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(data, rng):
    return data[: rng.randrange(len(data))]


def edit_lines(change):
    def edit(data, rng):
        lines = data.splitlines(keepends=True)
        change(lines, rng)
        return b"".join(lines)

    return edit


def swap(lines, rng):
    a, b = rng.sample(range(len(lines)), 2)
    lines[a], lines[b] = lines[b], lines[a]


def drop(lines, rng):
    del lines[rng.randrange(len(lines))]


def double(lines, rng):
    position = rng.randrange(len(lines))
    lines.insert(position, lines[position])


def respace(lines, rng):
    position = rng.randrange(len(lines))
    lines[position] = lines[position].replace(b": ", b":", 1)


DAMAGES = [flip, flip, cut, *(edit_lines(change) for change in (swap, drop, double, respace))]


def test_every_change_of_any_file_is_found(original, tmp_path):
    rng = random.Random(0)
    files = sorted(content(original))
    for _ in range(400):
        folder = copied(original, tmp_path)
        file = folder / rng.choice(files)
        whole = file.read_bytes()
        damage = rng.choice(DAMAGES if file.name == "manifest.jsonl" else [flip, cut])
        file.write_bytes(damage(whole, rng))
        if file.read_bytes() != whole:
            assert_found_out(folder)


@pytest.mark.parametrize("file", ["rounds/000001.safetensors", "apart/000001.safetensors", "final.safetensors"])
def test_a_missing_file_is_named(original, tmp_path, file):
    folder = copied(original, tmp_path)
    (folder / file).unlink()
    with pytest.raises(LedgerError, match=f"{file}: missing"):
        Ledger.verify(folder)


def test_swapped_and_duplicated_files_are_found(original, tmp_path):
    folder = copied(original, tmp_path)
    first, second = folder / "rounds/000001.safetensors", folder / "rounds/000002.safetensors"
    first.rename(folder / "x")
    second.rename(first)
    (folder / "x").rename(second)
    assert_found_out(folder, 1)
    folder = copied(original, tmp_path)
    shutil.copy(folder / "rounds/000001.safetensors", folder / "rounds/000007.safetensors")
    assert_found_out(folder)


def test_the_first_bad_round_is_named(original, tmp_path):
    folder = copied(original, tmp_path)
    for name in ("000001", "000002"):
        path = folder / f"rounds/{name}.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\x00\x01")
    assert_found_out(folder, 1)


@pytest.mark.parametrize("n_lines", [0, 1, 2, 3])
def test_lines_cut_off_at_the_end_are_found(original, tmp_path, n_lines):
    folder = copied(original, tmp_path)
    lines = (folder / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "manifest.jsonl").write_bytes(b"".join(lines[:n_lines]))
    with pytest.raises(LedgerError, match="lines were cut off"):
        Ledger.open(folder)


def test_a_round_that_was_changed_is_never_opened(original, tmp_path):
    folder = copied(original, tmp_path)
    path = folder / "rounds/000001.safetensors"
    path.write_bytes(flip(path.read_bytes(), random.Random(1)))
    ledger = Ledger.open(folder)
    ledger.open_round(0)
    with pytest.raises(LedgerError, match="changed or damaged"):
        ledger.open_round(1)


def rechained(folder, change):
    """Rewrite the manifest with one change in its second line and every chain made to fit: a forger's work."""
    header, chain = read_header(folder)
    lines = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    change(lines[1])
    written = b""
    for line in lines:
        line.pop("chain", None)
        text = json.dumps(line, ensure_ascii=False).encode(errors="surrogatepass")
        chain = hashlib.sha256(chain.encode() + text).hexdigest()
        written += json.dumps({**line, "chain": chain}, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"
    (folder / "manifest.jsonl").write_bytes(written)
    assert header


FORGERIES: list[Any] = [
    None,
    3,
    -1,
    1.5,
    True,
    "x",
    "\ud800",
    [],
    [1, "x"],
    [[]],
    [99],
    [-1],
    {},
    {"a": 1},
    float("inf"),
    10**30,
]

TRUE_TO_TYPE = {  # a chain is no signature: whoever can write the whole folder can write a ledger of his own
    ("notes", "[]"),
    ("number", "3"),
    ("number", str(10**30)),
    ("participants", "[]"),
    ("apart_sample_counts", "[99]"),
}


def test_a_line_has_the_bytes_that_older_versions_wrote():
    entry = RoundEntry(0, 7, "rounds/000000.safetensors", "ab", asked=(0, 1), answered=(1,), sample_counts=(2.5,))
    line, chain = line_bytes(entry, "0")
    assert line.decode() == (
        '{"kind": "round", "round_index": 0, "number": 7, "file": "rounds/000000.safetensors", "sha256": "ab", '
        '"apart_file": null, "apart_sha256": null, "joined": [], "asked": [0, 1], "answered": [1], '
        '"participants": [], "sample_counts": [2.5], "failed": [], "failure_reasons": [], "quarantined": [], '
        '"quarantine_reasons": [], "apart": [], "apart_sample_counts": [], "notes": [], '
        f'"chain": "{chain}"}}\n'
    )


@pytest.mark.parametrize("field", ["kind", *RoundEntry.__struct_fields__])
def test_a_field_of_any_other_type_is_an_error_with_a_message(original, tmp_path, field):
    for value in FORGERIES:
        folder = copied(original, tmp_path)
        found = json.loads((folder / "manifest.jsonl").read_text().splitlines()[1]).get(field, [])
        if found == value and type(found) is type(value):
            continue
        if (field, repr(value)) in TRUE_TO_TYPE:
            continue
        rechained(folder, lambda line, value=value: line.__setitem__(field, value))
        assert_found_out(folder)
    folder = copied(original, tmp_path)
    if field in {"kind", "round_index", "number", "file", "sha256", "asked", "answered", "sample_counts"}:
        rechained(folder, lambda line: line.pop(field))
        assert_found_out(folder)


@pytest.mark.parametrize("header", ["", "[]", "3", "null", "{", '{"format": 2}', '{"format": 1}', "[" * 100_000])
@pytest.mark.parametrize("is_text", [True, False])
def test_a_garbage_header_is_an_error_with_a_message(original, tmp_path, header, is_text):
    folder = copied(original, tmp_path)
    (folder / "federation.json").write_bytes(header.encode() if is_text else header.encode("utf-16"))
    assert_found_out(folder)


@pytest.mark.parametrize("key", ["format", "clients", "aggregation", "settings"])
@pytest.mark.parametrize("value", [None, 0, "x", [1], [""], {}, ["a", "a"], True])
def test_a_header_field_of_any_other_type_is_an_error_with_a_message(original, tmp_path, key, value):
    folder = copied(original, tmp_path)
    document = json.loads((folder / "federation.json").read_text())
    (folder / "federation.json").write_text(json.dumps({**document, key: value}))
    (folder / "manifest.jsonl").write_text("")
    assert_found_out(folder)


def test_what_is_no_ledger_is_said_to_be_none(tmp_path):
    with pytest.raises(LedgerError, match="not a ledger"):
        Ledger.open(tmp_path)
    with pytest.raises(LedgerError, match="not a ledger"):
        Ledger.open(tmp_path / "nowhere")


def test_an_open_ledger_is_read_while_its_recorder_writes(tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", aggregation="samples")
    writer.record_round(model(1), {"a": Answer(model(2), 3)})
    writer.start_round(model(2), asked=["a"])
    writer.client_model("a", model(3), 3)
    ledger = Ledger.verify(tmp_path / "l")
    assert (ledger.n_rounds, ledger.is_closed) == (1, False)
    with pytest.raises(LedgerError, match="not closed"):
        ledger.final_model()
    writer.abort_round()


def test_a_committed_round_is_read_under_its_partial_name(original, tmp_path):
    folder = copied(original, tmp_path)
    whole = content(folder)
    path = folder / "rounds/000002.safetensors"
    path.rename(path.with_name(path.name + ".partial"))
    assert Ledger.verify(folder).n_rounds == 3
    LedgerWriter.resume(folder)
    assert content(folder) == whole


def test_sample_counts_are_the_rounds_own_where_it_has_them(tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", aggregation="samples")
    for n in (10, 20):
        writer.record_round(model(1), {"a": Answer(model(2), n)})
    ledger = Ledger.open(tmp_path / "l")
    assert (ledger.sample_counts(), ledger.sample_counts(0)) == ({0: 20}, {0: 10})


names = st.text(min_size=1, max_size=20).filter(lambda name: name.isprintable() and name.strip())


@settings(max_examples=30, deadline=None)
@given(clients=st.lists(names, min_size=1, max_size=5, unique=True), data=st.data())
def test_any_names_counts_and_shapes_come_back_as_they_were(tmp_path_factory, clients, data):
    folder = tmp_path_factory.mktemp("any") / "l"
    shape = data.draw(st.lists(st.integers(0, 3), max_size=3))
    values = st.floats(-1e6, 1e6, width=32)
    counts = {name: data.draw(st.integers(0, 2**53)) for name in clients}
    sent = {name: {"w": torch.full(shape, data.draw(values))} for name in clients}
    writer = LedgerWriter.create(folder, clients[:1], aggregation="uniform")
    writer.record_round({"w": torch.zeros(shape)}, {name: Answer(sent[name], counts[name]) for name in clients})
    ledger = Ledger.verify(folder)
    assert list(ledger.clients) == clients
    assert ledger.sample_counts() == {k: counts[name] for k, name in enumerate(clients)}
    models = ledger.open_round(0).client_models
    assert all(torch.equal(models[k]["w"], sent[name]["w"]) for k, name in enumerate(clients))


def test_equal_lines_after_different_histories_have_different_chains():
    entry = RoundEntry(round_index=0, number=0, file="rounds/000000.safetensors", sha256="0")
    assert line_bytes(entry, "a")[1] != line_bytes(entry, "b")[1]


@pytest.mark.parametrize("file", ["federation.json", "manifest.jsonl", "rounds/000001.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "terabytes"])
def test_what_is_no_file_of_a_ledger_is_an_error_and_not_waited_for(original, tmp_path, file, kind):
    place = copied(original, tmp_path) / file
    place.unlink()
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "folder":
        place.mkdir()
    else:
        with place.open("wb") as sparse:
            sparse.truncate(2**40)
    assert_found_out(tmp_path / "copy")


def test_a_number_of_thirty_million_is_one_gap(tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", aggregation="samples")
    for number in (1, 30_000_000, 10**18):
        writer.start_round(model(1), asked=["a"], number=number)
        writer.end_round()
    told = Ledger.open(tmp_path / "l").warnings()
    assert [text.split(" are missing")[0] for text in told] == [
        "rounds 2 to 29999999",
        f"rounds 30000001 to {10**18 - 1}",
        f"nobody answered in 3 rounds (1, 30000000, {10**18}); they add nothing to any value",
    ]


def test_a_last_line_with_zero_bytes_was_never_finished(tmp_path):
    write_ledger(tmp_path / "l", n_rounds=2, is_closed=False)
    manifest = tmp_path / "l/manifest.jsonl"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole + b'{"kind": "round"' + bytes(600) + b"}\n")
    assert Ledger.verify(tmp_path / "l").n_rounds == 2
    LedgerWriter.resume(tmp_path / "l").release()
    assert manifest.read_bytes() == whole


def test_zero_bytes_in_a_line_that_committed_a_round_are_found(original, tmp_path):
    folder = copied(original, tmp_path)
    lines = (folder / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    for k in range(len(lines)):
        changed = [*lines[:k], bytes(20) + lines[k][20:], *lines[k + 1 :]]
        (folder / "manifest.jsonl").write_bytes(b"".join(changed))
        assert_found_out(folder)


UNREADABLE = """
import os, sys
from pathlib import Path
from fedworth.errors import LedgerError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.manifest import is_ledger
from fedworth.ledger.writer import LedgerWriter
os.setuid(65534)
for attempt in (Ledger.verify, LedgerWriter.resume, is_ledger):
    try:
        attempt(Path(sys.argv[1]))
    except LedgerError as error:
        print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user who may not read the ledger")
def test_a_ledger_that_one_may_not_read_is_an_error_with_a_message(original):
    done = subprocess.run([sys.executable, "-c", UNREADABLE, str(original)], capture_output=True, text=True, check=True)
    assert done.stdout.count("cannot be read (Permission denied)") == 3


def test_opening_takes_time_in_proportion_to_the_rounds(tmp_path):
    """Counted in calls, which no other process disturbs; thirty-two thousand rounds take about a second."""
    counts = []
    for n_rounds in (200, 800):
        folder = tmp_path / str(n_rounds)
        long_ledger(folder, n_rounds)
        n_calls = 0

        def count(_frame, event, _arg):
            nonlocal n_calls
            n_calls += event == "call"

        sys.setprofile(count)
        try:
            ledger = Ledger.open(folder)
            ledger.sample_counts()
            for t in range(n_rounds):
                ledger.sample_counts(t)
        finally:
            sys.setprofile(None)
        counts.append(n_calls)
    assert counts[1] < 4.2 * counts[0]


def long_ledger(folder, n_rounds):
    """A manifest of many rounds that a client joins each, and empty files for them."""
    LedgerWriter.create(folder, aggregation="samples").release()
    (folder / "rounds").mkdir()
    _, chain = read_header(folder)
    with (folder / "manifest.jsonl").open("wb") as manifest:
        for t in range(n_rounds):
            file = f"rounds/{t:06d}.safetensors"
            (folder / file).touch()
            said: dict[str, Any] = {
                "joined": (f"c{t}",),
                "asked": (t,),
                "answered": (t,),
                "participants": (t,),
                "sample_counts": (1,),
            }
            line, chain = line_bytes(RoundEntry(round_index=t, number=t, file=file, sha256="0", **said), chain)
            manifest.write(line)
