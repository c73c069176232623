"""The test set in cells: what is divided, what is not, and that the spread of blocks is the error of a mean."""

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.errors import DataError
from fedworth.task.cells import MOST_CLASSES, N_BLOCKS, Cells, Undivided, divide
from fedworth.task.task import Task


def a_task(labels, loss="cross-entropy", n_outputs=3, **more) -> Task:
    inputs = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(0))
    return Task(nn.Linear(4, n_outputs), inputs, labels, loss=loss, **more)


def divided(task: Task, measure: str = "loss") -> tuple[Task, Cells]:
    made, cells = divide(task, task.criterion(measure))
    assert isinstance(cells, Cells)
    return made, cells


def refused(task: Task, measure: str = "loss") -> str:
    made, cells = divide(task, task.criterion(measure))
    assert isinstance(cells, Undivided)
    assert made.blocks is None
    return cells.reason


def test_classes_are_the_groups_and_every_cell_has_one_class_and_one_block():
    task, cells = divided(a_task(torch.arange(400) % 3))
    assert cells.groups == ("0", "1", "2")
    assert cells.n_blocks == N_BLOCKS
    assert task.blocks is not None
    assert (cells.group_of[task.blocks] == np.arange(400) % 3).all()
    np.testing.assert_allclose(cells.shares, np.bincount(task.blocks) / 400)
    sizes = np.bincount(cells.block_of[task.blocks])
    assert set(sizes.tolist()) == {12, 13}  # of the whole test set, whatever the classes
    assert cells.group_shares.sum() == pytest.approx(1)


def test_the_same_test_set_has_the_same_cells_and_another_number_of_groups_the_same_blocks():
    labels = torch.arange(400) % 3
    first, again = (divided(a_task(labels))[0].blocks for _ in range(2))
    np.testing.assert_array_equal(first, again)
    by_site, cells = divided(a_task(labels, groups=["b", "a"] * 200))
    assert cells.groups == ("a", "b")
    assert by_site.blocks is not None
    assert (cells.group_of[by_site.blocks] == (np.arange(400) + 1) % 2).all()


def test_numbers_and_many_classes_have_blocks_and_no_groups():
    assert divided(a_task(torch.randn(60, 1), "squared-error", 1))[1].groups == ()
    many = torch.arange(200) % (MOST_CLASSES + 1)
    assert divided(a_task(many, n_outputs=MOST_CLASSES + 1))[1].groups == ()
    assert divided(a_task((torch.arange(60) % 2).double(), "binary", 1))[1].groups == ("0", "1")


def test_classes_of_more_coalitions_than_fit_into_memory_are_no_groups():
    task = a_task(torch.arange(60) % 3)
    few, many = (divide(task, task.criterion("loss"), n_coalitions=n)[1] for n in (200 * 2**10, 2000 * 2**12))
    assert isinstance(few, Cells)
    assert isinstance(many, Cells)
    assert (len(few.groups), len(many.groups)) == (3, 0)
    asked = a_task(torch.arange(60) % 3, groups=["a", "b"] * 30)
    assert isinstance(given := divide(asked, asked.criterion("loss"), n_coalitions=2000 * 2**12)[1], Cells)
    assert given.groups == ("a", "b")


def test_a_tiny_test_set_has_a_block_for_each_sample():
    task, cells = divided(a_task(torch.tensor([0, 1, 2, 0, 1])))
    assert cells.n_blocks == 5
    assert task.n_blocks == 5


def test_one_sample_one_class_and_a_utility_of_ones_own_say_nothing():
    assert "one sample" in refused(a_task(torch.tensor([1])))
    assert "one class" in refused(a_task(torch.ones(50, dtype=torch.int64)))
    own = Task.from_utility(lambda model: float(model["w"].sum()), {"w": np.zeros(2)})
    assert "one number for all test samples" in refused(own)


def test_rankings_have_blocks_without_groups_unless_a_block_has_all_of_one_kind():
    flags = (torch.arange(80) % 4 == 0).double()
    task, cells = divided(a_task(flags, "binary", 1), "auc")
    assert cells.groups == ()
    assert task.n_blocks == N_BLOCKS
    alone = (torch.arange(80) == 7).double()
    assert "auc is not defined without some of the test samples" in refused(a_task(alone, "binary", 1), "auc")


def per_sample(outputs, labels):
    return (outputs.argmax(dim=1) == labels).double()


def all_together(outputs, labels):
    return per_sample(outputs, labels).mean() ** 2


def test_a_function_of_ones_own_has_groups_if_it_gives_a_number_for_each_sample():
    labels = torch.arange(60) % 3
    assert divided(a_task(labels, measure=per_sample), "per_sample")[1].groups == ("0", "1", "2")
    assert divided(a_task(labels, measure=all_together), "all_together")[1].groups == ()


def test_the_residuals_have_the_variance_of_a_mean():
    """Values of samples that differ by class: the sum over cells has the variance of a mean over random samples."""
    rng = np.random.default_rng(1)
    n, labels = 480, torch.from_numpy(rng.integers(0, 3, 480))
    task, cells = divided(a_task(labels))
    assert task.blocks is not None
    of_samples = rng.normal(size=(2, n)) + np.array([[3.0], [-2.0]]) * labels.numpy()  # (2 values, n)
    by_cell = np.stack([np.bincount(task.blocks, row, minlength=task.n_blocks) / n for row in of_samples])
    np.testing.assert_allclose(cells.by_group(by_cell).sum(axis=1), of_samples.mean(axis=1))
    found = cells.residuals(by_cell) @ cells.residuals(by_cell).T
    expected = np.cov(of_samples) / n
    np.testing.assert_allclose(found, expected, rtol=4 * np.sqrt(2 / 31))  # 31 degrees of freedom


def test_a_group_for_each_sample_is_needed():
    with pytest.raises(DataError, match="2 labels in 'group' of groups, expected one for each of 3 samples"):
        a_task(torch.tensor([0, 1, 2]), groups=["a", "b"])


def test_groups_are_part_of_the_task():
    labels = torch.arange(6) % 3
    plain, by_site, again = (a_task(labels, groups=groups) for groups in (None, "aabbcc", torch.arange(6) // 2))
    assert by_site.groups == {"group": ("a", "a", "b", "b", "c", "c")}
    assert again.groups == {"group": ("0", "0", "1", "1", "2", "2")}
    assert len({plain.fingerprint, by_site.fingerprint, again.fingerprint}) == 3
