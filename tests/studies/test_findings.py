"""What is said over seeds: intervals, tests, verdicts, and the numbers that the studies make of values."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedworth.cli.main import main
from fedworth.games.planning.plan import plan_prefixes
from fedworth.names import Scale
from fedworth.studies import fairness, models, noisy_data, noisy_labels, rank, spectrum, time, unfairness
from fedworth.studies.conduct.misconduct import kinds
from fedworth.studies.reproduce import STUDIES, Request, extent_sentence, trials_of
from fedworth.studies.results.claims import claim_lines, verdict_and_reason
from fedworth.studies.results.comparing import all_of, at_setting, bound_claim, left_claim, more_claim, pairs
from fedworth.studies.results.outcome import Claim, Outcome, Verdict, verdict_of
from fedworth.studies.results.page import table
from fedworth.studies.results.pictures import draw
from fedworth.studies.results.records import Record, csv_of, found_noisy, records_from, value_records
from fedworth.studies.results.statistics import (
    Interval,
    chance_of,
    chance_of_less,
    chances_of_crossing,
    jaccard,
    mean_of,
    rounded_correlation,
)
from fedworth.studies.results.theory import THEORY
from fedworth.studies.time import papers_count
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.methods import METHODS
from fedworth.studies.trials.plans import plan_fedsv, plan_random
from fedworth.studies.trials.settings import SETUPS, extents_of
from fedworth.studies.trials.trial import Trial
from fedworth.studies.unfairness import printed_bound, simulated_chances
from fedworth.theory.observation1 import unfairness_bound, unfairness_chance

pytest.importorskip("matplotlib")

YES, NO, UNKNOWN = Claim("a", True, ""), Claim("b", False, ""), Claim("c", None, "")


@pytest.mark.parametrize(
    ("claims", "verdict"),
    [
        ([YES, YES], Verdict.HOLDS),
        ([YES, UNKNOWN], Verdict.IN_PART),
        ([YES, NO], Verdict.IN_PART),
        ([NO, UNKNOWN], Verdict.FAILS),
        ([UNKNOWN], Verdict.OPEN),
        ([], Verdict.OPEN),
    ],
)
def test_a_verdict_adds_up_its_claims(claims, verdict):
    assert verdict_of(claims) == verdict


def test_the_sentence_names_study_verdict_and_evidence():
    outcome = Outcome("rank", "Rank", ("x",), ((math.nan,), (0.1,)), ("x",), (("1",),), (YES, NO), ())
    assert outcome.sentence() == "rank: holds in part — a: holds (); b: does not hold ()"
    assert outcome.csv_text() == "x\n\n0.1\n".replace("\n\n", '\n""\n')
    assert outcome.document()["rows"] == [{"x": None}, {"x": 0.1}]


def test_the_mean_has_students_interval():
    low, high = stats.t.interval(0.95, 3, 2.5, stats.sem([1, 2, 3, 4]))
    found = mean_of([1, 2, 3, 4])
    assert (found.value, found.low, found.high) == pytest.approx((2.5, low, high))
    assert mean_of([0.9, 1.0, 1.0], (-1.0, 1.0)).high == 1.0
    assert math.isnan(mean_of([1.0, 2.0]).low)
    assert mean_of([]).text() == "–"


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_a_chance_has_wilsons_interval(claims):
    expected = stats.binomtest(sum(claims), len(claims)).proportion_ci(0.95, "wilson")
    found = chance_of(claims)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_the_paired_test_is_one_sided_and_leaves_out_equal_pairs():
    assert chance_of_less([1, 2, 3, 4, 5], [2, 4, 6, 8, 10]) == pytest.approx(1 / 32)
    assert chance_of_less([2, 4, 6, 8, 10], [1, 2, 3, 4, 5]) == 1.0
    assert chance_of_less([1, 2], [1, 2]) == 1.0


def test_one_distribution_crosses_another_only_if_a_test_says_so():
    low, high = [k / 20 for k in range(20)], [1 + k / 20 for k in range(20)]
    left, right = chances_of_crossing(low, high)
    assert (left < 1e-6, right) == (True, 1.0)
    assert chances_of_crossing(high, low) == (1.0, left)
    assert min(chances_of_crossing(low, low)) == 1.0


def test_correlation_of_a_constant_ranks_nobody():
    assert rounded_correlation([1, 1, 1], [1, 2, 3]) == 0.0
    assert rounded_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)


def test_jaccard_counts_the_overlap():
    assert jaccard({1, 2, 3}, {2, 3, 4}) == 0.5
    assert jaccard(set(), set()) == 1.0


def row(seed: int, **values: list[float]) -> dict[str, Any]:
    named = {key.replace("_", "-"): numbers for key, numbers in values.items()}
    federation = Trial(STUDIES["fairness"].trials(SETUP, Extent(1), [seed])[0].federation).measured()
    return {"seed": seed, **federation, "reading": {"values": named, "accuracy": [0.9], "matrix_error": {}}}


SETUP = SETUPS["page"]["mnist"]


def measured(measure: str, rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(r["method"], r["seed"], r[measure]) for r in value_records({"mnist": rows}, (measure,))]


def test_differences_compare_client_0_with_its_copy():
    rows = [row(0, fedsv=[1.0, *[0.0] * 8, 0.5]), row(1, fedsv=[-1.0, *[0.0] * 8, 1.0])]
    assert measured("d", rows) == [("fedsv", 0, 0.5), ("fedsv", 1, 2.0)]


def test_the_gap_is_a_part_of_the_mean_true_value():
    rows = [row(0, truth=[2.0, *[2.0] * 8, 2.0], fedsv=[1.0, *[0.0] * 8, 0.0])]
    assert measured("gap", rows) == [("truth", 0, 0.0), ("fedsv", 0, 0.5)]
    assert measured("gap", [row(0, fedsv=[1.0] * 10)]) == [("fedsv", 0, None)]


def test_the_error_is_that_of_centred_values_and_the_heard_round_counts_every_round():
    truth = [float(k) for k in range(10)]
    rows = [row(0, truth=truth, fedsv=[7.0] * 10, heard_round=[0.1 * x + 3 for x in truth])]
    assert measured("value_error", rows) == [
        ("truth", 0, 0.0), ("fedsv", 0, pytest.approx(1.0)), ("heard-round", 0, pytest.approx(0.0, abs=1e-12)),
    ]  # fmt: skip


def test_values_that_fall_with_the_noise_correlate_fully():
    assert measured("noise_correlation", [row(3, truth=[3.0, 2.0, 1.0])]) == [("truth", 3, pytest.approx(1.0))]


def test_noisy_clients_are_found_by_their_low_values_and_win_no_ties():
    assert found_noisy([-1.0, *[1.0] * 9]) == 1.0
    assert found_noisy([0.0] * 10) == 0.0


def test_records_come_back_from_their_csv():
    records: list[Record] = [{"setup": "mnist", "seed": 3, "d": 0.123456789}, {"setup": "mnist", "gap": None}]
    columns, rows = csv_of(records)
    outcome = Outcome("x", "X", columns, rows, ("x",), (), (), ())
    first, second = records_from(outcome.csv_text())
    assert first == {"setup": "mnist", "seed": 3, "d": 0.123457, "gap": None}
    assert second == {"setup": "mnist", "seed": None, "d": None, "gap": None}


def test_pairs_are_of_the_same_seeds():
    numbers = {"comfedsv-counts": {2: 0.2, 1: 0.1}, "fedsv": {1: 0.5, 3: 0.6}}
    assert pairs(numbers, "comfedsv-counts", "fedsv") == ([0.1], [0.5])
    assert more_claim("d", numbers).holds is None


def numbers_of(ours: list[float], theirs: list[float]) -> dict[str, dict[int, float]]:
    return {"comfedsv-counts": dict(enumerate(ours)), "fedsv": dict(enumerate(theirs))}


def test_a_claim_of_more_looks_both_ways():
    ours, theirs = [s + 1.0 for s in range(8)], [s * 0.5 for s in range(8)]
    assert more_claim("x", numbers_of(ours, theirs)).holds is True
    assert more_claim("x", numbers_of(theirs, ours)).holds is False


@pytest.mark.parametrize("n", [8, 40])
def test_a_comparison_that_no_test_decides_is_open_however_many_seeds(n):
    ours = [1.0 + (0.1 + s / 1000) * (-1) ** s for s in range(n)]
    assert more_claim("x", numbers_of(ours, [1.0] * n)).holds is None
    assert left_claim("x", numbers_of([float(s) for s in range(n)], [s + 0.1 for s in range(n)])).holds is None


def test_a_distribution_that_crosses_another_somewhere_does_not_lie_left_of_it():
    theirs = [0.4 + s / 100 for s in range(20)]
    assert left_claim("x", numbers_of([0.1] * 20, theirs)).holds is True
    assert left_claim("x", numbers_of([0.1] * 10 + [0.9] * 10, theirs)).holds is False


def test_four_seeds_judge_nothing_and_equal_pairs_refute():
    for claim in (more_claim("x", numbers_of([1.0] * 4, [0.0] * 4)), left_claim("x", numbers_of([0.0] * 4, [1.0] * 4))):
        assert claim.holds is None
        assert claim.why.endswith("4 seeds judge nothing")
    assert more_claim("x", numbers_of([1.0] * 6, [1.0] * 6)).holds is False


def test_a_model_near_chance_judges_nothing():
    claim = Claim("x", True, "why")
    known: dict[str, Any] = {"partition": "iid", "seed": 0, "n_participants": 3}

    def judged_at(accuracy: float) -> Claim:
        return at_setting(claim, [{"setup": "mnist-small", "accuracy": accuracy, **known}])

    assert judged_at(0.5) == Claim("x", True, "why", "paper-like")
    assert (judged_at(0.12).holds, judged_at(0.12).why) == (None, "why; accuracy 0.12 is near chance")


@pytest.mark.parametrize(
    ("judgements", "verdict", "reason"),
    [
        ([True, True], "**holds**", "method"),
        ([False, False], "**does not hold**", "method"),
        ([True, False], "depends", "setting"),
        ([None, False], "**does not hold** where judged", "method"),
        ([None, None], "open", "undecided"),
    ],
)
def test_the_table_says_whether_method_or_setting_decides(judgements, verdict, reason):
    assert verdict_and_reason(judgements) == (verdict, reason)


def test_a_line_of_claims_has_both_settings_side_by_side():
    claims = [Claim("x", True, "a", "practical"), Claim("x", None, "b", "paper-like"), Claim("y", False, "c")]
    assert claim_lines(claims) == [
        ("x", "? b", "✔ a", "**holds** where judged", "method"),
        ("y", "✘ c", "the same", "**does not hold**", "method"),
    ]


@pytest.mark.parametrize(
    ("low", "high", "holds"),
    [(0.0, 0.1, True), (0.1, 0.2, True), (0.21, 0.3, False), (0.1, 0.21, None), (math.nan, math.nan, None)],
)
def test_a_number_is_held_against_a_bound_by_its_whole_interval(low, high, holds):
    assert bound_claim("x", Interval(0.1, low, high, 5), "", most=0.2).holds is holds
    assert bound_claim("x", Interval(-0.1, -high, -low, 5), "", least=-0.2).holds is holds
    assert bound_claim("x", Interval(0.1, low, high, 4), "", most=0.2).holds is None


def test_all_hold_unless_one_does_not_or_is_open():
    assert all_of([True, True]) is True
    assert all_of([True, None]) is None
    assert all_of([None, False]) is False


def holds_of(outcome: Outcome, part: str) -> bool | None:
    (found,) = [claim.holds for claim in outcome.claims if part in claim.what]
    return found


def equal_clients(seed: int, ours: float, theirs: float) -> dict[str, Any]:
    """Values whose d are these two numbers."""
    return row(seed, fedsv=[1.0, *[0.0] * 8, 1.0 - theirs], comfedsv_counts=[1.0, *[0.0] * 8, 1.0 - ours])


def found_in(name: str, rows: list[dict[str, Any]]) -> Outcome:
    return STUDIES[name].findings({"mnist": rows})


@pytest.mark.parametrize(("n", "left", "below"), [(4, None, None), (40, True, True)])
def test_fairness_is_judged_by_whole_distributions(n, left, below):
    found = found_in("fairness", [equal_clients(s, 0.05, 0.5) for s in range(n)])
    assert (holds_of(found, "at every t"), holds_of(found, "below about .1")) == (left, below)
    assert fairness.SHOWN[1] == "accuracy"


def test_a_few_runs_that_are_apart_do_not_settle_it_many_do():
    few = found_in("fairness", [equal_clients(s, 0.9 if s < 2 else 0.05, 0.5) for s in range(20)])
    assert (holds_of(few, "at every t"), holds_of(few, "below about .1")) == (True, None)
    many = found_in("fairness", [equal_clients(s, 0.9 if s < 12 else 0.05, 0.5) for s in range(20)])
    assert (holds_of(many, "at every t"), holds_of(many, "below about .1")) == (False, False)


def ranked(n_swapped: int) -> list[float]:
    """Ten values that fall, but for as many of the first, which rise."""
    return [*range(n_swapped), *range(20, 10 + n_swapped, -1)]


@pytest.mark.parametrize(("truth", "ours", "matches"), [(0, 0, True), (0, 6, False), (9, 9, None)])
def test_the_truth_must_rank_the_clients_for_a_match_to_be_judged(truth, ours, matches):
    rows = [row(s, fedsv=ranked(5), comfedsv_counts=ranked(ours), truth=ranked(truth)) for s in range(5)]
    found = found_in("noisy-data", rows)
    assert holds_of(found, "almost matches") is matches
    said = [claim.why for claim in found.claims if "almost" in claim.what]
    assert ("says nothing" in said[0]) is (matches is None)
    assert noisy_data.SEES_NOISE == 0.5


def labelled(n_seeds: int, ours: list[int], theirs: list[int]) -> list[dict[str, Any]]:
    """Rows of five participation rates at which ComFedSV and FedSV miss so many of ten noisy clients."""
    made = []
    for percent, mine, others in zip((10, 20, 30, 40, 50), ours, theirs, strict=True):
        for seed in range(n_seeds):
            found = row(seed, fedsv=missing(others), comfedsv_counts=missing(mine))
            federation = {**found["federation"], "n_clients": 100, "n_participants": percent}
            made.append({**found, "federation": federation})
    return made


def missing(n: int) -> list[float]:
    """A hundred values of which the ten lowest are noisy clients, but for n."""
    return [*[1.0] * n, *[0.0] * (10 - n), *[0.0] * n, *[1.0] * (90 - n)]


FULL, NONE = [0] * 5, [10] * 5


@pytest.mark.parametrize(
    ("n_seeds", "ours", "theirs", "ahead", "why"),
    [
        (5, FULL, FULL, None, "saturated"),
        (5, NONE, NONE, None, "near chance"),
        (5, [1, 1, 1, 1, 1], [4, 3, 3, 3, 2], True, ""),
        (5, [4, 3, 3, 3, 2], [1, 1, 1, 1, 1], False, ""),
        (4, [1, 1, 1, 1, 1], [4, 3, 3, 3, 2], None, "4 seeds judge nothing"),
    ],
)
def test_ahead_is_judged_by_independent_seeds_where_there_is_room(n_seeds, ours, theirs, ahead, why):
    found = found_in("noisy-labels", labelled(n_seeds, ours, theirs))
    assert holds_of(found, "better than FedSV") is ahead
    assert why in next(claim.why for claim in found.claims if "better" in claim.what)
    assert noisy_labels.CHANCE == 0.05


@pytest.mark.parametrize(
    ("n_seeds", "ours", "theirs", "better"),
    [
        (5, [5, 4, 3, 2, 1], [6, 5, 4, 3, 2], True),
        (5, [5, 4, 3, 2, 1], [2, 3, 4, 5, 6], False),
        (4, [5, 4, 3, 2, 1], [6, 5, 4, 3, 2], None),
        (5, NONE, NONE, None),
    ],
)
def test_more_participation_is_judged_where_something_can_grow(n_seeds, ours, theirs, better):
    found = found_in("noisy-labels", labelled(n_seeds, ours, theirs))
    assert holds_of(found, "more participation") is better


def with_reading(n: int, reading: dict[str, Any]) -> list[dict[str, Any]]:
    made = [row(seed) for seed in range(n)]
    return [{**found, "reading": {**found["reading"], **reading}} for found in made]


@pytest.mark.parametrize(("n", "best", "holds"), [(5, 0.96, True), (5, 0.85, False), (4, 0.99, None)])
def test_an_accuracy_reaches_the_papers_by_its_interval(n, best, holds):
    found = found_in("models", with_reading(n, {"accuracy": [0.5, best, 0.8]}))
    assert holds_of(found, "less 3 points") is holds
    assert found.lines[0][3:6] == ("0.50", mean_of([best] * n).text(), "0.80")
    assert models.NEAR == 0.03


@pytest.mark.parametrize(("n", "decay", "holds"), [(5, 0.05, True), (5, 0.7, False), (4, 0.05, None)])
def test_singular_values_are_judged_by_their_intervals(n, decay, holds):
    reading = {"singular": [decay**k for k in range(16)], "best_errors": [decay**k for k in range(1, 11)]}
    found = found_in("spectrum", with_reading(n, reading))
    assert [claim.holds for claim in found.claims] == [holds]
    assert spectrum.PAPERS_SECOND["mnist"] == 0.06


@pytest.mark.parametrize(
    ("n", "errors", "turns"),
    [
        (5, [0.13, 0.1, *[0.12] * 8], True),
        (5, [0.1, *[0.12] * 9], False),
        (5, [0.13, *[0.1] * 9], False),
        (4, [0.13, 0.1, *[0.12] * 8], None),
    ],
)
def test_the_error_turns_if_both_ends_are_worse_than_the_best_rank(n, errors, turns):
    reading = {"errors": {rank.MAIN: errors, rank.PRINTED: errors}, "best_errors": [0.5 * error for error in errors]}
    found = found_in("rank", with_reading(n, reading))
    assert holds_of(found, "then rises") is turns
    assert holds_of(found, "about .1") is (True if n > 4 else None)


@pytest.mark.parametrize(("n_apart", "n", "holds"), [(33, 50, True), (5, 50, False), (3, 5, None)])
def test_about_65_percent_is_a_band_that_the_interval_must_lie_in(n_apart, n, holds):
    rows = [equal_clients(s, 0.0, 0.9 if s < n_apart else 0.1) for s in range(n)]
    assert holds_of(found_in("unfairness", rows), "65 %") is holds


def test_d_as_printed_is_of_the_runs_where_it_is_defined():
    rows = [row(0, fedsv=[-1.0, *[0.0] * 8, -2.0]), row(1, fedsv=[1.0, *[0.0] * 8, -2.0])]
    place = unfairness.SHOWN.index("FedSV, d as printed")
    assert found_in("unfairness", rows).lines[0][place] == "1.00 of the 1 where it is defined"
    assert found_in("unfairness", rows[:1]).lines[0][place] == "nowhere defined"


def test_the_printed_bound_is_no_probability_and_the_corrected_one_is_half_the_chance():
    assert printed_bound(10, 3, 10, 1) == pytest.approx(3.24, abs=0.01)
    assert unfairness_bound(10, 3, 10, 2) == pytest.approx(unfairness_chance(10, 3, 10, 2) / 2)


def test_simulated_participants_agree_with_the_exact_chance():
    """2,000 draws: five standard errors are at most 5 · √(1/4 / 2000) = .056."""
    for s, found in enumerate(simulated_chances(2_000)):
        assert abs(found.value - unfairness_chance(10, 3, 10, s)) < 0.056


def test_fedsv_alone_measures_no_more_than_its_participants_in_any_round():
    participants = np.ones((2, 8), dtype=bool)
    participants[1, 2:] = False
    plan = plan_fedsv(participants, 2, rng=np.random.default_rng(0))
    assert [int(cells.any(axis=0).sum()) for cells in plan.cells] == [2, 2]
    assert plan.n_evaluations <= 6


def test_the_papers_count_tends_to_the_participation_rate():
    assert papers_count(10, 3) == pytest.approx(0.143, abs=0.001)
    assert papers_count(10**9, 3 * 10**8) == pytest.approx(0.3, abs=0.02)


def test_a_table_leaves_out_names_that_repeat():
    assert table(("data", "method", "d"), (("mnist", "a", "1"), ("mnist", "b", "2"))).splitlines() == [
        "| data | method | d |",
        "| --- | --- | ---: |",
        "| mnist | a | 1 |",
        "|  | b | 2 |",
    ]


def fidelity_of(values: dict[str, list[float]]) -> dict[str, Any]:
    """What `fidelity` would have read off, with intervals of 1 on either side."""
    said = dict.fromkeys(values, 1.0)
    ends = {key: [[x - 1, x + 1] for x in found] for key, found in values.items()}
    sure = {"deviations": values, "intervals": ends, "ratio": said, "evaluations": said, "seconds": said}
    return {"values": values, **sure, "truth_deviations": [0.0] * len(next(iter(values.values())))}


def made_up(trial: Trial) -> dict[str, Any]:
    """A row as a trial would leave it, its numbers drawn at random."""
    rng, n = np.random.default_rng(trial.federation.seed), trial.federation.n_clients
    values = {key: rng.normal(size=n).tolist() for key in METHODS if key != "truth" or trial.federation.with_truth}
    singular = np.sort(rng.uniform(size=20))[::-1]
    spectral = {"singular": (singular / singular[0]).tolist(), "best_errors": singular[:10].tolist()}
    same = {"values": values, "matrix_error": {}, **spectral}
    errors = {kind: rng.uniform(0.1, 1, size=10).tolist() for kind in (rank.MAIN, rank.PRINTED)}
    seconds = {oracle: {"fedsv": 1.0, "comfedsv": 2.0} for oracle in ("loop", "fast")}
    readings: dict[str, Any] = {
        "values": same,
        "matrix": {**same, "errors": errors},
        "scan": {"scanned": [{"what": "rank", "setting": 3, **same}]},
        "orders": {"orders": {how: {"heard-round": values["fedsv"]} for how in ("squares", "random")}},
        "fedsv": {"values": {"fedsv": values["fedsv"]}},
        "cost": {"seconds": seconds},
        "fidelity": fidelity_of({**values, "models": values["fedsv"], "factors": values["leave-one-out"]}),
    }
    accuracy = {"accuracy": rng.uniform(size=trial.federation.n_rounds).tolist()}
    readings["measures"] = {"measures": [compared(name, values["fedsv"]) for name in ("comfedsv", "cosine")]}
    reading = readings.get(trial.reading) or planted(trial)
    return {"seed": trial.federation.seed, **trial.measured(), "reading": {**reading, **accuracy}}


def compared(name: str, values: list[float]) -> dict[str, Any]:
    """What `compare` would say of a measure."""
    told = {"values": values, "refusal": None, "evaluations": 10, "cpu_seconds": 0.5}
    return {"measure": name, **told, "error": 0.5, "rank_correlation": 0.9, "copies_gap": None}


def planted(trial: Trial) -> dict[str, Any]:
    """What `findings` would have read off a federation in which everything is found."""
    name = trial.reading.removeprefix("findings: ")
    kind = next(kind for kind in kinds(trial.federation.n_clients) if kind.name == name)
    found = [{"kind": str(min(kind.found_as)), "clients": list(kind.planted), "sure": 0.99}] if kind.planted else []
    return {"kind": name, "planted": list(kind.planted), "findings": found, "truth": None}


@pytest.mark.parametrize("n_seeds", [1, 2, 5])
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_finds_something_in_one_two_and_five_seeds(name, n_seeds, tmp_path):
    scale: Scale = "tiny" if name == "time" else "page"
    request = Request(scale, seeds=tuple(range(n_seeds)))
    extents = {"synthetic": Extent(1, 3, n_clients=20)} if name == "time" else extents_of(scale, name)
    trials = {dataset: trials_of(STUDIES[name], request, dataset, extent) for dataset, extent in extents.items()}
    outcome = STUDIES[name].findings({dataset: [made_up(t) for t in found] for dataset, found in trials.items()})
    assert all(len(line) == len(outcome.shown) for line in outcome.lines)
    assert all(len(cells) == len(outcome.columns) for cells in outcome.rows)
    assert all("nan" not in text for line in outcome.lines for text in line)
    assert all("nan" not in claim.why for claim in outcome.claims)
    assert all(len(line) == len(outcome.all_shown) for line in outcome.all_lines)
    shown = STUDIES[name].shown
    assert shown is None or shown(records_from(outcome.csv_text())) == outcome
    if n_seeds == 5:
        draw(outcome.panels, tmp_path / "picture.svg")


def test_costs_settle_if_the_last_two_points_are_near_the_rate():
    def claim(ratios: list[float], n_seeds: int = 5) -> Claim:
        found = [{"n_clients": 10 * k, "ratio": r} for k, r in enumerate(ratios, 1) for _ in range(n_seeds)]
        return time.settling_claim("evaluations", found)

    assert claim([1.0, 0.35, 0.25]).holds is True
    assert claim([0.3, 0.6, 0.3]).holds is False
    assert claim([0.3]).holds is None
    assert claim([1.0, 0.35, 0.25], n_seeds=4).holds is None


def test_permutations_drawn_one_by_one_are_as_many_as_those_in_squares():
    participants = np.array([[True] * 8, [True] * 3 + [False] * 5])
    plan = plan_random(participants, rng=np.random.default_rng(0))
    squares = plan_prefixes(participants, sampler="permutations", rng=np.random.default_rng(0))
    for mine, theirs in ((plan, squares), (squares, plan)):
        assert mine.permutations is not None
        assert theirs.round_permutations is not None
        assert mine.permutations.shape == (24, 8)
        assert (np.sort(mine.permutations, axis=1) == np.arange(8)).all()
        assert [drawn.shape for drawn in theirs.round_permutations] == [(24, 8), (6, 3)]
    assert not plan.cells[1][:, 3:].any()


def test_what_the_page_says_of_the_theory_stands_in_the_theory():
    text = (Path(__file__).parents[2] / "docs" / "theory.md").read_text()
    anchors = {re.sub(r"[^\w -]", "", line[3:]).lower().replace(" ", "-") for line in re.findall("^## .*", text, re.M)}
    for claim, _, where in THEORY:
        assert set(re.findall(r"theory\.md#([\w-]+)", where)) <= anchors, claim
        for command in re.findall(r"`fedworth (theory [\w-]+)`", where):
            with pytest.raises(SystemExit) as end:
                main([*command.split(), "--help"])
            assert end.value.code == 0


def test_the_account_of_a_study_says_what_varies():
    study, extent = STUDIES["sensitivity"], extents_of("page", "sensitivity")["mnist"]
    sentence = extent_sentence("mnist", trials_of(study, Request("page"), "mnist", extent))
    assert "rate 0.003 to 1, 1 to 50 steps" in sentence
    assert "N = 10, K = 3, T = 10," in sentence
