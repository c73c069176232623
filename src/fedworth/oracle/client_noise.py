"""Noise that clients add to their answers (local differential privacy): what it does to values and their intervals.

In: a ledger, an oracle whose task says how large the noise is. Out: a sentence for every report. The noise is in every
utility, and no interval knows of it. So the answers of a few rounds get noise of the same size twice more, and each
time the round's game is valued. With v', v'' a client's values in a round so made,

    s = √(mean (v' − v'')² / 2)        how far other noise moves a client's value in a round, on the average
    s √T                               … and over T rounds, noise being drawn anew in each

s is measured on noise of twice the variance, so where it is not small it is rather too large. Of rounds with more than
five answers five are tried: one of k counts less than one of five, by H_k / k, the mean of 1 / |S| over the sizes that
coalitions have (H_k = 1 + 1/2 + … + 1/k).
"""

import math
from dataclasses import replace

import numpy as np
import torch

from fedworth.arrays import Floats
from fedworth.ledger.ledger import Ledger, Model, Round
from fedworth.names import Weighting
from fedworth.oracle.oracle import TaskOracle
from fedworth.oracle.weighting import mixtures, round_weights

MOST_ROUNDS, MOST_ANSWERS = 3, 5
"""Rounds, and answers of each, on which the noise is tried out."""

HALF_WIDTH = 1.645
"""Of a 90 % interval, in standard deviations."""


def noise_notes(ledger: Ledger, oracle: TaskOracle, weighting: Weighting) -> tuple[str, ...]:
    """What a reader must know of the noise that the task says clients add; nothing if they add none."""
    noise = oracle.task.client_noise
    heard = [t for t in range(ledger.n_rounds) if ledger.participants(t)]
    if noise is None or not heard:
        return ()
    places = [heard[k] for k in np.unique(np.linspace(0, len(heard) - 1, MOST_ROUNDS).astype(int))]
    found = [_values(oracle, ledger, t, noise, weighting) for t in places]
    as_sent, first, second = np.concatenate(found, axis=1)  # (n_answers,) each
    spread = float(np.sqrt(np.mean((first - second) ** 2) / 2))
    cost = float(np.mean(as_sent) - np.mean([first, second]))
    n_each = sum(len(ledger.participants(t)) for t in heard) / len({k for t in heard for k in ledger.participants(t)})
    total = spread * math.sqrt(n_each)
    return (
        f"clients add noise of {noise:g} to every number that they send. Values are those of the noisy answers, and "
        f"their intervals do not hold it: with other noise of that size a client's value would differ by about "
        f"{total:.2g} (standard deviation; {spread:.2g} in each of about {n_each:.0f} rounds). An interval of "
        f"half-width h that holds it too has the half-width √(h² + {HALF_WIDTH * total:.2g}²); noise costs a client "
        f"{cost:.2g} a round on the average ({len(as_sent)} answers of {len(places)} rounds measured again)",
    )


def _values(oracle: TaskOracle, ledger: Ledger, t: int, noise: float, weighting: Weighting) -> Floats:
    """(3, n_answers): the values of some participants in the game among them, as sent, and twice with more noise."""
    round_ = ledger.open_round(t)
    everyone = ledger.participants(t)
    members = list(everyone[:MOST_ANSWERS])
    coalitions = np.zeros((2 ** len(members), len(ledger.clients)), dtype=bool)
    coalitions[:, members] = (np.arange(len(coalitions))[:, None] >> np.arange(len(members))) & 1
    wanted = mixtures(coalitions, round_weights(ledger, t, weighting), weighting)
    games = [round_, *(_noisier(round_, members, noise, 2 * t + again) for again in (0, 1))]
    shapley = _shapley(len(members)) * _share(len(everyone)) / _share(len(members))
    return np.stack([shapley @ oracle.utilities(game, wanted).sum(axis=1) for game in games])


def _shapley(n: int) -> Floats:
    """(n, 2^n): Shapley values as linear in the utilities, coalition S at place Σ_i∈S 2^i."""
    members = (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(bool)  # (2^n, n)
    sizes = members.sum(axis=1, keepdims=True)
    weights = np.array([1 / (n * math.comb(n - 1, k)) for k in range(n)])
    gained, missed = weights[np.maximum(sizes - 1, 0)], weights[np.minimum(sizes, n - 1)]
    return np.asarray(np.where(members, gained, -missed).T)


def _share(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1)) / n


def _noisier(round_: Round, members: list[int], noise: float, seed: int) -> Round:
    """The round, its members' answers with noise once more."""
    generator = torch.Generator().manual_seed(seed)

    def noisier(model: Model) -> Model:
        drawn = {name: torch.randn(t.shape, generator=generator, dtype=torch.float64) for name, t in model.items()}
        return {n: t + (noise * drawn[n]).to(t.dtype) if t.is_floating_point() else t for n, t in model.items()}

    models = {k: noisier(model) if k in members else model for k, model in round_.client_models.items()}
    return replace(round_, client_models=models)
