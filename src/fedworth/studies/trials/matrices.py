"""What readings have in common: singular values, how far a completion is off, and the accuracies of a ledger."""

from collections.abc import Mapping

import numpy as np
import torch

from fedworth.arrays import Utilities
from fedworth.completion.completion import Completion
from fedworth.games.matrix import UtilityMatrix
from fedworth.ledger.ledger import Ledger
from fedworth.task.task import Task

N_SINGULAR, N_BEST = 20, 10


def spectral(truth: UtilityMatrix) -> dict[str, list[float]]:
    """The singular values of the full matrix, relative to the largest, and the best errors of ranks 1 to 10."""
    singular = np.linalg.svd(truth.dense(), compute_uv=False)  # (n_rounds,)
    left = 1 - np.cumsum(singular**2) / (singular**2).sum()
    return {
        "singular": (singular / singular[0])[:N_SINGULAR].tolist(),
        "best_errors": np.sqrt(np.maximum(left, 0))[:N_BEST].tolist(),
    }


def matrix_error(truth: UtilityMatrix, completion: Completion) -> float:
    """‖U − X‖ / ‖U‖ over all cells; the empty coalition's are 0 on both sides."""
    columns = truth.coalitions.any(axis=1)
    estimates = completion.estimates(truth.coalitions[columns])  # (n_rounds, n_coalitions)
    cells: Utilities = truth.dense()[:, columns]
    return float(np.linalg.norm(cells - estimates) / np.linalg.norm(cells))


def accuracies(ledger: Ledger, task: Task) -> dict[str, list[float]]:
    """The accuracy of the global model on the test set after every round."""
    models = [ledger.open_round(t).global_model for t in range(1, ledger.n_rounds)]
    return {"accuracy": [_accuracy(task, model) for model in [*models, ledger.final_model()]]}


def _accuracy(task: Task, model: Mapping[str, torch.Tensor]) -> float:
    task.module.load_state_dict(dict(model))
    with torch.inference_mode():
        parts = [task.module(inputs).argmax(1) for inputs in torch.split(task.inputs, 500)]
    return float((torch.cat(parts) == task.labels).double().mean())
