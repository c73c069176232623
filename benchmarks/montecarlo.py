"""How far Monte Carlo values of one round are from the truth, at equal evaluations: prints a Markdown table.

    python benchmarks/montecarlo.py [--seeds 40] [name …]

Ten clients of digits, so that the truth comes from all 1,023 coalitions. N⌈ln N⌉ = 30 permutations take about 200
evaluations, whether they are random or come in squares; every other estimate takes as many. An error is the root mean
square over clients and seeds, relative to the standard deviation of the true values over clients; the mean over the
rounds. `held`: how often a true value lies within 1.96 standard errors, with the root mean square of error / standard
error. Rows with a bar that miss it are named at the end, and the exit code is 1.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bars import Bars
from numpy.typing import NDArray

from fedworth.arrays import Floats, Utilities
from fedworth.coalitions import coalitions_of, prefixes
from fedworth.games.observe import observe
from fedworth.games.planning.design import default_budget, draw_design
from fedworth.games.planning.plan import plan_exact
from fedworth.games.smooth import Kernel, smooth
from fedworth.games.squares import default_permutations, draw_permutations
from fedworth.games.strata import strata_values
from fedworth.names import Measure, Weighting
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import participation
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.valuation.permutations import permutation_values
from fedworth.valuation.shapley import shapley_values

N = 10
N_ROUNDS = 4
AT_LEAST = 4.0
"""Times the error of random permutations over that of strata with the smooth surrogate."""


@dataclass(frozen=True)
class Case:
    """A federation, and how its coalitions are judged."""

    settings: dict[str, Any]
    measure: Measure = "loss"
    weighting: Weighting = "uniform"


LOGISTIC: dict[str, Any] = {"model": "logistic", "rate": 0.1, "n_steps": 20}
MLP: dict[str, Any] = {"model": "mlp", "hidden": (64,), "rate": 0.1, "n_steps": 20}
CASES = {
    "logistic, two classes each": Case(LOGISTIC),
    "MLP 64, two classes each": Case(MLP),
    "logistic, two classes each, one step": Case({**LOGISTIC, "n_steps": 1}),
    "MLP 32, two classes each, 50 steps": Case({**MLP, "hidden": (32,), "n_steps": 50, "rate": 0.3}),
    "logistic, IID": Case({**LOGISTIC, "partition": "iid"}),
    "logistic, two classes each, fixed weights": Case(LOGISTIC, weighting="fixed"),
    "logistic, two classes each, accuracy": Case(LOGISTIC, measure="accuracy"),
    "MLP 64, two classes each, accuracy": Case(MLP, measure="accuracy"),
}
WITH_BAR = ("logistic, two classes each", "MLP 64, two classes each")


def rounds_of(case: Case) -> Utilities:
    """(n_rounds, 2^N): the utilities of all coalitions."""
    settings = SimulationSettings(
        n_clients=N, n_participants=N, n_rounds=N_ROUNDS, copies=(), with_truth=False, seed=7, **case.settings
    )
    with tempfile.TemporaryDirectory() as folder:
        ledger = simulate(settings, Path(folder) / "ledger")
        oracle = LoopOracle(task_of(ledger), case.measure)
        matrix = observe(ledger, oracle, plan_exact(participation(ledger)), weighting=case.weighting)
    everyone = coalitions_of(np.arange(N), N)
    return np.stack([matrix.row(t, everyone) for t in range(N_ROUNDS)])


Found = tuple[Floats, Floats, int]
"""Values, standard errors, evaluations."""


def by_permutations(utilities: Utilities, rng: np.random.Generator, *, is_balanced: bool) -> Found:
    """Permutations in squares, or random ones."""
    permutations = draw_permutations(np.arange(N), default_permutations(N), rng=rng)
    permutations = permutations if is_balanced else rng.permuted(permutations, axis=1)
    columns = prefixes(permutations, N) @ (1 << np.arange(N))
    values, errors = permutation_values(utilities[columns].reshape(len(permutations), -1), permutations, N)
    return values, errors, len(np.unique(columns)) - 1


def by_strata(kernel: Kernel) -> Callable[[Utilities, np.random.Generator], Found]:
    """A stratified design with a surrogate of this kernel."""

    def estimate(utilities: Utilities, rng: np.random.Generator) -> Found:
        design = draw_design(np.arange(N), N, default_budget(N), rng=rng)
        found = strata_values(design, utilities[design @ (1 << np.arange(N))], kernel=kernel)
        return found.values, found.standard_errors, found.n_evaluations

    return estimate


def constant(overlaps: Floats, sizes: Floats, others: Floats, n_members: int) -> Floats:  # noqa: ARG001
    """A surrogate that knows the mean alone: strata without a surrogate."""
    return np.ones(np.broadcast_shapes(overlaps.shape, sizes.shape, others.shape))


def quadratic(overlaps: Floats, sizes: Floats, others: Floats, n_members: int) -> Floats:  # noqa: ARG001
    """Quadratic forms in the averaging weights: κ = (m_S · m_T)². For games known to be quadratic."""
    return np.asarray((overlaps / (sizes * others)) ** 2)


ESTIMATES: dict[str, Callable[[Utilities, np.random.Generator], Found]] = {
    "random permutations": partial(by_permutations, is_balanced=False),
    "squares": partial(by_permutations, is_balanced=True),
    "strata": by_strata(constant),
    "strata, quadratic": by_strata(quadratic),
    "strata, smooth": by_strata(smooth),
}


def errors_of(estimate: Callable[..., Found], rounds: Utilities, n_seeds: int) -> tuple[float, str, float]:
    """Relative error, how often the true value is held (with the rms of z), and mean evaluations."""
    relative, z, evaluations = [], [], []
    for t, utilities in enumerate(rounds):
        true = shapley_values(utilities)
        found = [estimate(utilities, np.random.default_rng([t, seed])) for seed in range(n_seeds)]
        misses: NDArray[np.float64] = np.array([values for values, _, _ in found]) - true
        relative.append(float(np.sqrt((misses**2).mean()) / true.std()))
        z.append(misses / np.array([errors for _, errors, _ in found]))
        evaluations.append(np.mean([n for _, _, n in found]))
    held = f"{np.mean(np.abs(z) <= 1.96):.0%}, {np.sqrt(np.mean(np.square(z))):.2f}"
    return float(np.mean(relative)), held, float(np.mean(evaluations))


def measure(name: str, case: Case, n_seeds: int, bars: Bars) -> str:
    """One row of the table."""
    rounds = rounds_of(case)
    found = [errors_of(estimate, rounds, n_seeds) for estimate in ESTIMATES.values()]
    errors = " | ".join(f"{error:.3f}" if error >= 0.01 else f"{error:.4f}" for error, _, _ in found)
    better = found[0][0] / found[-1][0]
    ratio = f"**1/{better:.{0 if better >= 10 else 1}f}** | {f'1/{AT_LEAST:g}' if name in WITH_BAR else ''}"
    if name in WITH_BAR:
        bars.at_least(f"{name}, permutations' error over ours", better, AT_LEAST)
    evaluations = f"{found[0][2]:.0f} / {found[-1][2]:.0f}"
    return f"| {name} | {evaluations} | {errors} | {ratio} | {' | '.join(found[k][1] for k in (0, 1, -1))} |"


def main(names: list[str], n_seeds: int) -> None:
    torch.set_num_threads(1)
    headings = ["round", "evaluations", *ESTIMATES, "ratio", "at most", "held, random", "held, squares", "held, smooth"]
    print(f"| {' | '.join(headings)} |")
    print("| --- " * len(headings) + "|")
    bars = Bars()
    for name, case in CASES.items():
        if not names or any(wanted in name for wanted in names):
            print(measure(name, case, n_seeds, bars), flush=True)
    bars.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=sys.modules[__name__].__doc__)
    parser.add_argument("names", nargs="*", help="measure only rounds whose name contains one of these")
    parser.add_argument("--seeds", type=int, default=40, help="designs drawn for each round (default 40)")
    args = parser.parse_args()
    main(args.names, args.seeds)
