"""Values by round: they add up to the values, and the rounds of a report are checked."""

import numpy as np
import pytest
from fedworth.games.planning.choose import PlanSettings, choose_plan

from fedworth.errors import ArtefactError
from fedworth.games.observe import observe
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import participation
from fedworth.pipeline.compare import compare
from fedworth.report.report import Rounds


@pytest.mark.parametrize("permutations", [None, 10])
def test_the_rounds_add_up_to_the_values(simulated_once, tiny_task, permutations):
    plan = choose_plan(participation(simulated_once), PlanSettings(permutations=permutations), seed=0)
    utilities = observe(simulated_once, LoopOracle(tiny_task), plan)
    report = compare(utilities, ["comfedsv", "fedsv"])
    for valuation in report.valuations:
        assert valuation.by_round is not None
        assert valuation.by_round.sum(axis=0) == pytest.approx(valuation.values, abs=1e-12)
    earned = report.valued_by("fedsv").by_round
    assert earned is not None
    assert (earned[~utilities.participants] == 0).all()
    assert report.rounds is not None
    if permutations is None:
        assert earned.sum(axis=1) == pytest.approx(report.rounds.gains, abs=1e-12)


def test_rounds_that_do_not_fit_are_refused():
    with pytest.raises(ArtefactError, match="expected 1 rounds"):
        Rounds((1,), np.ones((2, 2), dtype=bool))
    with pytest.raises(ArtefactError, match="gains of shape"):
        Rounds((1, 2), np.ones((2, 2), dtype=bool), np.ones(3))
