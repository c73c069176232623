"""Everyone's games by models: what was measured stays, copies are equal, blocks add up, intervals hold the truth."""

from dataclasses import replace

import numpy as np
import pytest

from fedworth.arrays import stream
from fedworth.coalitions import coalitions_of
from fedworth.completion.completion import heard_early, heard_little, heard_once
from fedworth.completion.models import complete as complete_module
from fedworth.completion.models import complete_by_models
from fedworth.completion.models import gaussian_process as gp_module
from fedworth.games.effort import shapley
from fedworth.games.federation import RecordedFederation
from fedworth.games.game import ModelGame, SummedGame
from fedworth.games.shapley import shapley_values
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.server import server_of
from fedworth.oracle.weighting import mixtures, participation
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.task.replay import replayed
from fedworth.task.rules import Adaptive, Krum, Median, ServerMomentum, WeightedMean, arrays_of
from tests.oracle.test_server import loss
from tests.oracle.test_server import task as server_task
from tests.support.by_hand import ByHand
from tests.support.servers import federation as served_federation

EVERYONE = coalitions_of(np.arange(5), 5)


def recorded(ledger, oracle=None, weighting="uniform"):
    return RecordedFederation(ledger, oracle or FastOracle(task_of(ledger), n_threads=1), weighting)


def cells_of(completion):
    """(n_rounds, 2^n): utilities of all coalitions of the heard clients."""
    every = coalitions_of(np.arange(len(completion.heard)), len(completion.heard))
    return np.stack([completion.game(t).utilities(every).sum(axis=1) for t in range(completion.n_rounds)])


def rewritten(ledger, folder, *, unanswered=None, idle=False, heard=None):
    """The same federation, with a round that nobody answered, a client that returns the global model, or only some
    rounds of some clients."""
    names = [*ledger.clients, "idle"] if idle else ledger.clients
    writer = LedgerWriter.create(folder, names, aggregation="uniform")
    for t, round_ in enumerate(ledger.rounds()):
        if t == unanswered:
            writer.record_round(round_.global_model, {})
        present = [k for k in ledger.participants(t) if heard is None or t in heard.get(k, (t,))]
        answers = {ledger.clients[k]: Answer(round_.client_models[k], 1) for k in present}
        extra = {"idle": Answer(round_.global_model, 1)} if idle else {}
        writer.record_round(round_.global_model, {**answers, **extra})
    writer.close(ledger.final_model())
    return Ledger.open(folder)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_every_utility_is_what_the_formulas_say(ledger, task, weighting):
    by_hand = ByHand(ledger, task, weighting)
    expected = [[by_hand.cell(t, np.flatnonzero(row).tolist()) for row in EVERYONE] for t in range(4)]
    made = complete_by_models(recorded(ledger, LoopOracle(task), weighting))
    assert made.singletons.noise == by_hand.noise()
    np.testing.assert_allclose(cells_of(made), expected, rtol=2e-4, atol=2e-6)


def test_coalitions_of_participants_have_their_measured_utilities(ledger):
    federation = recorded(ledger)
    made = complete_by_models(federation)
    for t in range(4):
        present = federation.participants[t]
        seen = EVERYONE[~EVERYONE[:, ~present].any(axis=1)]
        np.testing.assert_array_equal(
            made.game(t).utilities(seen), federation.game(t).utilities(seen[:, present]), strict=True
        )
    assert (cells_of(made)[:, 0] == 0).all()


def test_a_copy_has_the_value_and_the_error_of_its_original(ledger):
    made = complete_by_models(recorded(ledger))
    assert made.models.participants[1:, [0, 4]].tolist() == [[True, False], [False, True], [True, True]]
    values, covariance = shapley_values(cells_of(made).sum(axis=0)), made.covariance()
    assert values[4] == pytest.approx(values[0], rel=1e-5)
    apart = covariance[0, 0] + covariance[4, 4] - 2 * covariance[0, 4]
    assert apart == pytest.approx(0, abs=1e-6 * covariance[0, 0])


@pytest.mark.parametrize(("weighting", "n_blocks"), [("uniform", 3), ("fixed", 3), ("samples", 320)])
def test_blocks_add_up_to_the_whole_test_set(ledger, task, weighting, n_blocks):
    whole, by_block = (
        complete_by_models(recorded(ledger, LoopOracle(one), weighting)) for one in (task, split(task, n_blocks))
    )
    scale, rng = np.abs(cells_of(whole)).max(), np.random.default_rng(0)
    for t in range(4):
        found = by_block.game(t).utilities(EVERYONE)
        assert found.shape == (32, n_blocks)
        expected = whole.game(t).utilities(EVERYONE)[:, 0]
        np.testing.assert_allclose(found.sum(axis=1), expected, rtol=0, atol=1e-9 * scale)
        ours, theirs = (shapley(completion.game(t), rng).totals for completion in (by_block, whole))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9 * scale)
    np.testing.assert_allclose(by_block.covariance(), whole.covariance(), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(by_block.held.block_errors.sum(axis=1), whole.held.errors.sum(axis=1), rtol=1e-6)


def split(task, n_blocks):
    """The same task with its test samples in shuffled blocks, some of which may be empty."""
    blocks = np.random.default_rng(0).integers(0, n_blocks, len(task.labels))
    blocks[0] = n_blocks - 1
    return replace(task, blocks=blocks)


def test_error_ratios_compare_held_out_errors_of_groups_with_the_whole(ledger, task):
    made = complete_by_models(recorded(ledger, LoopOracle(split(task, 4))))
    assert made.error_ratios(np.ones((4, 1))) == pytest.approx([1])
    found = made.error_ratios(np.array([[1.0, 0, 0], [0, 1, 0], [0, 1, 0], [1, 0, 0]]))
    errors, rounds = made.held.block_errors, made.models.process.rounds[made.held.points]
    weights = made.singletons.scale[rounds] ** 2
    first, second, all_ = (weights @ part.sum(axis=1) ** 2 for part in (errors[:, [0, 3]], errors[:, [1, 2]], errors))
    assert found == pytest.approx([np.sqrt(first / all_), np.sqrt(second / all_), 0])


def test_games_of_earlier_rounds_are_forgotten_where_they_take_much_memory(ledger, monkeypatch):
    made = complete_by_models(recorded(ledger))
    first = made.game(1)
    before = first.utilities(EVERYONE)
    assert made.game(2).n_blocks == 1
    assert made.game(1) is first
    monkeypatch.setattr(complete_module, "MOST_REMEMBERED", 100)
    assert made.game(3).n_blocks == 1
    assert made.game(1) is not first
    np.testing.assert_array_equal(made.game(1).utilities(EVERYONE), before)


@pytest.mark.parametrize("weighting", ["uniform", "fixed"])
def test_other_measures_are_completed_in_the_same_evaluations(ledger, task, weighting):
    oracle = LoopOracle(replace(task, blocks=np.arange(len(task.labels)) % 3), also=("accuracy",))
    alone = complete_by_models(recorded(ledger, LoopOracle(oracle.task), weighting))
    both = complete_by_models(recorded(ledger, oracle, weighting))
    by_accuracy = LoopOracle(task, "accuracy")
    for t in range(4):
        game = both.game(t)
        np.testing.assert_allclose(game.utilities(EVERYONE), alone.game(t).utilities(EVERYONE), atol=1e-12)
        found, absent = game.columns(EVERYONE)[:, 3], ~both.models.participants[t]
        measured = ~EVERYONE[:, absent].any(axis=1) | (EVERYONE.sum(axis=1) != 1) | (weighting == "fixed")
        wanted = mixtures(EVERYONE[measured], both.models.federation.weights(t), weighting)
        expected = by_accuracy.utilities(both.open_round(t), wanted)[:, 0]
        np.testing.assert_allclose(found[measured], expected, atol=1e-12)
        assert np.isfinite(found).all()


def test_it_reads_nothing_that_the_server_has_not_seen(ledger):
    before = complete_by_models(recorded(ledger))
    cells, covariance = cells_of(before), before.covariance()
    for path in (ledger.folder / "apart").glob("*.safetensors"):
        path.write_bytes(np.full(path.stat().st_size // 4 + 1, np.nan, dtype=np.float32).tobytes())
    after = complete_by_models(recorded(Ledger.open(ledger.folder)))
    assert cells_of(after).tobytes() == cells.tobytes()
    assert after.covariance().tobytes() == covariance.tobytes()
    assert after.summary() == before.summary()


def test_it_works_without_an_all_clients_round(settings, tmp_path):
    ledger = simulate(replace(settings, everyone_heard=False, n_rounds=8), tmp_path / "l")
    made = complete_by_models(recorded(ledger))
    assert participation(ledger).any(axis=0).all()
    assert not made.summary()["everyone_heard"]
    assert np.isfinite(cells_of(made)).all()
    assert np.isfinite(made.covariance()).all()


def test_clients_that_no_round_heard_are_not_in_the_games(settings, tmp_path):
    ledger = simulate(replace(settings, everyone_heard=False, n_rounds=1), tmp_path / "l")
    made = complete_by_models(recorded(ledger))
    assert made.heard.tolist() == np.flatnonzero(participation(ledger)[0]).tolist()
    assert made.game(0).clients.tolist() == made.heard.tolist()
    assert made.covariance().shape == (2, 2)


def test_if_everyone_always_takes_part_nothing_is_predicted(settings, tmp_path):
    ledger = simulate(replace(settings, n_participants=5, n_rounds=2), tmp_path / "l")
    made = complete_by_models(recorded(ledger))
    assert not made.covariance().any()
    assert not made.error_ratios(np.ones((1, 2))).any()
    assert (made.summary()["n_evaluations"], made.summary()["n_held_out"], made.caveats) == (0, 0, ())


@pytest.mark.parametrize("n_participants", [2, 5])
def test_a_round_that_nobody_answered_adds_nothing(settings, tmp_path, n_participants):
    ledger = simulate(replace(settings, n_participants=n_participants), tmp_path / "first")
    longer, oracle = rewritten(ledger, tmp_path / "longer", unanswered=2), LoopOracle(task_of(ledger))
    made, before = (complete_by_models(recorded(one, oracle)) for one in (longer, ledger))
    assert not made.game(2).utilities(EVERYONE).any()
    assert len(made.held.points) == len(before.held.points)
    if n_participants == 5:  # nothing is predicted, so everything else is equal
        np.testing.assert_array_equal(cells_of(made)[[0, 1, 3, 4]], cells_of(before))
        assert not made.covariance().any()
    else:
        assert (np.diag(made.covariance()) > 0).all()


def test_with_fixed_weights_a_client_that_returns_the_global_model_adds_nothing(ledger, task, tmp_path):
    with_idle = rewritten(ledger, tmp_path / "l", idle=True)
    made = complete_by_models(recorded(with_idle, LoopOracle(task), "fixed"))
    without, together = np.split(cells_of(made).sum(axis=0), 2)  # the idle client is the highest bit
    np.testing.assert_allclose(together, without, atol=1e-6)


def test_a_client_heard_once_gets_a_caveat(ledger):
    made = complete_by_models(recorded(ledger))
    assert made.models.participants[:, 2].sum() == 1
    assert heard_once(["2"]) in made.caveats


def test_clients_heard_in_few_or_early_rounds_get_a_caveat(settings, tmp_path):
    whole = simulate(replace(settings, n_participants=5, n_rounds=12, copies=()), tmp_path / "whole")
    some = rewritten(whole, tmp_path / "some", heard={0: (3,), 1: (0, 5, 11), 2: (0, 1, 2, 3, 4)})
    made = complete_by_models(recorded(some, FastOracle(task_of(whole), n_threads=1)))
    last = some.entries[4].number
    assert made.caveats == (heard_once(["0"]), heard_little({"1": 3}, 12), heard_early({"2": last}))


def test_a_caveat_names_all_clients_that_it_is_about():
    assert str(heard_little({"b": 3, "a": 2}, 12)) == (
        "b and a took part in 2 or 3 of 12 rounds only; their intervals may be too narrow"
    )
    assert str(heard_early({"a": 2, "b": 4, "c": 3})).startswith("a, b and c did not take part after round 4; if their")
    everyone = [f"{{{k}}}" for k in range(20)]  # braces, as in a template
    many = heard_once(everyone)
    assert many.clients == tuple(everyone)
    assert "{11} and 8 more took part in one round only" in str(many)


def test_full_participation_has_no_caveat(settings, tmp_path):
    everyone = replace(settings, n_participants=settings.n_clients, n_rounds=3)
    assert complete_by_models(recorded(simulate(everyone, tmp_path / "l"))).caveats == ()


RULES = (WeightedMean(), ServerMomentum(1.0, 0.9), Adaptive("adam"), Median(), Krum(1))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_coalitions_with_absent_clients_are_aggregated_by_the_servers_rule(rule, tmp_path):
    ledger = served_federation(tmp_path / "l", rule, recorded=rule)
    weighting = ledger.aggregation
    oracle = server_of(ledger, FastOracle(server_task(), n_threads=1), weighting).oracle
    made = complete_by_models(recorded(ledger, oracle, weighting))
    for t, step in enumerate(replayed(ledger, rule)):
        game = made.game(t)
        assert isinstance(game, ModelGame)
        round_ = game.round_
        absent = sorted(set(round_.client_models) - set(round_.entry.participants))
        order = [*round_.entry.participants, *absent]
        before, models = arrays_of(round_.global_model), [arrays_of(round_.client_models[k]) for k in order]
        after, _ = rule.aggregate(before, models, [10.0 + k for k in order], step.state)
        found = game.utilities(np.ones((1, 4), dtype=bool)).sum()
        assert found == pytest.approx(loss(before) - loss(after), abs=1e-5)
        assert len(absent) == (0 if t == 0 else 1)


def test_a_completion_of_too_many_updates_for_one_inverse_stays_near(ledger, monkeypatch):
    before = cells_of(complete_by_models(recorded(ledger)))
    monkeypatch.setattr(gp_module, "MOST_POINTS", 6)
    monkeypatch.setattr(gp_module, "MOST_SHARED", 8)
    made = complete_by_models(recorded(ledger))
    after = cells_of(made)
    assert not np.array_equal(after, before)
    assert np.abs(after - before).mean() < 0.3 * np.abs(before).mean()
    assert (np.diag(made.covariance()) >= 0).all()


def test_games_of_all_rounds_can_be_summed(ledger):
    made = complete_by_models(recorded(ledger))
    total = SummedGame([made.game(t) for t in range(made.n_rounds)])
    np.testing.assert_allclose(total.utilities(EVERYONE).sum(axis=1), cells_of(made).sum(axis=0), atol=1e-9)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "logistic", "n_rounds": 10},
        {"model": "mlp", "hidden": (16,), "batch_size": 32, "rate": 0.2, "n_rounds": 12},
        {"model": "logistic", "everyone_heard": False, "n_rounds": 15},
    ],
    ids=["full batches", "mini-batches", "no all-clients round"],
)
def test_90_percent_intervals_hold_the_true_values_of_most_clients(changes, tmp_path):
    inside, errors, spreads = [], [], []
    for seed in range(3):
        ledger = simulate(
            SimulationSettings(n_clients=8, test_limit=200, train_limit=600, seed=seed, **changes),
            tmp_path / str(seed),
        )
        federation = recorded(ledger)
        made = complete_by_models(federation)
        every = coalitions_of(np.arange(len(made.heard)), len(made.heard))
        truth = shapley_values(
            np.sum([federation.true_game(t).utilities(every).sum(axis=1) for t in range(made.n_rounds)], axis=0)
        )
        values = shapley_values(cells_of(made).sum(axis=0))
        deviations = np.sqrt(np.diag(made.covariance()))
        inside += (np.abs(values - truth) <= 1.645 * deviations).tolist()
        errors.append(np.std(values - truth))
        spreads.append(np.std(truth))
    assert np.mean(inside) >= 0.85  # 24 clients, whose errors are correlated within a federation
    assert np.mean(errors) < 0.5 * np.mean(spreads)


def errors_in_deviations(ledger, weighting):
    """(n_clients,): errors of the values over their standard deviations."""
    federation = recorded(ledger, weighting=weighting)
    made = complete_by_models(federation)
    every = coalitions_of(np.arange(len(made.heard)), len(made.heard))
    cells = [federation.true_game(t).utilities(every).sum(axis=1) for t in range(made.n_rounds)]
    missed = shapley_values(cells_of(made).sum(axis=0)) - shapley_values(np.sum(cells, axis=0))
    return missed / np.sqrt(np.diag(made.covariance()))


def test_the_interval_of_the_heaviest_client_is_not_far_too_narrow(tmp_path):
    unequal = SimulationSettings(partition="quantity", alpha=0.4, aggregation="samples", everyone_heard=False)
    settings = replace(unequal, n_clients=8, n_rounds=12, n_participants=3, test_limit=200, batch_size=32)
    found = []
    for seed in range(6):
        ledger = simulate(replace(settings, seed=seed), tmp_path / str(seed))
        counts = ledger.sample_counts()
        found.append(errors_in_deviations(ledger, "samples")[max(counts, key=counts.__getitem__)])
    assert np.sqrt(np.mean(np.square(found))) < 2  # 1.6, and 2.5 if errors did not grow with a client's weight


def test_clients_whose_data_turn_noisy_have_wider_intervals(tmp_path):
    clean = SimulationSettings(
        n_clients=8, n_rounds=12, n_participants=4, partition="iid", noise_from=5, test_limit=200, batch_size=32
    )
    ratios = []  # of the first two clients' intervals to the others'
    for name, shares in (("clean", ()), ("turned", (0.6, 0.6, *[0.0] * 6))):
        widths = np.zeros(8)
        for seed in range(3):
            ledger = simulate(replace(clean, flip_shares=shares, seed=seed), tmp_path / f"{name}{seed}")
            widths += np.sqrt(np.diag(complete_by_models(recorded(ledger)).covariance()))
        ratios.append(widths[:2].mean() / widths[2:].mean())
    assert ratios[1] > 1.2 * ratios[0]


def test_shares_of_many_clients_add_up_to_what_everyone_achieves(tmp_path):
    settings = SimulationSettings(n_clients=14, n_rounds=2, n_participants=4, train_limit=300, test_limit=60)
    made = complete_by_models(recorded(simulate(settings, tmp_path / "l")))
    game = made.game(1)
    shares = shapley(game, stream(0, "games", 1))
    assert shares.totals.sum() == pytest.approx(game.utilities(np.ones((1, 14), dtype=bool)).sum(), abs=1e-6)
