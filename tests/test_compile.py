"""Machine code is kept from process to process, but never longer than any source it was made from."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedworth
from fedworth.compile import COMPILING, compiled
from fedworth.notices import told

RUN = """
from fedworth.notices import told
from fedworth.own_caller import tripled_and_one
heard = []
with told(heard.append):
    found = tripled_and_one(2.0)
print(found, sum(tripled_and_one.stats.cache_hits.values()), len(heard) > 0)
"""
ROOM_FIRST = """
from fedworth.own_room import summed
print(summed(4), sum(summed.stats.cache_hits.values()))
"""
SOURCES = {
    "own_room.py": """
import numpy as np
from fedworth.compile import compiled

@compiled
def summed(size):
    room = np.zeros(size)
    for k in range(size):
        room[k] += k
    return room.sum()
""",
    "own_helper.py": """
from fedworth.compile import compiled_within

@compiled_within
def tripled(number):
    return 3 * number
""",
    "own_caller.py": """
from fedworth.compile import compiled
from fedworth.own_helper import tripled

@compiled
def tripled_and_one(number):
    return tripled(number) + 1
""",
}
COMPILED, KEPT = ["7.0", "0", "True"], ["7.0", "1", "False"]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package with two kernels more, without what was compiled before."""
    copy = tmp_path / "here" / "fedworth"
    shutil.copytree(Path(fedworth.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, source in SOURCES.items():
        (copy / name).write_text(source)
    return copy


def run(package: Path, script: str = RUN, **variables: str) -> list[str]:
    """What a fresh process computes, how many functions it found compiled, and whether it said that it compiles."""
    cache = package.parents[1] / "cache"
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "XDG_CACHE_HOME": str(cache)}
    environment.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment | variables, check=True, capture_output=True, text=True)
    return done.stdout.split()


def test_an_edited_helper_in_another_file_runs_as_its_new_self(package):
    assert run(package) == COMPILED
    assert run(package) == KEPT
    helper, before = package / "own_helper.py", (package / "own_caller.py").stat()
    source = helper.read_text()
    helper.write_text(source.replace("3 * number", "5 * number"))
    assert run(package) == ["11.0", "0", "True"]
    helper.write_text(source)
    assert run(package) == KEPT  # what was compiled from these very sources is still there
    after = (package / "own_caller.py").stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)


def test_an_edit_elsewhere_leaves_machine_code_as_it_is(package):
    run(package)
    other = package / "completion" / "coverage.py"
    other.write_text(other.read_text() + "\n# a remark\n")
    assert run(package) == KEPT


def test_machine_code_survives_a_reinstallation(package):
    assert run(package) == COMPILED
    elsewhere = package.parents[1] / "there" / "fedworth"
    shutil.copytree(package, elsewhere, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(package)
    assert run(elsewhere) == KEPT


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions are those of POSIX")
def test_machine_code_that_others_could_have_written_is_not_run(package):
    cache = package.parents[1] / "cache" / "fedworth"
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert run(package) == COMPILED
    assert list(cache.rglob("*.nbc")) == []
    assert run(package) == KEPT  # beside the source, where numba keeps it


def test_code_that_was_kept_takes_memory_and_stands_beside_code_that_is_compiled_now(package):
    assert run(package, ROOM_FIRST) == ["6.0", "0"]
    assert run(package, ROOM_FIRST) == ["6.0", "1"]
    assert run(package, ROOM_FIRST + RUN) == ["6.0", "1", *COMPILED]
    assert run(package, ROOM_FIRST + RUN) == ["6.0", "1", *KEPT]


def test_a_folder_named_for_numba_is_used_for_ours_too(package, tmp_path):
    named = tmp_path / "named"
    assert run(package, NUMBA_CACHE_DIR=str(named)) == COMPILED
    assert run(package, NUMBA_CACHE_DIR=str(named)) == KEPT
    assert list(named.rglob("*.nbc"))


def test_a_function_that_cannot_be_kept_on_disk_is_compiled_all_the_same():
    namespace: dict[str, Any] = {}
    exec("def double(x): return 2 * x", namespace)  # has no file to keep machine code beside
    heard: list[str] = []
    with told(heard.append):
        assert compiled(namespace["double"])(21) == 42
    assert heard == [COMPILING]
