"""What `fidelity` reads off a trial: every method's values, how sure it says they are, the truth, and the cost.

In: a federation with its truth. Out: a row. What a method may know is what the server has; it is measured, completed
and valued as the product does by default. Up to twelve clients the truth is exact; with more it is the sum over the
rounds of each round's game among everyone's true models (`fedworth.games`), whose standard error is kept.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import stream
from fedworth.completion.factors import complete, with_errors
from fedworth.completion.models import complete_by_models
from fedworth.errors import CompletionError, ValuationError
from fedworth.games import RoundGame, sampled_values
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.observe import observe_and_count
from fedworth.games.planning.choose import PlanSettings, choose_plan
from fedworth.ledger.ledger import Ledger
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.weighting import participation, round_weights
from fedworth.simulation.simulate import task_of
from fedworth.studies.trials.trial import Bench, Reading, Trial, utilities_of, with_ledger
from fedworth.valuation.valuation import Valuation
from fedworth.valuation.value import value

MOST_EXACT = 12
"""With more clients than these the truth is estimated."""

TRUTH_PER_CLIENT = 20
"""Evaluations a client and round of an estimated truth: twice what an estimate takes."""

Floats = NDArray[np.float64]


@dataclass
class _Scene:
    """One federation as its server sees it, and what was spent on it."""

    ledger: Ledger
    oracle: FastOracle
    seen: UtilityMatrix
    n_seen: int
    seen_seconds: float
    reading: Reading = field(default_factory=dict)

    def add(self, key: str, make: Callable[[], tuple[Valuation, int]]) -> None:
        """Value by one method, and keep what came of it; `make` says also what it measured beyond the seen."""
        start = time.process_time()
        try:
            made, n_more = make()
        except (ValuationError, CompletionError) as error:
            self.reading["refused"][key] = str(error)
            return
        known = made.uncertainty
        self.reading["values"][key] = made.values.tolist()
        self.reading["deviations"][key] = None if known is None else known.standard_deviations.tolist()
        self.reading["intervals"][key] = None if known is None else known.intervals(made.values).tolist()
        self.reading["ratio"][key] = None if known is None else known.ratio
        self.reading["evaluations"][key] = self.n_seen + n_more
        self.reading["seconds"][key] = self.seen_seconds + time.process_time() - start


def read_fidelity(trial: Trial, bench: Bench) -> Reading:
    """Every method's values, deviations, evaluations and processor seconds; the truth, and how sure it is."""
    return with_ledger(trial, bench, lambda ledger: _read(trial, ledger, bench))


def _read(trial: Trial, ledger: Ledger, bench: Bench) -> Reading:
    oracle = FastOracle(task_of(ledger, data_folder=bench.data_folder), n_threads=bench.n_threads)
    truth, truth_deviations = _truth(trial, ledger, oracle, bench)
    start = time.process_time()
    plan = choose_plan(participation(ledger), PlanSettings(), seed=trial.federation.seed)
    observed = observe_and_count(ledger, oracle, plan)
    scene = _Scene(ledger, oracle, observed.matrix, observed.n_evaluations, time.process_time() - start)
    names = ("values", "refused", "deviations", "intervals", "ratio", "evaluations", "seconds")
    scene.reading = {name: {} for name in names}
    for key, make in WAYS.items():
        scene.add(key, lambda make=make: make(scene))  # type: ignore[misc]
    scene.reading["values"]["truth"] = truth.tolist()
    return {**scene.reading, "truth_deviations": truth_deviations.tolist()}


def _truth(trial: Trial, ledger: Ledger, oracle: FastOracle, bench: Bench) -> tuple[Floats, Floats]:
    """The values that everyone's true models have, and their standard deviations."""
    n = trial.federation.n_clients
    if n <= MOST_EXACT:
        return value(utilities_of(trial, bench, ledger), "truth").values, np.zeros(n)
    values, covariance = np.zeros(n), np.zeros((n, n))
    for round_index in range(ledger.n_rounds):
        weighting = ledger.default_weighting
        weights = round_weights(ledger, round_index, weighting)
        game = RoundGame(oracle, ledger.open_round(round_index, with_apart=True), np.arange(n), weights, weighting)
        rng = stream(trial.federation.seed, "truth", round_index)
        found = sampled_values(game, budget=TRUTH_PER_CLIENT * n, rng=rng)
        values, covariance = values + found.values, covariance + found.covariance
    return values, np.sqrt(np.maximum(np.diag(covariance), 0))


def _by_models(scene: _Scene) -> tuple[Valuation, int]:
    completion = complete_by_models(scene.ledger, scene.oracle, scene.seen)
    return value(scene.seen, "comfedsv", completion=completion), completion.n_evaluations


def _by_factors(scene: _Scene) -> tuple[Valuation, int]:
    completion = with_errors(scene.seen, complete(scene.seen))
    return value(scene.seen, "comfedsv-factors", completion=completion), 0


WAYS: Mapping[str, Callable[[_Scene], tuple[Valuation, int]]] = {
    "fedsv": lambda scene: (value(scene.seen, "fedsv"), 0),
    "factors": _by_factors,
    "heard-round": lambda scene: (value(scene.seen, "heard-round"), 0),
    "models": _by_models,
}
"""The methods, by the name that stands in rows and tables."""

LABELS: Mapping[str, str] = {
    "fedsv": "FedSV",
    "factors": "ComFedSV, factors",
    "heard-round": "heard round × T",
    "models": "ComFedSV, models",
}


def document_of(row: Any, key: str) -> dict[str, Any]:
    """What a row says of one method; empty where it was refused."""
    reading = row["reading"]
    if key not in reading["values"]:
        return {}
    names = ("values", "deviations", "intervals", "ratio", "evaluations", "seconds")
    return {name: reading[name][key] for name in names}
