"""Statistics over seeds, claims and bars: against scipy, and on numbers whose answer is known."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from studies import bars, fairness, models, noisy_data, noisy_labels, rank, spectrum, time, unfairness
from studies.bars import Claim, Interval


def test_the_mean_has_students_interval():
    low, high = stats.t.interval(0.95, 3, 2.5, stats.sem([1, 2, 3, 4]))
    found = bars.mean_of([1, 2, 3, 4])
    assert (found.value, found.low, found.high) == pytest.approx((2.5, low, high))
    assert bars.mean_of([0.9, 1.0, 1.0], bars.SHARES).high == 1.0
    assert math.isnan(bars.mean_of([1.0, 2.0]).low)
    assert bars.mean_of([]).text() == "–"


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_a_share_has_wilsons_interval(events):
    n, share, z = len(events), sum(events) / len(events), 1.959963984540054
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    found = bars.share_of(events)
    assert (found.low, found.high) == pytest.approx((max(0, centre - half), min(1, centre + half)), abs=1e-9)


def test_the_paired_test_is_one_sided_and_leaves_out_equal_pairs():
    assert bars.p_less([1, 2, 3, 4, 5], [2, 4, 6, 8, 10]) == pytest.approx(1 / 32)
    assert bars.p_less([2, 4, 6, 8, 10], [1, 2, 3, 4, 5]) == 1.0
    assert bars.p_less([1, 2], [1, 2]) == 1.0


def test_a_constant_ranks_nobody():
    assert bars.rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0
    assert bars.rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    tied = stats.spearmanr([1, 1, 2, 3], [2, 1, 3, 4]).statistic
    assert bars.rank_correlation([1, 1 + 1e-12, 2, 3], [2, 1, 3, 4]) == pytest.approx(tied)


def test_more_is_judged_in_both_directions_and_needs_five_seeds():
    few, many = np.arange(4.0), np.arange(5.0)
    assert bars.more_claim("", many + 1, many).holds is True
    assert bars.more_claim("", many - 1, many).holds is False
    assert bars.more_claim("", many, many).holds is False
    assert bars.more_claim("", few + 1, few).holds is None
    assert "4 seeds are too few" in bars.more_claim("", few + 1, few).why
    mixed = np.array([1.0, -1.0, 2.0, -2.0, 0.5])
    assert bars.more_claim("", many + mixed, many).holds is None


def test_a_distribution_lies_left_if_it_does_so_everywhere():
    low = np.arange(20) / 20
    assert bars.left_claim("", low, low + 1).holds is True
    assert bars.left_claim("", low + 1, low).holds is False
    assert bars.left_claim("", low, low).holds is None
    crossing = np.concatenate([np.full(10, -1.0), np.full(10, 2.0)])
    assert bars.left_claim("", crossing, low).holds is False


@pytest.mark.parametrize(("low", "high", "holds"), [(0.1, 0.2, True), (0.1, 0.4, None), (0.4, 0.5, False)])
def test_a_bound_is_judged_by_the_whole_interval(low, high, holds):
    assert bars.judged(Interval(0.3, low, high, 5), most=0.3) is holds
    assert bars.judged(Interval(0.3, low, high, 4), most=0.3) is None


def test_a_bar_is_judged_by_the_number_itself():
    assert bars.bar("error", 0.4, "20 seeds", most=0.4) == Claim("error", True, "0.40, bar ≤ 0.4, 20 seeds")
    assert bars.bar("error", 0.96, "2 seeds", least=0.85, most=0.95).holds is False


@pytest.mark.parametrize(
    ("judgements", "verdict"),
    [
        ([True, True], ("**holds**", "method")),
        ([True, None], ("**holds** where judged", "method")),
        ([False], ("**does not hold**", "method")),
        ([True, False], ("differs", "setting")),
        ([None], ("open", "undecided")),
    ],
)
def test_a_verdict_says_what_it_depends_on(judgements, verdict):
    assert bars.verdict_of(judgements) == verdict


def test_the_table_of_claims_has_both_settings_side_by_side():
    claims = [Claim("a", True, "1", "paper-like"), Claim("a", None, "2", "practical"), Claim("b", False, "3")]
    lines = bars.claims_table(claims).to_numpy().tolist()
    assert lines == [
        ["a", "✔ 1", "? 2", "**holds** where judged", "method"],
        ["b", "✘ 3", "the same", "**does not hold**", "method"],
    ]


def frame(n_seeds: int = 5, **columns) -> pd.DataFrame:
    """Rows of one setup, each column one value a seed or one for all."""
    same = {
        "setup": "mnist", "data_set": "mnist", "model": "mlp", "partition": "two-class", "n_clients": 10,
        "n_participants": 3, "n_rounds": 10, "n_steps": 10, "rate": 0.3, "accuracy": 0.5,
    }  # fmt: skip
    return pd.DataFrame({**same, "seed": range(n_seeds), **columns})


def methods(n_seeds: int, measure: str, **numbers) -> pd.DataFrame:
    parts = [frame(n_seeds, method=key.replace("_", "-"), **{measure: found}) for key, found in numbers.items()]
    return pd.concat(parts, ignore_index=True)


def test_a_model_near_chance_judges_nothing():
    rows = frame(accuracy=0.15)
    found = bars.at_setting(Claim("a", True, "why"), "practical", rows)
    assert (found.holds, found.why) == (None, "why; accuracy 0.15 is near chance")


def test_fairness_is_judged_by_distributions_and_a_bound():
    d = np.linspace(0, 0.05, 50)
    rows = methods(50, "d", comfedsv=d, fedsv=d + 1).assign(gap=0.1, rank_correlation=0.5, value_error=0.5)
    assert [claim.holds for claim in fairness.section(rows).claims] == [True, True]
    rows = methods(50, "d", comfedsv=d + 1, fedsv=d).assign(gap=0.1, rank_correlation=0.5, value_error=0.5)
    assert [claim.holds for claim in fairness.section(rows).claims] == [False, False]


@pytest.mark.parametrize(("truth", "ours", "holds"), [(0.9, 0.88, True), (0.9, 0.5, False), (0.4, 0.4, None)])
def test_a_match_is_judged_if_the_truth_sees_the_noise(truth, ours, holds):
    rows = methods(5, "noise_correlation", comfedsv=ours, truth=truth)
    assert noisy_data.match_claim("", rows).holds is holds


def test_noisy_labels_are_judged_by_seeds_unless_saturated_or_near_chance():
    def claims(ours, theirs):
        parts = [
            methods(6, "jaccard", comfedsv=ours + p / 200 + np.arange(6) / 1000, fedsv=theirs + p / 200).assign(
                percent=p
            )
            for p in (10, 30, 50)
        ]
        return [claim.holds for claim in noisy_labels.claims_of(pd.concat(parts))]

    assert claims(0.6, 0.4) == [True, True]
    assert claims(0.4, 0.6) == [False, True]
    assert claims(-0.2, -0.2) == [None, None]
    assert claims(1.0, 1.0) == [None, None]


def tidy(quantity: str, k: int, value, n_seeds: int = 5) -> pd.DataFrame:
    return frame(n_seeds, quantity=quantity, k=k, value=value)


@pytest.mark.parametrize(("second", "holds"), [(0.1, True), (0.3, False)])
def test_the_second_singular_value_is_compared_with_the_papers(second, holds):
    rows = tidy("singular", 2, second + np.arange(5) / 1000)
    assert spectrum.claims_of(rows)[0].holds is holds


@pytest.mark.parametrize(("errors", "holds"), [((0.2, 0.1, 0.2), [True, True]), ((0.3, 0.3, 0.31), [False, False])])
def test_the_error_turns_if_the_smallest_and_the_largest_rank_are_worse(errors, holds):
    noise = np.arange(5) / 10_000
    rows = pd.concat([tidy(rank.MAIN, k, error + noise) for k, error in zip((1, 3, 10), errors, strict=True)])
    assert [claim.holds for claim in rank.claims_of(rows)] == holds


@pytest.mark.parametrize(("best", "holds"), [(0.95, True), (0.8, False)])
def test_an_accuracy_is_compared_with_the_papers(best, holds):
    assert models.claims_of(tidy("accuracy", 0, best + np.arange(5) / 1000))[0].holds is holds


@pytest.mark.parametrize(("last", "holds"), [(0.3, True), (0.6, False)])
def test_costs_settle_if_the_last_two_ratios_are_near_the_rate(last, holds):
    noise = np.arange(5) / 1000
    rows = pd.concat(
        [frame(n_clients=n, ratio=last + noise) for n in (70, 100)] + [frame(n_clients=10, ratio=9 + noise)]
    )
    assert time.settling_claim("x", rows).holds is holds
    assert time.settling_claim("x", frame(n_clients=10, ratio=0.3)).holds is None


def test_the_papers_count_tends_to_the_participation_rate():
    assert time.papers_count(10**9) == pytest.approx(0.3, abs=0.02)


def test_the_printed_bound_is_no_probability_and_the_corrected_one_bounds_the_simulation():
    assert unfairness.printed_bound(1) == pytest.approx(3.24, abs=0.01)
    for s in range(1, 11):
        simulated = unfairness.simulated_chances()[s]
        assert simulated.low - 0.005 <= unfairness.chance(s) <= simulated.high + 0.005
        assert unfairness.corrected_bound(s) == unfairness.chance(s) / 2
