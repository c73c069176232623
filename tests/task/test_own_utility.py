"""A utility of one's own: lists of arrays as Keras and JAX have them, dictionaries of tensors, any function."""

import numpy as np
import pytest
import torch

from fedworth.errors import UsageError, UtilityError
from fedworth.games.observe import observe
from fedworth.ledger.ledger import open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.oracle.cache import utility_cache
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.task.task import Task

rng = np.random.default_rng(0)
ROWS, TRUE = rng.normal(size=(30, 4)), rng.normal(size=4)


def closeness(weights):
    """Minus the squared error of a linear model in plain NumPy."""
    coef, bias = weights
    return -float(np.mean((ROWS @ coef + bias - ROWS @ TRUE) ** 2))


def by_name(model):
    return closeness([model["dense.kernel"].numpy(), model["dense.bias"].numpy()])


def weights(seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=4), rng.normal(size=1)]


@pytest.fixture(params=["list", "names"])
def ledger_and_task(request, tmp_path):
    names = ("0", "1") if request.param == "list" else ("dense.kernel", "dense.bias")

    def model(seed):
        return {name: torch.from_numpy(array) for name, array in zip(names, weights(seed), strict=True)}

    writer = create_ledger(tmp_path / "l", tuple("abc"), aggregation="uniform")
    writer.record_round(model(0), {name: Answer(model(k + 1), 1) for k, name in enumerate("abc")})
    mean = {n: torch.stack([model(k + 1)[n] for k in range(3)]).mean(0) for n in names}
    writer.record_round(mean, {name: Answer(model(k + 5), 1) for k, name in enumerate("ab")})
    writer.release()
    task = Task.from_utility(closeness, weights(9)) if request.param == "list" else Task.from_utility(by_name, model(9))
    return open_ledger(tmp_path / "l"), task


@pytest.mark.parametrize("oracle", [LoopOracle, FastOracle])
def test_coalitions_are_worth_what_the_function_says_of_their_mean(ledger_and_task, oracle):
    ledger, task = ledger_and_task
    matrix = observe(ledger, oracle(task))
    before = closeness(weights(0))
    for members in ([0], [1, 2], [0, 1, 2]):
        mean = [np.mean([weights(k + 1)[place] for k in members], axis=0) for place in range(2)]
        row = np.isin(np.arange(3), members)[None]
        assert matrix.row(0, row)[0] == pytest.approx(closeness(mean) - before, abs=1e-12)


def test_it_is_measured_plainly_and_said_to_be(ledger_and_task):
    ledger, task = ledger_and_task
    oracle = FastOracle(task)
    observe(ledger, oracle, cache=utility_cache(ledger, oracle))
    assert oracle.describe() == "plain: its utility is a function of your own"
    again = observe(ledger, oracle, cache=utility_cache(ledger, oracle))
    assert again.utilities.tolist() == observe(ledger, oracle).utilities.tolist()


def test_another_function_is_another_task():
    def halved(weights):
        return closeness(weights) / 2

    assert Task.from_utility(closeness, weights(0)).fingerprint != Task.from_utility(halved, weights(0)).fingerprint
    assert Task.from_utility(closeness, weights(0)).fingerprint == Task.from_utility(closeness, weights(5)).fingerprint


def test_what_the_function_does_to_its_arrays_does_not_last():
    def spoils(weights):
        weights[0][:] = 0
        return closeness(weights)

    task = Task.from_utility(spoils, weights(0))
    assert all(torch.equal(a, b) for a, b in zip(task.state.values(), map(torch.from_numpy, weights(0)), strict=True))
    task.outputs(task.state)
    assert torch.equal(task.state["0"], torch.from_numpy(weights(0)[0]))


def test_nan_is_no_utility_and_nothing_no_model():
    task = Task.from_utility(lambda _: float("nan"), weights(0))
    with pytest.raises(UtilityError, match="gave NaN for a model"):
        task.outputs(task.state)
    with pytest.raises(UsageError, match="like: an empty model"):
        Task.from_utility(closeness, [])
