"""Clients with equal models are interchangeable to the last bit, whatever oracle measures."""

import numpy as np
import pytest
import torch

from fedworth.games.observe import observe
from fedworth.games.planning.plan import plan_exact
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.oracle.fast.twins import beginnings, twins
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import participation


@pytest.mark.parametrize("oracle_type", [LoopOracle, FastOracle])
@pytest.mark.parametrize("weighting", ["uniform", "samples", "fixed"])
def test_twins_are_worth_exactly_the_same_to_any_coalition(tiny_ledger, tiny_task, oracle_type, weighting):
    """Client 4 is a copy of client 0."""
    plan = plan_exact(participation(tiny_ledger), with_truth=True)
    truth = observe(tiny_ledger, oracle_type(tiny_task), plan, weighting=weighting)
    with_0 = truth.coalitions[truth.coalitions[:, 0] & ~truth.coalitions[:, 4]]
    with_4 = with_0[:, [4, 1, 2, 3, 0]]
    for t in range(truth.n_rounds):
        assert np.array_equal(truth.row(t, with_4), truth.row(t, with_0))


def equal(models):
    return twins(models, beginnings(models))


def test_twins_have_equal_models():
    models = [{"w": torch.arange(40.0)} for _ in range(6)]
    models[3]["w"] = torch.cat([torch.arange(39.0), torch.tensor([0.0])])  # differs far from its beginning
    models[5]["w"] = models[5]["w"].double()
    assert equal(dict(enumerate(models))) == [[0, 1, 2, 4]]
    assert equal({}) == []
