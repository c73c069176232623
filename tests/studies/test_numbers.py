"""The numbers of single trials by hand: measures of values, fidelity, coverage, findings, misconduct, and settings."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from fedworth import (
    Answer,
    FactorSettings,
    FastOracle,
    SimulationSettings,
    Task,
    ValuationSettings,
    retrained_models,
    value,
)
from studies import coverage, federations, fidelity, findings, gaming, retraining, values
from studies.calibration import RATES, STRENGTHS, choices
from studies.misconduct import COPIED, KINDS, Memory, kinds
from studies.setups import SETUPS
from studies.study import Case, cases_of, study_named
from studies.tables import markdown, table

TRUTH = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 0.0])
NEAR = np.array([0.1, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0, 0.1])
FAR = np.array([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 1.0])
COPIES = SimulationSettings(n_clients=10, copies=((9, 0),))


def test_values_are_compared_with_the_truth_and_copies_with_their_source():
    found = values.measures(FAR, TRUTH, COPIES)
    assert found["value_error"] > 1
    assert found["d"] == found["printed_d"] == pytest.approx(7 / 8)
    assert found["gap"] == pytest.approx(7 / 3.6)
    assert values.measures(NEAR, TRUTH, COPIES)["rank_correlation"] == 1
    assert values.value_error(TRUTH + 5, TRUTH) == pytest.approx(0)


def test_d_as_printed_is_undefined_without_a_positive_value():
    assert values.differences(-1.0, -2.0) == {"d": 0.5, "printed_d": None}
    assert values.differences(0.0, 0.0)["d"] == 0


def test_noisy_clients_win_no_ties():
    assert values.jaccard(np.zeros(10), [0, 1]) == 0
    assert values.jaccard(np.array([0.0, 0.0, 1.0, 1.0]), [0, 1]) == 1
    assert values.jaccard(np.array([0.0, 2.0, 1.0, 3.0]), [0, 1]) == pytest.approx(1 / 3)


def test_values_that_fall_with_the_noise_correlate_fully():
    noisy = SimulationSettings(n_clients=10, noise_shares=tuple(np.arange(10) / 20))
    assert values.measures(-np.arange(10.0), None, noisy) == {"noise_correlation": 1.0}


def test_fidelity_counts_every_round_of_the_all_clients_round():
    found = fidelity.numbers_of(TRUTH / 10, TRUTH, COPIES, "all-clients-round")
    assert found["error"] == pytest.approx(0, abs=1e-12)


def test_settings_of_fidelity_have_names_of_their_own():
    named = {case.setup: fidelity.setting_of(case.federation) for case in cases_of(study_named("fidelity"), "page")}
    assert len(set(named.values())) == len(named)
    assert named["mnist-labels-10"] == "mnist, noisy labels, T = 10"
    assert named["mnist-incomplete"] == "mnist, two classes each, T = 50, no all-clients round"


def fidelity_rows(models, others, setting: str = fidelity.DIGITS, n_seeds: int = 2) -> pd.DataFrame:
    rows = []
    for seed in range(n_seeds):
        for key, found in (("comfedsv-models", models), ("fedsv", others), ("comfedsv", others)):
            cost = {"evaluations": 10, "seconds": 1.0, "truth_error": 0.0, "coverage": 0.9, "predicted": 0.2 + seed}
            rows.append({"setting": setting, "method": key, "seed": seed, **cost})
            rows[-1] |= fidelity.numbers_of(found, TRUTH, COPIES, key)
    return pd.DataFrame(rows)


def test_bars_of_fidelity_are_met_or_missed():
    def held(models, others):
        return {
            claim.what.rpartition(": ")[2]: claim for claim in fidelity.section(fidelity_rows(models, others)).claims
        }

    met = held(NEAR, FAR)
    assert set(met) == {fidelity.RATIO, fidelity.RANKS, "coverage of 90 % intervals", "P(d > .5) of copies"}
    assert all(claim.holds for claim in met.values())
    assert met[fidelity.RATIO].why.endswith("2 of the 20 seeds that it asks for")
    missed = held(FAR, NEAR)
    assert not missed[fidelity.RATIO].holds
    assert not missed["P(d > .5) of copies"].holds


def test_copies_with_other_batches_are_compared_with_the_other_methods():
    setting = f"{fidelity.DIGITS}, copies draw other batches"
    for models, others, holds in ((NEAR, FAR, True), (FAR, NEAR, False)):
        claims = fidelity.section(fidelity_rows(models, others, setting)).claims
        assert [claim.holds for claim in claims if "gap" in claim.what] == [holds]


def test_intervals_hold_the_truth_as_far_as_the_truth_is_known():
    ends = np.array([[0.0, 2.0], [0.0, 2.0], [1.0, 1.0], [1.0, 1.0]])
    truth = np.array([1.9, 2.1, 1.0 + 1e-6, 1.1])
    assert coverage.held(ends, truth) == 0.5  # without width, what differs by rounding is held
    assert coverage.held(ends, truth, 0.3) == 1.0
    assert coverage.held(ends, truth, np.array([0.0, 0.3, 0.0, 0.0])) == 0.75


def test_a_client_that_was_never_heard_is_left_out(tmp_path):
    never = SimulationSettings(
        n_clients=4, n_rounds=8, n_participants=2, availability=(1, 1, 1, 0), everyone_heard=False, train_limit=200
    )
    (row,) = coverage.trial(Case("digits", never), tmp_path, None)
    assert row["n_pairs"] == 3
    assert 0 <= row["covered"] <= 1
    assert all(np.isfinite([row[name] for name in ("error", "completion", "test_set", "rank_correlation")]))


def test_test_sets_of_the_server_and_the_population_share_no_sample():
    task = Task(torch.nn.Linear(1, 2), torch.arange(1100.0)[:, None], torch.zeros(1100, dtype=torch.int64))
    tests, fresh = coverage.divided(task, 0)
    samples = [set(one.inputs[:, 0].tolist()) for one in (*tests, fresh)]
    assert [len(one) for one in samples] == [200, 500, 600]
    assert samples[0] < samples[1]
    assert samples[1].isdisjoint(samples[2])


def test_a_stated_certainty_is_less_on_a_population_that_is_a_sample():
    """A difference of 2 with an error of 1 is judged on a population whose own error is √3: over its error, it is 1."""
    sure = np.array(stats.norm.cdf([2.0, 2.0, 2.0]))
    found = coverage.same_sign(sure, np.array([2.0, -2.0, 2.0]), np.array([3**0.5, 3**0.5, 0.0]))
    assert found == pytest.approx(stats.norm.cdf([1.0, 1.0, 2.0]))


def test_the_populations_errors_of_differences_are_those_of_its_random_blocks(tmp_path):
    settings = SimulationSettings(n_clients=4, n_rounds=2, train_limit=200, test_limit=320)
    ledger, task = federations.simulated(settings, tmp_path, None)
    grouped, plain = (coverage.valued(ledger, one, "truth").chosen for one in (task, coverage.in_one_group(task)))
    assert plain.standard_errors == pytest.approx(grouped.standard_errors)
    assert plain.block_values is not None
    found, (first, second) = coverage.errors_of_differences(plain), plain.block_values[:2]
    assert found[0, 1] == pytest.approx(stats.sem(32 * (first - second)))
    assert np.diag(found) == pytest.approx(0)


def coverage_rows(covered: float, n_false: int, n_wrong: int) -> pd.DataFrame:
    same = {"n_clients": 8, "n_pairs": 28, "error": 0.1, "completion": 0.1, "test_set": 0.2, "covered_own": 0.9}
    counts = {"n_harm": 1, "n_harm_false": n_false, "harm_sure": "0.99", "n_apart": 10, "n_wrong": n_wrong}
    counts |= {"harm_here": "0.99", "rank_correlation": 0.9, "wrong_here": 0.5}
    rows = [
        {"kind": "regression", "n_participants": k, "n_test": n, "seed": seed, "covered_before": 0.0}
        for k in (3, 8)
        for n in coverage.N_TESTS
        for seed in range(6)
    ]
    return pd.DataFrame([{**row, **same, **counts, "covered": covered, "wrong_stated": 0.5} for row in rows])


@pytest.mark.parametrize(
    ("covered", "n_false", "n_wrong", "missed"),
    [
        (0.9, 0, 0, set()),
        (0.8, 0, 0, {"population", "kinds"}),
        (1.0, 0, 0, {"population", "kinds"}),
        (0.9, 1, 0, {"say"}),
        (0.9, 0, 1, {"stated"}),
    ],
)
def test_bars_of_coverage_are_met_or_missed(covered, n_false, n_wrong, missed):
    claims = coverage.section(coverage_rows(covered, n_false, n_wrong)).claims
    assert {claim.what.split()[-1] for claim in claims if not claim.holds} == missed
    assert {"population", "kinds", "there", "say", "stated"} == {claim.what.split()[-1] for claim in claims}


def test_findings_count_each_client_once():
    kind = next(kind for kind in kinds(10) if kind.name == "30 % of labels flipped")
    said = [
        {"kind": name, "clients": clients, "confidence": 0.95}
        for name, clients in (
            ("low value", ["0"]),
            ("look-alikes", ["0", "1"]),
            ("low value", ["5"]),
            ("harm", ["7"]),
            ("negative value", ["8"]),
        )
    ]
    found = findings.counted(kind, said, 10)
    assert [found[name] for name in findings.COUNTS] == [2, 1, 1, 8, 1, 0]
    assert found["sure"] == "0.95"


def test_the_client_that_was_copied_is_no_false_alarm():
    kind = next(kind for kind in kinds(10) if kind.name == "free rider: another's last update")
    found = findings.counted(kind, [{"kind": "late copy", "clients": ["0", "4"], "confidence": 1.0}], 10)
    assert (found["n_right"], found["n_false"]) == (1, 0)


def test_each_kind_of_finding_counts_whom_it_names_itself():
    (kind,) = [kind for kind in kinds(10) if kind.name == "free rider: another's last update"]
    said = [
        {"kind": "late copy", "clients": ["0", "4"]},  # 4 was copied: no false alarm
        {"kind": "large update", "clients": ["0"]},
        {"kind": "large update", "clients": ["7"]},
    ]
    found = findings.by_finding(kind, said, ["late copy", "large update", "replay"])
    assert found == {"late copy": (1, 0), "large update": (1, 1), "replay": (0, 0)}


def test_every_kind_of_finding_that_a_simulation_can_show_is_planted():
    planted = {name for kind in kinds(10) for name in kind.found_as}
    assert set(KINDS) - planted == {
        "contested name",
        "shared node",
        "harm",
        "negative value",
    }  # nodes are a framework's; values have a truth


@pytest.mark.parametrize(("n_wrong", "holds"), [(0, True), (1, True), (2, True), (3, False)])
def test_harm_is_right_as_often_as_findings_say(n_wrong, holds):
    """Of ten statements of 95 % two or more are wrong in 9 % of cases, three or more in 1 %."""
    assert findings.harm_claim("clean", 10 - n_wrong, [0.95] * 10).holds is holds
    assert findings.chance_of_so_few(3, [0.9] * 5) == pytest.approx(stats.binom.cdf(3, 5, 0.9))


def test_a_copied_pair_is_judged_by_sign_and_size():
    pairs = [(first, second, 0.1) for first, second in combinations(range(9), 2)]
    found = findings.interaction([*pairs, (0, 9, -2.0)], {0, 9}, "fixed")
    assert found == {"fixed_negative": 1, "fixed_lowest": 1, "fixed_largest": 1}
    assert findings.interaction([*pairs, (0, 9, 0.05)], {0, 9}, "fixed")["fixed_largest"] == 0
    assert COPIED in {kind.name for kind in kinds(10)}


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("free rider: no update", [2.0, 5.0, 9.0]),
        ("free rider: repeats its first update", [2.0, 6.0, 10.0]),
        ("free rider: another's last update", [2.0, 7.0, 11.0]),
        ("free rider: the server's last step × 1.5", [2.0, 11.0, 15.0]),
        ("update × 10", [2.0, 25.0, 39.0]),
        ("replay of the last model", [2.0, 2.0, 12.0]),
    ],
)
def test_a_client_that_cheats_sends(name, sent):
    """Global models 1, 5, 9; honest updates 1, 2, 3; the other client always moves by 2."""
    act = next(kind.act for kind in kinds(10) if kind.name == name)
    assert act is not None
    memory, found = Memory(act), []
    for t, (start, honest, other) in enumerate(((1.0, 2.0, 3.0), (5.0, 7.0, 7.0), (9.0, 12.0, 11.0))):
        model = {"w": torch.tensor([start])}
        answers = {"0": Answer({"w": torch.tensor([honest])}, 5), "1": Answer({"w": torch.tensor([other])}, 5)}
        found.append(float(memory(t, model, answers)["0"].model["w"]))
    assert found == pytest.approx(sent)


def tried(
    n_steps: int, rate: float, number: float, *, strength: float | None = None, accuracy: float = 0.5, n: int = 10
):
    what = RATES if strength is None else STRENGTHS
    setting = f"{n_steps} × {rate:g}" if strength is None else f"{strength:g}"
    same = {"what": what, "n_steps": n_steps, "rate": rate, "setting": setting, "accuracy": accuracy}
    setup = "mnist" if strength is None else "mnist-noise"
    measured = {"d": number, "noise_correlation": number, "seed": range(1000, 1000 + n)}
    return pd.DataFrame({**same, "setup": setup, "partition": "iid", "n_participants": 3, **measured})


def test_the_rate_of_one_step_nearest_to_the_papers_number_is_chosen():
    """Ten steps hit it exactly, and so does a model near chance: neither may be chosen."""
    rows = [tried(1, 0.1, 0.5), tried(1, 0.3, 0.8), tried(1, 0.003, 0.85, accuracy=0.15), tried(10, 0.3, 0.85)]
    (choice,) = choices(pd.concat(rows))
    assert (choice.selected, choice.n_tried, choice.n_seeds, choice.is_used) == ("1 × 0.3", 2, 10, True)
    (other,) = choices(tried(1, 0.1, 0.8))
    assert not other.is_used
    assert other.sentence().endswith(f"But the studies run 1 × {SETUPS['page']['mnist-small'].rate:g}")
    assert choices(tried(1, 0.3, 0.85, n=9)) == []


def test_the_strength_of_noise_is_chosen_with_the_rate_or_alone():
    rows = [tried(1, 0.3, 0.5, strength=10), tried(1, 0.1, 0.9, strength=300), tried(10, 0.1, 0.6, strength=100)]
    found = {choice.target.setup: choice.selected for choice in choices(pd.concat(rows))}
    assert found == {
        "mnist-noise-small": "1 × 0.1 with noise of 300 standard deviations",
        "mnist-noise": "10 × 0.1 with noise of 100 standard deviations",
    }


def test_a_table_leaves_out_names_that_repeat():
    made = markdown(table([{"a": "x", "b": "1"}, {"a": "x", "b": "2"}]))
    assert made == "| a | b |\n| --- | ---: |\n| x | 1 |\n|  | 2 |"


@pytest.mark.parametrize("n_clients", [4, 14])
def test_comfedsv_with_any_factors_is_that_of_fedworth(n_clients, tmp_path):
    """Exact for few clients, by permutations for many."""
    settings = SimulationSettings(n_clients=n_clients, n_rounds=3, train_limit=200, test_limit=30, with_truth=False)
    ledger, task = federations.simulated(settings, tmp_path, None)
    matrix = federations.federation(ledger, task).utility_matrix()
    assert (matrix.permutations is None) == (n_clients == 4)
    for factors in (FactorSettings(), FactorSettings(rank=2, penalty_kind="uniform")):
        expected = value(matrix, "comfedsv", ValuationSettings(factors=factors)).values
        assert federations.comfedsv(matrix, factors)[0] == pytest.approx(expected, rel=1e-9)


def test_the_prefixes_of_own_permutations_are_measured(tmp_path):
    settings = SimulationSettings(n_clients=5, n_rounds=2, train_limit=200, test_limit=30, with_truth=False)
    of = federations.federation(*federations.simulated(settings, tmp_path, None), permutations=10)
    expected = of.utility_matrix()
    assert expected.permutations is not None
    found = federations.measured(of, expected.permutations)
    assert value(found, "comfedsv").values == pytest.approx(value(expected, "comfedsv").values, rel=1e-6)


def test_gains_are_over_the_same_seeds_honest_share_and_flags_count_where_it_gains():
    name = "last step, 10 % noise"
    rows = [
        ("honest", 0, 0.1, ""), ("honest", 1, 0.3, ""), (name, 0, 0.3, "follower; echo"), (name, 1, 0.32, ""),
    ]  # fmt: skip
    columns = ["behaviour", "seed", "share", "named_as"]
    frame = pd.DataFrame(rows, columns=columns).assign(federation="IID, all", equal_length=0.1, n_honest=8, n_false=0)
    assert gaming.with_gains(frame).gain.tolist() == pytest.approx([0, 0, 0.2, 0.02])
    shown = gaming.section(frame)
    line = shown.table.iloc[1]
    assert [line[key] for key in ("gain", "flagged", "gains > 5", "of these flagged")] == ["+11", "1 of 2", "1", "1"]
    assert line["findings"] == "echo (1), follower (1)"
    assert all(claim.holds for claim in shown.claims)
    unseen = gaming.section(frame.assign(named_as="", n_false=1))
    assert not any(claim.holds for claim in unseen.claims)


def test_targets_of_retraining_come_from_all_coalitions():
    worth = np.array([[1.0, 2.0], [3.0, 3.0], [0.0, 1.0]])  # (n, n_trainings)
    rows = federations.all_coalitions(3).astype(float)
    pairs = np.zeros((8, 2))
    pairs[[3, 7]] = 4.0  # clients 0 and 1 together
    found = retraining.targets_of(rows @ worth + pairs)
    np.testing.assert_allclose(found["value"], worth + np.array([[2.0], [2.0], [0.0]]))
    np.testing.assert_allclose(found["leaving"], worth + np.array([[4.0], [4.0], [0.0]]))


def test_correlations_with_retraining_are_corrected_for_luck_in_the_target():
    rng, n = np.random.default_rng(0), 6
    rows: list[dict[str, object]] = []
    for _ in range(300):
        worth = rng.normal(size=n)
        runs = worth[:, None] + rng.normal(size=(n, 4)) * 2
        rows.append(
            {"seed": len(rows), "setup": "", "kind": "", **retraining.compared(worth, {"value": runs, "leaving": runs})}
        )
    frame = pd.DataFrame(rows)
    assert frame.value.mean() < 0.75
    assert retraining.corrected(frame, "value") == pytest.approx(1, abs=0.08)
    assert retraining.corrected(frame.assign(value_reliable=0.1), "value") is None


def test_the_cost_of_dropping_the_client_of_lowest_value():
    costs = np.array([[0.0], [1.0], [4.0]]) * np.ones((1, 2))
    row = retraining.compared(np.array([3.0, 1.0, 2.0]), {"value": costs, "leaving": costs})
    assert row["dropped_best"] == 0
    assert row["regret"] == pytest.approx(1 / 4)
    assert row["regret_at_random"] == pytest.approx((5 / 3) / 4)


def test_models_at_the_end_have_all_later_steps(tmp_path):
    settings = SimulationSettings(n_clients=3, n_participants=3, n_rounds=3, train_limit=60, test_limit=40, seed=4)
    ledger, task = federations.simulated(settings, tmp_path, None)
    of = federations.federation(ledger, task)
    moved = federations.federation(ledger, task, oracle=retraining.AtTheEnd(ledger, FastOracle(task)))
    everyone = np.ones((1, 3), dtype=bool)
    np.testing.assert_allclose(moved.game(2).utilities(everyone).sum(), of.game(2).utilities(everyone).sum(), rtol=1e-4)

    first, second, final = (*(ledger.open_round(t).global_model for t in (0, 1)), ledger.final_model())
    without = {name: final[name] - second[name] + first[name] for name in final}
    np.testing.assert_allclose(
        moved.game(0).utilities(everyone).sum(),
        retraining.loss_of(task, without) - retraining.loss_of(task, final),
        rtol=1e-4,
    )


def test_everyone_retrained_gives_the_recorded_model(tmp_path):
    settings = SimulationSettings(n_clients=3, n_participants=2, n_rounds=3, train_limit=60, test_limit=40)
    ledger, _ = federations.simulated(settings, tmp_path, None, misconduct=retraining.rides_free)
    everyone = np.ones((1, 3), dtype=bool)
    (model,) = retrained_models(ledger, everyone, misconduct=retraining.rides_free)
    (honest,) = retrained_models(ledger, everyone)
    assert all(torch.equal(tensor, ledger.final_model()[name]) for name, tensor in model.items())
    assert not all(torch.equal(tensor, honest[name]) for name, tensor in model.items())
