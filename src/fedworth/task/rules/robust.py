"""Servers that do not trust everyone: the median, the trimmed mean, Krum and multi-Krum.

    median         of every number on its own (Yin et al. 2018)
    trimmed mean   of every number, without the ⌊β n⌋ least and the ⌊β n⌋ greatest
    Krum           the model with the least sum of squared distances to its n − f − 2 nearest (Blanchard et al. 2017)
    multi-Krum     the weighted mean of the `n_selected` models that score best in that

They keep nothing from round to round. For a coalition of S, n is |S|. Weights count in multi-Krum's mean alone.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import UsageError
from fedworth.task.rules.rule import Arrays, State, weighted_mean


@dataclass(frozen=True)
class Median:
    """FedMedian."""

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        """The median of every number."""
        return {name: np.median(_stacked(models, name), axis=0) for name in global_model}, state

    def document(self) -> dict[str, Any]:
        """The rule as JSON."""
        return {"name": "median"}


@dataclass(frozen=True)
class TrimmedMean:
    """FedTrimmedAvg: `beta` is the share that is cut off at either end."""

    beta: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 0.5:
            raise UsageError(f"trimmed mean: beta is {self.beta}, expected 0 or more and below 0.5")

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        """The mean of what is left of every number."""
        n_cut = int(self.beta * len(models))
        kept = slice(n_cut, len(models) - n_cut)
        return {name: np.mean(np.sort(_stacked(models, name), axis=0)[kept], axis=0) for name in global_model}, state

    def document(self) -> dict[str, Any]:
        """The rule as JSON."""
        return {"name": "trimmed-mean", **asdict(self)}


@dataclass(frozen=True)
class Krum:
    """Krum, or with `n_selected` above 1 multi-Krum; `n_malicious` is f."""

    n_malicious: int = 0
    n_selected: int = 1

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        """The weighted mean of the models that score best."""
        chosen = self.selected(models)
        return weighted_mean([models[k] for k in chosen], [weights[k] for k in chosen]), state

    def selected(self, models: Sequence[Arrays]) -> list[int]:
        """Which models are closest to their neighbours, the best first."""
        distances = _squared_distances(models)  # (n_models, n_models)
        n_near = max(1, len(models) - self.n_malicious - 2)
        scores = [float(np.sum(row[np.argsort(row)[1 : n_near + 1]])) for row in distances]
        return [int(k) for k in np.argsort(scores)[: self.n_selected]]

    def document(self) -> dict[str, Any]:
        """The rule as JSON."""
        return {"name": "krum", **asdict(self)}


def _stacked(models: Sequence[Arrays], name: str) -> NDArray[Any]:
    return np.stack([model[name] for model in models])  # (n_models, …)


def _squared_distances(models: Sequence[Arrays]) -> NDArray[np.float64]:
    """(n_models, n_models), each difference taken before it is squared, so that near models stay apart."""
    flat = np.stack([np.concatenate([np.ravel(array) for array in model.values()]) for model in models])
    flat = flat.astype(np.float64)  # (n_models, n_numbers)
    return np.array([np.sum((flat - row) ** 2, axis=1) for row in flat])
