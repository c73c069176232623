"""What is drawn for ComFedSV, as the stopping rules see it."""

import numpy as np

from fedworth.completion.factors import complete
from fedworth.games.matrix import matrix_from_cells
from fedworth.games.planning.plan import plan_prefixes
from fedworth.valuation.comfedsv import comfedsv_estimate


def test_evaluations_are_the_measured_cells_without_the_empty_coalitions():
    rng = np.random.default_rng(0)
    participants = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 1, 1, 0]], dtype=bool)
    plan = plan_prefixes(participants, n_permutations=4, with_fedsv=False, rng=rng)
    rows = [(coalitions, coalitions @ [1.0, 2.0, 3.0, 4.0]) for coalitions in plan.cells]
    matrix = matrix_from_cells(tuple("abcd"), participants, rows, permutations=plan.permutations)
    assert comfedsv_estimate(matrix, complete(matrix)).n_evaluations == plan.n_evaluations
    assert plan.n_evaluations == len(matrix.utilities) - matrix.n_rounds
