"""Unfairness of FedSV (Observation 1 and Example 1), on the federations of `fairness`.

Observation 1 gives a lower bound P_s on the probability that two clients with the same data differ by sδ or more. In
each round one of them takes part without the other with probability 2p, p = m(N−m) / (N(N−1)). As printed, P_s has
(1−p) where (1−2p) belongs and exceeds 1. Example 1: MNIST, non-IID, d > 0.5 in 65 % of 50 runs.
"""

import math
from functools import cache, partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats

from studies import figures
from studies.bars import Claim, Interval, at_settings, bound_claim, share_of
from studies.methods import FOUR, RIVAL, label
from studies.study import Section, Study
from studies.tables import accuracy_of, data_of, number, place_of, table
from studies.values import of_method

N_CLIENTS, N_ROUNDS, N_PARTICIPANTS, N_DRAWS = 10, 10, 3, 20_000
PAPERS_CHANCE, ABOUT = 0.65, 0.15
SHOWN = ("mnist", "digits")  # the paper's example is on MNIST


def chance(s: int, n_participants: int = N_PARTICIPANTS) -> float:
    """The exact probability that two clients differ by s rounds or more: Σ_k P(k rounds apart) P(|k − 2B| ≥ s)."""
    p = n_participants * (N_CLIENTS - n_participants) / (N_CLIENTS * (N_CLIENTS - 1))
    apart = np.arange(N_ROUNDS + 1)
    against = np.arange(N_ROUNDS + 1)
    joint = stats.binom.pmf(apart, N_ROUNDS, 2 * p)[:, None] * stats.binom.pmf(against, apart[:, None], 0.5)
    return float(joint[np.abs(apart[:, None] - 2 * against) >= s].sum())


def corrected_bound(s: int, n_participants: int = N_PARTICIPANTS) -> float:
    """P_s with (1 − 2p): half the exact probability, for s > 0."""
    return chance(s, n_participants) / 2


def printed_bound(s: int) -> float:
    """P_s as the paper prints it, reading n as T."""
    p = N_PARTICIPANTS * (N_CLIENTS - N_PARTICIPANTS) / (N_CLIENTS * (N_CLIENTS - 1))
    return sum(
        math.comb(N_ROUNDS, b) * math.comb(N_ROUNDS - b, a + b) * p ** (2 * b + a) * (1 - p) ** (N_ROUNDS - 2 * b - a)
        for a in range(s, N_ROUNDS + 1)
        for b in range((N_ROUNDS - a) // 2 + 1)
    )


@cache
def simulated_chances() -> list[Interval]:
    """The share of simulated schedules in which two clients differ by s rounds or more, for s from 0 to T."""
    rng = np.random.default_rng(0)
    order = rng.permuted(np.tile(np.arange(N_CLIENTS), (N_DRAWS * N_ROUNDS, 1)), axis=1)[:, :N_PARTICIPANTS]
    lead = (order == 0).any(axis=1).astype(int) - (order == 1).any(axis=1)  # (n_draws · T,)
    apart = np.abs(lead.reshape(N_DRAWS, N_ROUNDS).sum(axis=1))  # (n_draws,)
    return [share_of(apart >= s) for s in range(N_ROUNDS + 1)]


def section(frame: pd.DataFrame) -> Section:
    """P_s beside the probability that it bounds, and the share of runs with d > 0.5."""
    shown = frame[frame.data_set.isin(SHOWN)]
    places = [found for _, found in shown.groupby("setup", sort=False)]
    return Section(
        table(map(_line, places)),
        claims=[*_bound_claims(), *at_settings(shown, lambda found: [_run_claim(found)])],
        panels=[_bound_panel, partial(_draw_runs, places)],
        appendix=table(_bound_line(s) for s in (1, 2, 3, 5)),
    )


def _apart(frame: pd.DataFrame, key: str) -> Interval:
    return share_of(of_method(frame, key).d > 0.5)


def _bound_line(s: int) -> dict[str, str]:
    return {
        "s": str(s),
        "P_s as printed": f"{printed_bound(s):.3f}",
        "P_s corrected": f"{corrected_bound(s):.3f}",
        "exact, σ = 0": f"{chance(s):.3f}",
        "simulated": simulated_chances()[s].text(),
    }


def _line(frame: pd.DataFrame) -> dict[str, str]:
    printed = share_of(of_method(frame, RIVAL).printed_d.dropna() > 0.5)
    shares = {key: _apart(frame, key) for key in FOUR}
    return {
        "data, steps × rate": place_of(frame),
        "accuracy": number(accuracy_of(frame)),
        **{label(key): found.text() if key == RIVAL else number(found.value) for key, found in shares.items()},
        "FedSV, d as printed": f"{printed.value:.2f} of the {printed.n} runs where it is defined" if printed.n else "–",
        "seeds": str(shares[RIVAL].n),
    }


def _bound_claims() -> list[Claim]:
    printed = printed_bound(1)
    bounded = all(corrected_bound(s) <= simulated_chances()[s].high for s in range(1, N_ROUNDS + 1))
    return [
        Claim("P_s as printed is a probability", printed <= 1, f"P_1 = {printed:.2f} for N = 10, m = 3, T = 10"),
        Claim("P_s corrected is a lower bound of the probability", bounded, "against 20,000 simulated runs, s = 1…10"),
    ]


def _run_claim(frame: pd.DataFrame) -> Claim:
    found = _apart(frame, RIVAL)
    what = f"{data_of(frame)}: FedSV has d > .5 in about 65 % of runs (50 to 80 %)"
    return bound_claim(what, found, found.text(), least=PAPERS_CHANCE - ABOUT, most=PAPERS_CHANCE + ABOUT)


def _bound_panel(axes: Axes) -> None:
    steps = list(range(1, N_ROUNDS + 1))
    figures.line(axes, "simulated, m = 3", steps, [simulated_chances()[s].value for s in steps], 0)
    for position, m in enumerate((1, 3, 5), 1):
        figures.line(axes, f"P_s corrected, m = {m}", steps, [corrected_bound(s, m) for s in steps], position)
    figures.line(axes, "P_s as printed, m = 3", steps, [printed_bound(s) for s in steps], 4)
    axes.set(title="Observation 1 (N = 10, T = 10)", xlabel="s", ylabel="P(|s_i − s_j| ≥ sδ)", ylim=(0, 1.6))


def _draw_runs(places: list[pd.DataFrame], axes: Axes) -> None:
    found = {key: [_apart(frame, key) for frame in places] for key in FOUR}
    heights = {key: [one.value for one in mine] for key, mine in found.items()}
    figures.bars(axes, heights, {key: figures.ends(mine) for key, mine in found.items()})
    axes.axhline(PAPERS_CHANCE, color="#555555", lw=1.1, ls=":", label="FedSV, paper")
    axes.set(title="Example 1", ylabel="share of runs with d > .5")
    figures.ticks(axes, [place_of(frame) for frame in places])


STUDY = Study(
    "unfairness",
    "Unfairness of FedSV: Observation 1 and Example 1",
    "Each cell shows the share of runs with *d* > .5. $P_s$ as printed has $(1-p)$ where $(1-2p)$ belongs "
    "([theory](theory.md#6-observation-1-fedsv-is-unfair)). *d* as printed divides by $\\max(s_0,s_9)$, which is "
    "undefined if neither value is positive. The runs are those of the fairness study.",
    section,
    claim="FedSV gives clients with the same data different values with probability P_s; on MNIST d₀₉ > 0.5 in 65 % "
    "of 50 runs.",
    source="fairness",
)
