"""Names that look alike have one skeleton; names that do not, do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.recording.identity import CAPITALS, LETTERS, skeleton, tidy

ALIKE = [
    "clinic-a",
    "Clinic-A",
    " clinic-a ",
    "clinic-a\u200b",
    "сliniс-а",  # Cyrillic с and а
    "ｃlinic-a",
    "CLINIC-Α",  # Greek capital alpha
    "clínic-à",
    *(f"clinic{dash}a" for dash in "\u2010\u2011\u2012\u2013\u2014\u2212\ufe63"),
    "\u03f2linic-a",
    "\u1d04linic-a",
    *(f"clinic-a{blank}" for blank in "\u3164\u115f\u1160\uffa0\u2800"),
]


@pytest.mark.parametrize("name", ALIKE)
def test_what_looks_like_a_name_has_its_skeleton(name):
    assert skeleton(name) == skeleton("clinic-a")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("site-1", "site-l"),
        ("site-1", "site-|"),
        ("lady's", "lady\u2019s"),
        ("way", "\u0461a\u04af"),
        ("ΒΗΡ", "BHP"),
        ("ВНР", "BHP"),
        ("groß", "GROSS"),
    ],
)
def test_letters_that_look_like_others_count_as_those(one, other):
    assert skeleton(one) == skeleton(other)


def test_names_that_differ_stay_apart():
    names = [
        "clinic-a",
        "clinic-b",
        "site-1",
        "site-2",
        "site-12",
        "больница",
        "клиника",
        "病院一",
        "病院二",
        "κλινική",
    ]
    assert len({skeleton(name) for name in names}) == len(names)
    assert len({skeleton(f"partition-{k}") for k in range(2000)}) == 2000


def test_a_name_is_kept_as_it_was_said_but_for_what_cannot_be_seen():
    assert tidy("  Клиника\u200b  №1 ") == "Клиника No1"
    assert tidy("clinic\u3164 a\u2800") == "clinic a"


@given(st.text())
def test_a_skeleton_is_its_own_skeleton(name):
    assert skeleton(skeleton(name)) == skeleton(name)


def test_the_tables_lead_to_latin_letters():
    assert {chr(code) for table in (CAPITALS, LETTERS) for code in table.values()} <= set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    )
