"""The doors of fedworth that the studies use, in one place. To be replaced by `fedworth.Federation`."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth import FactorSettings, FastOracle, FedworthError, Ledger, SimulationSettings, Valuation, simulate, task_of
from fedworth.arrays import stream
from fedworth.coalitions import distinct, prefixes, prefixes_within
from fedworth.completion.factors import complete, with_errors
from fedworth.completion.models import complete_by_models
from fedworth.findings import findings as findings_of
from fedworth.games import RoundGame, sampled_values
from fedworth.games.observe import observe, observe_and_count
from fedworth.games.planning.choose import PlanSettings, choose_plan
from fedworth.games.planning.plan import Plan, all_but_one, plan_games, plan_prefixes
from fedworth.games.permutations import default_permutations, draw_permutations
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import participation, round_weights
from fedworth.pipeline.interactions import interactions_of
from fedworth.pipeline.measures import EVERYDAY, compare_measures
from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.stages import ValuingSettings
from fedworth.report.tables import LABELS
from fedworth.simulation.simulate import participants_of
from fedworth.valuation.value import value

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Refused = FedworthError
_TODAY = {"comfedsv-models": "comfedsv", "all-clients-round": "heard-round"}
MOST_EXACT, TRUTH_PER_CLIENT = 12, 20


class Recorded:
    """A simulated federation that can be valued."""

    def __init__(self, settings: SimulationSettings, folder: Path, data: Path | None, misconduct: Any = None) -> None:
        self.settings = settings
        self.data = data
        self.ledger: Ledger = simulate(settings, folder / "ledger", data_folder=data, misconduct=misconduct)
        self.task = task_of(self.ledger, data_folder=data)
        self.oracle = FastOracle(self.task, n_threads=1)

    def accuracies(self) -> list[float]:
        """The accuracy of the global model after every round."""
        models = [self.ledger.open_round(t).global_model for t in range(1, self.ledger.n_rounds)]
        return [self._accuracy(model) for model in [*models, self.ledger.final_model()]]

    def _accuracy(self, model: Mapping[str, torch.Tensor]) -> float:
        self.task.module.load_state_dict(dict(model))
        with torch.inference_mode():
            parts = [self.task.module(inputs).argmax(1) for inputs in torch.split(self.task.inputs, 500)]
        return float((torch.cat(parts) == self.task.labels).double().mean())


class Valued(Recorded):
    """One whose utilities are measured once: all coalitions, or by Algorithm 1's permutations if there are many."""

    is_sampled = False
    n_permutations: int | None = None

    @cached_property
    def matrix(self) -> Any:
        """The true utilities if absent clients' models are there, else those that a server can measure."""
        participants, seed = participation(self.ledger), self.settings.seed
        if not self.is_sampled:
            plan = choose_plan(participants, with_truth=self.settings.with_truth, seed=seed)
        else:
            count = self.n_permutations or default_permutations(participants.shape[1])
            plan = plan_games(participants, n_permutations=count, rng=stream(seed, "permutations"))
        return observe(self.ledger, self.oracle, plan)

    @cached_property
    def seen(self) -> Any:
        """The part that a server can measure."""
        return self.matrix.seen_part() if self.matrix.is_truth else self.matrix

    def completion(self, method: str, factors: FactorSettings | None) -> Any:
        """The completion of a method; None if it has none."""
        if method == "comfedsv-models":
            return complete_by_models(self.ledger, self.oracle, self.seen)
        return None if factors is None else complete(self.seen, factors)

    def values(self, method: str, factors: FactorSettings | None = None) -> tuple[Floats, float]:
        """The values, and the relative error of the completed matrix (NaN without a truth or a completion)."""
        completion = self.completion(method, factors)
        matrix = self.matrix if method == "truth" else self.seen
        made = value(matrix, _TODAY.get(method, method), completion=completion)  # type: ignore[arg-type]
        has_error = self.matrix.is_truth and completion is not None
        return made.values, self._matrix_error(completion) if has_error else np.nan

    def matrix_error(self, factors: FactorSettings) -> float:
        """‖U − WHᵀ‖ / ‖U‖ of the completion by factors."""
        return self._matrix_error(complete(self.seen, factors))

    def _matrix_error(self, completion: Any) -> float:
        columns = self.matrix.coalitions.any(axis=1)
        cells = self.matrix.dense()[:, columns]
        estimates = completion.estimates(self.matrix.coalitions[columns])
        return float(np.linalg.norm(cells - estimates) / np.linalg.norm(cells))

    def singular_values(self) -> Floats:
        """The singular values of the true utility matrix."""
        return np.asarray(np.linalg.svd(self.matrix.dense(), compute_uv=False))


class Sampled(Valued):
    """One with so many clients that coalitions are sampled."""

    is_sampled = True

    def __init__(self, settings: SimulationSettings, folder: Path, data: Path | None, n: int | None) -> None:
        super().__init__(settings, folder, data)
        self.n_permutations = n

    def by_permutations(self) -> dict[str, dict[str, Floats]]:
        """The all-clients round and ComFedSV from permutations drawn in balanced squares and one by one."""
        rng, participants = stream(self.settings.seed, "orders"), participation(self.ledger)
        plans = {
            "squares": plan_prefixes(participants, sampler="permutations", rng=rng),
            "random": _plan_random(participants, rng),
        }
        found = {}
        for how, plan in plans.items():
            seen = observe(self.ledger, self.oracle, plan)
            counts = FactorSettings(penalty_kind="counts")
            found[how] = {
                "all-clients-round": value(seen, "heard-round").values,
                "comfedsv": value(seen, "comfedsv", completion=complete(seen, counts)).values,
            }
        return found


def _plan_random(participants: Flags, rng: np.random.Generator) -> Plan:
    n_clients = participants.shape[1]

    def drawn(members: Any) -> Any:
        return rng.permuted(np.tile(members, (default_permutations(len(members)), 1)), axis=1)

    everyones = drawn(np.arange(n_clients))
    of_rounds = tuple(everyones if row.all() else drawn(np.flatnonzero(row)) for row in participants)
    cells = [
        np.concatenate([prefixes_within(everyones, row), prefixes_within(own, row), all_but_one(row)])
        for own, row in zip(of_rounds, participants, strict=True)
    ]
    return Plan(tuple(distinct(found)[0] for found in cells), everyones, of_rounds)


def _cost_plans(participants: Flags, settings: SimulationSettings, n_permutations: int | None) -> dict[str, Plan]:
    rng, cells = stream(settings.seed, "orders"), []
    for row in participants:
        members = np.flatnonzero(row)
        chosen = np.sort(rng.choice(members, settings.n_participants, replace=False)) if row.all() else members
        drawn = draw_permutations(chosen, default_permutations(len(chosen)), rng=rng)
        cells.append(distinct(prefixes(drawn, participants.shape[1]))[0])
    rng = stream(settings.seed, "permutations")
    algorithm = plan_prefixes(participants, n_permutations=n_permutations, with_fedsv=False, rng=rng)
    return {"fedsv": Plan(tuple(cells)), "comfedsv": algorithm}


def counts(settings: SimulationSettings, n_permutations: int | None) -> dict[str, int]:
    """How many utilities FedSV and ComFedSV each measure, without training anything."""
    participants = np.zeros((settings.n_rounds, settings.n_clients), dtype=bool)
    for t, chosen in enumerate(participants_of(settings)):
        participants[t, chosen] = True
    plans = _cost_plans(participants, settings, n_permutations)
    return {metric: plan.n_evaluations for metric, plan in plans.items()}


def seconds(recorded: Recorded, n_permutations: int | None, with_loop: bool) -> dict[str, dict[str, float]]:
    """Processor seconds of FedSV and ComFedSV on one thread, by the fast oracle and the plain loop."""
    plans = _cost_plans(participation(recorded.ledger), recorded.settings, n_permutations)
    oracles: dict[str, Any] = {"fast": recorded.oracle}
    if with_loop:
        oracles["loop"] = LoopOracle(recorded.task)
    observe(recorded.ledger, recorded.oracle, plans["fedsv"])  # compiles what it needs

    def spent(oracle: Any, metric: str, plan: Plan) -> float:
        start = time.process_time()
        matrix = observe(recorded.ledger, oracle, plan)
        if metric == "comfedsv":
            completion = complete(matrix, FactorSettings(penalty_kind="counts"))
            value(matrix, "comfedsv", completion=completion)
        return time.process_time() - start

    return {name: {m: spent(oracle, m, plan) for m, plan in plans.items()} for name, oracle in oracles.items()}


@dataclass(frozen=True)
class Measured:
    """A valuation and its cost."""

    valuation: Valuation
    n_evaluations: int
    seconds: float


def valued_by_default(recorded: Recorded) -> dict[str, Measured]:
    """Every method as `fedworth run` does it by default; refused methods are left out."""
    start = time.process_time()
    plan = choose_plan(participation(recorded.ledger), PlanSettings(), seed=recorded.settings.seed)
    seen = observe_and_count(recorded.ledger, recorded.oracle, plan)
    first = time.process_time() - start

    def by_models() -> tuple[Valuation, int]:
        made = complete_by_models(recorded.ledger, recorded.oracle, seen.matrix)
        return value(seen.matrix, "comfedsv", completion=made), made.n_evaluations

    def by_factors() -> tuple[Valuation, int]:
        made = with_errors(seen.matrix, complete(seen.matrix))
        return value(seen.matrix, "comfedsv-factors", completion=made), 0

    ways: dict[str, Callable[[], tuple[Valuation, int]]] = {
        "fedsv": lambda: (value(seen.matrix, "fedsv"), 0),
        "comfedsv": by_factors,
        "all-clients-round": lambda: (value(seen.matrix, "heard-round"), 0),
        "comfedsv-models": by_models,
    }
    found = {}
    for name, way in ways.items():
        start = time.process_time()
        try:
            valuation, n_more = way()
        except Refused:
            continue
        found[name] = Measured(valuation, seen.n_evaluations + n_more, first + time.process_time() - start)
    return found


def truth_of(recorded: Recorded) -> tuple[Floats, Floats]:
    """The true values and their standard errors: exact for few clients, sampled for many."""
    ledger, n = recorded.ledger, recorded.settings.n_clients
    if n <= MOST_EXACT:
        plan = choose_plan(participation(ledger), with_truth=True, seed=recorded.settings.seed)
        return value(observe(ledger, recorded.oracle, plan), "truth").values, np.zeros(n)
    values, covariance = np.zeros(n), np.zeros((n, n))
    for t in range(ledger.n_rounds):
        weights = round_weights(ledger, t, ledger.default_weighting)
        round_ = ledger.open_round(t, with_apart=True)
        game = RoundGame(recorded.oracle, round_, np.arange(n), weights, ledger.default_weighting)
        rng = stream(recorded.settings.seed, "truth", t)
        found = sampled_values(game, budget=TRUTH_PER_CLIENT * n, rng=rng)
        values, covariance = values + found.values, covariance + found.covariance
    return values, np.sqrt(np.maximum(np.diag(covariance), 0))


def compared(recorded: Recorded, left_out: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of `fedworth compare --methods all`, beside the truth."""
    clients = recorded.ledger.clients
    copies = [(clients[a], clients[b]) for a, b in recorded.settings.copies]
    names = [name for name in EVERYDAY if name not in left_out]
    rows = compare_measures(
        recorded.ledger, recorded.task, ValuingSettings(), names, copies=copies, with_truth=True,
        data_folder=recorded.data,
    )  # fmt: skip
    new = {"comfedsv": "comfedsv-models", "comfedsv-factors": "comfedsv", "heard-round": "all-clients-round"}
    names_now = {"comfedsv": "ComFedSV by models", "comfedsv-factors": "ComFedSV", "heard-round": "all-clients round"}
    labels: dict[str, str] = {**{str(key): name for key, name in LABELS.items()}, **names_now}
    return [{**row.document(), "measure": new.get(row.name, row.name), "label": labels[row.name]} for row in rows]


def findings_in(recorded: Recorded) -> list[dict[str, Any]]:
    """What the clients' answers show, as `fedworth verify` does."""
    return [found.document() for found in findings_of(recorded.ledger)]


def findings_with_values(recorded: Recorded, folder: Path) -> tuple[list[dict[str, Any]], Any]:
    """What a report finds, and the true values if they are known."""
    with_truth = recorded.settings.with_truth
    report = report_on(recorded.ledger, recorded.task, ValuingSettings(), folder, with_truth=with_truth)
    truth = report.valuation("truth")
    return [found.document() for found in report.all_findings], None if truth is None else truth.values


def interactions(recorded: Recorded, weighting: str) -> list[tuple[int, int, float]]:
    """The interaction index of every pair of clients."""
    seen = observe(recorded.ledger, recorded.oracle, weighting=weighting)  # type: ignore[arg-type]
    made = complete_by_models(recorded.ledger, recorded.oracle, seen, weighting=weighting)  # type: ignore[arg-type]
    return [(int(pair.first), int(pair.second), pair.index) for pair in interactions_of(made)]
