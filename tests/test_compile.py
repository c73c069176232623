"""Machine code is kept from process to process, but never longer than any source it was made from."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedworth
from fedworth.compile import compiled

RUN = """
import numpy as np
from fedworth.completion.kernels.points import residuals
from fedworth.completion.kernels.layout import Cells
cells = Cells(np.array([0, 1]), np.array([0]), np.array([10.0]), np.array([1.0]))
print(residuals(cells, np.full((1, 2), 2.0), np.full((1, 2), 1.0))[0], sum(residuals.stats.cache_hits.values()))
"""
HELPER, CALLER = "completion/kernels/arithmetic.py", "completion/kernels/points.py"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, without what was compiled before."""
    copy = tmp_path / "fedworth"
    shutil.copytree(Path(fedworth.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def run(package: Path) -> list[str]:
    """What a fresh process computes, and how many functions it found compiled."""
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    environment.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, "-c", RUN]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()


def test_an_edited_helper_in_another_file_runs_as_its_new_self(package):
    assert run(package) == ["6.0", "0"]
    assert run(package) == ["6.0", "1"]
    helper, before = package / HELPER, (package / CALLER).stat()
    source = helper.read_text()
    edited = source.replace("total += one[i, k] * other[j, k]", "total += 2 * one[i, k] * other[j, k]")
    assert edited != source
    helper.write_text(edited)
    assert run(package) == ["2.0", "0"]
    helper.write_text(source)
    assert run(package) == ["6.0", "0"]
    after = (package / CALLER).stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)


def test_an_edit_elsewhere_leaves_machine_code_as_it_is(package):
    run(package)
    other = package / "completion" / "coverage.py"
    other.write_text(other.read_text() + "\n# a remark\n")
    assert run(package) == ["6.0", "1"]


def test_a_function_that_cannot_be_kept_on_disk_is_compiled_all_the_same():
    namespace: dict[str, Any] = {}
    exec("def double(x): return 2 * x", namespace)  # has no file to keep machine code beside
    assert compiled(namespace["double"])(21) == 42
