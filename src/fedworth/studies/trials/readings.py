"""What is read off a trial: values by every method, completion errors by rank, what balanced orders bring, cost.

Each reader takes a trial and gives a JSON document; `trial.row_of` keeps it. Every reading has the accuracies.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedworth.arrays import stream
from fedworth.completion.completion import Completion
from fedworth.completion.factors import FactorSettings, complete
from fedworth.completion.models import complete_by_models
from fedworth.errors import CompletionError, ValuationError
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.observe import observe
from fedworth.games.planning.plan import Plan, plan_prefixes
from fedworth.ledger.ledger import Ledger
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle, Oracle
from fedworth.oracle.weighting import participation
from fedworth.simulation.simulate import task_of
from fedworth.studies.conduct.reading import FINDERS
from fedworth.studies.trials.fidelity import read_fidelity
from fedworth.studies.trials.matrices import accuracies, matrix_error, spectral
from fedworth.studies.trials.measures import read_measures
from fedworth.studies.trials.methods import COUNTS, METHODS, PAPERS, RIVAL, UNIFORM, Method
from fedworth.studies.trials.plans import plan_fedsv, plan_random
from fedworth.studies.trials.trial import Bench, Reader, Reading, Trial, oracle_of, utilities_of, with_ledger
from fedworth.valuation.value import value

RANKS = tuple(range(1, 11))
COMPLETIONS: Mapping[str, FactorSettings] = {"counts": COUNTS, "uniform": UNIFORM}
SCANS: Mapping[str, tuple[Any, ...]] = {"relative_penalty": (0.1, 0.01, 0.001, 0.0001), "rank": (1, 3, 5, 10)}
"""By the name of a setting of the completion: what it is varied to, the others being the usual ones."""

MOST_LOOPED = 70
"""Clients up to which the plain loop is timed: with a hundred it takes a minute."""


def read_values(trial: Trial, bench: Bench) -> Reading:
    """Every method's values, or why it has none; how far the completions are off; the singular values."""
    return with_ledger(trial, bench, lambda ledger: _values(trial, ledger, bench))


def read_matrix(trial: Trial, bench: Bench) -> Reading:
    """The same, and the errors of completions of ranks 1 to 10."""

    def read(ledger: Ledger) -> Reading:
        reading = _values(trial, ledger, bench)
        return {**reading, "errors": _rank_errors(utilities_of(trial, bench, ledger))}

    return with_ledger(trial, bench, read)


def read_fedsv(trial: Trial, bench: Bench) -> Reading:
    """FedSV's values alone: what settings are chosen by."""

    def read(ledger: Ledger) -> Reading:
        oracle = oracle_of(ledger, bench)
        made = value(utilities_of(trial, bench, ledger, oracle), "fedsv")
        return {"values": {RIVAL: made.values.tolist()}, **accuracies(ledger, oracle.task)}

    return with_ledger(trial, bench, read)


def _values(trial: Trial, ledger: Ledger, bench: Bench) -> Reading:
    oracle = oracle_of(ledger, bench)
    matrix = utilities_of(trial, bench, ledger, oracle)
    seen = matrix.seen_part() if matrix.is_truth else matrix
    reading: Reading = {"values": {}, "refused": {}, "matrix_error": {}, **accuracies(ledger, oracle.task)}
    for key, method in METHODS.items():
        if (method.needs_truth and not matrix.is_truth) or (method.reads_models and trial.without_models):
            continue
        try:
            completion = _completed(method, ledger, oracle, seen)
            made = value(matrix if method.needs_truth else seen, method.of, completion=completion)
            reading["values"][key] = made.values.tolist()
        except (ValuationError, CompletionError) as error:
            reading["refused"][key] = str(error)
            continue
        if matrix.is_truth and completion is not None:
            reading["matrix_error"][key] = matrix_error(matrix, completion)
    return {**reading, **(spectral(matrix) if matrix.is_truth else {})}


def _completed(method: Method, ledger: Ledger, oracle: FastOracle, seen: UtilityMatrix) -> Completion | None:
    """The completion that a method rests on, if it rests on one."""
    if method.completed == "models":
        return complete_by_models(ledger, oracle, seen)
    return None if method.factors is None else complete(seen, method.factors)


def read_scan(trial: Trial, bench: Bench) -> Reading:
    """ComFedSV and how far its completion is off, by penalty and by rank, for each penalty kind; beside the truth."""

    def scan(ledger: Ledger) -> Reading:
        oracle = oracle_of(ledger, bench)
        matrix = utilities_of(trial, bench, ledger, oracle)
        truth = value(matrix, "truth").values.tolist()
        made = [_scanned(matrix, what, setting, truth) for what, settings in SCANS.items() for setting in settings]
        return {"scanned": made, **accuracies(ledger, oracle.task)}

    return with_ledger(trial, bench, scan)


def _scanned(matrix: UtilityMatrix, what: str, setting: Any, truth: list[float]) -> Reading:
    seen, values, errors = matrix.seen_part(), {"truth": truth}, {}
    for kind, usual in COMPLETIONS.items():
        completion = complete(seen, replace(usual, **{what: setting}))
        values[f"comfedsv-{kind}"] = value(seen, "comfedsv", completion=completion).values.tolist()
        errors[f"comfedsv-{kind}"] = matrix_error(matrix, completion)
    return {"what": what, "setting": setting, "values": values, "matrix_error": errors}


def _rank_errors(matrix: UtilityMatrix) -> dict[str, list[float]]:
    seen, errors = matrix.seen_part(), {}
    for kind, settings in COMPLETIONS.items():
        for relative in (settings.relative_penalty, settings.relative_penalty / 100):
            made = [complete(seen, replace(settings, rank=rank, relative_penalty=relative)) for rank in RANKS]
            errors[f"{kind} {relative:g}"] = [matrix_error(matrix, completion) for completion in made]
    return errors


def read_orders(trial: Trial, bench: Bench) -> Reading:
    """The values of the heard round and of ComFedSV from as many permutations, drawn one by one and in squares."""

    def orders(ledger: Ledger) -> Reading:
        oracle, participants = oracle_of(ledger, bench), participation(ledger)
        rng = stream(trial.federation.seed, "orders")
        squares = plan_prefixes(participants, sampler="permutations", rng=rng)
        plans = {"squares": squares, "random": plan_random(participants, rng=rng)}
        found = {how: _ordered(observe(ledger, oracle, plan)) for how, plan in plans.items()}
        return {"orders": found, **accuracies(ledger, oracle.task)}

    return with_ledger(trial, bench, orders)


def _ordered(seen: UtilityMatrix) -> dict[str, list[float]]:
    completed = value(seen, "comfedsv", completion=complete(seen, COUNTS))
    return {"heard-round": value(seen, "heard-round").values.tolist(), PAPERS: completed.values.tolist()}


def read_cost(trial: Trial, bench: Bench) -> Reading:
    """How many utilities each metric measures, and what that takes on one thread, by the plain loop (of not too many
    clients) and by the fast oracle."""

    def costs(ledger: Ledger) -> Reading:
        task = task_of(ledger, data_folder=bench.data_folder)
        plans = cost_plans(participation(ledger), trial)
        oracles: dict[str, Oracle] = {"fast": FastOracle(task, n_threads=1)}
        if trial.federation.n_clients <= MOST_LOOPED:
            oracles["loop"] = LoopOracle(task)
        observe(ledger, oracles["fast"], plans["fedsv"])  # compiles what it needs
        seconds = {
            oracle: {metric: _seconds(ledger, plan, made, metric) for metric, plan in plans.items()}
            for oracle, made in oracles.items()
        }
        return {"seconds": seconds, **accuracies(ledger, task)}

    return with_ledger(trial, bench, costs)


def cost_plans(participants: "np.typing.NDArray[np.bool_]", trial: Trial) -> dict[str, Plan]:
    """What FedSV and ComFedSV would each measure of these rounds."""
    seed, n_participants = trial.federation.seed, trial.federation.n_participants
    algorithm = plan_prefixes(
        participants, n_permutations=trial.n_permutations, with_fedsv=False, rng=stream(seed, "permutations")
    )
    return {
        "fedsv": plan_fedsv(participants, n_participants, rng=stream(seed, "orders")),
        "comfedsv": algorithm,
    }


READERS: Mapping[str, Reader] = {
    "values": read_values,
    "matrix": read_matrix,
    "fedsv": read_fedsv,
    "scan": read_scan,
    "orders": read_orders,
    "cost": read_cost,
    "fidelity": read_fidelity,
    "measures": read_measures,
    **FINDERS,
}


def _seconds(ledger: Ledger, plan: Plan, oracle: Oracle, metric: str) -> float:
    """Processor seconds from the recorded models to the values: other work on the machine does not count."""
    start = time.process_time()
    matrix = observe(ledger, oracle, plan)
    if metric == "comfedsv":
        value(matrix, "comfedsv", completion=complete(matrix, COUNTS))
    return time.process_time() - start
