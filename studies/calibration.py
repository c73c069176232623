"""How the settings that the paper leaves open were chosen: from the `sensitivity` study, by FedSV only.

paper-like   one full-batch step a round; rate and noise strength are free, and FedSV's number must come nearest to the
             paper's: the median d, or the mean correlation with the noise
practical    steps and rate are given; the noise strength is chosen by the same number

A model near chance is not chosen, and nothing is chosen from fewer than ten seeds.
"""

from dataclasses import dataclass

import pandas as pd

from studies.bars import NEAR_CHANCE
from studies.setups import SETUPS, Setup, setting_of
from studies.tables import accuracy_of

FEWEST_SEEDS = 10
RATES, STRENGTHS = "steps × rate", "noise strength"


@dataclass(frozen=True)
class Target:
    """A setup whose settings are chosen, the rows to choose from, and the paper's number for FedSV."""

    setup: str
    tried: str
    label: str
    papers: float
    what: str = STRENGTHS

    @property
    def used(self) -> Setup:
        """What the studies run."""
        return SETUPS["page"][self.setup]


TARGETS = (
    Target("mnist-small", "mnist", "fairness, MNIST", 0.85, RATES),
    Target("synthetic-small", "synthetic", "fairness, synthetic", 0.35, RATES),
    Target("mnist-noise-small", "mnist-noise", "noisy data, MNIST", 0.96),
    Target("mnist-noise", "mnist-noise", "noisy data, MNIST", 0.96),
    Target("synthetic-noise-small", "synthetic-noise", "noisy data, synthetic", 0.75),
    Target("synthetic-noise", "synthetic-noise", "noisy data, synthetic", 0.75),
)


@dataclass(frozen=True)
class Choice:
    """What the rule chooses for a target, FedSV's number there, and whether the studies run it."""

    target: Target
    selected: str
    found: float
    n_tried: int
    n_seeds: int
    is_used: bool

    @property
    def named(self) -> str:
        """The target and what was chosen."""
        return f"{self.target.label}, {setting_of(self.target.setup)}: {self.selected}"

    def sentence(self) -> str:
        """The choice in a sentence."""
        name = "median d" if self.target.what == RATES else "correlation with the noise"
        used = self.target.used
        run = _named(self.target, used.n_steps, used.rate, used.noise_strength)
        return (
            f"{self.named}, out of {self.n_tried} tried on {self.n_seeds} seeds. FedSV's {name} is {self.found:.2f} "
            f"there, the paper's {self.target.papers:g}" + ("" if self.is_used else f". But the studies run {run}")
        )


def choices(frame: pd.DataFrame) -> list[Choice]:
    """What the rules choose from the rows of `sensitivity`, for every target that was tried."""
    found = [_choice(target, frame) for target in TARGETS]
    return [choice for choice in found if choice is not None]


def _choice(target: Target, frame: pd.DataFrame) -> Choice | None:
    used = target.used
    rows = frame[(frame.setup == target.tried) & (frame.what == target.what)]
    if setting_of(target.setup) == "paper-like":
        rows = rows[rows.n_steps == 1]
    else:
        rows = rows[(rows.n_steps == used.n_steps) & (rows.rate == used.rate)]
    groups = {
        key: found
        for key, found in rows.groupby(["n_steps", "rate", "setting"], sort=False)
        if accuracy_of(found) >= NEAR_CHANCE and found.seed.nunique() >= FEWEST_SEEDS
    }
    if not groups:
        return None
    at = {
        key: found.d.median() if target.what == RATES else found.noise_correlation.mean()
        for key, found in groups.items()
    }
    best = min(at, key=lambda key: abs(at[key] - target.papers))
    steps, rate, setting = best
    strength = used.noise_strength if target.what == RATES else float(setting)
    is_used = (steps, rate, strength) == (used.n_steps, used.rate, used.noise_strength)
    selected, n_seeds = _named(target, steps, rate, strength), groups[best].seed.nunique()
    return Choice(target, selected, float(at[best]), len(groups), n_seeds, is_used)


def _named(target: Target, n_steps: int, rate: float, strength: float) -> str:
    training = f"{n_steps} × {rate:g}"
    return training if target.what == RATES else f"{training} with noise of {strength:g} standard deviations"
