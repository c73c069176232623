"""Values round by round: they add up, and are read back."""

import numpy as np
import pytest

from fedworth.completion.factors import complete
from fedworth.errors import ArtefactError
from fedworth.games.observe import observe
from fedworth.games.planning.choose import PlanSettings, choose_plan
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import participation
from fedworth.report.rounds import Rounds, rounds_from, rounds_of_report
from fedworth.valuation.value import value


@pytest.fixture(scope="module")
def task_and_ledger(simulated_once, tiny_task):
    return tiny_task, simulated_once


@pytest.mark.parametrize("permutations", [None, 10])
def test_the_rounds_add_up_to_the_values(task_and_ledger, permutations):
    task, ledger = task_and_ledger
    plan = choose_plan(participation(ledger), PlanSettings(permutations=permutations), seed=0)
    utilities = observe(ledger, LoopOracle(task), plan)
    completion = complete(utilities)
    made = tuple(value(utilities, method, completion=completion) for method in ("comfedsv", "fedsv"))
    rounds = rounds_of_report(utilities, made, lambda: completion)
    for valuation in made:
        assert rounds.values[valuation.method].sum(axis=0) == pytest.approx(valuation.values, abs=1e-12)
    assert rounds.gains is not None
    if permutations is None:
        assert rounds.values["fedsv"].sum(axis=1) == pytest.approx(rounds.gains, abs=1e-12)
    assert (rounds.values["fedsv"][~utilities.participants] == 0).all()


def test_rounds_are_read_back():
    made = Rounds((1, 3), np.array([[True, False], [True, True]]), np.array([0.5, 0.25]), {"fedsv": np.eye(2)})
    assert rounds_from(made.document()) is not None
    assert rounds_from(made.document()).document() == made.document()  # type: ignore[union-attr]
    assert rounds_from(None) is None


def test_rounds_that_do_not_fit_are_refused():
    with pytest.raises(ArtefactError, match="do not fit"):
        Rounds((1,), np.ones((2, 2), dtype=bool))
    with pytest.raises(ArtefactError, match="fedsv of shape"):
        Rounds((1, 2), np.ones((2, 2), dtype=bool), None, {"fedsv": np.ones((1, 2))})
    with pytest.raises(ArtefactError, match="not the rounds"):
        rounds_from({"numbers": [1], "n_clients": 2, "participants": [[5]], "gains": None, "values": {}})
