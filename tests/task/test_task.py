"""The task: its checks, its fingerprint, and tasks from files."""

from typing import Any

import pytest
import torch
from torch import nn

from fedworth import Federation, report_on
from fedworth.errors import DataError, ModelError, UsageError
from fedworth.simulation.simulate import task_of
from fedworth.task.task import Task
from fedworth.task.vertical import Vertical

INPUTS, LABELS = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0])


def task(inputs: torch.Tensor = INPUTS, labels: torch.Tensor = LABELS) -> Task:
    return Task(nn.Linear(2, 2), inputs, labels)


def test_equal_test_sets_have_equal_fingerprints_whatever_the_module_and_the_strides():
    strided = INPUTS.t().contiguous().t()
    assert not strided.is_contiguous()
    assert task(strided.clone(memory_format=torch.preserve_format)).fingerprint == task().fingerprint


def test_a_task_taken_to_a_device_is_the_same_task_with_a_module_of_its_own():
    here = task()
    there = here.to("cpu")
    assert there.fingerprint == here.fingerprint
    assert there.module is not here.module
    assert all(torch.equal(a, b) for a, b in zip(there.module.parameters(), here.module.parameters(), strict=True))


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [
        (INPUTS + 1, LABELS),
        (INPUTS, 1 - LABELS),
        (INPUTS.double(), LABELS),
        (INPUTS.reshape(3, 1, 2), LABELS),
        (INPUTS[:2], LABELS[:2]),
    ],
)
def test_another_test_set_has_another_fingerprint(inputs, labels):
    assert task(inputs, labels).fingerprint != task().fingerprint


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (INPUTS, LABELS[:2], "3 inputs and 2 labels"),
        (INPUTS[:0], LABELS[:0], "0 inputs and 0 labels; .* at least one sample"),
        (INPUTS.numpy(), LABELS, r"inputs of type ndarray, expected tensors; torch\.as_tensor"),
        (INPUTS, LABELS.numpy(), r"labels of type ndarray, expected tensors; torch\.as_tensor"),
        (INPUTS, LABELS.int(), "labels are torch.int32"),
        (INPUTS, LABELS.reshape(3, 1), r"int64 of shape \(3, 1\)"),
        (INPUTS, LABELS - 100, "found label -100, expected 0 or more"),
        (INPUTS / 0, LABELS, "NaN or infinite"),
    ],
)
def test_a_test_set_that_cannot_be_judged_on_is_refused(inputs, labels, message):
    with pytest.raises(DataError, match=message):
        task(inputs, labels)


def test_the_module_is_evaluated_in_evaluation_mode_and_left_in_its_own():
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Linear(2, 2))
    module[0].eval()
    judged = Task(module, INPUTS, LABELS)
    assert torch.equal(judged.outputs(judged.state), judged.outputs(judged.state))
    assert [part.training for part in module.modules()] == [True, False, True, True]


def test_inputs_that_the_module_cannot_take_are_refused_with_what_was_found():
    wide = Task(nn.Linear(3, 2), torch.zeros(4, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(
        ModelError, match=r"cannot take.*\(4, 3\) torch.float64 and a model of torch.float32.*\.float\(\)"
    ):
        wide.outputs(wide.state)
    with pytest.raises(ModelError, match=r"cannot take the test set"):
        Task(nn.Linear(5, 2), torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])).outputs(nn.Linear(5, 2).state_dict())


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
    assert len(Task.load(f"{file}:{name}").labels) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mytask.py", "expected a Python file and a name"),
        (":task", "expected a Python file and a name"),
        ("nowhere.py:task", "no such file"),
        ("{file}:tusk", "no 'tusk' in the file; it has .*task"),
        ("{file}:broken", "broken\\(\\) failed with TypeError"),
        ("{file}:word", "found a str, expected a .*Task$"),
    ],
)
def test_what_is_wrong_with_a_task_is_said(file, text, message):
    with pytest.raises(UsageError, match=message):
        Task.load(text.format(file=file))


def test_a_vertical_says_how_to_get_its_task(tmp_path, tiny_ledger):
    file = tmp_path / "mytask.py"
    file.write_text("import torch, fedworth\nv = fedworth.Vertical(torch.nn.Linear(1, 1), torch.zeros(9), {'a': 1})\n")
    with pytest.raises(UsageError, match=r"found a Vertical, .* use vertical.task\(\)"):
        Task.load(f"{file}:v")
    vertical: Any = Vertical(nn.Linear(1, 1), torch.zeros(9), {"a": 1})
    for use in (report_on, Federation):
        with pytest.raises(UsageError, match=r"found a Vertical, .* use vertical.task\(\)"):
            use(tiny_ledger, vertical)


def test_an_error_of_the_task_itself_is_passed_on(file):
    with pytest.raises(DataError, match="3 inputs and 2 labels"):
        Task.load(f"{file}:empty")


@pytest.mark.parametrize("code", ["1 / 0", "import nothing_like_this", "def"])
def test_a_file_that_does_not_run_is_an_error_with_its_reason(tmp_path, code):
    (tmp_path / "bad.py").write_text(code)
    with pytest.raises(UsageError, match=r"bad\.py: failed with"):
        Task.load(f"{tmp_path / 'bad.py'}:task")


def test_a_simulated_federation_needs_no_file(tiny_ledger, tiny_task):
    assert task_of(tiny_ledger).fingerprint == tiny_task.fingerprint


@pytest.mark.parametrize("module", [nn.LazyLinear(2), nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d())])
def test_a_lazy_module_that_was_never_called_is_refused(module):
    with pytest.raises(UsageError, match=r"of a lazy layer has no shape yet.*call the module once"):
        Task(module, INPUTS, LABELS)
    module(INPUTS)
    assert Task(module, INPUTS, LABELS).state
