"""Values by round: they add up to the values, and the rounds of a report are checked."""

import numpy as np
import pytest

from fedworth.errors import ArtefactError
from fedworth.pipeline.report_on import report_on
from fedworth.report.report import Rounds
from fedworth.valuation.settings import ValuationSettings


@pytest.mark.parametrize("permutations", [None, 10])
def test_the_rounds_add_up_to_the_values(tiny_ledger, tiny_task, permutations):
    settings = ValuationSettings(permutations=permutations)
    report = report_on(tiny_ledger, tiny_task, settings, methods=["comfedsv-models", "comfedsv", "fedsv"])
    assert report.rounds is not None
    for valuation in report.valuations:
        assert valuation.by_round is not None
        assert valuation.by_round.sum(axis=0) == pytest.approx(valuation.values, abs=1e-9)
    earned = report.valued_by("fedsv").by_round
    assert earned is not None
    assert (earned[~report.rounds.participants] == 0).all()
    assert earned.sum(axis=1) == pytest.approx(report.rounds.gains, abs=1e-9)


def test_rounds_that_do_not_fit_are_refused():
    with pytest.raises(ArtefactError, match="expected 1 rounds"):
        Rounds((1,), np.ones((2, 2), dtype=bool))
    with pytest.raises(ArtefactError, match="gains of shape"):
        Rounds((1, 2), np.ones((2, 2), dtype=bool), np.ones(3))
