"""Methods that are no sharing of the rounds' games, each held against a plain computation."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedworth.errors import TooManyError
from fedworth.games.effort import shapley
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.valuation import others
from fedworth.valuation.federation import Federation
from fedworth.valuation.settings import ValuationSettings, WorkSettings
from tests.support.games import shapley_by_definition

ALL = ["mr", "or", "influence", "cosine", "retraining"]


def rng():
    return np.random.default_rng(0)


@pytest.fixture
def federation(tiny_ledger, tiny_task):
    return of(tiny_ledger, LoopOracle(tiny_task))


def of(ledger, oracle) -> Federation:
    settings = ValuationSettings(weighting="uniform")
    return Federation(ledger, oracle.task, settings, work=WorkSettings(cache=False), oracle=oracle)


def flat(model):
    return torch.cat([tensor.double().reshape(-1) for tensor in model.values()])


def loss(task, model):
    return F.cross_entropy(functional_call(task.module, model, (task.inputs,)), task.labels)


def test_mr_is_the_discounted_sum_of_the_rounds(federation):
    expected = np.zeros(5)
    for t in range(len(federation.participants)):
        expected[federation.game(t).clients] += 0.9**t * shapley(federation.game(t), rng()).totals
    made = federation.value("mr")
    assert made.values == pytest.approx(expected, abs=1e-12)
    assert made.standard_errors is None
    assert made.n_evaluations == 31 + 3 + 3


def test_rebuilt_models_are_sums_of_updates(federation, tiny_ledger, tiny_task):
    """Every coalition's model rebuilt update by update, evaluated, and shared out by the definition."""
    opened = list(tiny_ledger.rounds())
    start, n = opened[0].global_model, len(tiny_ledger.clients)
    utilities = np.zeros(2**n)
    for c in range(1, 2**n):
        model = {name: tensor.double() for name, tensor in start.items()}
        for round_ in opened:
            here = [k for k in round_.entry.participants if c >> k & 1]
            for name, k in itertools.product(model, here):
                update = round_.client_models[k][name].double() - round_.global_model[name].double()
                model[name] = model[name] + update / len(here)
        utilities[c] = float(loss(tiny_task, start) - loss(tiny_task, {k: v.float() for k, v in model.items()}))
    made = federation.value("or")
    assert made.values == pytest.approx(shapley_by_definition(utilities), abs=1e-6)
    assert made.n_evaluations == 2**n - 1


def test_influence_is_the_slope_of_the_test_loss(federation, tiny_ledger, tiny_task):
    expected = np.zeros(5)
    for round_ in tiny_ledger.rounds():
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in round_.global_model.items()}
        gradient = torch.autograd.grad(loss(tiny_task, leaves), list(leaves.values()))
        slope = torch.cat([part.double().reshape(-1) for part in gradient])
        for k in round_.entry.participants:
            update = flat(round_.client_models[k]) - flat(round_.global_model)
            expected[k] -= float(slope @ update) / len(round_.entry.participants)
    made = federation.value("influence")
    assert made.values == pytest.approx(expected, rel=1e-5)
    assert made.n_evaluations == 0


def test_cosine_is_the_reputation_by_torch(federation, tiny_ledger):
    reputation = np.zeros(5)
    for round_ in tiny_ledger.rounds():
        members = list(round_.entry.participants)
        updates = torch.stack([flat(round_.client_models[k]) - flat(round_.global_model) for k in members])
        found = F.cosine_similarity(updates, updates.mean(dim=0)[None])
        reputation[members] = 0.95 * reputation[members] + 0.05 * found.numpy()
    made = federation.value("cosine")
    assert made.values == pytest.approx(reputation / np.abs(reputation).sum())
    assert made.n_evaluations == 0


def test_retraining_shares_out_what_the_federation_gained(federation, tiny_ledger, tiny_task):
    made = federation.value("retraining")
    gained = loss(tiny_task, tiny_ledger.open_round(0).global_model) - loss(tiny_task, tiny_ledger.final_model())
    assert made.values.sum() == pytest.approx(float(gained), abs=1e-6)
    assert made.n_evaluations == 31


def test_more_clients_than_can_be_retrained_are_refused(federation, monkeypatch):
    monkeypatch.setattr(others, "MOST_RETRAINED", 4)
    with pytest.raises(TooManyError, match="at most 4 clients are retrained"):
        federation.value("retraining")


@pytest.mark.parametrize("method", ALL)
def test_the_fast_oracle_gives_the_same_values(federation, tiny_ledger, tiny_task, method):
    first = federation.value(method).values
    fast = of(tiny_ledger, FastOracle(tiny_task)).value(method).values
    assert fast == pytest.approx(first, abs=1e-4 * np.abs(first).max())


@pytest.mark.parametrize("method", ALL)
def test_a_client_that_was_never_heard_has_no_value(tiny_ledger, tiny_task, method):
    federation = of(tiny_ledger.without(["2"]), LoopOracle(tiny_task))
    assert np.isnan(federation.value(method).values).tolist() == [False, False, True, False, False]
