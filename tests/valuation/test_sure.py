"""How sure values are on data like the test set: all methods, both readings, and values by group that add up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedworth
from fedworth.errors import UsageError
from fedworth.oracle.oracle import LoopOracle
from fedworth.task.cells import Cells
from fedworth.valuation.groups import group_values
from fedworth.valuation.uncertainty import HALF_WIDTH, Source, uncertainty
from tests.support.games import matrix_of

WORK = fedworth.WorkSettings(cache=False)


def simulated(folder, **changes):
    made = {"n_clients": 5, "n_participants": 3, "n_rounds": 4, "train_limit": 200, "test_limit": 90, **changes}
    return fedworth.simulate(fedworth.SimulationSettings(**made), folder / "ledger")


def federation(ledger, task=None, **changes):
    task = task or fedworth.task_of(ledger)
    return fedworth.Federation(ledger, task, fedworth.ValuationSettings(**changes), work=WORK)


@pytest.fixture(scope="module")
def partial(tmp_path_factory):
    return simulated(tmp_path_factory.mktemp("partial"))


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return simulated(tmp_path_factory.mktemp("full"), n_participants=5)


@pytest.mark.parametrize("oracle", ["fast", "loop"])
def test_dividing_the_test_set_changes_no_value(tmp_path, oracle):
    ledger = simulated(tmp_path, dtype="float64")
    task = fedworth.task_of(ledger)
    whole = fedworth.Federation(ledger, task, work=WORK, oracle=LoopOracle(task))
    for method in ("comfedsv-models", "fedsv", "comfedsv", "leave-one-out", "truth"):
        expected, found = (of.value(method).values for of in (whole, federation(ledger, oracle=oracle)))
        assert np.abs(found - expected).max() <= 1e-9 * np.abs(expected).max(), method


@pytest.mark.parametrize(
    "method", ["comfedsv-models", "fedsv", "truth", "all-clients-round", "leave-one-out", "banzhaf", "beta-shapley"]
)
def test_with_everyone_in_every_round_only_the_test_set_is_uncertain(full, method):
    found = federation(full).value(method)
    assert found.completion is None
    assert found.covered == (Source.TEST_SET,)
    assert found.uncertainty is not None
    assert (found.uncertainty.standard_deviations > 0).all()
    assert found.uncertainty.half_widths == pytest.approx(1.69552 * found.uncertainty.standard_deviations, rel=1e-4)
    assert "100% of the uncertainty comes from the test set: about 360 test samples, instead of 90" in (
        found.uncertainty.advice
    )
    exact = federation(full, interval="test-set").value(method)
    assert exact.values == pytest.approx(found.values)
    assert exact.standard_errors == pytest.approx(np.zeros(5))
    assert "On exactly this test set" in exact._repr_html_()


def test_without_a_round_to_share_out_there_is_nothing_to_note(full):
    found = federation(full).value("fedsv-later")
    assert found.notes == ()
    assert not found.values.any()


def test_a_page_on_measured_values_speaks_of_no_estimates(full):
    report = fedworth.report_on(full, fedworth.task_of(full), methods=["comfedsv-models"], work=WORK)
    page = report.page_html()
    assert "none is estimated" in page
    for text in ("without a dot the cell is an estimate", "the estimates of what no round has shown", "certain ("):
        assert text not in page
    assert "certain" not in report.page_html().replace("uncertainty", "")


def test_the_two_readings_differ_by_the_test_sets_part(partial):
    new, same = (federation(partial, interval=name).value() for name in ("new-data", "test-set"))
    assert new.uncertainty is not None
    assert same.uncertainty is not None
    assert set(new.covered) == {Source.ESTIMATES, Source.TEST_SET}
    assert same.covered == (Source.ESTIMATES,)
    total = np.hypot(same.uncertainty.standard_deviations, new.uncertainty.parts[Source.TEST_SET])
    assert new.uncertainty.standard_deviations == pytest.approx(total)
    assert same.uncertainty.half_widths == pytest.approx(HALF_WIDTH * same.uncertainty.standard_deviations)


def test_the_test_sets_part_is_how_far_values_move_on_other_test_sets(tmp_path):
    """Values on 20 disjoint test sets of 25 samples each, against the standard errors of each."""
    ledger = simulated(tmp_path, n_participants=5, n_rounds=2, dataset="synthetic-iid", partition="iid", test_limit=500)
    task = fedworth.task_of(ledger)
    values, variances = [], []
    for part in np.array_split(np.random.default_rng(0).permutation(500), 20):
        made = fedworth.Task(task.module, task.inputs[part], task.labels[part])
        found = federation(ledger, made).value("fedsv")
        assert found.uncertainty is not None
        values.append(found.values)
        variances.append(found.uncertainty.parts[Source.TEST_SET] ** 2)
    ratio = np.var(values, axis=0, ddof=1) / np.mean(variances, axis=0)  # (5,); each is known to √(2/19) = .3
    assert 0.6 < np.mean(ratio) < 1.5


def test_values_by_group_add_up_and_a_groups_error_may_exceed_the_whole(partial):
    found = federation(partial).value()
    assert found.groups is not None
    assert found.groups.names == tuple(map(str, range(10)))
    assert found.groups.values.sum(axis=1) == pytest.approx(found.values, abs=1e-12 * np.abs(found.values).max())
    assert (found.groups.standard_deviations > 0).all()
    again = fedworth.Valuation.from_document(found.document())
    assert again == found
    frame = pytest.importorskip("pandas") and again.by_group()
    assert list(frame.columns) == ["client", "group", "value", "low", "high"]
    assert frame.groupby("client", sort=False).value.sum().to_numpy() == pytest.approx(found.values)
    assert (frame.low < frame.value).all()


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(2, 6), st.integers(2, 9))
def test_groups_add_up_whatever_the_cells(seed, n_clients, n_groups, n_blocks):
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(0, n_groups * n_blocks, 40))
    keys = np.union1d(keys, [0, n_groups * n_blocks - 1])
    shares = rng.random(len(keys))
    cells = Cells(tuple(map(str, range(n_groups))), keys // n_blocks, keys % n_blocks, shares / shares.sum(), 100)
    by_cell = rng.normal(size=(n_clients, len(keys))) * 10.0 ** rng.integers(-6, 6)
    none = np.zeros((n_clients, n_groups))
    found = group_values(by_cell, cells, none, none[:, 0], with_test_set=True)
    scale = np.abs(by_cell).sum()
    assert np.abs(found.values.sum(axis=1) - by_cell.sum(axis=1)).max() <= 1e-12 * scale
    whole = (cells.residuals(by_cell) ** 2).sum(axis=1)
    assert (np.sqrt(whole) <= found.standard_deviations.sum(axis=1) * (1 + 1e-9)).all()


def test_without_groups_there_is_nothing_by_group(tmp_path):
    ledger = simulated(tmp_path, dataset="regression", partition="iid")
    with pytest.raises(UsageError, match="no values by group"):
        federation(ledger).value("fedsv").by_group()


def test_brought_utilities_say_that_the_test_sets_part_is_unknown_unless_they_have_blocks(tmp_path):
    cells = np.random.default_rng(0).normal(size=(3, 16))
    cells[:, 0] = 0
    plain = fedworth.value(matrix_of(cells, np.ones((3, 4), dtype=bool)), "fedsv")
    assert plain.uncertainty is None
    assert any("not known: the utilities are not given by block" in note for note in plain.notes)
    parts = np.random.default_rng(1).dirichlet(np.ones(8), size=(3, 16))
    coalitions = (np.arange(16)[:, None] >> np.arange(4) & 1).astype(bool)
    np.savez(
        tmp_path / "mine.npz",
        utilities=cells[:, :, None] * parts,
        coalitions=coalitions,
        participants=np.ones((3, 4), dtype=bool),
    )
    divided = fedworth.value(fedworth.UtilityMatrix.load(tmp_path / "mine.npz"), "fedsv")
    assert divided.values == pytest.approx(plain.values)
    assert divided.covered == (Source.TEST_SET,)


def test_methods_without_values_by_block_say_that_the_test_sets_part_is_unknown(full):
    for method in ("least-core", "influence", "cosine"):
        found = federation(full).value(method)
        assert found.uncertainty is None
        assert any("not known" in note or "no standard errors" in note for note in found.notes), method


def test_a_mixture_of_parts_has_degrees_of_freedom_between():
    values, one = np.array([1.0, 2.0]), np.eye(2)
    half = uncertainty(values, one, test_set=one, degrees=3).half_widths / np.sqrt(2)
    whole = uncertainty(values, 0 * one, test_set=one, degrees=3).half_widths
    assert whole == pytest.approx([2.35336] * 2, rel=1e-4)  # Student's t with 3 degrees of freedom
    assert half == pytest.approx([1.78229] * 2, rel=1e-4)  # with 12


def test_advice_names_the_largest_part():
    values, one = np.array([1.0, 2.0]), np.eye(2)
    mixed = uncertainty(values, one, test_set=2 * one, degrees=31, n_test_samples=500).advice
    assert mixed == (
        "67% of the uncertainty comes from the test set: with a test set of any size, the intervals would still be "
        "0.58 times as wide as they are."
    )
    assert "more rounds with everyone" in uncertainty(values, 2 * one, test_set=one, degrees=31).advice
    assert "more evaluations" in uncertainty(values, 0 * one, sampling=one).advice
    assert uncertainty(values, 0 * one).advice == ""
