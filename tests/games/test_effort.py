"""How much is measured: all coalitions where that is cheap, elsewhere as many passes as the test set is worth."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.games.budget import Budget
from fedworth.games.effort import Effort, shapley, time_text
from fedworth.games.game import ModelGame
from fedworth.games.rules import leave_one_out, to_large
from fedworth.games.shapley import all_utilities, shapley_values
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.store import KeptOutputs, Session
from fedworth.task.task import Task
from fedworth.valuation.marginals import MarginalSums
from tests.support.games import ArrayGame
from tests.support.zoo import round_of

N, N_SAMPLES = 6, 200


@pytest.fixture
def slow(monkeypatch):
    """Evaluations take 40 ms."""
    monkeypatch.setattr(Effort, "seconds_of", lambda *_: 0.04)
    monkeypatch.setattr(Effort, "seconds_of_pass", lambda *_: 0.04)


def game_of(n=N, seed=0):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3)).eval()
    task = Task(module, torch.randn(N_SAMPLES, 6), torch.randint(0, 3, (N_SAMPLES,)))
    return ModelGame(LoopOracle(task), round_of(module, n, size=0.5), np.arange(n), np.ones(n), "uniform")


def test_a_cheap_game_is_enumerated():
    found = shapley(game_of(), np.random.default_rng(0))
    assert found.n_evaluations == 2**N - 1
    assert not found.sampling_covariance.any()


def test_the_time_of_an_evaluation_is_measured_once():
    effort = Effort()
    first = effort.seconds_of(game := game_of())
    assert 0 < first < 1
    assert effort.seconds_of(game) == first


def test_an_evaluation_of_very_many_clients_is_timed():
    assert 0 < Effort().seconds_of(game_of(n=25)) < 1


@pytest.mark.usefixtures("slow")
def test_slow_games_are_sampled():
    game = game_of()
    assert Effort().is_sampled(game, n_games=1000)  # 63,000 evaluations of 40 ms
    assert not Effort().is_sampled(game, n_games=1)  # 2.5 s
    assert not Effort(Budget(precision=0)).is_sampled(game, n_games=1000)
    assert Effort(Budget(evaluations=40)).is_sampled(game)
    assert Effort(Budget(seconds=0.5)).is_sampled(game)
    assert not Effort(sampled=False).is_sampled(game, n_games=1000)


@pytest.mark.usefixtures("slow")
def test_sampling_is_decided_once_whatever_is_known_already():
    game, effort = game_of(), Effort()
    assert effort.is_sampled(game, n_games=1000)
    assert effort.is_sampled(game, n_games=1)  # the last round of the same run
    all_utilities(game)
    assert Effort().is_sampled(game, n_games=1000)


def test_games_without_outputs_are_enumerated_up_to_twelve_clients():
    assert not Effort(sampled=True).is_sampled(ArrayGame(np.zeros(2**8)))
    assert Effort().is_sampled(ArrayGame(np.zeros(2**13)))


def test_many_rounds_need_few_passes_each_and_keep_the_precision_of_the_sum():
    run = Effort(Budget(precision=0.5), sampled=True).start(3, N)
    shares = [run(game_of(seed=seed), np.random.default_rng(seed)) for seed in range(3)]
    (note,) = run.notes()
    assert "coalitions are sampled" in note
    ratio = float(note.rpartition("error is ")[2].split()[0])
    assert ratio <= 0.5
    true = [shapley_values(all_utilities(game_of(seed=seed)).sum(axis=1)) for seed in range(3)]
    off = sum(one.totals for one in shares) - np.sum(true, axis=0)
    assert np.abs(off).max() < 5 * np.sqrt(run.sampling.max())


def test_a_round_that_is_precise_by_itself_stops_whatever_was_before():
    run = Effort(Budget(precision=0.5), sampled=True).start(2, N)
    first = run(game_of(), np.random.default_rng(0))
    run.sampling *= 1000  # errors that no later round can make up for
    again = run(game_of(), np.random.default_rng(0))
    assert again.n_evaluations == first.n_evaluations


def test_a_coarser_precision_takes_fewer_passes():
    passes = [
        Effort(Budget(precision=p), sampled=True).start(1, N)(game_of(), np.random.default_rng(0)).n_evaluations
        for p in (1.0, 0.2, 0.1)
    ]
    assert passes[0] < passes[1] < passes[2]


@pytest.mark.parametrize(
    ("budget", "said"), [(Budget(0.001, 14), "budget of evaluations"), (Budget(0.001, None, 0.01), "time")]
)
def test_a_budget_stops_before_the_precision_is_reached_and_says_so(budget, said):
    run = Effort(budget, sampled=True).start(1, N)
    found = run(game_of(), np.random.default_rng(0))
    assert found.n_evaluations <= 14
    assert said in run.notes()[0]


def test_a_precision_that_takes_too_many_passes_is_given_up_and_said():
    run = Effort(Budget(precision=1e-6), sampled=True).start(1, N)
    assert run(game_of(), np.random.default_rng(0)).n_evaluations < N + 2 + 64 + 8
    assert "64 passes at most" in run.notes()[0]


@pytest.mark.usefixtures("slow")
def test_what_it_will_take_is_said_before_it_starts(caplog):
    game, told = game_of(), []
    with caplog.at_level(logging.INFO, "fedworth.effort"):
        run = Effort(progress=lambda *now: told.append(now), sampled=True).start(1, N)
        run(game, np.random.default_rng(0))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "sampling coalitions of 6 clients, since one evaluation takes 40 ms" in line
    assert "63 coalitions would take about" in line
    assert told[-1][0] == "sampling coalitions"
    assert told[-1][1] == told[-1][2] == run.n_evaluations


def test_progress_is_told_from_the_first_pass_on_and_never_passes_its_total():
    told = []
    run = Effort(progress=lambda *now: told.append(now), sampled=True).start(2, N)
    for _ in range(2):
        run(game_of(), np.random.default_rng(0))
    done, totals = np.array([now[1:] for now in told if now[0] == "sampling coalitions"]).T
    assert {*range(N + 3)} <= {*done.tolist()}
    assert (np.diff(done) >= 0).all()
    assert (done <= totals).all()
    assert totals[0] >= 2 * (N + 2)


def test_slow_rules_that_sample_nothing_report_progress_by_round():
    told = []
    run = Effort(progress=lambda *now: told.append(now), sampled=True).start(2, N)
    for _ in range(2):
        run.by(leave_one_out)(game_of(), np.random.default_rng(0))
    assert [now[1:] for now in told] == [(1, 2), (2, 2)]


@pytest.mark.usefixtures("slow")
def test_long_work_says_what_would_shorten_it(caplog):
    with caplog.at_level(logging.INFO, "fedworth.effort"):
        Effort(sampled=True).start(2000, N)(game_of(), np.random.default_rng(0))
    assert "--test-samples" in caplog.text


class Clocked(ModelGame):
    """A game in which it takes a second to make a model, and a tenth for each sample."""

    now = 0.0

    def measured_outputs(self, _coalitions, which):
        for samples in which:
            Clocked.now += 1 + 0.1 * len(samples)
            yield torch.zeros(len(samples), 3)


def test_a_forecast_counts_the_models_that_small_batches_take(caplog, monkeypatch):
    monkeypatch.setattr("time.process_time", lambda: Clocked.now)
    game = game_of()
    game = Clocked(game.oracle, game.round_, game.clients, game.weights, game.weighting)
    with caplog.at_level(logging.INFO, "fedworth.effort"):
        Effort(sampled=True).forecast(game, N, 10)
    on_all = (1 + 0.1 * 64) * N_SAMPLES / 64  # timed on 64 samples
    on_batches = (1 + 0.1 * 10) * N_SAMPLES / 10
    assert f", {time_text(10 * (8 * on_all + 6 * on_batches))}, " in caplog.text


def test_other_methods_find_a_game_that_was_sampled():
    game, effort = game_of(), Effort(sampled=True)
    first = effort.start(1, N)(game, np.random.default_rng(0))
    assert effort.start(1, N)(game, np.random.default_rng(1)).values is first.values


def test_kept_outputs_change_neither_values_nor_what_is_drawn_afterwards():
    values, drawn = [], []
    for session in (None, Session(game_of().oracle.task)):
        for _ in range(2):  # the second time all outputs are known
            kept = None if session is None else KeptOutputs("a round", session)
            rng = np.random.default_rng(0)
            values.append(Effort(sampled=True).start(1, N)(replace(game_of(), kept=kept), rng).values.tobytes())
            drawn.append(rng.random())
    assert len(set(values)) == len(set(drawn)) == 1


def test_fourteen_clients_with_batch_norm_are_valued():
    game = game_of(n=14)
    found = shapley(game, np.random.default_rng(0))
    assert found.totals.sum() == pytest.approx(float(game.utilities(np.ones((1, 14), dtype=bool)).sum()), abs=1e-6)
    assert found.n_evaluations < 100


def test_models_that_nobody_would_use_alone_are_named():
    game = game_of()
    models = dict(game.round_.client_models)
    models[2] = {name: 400 * tensor if "3" in name else tensor for name, tensor in models[2].items()}
    game = replace(game, round_=replace(game.round_, client_models=models))
    run = Effort().start(1, N)
    run(game, np.random.default_rng(0))
    (note,) = run.notes()
    assert "the model of 2 alone" in note
    assert "--weighting fixed" in note
    assert "fedworth value LEDGER --method large-coalitions" in note
    large = Effort().start(1, N)
    found = large.by(to_large)(game, np.random.default_rng(0)).totals[2]
    assert found > shapley_values(all_utilities(game).sum(axis=1))[2] / 2
    assert large.notes() == ()


def test_contributions_to_large_coalitions_take_no_evaluations_of_their_own():
    """Where coalitions are sampled, what is added to large ones comes from the same draws as the Shapley values."""
    n_measured = []

    class Counting(LoopOracle):
        def utilities(self, round_, mixtures):
            n_measured.append(len(mixtures))
            return super().utilities(round_, mixtures)

    game = game_of()
    counted, effort = replace(game, oracle=Counting(game.oracle.task)), Effort(Budget(precision=0.02), sampled=True)
    effort.start(1, N)(counted, np.random.default_rng(0))
    n_before = len(n_measured)
    sums = MarginalSums(tuple("abcdef"))
    sums.add(1, counted, is_exact=False)
    found = effort.start(1, N).by(to_large)(counted, np.random.default_rng(0))
    assert len(n_measured) == n_before
    assert sums.of(np.ones(N)).large == pytest.approx(found.totals)
    exact = to_large(game, np.random.default_rng(0)).totals
    assert np.abs(found.totals - exact).max() < 4 * found.standard_errors.max()
    assert found.standard_errors.max() < 0.2 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.002, "2 ms"), (0.59, "590 ms"), (3.0, "3.0 s"), (400, "6.7 minutes"), (40_000, "11 hours"), (1e6, "12 days")],
)
def test_times_are_said_in_fitting_units(seconds, text):
    assert time_text(seconds) == text
