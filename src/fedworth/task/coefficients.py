"""Tasks of linear models that exchange coefficients, as scikit-learn's: `coef_` and `intercept_`.

In: an estimator, or anything with those two, and a test set. Out: a task whose module has two tensors in the shapes
that scikit-learn gives them, under the names that the ledger has, and the loss that the estimator minimises:

    LogisticRegression, two classes      binary            one row of coefficients
    LogisticRegression, more             cross-entropy
    SGDClassifier(loss="log_loss")       binary, or one-vs-rest
    SGDClassifier, LinearSVC, hinge      hinge-binary, or hinge
    regressors                           squared-error

Trees have no coefficients, and no mean of two of them is a tree: they are refused.
"""

from typing import Any

import numpy as np
import torch
from torch import nn

from fedworth.errors import UsageError
from fedworth.names import LossName
from fedworth.task.losses.named import OwnFunction
from fedworth.task.rules.rule import Rule
from fedworth.task.task import Task

NO_TREES = (
    "trees are not averaged: a coalition's model would have to be the mean of its members' models, and the mean of two "
    "trees is no tree; such a federation can be valued from utilities that you measure (fedworth value FILE.npz)"
)
TREES = ("xgb", "booster", "forest", "tree", "boosting", "lgbm", "lightgbm", "catboost")


class Linear(nn.Module):
    """x coefᵀ + intercept, with coefficients of one row or several, or none as scikit-learn's regressors have."""

    def __init__(self, coef: torch.Tensor, intercept: torch.Tensor | None, names: tuple[str, str]) -> None:
        super().__init__()
        self.names = names
        self.register_parameter(names[0], nn.Parameter(coef, requires_grad=False))
        if intercept is not None:
            self.register_parameter(names[1], nn.Parameter(intercept, requires_grad=False))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(n_samples, n_outputs), or (n_samples,) for coefficients without rows."""
        coef: torch.Tensor = getattr(self, self.names[0])
        outputs: torch.Tensor = rows @ (coef.t() if coef.ndim == 2 else coef) + getattr(self, self.names[1], 0.0)
        return outputs


def task_from_estimator(
    estimator: Any,
    inputs: Any,
    labels: Any,
    *,
    names: tuple[str, str] = ("coef_", "intercept_"),
    loss: LossName | OwnFunction | None = None,
    rule: Rule | None = None,
) -> Task:
    """The task of a linear model of scikit-learn.

    Args:
        estimator: A fitted linear classifier or regressor of scikit-learn; any weights will do, their shapes count.
        inputs: The test set's rows.
        labels: Its labels, as the estimator knows them.
        names: What the ledger calls coefficients and intercept: `("0", "1")` where a list of arrays was sent.
        loss: The estimator's own unless named.
        rule: What the server makes of its clients' models, if it is not the weighted mean.

    Returns:
        The task.

    Example:
        task = fedworth.task_from_estimator(fitted, test_inputs, test_labels)
    """
    kind = type(estimator).__name__
    if any(tree in kind.lower() for tree in TREES):
        raise UsageError(f"{kind}: {NO_TREES}")
    if not hasattr(estimator, "coef_"):
        raise UsageError(
            f"{kind} has no coef_: fit it, or set coef_ and intercept_ to arrays of the federation's shapes"
        )
    coef = torch.as_tensor(np.asarray(estimator.coef_))
    intercept = _intercept(estimator, coef)
    classes = getattr(estimator, "classes_", None)
    chosen = loss or _loss(estimator, kind, 0 if classes is None else len(classes))
    module = Linear(coef.clone(), intercept, names)
    rows = torch.as_tensor(np.asarray(inputs)).to(coef.dtype)
    return Task(module, rows, _labels(labels, classes, chosen, coef.dtype, kind), rule, loss=chosen)


def _intercept(estimator: Any, coef: torch.Tensor) -> torch.Tensor | None:
    """None if there is none: `fit_intercept=False` leaves a bare 0."""
    if not getattr(estimator, "fit_intercept", True):
        return None
    return torch.as_tensor(np.asarray(estimator.intercept_)).to(coef.dtype).clone()


def _loss(estimator: Any, kind: str, n_classes: int) -> LossName:
    """What the estimator minimises."""
    if n_classes == 0:
        return "squared-error"
    is_multinomial = kind in ("LogisticRegression", "LogisticRegressionCV")
    own = "log_loss" if is_multinomial else str(getattr(estimator, "loss", ""))
    if own == "log_loss":
        return "binary" if n_classes == 2 else "cross-entropy" if is_multinomial else "one-vs-rest"
    if own in ("hinge", "squared_hinge"):
        return "hinge-binary" if n_classes == 2 else "hinge"
    raise UsageError(f"{kind}(loss={own!r}): name the loss to judge by: loss='cross-entropy', 'binary', 'hinge', …")


def _labels(labels: Any, classes: Any, loss: LossName | OwnFunction, dtype: torch.dtype, kind: str) -> torch.Tensor:
    found = np.asarray(labels)
    if classes is None:
        return torch.as_tensor(found).to(dtype)
    unknown = sorted(set(found.tolist()) - set(np.asarray(classes).tolist()), key=str)
    if unknown:
        raise UsageError(f"{kind}: labels {unknown[:5]} in the test set are none of the estimator's classes")
    places = torch.as_tensor(np.searchsorted(np.asarray(classes), found)).to(torch.int64)
    return places.to(dtype) if loss in ("binary", "hinge-binary", "pairwise") else places
