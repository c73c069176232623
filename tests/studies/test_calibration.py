"""What the rules choose from numbers that are known, and that the studies run what they choose."""

from pathlib import Path

import pytest

from fedworth.studies.results.calibration import RATES, STRENGTHS, TARGETS, choices
from fedworth.studies.results.page import records_in
from fedworth.studies.results.records import Record
from fedworth.studies.sensitivity import tick_of

DOCS = Path(__file__).parents[2] / "docs"


def tried(n_steps: int, rate: float, d: list[float], *, accuracy: float = 0.5, times: int = 5) -> list[Record]:
    same: Record = {
        "setup": "mnist",
        "what": RATES,
        "n_steps": n_steps,
        "rate": rate,
        "setting": f"{n_steps} × {rate:g}",
    }
    more: Record = {"partition": "two-class", "n_participants": 3, "accuracy": accuracy}
    return [{**same, **more, "seed": 1000 + seed, "d": found} for seed, found in enumerate(d * times)]


def noisy(n_steps: int, rate: float, strength: float, correlation: float) -> list[Record]:
    same: Record = {"setup": "mnist-noise", "what": STRENGTHS, "n_steps": n_steps, "rate": rate, "setting": strength}
    more: Record = {"partition": "iid", "n_participants": 3, "accuracy": 0.5, "noise_correlation": correlation}
    return [{**same, **more, "seed": seed} for seed in range(1000, 1010)]


def test_the_rate_of_one_step_nearest_to_the_papers_median_is_chosen():
    """Ten steps hit it exactly, and a model near chance does: neither is free to be chosen."""
    records = [
        *tried(1, 0.1, [0.1, 0.5, 2.0]),
        *tried(1, 0.3, [0.7, 0.8, 0.9]),
        *tried(1, 0.003, [0.85] * 3, accuracy=0.15),
        *tried(10, 0.3, [0.85] * 3),
    ]
    (choice,) = choices(records)
    assert (choice.selected, choice.n_tried, choice.n_seeds) == ("1 × 0.3", 2, 15)
    assert choice.found == pytest.approx(0.8)


def test_strength_and_rate_are_chosen_together_and_at_the_practical_setting_strength_alone():
    small = [*noisy(1, 0.3, 10.0, 0.5), *noisy(1, 0.1, 300.0, 0.9)]
    records = [*small, *noisy(10, 0.1, 100.0, 0.6), *noisy(10, 0.1, 3.0, 0.4), *noisy(10, 0.03, 3.0, 0.96)]
    found = {choice.target.setup: choice.selected for choice in choices(records)}
    assert found == {
        "mnist-noise-small": "1 × 0.1 with noise of 300 standard deviations",
        "mnist-noise": "10 × 0.1 with noise of 100 standard deviations",
    }


def test_a_choice_that_the_studies_do_not_run_says_so():
    used = next(target.used for target in TARGETS if target.setup == "mnist-small")
    (kept,) = choices(tried(used.n_steps, used.rate, [0.8], times=10))
    assert kept.is_used
    assert "but the studies run" not in kept.sentence()
    (other,) = choices(tried(1, used.rate / 3, [0.8], times=10))
    assert not other.is_used
    assert other.sentence().endswith(f"; but the studies run 1 × {used.rate:g}")


def test_few_seeds_choose_nothing():
    assert choices(tried(1, 0.3, [0.85], times=9)) == []


@pytest.mark.parametrize(
    ("setting", "tick"),
    [(10.0, "10"), (300.0, "300"), (0.001, ".001"), ("10 × 0.03", "10×.03"), ("squares", "squares")],
)
def test_ticks_are_short_and_say_the_number(setting, tick):
    assert tick_of(setting) == tick


def test_the_studies_run_what_the_rules_choose_from_the_pages_numbers():
    assert [
        choice.sentence() for choice in choices(records_in(DOCS / "figures", "sensitivity")) if not choice.is_used
    ] == []
