"""Copies of modules; tasks of scikit-learn's linear models and of user functions."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification, make_regression
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.svm import LinearSVC
from torch import nn
from torch.nn.utils import prune

from fedworth.errors import UsageError, UtilityError
from fedworth.games.federation import RecordedFederation
from fedworth.games.observe import utility_matrix
from fedworth.ledger.ledger import Ledger, Round
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle, quality
from fedworth.task.modules import copied
from fedworth.task.task import Task
from tests.support.tasks import Wide
from tests.support.zoo import all_mixtures, round_of


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "make",
    [lambda layer: layer, nn.utils.weight_norm, lambda layer: prune.random_unstructured(layer, "weight", 0.5)],
)
def test_a_copy_gives_the_same_learns_and_leaves_the_module_alone(make):
    module, inputs = nn.Sequential(make(nn.Linear(4, 3))), torch.randn(5, 4)
    before, other = module(inputs).detach(), copied(module)
    assert torch.equal(other(inputs), before)
    other(inputs).sum().backward()
    with torch.no_grad():
        for parameter in other.parameters():
            assert parameter.grad is not None
            parameter.add_(1)
    assert not torch.equal(other(inputs), before)
    assert torch.equal(module(inputs), before)


X2, Y2 = make_classification(60, 5, random_state=0)
X3, Y3 = make_classification(60, 5, n_informative=4, n_redundant=0, n_classes=3, random_state=0)
XR, YR = make_regression(60, 5, random_state=0)
WANTED = all_mixtures("samples")


def margins(y, z):
    signs = np.where(np.arange(z.shape[1]) == y[:, None], 1, -1) if z.ndim == 2 else np.where(y == 1, 1, -1)
    return signs * z


ESTIMATORS = {
    "binary": (LogisticRegression(), X2, Y2, "binary", lambda e: log_loss(Y2, e.predict_proba(X2))),
    "named": (
        LogisticRegression(),
        X2,
        np.where(Y2 == 1, "yes", "no"),
        "binary",
        lambda e: log_loss(np.where(Y2 == 1, "yes", "no"), e.predict_proba(X2)),
    ),
    "classes": (LogisticRegression(), X3, Y3, "cross-entropy", lambda e: log_loss(Y3, e.predict_proba(X3))),
    "sgd": (
        SGDClassifier(loss="log_loss", random_state=0),
        X3,
        Y3,
        "one-vs-rest",
        lambda e: np.log1p(np.exp(-margins(Y3, e.decision_function(X3)))).sum(1).mean(),
    ),
    "svm": (
        SGDClassifier(random_state=0),
        X2,
        Y2,
        "hinge-binary",
        lambda e: np.maximum(0, 1 - margins(Y2, e.decision_function(X2))).mean(),
    ),
    "svc": (
        LinearSVC(random_state=0),
        X3,
        Y3,
        "hinge",
        lambda e: np.maximum(0, 1 - margins(Y3, e.decision_function(X3))).sum(1).mean(),
    ),
    "regression": (LinearRegression(), XR, YR, "squared-error", lambda e: mean_squared_error(YR, e.predict(XR))),
    "ridge": (
        Ridge(fit_intercept=False),
        XR,
        np.stack([YR, -YR], 1),
        "squared-error",
        lambda e: mean_squared_error(np.stack([YR, -YR], 1), e.predict(XR)),
    ),
    "sgd regression": (
        SGDRegressor(random_state=0),
        XR,
        YR,
        "squared-error",
        lambda e: mean_squared_error(YR, e.predict(XR)),
    ),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_model_loses_what_scikit_learn_says_and_both_oracles_agree(name):
    estimator, x, y, loss, expected = ESTIMATORS[name]
    task = Task.from_estimator(estimator.fit(x, y), x, y)
    assert task.judged_by.criterion.name == loss
    assert -quality(task, [task.criterion("loss")], task.state).sum() == pytest.approx(expected(estimator), rel=1e-6)
    round_ = round_of(task.module)
    exact = Wide(task).utilities(round_, WANTED, "loss")
    assert np.ptp(exact) > 0
    for oracle in (LoopOracle(task), FastOracle(task)):
        assert oracle.utilities(round_, WANTED).sum(axis=1) == pytest.approx(exact, rel=1e-6, abs=1e-9)


def test_a_ledger_of_lists_of_arrays_names_them_by_number():
    estimator = LogisticRegression().fit(X2, Y2)
    task = Task.from_estimator(estimator, X2, Y2, names=("0", "1"))
    model = {"0": torch.from_numpy(estimator.coef_), "1": torch.from_numpy(estimator.intercept_)}
    round_ = Round(round_of(task.module).entry, {n: t * 0 for n, t in model.items()}, {0: model}, {})
    found = LoopOracle(task).utilities(round_, all_mixtures("samples", 1)).sum(axis=1)
    assert found[1] == pytest.approx(np.log(2) - log_loss(Y2, estimator.predict_proba(X2)))


@pytest.mark.parametrize(
    ("estimator", "y", "message"),
    [
        (RandomForestClassifier(2), Y2, "RandomForestClassifier has no coef_: .* such as trees, cannot be averaged"),
        (LogisticRegression(), None, "LogisticRegression has no coef_: if it is a linear model, fit it, or set"),
        (SGDClassifier(loss="modified_huber"), Y2, "name the loss to judge by"),
        (LogisticRegression(), Y2 + 1, r"labels \[2\] in the test set are none of the estimator's classes"),
    ],
)
def test_what_has_no_coefficients_or_no_known_loss_is_refused(estimator, y, message):
    fitted = estimator if y is None else estimator.fit(X2, Y2)
    with pytest.raises(UsageError, match=message):
        Task.from_estimator(fitted, X2, Y2 if y is None else y)


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

    writer = LedgerWriter.create(tmp_path / "l", tuple("abc"), aggregation="uniform")
    writer.record_round(model(0), {name: Answer(model(k + 1), 1) for k, name in enumerate("abc")})
    mean = {n: torch.stack([model(k + 1)[n] for k in range(3)]).mean(0) for n in names}
    writer.record_round(mean, {name: Answer(model(k + 5), 1) for k, name in enumerate("ab")})
    writer.release()
    task = Task.from_utility(closeness, weights(9)) if request.param == "list" else Task.from_utility(by_name, model(9))
    return Ledger.open(tmp_path / "l"), task


@pytest.mark.parametrize("oracle", [LoopOracle, FastOracle])
def test_coalitions_are_worth_what_the_function_says_of_their_mean(ledger_and_task, oracle):
    ledger, task = ledger_and_task
    matrix = utility_matrix(RecordedFederation(ledger, oracle(task), "uniform"), None)
    before = closeness(weights(0))
    for members in ([0], [1, 2], [0, 1, 2]):
        mean = [np.mean([weights(k + 1)[place] for k in members], axis=0) for place in range(2)]
        row = np.isin(np.arange(3), members)[None]
        assert matrix.row(0, row).sum() == pytest.approx(closeness(mean) - before, abs=1e-12)


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
