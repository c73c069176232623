"""Pins have hashes, and the bill of materials says what is installed."""

from pathlib import Path

import pytest

from tools.supply import UNLOCKED, bill, hashes, pins

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "locks").glob("*.txt"))


def constraints_of(lock: Path) -> Path:
    return ROOT / ("constraints.txt" if lock.stem == "main" else f"constraints-{lock.stem}.txt")


def test_every_constraints_file_has_a_lock():
    assert {constraints_of(lock) for lock in LOCKS} == set(ROOT.glob("constraints*.txt"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_what_is_locked_is_what_is_pinned_and_has_a_hash(lock):
    locked, pinned = pins(lock.read_text()), pins(constraints_of(lock).read_text())
    assert locked == {name: found for name, found in pinned.items() if name not in UNLOCKED}
    assert hashes(lock.read_text()).keys() == locked.keys()
    assert len(locked) > 20


def test_the_bill_of_materials_lists_what_is_installed_with_its_hashes_and_is_the_same_twice():
    sha256s = hashes((ROOT / "locks" / "main.txt").read_text())
    document = bill(sha256s)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    components = {each["name"]: each for each in document["components"]}
    assert components["numpy"]["purl"].startswith("pkg:pypi/numpy@")
    assert components["numpy"]["hashes"] == [{"alg": "SHA-256", "content": sha256s["numpy"]}]
    assert "hashes" not in components["torch"]
    assert "fedworth" not in components
    assert bill(sha256s) == document
