"""Completion by factors against LIBMF, the paper's solver, on the same problem: prints a Markdown table.

    pip install libmf && python benchmarks/completion.py

Both minimise prob:matrix_completion with the penalty of kind `counts`, which is what LIBMF solves, at the same λ and
rank, on the same seen cells. The objective is computed in float64 for both. One thread each, process time, best of
twenty fits. LIBMF stops after a number of iterations, by default 20. Its binding by default charges L1 0.04 and no
L2; here L1 is 0 and L2 is λ. It may hang, so it runs in child processes with a time limit, and is tried again.

Exit code 1 if a bar is missed: an objective above LIBMF's, or slower than its 500 iterations.
"""

import argparse
import importlib.util
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bars import Bars
from threadpoolctl import threadpool_limits

from fedworth.coalitions import distinct, prefixes_within
from fedworth.completion.solver import Factors, Problem, collapse_penalty, problem_of, problem_of_cells, solve
from fedworth.games.matrix import UtilityMatrix, matrix_from_rounds
from fedworth.games.permutations import draw_permutations
from fedworth.ledger.ledger import Ledger
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.valuation.federation import Federation

RANK = 5
RELATIVE_PENALTY = 0.01
N_RUNS = 20
AT_LEAST, OF_ITERATIONS = 1.0, 500
"""Times as fast as LIBMF with this many iterations or more; fewer are far from the optimum."""

TIME_LIMIT = 60
N_TRIES = 3
N_BINS = 10
"""LIBMF's grid: the binding's 26 are for twelve threads, and three times slower with one; with 3, the fewest, it is up
to twice as fast, but in six of ten children gave no answer at all."""


@dataclass(frozen=True)
class Found:
    """Factors, and the seconds they took."""

    W: Factors
    H: Factors
    seconds: float


def main() -> None:
    """All problems, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "ITERATIONS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if importlib.util.find_spec("libmf") is None:
        parser.error("libmf is not installed; it is needed for this benchmark alone: pip install libmf")
    if args.child:
        _fit_libmf(Path(args.child[0]), int(args.child[1]))
        return
    print("| problem | columns | seen cells | λ | solver | objective | above ours | seconds | times ours | remark |")
    print("| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | --- |")
    bars = Bars()
    for name, matrix, iterations in (
        ("digits, N=10, K=3, T=10, all coalitions", simulated(10), (20, 500)),
        ("digits, N=10, K=3, T=100, all coalitions", simulated(100), (20, 500)),
        ("synthetic, N=100, K=30, T=100, M=461", synthetic(100, 30, 100, 461), (20, 500)),
    ):
        compare(name, matrix, iterations, bars)
    bars.close()


def simulated(n_rounds: int) -> UtilityMatrix:
    """A federation of ten on digits, two classes each, everyone in the first round and three after."""
    with tempfile.TemporaryDirectory() as folder:
        simulate(SimulationSettings(copies=((9, 0),), n_rounds=n_rounds, with_truth=False), Path(folder) / "ledger")
        ledger = Ledger.open(Path(folder) / "ledger")
        return Federation(ledger, task_of(ledger)).utility_matrix()


def synthetic(n_clients: int, n_participants: int, n_rounds: int, n_permutations: int) -> UtilityMatrix:
    """Utilities of low rank plus noise at the prefixes of Algorithm 1: what coalitions' mean clients achieve in eight
    directions, weighted by rounds that fade and drift."""
    rng = np.random.default_rng(2022)
    participants = np.zeros((n_rounds, n_clients), dtype=bool)
    participants[0] = True
    for row in participants[1:]:
        row[rng.choice(n_clients, n_participants, replace=False)] = True
    permutations = draw_permutations(np.arange(n_clients), n_permutations, rng=rng)
    traits = rng.normal(size=(n_clients, 8)) + 1  # (n_clients, n_directions)
    drift = 1 + 0.1 * rng.normal(size=(n_rounds, 8)).cumsum(axis=0)  # (n_rounds, n_directions)
    rounds = drift / np.arange(1, n_rounds + 1)[:, None] ** 0.5
    cells = []
    for row, present in zip(rounds, participants, strict=True):
        coalitions = distinct(prefixes_within(permutations, present))[0]
        means = coalitions @ traits / np.maximum(coalitions.sum(axis=1), 1)[:, None]  # (n_coalitions, n_directions)
        clean = np.tanh(means) @ row
        noise = 0.02 * np.abs(row).mean() * rng.normal(size=len(clean))
        cells.append((coalitions, (clean + noise)[:, None]))
    clients = tuple(f"client {k}" for k in range(n_clients))
    return matrix_from_rounds(clients, participants, cells, permutations)


def compare(name: str, matrix: UtilityMatrix, iterations: tuple[int, ...], bars: Bars) -> None:
    """The rows of one problem."""
    reduced = matrix.within(matrix.needed_coalitions())
    problem = problem_of(reduced, "counts")
    penalty = RELATIVE_PENALTY * collapse_penalty(problem_of(reduced, "counts"))
    cells = problem.rows, problem.columns, problem.values
    with threadpool_limits(1):
        ours, seconds = best_of_runs(lambda: solve(problem_of_cells(problem.shape, *cells, "counts"), RANK, penalty))
    size = f"| {name} | {problem.shape[1]:,} | {len(problem.values):,} | {penalty:.3g}"
    print(f"{size} | fedworth | {ours.objective:.6g} | | {seconds:.3f} | | {ours.status.name.lower()} |", flush=True)
    for n_iterations in iterations:
        theirs, remarks = libmf(problem, penalty, n_iterations)
        shown = "– | – | – | –"
        if theirs is not None:
            objective = problem.objective(theirs.W, theirs.H, penalty)
            shown = f"{objective:.6g} | {objective / ours.objective - 1:+.2%} | {theirs.seconds:.3f} "
            shown += f"| **{theirs.seconds / seconds:.1f}×**"
            beside = f"{name}, beside LIBMF's {n_iterations:,} iterations"
            bars.at_most(f"{beside}: our objective over its", ours.objective / objective, 1.0)
            if n_iterations >= OF_ITERATIONS:
                bars.at_least(f"{beside}: its seconds over ours", theirs.seconds / seconds, AT_LEAST)
        print(f"| | | | | LIBMF, {n_iterations:,} iterations | {shown} | {'; '.join(remarks)} |", flush=True)


def libmf(problem: Problem, penalty: float, n_iterations: int) -> tuple[Found | None, list[str]]:
    """What LIBMF finds, if it does, and a remark for every time it gave no answer."""
    remarks: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cells = np.stack([problem.rows, problem.columns, problem.values], axis=1)  # (n_seen, 3)
        np.savez(folder / "problem.npz", cells=cells, penalty=penalty)
        command = [sys.executable, __file__, "--child", name, str(n_iterations)]
        for _ in range(N_TRIES):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            try:
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=TIME_LIMIT)
            except subprocess.TimeoutExpired:
                busy = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
                remarks.append(f"no answer in {TIME_LIMIT} s ({busy:.0f} s of CPU)")
                continue
            with np.load(folder / "factors.npz") as found:
                W = _where_seen(found["W"], problem.row_weights)
                H = _where_seen(found["H"], problem.column_weights)
                return Found(W, H, float(found["seconds"])), remarks
    return None, remarks


def _where_seen(found: Factors, weights: np.ndarray[Any, Any]) -> Factors:
    """Zero where nothing was seen: LIBMF has NaN there, or nothing after the last index seen."""
    factors = np.zeros((len(weights), RANK))
    factors[: len(found)] = found
    factors[weights == 0] = 0
    if not np.isfinite(factors).all():
        raise FloatingPointError("LIBMF gave NaN for a row or column with seen cells")
    return factors


def _fit_libmf(folder: Path, n_iterations: int) -> None:
    """In a child: fit, and leave the factors in the folder."""
    from libmf import mf

    with np.load(folder / "problem.npz") as given:
        cells, penalty = given["cells"], float(given["penalty"])
    assert cells[:, :2].max() < 2**24  # the binding passes indices as float32

    def fit() -> Any:
        charges = {"lambda_p1": 0.0, "lambda_q1": 0.0, "lambda_p2": penalty, "lambda_q2": penalty}
        model = mf.MF(k=RANK, nr_threads=1, nr_bins=N_BINS, nr_iters=n_iterations, quiet=True, **charges)
        model.fit(cells)
        return model

    model, seconds = best_of_runs(fit)
    W, H = (factors.astype(np.float64) for factors in (model.p_factors(), model.q_factors()))
    np.savez(folder / "factors.npz", W=W, H=H, seconds=seconds)


def best_of_runs(work: Callable[[], Any]) -> tuple[Any, float]:
    """What the work gives, the same each time, and the least seconds it took."""
    taken = []
    time.sleep(0.5)  # torch's threads spin for a while after their last work, which process time would count
    for _ in range(N_RUNS):
        start = time.process_time()
        done = work()
        taken.append(time.process_time() - start)
    return done, min(taken)


if __name__ == "__main__":
    main()
