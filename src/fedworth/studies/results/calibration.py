"""What the open settings were chosen by: FedSV alone, on seeds that are reported nowhere else, by one rule.

paper-like   of the federations of one full-batch step a round, the one whose number for FedSV comes nearest to the
             paper's: its median d, or its mean correlation with the noise; rate and noise strength are free
practical    several steps at a rate that trains fast; of noisy data the strength alone is chosen, by the same number

A model near chance is not chosen: nothing would be judged there. Nor is anything by fewer than ten seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from fedworth.studies.results.comparing import NEAR_CHANCE, accuracy_of, training_of
from fedworth.studies.results.outcome import Cell
from fedworth.studies.results.records import Record, grouped, numbers
from fedworth.studies.trials.settings import PAPER_SETUPS, Setup, setting_of_name

FEWEST_SEEDS = 10
RATES, STRENGTHS = "steps × rate", "noise strength"
"""What is varied of the federations of `fairness`, and of those of `noisy-data`."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which setup's settings are chosen, from which data set of `sensitivity`, and the paper's number for FedSV."""

    setup: str
    tried: str
    label: str
    papers: float
    what: str = STRENGTHS

    @property
    def used(self) -> Setup:
        """What the studies run."""
        return PAPER_SETUPS[self.setup]


TARGETS = (
    Target("mnist-small", "mnist", "fairness, MNIST", 0.85, RATES),
    Target("synthetic-small", "synthetic", "fairness, synthetic", 0.35, RATES),
    Target("mnist-noise-small", "mnist-noise", "noisy data, MNIST", 0.96),
    Target("mnist-noise", "mnist-noise", "noisy data, MNIST", 0.96),
    Target("synthetic-noise-small", "synthetic-noise", "noisy data, synthetic", 0.75),
    Target("synthetic-noise", "synthetic-noise", "noisy data, synthetic", 0.75),
)
MEASURES: dict[str, tuple[str, str, Callable[[Sequence[float]], float]]] = {
    RATES: ("d", "median d", median),
    STRENGTHS: ("noise_correlation", "correlation with the noise", fmean),
}


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What the rule selects for a target, what FedSV has there, and whether that is what the studies run."""

    target: Target
    selected: str
    found: float
    n_tried: int
    n_seeds: int
    is_used: bool

    def sentence(self) -> str:
        """The choice, for people."""
        name, used = MEASURES[self.target.what][1], self.target.used
        against = "" if self.is_used else f"; but the studies run {_named(self.target, used.n_steps, used.rate, used)}"
        return (
            f"{self.target.label}, {setting_of_name(self.target.setup)}: {self.selected}, of {self.n_tried} tried on "
            f"{self.n_seeds} seeds; FedSV's {name} is {self.found:.2f} there, the paper's "
            f"{self.target.papers:g}{against}"
        )


def choices(records: Sequence[Record]) -> list[Calibrated]:
    """What the rule selects for every target, of those whose data set was tried."""
    found = [_choice(target, records) for target in TARGETS]
    return [choice for choice in found if choice is not None]


def _choice(target: Target, records: Sequence[Record]) -> Calibrated | None:
    measure, _, middle = MEASURES[target.what]
    tried = {
        key: mine
        for key, mine in grouped(records, "setup", "what", "n_steps", "rate", "setting").items()
        if key[:2] == (target.tried, target.what) and _is_free(target, key) and _is_judged(mine)
    }
    if not tried:
        return None
    at = {key: middle(numbers(mine, measure)) for key, mine in tried.items()}
    best = min(at, key=lambda key: abs(at[key] - target.papers))
    steps, rate, strength = best[2:]
    used = target.used
    same = (steps, rate) == (used.n_steps, used.rate) and (target.what == RATES or strength == used.noise_strength)
    selected = _named(target, steps, rate, strength)
    return Calibrated(target, selected, at[best], len(tried), len({r["seed"] for r in tried[best]}), same)


def _is_judged(records: Sequence[Record]) -> bool:
    return accuracy_of(records) >= NEAR_CHANCE and len({record["seed"] for record in records}) >= FEWEST_SEEDS


def _is_free(target: Target, key: tuple[Cell, ...]) -> bool:
    """Whether the rule may select this: one step at any rate, or the practical steps and rate."""
    steps, rate = key[2:4]
    if setting_of_name(target.setup) == "paper-like":
        return steps == 1
    return (steps, rate) == (target.used.n_steps, target.used.rate)


def _named(target: Target, steps: Cell, rate: Cell, strength: Cell | Setup) -> str:
    training = training_of({"n_steps": steps, "rate": rate})
    value = strength.noise_strength if isinstance(strength, Setup) else strength
    return training if target.what == RATES else f"{training} with noise of {value:g} standard deviations"
