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
from fedworth.notices import caution, told, warned

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
WARNED = """
from fedworth.notices import warned
from fedworth.own_caller import tripled_and_one
from fedworth.own_room import summed
said = []
with warned(said.append):
    print(tripled_and_one(2.0), summed(4), sum(tripled_and_one.stats.cache_hits.values()))
print(*said, sep="\\n")
"""
NUMBERS = ["7.0", "6.0", "0"]
FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))"
REMOVED = """
import os, shutil
from fedworth import own_caller
shutil.rmtree(os.environ["XDG_CACHE_HOME"])
"""
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


def kept(package: Path) -> list[Path]:
    """What was kept of the kernel that calls another."""
    found = sorted((package.parents[1] / "cache").rglob("own_caller.*.nb?"))
    assert [path.suffix for path in found] == [".nbc", ".nbi"]
    return found


def beside(package: Path) -> list[Path]:
    """What was written among the sources."""
    return list(package.rglob("*.nb?"))


@pytest.mark.parametrize("damaged", [b"", b"short", None], ids=["empty", "short", "one byte"])
@pytest.mark.parametrize("which", [0, 1], ids=["code", "index"])
def test_what_is_damaged_is_compiled_and_kept_anew(package, which, damaged):
    run(package)
    path = kept(package)[which]
    whole = path.read_bytes()
    path.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:] if damaged is None else damaged)
    assert run(package) == COMPILED
    assert run(package) == KEPT


def test_code_that_was_made_for_other_arguments_is_not_run(package):
    run(package)
    code, _ = kept(package)
    whole = code.read_bytes()
    run(package, RUN.replace("2.0", "2"))
    other = code.with_name(code.name.replace(".1.nbc", ".2.nbc"))
    other.write_bytes(whole)
    assert run(package, RUN.replace("2.0", "2")) == ["7", "0", "True"]
    assert run(package, RUN.replace("2.0", "2")) == ["7", "1", "False"]


def test_a_folder_that_was_removed_meanwhile_is_made_again(package):
    assert run(package, REMOVED + WARNED) == NUMBERS
    assert run(package) == KEPT


def test_what_cannot_be_kept_is_said_once_and_changes_no_number(package):
    found = run(package, FULL + WARNED)
    home = package.parents[1] / "cache" / "fedworth"
    assert found[:3] == NUMBERS
    said = " ".join(found[3:])
    assert said.startswith(f"{home}: machine code cannot be kept there (File too large), so ")
    assert said.count(str(home)) == 1
    assert said.endswith("name another folder by XDG_CACHE_HOME")
    assert [path for path in home.rglob("*") if path.is_file()] == []


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="elsewhere numba chooses the folder")
@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "NUMBA_CACHE_DIR"])
def test_where_a_file_stands_for_the_folder_nothing_is_written_among_the_sources(package, tmp_path, variable):
    (tmp_path / "file").touch()
    found = run(package, WARNED, **{variable: str(tmp_path / "file")})
    assert found[:3] == NUMBERS
    assert found[-1] == variable
    assert beside(package) == []


def test_what_was_kept_is_read_where_nothing_more_can_be_written(package):
    run(package, WARNED)
    assert run(package, FULL + WARNED) == [*NUMBERS[:2], "1"]


def test_folders_are_the_users_alone_however_others_are_made(package):
    assert run(package, "import os; os.umask(0o002)" + RUN) == COMPILED
    assert run(package) == KEPT
    assert beside(package) == []


def test_code_of_other_sources_is_removed_once_nobody_used_it_for_a_month(package):
    run(package)
    home = package.parents[1] / "cache" / "fedworth"
    (first,) = home.iterdir()
    for name in ("0123456789abcdef", "fedcba9876543210", "mine"):
        shutil.copytree(first, home / name)
    (home / "fedcba9876543210" / "own_caller" / "note.txt").touch()
    (home / "file").touch()
    (home / "aaaaaaaaaaaaaaaa").symlink_to(home / "mine")
    for path in home.iterdir():
        os.utime(path, (0, 0))
    assert run(package) == KEPT  # now its folder is in use again
    assert (home / "0123456789abcdef").is_dir()
    (package / "own_helper.py").write_text(SOURCES["own_helper.py"] + "# another stamp")
    assert run(package) == COMPILED
    assert {path.name for path in home.iterdir()} >= {first.name, "fedcba9876543210", "mine", "file"}
    assert not (home / "0123456789abcdef").exists()
    assert [path.name for path in (home / "fedcba9876543210").rglob("*")] == ["own_caller", "note.txt"]
    assert list((home / "mine").rglob("*.nbc"))


def test_where_nobody_watches_a_warning_is_logged(caplog):
    caution("something to mend")
    caution("something to mend")
    heard: list[str] = []
    with warned(heard.append):
        caution("something to mend")
        caution("something to mend")
    assert [record.message for record in caplog.records] == heard == ["something to mend"]
