"""Simulated federations, their truth, and the paper's ComFedSV with any factors."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fedworth
from fedworth import FactorSettings, Federation, Ledger, SimulationSettings, Task, UtilityMatrix

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def simulated(settings: SimulationSettings, scratch: Path, data: Path | None, **options: Any) -> tuple[Ledger, Task]:
    """A federation that was just trained and recorded, and its task."""
    ledger = fedworth.simulate(settings, scratch / "ledger", data_folder=data, **options)
    return ledger, fedworth.task_of(ledger, data_folder=data)


def federation(
    ledger: Ledger, task: Task, *, oracle: Any = None, sampled: bool | None = None, **settings: Any
) -> Federation:
    """The federation for valuation, on one thread, without utilities of earlier runs."""
    work = fedworth.WorkSettings(n_threads=1, cache=False)
    return Federation(ledger, task, fedworth.ValuationSettings(**settings), work=work, oracle=oracle, sampled=sampled)


def accuracies(ledger: Ledger, task: Task) -> list[float]:
    """The accuracy of the global model on the test set after every round."""
    models = [ledger.open_round(t).global_model for t in range(1, ledger.n_rounds)]
    return [_accuracy(task, model) for model in [*models, ledger.final_model()]]


def _accuracy(task: Task, model: Mapping[str, torch.Tensor]) -> float:
    task.module.load_state_dict(dict(model))
    with torch.inference_mode():
        parts = [task.module(inputs).argmax(1) for inputs in torch.split(task.inputs, 500)]
    return float((torch.cat(parts) == task.labels).double().mean())


def all_coalitions(n: int) -> Flags:
    """(2^n, n): the number of a coalition has a bit for each member."""
    return np.asarray((np.arange(2**n)[:, None] >> np.arange(n)) % 2 == 1)


class Truth:
    """The game of all clients in every round, on the models that absent clients would have sent; for few clients."""

    def __init__(self, of: Federation) -> None:
        self.coalitions = all_coalitions(len(of.clients))
        self.games = [of.recorded.true_game(t) for t in range(len(of.participants))]

    @cached_property
    def utilities(self) -> Floats:
        """(n_rounds, 2^n): the true utility matrix."""
        return self._of(self.games)

    @cached_property
    def values(self) -> Floats:
        """(n,): the true values."""
        return shapley_sum(self.games)

    @cached_property
    def singular_values(self) -> Floats:
        """The singular values of the true utility matrix."""
        return np.asarray(np.linalg.svd(self.utilities, compute_uv=False))

    def error_of(self, completion: Any) -> float:
        """‖U − Û‖ / ‖U‖ of a completion."""
        estimates = self._of([completion.game(t) for t in range(len(self.games))])
        return float(np.linalg.norm(self.utilities - estimates) / np.linalg.norm(self.utilities))

    def _of(self, games: Any) -> Floats:
        return np.stack([game.utilities(self.coalitions).sum(axis=1) for game in games])


def shapley_sum(games: Any) -> Floats:
    """The Shapley values of several games of the same few clients, added up."""
    rng = np.random.default_rng(0)  # not used for few clients
    return np.asarray(sum(fedworth.shapley(game, rng).totals for game in games))


def comfedsv(matrix: UtilityMatrix, factors: FactorSettings) -> tuple[Floats, Any]:
    """The paper's values with these factors, and the completion. Values are linear, so the rounds are added first."""
    completion = fedworth.complete(matrix, factors)
    whole = replace(completion, round_factors=completion.round_factors.sum(axis=0, keepdims=True)).game(0)
    if matrix.permutations is None:
        return shapley_sum([whole]), completion
    rows = _all_prefixes(matrix.permutations)  # (n_permutations, n + 1, n)
    utilities = whole.utilities(rows.reshape(-1, rows.shape[2])).sum(axis=1).reshape(rows.shape[:2])
    values = np.zeros(rows.shape[2])
    np.add.at(values, matrix.permutations, np.diff(utilities, axis=1))
    return values / len(rows), completion


def _all_prefixes(permutations: NDArray[np.int64]) -> Flags:
    """(n_permutations, n + 1, n): the prefixes of each permutation of n clients, the empty one first."""
    places = np.argsort(permutations, axis=1)  # (n_permutations, n): where each client stands
    return places[:, None, :] < np.arange(permutations.shape[1] + 1)[:, None]


def prefixes(permutations: NDArray[np.int64]) -> Flags:
    """(n_prefixes, n): all different prefixes of permutations, the empty one first."""
    return np.unique(_all_prefixes(permutations).reshape(-1, permutations.shape[1]), axis=0)


def random_permutations(n_clients: int, n_permutations: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Permutations that are drawn one by one."""
    return rng.permuted(np.tile(np.arange(n_clients), (n_permutations, 1)), axis=1)


def measured(of: Federation, permutations: NDArray[np.int64]) -> UtilityMatrix:
    """The utility matrix of Algorithm 1 with these permutations."""
    coalitions, rounds, columns, utilities = prefixes(permutations), [], [], []
    for t, row in enumerate(of.participants):
        inside = np.flatnonzero(~(coalitions & ~row).any(axis=1))
        rounds.append(np.full(len(inside), t))
        columns.append(inside)
        game = of.game(t)
        utilities.append(game.utilities(coalitions[inside][:, game.clients]))
    cells = (np.concatenate(rounds), np.concatenate(columns), np.concatenate(utilities))
    return UtilityMatrix(of.clients, of.participants, coalitions, *cells, permutations)
