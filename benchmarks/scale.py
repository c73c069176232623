"""How Algorithm 1 grows with the number of clients: time, evaluations, peak memory; prints two Markdown tables.

    python benchmarks/scale.py [--quick] [--data FOLDER] [--cells N] [model:N …]

30 % of the clients take part in each of 100 rounds, everyone in the first. Clients are simulated on MNIST, two digits
each, where it is found (--data, or $FEDWORTH_DATA), else on synthetic-iid; the test set has 2,000 samples. Every case
runs in two child processes, one that simulates and one that observes, completes and values, so that peak memory
(ru_maxrss) is its own; about 500 MB of it are libraries. A tiny federation is completed first, so that loading and
compiling the solver is not in the time of the completion.
A case whose ⌈N ln N⌉ permutations would take more than MOST_CELLS cells (or --cells) in the first round gets fewer.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fedworth.games.planning.budget import arrivals, shortened
from fedworth.games.planning.plan import Plan, plan_prefixes
from fedworth.games.permutations import default_permutations
from fedworth.valuation.value import value

from fedworth.coalitions import coalitions_of
from fedworth.completion.factors import complete
from fedworth.games.matrix import UtilityMatrix, matrix_from_cells
from fedworth.games.observe import observe_and_count
from fedworth.ledger.ledger import open_ledger
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.weighting import participation
from fedworth.simulation.settings import ModelName, SimulationSettings
from fedworth.simulation.simulate import simulate, task_of

MOST_CELLS = 200_000
CASES = [("mlp", n) for n in (10, 30, 50, 100)] + [("logistic", n) for n in (10, 30, 50, 100, 300, 1000)]
QUICK = [("mlp", 10), ("mlp", 20), ("logistic", 50)]
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)


def main() -> None:
    """All cases, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three small cases of 20 rounds")
    parser.add_argument("--data", default=os.environ.get("FEDWORTH_DATA"), help="where MNIST lies")
    parser.add_argument("--cells", type=int, default=MOST_CELLS, help="most cells of the first round")
    parser.add_argument("cases", nargs="*", metavar="model:N", help="these cases alone, such as mlp:100")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        _show(json.dumps(CHILDREN[args.child.split()[0]](*args.child.split()[1:], data=args.data)))
        return
    n_rounds = 20 if args.quick else 100
    found = []
    chosen = [(case.split(":")[0], int(case.split(":")[1])) for case in args.cases]
    for model, n_clients in chosen or (QUICK if args.quick else CASES):
        with tempfile.TemporaryDirectory() as folder:
            ledger = Path(folder) / "ledger"
            made = _child(f"simulate {model} {n_clients} {n_rounds} {ledger}", args.data)
            found.append({**made, **_child(f"measure {ledger} {args.cells}", args.data)})
            print(f"{model} {n_clients}: {found[-1]}", file=sys.stderr)
    _show(_table(found, n_rounds))
    _show(_errors(found))


def _child(what: str, data: str | None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", what, *(["--data", data] if data else [])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _simulate(model: ModelName, n_clients: str, n_rounds: str, folder: str, *, data: str | None) -> dict[str, Any]:
    n = int(n_clients)
    settings = SimulationSettings(
        dataset="mnist" if data else "synthetic-iid",
        partition="two-class" if data else "natural",
        n_clients=n,
        copies=(),
        n_participants=max(1, round(0.3 * n)),
        n_rounds=int(n_rounds),
        model=model,
        n_steps=2,
        rate=0.1,
        train_limit=20 * n if data else None,
        test_limit=2000,
        with_truth=False,
    )
    start = time.perf_counter()
    simulate(settings, Path(folder), data_folder=Path(data) if data else None)
    return {"model": model, "n_clients": n, "simulated": time.perf_counter() - start}


def _measure(folder: str, most_cells: str, *, data: str | None) -> dict[str, Any]:
    ledger = open_ledger(Path(folder))
    task, n_clients = task_of(ledger, data_folder=Path(data) if data else None), len(ledger.clients)
    n_permutations = min(default_permutations(n_clients), int(most_cells) // n_clients)
    rng = np.random.default_rng(0)
    plan, planned = _timed(
        lambda: plan_prefixes(participation(ledger), n_permutations=n_permutations, with_fedsv=False, rng=rng)
    )
    before = time.process_time()
    observed, observing = _timed(lambda: observe_and_count(ledger, FastOracle(task), plan))
    busy = time.process_time() - before
    complete(_tiny())  # loads the solver, and compiles it if nobody has yet
    completion, completing = _timed(lambda: complete(observed.matrix))
    _, valuing = _timed(lambda: value(observed.matrix, "comfedsv", completion=completion))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "n_permutations": n_permutations,
        "n_evaluations": observed.n_evaluations,
        "observed": planned + observing,
        "busy": busy,
        "completed": completing,
        "valued": valuing,
        "peak": peak,
        "errors": _by_permutations(plan, observed.matrix),
    }


def _tiny() -> UtilityMatrix:
    """Six clients, all heard in the first of six rounds, three in each of the others; utilities drawn at random."""
    rng = np.random.default_rng(0)
    participants = np.ones((6, 6), dtype=bool)
    for row in participants[1:]:
        row[rng.permutation(6)[:3]] = False
    cells = [coalitions_of(np.flatnonzero(row), 6)[1:] for row in participants]
    rows = [(coalitions, rng.normal(size=len(coalitions))) for coalitions in cells]
    return matrix_from_cells(tuple("abcdef"), participants, rows)


CHILDREN: dict[str, Callable[..., dict[str, Any]]] = {"simulate": _simulate, "measure": _measure}


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    done = work()
    return done, time.perf_counter() - start


def _by_permutations(plan: Plan, matrix: UtilityMatrix) -> list[tuple[int, int, float]]:
    """Permutations, evaluations, and the root mean square standard error relative to the spread of the values."""
    assert plan.permutations is not None
    arrived = [arrivals(plan, t) for t in range(matrix.n_rounds)]
    rows = []
    for share in SHARES:
        n = max(2, round(share * len(plan.permutations)))
        cut = shortened(plan, arrived, n)
        cells = [(c, matrix.row(t, c)) for t, c in enumerate(cut.cells)]
        fewer = matrix_from_cells(matrix.clients, matrix.participants, cells, permutations=cut.permutations)
        valuation = value(fewer, "comfedsv")
        assert valuation.standard_errors is not None
        error = float(np.sqrt((valuation.standard_errors**2).mean()))
        rows.append((n, cut.n_evaluations, error))
    spread = float(valuation.values.std())
    return [(n, n_evaluations, error / spread) for n, n_evaluations, error in rows]


def _table(found: list[dict[str, Any]], n_rounds: int) -> str:
    lines = [
        "| model | N | K | M | evaluations | M[N+(T−1)K/(N−K+1)] | T·N·K·ln N | observe s | its CPU s | complete s | "
        "value s | peak MB | simulate s |",
        "| --- |" + " ---: |" * 12,
    ]
    for case in found:
        n, m = case["n_clients"], case["n_permutations"]
        k = max(1, round(0.3 * n))
        expected = m * (n + (n_rounds - 1) * k / (n - k + 1))
        paper = n_rounds * n * k * math.log(n)
        lines.append(
            f"| {case['model']} | {n} | {k} | {m:,} | {case['n_evaluations']:,} | {expected:,.0f} | {paper:,.0f} | "
            f"{case['observed']:.1f} | {case['busy']:.1f} | {case['completed']:.2f} | "
            f"{case['valued']:.2f} | {case['peak']:,.0f} | {case['simulated']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _errors(found: list[dict[str, Any]]) -> str:
    lines = ["| model | N | standard error / spread of the values, by permutations |", "| --- | ---: | --- |"]
    for case in found:
        shown = ", ".join(f"{n:,}: {error:.2f}" for n, _, error in case["errors"])
        lines.append(f"| {case['model']} | {case['n_clients']} | {shown} |")
    return "\n".join(lines) + "\n"


def _show(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
