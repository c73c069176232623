"""A task from a user's own file: found, run and checked, or an error that says what is wrong with it."""

import pytest

from fedworth.errors import DataError, UsageError
from fedworth.simulation.simulate import task_for
from fedworth.task.task import load_task

GOOD = """
import torch
from beside import N_CLASSES
from fedworth.task.task import Task

def task():
    return Task(torch.nn.Linear(2, N_CLASSES), torch.zeros(3, 2), torch.tensor([0, 1, 0]))

ready = task()
broken = Task
word = "task"

def empty():
    return Task(torch.nn.Linear(2, 2), torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64))
"""


@pytest.fixture
def file(tmp_path):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "beside.py").write_text("N_CLASSES = 2\n")
    (package / "mytask.py").write_text(GOOD)
    return package / "mytask.py"


@pytest.mark.parametrize("name", ["task", "ready"])
def test_a_task_or_a_function_that_makes_one_is_found_in_a_file(file, name):
    assert len(load_task(f"{file}:{name}").labels) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mytask.py", "expected a Python file and a name"),
        (":task", "expected a Python file and a name"),
        ("nowhere.py:task", "no such file"),
        ("{file}:tusk", "no 'tusk' in the file; it has .*task"),
        ("{file}:broken", "broken\\(\\) failed with TypeError"),
        ("{file}:word", "gave a str, expected a .*Task"),
    ],
)
def test_what_is_wrong_with_a_task_is_said(file, text, message):
    with pytest.raises(UsageError, match=message):
        load_task(text.format(file=file))


def test_an_error_of_the_task_itself_is_passed_on(file):
    with pytest.raises(DataError, match="3 inputs and 2 labels"):
        load_task(f"{file}:empty")


@pytest.mark.parametrize("code", ["1 / 0", "import nothing_like_this", "def"])
def test_a_file_that_does_not_run_is_an_error_with_its_reason(tmp_path, code):
    (tmp_path / "bad.py").write_text(code)
    with pytest.raises(UsageError, match=r"bad\.py: failed with"):
        load_task(f"{tmp_path / 'bad.py'}:task")


def test_a_simulated_federation_needs_no_file(tiny_ledger, tiny_task):
    assert task_for(tiny_ledger, None).fingerprint == tiny_task.fingerprint
