"""Observing measures the planned cells, all of them, one round in memory at a time."""

import gc
import weakref
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from fedworth.errors import LedgerError, UsageError, UtilityError
from fedworth.games.matrix_file import save_utilities
from fedworth.games.observe import observe
from fedworth.games.planning.plan import Plan, plan_exact, plan_prefixes
from fedworth.ledger.ledger import Ledger, Round, open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.oracle.oracle import LoopOracle, Oracle
from fedworth.oracle.weighting import Mixtures, participation, round_weights
from fedworth.recording.recorder import record_into
from fedworth.simulation.models import ModelSpec, build_model, state_of
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate
from fedworth.task.task import Task


@dataclass
class CountingOracle:
    """Counts what it is asked, and may answer one of the questions with a utility of its own."""

    inner: Oracle
    n_evaluations: int = 0
    n_calls: int = 0
    instead: dict[tuple[int, int], float] = field(default_factory=dict)

    def utilities(self, round_: Round, mixtures: Mixtures) -> np.ndarray:
        found = self.inner.utilities(round_, mixtures)
        for (call, position), utility in self.instead.items():
            if call == self.n_calls:
                found[position] = utility
        self.n_evaluations += len(mixtures.of_global)
        self.n_calls += 1
        return found


def plans(ledger: Ledger) -> dict[str, Plan]:
    rows = participation(ledger)
    return {
        "exact": plan_exact(rows),
        "truth": plan_exact(rows, with_truth=True),
        "prefixes": plan_prefixes(rows, sampler="permutations", rng=np.random.default_rng(0)),
        "true prefixes": plan_prefixes(rows, with_truth=True, sampler="permutations", rng=np.random.default_rng(0)),
    }


@pytest.mark.parametrize("name", ["exact", "truth", "prefixes", "true prefixes"])
def test_the_oracle_is_asked_exactly_what_was_planned(tiny_ledger, tiny_task, name):
    plan = plans(tiny_ledger)[name]
    oracle = CountingOracle(LoopOracle(tiny_task))
    matrix = observe(tiny_ledger, oracle, plan)
    assert oracle.n_evaluations == plan.n_evaluations
    assert oracle.n_calls == tiny_ledger.n_rounds
    assert len(matrix.utilities) == plan.n_evaluations + tiny_ledger.n_rounds  # U_t(∅) = 0 is known unasked
    assert matrix.is_truth == plan.is_truth
    assert matrix.clients == tiny_ledger.clients
    assert np.array_equal(matrix.participants, participation(tiny_ledger))
    assert matrix.permutations is plan.permutations


@pytest.mark.parametrize("name", ["prefixes", "true prefixes", "exact"])
def test_every_plan_finds_the_same_utilities(tiny_ledger, tiny_task, name):
    truth = observe(tiny_ledger, LoopOracle(tiny_task), plans(tiny_ledger)["truth"])
    matrix = observe(tiny_ledger, LoopOracle(tiny_task), plans(tiny_ledger)[name])
    for round_index, cells in enumerate(plans(tiny_ledger)[name].cells):
        assert np.array_equal(matrix.row(round_index, cells), truth.row(round_index, cells))


def test_the_seen_part_of_the_truth_is_what_is_seen(tiny_ledger, tiny_task):
    found = plans(tiny_ledger)
    truth = observe(tiny_ledger, LoopOracle(tiny_task), found["truth"])
    seen = observe(tiny_ledger, LoopOracle(tiny_task), found["exact"])
    assert np.array_equal(truth.seen_part().dense(), seen.dense(), equal_nan=True)


def test_two_observations_give_equal_bytes(tiny_ledger, tiny_task, tmp_path):
    for name in ("a.npz", "b.npz"):
        save_utilities(observe(tiny_ledger, LoopOracle(tiny_task), plans(tiny_ledger)["prefixes"]), tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_rounds_are_opened_one_at_a_time(tiny_ledger, tiny_task, monkeypatch):
    opened: list[weakref.ref[Round]] = []
    n_alive: list[int] = []
    open_round = Ledger.open_round

    def watched(self: Ledger, round_index: int, *, with_apart: bool = False) -> Round:
        gc.collect()
        n_alive.append(sum(reference() is not None for reference in opened))
        found = open_round(self, round_index, with_apart=with_apart)
        opened.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Ledger, "open_round", watched)
    observe(tiny_ledger, LoopOracle(tiny_task), plans(tiny_ledger)["truth"])
    assert n_alive == [0] * tiny_ledger.n_rounds


@pytest.mark.parametrize("utility", [np.nan, np.inf, -np.inf])
def test_a_utility_that_is_not_finite_is_refused_with_its_round_and_coalition(tiny_ledger, tiny_task, utility):
    plan = plans(tiny_ledger)["exact"]
    first, second = np.flatnonzero(participation(tiny_ledger)[1])
    position = 2  # of {first}, {second}, {first, second}
    oracle = CountingOracle(LoopOracle(tiny_task), instead={(1, position): utility})
    expected = rf"round 1, coalition \{{{first}, {second}\}}: utility is {utility}, expected a finite number"
    with pytest.raises(UtilityError, match=expected):
        observe(tiny_ledger, oracle, plan)


def test_a_model_that_overflows_on_the_test_set_is_refused(tmp_path):
    module = build_model(ModelSpec("logistic", (2,), 2))
    start = state_of(module)
    huge = {name: torch.full_like(tensor, 1e7) for name, tensor in start.items()}
    writer = create_ledger(tmp_path / "ledger", ["anna", "ben"], aggregation="uniform")
    writer.record_round(start, {"anna": Answer(start, 1), "ben": Answer(huge, 1)})
    ledger = open_ledger(tmp_path / "ledger")
    task = Task(module, torch.full((3, 2), 1e33), torch.tensor([0, 1, 0]))
    with pytest.raises(UtilityError, match=r"round 0, coalition \{ben\}: the loss .* is not finite; without 'ben'"):
        observe(ledger, LoopOracle(task), plan_exact(participation(ledger)))


def test_the_truth_of_a_federation_that_kept_no_absent_models_is_refused(tiny_settings, tiny_task, tmp_path):
    ledger = simulate(replace(tiny_settings, with_truth=False), tmp_path / "ledger")
    oracle = CountingOracle(LoopOracle(tiny_task))
    with pytest.raises(LedgerError, match=r"round 1: no model of clients \[.*\], so the truth cannot be measured"):
        observe(ledger, oracle, plans(ledger)["truth"])
    assert oracle.n_calls == 0
    assert observe(ledger, oracle, plans(ledger)["exact"]).n_rounds == 3


def test_absent_clients_models_are_not_even_opened_without_the_truth(tiny_ledger, tiny_task, monkeypatch):
    asked: list[bool] = []
    open_round = Ledger.open_round

    def watched(self: Ledger, round_index: int, *, with_apart: bool = False) -> Round:
        asked.append(with_apart)
        return open_round(self, round_index, with_apart=with_apart)

    monkeypatch.setattr(Ledger, "open_round", watched)
    observe(tiny_ledger, LoopOracle(tiny_task), plans(tiny_ledger)["exact"])
    assert asked == [False] * 3


def test_a_plan_for_another_federation_is_refused(tiny_ledger, tiny_task):
    with pytest.raises(UtilityError, match=r"plan for 2 rounds, but .* has 3"):
        observe(tiny_ledger, LoopOracle(tiny_task), plan_exact(np.ones((2, 5), dtype=bool)))
    with pytest.raises(UtilityError, match="plan for other clients than the 5"):
        observe(tiny_ledger, LoopOracle(tiny_task), plan_exact(np.ones((3, 4), dtype=bool)))


def test_an_unknown_weighting_is_refused_before_anything_is_measured(tiny_ledger, tiny_task):
    oracle = CountingOracle(LoopOracle(tiny_task))
    with pytest.raises(UsageError, match="unknown weighting"):
        observe(tiny_ledger, oracle, plans(tiny_ledger)["exact"], weighting="none")  # type: ignore[arg-type]
    assert oracle.n_calls == 0


def test_members_count_by_the_samples_they_reported_in_that_round(tmp_path):
    """A client's data may grow; with fixed weights the last count holds, so that a column keeps its meaning."""
    module = build_model(ModelSpec("logistic", (2,), 2, dtype="float64"))
    start = state_of(module)
    moved = {name: tensor + 1 for name, tensor in start.items()}
    writer = create_ledger(tmp_path / "ledger", ["anna", "ben"], aggregation="samples")
    writer.record_round(start, {"anna": Answer(start, 10), "ben": Answer(moved, 30)})
    writer.record_round(start, {"anna": Answer(start, 10), "ben": Answer(moved, 10)})
    ledger = open_ledger(tmp_path / "ledger")
    assert round_weights(ledger, 0, "samples").tolist() == [10, 30]
    assert round_weights(ledger, 1, "samples").tolist() == [10, 10]
    assert round_weights(ledger, 0, "fixed").tolist() == round_weights(ledger, 1, "fixed").tolist() == [0.5, 0.5]
    assert round_weights(ledger, 0, "uniform").tolist() == [1, 1]


def test_participation_says_whose_models_were_aggregated(tiny_ledger):
    rows = participation(tiny_ledger)
    assert rows[0].all()
    assert rows[1:].sum(axis=1).tolist() == [2, 2]


def test_progress_is_told_every_round_and_the_end(tiny_ledger, tiny_task):
    told: list[tuple[int, int]] = []
    observe(
        tiny_ledger,
        LoopOracle(tiny_task),
        plans(tiny_ledger)["exact"],
        progress=lambda _, done, n_all: told.append((done, n_all)),
    )
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_fixed_weights_do_not_depend_on_whether_the_truth_was_wanted(tmp_path):
    """Client 2 is never heard; with the truth its model is kept apart, and must not count in the whole."""
    few = SimulationSettings(n_clients=4, copies=(), n_participants=1, n_rounds=2, train_limit=60, test_limit=20)
    settings = replace(few, everyone_heard=False, seed=1)
    apart = simulate(settings, tmp_path / "with")
    plain = simulate(replace(settings, with_truth=False), tmp_path / "without")
    assert not participation(apart).any(axis=0).all()
    for t in range(2):
        np.testing.assert_array_equal(round_weights(apart, t, "fixed"), round_weights(plain, t, "fixed"))


def test_a_ledger_with_only_missing_rounds_is_said_to_have_none(tmp_path, tiny_task):
    recorder = record_into(tmp_path / "l")
    recorder.lose_round(1, "the disk was full")
    recorder.release()
    with pytest.raises(LedgerError, match=r"no recorded rounds in it \(1 are missing: fedworth verify says why\)"):
        observe(open_ledger(tmp_path / "l"), LoopOracle(tiny_task))
