"""Federations of gradient-boosted trees whose server appends the clients' trees: Flower's FedXgbBagging.

Trees cannot be averaged, but their margins add up: a sample's output is the base score plus a number from each tree. So
a model in the ledger is not a set of trees, but its margins on the server's test samples, and a client's answer is the
global model's margins plus those of the client's own trees. Each tree is evaluated once, when it is recorded, and every
coalition's outputs are a sum (`task.rules.Sum`). Values are those of replaying the appended trees.

FedXgbBagging appends the first boosting round of each reply; the first reply of all becomes the model as it is.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from fedworth.errors import ModelError, UsageError
from fedworth.task.losses import UserFunction
from fedworth.task.rules import Sum
from fedworth.task.task import Task

MARGINS = "margins"


class Margins(nn.Module):
    """Outputs that were computed already: a number for each test sample, which are the inputs."""

    def __init__(self, n_samples: int) -> None:
        super().__init__()
        self.margins = nn.Parameter(torch.zeros(n_samples, dtype=torch.float64), requires_grad=False)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """(n_samples,): the margins of these samples."""
        return self.margins[samples]


class Trees:
    """The test set of a federation of XGBoost's trees: reads boosters, and makes the task.

    Args:
        inputs: The test set's rows, as for `xgboost.DMatrix`.
        labels: The test set's labels: 0 or 1, or numbers of a regression.
        loss: `binary` for logistic objectives, `squared-error` for regression, or a function of margins and labels.

    Example:
        trees = fedworth.Trees(test_inputs, test_labels)  # for fedworth.flower.record(…, trees=trees)
        task = trees.task()
    """

    def __init__(self, inputs: Any, labels: Any, *, loss: str | UserFunction = "binary") -> None:
        self.inputs, self.labels, self.loss = inputs, torch.as_tensor(np.asarray(labels), dtype=torch.float64), loss

    def task(self, **more: Any) -> Task:
        """What the ledger is valued on.

        Args:
            **more: The other arguments of `Task`, such as `groups`.

        Returns:
            The task.

        Example:
            task = fedworth.Trees(test_inputs, test_labels).task()
        """
        n = len(self.labels)
        return Task(Margins(n), torch.arange(n), self.labels, Sum(), loss=self.loss, **more)

    def start(self, sent: Mapping[str, Any], first: Mapping[str, Any] | None) -> dict[str, Any]:
        """The global model's margins; before the first tree, those of the base score that the first reply brings."""
        trees = _bytes_of(sent)
        if not trees and first is None:
            raise ModelError("no trees were sent, and nobody answered, so that the base score is not known")
        of_trees, base = self._evaluate(trees or _bytes_of(first or {}))
        return {MARGINS: (of_trees if trees else np.zeros(len(self.labels))) + base}

    def answer(self, start: Mapping[str, Any], reply: Mapping[str, Any], *, is_whole: bool) -> dict[str, Any]:
        """The margins of the global model with the trees of a reply that the server appends."""
        of_trees, _ = self._evaluate(_bytes_of(reply), n_rounds=None if is_whole else 1)
        return {MARGINS: start[MARGINS] + of_trees}

    def _evaluate(self, trees: bytes, n_rounds: int | None = None) -> tuple[Any, float]:
        """((n_samples,) what the trees add to each sample's margin, the base score's margin)."""
        try:
            import xgboost
        except ImportError as error:
            raise UsageError(f"trees: {error}; install XGBoost beside fedworth: pip install xgboost") from None
        booster = xgboost.Booster()
        booster.load_model(bytearray(trees))
        n = len(self.labels)
        bare, full = xgboost.DMatrix(self.inputs, base_margin=np.zeros(n)), xgboost.DMatrix(self.inputs)
        of_all = booster.predict(bare, output_margin=True).astype(np.float64)
        if of_all.shape != (n,):
            raise ModelError(f"margins of shape {of_all.shape}, expected one for each of {n} samples: no multi-class")
        base = float(np.mean(booster.predict(full, output_margin=True).astype(np.float64) - of_all))
        if n_rounds is None or booster.num_boosted_rounds() <= n_rounds:
            return of_all, base
        return booster[:n_rounds].predict(bare, output_margin=True).astype(np.float64), base


def _bytes_of(arrays: Mapping[str, Any]) -> bytes:
    """The booster in a message: one array of bytes."""
    found = list(arrays.values())
    if len(found) != 1 or np.asarray(found[0]).dtype != np.uint8:
        raise ModelError(f"{len(found)} arrays, expected one of bytes, as FedXgbBagging sends trees")
    return np.asarray(found[0]).tobytes()
