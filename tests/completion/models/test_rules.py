"""Predicted models under servers that do not average: an unseen coalition's model is what the server makes of it."""

import numpy as np
import pytest

from fedworth.completion.models import complete_by_models
from fedworth.completion.models.predicted import predict_absent
from fedworth.games.observe import observe
from fedworth.oracle.fast import FastOracle
from fedworth.task.replay import replayed
from fedworth.task.rules import Adaptive, Krum, Median, ServerMomentum, WeightedMean, arrays_of
from tests.oracle.test_server import loss, task
from tests.support.servers import federation

RULES = (WeightedMean(), ServerMomentum(1.0, 0.9), Adaptive("adam"), Median(), Krum(1))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_unseen_coalitions_are_aggregated_by_the_servers_own_rule(rule, tmp_path):
    ledger = federation(tmp_path / "l", rule, recorded=rule)
    oracle = FastOracle(task(), n_threads=1)
    made = complete_by_models(ledger, oracle, observe(ledger, oracle))
    predicted, everyone = predict_absent(ledger, oracle.task), np.ones((1, 4), dtype=bool)
    found = made.estimates(everyone)[:, 0]
    n_unseen = 0
    for t, step in enumerate(replayed(ledger, rule)):
        round_ = predicted.open_round(t)
        absent = sorted(set(round_.client_models) - set(round_.entry.participants))
        order = [*round_.entry.participants, *absent]
        models = [arrays_of(round_.client_models[k]) for k in order]
        before = arrays_of(round_.global_model)
        after, _ = rule.aggregate(before, models, [10.0 + k for k in order], step.state)
        assert found[t] == pytest.approx(loss(before) - loss(after), abs=1e-5)
        n_unseen += len(absent) > 0
    assert n_unseen == 3
