"""Retraining: the whole federation once more, with some of its clients only.

In: a simulated ledger and coalitions. Out: for each the model that its members would have reached alone: they train in
the rounds in which they took part, from models that nobody else has touched. A round without any of them changes
nothing. This is what a value would rest on if training were free; it takes a training for every coalition.
"""

from collections.abc import Iterator

from fedworth.arrays import Memberships
from fedworth.ledger.ledger import Ledger, Model
from fedworth.simulation.models import state_of
from fedworth.simulation.simulate import (
    Federation,
    answers_of_round,
    average,
    federation_of,
    participants_of,
    simulation_of,
)
from fedworth.storage import Place


def retrained_models(ledger: Ledger, coalitions: Memberships, *, data_folder: Place | None = None) -> Iterator[Model]:
    """The final model of each coalition, trained anew."""
    settings = simulation_of(ledger)
    federation, rounds = federation_of(settings, data_folder=data_folder), participants_of(settings)
    for row in coalitions:
        yield _retrained(federation, [[k for k in chosen if row[k]] for chosen in rounds])


def _retrained(federation: Federation, rounds: list[list[int]]) -> Model:
    model = state_of(federation.module)
    for round_index, chosen in enumerate(rounds):
        if chosen:
            answers = answers_of_round(federation, model, chosen, round_index, {})
            model = average(list(answers.values()), federation.aggregation)
    return model
