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
from fedworth.names import Scale
from fedworth.studies import fairness, models, noisy_data, noisy_labels, rank, spectrum, time, unfairness
from fedworth.studies.fairness import differences
from fedworth.studies.noisy_data import correlations
from fedworth.studies.noisy_labels import found_noisy
from fedworth.studies.reproduce import STUDIES, Request, extent_sentence, trials_of
from fedworth.studies.results.comparing import all_of, bound_claim, less_claim, more_claim, pairs
from fedworth.studies.results.outcome import Claim, Outcome, Verdict, verdict_of
from fedworth.studies.results.page import THEORY, table, write_page, write_section
from fedworth.studies.results.pictures import draw
from fedworth.studies.results.statistics import (
    Interval,
    chance_of,
    chance_of_less,
    dominance,
    jaccard,
    mean_of,
    rounded_correlation,
)
from fedworth.studies.time import papers_count
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.methods import METHODS
from fedworth.studies.trials.plans import plan_fedsv
from fedworth.studies.trials.settings import extents_of
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


def test_dominance_is_one_only_if_the_distribution_lies_left_everywhere():
    assert dominance([0.1, 0.2], [0.2, 0.5]) == 1.0
    assert dominance([0.0, 0.9], [0.2, 0.5]) == pytest.approx(3 / 4)


def test_correlation_of_a_constant_ranks_nobody():
    assert rounded_correlation([1, 1, 1], [1, 2, 3]) == 0.0
    assert rounded_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)


def test_jaccard_counts_the_overlap():
    assert jaccard({1, 2, 3}, {2, 3, 4}) == 0.5
    assert jaccard(set(), set()) == 1.0


def row(seed: int, **values: list[float]) -> dict[str, Any]:
    named = {key.replace("_", "-"): numbers for key, numbers in values.items()}
    return {"seed": seed, "reading": {"values": named}}


def test_differences_compare_client_0_with_its_copy():
    found = differences([row(0, fedsv=[1.0, *[0.0] * 8, 0.5]), row(1, fedsv=[-1.0, *[0.0] * 8, 1.0])])
    assert found == {"fedsv": {0: 0.5, 1: 2.0}}


def test_values_that_fall_with_the_noise_correlate_fully():
    assert correlations([row(3, truth=[3.0, 2.0, 1.0])]) == {"truth": {3: pytest.approx(1.0)}}


def test_noisy_clients_are_found_by_their_low_values_and_win_no_ties():
    assert found_noisy([-1.0, *[1.0] * 9]) == 1.0
    assert found_noisy([0.0] * 10) == 0.0


def test_pairs_are_of_the_same_seeds():
    numbers = {"comfedsv-counts": {2: 0.2, 1: 0.1}, "fedsv": {1: 0.5, 3: 0.6}}
    assert pairs(numbers, "comfedsv-counts", "fedsv") == ([0.1], [0.5])
    assert less_claim("d", numbers).holds is None


def numbers_of(ours: list[float], theirs: list[float]) -> dict[str, dict[int, float]]:
    return {"comfedsv-counts": dict(enumerate(ours)), "fedsv": dict(enumerate(theirs))}


def test_claims_of_more_and_less_look_both_ways():
    numbers = numbers_of([s + 1.0 for s in range(8)], [s * 0.5 for s in range(8)])
    assert more_claim("x", numbers).holds is True
    assert less_claim("x", numbers).holds is False
    assert "of the reverse 0.0039" in less_claim("x", numbers).why


@pytest.mark.parametrize("n", [8, 40])
def test_a_comparison_that_no_test_decides_is_open_however_many_seeds(n):
    ours = [1.0 + (0.1 + s / 1000) * (-1) ** s for s in range(n)]
    for claim in (less_claim("x", numbers_of(ours, [1.0] * n)), more_claim("x", numbers_of(ours, [1.0] * n))):
        assert claim.holds is None
        assert claim.why.endswith("no test decides")


def test_four_pairs_decide_nothing_and_equal_pairs_refute():
    four = less_claim("x", numbers_of([0.0] * 4, [1.0] * 4))
    assert four.holds is None
    assert "5 pairs are the fewest" in four.why
    assert less_claim("x", numbers_of([1.0] * 6, [1.0] * 6)).holds is False


@pytest.mark.parametrize(
    ("low", "high", "holds"),
    [(0.0, 0.1, True), (0.1, 0.2, True), (0.21, 0.3, False), (0.1, 0.21, None), (math.nan, math.nan, None)],
)
def test_a_number_is_held_against_a_bound_by_its_whole_interval(low, high, holds):
    assert bound_claim("x", Interval(0.1, low, high, 3), "", most=0.2).holds is holds
    assert bound_claim("x", Interval(-0.1, -high, -low, 3), "", least=-0.2).holds is holds


def test_an_open_bound_says_why():
    assert bound_claim("x", mean_of([1.0, 2.0]), "1.5", most=3).why == "1.5; too few seeds for an interval"
    assert bound_claim("x", mean_of([1.0, 2.0, 3.0]), "2", most=2).why == "2; its interval spans the bound"


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


@pytest.mark.parametrize(("n", "left", "crossed"), [(19, None, None), (20, True, False)])
def test_twenty_seeds_decide_whether_one_distribution_lies_left_of_the_other(n, left, crossed):
    found = fairness.findings({"mnist": [equal_clients(s, 0.05, 0.5) for s in range(n)]})
    assert holds_of(found, "for all t") is left
    assert holds_of(found, "below about 0.1") is left
    found = fairness.findings({"mnist": [equal_clients(s, 0.9 if s == 0 else 0.05, 0.5) for s in range(n)]})
    assert holds_of(found, "for all t") is crossed
    assert holds_of(found, "below about 0.1") is False


def test_fairness_says_how_many_seeds_have_a_truth():
    rows = [equal_clients(s, 0.05, 0.5) for s in range(3)]
    rows[0]["reading"]["values"]["truth"] = [1.0, *[0.0] * 8, 1.0]
    lines = {line[1]: line for line in fairness.findings({"mnist": rows}).lines}
    assert lines["FedSV"][-2].endswith(" (1)")
    assert lines["truth"][-2] == "1.00"


def ranked(n_swapped: int) -> list[float]:
    """Ten values that fall, but for as many of the first, which rise."""
    return [*range(n_swapped), *range(20, 10 + n_swapped, -1)]


@pytest.mark.parametrize(
    ("truth", "ours", "ranks", "matches"), [(0, 0, True, True), (0, 6, True, False), (9, 9, False, None)]
)
def test_the_truth_must_rank_the_clients_for_a_match_to_be_judged(truth, ours, ranks, matches):
    rows = [row(s, fedsv=ranked(5), comfedsv_counts=ranked(ours), truth=ranked(truth)) for s in range(5)]
    found = noisy_data.findings({"mnist": rows})
    assert holds_of(found, "truth ranks") is ranks
    assert holds_of(found, "almost matches") is matches
    said = [claim.why for claim in found.claims if "almost" in claim.what]
    assert ("matching it says nothing" in said[0]) is (matches is None)


def labelled(n_seeds: int, ours: list[int], theirs: list[int]) -> list[dict[str, Any]]:
    """Rows of five participation rates at which ComFedSV and FedSV miss so many of ten noisy clients."""
    made = []
    for percent, mine, others in zip((10, 20, 30, 40, 50), ours, theirs, strict=True):
        for seed in range(n_seeds):
            values = {"fedsv": missing(others), "comfedsv_counts": missing(mine)}
            made.append({**row(seed, **values), "federation": {"n_clients": 100, "n_participants": percent}})
    return made


def missing(n: int) -> list[float]:
    """A hundred values of which the ten lowest are noisy clients, but for n."""
    return [*[1.0] * n, *[0.0] * (10 - n), *[0.0] * n, *[1.0] * (90 - n)]


FULL = [0] * 5


@pytest.mark.parametrize(
    ("n_seeds", "ours", "theirs", "ahead"),
    [
        (5, [1, 0, 0, 0, 0], FULL, None),
        (2, FULL, FULL, None),
        (5, [1, 1, 1, 1, 1], [4, 3, 3, 3, 2], True),
        (5, [4, 3, 3, 3, 2], [1, 1, 1, 1, 1], False),
        (5, [3, 1, 2, 2, 2], [1, 3, 2, 2, 2], False),
        (2, [1, 1, 1, 1, 1], [4, 3, 3, 3, 2], True),
        (2, [4, 3, 3, 3, 2], [1, 1, 1, 1, 1], False),
        (2, [3, 1, 2, 2, 2], [1, 3, 2, 2, 2], None),
        (1, [1, 1, 1, 1, 1], [4, 3, 3, 3, 2], None),
    ],
)
def test_ahead_is_judged_by_seeds_or_else_by_all_pairs(n_seeds, ours, theirs, ahead):
    found = noisy_labels.findings({"mnist": labelled(n_seeds, ours, theirs)})
    assert holds_of(found, "ahead") is ahead


@pytest.mark.parametrize(
    ("n_seeds", "ours", "theirs", "better", "why"),
    [
        (3, [5, 4, 3, 2, 1], [6, 5, 4, 3, 2], True, ""),
        (3, [5, 4, 3, 2, 1], [2, 3, 4, 5, 6], False, ""),
        (2, [5, 4, 3, 2, 1], [6, 5, 4, 3, 2], None, "no interval decides"),
        (3, [10, 10, 9, 8, 8], [6, 5, 4, 3, 2], None, "near chance"),
        (3, [5, 4, 3, 2, 1], FULL, None, "finds all"),
    ],
)
def test_more_participation_is_judged_where_something_can_grow(n_seeds, ours, theirs, better, why):
    found = noisy_labels.findings({"mnist": labelled(n_seeds, ours, theirs)})
    assert holds_of(found, "more participation") is better
    assert why in next(claim.why for claim in found.claims if "participation" in claim.what)


def with_curve(kind: str, n: int, reading: dict[str, Any]) -> list[dict[str, Any]]:
    federation = {"partition": "iid" if kind == "IID" else "two-class", "n_rounds": 20}
    return [{"seed": seed, "federation": federation, "reading": reading} for seed in range(n)]


@pytest.mark.parametrize(("n", "best", "holds"), [(3, 0.96, True), (3, 0.94, False), (2, 0.99, None)])
def test_an_accuracy_reaches_the_papers_by_its_interval(n, best, holds):
    found = models.findings({"mnist": with_curve("IID", n, {"accuracy": [0.5, best, 0.9]})})
    assert holds_of(found, "less 3 points") is holds
    assert found.lines[0][3:6] == ("50.0%", mean_of([best] * n).text(".1%"), "90.0%")


@pytest.mark.parametrize(("n", "decay", "holds"), [(3, 0.05, True), (3, 0.7, False), (2, 0.05, None)])
def test_singular_values_are_judged_by_their_intervals(n, decay, holds):
    singular = [decay**k for k in range(16)]
    reading = {"singular": singular, "best_errors": [decay**k for k in range(1, 11)]}
    found = spectrum.findings({"mnist": with_curve("IID", n, reading)})
    assert [claim.holds for claim in found.claims] == [holds if decay < 0.5 or k else True for k in range(3)]


@pytest.mark.parametrize(
    ("n", "errors", "turns"),
    [
        (3, [0.13, 0.1, *[0.12] * 8], True),
        (3, [0.1, *[0.12] * 9], False),
        (3, [0.13, *[0.1] * 9], False),
        (2, [0.13, 0.1, *[0.12] * 8], None),
    ],
)
def test_the_error_turns_if_both_ends_are_worse_than_the_best_rank(n, errors, turns):
    reading = {"errors": {"counts 0.01": errors}, "best_errors": [0.5 * error for error in errors]}
    found = rank.findings({"mnist": with_curve("IID", n, reading)})
    assert holds_of(found, "then rises") is turns
    assert holds_of(found, "about 0.1") is (True if n > 2 else None)


@pytest.mark.parametrize(("n_apart", "n", "holds"), [(33, 50, True), (5, 50, False), (3, 5, None)])
def test_about_65_percent_is_a_band_that_the_interval_must_lie_in(n_apart, n, holds):
    rows = [equal_clients(s, 0.0, 0.9 if s < n_apart else 0.1) for s in range(n)]
    assert holds_of(unfairness.findings({"mnist": rows}), "65 %") is holds


def test_d_as_printed_is_of_the_runs_where_it_is_defined():
    rows = [row(0, fedsv=[-1.0, *[0.0] * 8, -2.0]), row(1, fedsv=[1.0, *[0.0] * 8, -2.0])]
    (line,) = [line for line in unfairness.findings({"mnist": rows}).lines if "as printed" in line[1]]
    assert line[1] == "FedSV, d as printed, undefined in 1 of 2"
    assert line[2].startswith("1.00 [")
    (line,) = [line for line in unfairness.findings({"mnist": rows[:1]}).lines if "as printed" in line[1]]
    assert line[2] == "– (0)"


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
    same = {"values": values, "matrix_error": {}, "loss_fall": 1.0}
    singular = np.sort(rng.uniform(size=20))[::-1]
    spectral = {"singular": (singular / singular[0]).tolist(), "best_errors": singular[:10].tolist()}
    errors = {f"{kind} 0.01": rng.uniform(0.1, 1, size=10).tolist() for kind in ("counts", "uniform")}
    seconds = {oracle: {"fedsv": 1.0, "comfedsv": 2.0} for oracle in ("loop", "fast")}
    readings: dict[str, Any] = {
        "values": same,
        "scan": {"loss_fall": 1.0, "scanned": [{"what": "rank", "setting": 3, **same}]},
        "spectrum": spectral,
        "ranks": {"errors": errors, **spectral},
        "accuracy": {"accuracy": rng.uniform(size=trial.federation.n_rounds).tolist()},
        "cost": {"seconds": seconds},
        "fidelity": fidelity_of({**values, "models": values["fedsv"], "factors": values["leave-one-out"]}),
    }
    return {"seed": trial.federation.seed, **trial.measured(), "reading": readings[trial.reading]}


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
    if n_seeds == 5:
        draw(outcome.panels, tmp_path / "picture.svg")


def test_costs_settle_if_the_last_two_points_are_near_the_rate():
    def claim(ratios: list[float]) -> Claim:
        cells = [(10 * k, 10, "evaluations", ratio, 1.0, ratio, 2) for k, ratio in enumerate(ratios, 1)]
        return time.settling_claim("evaluations", 10, cells)

    assert claim([1.0, 0.35, 0.25]).holds is True
    assert claim([0.3, 0.6, 0.3]).holds is False
    assert claim([0.3]).holds is None


def test_the_page_counts_claims_in_words(tmp_path):
    outcome = Outcome("rank", "Rank", ("x",), ((0.1,),), ("x",), (("1",),), (YES, NO, NO, UNKNOWN), ())
    write_section(tmp_path, outcome, "text")
    text = write_page(tmp_path, ("rank",)).read_text()
    assert "| `rank` | holds in part | 1 holds, 2 do not, 1 open |" in text


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
    assert "rate 0.03 to 1," in sentence
    assert "N = 10 to 100, K = 3 to 20, T = 10," in sentence
