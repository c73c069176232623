"""Clients that cannot be told apart over the rounds are named; where all come in kinds, nobody is."""

import numpy as np
import pytest

from fedworth.findings import SIMILAR, look
from fedworth.findings.similarity import MOST_CONFIDENCE, alike, detect, directions_of
from fedworth.findings.traces import WIDTH, RoundTrace
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate

N_CLIENTS, N_ROUNDS = 8, 6


def traces(own, rng, noise=1.0):
    """Every client's update is what all share, its own part, and noise that is drawn anew in every round."""
    found = []
    for _ in range(N_ROUNDS):
        drawn = rng.normal(size=(len(own), WIDTH)) / np.sqrt(WIDTH)
        sketches = np.concatenate([np.zeros((1, WIDTH)), 3 * np.eye(WIDTH)[0] + own + noise * drawn])
        zeros = np.zeros(len(sketches))
        found.append(RoundTrace(tuple(range(len(own))), ("",) * len(sketches), zeros, zeros, sketches, 1e-7))
    return found


@pytest.fixture
def drawn():
    rng = np.random.default_rng(5)
    return rng.normal(size=(N_CLIENTS, WIDTH)) / np.sqrt(WIDTH), rng


def found_in(own, rng, **options):
    return alike(directions_of(traces(own, rng, **options), set()))


def test_nobody_is_alike_by_chance(drawn):
    assert found_in(*drawn) == []


@pytest.mark.parametrize("noise", [0.1, 1.0])
@pytest.mark.parametrize("length", [1.0, 20.0])
def test_two_clients_with_the_same_part_of_their_own_are_named_at_any_length_and_noise(drawn, noise, length):
    own, rng = drawn
    own[7] = own[0]
    made = traces(own, rng, noise=noise)
    for trace in made:
        trace.sketches[8] *= length
    ((clients, similarity, confidence),) = alike(directions_of(made, set()))
    assert clients == (0, 7)
    assert similarity == pytest.approx(1.0, abs=0.15)
    assert 0.9 < confidence <= MOST_CONFIDENCE


def test_where_clients_come_in_kinds_nothing_is_said(drawn, tiny_ledger):
    """Two pairs of one kind each: any of them could be a copy. Three of one kind are one group."""
    own, rng = drawn
    own[7], own[6] = own[0], own[1]
    assert detect(tiny_ledger, traces(own, rng), []) == ([], [SIMILAR])
    own[6] = own[0]
    assert {k for piece in detect(tiny_ledger, traces(own, rng), [])[0] for k in piece.clients} == {0, 6, 7}


def test_copies_with_other_batches_in_a_simulated_federation(tmp_path):
    settings = SimulationSettings(
        copies=((9, 0),),
        copies_shuffled=True,
        partition="iid",
        batch_size=32,
        n_participants=5,
        with_truth=False,
        seed=3,
    )
    (found,) = look(simulate(settings, tmp_path / "l"))[0]
    assert (found.kind, found.clients) == (SIMILAR, ("0", "9"))


def test_clients_of_a_clean_federation_can_be_told_apart(tmp_path):
    """Tests of single rounds named a pair here by chance."""
    settings = SimulationSettings(
        n_clients=8, n_participants=8, n_rounds=8, partition="iid", batch_size=32, with_truth=False, seed=1003
    )
    found, looked_for = look(simulate(settings, tmp_path / "l"))
    assert found == ()
    assert SIMILAR in looked_for
