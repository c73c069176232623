"""Clients valued as one play once, and share equally; a client that splits in two gains nothing then."""

import numpy as np
import pytest

from fedworth import Federation, ValuationSettings, WorkSettings, value
from fedworth.errors import UsageError
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from tests.support.games import matrix_of, shapley_by_definition

PLAIN = WorkSettings(cache=False, n_threads=1)


def test_a_group_has_the_value_of_the_merged_player_and_shares_it_equally():
    cells = np.random.default_rng(0).normal(size=(2, 16))
    cells[:, 0] = 0
    made = value(matrix_of(cells, np.ones((2, 4), dtype=bool)), "fedsv", ValuationSettings(as_one=("b,d",)))
    merged = [0b0000, 0b0001, 0b1010, 0b1011, 0b0100, 0b0101, 0b1110, 0b1111]  # a, b with d, c
    first, both, third = np.sum([shapley_by_definition(row[merged]) for row in cells], axis=0)
    assert made.values == pytest.approx([first, both / 2, third, both / 2])
    assert any("as one" in note for note in made.notes)


def test_members_share_only_the_rounds_in_which_they_took_part():
    cells = np.random.default_rng(1).normal(size=(1, 8))
    cells[:, 0] = 0
    present = np.array([[True, True, False]])
    made = value(matrix_of(cells, present), "fedsv", ValuationSettings(as_one=("b,c",)))
    alone = value(matrix_of(cells, present), "fedsv")
    assert made.by_round == pytest.approx(alone.by_round, nan_ok=True)


@pytest.mark.parametrize("method", ["comfedsv-models", "comfedsv", "fedsv", "leave-one-out", "least-core"])
def test_a_copy_valued_as_one_with_its_source_gains_nothing(tmp_path, method):
    """The federation with the copy, the two as one, against the pair apart: together they get less, others more."""
    settings = SimulationSettings(
        n_clients=5, copies=((4, 0),), n_participants=5, n_rounds=3, partition="iid", train_limit=200, test_limit=100,
        model="mlp", hidden=(8,), rate=0.1, seed=1000,
    )  # fmt: skip
    ledger = simulate(settings, tmp_path / "l")
    task = task_of(ledger)
    apart = Federation(ledger, task, work=PLAIN).value(method)
    as_one = Federation(ledger, task, ValuationSettings(as_one=("0,4",)), work=PLAIN).value(method)
    assert as_one.values[0] == pytest.approx(as_one.values[4])
    if method in ("comfedsv-models", "fedsv"):
        assert as_one.values.sum() == pytest.approx(apart.values.sum(), abs=1e-6)
        assert as_one.shares[[0, 4]].sum() < apart.shares[[0, 4]].sum()


@pytest.mark.parametrize("texts", [("a",), ("a,b", "b,c"), ("a,a",), ("a,nobody",)])
def test_groups_that_are_none_are_refused(texts):
    cells = np.zeros((1, 8))
    with pytest.raises(UsageError):
        value(matrix_of(cells, np.ones((1, 3), dtype=bool)), "fedsv", ValuationSettings(as_one=texts))
