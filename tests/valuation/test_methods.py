"""Methods share out games: closed forms, agreement with each other, and methods that others add."""

import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from torch import nn

from fedworth import Method, Shares, UtilityMatrix, share_out, value
from fedworth.coalitions import prefixes
from fedworth.completion import factors
from fedworth.errors import NeverHeardError, UsageError, ValuationError
from fedworth.games.game import everyone_of
from fedworth.games.permutations import draw_permutations
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.valuation import methods as registry
from fedworth.valuation.federation import Federation
from fedworth.valuation.methods import METHODS, OF_EMBEDDINGS, methods
from fedworth.valuation.settings import ValuationSettings, WorkSettings
from tests.support.games import matrix_of, participation, shapley_by_definition

EVERYONE = np.ones((3, 4), dtype=bool)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    settings = SimulationSettings(
        n_clients=5, n_participants=2, n_rounds=4, copies=((4, 0),), train_limit=150, test_limit=60
    )
    return simulate(settings, tmp_path_factory.mktemp("methods") / "ledger")


def federation(ledger, **settings) -> Federation:
    return Federation(ledger, task_of(ledger), ValuationSettings(**settings), work=WorkSettings(cache=False))


def utilities(n_rounds: int, n_clients: int, seed: int = 0) -> np.ndarray:
    cells = np.random.default_rng(seed).normal(size=(n_rounds, 2**n_clients))
    cells[:, 0] = 0
    return cells


def test_fedsv_is_the_shapley_value_of_each_rounds_participants():
    cells, present = utilities(3, 4), participation(3, 4, 2, np.random.default_rng(1))
    found = value(matrix_of(cells, present), "fedsv")
    expected = np.zeros((3, 4))
    for t, row in enumerate(present):
        members = np.flatnonzero(row)
        inside = [
            sum(1 << int(members[b]) for b in range(len(members)) if c >> b & 1) for c in range(2 ** len(members))
        ]
        expected[t, members] = shapley_by_definition(cells[t, inside])
    assert found.by_round == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(found.values, expected.sum(axis=0), atol=1e-12)


def test_thirteen_clients_whose_utilities_are_all_brought_are_valued_exactly():
    sizes = np.bitwise_count(np.arange(2**13, dtype=np.uint16)).astype(float)
    matrix = matrix_of(np.sqrt(sizes)[None], np.ones((1, 13), dtype=bool))
    for method in ("fedsv", "comfedsv"):
        found = value(matrix, method)
        assert found.sampling_errors is None
        np.testing.assert_allclose(found.values, found.values.mean(), atol=1e-9)  # equal clients, equal values


def test_rounds_that_share_their_permutations_err_together():
    """Ten equal rounds by the same permutations: ten times the standard error of one, not √10 times."""
    rng = np.random.default_rng(0)
    permutations = rng.permuted(np.tile(np.arange(4), (6, 1)), axis=1)
    cells = utilities(1, 4)
    errors = []
    for n_rounds in (1, 10):
        matrix = matrix_of(np.repeat(cells, n_rounds, axis=0), np.ones((n_rounds, 4), dtype=bool))
        prefixes_only = matrix.within(prefixes(permutations, 4))
        found = value(replace(prefixes_only, permutations=permutations), "comfedsv")
        errors.append(found.sampling_errors / np.abs(found.values).sum())
    np.testing.assert_allclose(errors[1], errors[0], rtol=0.05)


def test_leave_one_out_is_what_everyone_loses_without_the_client():
    cells = utilities(3, 4)
    found = value(matrix_of(cells, EVERYONE), "leave-one-out").values
    expected = [sum(cells[t, 15] - cells[t, 15 ^ 1 << i] for t in range(3)) for i in range(4)]
    np.testing.assert_allclose(found, expected)


def test_with_everyone_in_every_round_all_ways_of_completing_agree(ledger):
    settings = SimulationSettings(n_clients=4, n_participants=4, n_rounds=3, train_limit=100, test_limit=50)
    full = simulate(settings, ledger.folder.parent / "full")
    made = federation(full)
    expected = made.value("fedsv").values
    for method in ("comfedsv-models", "truth"):
        np.testing.assert_allclose(made.value(method).values, expected, atol=1e-9)


def test_values_by_round_and_by_block_add_up(ledger):
    made = federation(ledger)
    for method in ("fedsv", "comfedsv-models", "comfedsv", "truth", "all-clients-round"):
        found = made.value(method)
        assert found.by_round is not None
        assert found.block_values is not None
        np.testing.assert_allclose(found.by_round.sum(axis=0), found.values, atol=1e-12)
        np.testing.assert_allclose(found.block_values.sum(axis=1), found.values, atol=1e-12)


def test_copies_are_worth_the_same_by_models_and_in_truth(ledger):
    made = federation(ledger)
    for method in ("comfedsv-models", "truth"):
        values = made.value(method).values
        assert values[4] == pytest.approx(values[0], abs=1e-7), method


@pytest.mark.parametrize("method", [name for name in METHODS if name not in {"retraining", *OF_EMBEDDINGS}])
def test_every_method_values_a_ledger(ledger, method):
    found = federation(ledger).value(method)
    assert found.method == method
    assert np.isfinite(found.values).all()
    assert found.label == METHODS[method].label


@pytest.mark.parametrize("method", ["banzhaf", "beta-shapley", "least-core"])
def test_other_rules_on_completed_games_do_not_take_the_intervals_of_shapley_values(ledger, method):
    found = federation(ledger).value(method)
    assert found.uncertainty is None
    assert not any("interval" in note for note in found.notes)
    assert found.n_evaluations == 4 * 31  # every coalition of five clients in every round


def test_models_are_measured_once_for_all_methods(ledger):
    class Counting(LoopOracle):
        n_measured = 0

        def utilities(self, round_, mixtures):
            self.n_measured += len(mixtures)
            return super().utilities(round_, mixtures)

    oracle = Counting(task_of(ledger))
    made = Federation(ledger, oracle.task, work=WorkSettings(cache=False), oracle=oracle)
    made.value("comfedsv-models")
    n_measured = oracle.n_measured
    for method in ("comfedsv", "fedsv", "banzhaf", "beta-shapley", "least-core", "leave-one-out"):
        made.value(method)
    assert oracle.n_measured == n_measured


def test_nothing_is_measured_for_predictions_where_nobody_was_ever_absent(tmp_path):
    settings = SimulationSettings(n_clients=5, n_participants=5, n_rounds=3, train_limit=150, test_limit=300)
    ledger = simulate(settings, tmp_path / "ledger")
    oracle = Stopping(task_of(ledger))
    work = WorkSettings(cache=False)
    made = Federation(ledger, oracle.task, oracle=oracle, sampled=True, work=work).value("comfedsv-models")
    assert oracle.n_measured == pytest.approx(made.n_evaluations, abs=2)
    assert oracle.describe() == "nothing measured yet"  # no coalition on the whole test set
    assert made.completion is None


def test_measured_utilities_are_kept(ledger, cache):
    work = WorkSettings(cache=True)
    first = Federation(ledger, task_of(ledger), work=work).value("fedsv").values
    kept = sorted(cache.rglob("*.npz"))
    assert len(kept) == 4
    again = Federation(ledger, task_of(ledger), work=work)
    np.testing.assert_array_equal(again.value("fedsv").values, first)


def test_a_client_that_no_round_heard_has_no_value_and_is_named():
    present = np.array([[True, True, False, True]] * 3)
    cells = utilities(3, 4)
    found = value(matrix_of(cells, present), "fedsv")
    assert np.isnan(found.values[2])
    assert any("client 'c' took part in none of 3 rounds; it has no value" in note for note in found.notes)
    with pytest.raises(NeverHeardError, match="client 'c'"):
        value(matrix_of(cells, present), "fedsv", ValuationSettings(strict=True))


def test_what_a_method_needs_and_does_not_have_is_refused():
    matrix = matrix_of(utilities(3, 4), participation(3, 4, 2, np.random.default_rng(0)))
    with pytest.raises(ValuationError, match="models"):
        value(matrix, "cosine")
    assert np.isfinite(value(matrix, "banzhaf").values).all()  # on the game by factors
    for method in ("truth", "comfedsv-models", "or"):
        with pytest.raises(ValuationError, match=r"model.*only utilities are known"):
            value(matrix, method)
    never_all = matrix_of(utilities(2, 4), [[True, True, False, False], [False, False, True, True]])
    with pytest.raises(ValuationError, match="at most 2 of 4"):
        value(never_all, "all-clients-round")
    with pytest.raises(UsageError, match="did you mean 'fedsv'"):
        value(matrix, "fedsw")


def equal_shares(game, _rng):
    n = len(game.clients)
    return Shares(np.tile(everyone_of(game) / n, (n, 1)), np.zeros((n, n)), 1)


EQUAL = Method("equal shares", "everyone gets the same part of what all achieved", share_out(equal_shares))


def test_another_package_adds_a_method_by_an_entry_point(monkeypatch):
    entry = EntryPoint("equal", f"{__name__}:EQUAL", "fedworth.methods")
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == "fedworth.methods" else [])
    methods.cache_clear()
    try:
        cells = utilities(3, 4)
        found = value(matrix_of(cells, EVERYONE), "equal")
        np.testing.assert_allclose(found.values, cells[:, 15].sum() / 4)
        assert found.label == "equal shares"
    finally:
        methods.cache_clear()


def test_a_brought_file_is_valued(tmp_path):
    matrix_of(utilities(3, 4), EVERYONE).save(tmp_path / "mine.npz")
    again = UtilityMatrix.load(tmp_path / "mine.npz")
    np.testing.assert_array_equal(
        value(again, "fedsv").values, value(matrix_of(utilities(3, 4), EVERYONE), "fedsv").values
    )


@pytest.mark.parametrize("permutations", [None, 4])
@pytest.mark.parametrize("is_large", [False, True])
def test_factors_of_brought_utilities_have_intervals_with_a_caveat_or_a_note(permutations, is_large, monkeypatch):
    monkeypatch.setattr(factors, "MOST_CELLS", 10 if is_large else 10_000)
    rng = np.random.default_rng(0)
    orders = None if permutations is None else draw_permutations(np.arange(4), permutations, rng=rng)
    found = value(matrix_of(utilities(6, 4), participation(6, 4, 2, rng), orders), "comfedsv")
    if is_large:
        assert found.uncertainty is None
        assert factors.UNKNOWN in found.notes
    else:
        assert found.uncertainty is not None
        said = [str(caveat) for caveat in found.uncertainty.caveats]
        assert said[0] == factors.TOO_NARROW
        assert "on this test set only: the utilities are not given by block" in said[1]


def test_values_by_accuracy_are_measured_with_those_by_loss_and_other_ranks_are_told(tmp_path):
    """On exactly this test set, and with everyone in every round, each difference of ranks counts."""
    settings = SimulationSettings(
        n_clients=6, n_participants=6, n_rounds=3, train_limit=300, test_limit=100, rate=2.0, n_steps=10
    )
    ledger = simulate(settings, tmp_path / "l")
    task = task_of(ledger)
    by_loss, by_accuracy = (
        Federation(ledger, task, ValuationSettings(measure=measure, interval="test-set")).value("comfedsv-models")
        for measure in ("loss", "accuracy")
    )
    np.testing.assert_allclose(by_loss.by_measure["accuracy"], by_accuracy.values, atol=1e-9)
    assert by_accuracy.by_measure == {}
    apart = [k for k in range(6) if by_loss.ranks[k] != by_accuracy.ranks[k]]
    (told,) = [note for note in by_loss.notes if note.startswith("by accuracy the order differs: ")]
    assert 0 < len(apart) <= 5
    for k in apart:
        assert f"{k} has rank {by_accuracy.ranks[k]} instead of {by_loss.ranks[k]}" in told


class Stopping(FastOracle):
    """Counts the passes of the test set that it measures, and may be interrupted."""

    n_measured, most = 0.0, np.inf

    def outputs(self, round_, mixtures, which):
        found = super().outputs(round_, mixtures, which)
        for samples, outputs in zip(which, found, strict=True):
            if self.n_measured > self.most:
                raise KeyboardInterrupt
            self.n_measured += len(samples) / len(self.task.labels)
            yield outputs


KILLED = """
import os, signal, sys
from fedworth.ledger.ledger import Ledger
from fedworth.oracle import store
from tests.valuation import test_methods as here

class Stopping(here.Stopping):  # by the same name, which the key contains
    def outputs(self, *args):
        for found in super().outputs(*args):
            if self.n_measured > 15:
                os.kill(os.getpid(), signal.SIGKILL)
            yield found

store.SAVED_EVERY = 0.0
ledger = Ledger.open(sys.argv[1])
oracle = Stopping(here.task_of(ledger))
here.Federation(ledger, oracle.task, oracle=oracle, sampled=True).value("fedsv")
"""


def test_sampling_that_was_killed_goes_on_where_it_stopped(tmp_path, cache):
    settings = SimulationSettings(
        n_clients=5, n_participants=5, n_rounds=3, train_limit=150, test_limit=300, model="mlp", hidden=(8,)
    )
    ledger = simulate(settings, tmp_path / "ledger")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(ledger.folder)], check=False)
    assert killed.returncode == -signal.SIGKILL
    n_measured = []
    for _ in range(2):
        oracle = Stopping(task_of(ledger))
        made = Federation(ledger, oracle.task, oracle=oracle, sampled=True)
        n_measured.append((made.value("fedsv").n_evaluations, oracle.n_measured))
        shutil.rmtree(cache)
    assert n_measured[0][0] == n_measured[1][0]
    assert n_measured[0][1] < n_measured[1][1] - 10


def test_copies_are_worth_the_same_where_coalitions_are_sampled(tmp_path):
    settings = SimulationSettings(
        n_clients=6, n_participants=3, n_rounds=4, copies=((5, 0),), with_truth=False, model="mlp", hidden=(8,)
    )
    ledger = simulate(settings, tmp_path / "ledger")
    work = WorkSettings(cache=False)
    found = Federation(ledger, task_of(ledger), work=work, sampled=True).value("comfedsv-models")
    assert found.values[5] == pytest.approx(found.values[0], abs=1e-12)
    assert found.sampling_errors is not None
    assert found.sampling_errors[5] == pytest.approx(found.sampling_errors[0])
    assert found.sampling_errors[0] > 0
    assert len(set(found.values.round(6))) == 5


def test_another_measure_uses_the_outputs_that_were_kept(tmp_path, cache):
    settings = SimulationSettings(
        n_clients=5, n_participants=5, n_rounds=2, train_limit=150, test_limit=300, model="mlp", hidden=(8,)
    )
    ledger = simulate(settings, tmp_path / "ledger")

    def valued(measure):
        oracle = Stopping(task_of(ledger), measure=measure)
        work = WorkSettings(cache=True)
        made = Federation(
            ledger, oracle.task, ValuationSettings(measure=measure), oracle=oracle, sampled=True, work=work
        )
        return made.value("fedsv").values, oracle.n_measured

    alone, n_alone = valued("accuracy")
    shutil.rmtree(cache)
    _, n_loss = valued("loss")
    after, n_after = valued("accuracy")  # which takes more passes, since it varies more
    assert after == pytest.approx(alone, abs=1e-12)
    assert n_after < n_alone - n_loss + 2  # some samples are measured again, to compare kept outputs and to time a pass


class OwnModule(nn.Sequential):
    """A module of the user's own, of which nobody knows what it computes."""


@pytest.mark.parametrize("n_participants", [5, 3])
@pytest.mark.parametrize("is_own", [False, True])
def test_interrupted_sampling_goes_on_where_it_stopped(tmp_path, cache, n_participants, is_own):
    settings = SimulationSettings(
        n_clients=5, n_participants=n_participants, n_rounds=4, train_limit=150, test_limit=300, model="mlp",
        hidden=(8,),
    )  # fmt: skip
    ledger = simulate(settings, tmp_path / "ledger")
    task = task_of(ledger)
    if is_own:
        task = replace(task, module=OwnModule(*task.module.children()))

    def valued(most=np.inf, **more):
        oracle = Stopping(more.pop("task", task))
        oracle.most = most
        made = Federation(
            ledger, oracle.task, ValuationSettings(**more), oracle=oracle, sampled=True, work=WorkSettings(cache=True)
        )
        try:
            return made.value("comfedsv-models").values, oracle.n_measured
        except KeyboardInterrupt:
            return None, oracle.n_measured

    assert valued(most=15)[0] is None
    again, n_again = valued()
    third, n_third = valued()
    shutil.rmtree(cache)
    whole, n_whole = valued()
    np.testing.assert_array_equal(again, whole)
    np.testing.assert_array_equal(third, whole)
    assert n_third < 3  # a few samples, to see that the module is the same
    assert 12 < n_whole - n_again < 18
    if is_own:  # the same tensors, but other outputs
        other = OwnModule(*task.module.children(), nn.Hardtanh(-2, 2))
        changed, n_changed = valued(task=replace(task, module=other))
        assert n_changed > n_whole - 3
        assert np.abs(changed - whole).max() > 1e-3
