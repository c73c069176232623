"""Values for somebody who is in every coalition: the Shapley value of U(S ∪ G) − U(G) among the others."""

import numpy as np
import pytest

from fedworth import Federation, ValuationSettings, WorkSettings, report_on, value
from fedworth.errors import UsageError
from fedworth.report.page.page import page_html
from fedworth.report.page.statement import statement_html, statement_of
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from tests.support.games import matrix_of, shapley_by_definition

PLAIN = WorkSettings(cache=False, n_threads=1)
SETTINGS = SimulationSettings(
    n_clients=5, copies=((4, 0),), n_participants=5, n_rounds=3, partition="iid", train_limit=200, test_limit=100,
    model="mlp", hidden=(8,), rate=0.1, seed=1000,
)  # fmt: skip


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    ledger = simulate(SETTINGS, tmp_path_factory.mktemp("given") / "ledger")
    return ledger, task_of(ledger)


@pytest.mark.parametrize("given", [("b",), ("a", "d")])
def test_values_are_those_of_the_game_with_the_given_clients_in_every_coalition(given):
    cells = np.random.default_rng(0).normal(size=(2, 16))
    cells[:, 0] = 0
    made = value(matrix_of(cells, np.ones((2, 4), dtype=bool)), "fedsv", ValuationSettings(given=given))
    base = sum(1 << "abcd".index(name) for name in given)
    others = [k for k in range(4) if not base >> k & 1]
    expected = np.full(4, np.nan)
    smaller = [sum(1 << k for place, k in enumerate(others) if c >> place & 1) for c in range(2 ** len(others))]
    conditional = cells[:, [c | base for c in smaller]] - cells[:, [base]]
    expected[others] = np.sum([shapley_by_definition(row) for row in conditional], axis=0)
    assert made.values == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert any("can do alone" in note for note in made.notes)


def test_a_round_without_the_given_client_is_shared_out_as_it_is():
    cells = np.random.default_rng(1).normal(size=(2, 8))
    cells[:, 0] = 0
    present = np.array([[True, True, True], [True, True, False]])
    made = value(matrix_of(cells, present), "fedsv", ValuationSettings(given=("c",)))
    alone = value(matrix_of(cells, present), "fedsv")
    assert made.by_round is not None
    assert alone.by_round is not None
    assert made.by_round[1, :2] == pytest.approx(alone.by_round[1, :2])
    assert made.by_round[0, :2] != pytest.approx(alone.by_round[0, :2])


def test_others_gain_together_what_they_add_for_the_given_client(federation):
    ledger, task = federation
    whole = Federation(ledger, task, work=PLAIN)
    made = Federation(ledger, task, ValuationSettings(given=("0",)), work=PLAIN).value("comfedsv-models")
    only = np.array([[True, False, False, False, False]])
    gained = sum(float((whole.game(t).utilities(only | True) - whole.game(t).utilities(only)).sum()) for t in range(3))
    assert np.nansum(made.values) == pytest.approx(gained, abs=1e-6)  # in float32
    assert np.isnan(made.values[0])
    assert made.uncertainty is not None


@pytest.mark.parametrize("method", ["fedsv", "leave-one-out", "least-core", "banzhaf", "large-coalitions", "comfedsv"])
def test_other_methods_take_it(federation, method):
    ledger, task = federation
    made = Federation(ledger, task, ValuationSettings(given=("0",)), work=PLAIN).value(method)
    assert np.isfinite(made.values).tolist() == [False, True, True, True, True]


def test_methods_without_a_game_are_refused(federation):
    ledger, task = federation
    report = report_on(ledger, task, ValuationSettings(given=("0",)), methods=["fedsv", "cosine"], work=PLAIN)
    assert [name for name, why in report.refusals if "--given" in why] == ["cosine"]


def test_errors_of_predictions_are_not_claimed_for_another_game(tmp_path):
    """The completion knows the errors of values among all clients; with a given client there is no interval."""
    ledger = simulate(
        SimulationSettings(n_clients=4, n_rounds=4, n_participants=2, train_limit=160, test_limit=60), tmp_path / "l"
    )
    made = Federation(ledger, task_of(ledger), ValuationSettings(given=("0",)), work=PLAIN).value("comfedsv-models")
    assert made.uncertainty is None
    assert any("among all clients only" in note for note in made.notes)


def test_page_statement_and_rewards_name_the_given_client(federation):
    ledger, task = federation
    report = report_on(ledger, task, ValuationSettings(given=("0",)), methods=["comfedsv-models"], work=PLAIN)
    page = page_html(report)
    assert "can do alone" in page
    assert "never took part" not in page
    assert "on top of what client 0 can do alone" in statement_html(report, "1")
    assert "add for you" in statement_html(report, "0")
    assert statement_of(report, "1").given == ("0",)
    assert list(report.document()["provenance"]["settings"]["given"]) == ["0"]
    paid = report.rewards("100")
    assert (paid.cents[0], sum(paid.cents)) == (0, 10_000)


@pytest.mark.parametrize("settings", [{"given": ("nobody",)}, {"given": ("a", "b", "c")}])
def test_clients_that_cannot_be_given_are_refused(settings):
    with pytest.raises(UsageError):
        value(matrix_of(np.zeros((1, 8)), np.ones((1, 3), dtype=bool)), "fedsv", ValuationSettings(**settings))


@pytest.mark.parametrize("more", [{"without": ("0",)}, {"as_one": ("0,1",)}])
def test_a_given_client_is_neither_left_out_nor_part_of_another(federation, more):
    ledger, task = federation
    with pytest.raises(UsageError, match="--given 0"):
        Federation(ledger, task, ValuationSettings(given=("0",), **more), work=PLAIN)
