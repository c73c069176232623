"""Modules that ask for the size of their batch as a number have a graph for batches of any size all the same."""

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.coalitions import coalitions_of
from fedworth.oracle.fast.graph import NotExportable, export, shape_of
from fedworth.oracle.fast.loosened import FIXED, ROWS
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import mixtures
from tests.support.zoo import N_CLASSES, round_of, task_of


class Counting(nn.Module):
    """Samples laid out by a function of how many there are, a number."""

    def __init__(self, lay_out):
        super().__init__()
        self.lay_out, self.first, self.head = lay_out, nn.Linear(4, 6), nn.Linear(12, N_CLASSES)

    def forward(self, x):
        return self.head(self.lay_out(torch.tanh(self.first(x.reshape(len(x), 2, 4))), len(x)))


LOOSE = {
    "as rows": lambda x, n: x.reshape(n, 12),
    "as a multiple of the rows": lambda x, n: x.reshape(2 * n, 6).reshape(n, 12),
    "divided by the size": lambda x, n: x.reshape(n, 12) / n,
    "beside numbers that look like a size": lambda x, n: x.reshape(n, 12) * FIXED[0] + FIXED[1],
}
FIXED_FOR_GOOD = {
    "one more than the size": lambda x, n: x.reshape(n, 12) / (n + 1),
    "more for larger batches": lambda x, n: x.reshape(n, 12) + (1 if n > FIXED[0] else 0),
    "another step for larger batches": lambda x, n: x.reshape(n, 12) if n > FIXED[0] else x.flatten(1).relu(),
}


@pytest.mark.parametrize("lay_out", LOOSE.values(), ids=LOOSE)
def test_two_sizes_give_a_graph_for_all(lay_out):
    module = Counting(lay_out).eval()
    exported = export(module, torch.randn(9, 8))
    assert shape_of(exported.output) == (ROWS, N_CLASSES)
    for n in (1, *FIXED, 32):
        inputs = torch.randn(n, 8)
        reads = [*exported.constants.values(), inputs]
        assert torch.equal(exported.graph_module(*reads)[0], module(inputs))


@pytest.mark.parametrize("lay_out", FIXED_FOR_GOOD.values(), ids=FIXED_FOR_GOOD)
def test_whatever_else_depends_on_the_size_is_refused(lay_out):
    with pytest.raises(NotExportable, match=r"torch\.export refuses it"):
        export(Counting(lay_out).eval(), torch.randn(9, 8))


def test_such_a_module_is_measured_by_its_graph():
    task = task_of(lambda: Counting(LOOSE["as rows"]), (8,))
    round_ = round_of(task.module)
    wanted = mixtures(coalitions_of(np.arange(5), 5)[1:], np.ones(5), "uniform")
    oracle = FastOracle(task, n_threads=1)
    found = oracle.utilities(round_, wanted).sum(axis=1)
    assert found == pytest.approx(LoopOracle(task).utilities(round_, wanted).sum(axis=1), abs=1e-6)
    assert oracle.describe().partition(":")[0] != "loop"
