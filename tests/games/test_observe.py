"""Measuring the utility matrix: exactly, by permutations, within a budget, and never twice."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from fedworth.coalitions import prefixes_within
from fedworth.errors import LedgerError, TooManyError, UsageError
from fedworth.games.budget import Budget
from fedworth.games.federation import RecordedFederation
from fedworth.games.observe import planned_permutations, utility_matrix
from fedworth.ledger import ledger as ledger_module
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.model_file import read_models
from fedworth.oracle.oracle import LoopOracle
from fedworth.pipeline.report_on import report_on
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of


@dataclass
class CountingOracle:
    """The plain loop, and how many coalitions it was asked for."""

    inner: LoopOracle
    n_asked: int = field(default=0)

    @property
    def task(self):
        return self.inner.task

    @property
    def measure(self):
        return self.inner.measure

    @property
    def n_blocks(self):
        return self.inner.n_blocks

    def utilities(self, round_, mixtures):
        self.n_asked += len(mixtures)
        return self.inner.utilities(round_, mixtures)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory) -> Ledger:
    settings = SimulationSettings(n_clients=5, n_participants=2, n_rounds=3, train_limit=100, test_limit=40)
    return simulate(settings, tmp_path_factory.mktemp("observe") / "ledger")


@pytest.fixture
def recorded(ledger):
    return RecordedFederation(ledger, CountingOracle(LoopOracle(task_of(ledger))), "uniform")


def test_every_coalition_of_the_participants_is_measured_once(recorded):
    matrix = utility_matrix(recorded, None)
    sizes = recorded.participants.sum(axis=1)
    assert recorded.oracle.n_asked == sum(2**size - 1 for size in sizes)
    assert len(matrix.utilities) == sum(2**size for size in sizes)
    utility_matrix(recorded, None)
    assert recorded.oracle.n_asked == sum(2**size - 1 for size in sizes)


def test_only_prefixes_within_the_participants_are_measured(recorded):
    permutations = planned_permutations(recorded.participants, 7)
    assert permutations is not None
    matrix = utility_matrix(recorded, permutations)
    wanted = [prefixes_within(permutations, row) for row in recorded.participants]
    assert len(matrix.utilities) == 3 + sum(len(np.unique(rows, axis=0)) for rows in wanted)
    np.testing.assert_array_equal(matrix.permutations, permutations)


def test_more_permutations_begin_with_those_of_fewer(recorded):
    few, many = (planned_permutations(recorded.participants, n, seed=3) for n in (4, 9))
    assert few is not None
    assert many is not None
    np.testing.assert_array_equal(few, many[:4])


def test_few_clients_are_enumerated_and_many_are_sampled():
    assert planned_permutations(np.ones((1, 12), dtype=bool), None) is None
    permutations = planned_permutations(np.ones((1, 13), dtype=bool), None)
    assert permutations is not None
    assert len(permutations) == 13 * 3  # N⌈ln N⌉
    with pytest.raises(TooManyError, match="--permutations"):
        planned_permutations(np.ones((1, 1000), dtype=bool), None)
    with pytest.raises(UsageError, match="1 permutations"):
        planned_permutations(np.ones((1, 3), dtype=bool), 1)


def test_a_budget_of_evaluations_gives_fewer_permutations(recorded):
    permutations = planned_permutations(recorded.participants, 40)
    matrix = utility_matrix(recorded, permutations, budget=Budget(evaluations=30))
    assert recorded.oracle.n_asked <= 30
    assert matrix.permutations is not None
    assert 2 <= len(matrix.permutations) < 40


def test_an_exact_matrix_needs_its_whole_budget(recorded):
    with pytest.raises(UsageError, match="takes 37 evaluations, the budget is 10"):
        utility_matrix(recorded, None, budget=Budget(evaluations=10))


def test_a_time_limit_stops_between_batches(recorded, monkeypatch):
    now = iter(range(0, 10_000, 5))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now)))
    with pytest.raises(UsageError, match=r"time ran out.*--no-cache"):  # nothing was kept
        utility_matrix(recorded, None, budget=Budget(seconds=7))
    assert 0 < recorded.oracle.n_asked < 37


@pytest.mark.parametrize("budget", [{"evaluations": 0}, {"seconds": 0.0}, {"seconds": float("nan")}])
def test_a_budget_of_nothing_is_refused(budget):
    with pytest.raises(UsageError, match="budget"):
        Budget(**budget)


def test_the_truth_needs_every_clients_model(ledger, recorded):
    assert recorded.has_truth
    assert len(recorded.true_game(1).clients) == 5
    settings = SimulationSettings(
        n_clients=4, n_participants=2, n_rounds=2, train_limit=80, test_limit=40, with_truth=False
    )
    other = simulate(settings, ledger.folder.parent / "without-truth")
    unknown = RecordedFederation(other, LoopOracle(task_of(other)), "uniform")
    assert not unknown.has_truth
    with pytest.raises(LedgerError, match="truth"):
        unknown.true_game(1)


def test_a_report_reads_and_hashes_each_file_once(ledger, monkeypatch):
    opened: list[str] = []
    read = read_models

    def counted(path, sha256):
        opened.append(path.name)
        return read(path, sha256)

    monkeypatch.setattr(ledger_module, "read_models", counted)
    report_on(Ledger.open(ledger.folder), task_of(ledger))
    rounds = [f"{t:06d}.safetensors" for t in range(3)]
    twice = rounds[1:]  # the later rounds have models kept apart, in a second file
    assert sorted(opened) == sorted([*rounds, *twice, "final.safetensors"])
