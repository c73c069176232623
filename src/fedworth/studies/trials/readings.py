"""What is read off a trial: values by every method, singular values, completion errors by rank, accuracy, cost.

Each reader takes a trial and gives a JSON document; `trial.row_of` keeps it.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedworth.arrays import Utilities, stream
from fedworth.completion.complete import FactorSettings, complete
from fedworth.completion.completion import Completion
from fedworth.errors import CompletionError, ValuationError
from fedworth.federation.simulation.simulate import task_of
from fedworth.federation.task import Task
from fedworth.ledger.ledger import Ledger
from fedworth.studies.trials.fidelity import read_fidelity
from fedworth.studies.trials.methods import COUNTS, METHODS, UNIFORM
from fedworth.studies.trials.plans import plan_fedsv
from fedworth.studies.trials.trial import Bench, Reader, Reading, Trial, utilities_of, with_ledger
from fedworth.utility.fast import FastOracle
from fedworth.utility.matrix import UtilityMatrix
from fedworth.utility.observe import observe, participation
from fedworth.utility.oracle import LoopOracle, Oracle
from fedworth.utility.planning.plan import Plan, plan_prefixes
from fedworth.valuation.value import value

RANKS = tuple(range(1, 11))
N_SINGULAR = 30
COMPLETIONS: Mapping[str, FactorSettings] = {"counts": COUNTS, "uniform": UNIFORM}
SCANS: Mapping[str, tuple[Any, ...]] = {"relative_penalty": (0.1, 0.01, 0.001, 0.0001), "rank": (1, 3, 5, 10)}
"""By the name of a setting of the completion: what it is varied to, the others being the usual ones."""


def read_values(trial: Trial, bench: Bench) -> Reading:
    """Every method's values, or why it has none; how much the loss fell; how far the completions are off."""
    matrix = utilities_of(trial, bench)
    seen = matrix.seen_part() if matrix.is_truth else matrix
    reading: Reading = {"values": {}, "refused": {}, "loss_fall": loss_fall(seen), "matrix_error": {}}
    for key, method in METHODS.items():
        if method.needs_truth and not matrix.is_truth:
            continue
        try:
            completion = method.completed(seen) if method.completed else None
            made = value(matrix if method.needs_truth else seen, method.of, completion=completion)
            reading["values"][key] = made.values.tolist()
        except (ValuationError, CompletionError) as error:
            reading["refused"][key] = str(error)
            continue
        if matrix.is_truth and completion is not None:
            reading["matrix_error"][key] = matrix_error(matrix, completion)
    return reading


def read_scan(trial: Trial, bench: Bench) -> Reading:
    """ComFedSV and how far its completion is off, by penalty and by rank, for each penalty kind; beside the truth."""
    matrix = utilities_of(trial, bench)
    seen, truth = matrix.seen_part(), value(matrix, "truth").values.tolist()
    scanned = []
    for what, settings in SCANS.items():
        for setting in settings:
            values, errors = {"truth": truth}, {}
            for kind, usual in COMPLETIONS.items():
                completion = complete(seen, replace(usual, **{what: setting}))
                values[f"comfedsv-{kind}"] = value(seen, "comfedsv", completion=completion).values.tolist()
                errors[f"comfedsv-{kind}"] = matrix_error(matrix, completion)
            scanned.append({"what": what, "setting": setting, "values": values, "matrix_error": errors})
    return {"loss_fall": loss_fall(seen), "scanned": scanned}


def read_spectrum(trial: Trial, bench: Bench) -> Reading:
    """The singular values of the full matrix, relative to the largest."""
    singular = np.linalg.svd(utilities_of(trial, bench).dense(), compute_uv=False)  # (n_rounds,)
    left = 1 - np.cumsum(singular**2) / (singular**2).sum()
    return {
        "singular": (singular / singular[0])[:N_SINGULAR].tolist(),
        "best_errors": np.sqrt(np.maximum(left, 0))[: len(RANKS)].tolist(),
    }


def read_ranks(trial: Trial, bench: Bench) -> Reading:
    """‖U − WHᵀ‖ / ‖U‖ for ranks 1 to 10 and each penalty kind, at two penalties."""
    matrix = utilities_of(trial, bench)
    seen = matrix.seen_part()
    errors = {}
    for kind, settings in COMPLETIONS.items():
        for relative in (settings.relative_penalty, settings.relative_penalty / 100):
            made = [complete(seen, replace(settings, rank=rank, relative_penalty=relative)) for rank in RANKS]
            errors[f"{kind} {relative:g}"] = [matrix_error(matrix, completion) for completion in made]
    return {"errors": errors, **read_spectrum(trial, bench)}


def read_accuracy(trial: Trial, bench: Bench) -> Reading:
    """The accuracy of the global model on the test set before every round and at the end."""

    def accuracies(ledger: Ledger) -> Reading:
        task = task_of(ledger, data_folder=bench.data_folder).to(bench.device)
        models = [ledger.open_round(t).global_model for t in range(ledger.n_rounds)]
        return {"accuracy": [_accuracy(task, model) for model in [*models[1:], ledger.final_model()]]}

    return with_ledger(trial, bench, accuracies)


def read_cost(trial: Trial, bench: Bench) -> Reading:
    """How many utilities each metric measures, and what that takes on one thread, by the plain loop and by the fast
    oracle."""

    def costs(ledger: Ledger) -> Reading:
        task = task_of(ledger, data_folder=bench.data_folder)
        plans = cost_plans(participation(ledger), trial)
        oracles: dict[str, Oracle] = {"loop": LoopOracle(task), "fast": FastOracle(task, n_threads=1)}
        observe(ledger, oracles["fast"], plans["fedsv"])  # compiles what it needs
        seconds = {
            oracle: {metric: _seconds(ledger, plan, made, metric) for metric, plan in plans.items()}
            for oracle, made in oracles.items()
        }
        return {"evaluations": {metric: plan.n_evaluations for metric, plan in plans.items()}, "seconds": seconds}

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
    "scan": read_scan,
    "spectrum": read_spectrum,
    "ranks": read_ranks,
    "accuracy": read_accuracy,
    "cost": read_cost,
    "fidelity": read_fidelity,
}


def loss_fall(seen: UtilityMatrix) -> float:
    """Σ_t U_t(I_t): how much the federation's own loss fell over all rounds."""
    return float(sum(seen.row(t, row[None])[0] for t, row in enumerate(seen.participants)))


def matrix_error(truth: UtilityMatrix, completion: Completion) -> float:
    """‖U − X‖ / ‖U‖ over all cells; the empty coalition's are 0 on both sides."""
    columns = truth.coalitions.any(axis=1)
    estimates = completion.estimates(truth.coalitions[columns])  # (n_rounds, n_coalitions)
    cells: Utilities = truth.dense()[:, columns]
    return float(np.linalg.norm(cells - estimates) / np.linalg.norm(cells))


def _seconds(ledger: Ledger, plan: Plan, oracle: Oracle, metric: str) -> float:
    """Processor seconds from the recorded models to the values: other work on the machine does not count."""
    start = time.process_time()
    matrix = observe(ledger, oracle, plan)
    if metric == "comfedsv":
        value(matrix, "comfedsv", completion=complete(matrix, COUNTS))
    return time.process_time() - start


def _accuracy(task: Task, model: Mapping[str, torch.Tensor]) -> float:
    task.module.load_state_dict(dict(model))
    with torch.inference_mode():
        parts = [task.module(inputs).argmax(1) for inputs in torch.split(task.inputs, 500)]
    return float((torch.cat(parts) == task.labels).double().mean())
