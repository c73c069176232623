"""The effect of noise that clients add to their models (local differential privacy) on values.

The noise is part of every utility, and the intervals do not include it. Its effect is measured on a few rounds: noise
of the same size is added twice more, and the round's game is valued each time. If v' and v'' are a client's two values,

    s = √(mean (v' − v'')² / 2)        the standard deviation of a client's value in a round
    s √T                               the same for the sum over T rounds, as each has its own noise

The variance of the noise is then doubled, so s tends to be too large if it is not small. In rounds with more than five
participants only five are tried. A client has less influence among k participants than among five, in proportion to
H_k / k, the mean of 1 / |S| over sizes of coalitions (H_k = 1 + 1/2 + … + 1/k).
"""

import math
from dataclasses import replace

import numpy as np
import torch

from fedworth.arrays import Floats
from fedworth.games.game import ModelGame
from fedworth.games.shapley import exact_shares, shapley_values
from fedworth.ledger.ledger import Ledger, Model, Round
from fedworth.names import Weighting
from fedworth.oracle.oracle import Oracle
from fedworth.oracle.weighting import round_weights

MOST_ROUNDS, MOST_ANSWERS = 3, 5
"""Rounds, and participants of each, on which the noise is measured."""

HALF_WIDTH = 1.645
"""Of a 90 % interval, in standard deviations."""


def noise_notes(ledger: Ledger, oracle: Oracle, weighting: Weighting) -> tuple[str, ...]:
    """A note on the noise that clients add, for every report; none if the task has no noise."""
    noise = oracle.task.client_noise
    heard = [t for t in range(ledger.n_rounds) if ledger.participants(t)]
    if noise is None or not heard:
        return ()
    places = [heard[k] for k in np.unique(np.linspace(0, len(heard) - 1, MOST_ROUNDS).astype(int))]
    found = [_values(oracle, ledger, t, noise, weighting) for t in places]
    as_sent, first, second = np.concatenate(found, axis=1)  # (n,) each
    spread = float(np.sqrt(np.mean((first - second) ** 2) / 2))
    cost = float(np.mean(as_sent) - np.mean([first, second]))
    n_each = sum(len(ledger.participants(t)) for t in heard) / len({k for t in heard for k in ledger.participants(t)})
    total = spread * math.sqrt(n_each)
    return (
        f"clients add noise of {noise:g} to every number that they send. Values are those of the noisy models, and "
        f"their intervals do not include the noise: other noise of that size would change a client's value by about "
        f"{total:.2g} (standard deviation; {spread:.2g} in each of about {n_each:.0f} rounds). To include it, replace "
        f"a half-width h by √(h² + {HALF_WIDTH * total:.2g}²). Noise costs a client {cost:.2g} a round on average "
        f"(measured on {len(as_sent)} models of {len(places)} rounds)",
    )


def _values(oracle: Oracle, ledger: Ledger, t: int, noise: float, weighting: Weighting) -> Floats:
    """(3, n): the values of some participants in the game among them, as sent, and twice with more noise."""
    round_, everyone = ledger.open_round(t), ledger.participants(t)
    members, weights = list(everyone[:MOST_ANSWERS]), round_weights(ledger, t, weighting)
    rounds = [round_, *(_noisier(round_, members, noise, 2 * t + again) for again in (0, 1))]
    games = [ModelGame(oracle, each, np.array(members), weights, weighting) for each in rounds]
    values = np.stack([exact_shares(game, shapley_values).totals for game in games])
    return np.asarray(values * _share(len(everyone)) / _share(len(members)))


def _share(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1)) / n


def _noisier(round_: Round, members: list[int], noise: float, seed: int) -> Round:
    """The round with noise added to the members' models."""
    generator = torch.Generator().manual_seed(seed)

    def noisier(model: Model) -> Model:
        drawn = {name: torch.randn(t.shape, generator=generator, dtype=torch.float64) for name, t in model.items()}
        return {n: t + (noise * drawn[n]).to(t.dtype) if t.is_floating_point() else t for n, t in model.items()}

    models = {k: noisier(model) if k in members else model for k, model in round_.client_models.items()}
    return replace(round_, client_models=models)
