"""A federation without one of its clients is valued as if that client had never answered."""

import numpy as np
import pytest

import fedworth
from fedworth.errors import UsageError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import Answer, LedgerWriter

LEFT_OUT = 2


def copy_without(ledger, folder, client):
    """The rounds of a ledger with every answer but one client's; the client is still expected."""
    writer = LedgerWriter.create(folder, ledger.clients, aggregation=ledger.aggregation, settings=ledger.settings)
    for round_ in ledger.rounds():
        counts = dict(zip(round_.entry.answered, round_.entry.sample_counts, strict=True))
        others = {k: model for k, model in round_.client_models.items() if k != client}
        writer.record_round(
            round_.global_model, {ledger.clients[k]: Answer(model, counts[k]) for k, model in others.items()}
        )
    writer.close(ledger.final_model())
    return Ledger.open(folder)


def federation(ledger, task, **settings):
    oracle = fedworth.LoopOracle(task)
    return fedworth.Federation(ledger, task, fedworth.ValuationSettings(**settings), oracle=oracle)


@pytest.mark.parametrize("weighting", ["uniform", "samples", "fixed"])
def test_the_others_are_measured_as_if_the_client_had_never_answered(tiny_ledger, tiny_task, tmp_path, weighting):
    never = copy_without(tiny_ledger, tmp_path / "never", LEFT_OUT)
    without = federation(tiny_ledger, tiny_task, weighting=weighting, without=("2",))
    found = without.utility_matrix()
    expected = federation(never, tiny_task, weighting=weighting, as_average=True).utility_matrix()
    assert np.array_equal(found.coalitions, expected.coalitions)
    assert np.array_equal(found.utilities, expected.utilities)
    assert np.array_equal(found.participants, expected.participants)
    assert not found.coalitions[:, LEFT_OUT].any()


def test_a_client_that_was_left_out_is_not_called_unheard(tiny_ledger, tiny_task):
    made = federation(tiny_ledger, tiny_task, without=("2",), strict=True).value("fedsv")
    assert np.isnan(made.values).tolist() == [False, False, True, False, False]
    assert [note for note in made.notes if "'2' was left out" in note]
    assert not [note for note in made.notes if "took part in none" in note]


def test_permutations_are_of_the_others(tiny_ledger, tiny_task):
    found = federation(tiny_ledger, tiny_task, without=("2",), permutations=4)
    permutations = found.utility_matrix().permutations
    assert permutations is not None
    assert set(permutations.flat) == {0, 1, 3, 4}
    assert np.isfinite(np.delete(found.value("comfedsv").values, LEFT_OUT)).all()


def test_a_client_that_is_yet_to_join_may_be_left_out_while_a_federation_trains(tiny_ledger, tmp_path):
    growing = LedgerWriter.create(tmp_path / "l", ("a",), aggregation="uniform")
    growing.record_round(tiny_ledger.final_model(), {"a": Answer(tiny_ledger.final_model(), 3)})
    assert Ledger.open(tmp_path / "l").without(["late"]).left_out == ("late",)
    with pytest.raises(UsageError, match="unknown client 'late'"):
        tiny_ledger.without(["late"])


def test_nobody_left_is_refused_before_anything_is_measured(tiny_ledger, tiny_task):
    with pytest.raises(UsageError, match="every client that took part in a round is left out"):
        federation(tiny_ledger, tiny_task, without=tiny_ledger.clients)


def test_what_holds_for_every_method_is_said_once(tiny_ledger, tiny_task):
    report = fedworth.report_on(tiny_ledger, tiny_task, fedworth.ValuationSettings(without=("1",)))
    assert len([note for note in report.all_notes if "was left out" in note]) == 1
