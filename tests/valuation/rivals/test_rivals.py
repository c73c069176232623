import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedworth.errors import FedworthError, TooManyError
from fedworth.games.observe import observe
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.valuation.fedsv import fedsv
from fedworth.valuation.rivals import RIVALS, recorded, value_by_rival
from tests.support.games import shapley_by_definition


@pytest.fixture
def federation(tiny_ledger, tiny_task):
    return recorded(tiny_ledger, LoopOracle(tiny_task))


def flat(model):
    return torch.cat([tensor.double().reshape(-1) for tensor in model.values()])


def loss(task, model, reduction="mean"):
    return F.cross_entropy(functional_call(task.module, model, (task.inputs,)), task.labels, reduction=reduction)


def test_or_by_plain_reconstruction(federation, tiny_ledger, tiny_task):
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
        rebuilt = {name: tensor.float() for name, tensor in model.items()}
        utilities[c] = float(loss(tiny_task, start) - loss(tiny_task, rebuilt))
    made = value_by_rival(federation, "or")
    assert made.valuation.values == pytest.approx(shapley_by_definition(utilities), abs=1e-6)
    assert made.n_evaluations == 2**n - 1


def test_or_by_permutations_where_there_are_many_clients(federation, monkeypatch):
    exact = value_by_rival(federation, "or").valuation.values
    monkeypatch.setattr("fedworth.valuation.rivals.reconstruction.MOST_EXACT", 2)
    sampled = value_by_rival(federation, "or").valuation
    assert sampled.standard_errors is not None
    assert sampled.values.sum() == pytest.approx(exact.sum())
    assert np.abs(sampled.values - exact).max() <= 5 * sampled.standard_errors.max()


def test_mr_without_decay_is_fedsv(federation, tiny_ledger, tiny_task, monkeypatch):
    monkeypatch.setattr("fedworth.valuation.rivals.rivals.DECAY", 1.0)
    expected = fedsv(observe(tiny_ledger, LoopOracle(tiny_task))).values
    made = value_by_rival(federation, "mr")
    assert made.valuation.values == pytest.approx(expected, abs=1e-9)
    assert made.n_evaluations == 31 + 3 + 3


def test_influence_is_the_slope_of_the_test_loss(federation, tiny_ledger, tiny_task):
    expected = np.zeros(5)
    for round_ in tiny_ledger.rounds():
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in round_.global_model.items()}
        gradient = torch.autograd.grad(loss(tiny_task, leaves), list(leaves.values()))
        slope = torch.cat([part.double().reshape(-1) for part in gradient])
        for k in round_.entry.participants:
            update = flat(round_.client_models[k]) - flat(round_.global_model)
            expected[k] -= float(slope @ update) / len(round_.entry.participants)
    made = value_by_rival(federation, "influence")
    assert made.valuation.values == pytest.approx(expected, rel=1e-5)
    assert made.n_evaluations == 0


def test_cosine_by_torch(federation, tiny_ledger):
    reputation = np.zeros(5)
    for round_ in tiny_ledger.rounds():
        members = list(round_.entry.participants)
        updates = torch.stack([flat(round_.client_models[k]) - flat(round_.global_model) for k in members])
        found = F.cosine_similarity(updates, updates.mean(dim=0)[None])
        reputation[members] = 0.95 * reputation[members] + 0.05 * found.numpy()
    made = value_by_rival(federation, "cosine")
    assert made.valuation.values == pytest.approx(reputation / np.abs(reputation).sum())
    assert made.n_evaluations == 0


@pytest.mark.parametrize("name", ["tmc", "gtg"])
def test_truncated_permutations_are_near_fedsv(federation, tiny_ledger, tiny_task, name):
    expected = fedsv(observe(tiny_ledger, LoopOracle(tiny_task))).values
    made = value_by_rival(federation, name)
    assert np.corrcoef(made.valuation.values, expected)[0, 1] > 0.95
    assert made.n_evaluations <= 31 + 3 + 3


@pytest.mark.parametrize("name", RIVALS)
def test_the_same_bytes_twice_and_the_same_numbers_by_the_fast_oracle(federation, tiny_ledger, tiny_task, name):
    first, second = (value_by_rival(federation, name, seed=1).valuation.values for _ in range(2))
    assert first.tobytes() == second.tobytes()
    fast = value_by_rival(recorded(tiny_ledger, FastOracle(tiny_task)), name, seed=1).valuation.values
    assert fast == pytest.approx(first, abs=1e-4 * np.abs(first).max())


@pytest.mark.parametrize("name", RIVALS)
def test_who_was_never_heard_has_no_value(tiny_ledger, tiny_task, name):
    made = value_by_rival(recorded(tiny_ledger.without(["2"]), LoopOracle(tiny_task)), name)
    assert np.isnan(made.valuation.values).tolist() == [False, False, True, False, False]


def test_retraining_the_whole_gives_the_recorded_end(federation, tiny_ledger, tiny_task):
    """Values share out what the federation gained in all; copies are worth the same."""
    made = value_by_rival(federation, "retraining")
    gained = loss(tiny_task, tiny_ledger.open_round(0).global_model) - loss(tiny_task, tiny_ledger.final_model())
    assert made.valuation.values.sum() == pytest.approx(float(gained), abs=1e-6)
    assert made.n_evaluations == 31


def test_more_clients_than_can_be_retrained_are_refused(federation, monkeypatch):
    monkeypatch.setattr("fedworth.valuation.rivals.rivals.MOST_RETRAINED", 4)
    with pytest.raises(TooManyError, match="at most 4 clients are retrained"):
        value_by_rival(federation, "retraining")


def test_an_unknown_rival_is_named(federation):
    with pytest.raises(FedworthError, match="gtg"):
        value_by_rival(federation, "shapley")  # type: ignore[arg-type]
