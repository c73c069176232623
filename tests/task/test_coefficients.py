"""Linear models of scikit-learn, valued from their coefficients: each judged as scikit-learn judges it."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification, make_regression
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.svm import LinearSVC

from fedworth.errors import UsageError
from fedworth.ledger.ledger import Round
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle, quality
from fedworth.task.task import Task
from tests.support.tasks import Wide
from tests.support.zoo import all_mixtures, round_of

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
    assert -quality(task, task.criterion("loss"), task.state) == pytest.approx(expected(estimator), rel=1e-6)
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
