"""The completion by models, held against the formulas written out; and what it may not do."""

from dataclasses import replace

import numpy as np
import pytest

from fedworth.coalitions import coalitions_of
from fedworth.completion.completion_file import load_completion, save_completion
from fedworth.completion.doubt import heard_once
from fedworth.completion.models import ModelCompletion, complete_by_models
from fedworth.completion.models.complete import heard_alone
from fedworth.completion.models.holdouts import held_points, hold_outs
from fedworth.completion.models.predicted import predict_absent
from fedworth.errors import CompletionError, UnseenError, UtilityError
from fedworth.games.observe import observe
from fedworth.games.planning.plan import plan_exact
from fedworth.ledger.ledger import open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import participation
from fedworth.simulation.simulate import simulate, task_of
from fedworth.trail import fingerprint
from fedworth.valuation.value import value
from tests.support.by_hand import ByHand

EVERYONE = coalitions_of(np.arange(5), 5)


def seen_of(ledger, oracle, weighting="uniform"):
    return observe(ledger, oracle, plan_exact(participation(ledger)), weighting=weighting)


def completed(ledger, weighting="uniform"):
    oracle = FastOracle(task_of(ledger), n_threads=1)
    return complete_by_models(ledger, oracle, seen_of(ledger, oracle, weighting), weighting=weighting)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_every_cell_is_what_the_formulas_say(ledger, task, weighting):
    by_hand = ByHand(ledger, task, weighting)
    expected = [[by_hand.cell(t, np.flatnonzero(row).tolist()) for row in EVERYONE] for t in range(4)]
    oracle = LoopOracle(task)
    seen = seen_of(ledger, oracle, weighting)
    made = complete_by_models(ledger, oracle, seen, weighting=weighting)
    assert made.lone_noise == by_hand.noise()
    np.testing.assert_allclose(made.estimates(EVERYONE), expected, rtol=2e-4, atol=2e-6)


def test_the_hold_outs_are_what_the_formulas_say(ledger, task):
    by_hand, oracle = ByHand(ledger, task), LoopOracle(task)
    seen, predicted = seen_of(ledger, oracle), predict_absent(ledger, task)
    made = hold_outs(predicted, oracle, seen, heard_alone(predicted, oracle, seen, "uniform"), weighting="uniform")
    points = held_points(predicted)
    places = zip(predicted.process.rounds[points].tolist(), predicted.process.clients[points].tolist(), strict=True)
    errors, variances = zip(*(by_hand.held_out(t, i) for t, i in places), strict=True)
    relative = np.maximum(np.array(variances) / np.mean(variances), 0.1)
    np.testing.assert_allclose(predicted.process.left_out_variances(points), variances, rtol=1e-9)
    np.testing.assert_allclose(made.errors, np.array(errors) / np.sqrt(relative)[:, None], rtol=1e-3, atol=1e-4)
    assert made.by_size[0] == pytest.approx(np.sqrt(np.mean(made.errors[:, 0] ** 2)))


def test_a_wrong_number_on_predicted_models_is_found_by_the_plain_loop(ledger, task):
    class WrongOfAbsent(LoopOracle):
        def utilities(self, round_, mixtures):
            n_answered = int(participation(ledger)[round_.entry.round_index].sum())
            return super().utilities(round_, mixtures) + 0.3 * (len(round_.client_models) > n_answered)

    seen = seen_of(ledger, LoopOracle(task))
    with pytest.raises(UtilityError, match=r"round 1, coalition \{.*\}: the plain loop measures"):
        complete_by_models(ledger, WrongOfAbsent(task), seen)


def test_what_was_seen_stays_as_seen_and_is_certain(ledger):
    oracle = FastOracle(task_of(ledger), n_threads=1)
    seen = seen_of(ledger, oracle)
    made = complete_by_models(ledger, oracle, seen)
    for t in range(4):
        known = ~np.isnan(seen.row(t, EVERYONE))
        assert (made.estimates(EVERYONE)[t, known] == seen.row(t, EVERYONE)[known]).all()
        assert (made.variances(EVERYONE)[t, known] == 0).all()
        assert (made.variances(EVERYONE)[t, ~known] >= 0).all()
    assert (made.variances(EVERYONE)[1:].sum(axis=1) > 0).all()
    assert made.estimates(EVERYONE)[:, 0].tolist() == [0.0] * 4


def test_a_copy_is_worth_what_its_original_is(ledger):
    oracle = FastOracle(task_of(ledger), n_threads=1)
    seen = seen_of(ledger, oracle)
    assert seen.participants[1:, [0, 4]].tolist() == [[True, False], [False, True], [True, True]]
    values = value(seen, "comfedsv", completion=complete_by_models(ledger, oracle, seen)).values
    assert values[4] == pytest.approx(values[0], rel=1e-5)


def test_it_reads_nothing_that_the_server_has_not_seen(ledger):
    before = completed(ledger)
    for path in (ledger.folder / "apart").glob("*.safetensors"):
        path.write_bytes(np.full(path.stat().st_size // 4 + 1, np.nan, dtype=np.float32).tobytes())
    after = completed(ledger)
    for name in ("cells", "cell_variances", "member_covariance", "relative_variances"):
        assert np.array_equal(getattr(before, name), getattr(after, name)), name


def test_the_same_ledger_gives_the_same_bits(ledger):
    first, second = completed(ledger), completed(ledger)
    assert first.cells.tobytes() == second.cells.tobytes()
    assert first.member_covariance.tobytes() == second.member_covariance.tobytes()


def test_it_works_without_a_round_that_heard_everyone(settings, tmp_path):
    ledger = simulate(replace(settings, everyone_heard=False, n_rounds=8), tmp_path / "ledger")
    assert participation(ledger).any(axis=0).all()
    made = completed(ledger)
    assert not made.everyone_heard
    assert np.isfinite(made.cells).all()
    assert made.has(EVERYONE).all()


def test_a_client_that_no_round_has_heard_has_no_estimate(settings, tmp_path):
    ledger = simulate(replace(settings, everyone_heard=False, n_rounds=1), tmp_path / "ledger")
    made = completed(ledger)
    assert made.has(EVERYONE).sum() == 2 ** participation(ledger).any(axis=0).sum()
    with pytest.raises(UnseenError, match="have no estimate"):
        made.totals(EVERYONE)


def test_where_everyone_always_answers_nothing_is_predicted(settings, tmp_path):
    ledger = simulate(replace(settings, n_participants=5, n_rounds=2), tmp_path / "ledger")
    made = completed(ledger)
    assert (made.n_evaluations, made.n_held_out) == (0, 0)
    assert not made.cell_variances.any()
    assert not made.member_covariance.any()


def test_it_survives_the_disk(ledger, tmp_path):
    made = completed(ledger)
    save_completion(made, tmp_path / "completion.npz")
    back = load_completion(tmp_path / "completion.npz")
    assert isinstance(back, ModelCompletion)
    assert fingerprint(back) == fingerprint(made)
    assert back.trail == made.trail
    assert back.summary() == made.summary()
    assert back.clients == made.clients
    assert np.array_equal(back.cells, made.cells)
    assert np.array_equal(back.variances(EVERYONE), made.variances(EVERYONE))


def test_the_truth_and_other_federations_are_refused(ledger, task, settings, tmp_path):
    oracle = FastOracle(task, n_threads=1)
    truth = observe(ledger, oracle, plan_exact(participation(ledger), with_truth=True))
    with pytest.raises(CompletionError, match="holds the truth"):
        complete_by_models(ledger, oracle, truth)
    other = simulate(replace(settings, n_rounds=2), tmp_path / "ledger")
    with pytest.raises(CompletionError, match="another federation"):
        complete_by_models(other, oracle, truth.seen_part())


def test_the_values_err_as_their_members_do(ledger):
    """A member's error in company, spread over the sizes by κ, enters its own value with 1/N and the others' with what
    is left; its error alone enters its own with 1/N and the others' with −1/(N(N−1))."""
    oracle = FastOracle(task_of(ledger), n_threads=1)
    seen = seen_of(ledger, oracle)
    made = complete_by_models(ledger, oracle, seen)
    assert made.size_shares[0].tolist() == [1, 0, 0, 0, 0]
    assert made.size_shares[1, 0] == 0
    assert made.size_shares[1].sum() == pytest.approx(1)
    n = 5
    enters = [np.full((n, n), (grand - 1 / n) / (n - 1)) for grand in (0.0, made.size_shares[1, -1])]
    for part in enters:
        np.fill_diagonal(part, 1 / n)
    both = np.concatenate(enters, axis=1)  # (n, 2 n)
    expected = both @ made.member_covariance @ both.T
    np.testing.assert_allclose(made.value_covariance(), expected, rtol=1e-9)
    known = value(seen, "comfedsv", completion=made).uncertainty
    assert known is not None
    np.testing.assert_allclose(known.deviations**2, np.diag(expected), rtol=1e-9)
    assert known.chances is not None
    assert known.chances[0, 4] == pytest.approx(0.5, abs=1e-3)


def test_the_intervals_are_the_same_when_nothing_unseen_can_be_read(ledger):
    def known():
        oracle = FastOracle(task_of(ledger), n_threads=1)
        seen = seen_of(ledger, oracle)
        made = value(seen, "comfedsv", completion=complete_by_models(ledger, oracle, seen))
        return made.document()

    before = known()
    for path in (ledger.folder / "apart").glob("*.safetensors"):
        path.write_bytes(np.full(path.stat().st_size // 4 + 1, np.nan, dtype=np.float32).tobytes())
    assert known() == before


def test_who_was_heard_once_is_named(settings, tmp_path):
    ledger = simulate(settings, tmp_path / "ledger")
    assert participation(ledger)[1:, 2].sum() == 0
    told = completed(ledger).doubts()
    assert heard_once("2") in told


def test_with_fixed_weights_who_sends_back_the_global_model_adds_nothing(ledger, task, tmp_path):
    """An idle client is added to every round; each coalition is worth the same with it and without, lone ones too."""
    writer = create_ledger(tmp_path / "l", [*ledger.clients, "idle"], aggregation="uniform")
    for t, round_ in enumerate(ledger.rounds()):
        answers = {ledger.clients[k]: Answer(round_.client_models[k], 1) for k in ledger.participants(t)}
        writer.record_round(round_.global_model, {**answers, "idle": Answer(round_.global_model, 1)})
    writer.close(ledger.final_model())
    with_idle, oracle = open_ledger(tmp_path / "l"), LoopOracle(task)
    seen = observe(with_idle, oracle, weighting="fixed", as_average=True)
    completion = complete_by_models(with_idle, oracle, seen, weighting="fixed", as_average=True)
    totals = completion.totals(coalitions_of(np.arange(len(with_idle.clients)), len(with_idle.clients)))
    without, together = np.split(totals, 2)  # the idle client is the highest bit
    np.testing.assert_allclose(together, without, atol=1e-6)


def with_unanswered(ledger, folder, place):
    """The same federation with a round more, in which everybody failed."""
    writer = create_ledger(folder, ledger.clients, aggregation="uniform")
    for t, round_ in enumerate(ledger.rounds()):
        if t == place:
            writer.record_round(round_.global_model, {})
        answers = {ledger.clients[k]: Answer(round_.client_models[k], 1) for k in ledger.participants(t)}
        writer.record_round(round_.global_model, answers)
    writer.close(ledger.final_model())
    return open_ledger(folder)


@pytest.mark.parametrize("n_participants", [2, 5])
def test_a_round_that_nobody_answered_adds_nothing_and_is_said(settings, tmp_path, n_participants):
    ledger = simulate(replace(settings, n_participants=n_participants), tmp_path / "first")
    longer, oracle = with_unanswered(ledger, tmp_path / "longer", 2), LoopOracle(task_of(ledger))
    made, before = (complete_by_models(one, oracle, seen_of(one, oracle)) for one in (longer, ledger))
    assert (made.cells[2] == 0).all()
    assert (made.cell_variances[2] == 0).all()
    assert [text for text in longer.warnings() if "nobody answered in round 2" in text]
    if n_participants == 5:  # nothing is predicted, so nothing can be uncertain
        np.testing.assert_array_equal(made.totals(EVERYONE), before.totals(EVERYONE))
        assert (made.member_covariance == 0).all()
    else:
        assert made.n_held_out == before.n_held_out
        assert (np.diag(made.member_covariance) > 0).any()
