"""Lines read quickly say what the plain reader says, and whatever is odd is left to it."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.errors import LedgerError
from fedworth.ledger.manifest.lines import Line, RoundEntry
from fedworth.ledger.manifest.manifest import line_bytes
from fedworth.ledger.manifest.parsing import parsed_line
from fedworth.ledger.manifest.quick import MOST_KNOWN, QuickReader

PIECES = [
    b'"',
    b",",
    b", ",
    b"]",
    b"[",
    b"}",
    b"{",
    b"\\",
    b"-",
    b".",
    b"0",
    b"7",
    b"e9",
    b" ",
    b"true",
    b"null",
    b"\xc3",
]


def a_line(rng: random.Random) -> bytes:
    asked = tuple(sorted(rng.sample(range(30), 6)))
    answered, failed, quarantined = asked[:3], asked[3:4], asked[4:5]
    entry = RoundEntry(
        round_index=rng.randrange(10**6),
        number=rng.randrange(10**6),
        file="rounds/000001.safetensors",
        sha256=f"{rng.getrandbits(256):064x}",
        apart_file=rng.choice([None, "apart/000001.safetensors"]),
        joined=tuple(rng.choice([[], ["clinic a"], ["a", "b ]"]])),
        asked=asked,
        answered=answered,
        participants=answered[: rng.randrange(4)],
        sample_counts=tuple(rng.choice([7, 0.5, 1e-9, 2**53]) for _ in answered),
        failed=failed,
        failure_reasons=(rng.choice(["timeout", 'said "no"', "ä", "x], [y"]),),
        quarantined=quarantined,
        quarantine_reasons=("NaN",),
        nodes=rng.choice([(), tuple(f"{k:08x}" for k in answered)]),
        contested=rng.choice([(), asked[:1]]),
    )
    return line_bytes(entry, "0" * 64)[0][:-1]


def outcome(read: Callable[[bytes], Line | None], raw: bytes) -> Line | str | None:
    try:
        return read(raw)
    except LedgerError as error:
        return str(error)


def test_plain_lines_are_read_quickly():
    entry = RoundEntry(round_index=3, number=4, file="rounds/000003.safetensors", sha256="ab", asked=(0, 1))
    raw = line_bytes(entry, "0" * 64)[0][:-1]
    assert QuickReader().read(raw) == entry == parsed_line(raw)


@given(st.integers(0, 2**32))
def test_what_is_read_quickly_is_what_the_plain_reader_reads(seed):
    rng, reader = random.Random(seed), QuickReader()
    for _ in range(20):
        raw = a_line(rng)
        for _ in range(rng.randrange(3)):
            place = rng.randrange(len(raw))
            raw = raw[:place] + rng.choice(PIECES) + raw[place + rng.randrange(2) :]
        quickly = outcome(reader.read, raw)
        assert quickly is None or repr(quickly) == repr(outcome(parsed_line, raw))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"asked": [0, 1]', b'"asked": [0, 01]'),
        (b'"asked": [0, 1]', b'"asked": [0, , 1]'),
        (b'"asked": [0, 1]', b'"asked": [0,1]'),
        (b'"asked": [0, 1]', b'"asked": [0, ]'),
        (b'"notes": []', b'"notes": ["a" "b"]'),
        (b'"number": 4', b'"number": 4' + 30 * b"0"),
        (b'"sample_counts": []', b'"sample_counts": [9007199254740993]'),
        (b'"kind": "round"', b'"kind": "missing"'),
        (b'"notes": []', b'"notes": ["a\\u001b[31m"]'),
    ],
)
def test_an_odd_line_is_left_to_the_plain_reader(before, after):
    entry = RoundEntry(round_index=3, number=4, file="rounds/000003.safetensors", sha256="ab", asked=(0, 1))
    raw = line_bytes(entry, "0" * 64)[0][:-1]
    assert before in raw
    assert QuickReader().read(raw.replace(before, after)) is None


def test_rounds_that_all_differ_do_not_fill_the_memory():
    reader = QuickReader()
    for k in range(MOST_KNOWN + 10):
        entry = RoundEntry(round_index=k, number=k, file="f", sha256="s", asked=(k,))
        assert reader.read(line_bytes(entry, "0" * 64)[0][:-1]) == entry
    assert max(len(known) for known in reader._known) <= MOST_KNOWN
