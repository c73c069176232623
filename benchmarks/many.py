"""One round of many clients: how far values are from the truth, by permutations, by coalitions and by the ensemble of
outputs; prints a Markdown table.

    python benchmarks/many.py [--data FOLDER] [--clients 100] [--seeds 4] [name …]

Every client's model is given. Truth: the ensemble with 64 passes, mean of two. Errors are those of
centred values over the norm of centred true values. `at 1 s`: the error that as many draws as take one CPU second would
have, since errors fall as the root of the time. `held`: how often the true value lies within 1.96 standard errors.
Jaccard: of the least valued fifth with the clients whose labels were flipped. Rows with a bar that miss it are named at
the end, and the exit code is 1. MNIST is looked for in --data, or $FEDWORTH_DATA.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bars import Bars
from numpy.typing import NDArray

from fedworth.games.ensemble import ensemble_shapley
from fedworth.games.game import Game, ModelGame, Shares
from fedworth.games.permutations import draw_permutations, permutation_shapley
from fedworth.games.sampled import sampled_shapley
from fedworth.names import Measure, Weighting
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.weighting import round_weights
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of

MLP: dict[str, Any] = {
    "dataset": "mnist",
    "model": "mlp",
    "hidden": (64,),
    "rate": 0.3,
    "n_steps": 10,
    "train_limit": 10_000,
}
SYNTHETIC: dict[str, Any] = {
    "dataset": "synthetic",
    "partition": "natural",
    "model": "logistic",
    "rate": 0.03,
    "n_steps": 10,
}


@dataclass(frozen=True)
class Case:
    """A federation, how its coalitions are judged, and the largest error over the spread."""

    settings: dict[str, Any]
    at_most: float
    measure: Measure = "loss"
    weighting: Weighting = "uniform"


CASES = {
    "flipped labels": Case({**MLP, "partition": "iid"}, 0.03),
    "two classes each": Case(MLP, 0.2),
    "synthetic": Case(SYNTHETIC, 0.03),
    "two classes each, accuracy": Case(MLP, 1.0, measure="accuracy"),
    "synthetic, fixed weights": Case(SYNTHETIC, 0.15, weighting="fixed"),
}
ROUND = 1
TRUTH_PASSES = 64

Estimator = Callable[[Game, np.random.Generator], Shares]


def game_of(name: str, n_clients: int, folder: Path, data: Path | None) -> ModelGame:
    """The second round of a federation, with everyone's models."""
    case, n_flipped = CASES[name], n_clients // 5 if name == "flipped labels" else 0
    settings = SimulationSettings(
        n_clients=n_clients,
        n_participants=max(1, 3 * n_clients // 10),
        n_rounds=ROUND + 1,
        batch_size=64,
        copies=(),
        flip_shares=(0.3,) * n_flipped + (0.0,) * (n_clients - n_flipped) if n_flipped else (),
        test_limit=1000,
        **case.settings,
    )
    ledger = simulate(settings, folder / "ledger", data_folder=data)
    oracle = FastOracle(task_of(ledger, data_folder=data), case.measure, n_threads=1)
    weights = np.full(n_clients, 1 / n_clients)  # in every weighting here all clients count the same
    if case.weighting != "fixed":
        weights = round_weights(ledger, ROUND, case.weighting)
    round_ = ledger.open_round(ROUND, with_apart=True)
    return ModelGame(oracle, round_, np.arange(n_clients), weights, case.weighting)


def by_permutations(game: Game, rng: np.random.Generator, *, is_balanced: bool) -> Shares:
    """Ten permutations, whose prefixes take ten evaluations a client."""
    permutations = draw_permutations(game.clients, 10, rng=rng)
    return permutation_shapley(game, permutations if is_balanced else rng.permuted(permutations, axis=1))


def by_ensemble(n_passes: int) -> Estimator:
    """The ensemble of outputs, corrected by so many passes."""

    def estimator(game: Game, rng: np.random.Generator) -> Shares:
        assert isinstance(game, ModelGame)
        return ensemble_shapley(game, rng, lambda found: found.n_passes >= n_passes).shapley

    return estimator


ESTIMATORS: dict[str, Estimator] = {
    "random permutations": lambda game, rng: by_permutations(game, rng, is_balanced=False),
    "balanced permutations": lambda game, rng: by_permutations(game, rng, is_balanced=True),
    "coalitions": sampled_shapley,
    "ensemble, 2 passes": by_ensemble(2),
    "ensemble, 8 passes": by_ensemble(8),
    "ensemble, 32 passes": by_ensemble(32),
}


def truth_of(game: Game) -> tuple[NDArray[np.float64], float]:
    """The values from many evaluations, and how far two such runs are apart, relative to the spread."""
    runs = [by_ensemble(TRUTH_PASSES)(game, np.random.default_rng([9, k])).totals for k in (0, 1)]
    return np.mean(runs, axis=0), relative(runs[0], runs[1]) / 2


def relative(found: NDArray[np.float64], true: NDArray[np.float64]) -> float:
    """How far centred values are from centred true ones, relative to these."""
    off, spread = found - true, true - true.mean()
    return float(np.linalg.norm(off - off.mean()) / np.linalg.norm(spread))


def jaccard(values: NDArray[np.float64]) -> float:
    """Of the least valued fifth with the first fifth of the clients."""
    n = len(values) // 5
    n_found = int((np.argsort(values, kind="stable")[:n] < n).sum())
    return n_found / (2 * n - n_found)


def measure(name: str, game: ModelGame, n_seeds: int, bars: Bars) -> None:
    """The rows of one round."""
    true, apart = truth_of(game)
    shown = f"{jaccard(true):.2f}" if name == "flipped labels" else ""
    print(f"| {name} | truth | {apart:.4f} | | {shown} | | | |", flush=True)
    for label, estimator in ESTIMATORS.items():
        started = time.process_time()
        fresh = [replace(game) for _ in range(n_seeds)]  # each measures its own coalitions
        found = [estimator(one, np.random.default_rng(seed)) for seed, one in enumerate(fresh)]
        seconds = (time.process_time() - started) / n_seeds
        error = float(np.sqrt(np.mean([relative(one.totals, true) ** 2 for one in found])))
        held = np.mean([np.abs(one.totals - true) <= 1.96 * one.standard_errors for one in found])
        noisy = f"{np.mean([jaccard(one.totals) for one in found]):.2f}" if name == "flipped labels" else ""
        print(
            f"| {name} | {label} | {error:.3f} | {held:.0%} | {noisy} | "
            f"{np.mean([one.n_evaluations for one in found]):.0f} | {seconds:.2f} | {error * np.sqrt(seconds):.3f} |",
            flush=True,
        )
    bars.at_most(f"{name}, error of the sampled estimate over the spread", error, CASES[name].at_most)


def main(names: list[str], n_clients: int, n_seeds: int, data: Path | None) -> None:
    torch.set_num_threads(1)
    print("| round | estimate | error / spread | held | Jaccard | evaluations | CPU s | at 1 s |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    bars = Bars()
    for name in CASES:
        if not names or any(wanted in name for wanted in names):
            with tempfile.TemporaryDirectory() as folder:
                measure(name, game_of(name, n_clients, Path(folder), data), n_seeds, bars)
    bars.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=sys.modules[__name__].__doc__)
    parser.add_argument("names", nargs="*", help="measure only rounds whose name contains one of these")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=4, help="estimates of each kind (default 4)")
    parser.add_argument("--data", type=Path, default=os.environ.get("FEDWORTH_DATA"), help="where MNIST lies")
    args = parser.parse_args()
    main(args.names, args.clients, args.seeds, args.data and Path(args.data))
