"""Rivals by name: a recorded federation in, a valuation and what it cost out.

All but the last pay a client for the rounds that it took part in, as FedSV does. `retraining` is for simulated
federations: the Shapley value of what each coalition would have reached by itself.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedworth.arrays import Floats, stream
from fedworth.errors import TooManyError
from fedworth.names import RivalName, checked_name
from fedworth.simulation.simulate import retrained_models
from fedworth.valuation.rivals.counted import CountedGame
from fedworth.valuation.rivals.directions import cosine_values, influence_values
from fedworth.valuation.rivals.federation import Recorded
from fedworth.valuation.rivals.reconstruction import DECAY, or_values, rebuilt_game
from fedworth.valuation.rivals.sampling import Sampled, SamplingStatus, gtg_values, tmc_values
from fedworth.valuation.shapley import shapley_values
from fedworth.valuation.valuation import Valuation

SKIPPED_PART = 0.05
"""GTG leaves out a round that changed the utility by less than this part of an average round."""

MOST_EXACT = 12
"""Participants up to which MR takes all coalitions of a round; beyond, truncated permutations."""


MOST_RETRAINED = 10


@dataclass(frozen=True)
class RivalValuation:
    """A valuation by a rival, how many utilities it measured, and the processor time it took."""

    valuation: Valuation
    n_evaluations: int
    seconds: float


@dataclass(frozen=True)
class _Made:
    values: Floats  # (n_clients,)
    n_evaluations: int
    standard_errors: Floats | None = None
    notes: tuple[str, ...] = ()


def value_by_rival(federation: Recorded, name: RivalName, *, seed: int = 0) -> RivalValuation:
    """What each client is worth by a rival; whoever was never heard has no value."""
    checked_name("rival", name)
    start = time.process_time()
    made = RIVALS[name](federation, stream(seed, "rival", *name.encode()))
    values = np.where(federation.participants.any(axis=0), made.values, np.nan)
    notes = federation.notes + made.notes
    valuation = Valuation(name, federation.clients, values, made.standard_errors, None, notes)
    return RivalValuation(valuation, made.n_evaluations, time.process_time() - start)


def _by_round(
    federation: Recorded, of_round: Callable[[CountedGame], Sampled], decay: float = 1.0
) -> tuple[_Made, list[Sampled]]:
    values, n_evaluations, found = np.zeros(len(federation.clients)), 0, list[Sampled]()
    for played in federation.rounds():
        sampled = of_round(played.game)
        values[played.members] += decay**played.round_.entry.round_index * sampled.values
        n_evaluations += played.game.n_evaluations
        found.append(sampled)
    return _Made(values, n_evaluations, None, _told(found)), found


def _told(found: list[Sampled]) -> tuple[str, ...]:
    """How many rounds ended otherwise than settled."""
    counts = {status: sum(s.status is status for s in found) for status in SamplingStatus}
    unsettled = (status for status in SamplingStatus if status is not SamplingStatus.SETTLED and counts[status])
    return tuple(f"{counts[status]} of {len(found)} rounds: {status}" for status in unsettled)


def _tmc(federation: Recorded, rng: np.random.Generator) -> _Made:
    return _by_round(federation, lambda game: tmc_values(game, rng=rng))[0]


def _gtg(federation: Recorded, rng: np.random.Generator) -> _Made:
    wholes = [played.game.whole for played in federation.rounds()]
    skip_below = SKIPPED_PART * float(np.mean(np.abs(wholes)))
    return _by_round(federation, lambda game: gtg_values(game, skip_below=skip_below, rng=rng))[0]


def _mr(federation: Recorded, rng: np.random.Generator) -> _Made:
    def of_round(game: CountedGame) -> Sampled:
        if game.n > MOST_EXACT:
            return tmc_values(game, rng=rng)
        return Sampled(shapley_values(game.all()), SamplingStatus.SETTLED, 0)

    return _by_round(federation, of_round, DECAY)[0]


def _or(federation: Recorded, rng: np.random.Generator) -> _Made:
    game = rebuilt_game(federation)
    rebuilt = or_values(federation, game, rng=rng)
    return _Made(rebuilt.values, game.n_evaluations, rebuilt.standard_errors)


def _influence(federation: Recorded, _rng: np.random.Generator) -> _Made:
    return _Made(influence_values(federation), 0)


def _cosine(federation: Recorded, _rng: np.random.Generator) -> _Made:
    return _Made(cosine_values(federation), 0)


def _retraining(federation: Recorded, _rng: np.random.Generator) -> _Made:
    if len(federation.heard) > MOST_RETRAINED:
        raise TooManyError(
            f"{len(federation.heard)} clients have {2 ** len(federation.heard):,} coalitions, each of which would be "
            f"trained anew; at most {MOST_RETRAINED} clients are retrained"
        )
    game = federation.game_of_models(
        lambda rows: retrained_models(federation.ledger, rows, data_folder=federation.data_folder)
    )
    values = np.full(len(federation.clients), np.nan)
    values[federation.heard] = shapley_values(game.all())
    return _Made(values, game.n_evaluations)


RIVALS: dict[RivalName, Callable[[Recorded, np.random.Generator], _Made]] = {
    "tmc": _tmc,
    "gtg": _gtg,
    "mr": _mr,
    "or": _or,
    "influence": _influence,
    "cosine": _cosine,
    "retraining": _retraining,
}
