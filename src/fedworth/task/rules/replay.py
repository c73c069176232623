"""The server's rounds once more: its state in every round, and whether its rule explains the model that followed.

In: a ledger and a rule. Out: for every round the state that the server had in it, the rule's model of the participants
compared with w^{t+1}, and what the server kept for the next round. w^{t+1} is what the next round or the end of the
ledger holds; a round after which neither is recorded cannot be compared, and says why.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from fedworth.ledger.ledger import Ledger, Model, Round
from fedworth.task.rules.compare import RoundCheck, compared, float64_of
from fedworth.task.rules.private import noise_of
from fedworth.task.rules.rule import NOISE, Arrays, Rule, State, arrays_of


@dataclass(frozen=True)
class Place:
    """How far a replay has come: the round to be replayed next, and what the server keeps at its beginning."""

    round_index: int = 0
    memory: Mapping[str, Arrays] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplayedRound:
    """One replayed round: the server's state in it, how it compares, and where the replay goes on."""

    state: State
    check: RoundCheck
    following: Place


def replayed(ledger: Ledger, rule: Rule, start: Place | None = None) -> Iterator[ReplayedRound]:
    """The rounds from `start` on, each with the state that the server had in it; every file is read once."""
    place, upcoming = start or Place(), None
    while place.round_index < ledger.n_rounds:
        round_ = upcoming or ledger.open_round(place.round_index)
        is_last = place.round_index + 1 == ledger.n_rounds
        upcoming = None if is_last else ledger.open_round(place.round_index + 1)
        step = _step(ledger, rule, place, round_, upcoming)
        yield step
        place = step.following


def _step(ledger: Ledger, rule: Rule, place: Place, round_: Round, upcoming: Round | None) -> ReplayedRound:
    following, reason = _next_model(ledger, round_, upcoming)
    state = State(round_.entry.number, place.memory)
    members = list(round_.entry.participants)
    before = arrays_of(round_.global_model)
    predicted, after = before, state
    if members:
        models = [arrays_of(round_.client_models[k]) for k in members]
        predicted, after = rule.aggregate(before, models, server_weights(ledger, round_), state)
    if following is None:
        check = RoundCheck(round_.entry.number, None, True, reason)
    else:
        check = compared(round_, predicted, following, noise_of(rule) if members else 0.0)
        state = _with_noise(state, predicted, following) if noise_of(rule) else state
    return ReplayedRound(state, check, Place(place.round_index + 1, after.memory))


def server_weights(ledger: Ledger, round_: Round) -> list[float]:
    """What the server weighted its participants by."""
    counts = dict(zip(round_.entry.answered, round_.entry.sample_counts, strict=True))
    return [1.0 if ledger.aggregation == "uniform" else float(counts[k]) for k in round_.entry.participants]


def _next_model(ledger: Ledger, round_: Round, upcoming: Round | None) -> tuple[Model | None, str]:
    """The global model that followed a round, or why it is not known."""
    own = round_.entry.number
    if upcoming is not None:
        if upcoming.entry.number != own + 1:
            return None, "the round after it is not recorded"
        return upcoming.global_model, ""
    if any(gone.number > own for gone in ledger.missing):
        return None, "the round after it is not recorded"
    if not ledger.is_closed:
        return None, "the ledger is not closed, so the model after its last round is not known"
    return ledger.final_model(), ""


def _with_noise(state: State, predicted: Arrays, following: Model) -> State:
    noise = {name: float64_of(following[name]) - array for name, array in predicted.items() if name in following}
    return replace(state, memory={**state.memory, NOISE: noise})
